// Command schema writes the fact tables of the embedded API server: which
// resources a kube-apiserver serves by default; and for every type behind them
// the names, protobuf numbers, shapes, merge keys, defaults and enum values of
// its fields. It reads Go's struct tags, three documents of the
// k8s.io/kubernetes module and its generated OpenAPI definitions.
//
//	go run ./cmd/schema ../crates/apiserver/src/schema
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"sort"
	"strings"

	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/endpoints/deprecation"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/generated/openapi"
)

type discovery struct {
	Items []struct {
		Metadata struct{ Name string }
		Versions []struct {
			Version   string
			Resources []apiResource
		}
	}
}

type apiResource struct {
	Resource, SingularResource, Scope string
	ResponseKind                      *metav1.GroupVersionKind
	ShortNames, Categories, Verbs     []string
	Subresources                      []struct {
		Subresource  string
		ResponseKind *metav1.GroupVersionKind
		Verbs        []string
	}
}

type property struct {
	ListType string   `json:"x-kubernetes-list-type"`
	ListKeys []string `json:"x-kubernetes-list-map-keys"`
	MapType  string   `json:"x-kubernetes-map-type"`
}

type definition struct {
	Required   []string
	MapType    string `json:"x-kubernetes-map-type"`
	Properties map[string]property
}

var (
	definitions map[string]definition
	// OpenAPI definitions generated from Go's types, with the defaults and enum values that swagger.json leaves out.
	generated = openapi.GetOpenAPIDefinitions(func(string) spec.Ref { return spec.Ref{} })
	// By a type that is embedded, one that embeds it.
	embeddedIn = map[reflect.Type]reflect.Type{}
	seen       = map[reflect.Type]bool{}
	queue      []reflect.Type
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: schema FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "schema:", err)
		os.Exit(1)
	}
}

func run(folder string) error {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		return fmt.Errorf("finding k8s.io/kubernetes: %w", err)
	}
	module := strings.TrimSpace(string(out))
	if err := apiext.AddToScheme(scheme.Scheme); err != nil {
		return err
	}
	var swagger struct{ Definitions map[string]definition }
	if err := read(filepath.Join(module, "api/openapi-spec/swagger.json"), &swagger); err != nil {
		return err
	}
	definitions = swagger.Definitions

	var core struct {
		Resources []metav1.APIResource
	}
	if err := read(filepath.Join(module, "api/discovery/api__v1.json"), &core); err != nil {
		return err
	}
	var groups discovery
	if err := read(filepath.Join(module, "api/discovery/aggregated_v2.json"), &groups); err != nil {
		return err
	}
	if err := write(filepath.Join(folder, "kinds.txt"), func(w *bufio.Writer) error {
		fmt.Fprintln(w, "# Written by conformance/cmd/schema from Kubernetes 1.36.3. One resource per line:")
		fmt.Fprintln(w, "# group/version resource singular kind scope verbs short-names categories warning; indented: subresource group/version/kind verbs.")
		writeCore(w, core.Resources)
		for _, group := range groups.Items {
			for _, version := range group.Versions {
				gv := schema.GroupVersion{Group: group.Metadata.Name, Version: version.Version}
				for _, r := range version.Resources {
					writeResource(w, gv, r)
				}
			}
		}
		return nil
	}); err != nil {
		return err
	}
	for _, extra := range []any{
		metav1.Status{}, metav1.DeleteOptions{}, metav1.CreateOptions{}, metav1.UpdateOptions{}, metav1.PatchOptions{},
		metav1.ListOptions{}, metav1.GetOptions{}, metav1.LabelSelector{}, metav1.PartialObjectMetadata{},
		metav1.PartialObjectMetadataList{}, metav1.ListMeta{}, metav1.ObjectMeta{},
	} {
		visit(reflect.TypeOf(extra))
	}
	var all []reflect.Type
	for len(queue) > 0 {
		t := queue[0]
		queue = queue[1:]
		all = append(all, t)
		for i := 0; i < t.NumField(); i++ {
			if f := t.Field(i); f.Anonymous && embeddedIn[f.Type] == nil {
				embeddedIn[f.Type] = t
			}
			shape(t.Field(i).Type)
		}
	}
	sort.Slice(all, func(i, j int) bool { return id(all[i]) < id(all[j]) })
	return write(filepath.Join(folder, "types.txt"), func(w *bufio.Writer) error {
		fmt.Fprintln(w, "# Written by conformance/cmd/schema from Kubernetes 1.36.3. A type, then its fields: name, protobuf number, shape, flags.")
		for _, t := range all {
			if err := writeType(w, t); err != nil {
				return err
			}
		}
		return nil
	})
}

func read(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

func write(path string, body func(*bufio.Writer) error) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(file)
	if err := body(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return file.Close()
}

// writeCore joins the old form of discovery, in which subresources are resources with a slash.
func writeCore(w *bufio.Writer, resources []metav1.APIResource) {
	var list []apiResource
	at := map[string]int{}
	for pass := 0; pass < 2; pass++ {
		for _, r := range resources {
			name, sub, nested := strings.Cut(r.Name, "/")
			gvk := &metav1.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
			if gvk.Version == "" {
				gvk.Version = "v1"
			}
			if nested != (pass == 1) {
				continue
			}
			if !nested {
				scope := "Cluster"
				if r.Namespaced {
					scope = "Namespaced"
				}
				at[name] = len(list)
				list = append(list, apiResource{
					Resource: name, SingularResource: r.SingularName, Scope: scope, ResponseKind: gvk,
					ShortNames: r.ShortNames, Categories: r.Categories, Verbs: r.Verbs,
				})
				continue
			}
			parent := &list[at[name]]
			parent.Subresources = append(parent.Subresources, struct {
				Subresource  string
				ResponseKind *metav1.GroupVersionKind
				Verbs        []string
			}{sub, gvk, r.Verbs})
		}
	}
	for _, r := range list {
		writeResource(w, schema.GroupVersion{Version: "v1"}, r)
	}
}

func writeResource(w *bufio.Writer, gv schema.GroupVersion, r apiResource) {
	kind := r.ResponseKind.Kind
	t, ok := scheme.Scheme.AllKnownTypes()[gv.WithKind(kind)]
	if !ok {
		return // served by a group without types in client-go's scheme
	}
	visit(t)
	if list, ok := scheme.Scheme.AllKnownTypes()[gv.WithKind(kind+"List")]; ok {
		visit(list)
	}
	fmt.Fprintf(w, "%s %s %s %s %s %s %s %s%s\n", gv, r.Resource, r.SingularResource, kind, strings.ToLower(r.Scope),
		strings.Join(r.Verbs, ","), dash(r.ShortNames), dash(r.Categories), warning(t, gv.WithKind(kind)))
	for _, s := range r.Subresources {
		sub := gv.WithKind(kind)
		if k := s.ResponseKind; k != nil && k.Kind != "" {
			sub.Kind = k.Kind
			if k.Version != "" {
				sub = schema.GroupVersionKind(*k)
			}
		}
		if t, ok := scheme.Scheme.AllKnownTypes()[sub]; ok {
			visit(t)
		}
		fmt.Fprintf(w, "  %s %s %s %s\n", s.Subresource, sub.GroupVersion(), sub.Kind, strings.Join(s.Verbs, ","))
	}
}

// warning is the warning that users of a deprecated resource get, after a space.
func warning(t reflect.Type, gvk schema.GroupVersionKind) string {
	object, ok := reflect.New(t).Interface().(runtime.Object)
	if !ok || !deprecation.IsDeprecated(object, 1, 36) {
		return ""
	}
	object.GetObjectKind().SetGroupVersionKind(gvk)
	return " " + deprecation.WarningMessage(object)
}

func dash(list []string) string {
	if len(list) == 0 {
		return "-"
	}
	return strings.Join(list, ",")
}

func visit(t reflect.Type) {
	if !seen[t] {
		seen[t] = true
		queue = append(queue, t)
	}
}

// id shortens a Go type to group/version.Type.
func id(t reflect.Type) string {
	path := t.PkgPath()
	for _, cut := range [][2]string{
		{"k8s.io/apimachinery/pkg/apis/", ""}, {"k8s.io/apiextensions-apiserver/pkg/apis/", ""}, {"k8s.io/api/", ""},
	} {
		path = strings.Replace(path, cut[0], cut[1], 1)
	}
	return path + "." + t.Name()
}

// definitionOf is the name that OpenAPI gives a Go type.
func definitionOf(t reflect.Type) string {
	return "io.k8s." + strings.ReplaceAll(strings.TrimPrefix(t.PkgPath(), "k8s.io/"), "/", ".") + "." + t.Name()
}

var leaves = map[reflect.Type]string{
	reflect.TypeFor[metav1.Time]():                         "time",
	reflect.TypeFor[metav1.MicroTime]():                    "microtime",
	reflect.TypeFor[metav1.Duration]():                     "duration",
	reflect.TypeFor[resource.Quantity]():                   "quantity",
	reflect.TypeFor[intstr.IntOrString]():                  "intorstring",
	reflect.TypeFor[runtime.RawExtension]():                "raw",
	reflect.TypeFor[metav1.FieldsV1]():                     "fields",
	reflect.TypeFor[apiext.JSON]():                         "json:JSON",
	reflect.TypeFor[apiext.JSONSchemaPropsOrArray]():       "json:JSONSchemaPropsOrArray",
	reflect.TypeFor[apiext.JSONSchemaPropsOrBool]():        "json:JSONSchemaPropsOrBool",
	reflect.TypeFor[apiext.JSONSchemaPropsOrStringArray](): "json:JSONSchemaPropsOrStringArray",
}

func shape(t reflect.Type) string {
	if leaf, ok := leaves[t]; ok {
		return leaf
	}
	switch t.Kind() {
	case reflect.Pointer:
		return shape(t.Elem())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		if _, wrapped := reflect.PointerTo(t).MethodByName("Unmarshal"); wrapped {
			return "wrapped[]" + shape(t.Elem())
		}
		return "[]" + shape(t.Elem())
	case reflect.Map:
		return "{}" + shape(t.Elem())
	case reflect.Struct:
		visit(t)
		return id(t)
	case reflect.Float64:
		return "double"
	case reflect.Int:
		return "int64"
	default:
		return t.Kind().String()
	}
}

// described is the name under which OpenAPI has a type's fields: of one that is only ever embedded, that of the type around it.
func described(t reflect.Type) string {
	for around := t; around != nil; around = embeddedIn[around] {
		if name := definitionOf(around); definitions[name].Properties != nil {
			return name
		}
	}
	return definitionOf(t)
}

func writeType(w *bufio.Writer, t reflect.Type) error {
	def := definitions[described(t)]
	required := map[string]bool{}
	for _, name := range def.Required {
		required[name] = true
	}
	fmt.Fprint(w, id(t))
	if def.MapType == "atomic" {
		fmt.Fprint(w, " atomic")
	}
	if meta, ok := t.FieldByName("TypeMeta"); ok && len(meta.Index) == 1 {
		fmt.Fprint(w, " kind")
	}
	fmt.Fprintln(w)
	for i := 0; i < t.NumField(); i++ {
		f := t.Field(i)
		if f.Type == reflect.TypeFor[metav1.TypeMeta]() || !f.IsExported() {
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		number := "0"
		if parts := strings.Split(f.Tag.Get("protobuf"), ","); len(parts) > 1 {
			number = parts[1]
		}
		var flags []string
		if name == "" {
			name = "-"
			flags = append(flags, "inline")
		}
		if f.Type.Kind() == reflect.Pointer {
			flags = append(flags, "ptr")
		}
		if strings.Contains(options, "omitempty") {
			flags = append(flags, "omit")
		}
		if strings.Contains(options, "omitzero") {
			flags = append(flags, "omitzero")
		}
		if required[name] {
			flags = append(flags, "req")
		}
		p := def.Properties[name]
		if len(p.ListKeys) > 0 {
			flags = append(flags, "map="+strings.Join(p.ListKeys, ","))
		} else if p.ListType != "" && p.ListType != "map" {
			flags = append(flags, p.ListType)
		} else if p.MapType == "atomic" {
			flags = append(flags, "atomic")
		}
		values := generated[definitionOf(t)].Schema.Properties[name]
		if values.Default != nil {
			text, err := json.Marshal(values.Default)
			if err != nil {
				return err
			}
			flags = append(flags, "default="+string(text))
		}
		if len(values.Enum) > 0 {
			allowed := make([]string, len(values.Enum))
			for i, value := range values.Enum {
				allowed[i] = fmt.Sprint(value)
			}
			flags = append(flags, "enum="+strings.Join(allowed, ","))
		}
		strategy := f.Tag.Get("patchStrategy")
		if strings.Contains(strategy, "merge") {
			if key := f.Tag.Get("patchMergeKey"); key != "" {
				flags = append(flags, "merge="+key)
			} else {
				flags = append(flags, "merge")
			}
		}
		if strings.Contains(strategy, "replace") {
			flags = append(flags, "replace")
		}
		if strings.Contains(strategy, "retainKeys") {
			flags = append(flags, "retain")
		}
		fmt.Fprintf(w, " %s %s %s", name, number, shape(f.Type))
		for _, flag := range flags {
			fmt.Fprint(w, " ", flag)
		}
		fmt.Fprintln(w)
	}
	return nil
}
