package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"
	"unsafe"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"sigs.k8s.io/scheduler-plugins/pkg/coscheduling"
	"sigs.k8s.io/scheduler-plugins/pkg/coscheduling/core"
	"sigs.k8s.io/scheduler-plugins/pkg/util"
)

// gangPlugin is Coscheduling with the pods that wait at Permit, which the question
// moves instead of a scheduler.
type gangPlugin struct {
	*coscheduling.Coscheduling
	waiting *waitingPods
}

func newCoscheduling(ctx context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	waiting := &waitingPods{Handle: h, pods: make(map[string]*v1.Pod)}
	plugin, err := coscheduling.New(ctx, args, waiting)
	if err != nil {
		return nil, err
	}
	return &gangPlugin{plugin.(*coscheduling.Coscheduling), waiting}, nil
}

// waitingPods is the plugin's handle.
type waitingPods struct {
	fwk.Handle
	pods              map[string]*v1.Pod
	allowed, rejected []string
}

type waitingPod struct {
	all  *waitingPods
	name string
}

func (h *waitingPods) IterateOverWaitingPods(callback func(fwk.WaitingPod)) {
	for name := range h.pods {
		callback(waitingPod{h, name})
	}
}

func (p waitingPod) GetPod() *v1.Pod             { return p.all.pods[p.name] }
func (p waitingPod) GetPendingPlugins() []string { return []string{coscheduling.Name} }
func (p waitingPod) Allow(string)                { p.all.allowed = append(p.all.allowed, p.name) }
func (p waitingPod) Reject(string, string) {
	if !slices.Contains(p.all.rejected, p.name) {
		p.all.rejected = append(p.all.rejected, p.name)
	}
}

// awaitAssignedPods waits until the plugin's informer handler, which nobody else can
// wait for, has counted the members with a node.
func (p *gangPlugin) awaitAssignedPods(pods map[string]*v1.Pod) error {
	field := reflect.ValueOf(p.Coscheduling).Elem().FieldByName("pgMgr")
	manager, ok := reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem().Interface().(core.Manager)
	if !ok {
		return errors.New("the plugin has no manager")
	}
	assigned := make(map[string]int)
	for _, pod := range pods {
		if group := util.GetPodGroupFullName(pod); group != "" && pod.Spec.NodeName != "" {
			assigned[group]++
		}
	}
	for group, want := range assigned {
		for start := time.Now(); manager.GetAssignedPodCount(group) != want; time.Sleep(time.Millisecond) {
			if time.Since(start) > syncLimit {
				return fmt.Errorf("%d members of %s are assigned, not %d", manager.GetAssignedPodCount(group), group, want)
			}
		}
	}
	return nil
}

// gangStep is what happens to a pod; see conformance/README.md.
type gangStep struct {
	Do   string `json:"do"`
	Pod  string `json:"pod"`
	Node string `json:"node"`
}

type gangStepAnswer struct {
	PreFilter  *statusJSON `json:"preFilter,omitempty"`
	PostFilter *statusJSON `json:"postFilter,omitempty"`
	Permit     *statusJSON `json:"permit,omitempty"`
	// WaitSeconds is how long the pod waits at Permit.
	WaitSeconds int64    `json:"waitSeconds,omitempty"`
	Allowed     []string `json:"allowed,omitempty"`
	Rejected    []string `json:"rejected,omitempty"`
	Less        [][]bool `json:"less,omitempty"`
}

type gangsAnswer struct {
	ID    json.RawMessage  `json:"id"`
	Steps []gangStepAnswer `json:"steps"`
}

// gangs performs the steps one after the other, each with all calls of Coscheduling
// that a scheduler makes.
func gangs(q *question) (any, error) {
	w, err := build(q, "")
	if err != nil {
		return nil, err
	}
	defer w.close()
	plugin, ok := w.plugins[coscheduling.Name].(*gangPlugin)
	if !ok {
		return nil, fmt.Errorf("the profile has no plugin %s", coscheduling.Name)
	}
	pods, err := podsByName(q.Objects)
	if err != nil {
		return nil, err
	}
	if err := plugin.awaitAssignedPods(pods); err != nil {
		return nil, err
	}
	run := &gangRun{w: w, plugin: plugin, how: q.Calls, reserved: make(map[string]*v1.Pod)}
	a := &gangsAnswer{ID: q.ID, Steps: []gangStepAnswer{}}
	for i, raw := range q.Steps {
		var step gangStep
		if err := json.Unmarshal(raw, &step); err != nil {
			return nil, fmt.Errorf("step %d: %w", i, err)
		}
		var answer gangStepAnswer
		pod := pods[step.Pod]
		switch step.Do {
		case "schedule":
			err = run.schedule(pod, step.Node, &answer)
		case "timeout":
			if plugin.waiting.pods[step.Pod] != nil {
				err = run.unreserve(step.Pod)
			}
		case "bindFails":
			if plugin.waiting.pods[step.Pod] == nil && run.reserved[step.Pod] != nil {
				err = run.unreserve(step.Pod)
			}
		case "order":
			answer.Less, err = w.less(q)
		default:
			err = fmt.Errorf("unknown step %q", step.Do)
		}
		if err == nil {
			err = run.finishStep(&answer)
		}
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", i, err)
		}
		a.Steps = append(a.Steps, answer)
	}
	return a, nil
}

type gangRun struct {
	w      *world
	plugin *gangPlugin
	how    gangCalls
	// reserved are pods with a node that the steps have given them.
	reserved map[string]*v1.Pod
	// late are rejected pods whose Unreserve has not been called.
	late []string
}

func gangStatus(s *fwk.Status) *statusJSON {
	shown := toJSON(s)
	if s.IsSuccess() || s.IsWait() {
		shown = statusJSON{Code: s.Code().String()}
	}
	return &shown
}

// schedule is a scheduling cycle of a pod without a node. No node name: no node fits.
func (r *gangRun) schedule(pod *v1.Pod, node string, a *gangStepAnswer) error {
	if pod == nil {
		return fmt.Errorf("no such pod")
	}
	name := nameOf(pod).String()
	if pod.Spec.NodeName != "" || r.reserved[name] != nil {
		return nil
	}
	fw := r.w.sched.Profiles[r.w.cfg.Profiles[0].SchedulerName]
	snapshot, ok := fw.SnapshotSharedLister().(*internalcache.Snapshot)
	if !ok {
		return fmt.Errorf("the framework has no snapshot")
	}
	if err := r.w.sched.Cache.UpdateSnapshot(r.w.log, snapshot); err != nil {
		return err
	}
	ctx, state := r.w.ctx, framework.NewCycleState()
	_, status := r.plugin.PreFilter(ctx, state, pod, nil)
	a.PreFilter = gangStatus(status)
	if !status.IsSuccess() && r.how.NoPostFilterAfterPreFilter {
		return nil
	}
	if !status.IsSuccess() || node == "" {
		_, status := r.plugin.PostFilter(ctx, state, pod, nil)
		a.PostFilter = gangStatus(status)
		return nil
	}
	assumed := pod.DeepCopy()
	assumed.Spec.NodeName = node
	if err := r.w.sched.Cache.AssumePod(r.w.log, assumed); err != nil {
		return err
	}
	r.reserved[name] = assumed
	status, wait := r.plugin.Permit(ctx, state, assumed, node)
	a.Permit = gangStatus(status)
	switch {
	case status.IsWait():
		r.plugin.waiting.pods[name] = assumed
		a.WaitSeconds = int64(wait / time.Second)
	case !status.IsSuccess():
		return r.unreserve(name)
	}
	return nil
}

// unreserve takes the pod's node away.
func (r *gangRun) unreserve(name string) error {
	delete(r.plugin.waiting.pods, name)
	pod := r.reserved[name]
	if pod == nil {
		return nil
	}
	delete(r.reserved, name)
	r.plugin.Unreserve(r.w.ctx, framework.NewCycleState(), pod, pod.Spec.NodeName)
	return r.w.sched.Cache.ForgetPod(r.w.log, pod)
}

// finishStep handles the pods that the plugin has allowed and rejected.
func (r *gangRun) finishStep(a *gangStepAnswer) error {
	waiting := r.plugin.waiting
	for _, name := range waiting.allowed {
		delete(waiting.pods, name)
	}
	a.Allowed = append(a.Allowed, waiting.allowed...)
	waiting.allowed = nil
	due := r.late
	r.late = nil
	for len(due) > 0 || len(waiting.rejected) > 0 {
		rejected := waiting.rejected
		waiting.rejected = nil
		a.Rejected = append(a.Rejected, rejected...)
		for _, name := range rejected {
			delete(waiting.pods, name)
		}
		if r.how.LateUnreserve {
			r.late = append(r.late, rejected...)
		} else {
			due = append(due, rejected...)
		}
		for _, name := range due {
			if err := r.unreserve(name); err != nil {
				return err
			}
		}
		due = nil
	}
	slices.Sort(a.Allowed)
	slices.Sort(a.Rejected)
	// Marks of failures are compared.
	time.Sleep(time.Microsecond)
	return nil
}
