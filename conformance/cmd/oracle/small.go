package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"unicode"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
)

type configAnswer struct {
	ID     json.RawMessage `json:"id"`
	Config json.RawMessage `json:"config"`
	// Plugins is keyed by profile, then by extension point.
	Plugins map[string]map[string][][2]any `json:"plugins"`
}

func showConfig(q *question) (any, error) {
	w, err := build(q, "")
	if err != nil {
		return nil, err
	}
	defer w.close()

	a := &configAnswer{ID: q.ID, Plugins: make(map[string]map[string][][2]any)}
	for name, fw := range w.sched.Profiles {
		a.Plugins[name] = pluginSets(fw.ListPlugins())
	}

	w.cfg.Profiles = w.profiles
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok {
		return nil, fmt.Errorf("the configuration scheme has no JSON serializer")
	}
	var buf bytes.Buffer
	if err := scheme.Codecs.EncoderForVersion(info.Serializer, configv1.SchemeGroupVersion).Encode(w.cfg, &buf); err != nil {
		return nil, err
	}
	a.Config = bytes.TrimSpace(buf.Bytes())
	return a, nil
}

// pluginSets reads the extension points off the structure, so that one added
// upstream shows up without a change here.
func pluginSets(plugins *config.Plugins) map[string][][2]any {
	sets := make(map[string][][2]any)
	v := reflect.ValueOf(plugins).Elem()
	for i := range v.NumField() {
		set, ok := v.Field(i).Interface().(config.PluginSet)
		if !ok || len(set.Enabled) == 0 {
			continue
		}
		name := []rune(v.Type().Field(i).Name)
		name[0] = unicode.ToLower(name[0])
		for _, p := range set.Enabled {
			sets[string(name)] = append(sets[string(name)], [2]any{p.Name, p.Weight})
		}
	}
	return sets
}

type logAnswer struct {
	ID   json.RawMessage `json:"id"`
	Bits []string        `json:"bits"`
}

// logarithms are compared because topology spreading uses math.Log for its
// weights, and the last bit of the result depends on the library.
func logarithms(q *question) (any, error) {
	a := &logAnswer{ID: q.ID, Bits: []string{}}
	for _, raw := range q.Values {
		x, err := strconv.ParseFloat(strings.Trim(string(raw), `"`), 64)
		if err != nil {
			return nil, err
		}
		a.Bits = append(a.Bits, strconv.FormatUint(math.Float64bits(math.Log(x)), 10))
	}
	return a, nil
}

type quantityJSON struct {
	Canonical string `json:"canonical"`
	Value     int64  `json:"value"`
	Milli     int64  `json:"milli"`
}

type quantityAnswer struct {
	ID      json.RawMessage `json:"id"`
	Answers []*quantityJSON `json:"answers"`
}

func quantities(q *question) (any, error) {
	a := &quantityAnswer{ID: q.ID, Answers: []*quantityJSON{}}
	for _, raw := range q.Values {
		var text string
		if err := json.Unmarshal(raw, &text); err != nil {
			return nil, err
		}
		quantity, err := resource.ParseQuantity(text)
		if err != nil {
			a.Answers = append(a.Answers, nil)
			continue
		}
		a.Answers = append(a.Answers, &quantityJSON{
			Canonical: quantity.String(),
			Value:     quantity.Value(),
			Milli:     quantity.MilliValue(),
		})
	}
	return a, nil
}

type matchAnswer struct {
	ID      json.RawMessage `json:"id"`
	Matches *bool           `json:"matches,omitempty"`
	Error   string          `json:"error,omitempty"`
	// ParseError is the error of parsing the whole selector at once.
	ParseError string `json:"parseError,omitempty"`
}

func labelSelector(q *question) (any, error) {
	var in *metav1.LabelSelector
	if err := json.Unmarshal(orNull(q.Selector), &in); err != nil {
		return nil, err
	}
	selector, err := metav1.LabelSelectorAsSelector(in)
	if err != nil {
		return nil, err
	}
	matches := selector.Matches(labels.Set(q.Labels))
	return &matchAnswer{ID: q.ID, Matches: &matches}, nil
}

// nodeSelector evaluates the selector like the scheduler's plugins, which report
// an invalid term only if no other term matches.
func nodeSelector(q *question) (any, error) {
	selector, node := &v1.NodeSelector{}, &v1.Node{}
	if err := json.Unmarshal(orNull(q.Selector), selector); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(orNull(q.Node), node); err != nil {
		return nil, err
	}
	a := &matchAnswer{ID: q.ID}
	if _, err := nodeaffinity.NewNodeSelector(selector); err != nil {
		a.ParseError = err.Error()
	}
	matches, err := nodeaffinity.NewLazyErrorNodeSelector(selector).Match(node)
	if err != nil {
		a.Error = err.Error()
		return a, nil
	}
	a.Matches = &matches
	return a, nil
}

func orNull(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("null")
	}
	return raw
}
