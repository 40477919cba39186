package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

type victimsJSON struct {
	Victims       []string `json:"victims"`
	PDBViolations int64    `json:"pdbViolations"`
}

type preemptionAnswer struct {
	ID  json.RawMessage `json:"id"`
	Pod string          `json:"pod"`
	// Fits is true if the pod fits and there is nothing to preempt.
	Fits       bool                   `json:"fits"`
	Candidates map[string]victimsJSON `json:"candidates"`
	Best       []string               `json:"best"`
	// Status is the status of the plugin's PostFilter.
	Status *statusJSON `json:"status,omitempty"`
	// Nominated is absent if the nomination does not change.
	Nominated *string `json:"nominated,omitempty"`
	// Error is the error of a cycle that ends before any PostFilter.
	Error string `json:"cycleError,omitempty"`
}

// choice is a candidate built from the data sent to extenders, because
// upstream's own type is private.
type choice struct {
	name    string
	victims *extenderv1.Victims
}

func (c choice) Name() string                 { return c.name }
func (c choice) Victims() *extenderv1.Victims { return c.victims }

// preempt runs a scheduling cycle and, if the pod is unschedulable, the plugin's
// PostFilter. Since that returns only one node, its dry run is repeated to return
// every candidate.
func preempt(q *question) (any, error) {
	w, fw, err := buildForPod(q)
	if err != nil {
		return nil, err
	}
	defer w.close()
	a := &preemptionAnswer{
		ID:         q.ID,
		Pod:        nameOf(w.pod).String(),
		Candidates: map[string]victimsJSON{},
		Best:       []string{},
	}
	state := framework.NewCycleState()
	err = w.schedulePod(fw, state, w.pod)
	var fit *framework.FitError
	switch {
	case err == nil:
		a.Fits = true
		return a, nil
	case !errors.As(err, &fit):
		a.Error = err.Error()
		return a, nil
	}

	plugin, err := w.preemptionPlugin(fw)
	if err != nil || plugin == nil {
		return a, err
	}
	verdicts := fit.Diagnosis.NodeToStatus
	if plugin.Evaluator == nil {
		return a, w.preemptPerNode(fw, plugin, state, verdicts, a)
	}
	// First, because a plugin may read the clock there for all that follows.
	result, status := plugin.PostFilter(w.ctx, state, w.pod, verdicts)
	if ok, _ := plugin.PodEligibleToPreemptOthers(w.ctx, w.pod, verdicts.Get(w.pod.Status.NominatedNodeName)); ok {
		if err := w.candidates(fw, plugin, state, verdicts, a); err != nil {
			return nil, err
		}
	}
	s := toJSON(status)
	a.Status = &s
	if result != nil && result.NominatingInfo != nil && result.NominatingMode == fwk.ModeOverride {
		a.Nominated = &result.NominatedNodeName
	}
	if a.Nominated != nil && *a.Nominated != "" && !slices.Contains(a.Best, *a.Nominated) {
		return nil, fmt.Errorf("PostFilter chose %q, which is not among %v", *a.Nominated, a.Best)
	}
	return a, nil
}

// preemptionPlugin is the evaluator of a plugin, nil if the plugin hides it, and the
// plugin's PostFilter.
type preemptionPlugin struct {
	*preemption.Evaluator
	fwk.PostFilterPlugin
}

// defaultPreemption builds the plugin again with the arguments of the profile: the
// framework does not expose the instance it runs. Returns nil if the profile does
// not enable the plugin.
func (w *world) defaultPreemption(fw framework.Framework) (*preemptionPlugin, error) {
	for _, profile := range w.cfg.Profiles {
		if profile.SchedulerName != fw.ProfileName() {
			continue
		}
		for _, entry := range profile.PluginConfig {
			if args, ok := entry.Args.(*config.DefaultPreemptionArgs); ok {
				fts := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
				plugin, err := defaultpreemption.New(w.ctx, args, fw, fts)
				if err != nil {
					return nil, err
				}
				return &preemptionPlugin{plugin.Evaluator, plugin}, nil
			}
		}
	}
	return nil, nil
}

func (w *world) candidates(fw framework.Framework, plugin *preemptionPlugin, state fwk.CycleState, verdicts *framework.NodeToStatus, a *preemptionAnswer) error {
	nodes, err := verdicts.NodesForStatusCode(fw.SnapshotSharedLister().NodeInfos(), fwk.Unschedulable)
	if err != nil || len(nodes) == 0 {
		return err
	}
	pdbs, err := plugin.PdbLister.List(labels.Everything())
	if err != nil {
		return err
	}
	// With as many candidates wanted as there are nodes, all nodes are tried.
	// A failure counts only if there is no candidate; PostFilter reports it.
	found, _, _ := plugin.DryRunPreemption(w.ctx, state, w.pod, nodes, pdbs, 0, int32(len(nodes)))
	all := make([]preemption.Candidate, 0, len(found))
	for _, c := range found {
		shown := victimsJSON{Victims: []string{}, PDBViolations: c.Victims().NumPDBViolations}
		for _, victim := range c.Victims().Pods {
			shown.Victims = append(shown.Victims, nameOf(victim).String())
		}
		a.Candidates[c.Name()] = shown
		all = append(all, choice{name: c.Name(), victims: c.Victims()})
	}
	a.Best = w.best(plugin, all)
	return nil
}

// best finds every candidate that may be selected. Of two candidates the better
// one is always selected, and one of two equals at random (the order of a map);
// so a candidate that is ever selected over a winner is as good as that.
func (w *world) best(plugin *preemptionPlugin, all []preemption.Candidate) []string {
	const tries = 48
	if len(all) == 0 {
		return []string{}
	}
	winner := plugin.SelectCandidate(w.ctx, all).Name()
	at := slices.IndexFunc(all, func(c preemption.Candidate) bool { return c.Name() == winner })
	best := []string{winner}
	for _, other := range all {
		if other.Name() == winner {
			continue
		}
		for i := range tries {
			pair := []preemption.Candidate{other, all[at]}
			if i%2 == 1 {
				slices.Reverse(pair)
			}
			if plugin.SelectCandidate(w.ctx, pair).Name() == other.Name() {
				best = append(best, other.Name())
				break
			}
		}
	}
	slices.Sort(best)
	return best
}
