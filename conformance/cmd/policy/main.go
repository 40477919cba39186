// Command policy writes the default roles and bindings of a new cluster, as
// kube-apiserver bootstraps them, for the embedded API server.
//
//	go run ./cmd/policy ../crates/apiserver/src/authorize
package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: policy FOLDER")
		os.Exit(2)
	}
	if err := run(filepath.Join(os.Args[1], "bootstrap.txt")); err != nil {
		fmt.Fprintln(os.Stderr, "policy:", err)
		os.Exit(1)
	}
}

func run(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(file)
	fmt.Fprintln(w, "# Written by conformance/cmd/policy from Kubernetes 1.36.3. A role or binding (namespace, - for none, and name), then its")
	fmt.Fprintln(w, "# labels, the labels of the roles it gathers, its subjects, and its rules: verbs, groups, resources, names, paths; - is an")
	fmt.Fprintln(w, `# empty list, "" the core group.`)
	for _, role := range bootstrappolicy.ClusterRoles() {
		fmt.Fprintf(w, "clusterrole - %s\n", role.Name)
		writeLabels(w, "label", role.Labels)
		if role.AggregationRule != nil {
			for _, selector := range role.AggregationRule.ClusterRoleSelectors {
				if len(selector.MatchExpressions) > 0 {
					return fmt.Errorf("%s gathers by expressions", role.Name)
				}
				writeLabels(w, "gathers", selector.MatchLabels)
			}
		}
		writeRules(w, role.Rules)
	}
	for _, role := range bootstrappolicy.ControllerRoles() {
		fmt.Fprintf(w, "clusterrole - %s\n", role.Name)
		writeLabels(w, "label", role.Labels)
		writeRules(w, role.Rules)
	}
	for _, binding := range append(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()...) {
		fmt.Fprintf(w, "clusterrolebinding - %s\n", binding.Name)
		writeBinding(w, binding.ObjectMeta, binding.RoleRef, binding.Subjects)
	}
	roles := bootstrappolicy.NamespaceRoles()
	for _, namespace := range sorted(roles) {
		for _, role := range roles[namespace] {
			fmt.Fprintf(w, "role %s %s\n", namespace, role.Name)
			writeLabels(w, "label", role.Labels)
			writeRules(w, role.Rules)
		}
	}
	bindings := bootstrappolicy.NamespaceRoleBindings()
	for _, namespace := range sorted(bindings) {
		for _, binding := range bindings[namespace] {
			fmt.Fprintf(w, "rolebinding %s %s\n", namespace, binding.Name)
			writeBinding(w, binding.ObjectMeta, binding.RoleRef, binding.Subjects)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return file.Close()
}

func sorted[T any](all map[string]T) []string {
	var names []string
	for name := range all {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func writeLabels(w *bufio.Writer, what string, labels map[string]string) {
	for _, name := range sorted(labels) {
		fmt.Fprintf(w, "  %s %s %s\n", what, name, labels[name])
	}
}

func writeBinding(w *bufio.Writer, meta metav1.ObjectMeta, role rbac.RoleRef, subjects []rbac.Subject) {
	writeLabels(w, "label", meta.Labels)
	fmt.Fprintf(w, "  to %s %s\n", role.Kind, role.Name)
	for _, subject := range subjects {
		namespace := subject.Namespace
		if namespace == "" {
			namespace = "-"
		}
		fmt.Fprintf(w, "  subject %s %s %s\n", subject.Kind, namespace, subject.Name)
	}
}

func writeRules(w *bufio.Writer, rules []rbac.PolicyRule) {
	for _, rule := range rules {
		fmt.Fprintf(w, "  rule %s %s %s %s %s\n", list(rule.Verbs), list(rule.APIGroups), list(rule.Resources),
			list(rule.ResourceNames), list(rule.NonResourceURLs))
	}
}

func list(words []string) string {
	if len(words) == 0 {
		return "-"
	}
	joined := make([]string, len(words))
	for at, word := range words {
		if word == "" {
			word = `""`
		}
		joined[at] = word
	}
	return strings.Join(joined, ",")
}
