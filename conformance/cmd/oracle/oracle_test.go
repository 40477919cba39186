package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/kubernetes/pkg/scheduler/framework"
)

func TestMain(m *testing.M) {
	prepareProcess()
	m.Run()
}

func nodeObject(name, zone, cpu, taints string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q,"labels":{"kubernetes.io/hostname":%q,"topology.kubernetes.io/zone":%q}},
		"spec":{"taints":[%s]},"status":{"allocatable":{"cpu":%q,"memory":"8Gi","pods":"110"}}}`, name, name, zone, taints, cpu)
}

func podObject(name, cpu, spec, status string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"labels":{"app":"x"}},
		"spec":{"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":%q}}}]%s},"status":{%s}}`, name, cpu, spec, status)
}

var nodes = strings.Join([]string{
	nodeObject("n1", "a", "4", ""),
	nodeObject("n2", "a", "4", `{"key":"k","effect":"NoSchedule"}`),
	nodeObject("n3", "b", "4", `{"key":"k","effect":"PreferNoSchedule"}`),
}, ",")

func explainLine(objects ...string) *question {
	q := &question{}
	line := `{"id":1,"pod":"default/p","objects":[` + strings.Join(append([]string{nodes}, objects...), ",") + `]}`
	if err := json.Unmarshal([]byte(line), q); err != nil {
		panic(err)
	}
	return q
}

func mustExplain(t *testing.T, q *question) *explanation {
	t.Helper()
	a, err := guarded(q)
	if err != nil {
		t.Fatal(err)
	}
	return a.(*explanation)
}

// The per-node evaluation is this program's own code; it must agree with the real
// scheduling cycle.
func TestBestContainsTheNodeOfTheCycle(t *testing.T) {
	cases := map[string][]string{
		"plain": {podObject("p", "500m", "", "")},
		"spreading by a service": {
			podObject("p", "500m", "", ""), podObject("e", "500m", `,"nodeName":"n3"`, ""),
			`{"apiVersion":"v1","kind":"Service","metadata":{"name":"s"},"spec":{"selector":{"app":"x"}}}`,
		},
		"no resources left by a nominated pod": {
			podObject("p", "500m", "", ""), podObject("nom", "3800m", `,"priority":1`, `"nominatedNodeName":"n1"`),
		},
	}
	for name, objects := range cases {
		t.Run(name, func(t *testing.T) {
			q := explainLine(objects...)
			e := mustExplain(t, q)
			w, err := build(q, q.Pod)
			if err != nil {
				t.Fatal(err)
			}
			defer w.close()
			fw, err := w.framework()
			if err != nil {
				t.Fatal(err)
			}
			info, err := framework.NewPodInfo(w.pod)
			if err != nil {
				t.Fatal(err)
			}
			r, err := w.sched.SchedulePod(w.ctx, fw, framework.NewCycleState(), &framework.QueuedPodInfo{PodInfo: info})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(e.Best, r.SuggestedHost) {
				t.Errorf("the cycle picked %s, best is %v", r.SuggestedHost, e.Best)
			}
		})
	}
}

func TestNominatedPodReservesResources(t *testing.T) {
	e := mustExplain(t, explainLine(
		podObject("p", "500m", "", ""),
		podObject("nom", "3800m", `,"priority":1`, `"nominatedNodeName":"n1"`),
	))
	if got := e.Nodes[0].Filter; got.Code != "Unschedulable" || got.Plugin != "NodeResourcesFit" {
		t.Errorf("n1: %+v", got)
	}
}

func TestMessage(t *testing.T) {
	e := mustExplain(t, explainLine(podObject("p", "40", "", "")))
	want := "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu."
	if e.Message != want || len(e.Best) != 0 {
		t.Errorf("got %q, best %v", e.Message, e.Best)
	}
}

func TestAnswersKeepTheirOrder(t *testing.T) {
	var in, out bytes.Buffer
	for i := range 50 {
		if i%5 == 0 {
			fmt.Fprintf(&in, `{"id":%d,"ask":"sign","pod":"default/p","objects":[%s]}`+"\n", i, strings.ReplaceAll(podObject("p", "1", "", ""), "\n", " "))
		} else {
			fmt.Fprintf(&in, `{"id":%d,"ask":"log","values":[%d]}`+"\n", i, i)
		}
	}
	if err := serve(&in, &out, 2); err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		if !strings.HasPrefix(line, fmt.Sprintf(`{"id":%d,`, i)) {
			t.Fatalf("line %d: %s", i, line)
		}
	}
}

func TestActionsRoundTrip(t *testing.T) {
	for _, text := range []string{"Add", "Add|Delete", "Update", "Delete|UpdatePodScaleDown", "Add|Update", "All"} {
		action, err := parseAction(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := actionText(action); got != text {
			t.Errorf("%s became %s", text, got)
		}
	}
}

func TestPreemptionShowsEveryBestNode(t *testing.T) {
	victim := func(name, node string, priority int) string {
		return podObject(name, "4", fmt.Sprintf(`,"nodeName":%q,"priority":%d`, node, priority), `"startTime":"2024-05-01T10:00:00Z"`)
	}
	q := explainLine(
		nodeObject("n4", "b", "4", ""),
		victim("v1", "n1", 0), victim("v3", "n3", 0), victim("v4", "n4", 5),
		podObject("p", "1", `,"priority":10`, ""),
	)
	q.Ask = "preemption"
	// n2 has a taint. Ties are broken by the order of a map.
	for range 20 {
		reply, err := guarded(q)
		if err != nil {
			t.Fatal(err)
		}
		a := reply.(*preemptionAnswer)
		if a.Fits || len(a.Candidates) != 3 || !slices.Equal(a.Best, []string{"n1", "n3"}) {
			t.Fatalf("%+v", a)
		}
	}
}

func TestPreemptionReturnsTheReason(t *testing.T) {
	q := explainLine(podObject("p", "40", `,"priority":10`, ""))
	q.Ask = "preemption"
	reply, err := guarded(q)
	if err != nil {
		t.Fatal(err)
	}
	a := reply.(*preemptionAnswer)
	want := "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
	if a.Status == nil || !slices.Equal(a.Status.Reasons, []string{want}) || a.Nominated == nil || *a.Nominated != "" {
		t.Errorf("%+v", a)
	}
}
