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
	// Fits tells that there is nothing to preempt for.
	Fits       bool                   `json:"fits"`
	Candidates map[string]victimsJSON `json:"candidates"`
	Best       []string               `json:"best"`
	// Status is what PostFilter of the plugin says.
	Status *statusJSON `json:"status,omitempty"`
	// Nominated is absent where the nomination stays as it is.
	Nominated *string `json:"nominated,omitempty"`
	// Error is that of a cycle which ends before any PostFilter.
	Error string `json:"cycleError,omitempty"`
}

// choice makes a candidate out of what an extender would be told of it, because
// upstream keeps its own type to itself.
type choice struct {
	name    string
	victims *extenderv1.Victims
}

func (c choice) Name() string                 { return c.name }
func (c choice) Victims() *extenderv1.Victims { return c.victims }

// preempt runs a scheduling cycle and, when the pod fits nowhere, the plugin's
// PostFilter. Since that shows one choice only, its search is run once more and
// every candidate is shown.
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
	podInfo, err := framework.NewPodInfo(w.pod)
	if err != nil {
		return nil, err
	}
	_, err = w.sched.SchedulePod(w.ctx, fw, state, &framework.QueuedPodInfo{PodInfo: podInfo})
	var fit *framework.FitError
	switch {
	case err == nil:
		a.Fits = true
		return a, nil
	case !errors.As(err, &fit):
		a.Error = err.Error()
		return a, nil
	}

	plugin, err := w.defaultPreemption(fw)
	if err != nil || plugin == nil {
		return a, err
	}
	verdicts := fit.Diagnosis.NodeToStatus
	if ok, _ := plugin.PodEligibleToPreemptOthers(w.ctx, w.pod, verdicts.Get(w.pod.Status.NominatedNodeName)); ok {
		if err := w.candidates(fw, plugin, state, verdicts, a); err != nil {
			return nil, err
		}
	}
	result, status := plugin.PostFilter(w.ctx, state, w.pod, verdicts)
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

// defaultPreemption makes the plugin anew with the arguments of the profile: the
// framework does not hand out those it runs. A profile that does without the
// plugin has no arguments for it, and then there is none.
func (w *world) defaultPreemption(fw framework.Framework) (*defaultpreemption.DefaultPreemption, error) {
	for _, profile := range w.cfg.Profiles {
		if profile.SchedulerName != fw.ProfileName() {
			continue
		}
		for _, entry := range profile.PluginConfig {
			if args, ok := entry.Args.(*config.DefaultPreemptionArgs); ok {
				fts := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
				return defaultpreemption.New(w.ctx, args, fw, fts)
			}
		}
	}
	return nil, nil
}

func (w *world) candidates(fw framework.Framework, plugin *defaultpreemption.DefaultPreemption, state fwk.CycleState, verdicts *framework.NodeToStatus, a *preemptionAnswer) error {
	nodes, err := verdicts.NodesForStatusCode(fw.SnapshotSharedLister().NodeInfos(), fwk.Unschedulable)
	if err != nil || len(nodes) == 0 {
		return err
	}
	pdbs, err := plugin.Evaluator.PdbLister.List(labels.Everything())
	if err != nil {
		return err
	}
	// Wanting as many candidates as there are nodes, the search tries them all.
	// A failure counts only where there is no candidate; PostFilter tells it.
	found, _, _ := plugin.Evaluator.DryRunPreemption(w.ctx, state, w.pod, nodes, pdbs, 0, int32(len(nodes)))
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

// best finds every candidate that might be selected. Of two candidates the better
// one is always selected, and one of two equals by chance (the order of a map);
// so whoever is ever selected beside a winner is as good as that.
func (w *world) best(plugin *defaultpreemption.DefaultPreemption, all []preemption.Candidate) []string {
	const tries = 48
	if len(all) == 0 {
		return []string{}
	}
	winner := plugin.Evaluator.SelectCandidate(w.ctx, all).Name()
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
			if plugin.Evaluator.SelectCandidate(w.ctx, pair).Name() == other.Name() {
				best = append(best, other.Name())
				break
			}
		}
	}
	slices.Sort(best)
	return best
}
