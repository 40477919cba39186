package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"reflect"
	"sort"
	"strings"

	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/generated/openapi"
)

// words writes texts, each only once.
type words struct {
	w    *bufio.Writer
	line int
	at   map[string]int
}

var escapes = strings.NewReplacer("\\", "\\\\", "\n", "\\n", "\t", "\\t")

func (o *words) write(name, values, standard, text string) {
	o.line++
	if first, ok := o.at[text]; ok {
		text = fmt.Sprint("=", first)
	} else {
		o.at[text] = o.line
		text = escapes.Replace(text)
	}
	fmt.Fprintf(o.w, "%s\t%s\t%s\t%s\n", name, values, standard, text)
}

// writeWords writes what OpenAPI says about types and their fields, and which values fields have that are not set, or may have.
func writeWords(w *bufio.Writer, types []reflect.Type) error {
	definitions := openapi.GetOpenAPIDefinitions(func(name string) spec.Ref { return spec.Ref{} })
	fmt.Fprintln(w, "# Copyright The Kubernetes Authors, Apache License 2.0. Written by conformance/cmd/schema from the OpenAPI definitions of Kubernetes 1.36.3.")
	fmt.Fprintln(w, "# A type, then its fields: name, values and default in JSON, and text (\"=N\": that of line N), separated by tabs.")
	out := words{w: w, line: 2, at: map[string]int{"": 0}}
	sort.Slice(types, func(i, j int) bool { return definitionOf(types[i]) < definitionOf(types[j]) })
	for _, t := range types {
		definition, ok := definitions[definitionOf(t)]
		if !ok {
			continue // inlined, or only in queries
		}
		out.write(definitionOf(t), "", "", definition.Schema.Description)
		names := make([]string, 0, len(definition.Schema.Properties))
		for name := range definition.Schema.Properties {
			names = append(names, name)
		}
		sort.Strings(names)
		for _, name := range names {
			property := definition.Schema.Properties[name]
			values, err := written(property.Enum, len(property.Enum) > 0)
			if err != nil {
				return err
			}
			standard, err := written(property.Default, property.Default != nil)
			if err != nil {
				return err
			}
			out.write(" "+name, values, standard, property.Description)
		}
	}
	return nil
}

func written(value any, isThere bool) (string, error) {
	if !isThere {
		return "", nil
	}
	text, err := json.Marshal(value)
	return string(text), err
}
