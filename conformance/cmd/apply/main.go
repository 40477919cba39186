// Command apply computes objects and their managed fields after updates and
// applies of several managers, with the code of kube-apiserver: apimachinery's
// field manager, structured-merge-diff and the OpenAPI documents of Kubernetes.
// Defaults are not applied.
//
// Each line of standard input is a case:
//
//	{"apiVersion":"v1","kind":"Pod","operations":[{"manager":"a","apply":true,"force":false,"subresource":"","object":{...}}, ...]}
//
// Each operation is applied to the result of the one before; a failed one changes
// nothing. Each line of standard output has one answer per operation: the object
// without the times of its managed fields, or the error.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

type operation struct {
	Manager     string         `json:"manager"`
	Apply       bool           `json:"apply"`
	Force       bool           `json:"force"`
	Subresource string         `json:"subresource"`
	Object      map[string]any `json:"object"`
}

type question struct {
	metav1.TypeMeta
	Operations []operation `json:"operations"`
}

type answer struct {
	Object map[string]any       `json:"object,omitempty"`
	Error  string               `json:"error,omitempty"`
	Causes []metav1.StatusCause `json:"causes,omitempty"`
}

// plain does not convert or default objects: there is only one version.
type plain struct{}

func (plain) Convert(_, _, _ any) error { return errors.New("not supported") }

func (plain) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}

func (plain) ConvertFieldLabel(schema.GroupVersionKind, string, string) (string, string, error) {
	return "", "", errors.New("not supported")
}

func (plain) Default(runtime.Object) {}

func (plain) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	object := &unstructured.Unstructured{Object: map[string]any{}}
	object.SetGroupVersionKind(kind)
	return object, nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "apply:", err)
		os.Exit(1)
	}
}

func run() error {
	converter, err := typeConverter("api__v1", "apis__apps__v1")
	if err != nil {
		return err
	}
	in := bufio.NewReader(os.Stdin)
	out := bufio.NewWriter(os.Stdout)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) == 0 {
			return unlessEnd(err)
		}
		var q question
		if err := json.Unmarshal(line, &q); err != nil {
			return fmt.Errorf("reading a case: %w", err)
		}
		text, err := json.Marshal(answers(converter, q))
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "%s\n", text); err != nil {
			return err
		}
		if err := out.Flush(); err != nil {
			return err
		}
	}
}

// unlessEnd does not treat the end of the input as an error.
func unlessEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// answers repeats the operations if a second has ended meanwhile: managers of the same second are ordered by name.
func answers(converter managedfields.TypeConverter, q question) []answer {
	for {
		before := time.Now().Unix()
		list := once(converter, q)
		if time.Now().Unix() == before {
			return list
		}
	}
}

func once(converter managedfields.TypeConverter, q question) []answer {
	var live *unstructured.Unstructured
	var list []answer
	for _, op := range q.Operations {
		object := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(numbers(op.Object).(map[string]any))}
		result, err := perform(converter, q.GroupVersionKind(), live, object, op)
		if err != nil {
			a := answer{Error: err.Error()}
			var status *apierrors.StatusError
			if errors.As(err, &status) && status.ErrStatus.Details != nil {
				a.Causes = status.ErrStatus.Details.Causes
			}
			list = append(list, a)
			continue
		}
		live = result
		live.SetUID("u")
		shown := live.DeepCopy()
		entries := shown.GetManagedFields()
		for i := range entries {
			entries[i].Time = nil
		}
		shown.SetManagedFields(entries)
		list = append(list, answer{Object: shown.Object})
	}
	return list
}

// numbers converts whole numbers to integers, as the API server decodes them.
func numbers(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for name := range v {
			v[name] = numbers(v[name])
		}
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	case float64:
		if v == float64(int64(v)) {
			return int64(v)
		}
	}
	return value
}

func perform(converter managedfields.TypeConverter, kind schema.GroupVersionKind, live, object *unstructured.Unstructured, op operation) (*unstructured.Unstructured, error) {
	manager, err := managedfields.NewDefaultFieldManager(converter, plain{}, plain{}, plain{}, kind, kind.GroupVersion(), op.Subresource, reset(kind, op.Subresource))
	if err != nil {
		return nil, err
	}
	before, err := plain{}.New(kind)
	if err != nil {
		return nil, err
	}
	if live != nil {
		before = live.DeepCopy()
	}
	var after runtime.Object
	if op.Apply {
		after, err = manager.Apply(before, object, op.Manager, op.Force)
	} else {
		if live != nil {
			object.SetUID(live.GetUID())
		}
		after = manager.UpdateNoErrors(before, object, op.Manager)
	}
	if err != nil {
		return nil, err
	}
	return after.(*unstructured.Unstructured), nil
}

// reset returns the reset fields of the strategies of these kinds.
func reset(kind schema.GroupVersionKind, subresource string) map[fieldpath.APIVersion]fieldpath.Filter {
	var fields *fieldpath.Set
	switch {
	case kind.Kind == "ConfigMap":
		return nil
	case subresource == "":
		fields = fieldpath.NewSet(fieldpath.MakePathOrDie("status"))
	case kind.Kind == "Deployment":
		fields = fieldpath.NewSet(fieldpath.MakePathOrDie("spec"), fieldpath.MakePathOrDie("metadata", "labels"))
	case kind.Kind == "Pod":
		fields = fieldpath.NewSet(fieldpath.MakePathOrDie("spec"), fieldpath.MakePathOrDie("metadata", "deletionTimestamp"), fieldpath.MakePathOrDie("metadata", "ownerReferences"))
	default:
		fields = fieldpath.NewSet(fieldpath.MakePathOrDie("spec"))
	}
	return fieldpath.NewExcludeFilterSetMap(map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(kind.GroupVersion().String()): fields,
	})
}

func typeConverter(documents ...string) (managedfields.TypeConverter, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		return nil, fmt.Errorf("finding k8s.io/kubernetes: %w", err)
	}
	folder := filepath.Join(strings.TrimSpace(string(out)), "api/openapi-spec/v3")
	models := map[string]*spec.Schema{}
	for _, name := range documents {
		data, err := os.ReadFile(filepath.Join(folder, name+"_openapi.json"))
		if err != nil {
			return nil, err
		}
		var document spec3.OpenAPI
		if err := json.Unmarshal(data, &document); err != nil {
			return nil, err
		}
		for name, model := range document.Components.Schemas {
			models[name] = model
		}
	}
	return managedfields.NewTypeConverter(models, false)
}
