package main

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// preemptPerNode finds the candidates of a plugin that does not show them: it is asked
// about one node at a time, and its victims are the pods that it deletes. Victims that
// are terminating already are not seen, nor are violations of PodDisruptionBudgets.
func (w *world) preemptPerNode(fw framework.Framework, plugin fwk.PostFilterPlugin, state fwk.CycleState, verdicts *framework.NodeToStatus, a *preemptionAnswer) error {
	var deleted []string
	w.client.PrependReactor("*", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if remove, ok := action.(clienttesting.DeleteAction); ok {
			deleted = append(deleted, remove.GetNamespace()+"/"+remove.GetName())
		}
		return action.Matches("delete", "pods") || action.Matches("patch", "pods"), w.pod, nil
	})
	// postFilter runs the plugin with only these nodes to try.
	postFilter := func(nodes ...string) (*fwk.PostFilterResult, *fwk.Status) {
		deleted = nil
		only := framework.NewDefaultNodeToStatus()
		for _, node := range nodes {
			only.Set(node, fwk.NewStatus(fwk.Unschedulable))
		}
		return plugin.PostFilter(w.ctx, state, w.pod, only)
	}
	possible, err := verdicts.NodesForStatusCode(fw.SnapshotSharedLister().NodeInfos(), fwk.Unschedulable)
	if err != nil {
		return err
	}
	for _, info := range possible {
		name := info.Node().Name
		if result, _ := postFilter(name); result != nil && result.NominatingInfo != nil && result.NominatedNodeName == name {
			a.Candidates[name] = victimsJSON{Victims: append([]string{}, deleted...)}
		}
	}

	result, status := plugin.PostFilter(w.ctx, state, w.pod, verdicts)
	s := toJSON(status)
	a.Status = &s
	if result == nil || result.NominatingInfo == nil || result.NominatingMode != fwk.ModeOverride {
		return nil
	}
	a.Nominated = &result.NominatedNodeName
	if *a.Nominated == "" {
		return nil
	}
	a.Best = []string{*a.Nominated}
	for name := range a.Candidates {
		// One of two equals is chosen at random.
		const tries = 24
		for range tries {
			if other, _ := postFilter(*a.Nominated, name); name != *a.Nominated && other != nil && other.NominatedNodeName == name {
				a.Best = append(a.Best, name)
				break
			}
		}
	}
	slices.Sort(a.Best)
	return nil
}
