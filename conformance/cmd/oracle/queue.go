package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

type eventJSON struct {
	Resource string `json:"resource"`
	Action   string `json:"action"`
}

type hintAnswer struct {
	ID         json.RawMessage `json:"id"`
	Hint       string          `json:"hint"`
	Error      string          `json:"error,omitempty"`
	Registered [][2]string     `json:"registered"`
}

// actionBits maps the names of the single-bit actions to their bits.
var actionBits, actionOrder = func() (map[string]fwk.ActionType, []fwk.ActionType) {
	byName := make(map[string]fwk.ActionType)
	var order []fwk.ActionType
	for bit := fwk.Add; bit&fwk.All != 0; bit <<= 1 {
		byName[bit.String()] = bit
		order = append(order, bit)
	}
	byName[fwk.Update.String()] = fwk.Update
	byName[fwk.All.String()] = fwk.All
	return byName, order
}()

func parseAction(text string) (fwk.ActionType, error) {
	var action fwk.ActionType
	for _, name := range strings.Split(text, "|") {
		bit, ok := actionBits[strings.TrimSpace(name)]
		if !ok {
			return 0, fmt.Errorf("unknown action %q", name)
		}
		action |= bit
	}
	return action, nil
}

// actionText spells out combined actions, for which upstream has no name.
func actionText(action fwk.ActionType) string {
	if action == fwk.All {
		return "All"
	}
	var names []string
	general := action&fwk.Update == fwk.Update
	for _, bit := range actionOrder {
		if action&bit != 0 && !(general && bit&fwk.Update != 0) {
			names = append(names, bit.String())
		}
	}
	if general {
		names = append(names, "Update")
	}
	return strings.Join(names, "|")
}

func hint(q *question) (any, error) {
	action, err := parseAction(q.Event.Action)
	if err != nil {
		return nil, err
	}
	event := fwk.ClusterEvent{Resource: fwk.EventResource(q.Event.Resource), ActionType: action}
	oldObj, err := eventObject(q.Old, q.Event.Resource)
	if err != nil {
		return nil, fmt.Errorf("old: %w", err)
	}
	newObj, err := eventObject(q.New, q.Event.Resource)
	if err != nil {
		return nil, fmt.Errorf("new: %w", err)
	}

	w, fw, err := buildForPod(q)
	if err != nil {
		return nil, err
	}
	defer w.close()
	if !enabled(fw, q.Plugin) {
		return nil, fmt.Errorf("profile %q has no plugin %q", fw.ProfileName(), q.Plugin)
	}
	registered, err := w.registrations(fw, q.Plugin)
	if err != nil {
		return nil, err
	}

	a := &hintAnswer{ID: q.ID, Hint: "Unregistered", Registered: [][2]string{}}
	for _, r := range registered {
		a.Registered = append(a.Registered, [2]string{string(r.Event.Resource), actionText(r.Event.ActionType)})
		if !framework.MatchClusterEvents(r.Event, event) {
			continue
		}
		verdict := fwk.Queue.String()
		if r.QueueingHintFn != nil {
			h, err := r.QueueingHintFn(w.log, w.pod, oldObj, newObj)
			verdict = h.String()
			if err != nil {
				verdict, a.Error = "Error", err.Error()
			}
		}
		if rank[verdict] > rank[a.Hint] {
			a.Hint = verdict
		}
	}
	if a.Hint != "Error" {
		a.Error = ""
	}
	return a, nil
}

// rank decides between several matching registrations. The queue treats a failed
// hint as Queue, but Queue without an error takes precedence.
var rank = map[string]int{"Unregistered": 0, "QueueSkip": 1, "Error": 2, "Queue": 3}

// enabled distinguishes a plugin without events from an unknown name.
func enabled(fw framework.Framework, plugin string) bool {
	for _, set := range pluginSets(fw.ListPlugins()) {
		for _, p := range set {
			if p[0] == plugin {
				return true
			}
		}
	}
	return false
}

// registrations are the plugin's own, followed by the one the scheduler adds
// for plugins that register for new nodes but not for taint changes.
func (w *world) registrations(fw framework.Framework, plugin string) ([]fwk.ClusterEventWithHint, error) {
	for _, ext := range fw.EnqueueExtensions() {
		if ext.Name() != plugin {
			continue
		}
		own, err := ext.EventsToRegister(w.ctx)
		if err != nil {
			return nil, err
		}
		var nodes fwk.ActionType
		for _, r := range own {
			if r.Event.Resource == fwk.Node {
				nodes |= r.Event.ActionType
			}
		}
		if nodes&fwk.Add != 0 && nodes&fwk.UpdateNodeTaint == 0 {
			own = append(own, fwk.ClusterEventWithHint{
				Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.UpdateNodeTaint},
			})
		}
		return own, nil
	}
	return nil, nil
}

// eventObject returns an untyped nil for an absent object, as informers do: a
// nil pointer inside an interface would look like an object to a hint.
func eventObject(raw json.RawMessage, resource string) (any, error) {
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return nil, nil
	}
	var head struct {
		Kind string `json:"kind"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, err
	}
	if head.Kind == "" {
		kind := ""
		switch resource {
		case "Pod", "AssignedPod", "UnschedulablePod":
			kind = "Pod"
		case "Node":
			kind = "Node"
		default:
			return nil, fmt.Errorf("the object has no kind")
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(raw, &fields); err != nil {
			return nil, err
		}
		fields["apiVersion"], fields["kind"] = json.RawMessage(`"v1"`), json.RawMessage(`"`+kind+`"`)
		var err error
		if raw, err = json.Marshal(fields); err != nil {
			return nil, err
		}
	}
	obj, _, err := decodeObject(raw)
	return obj, err
}

// queuedPod is a pod of the question's objects and the times that the queue keeps.
type queuedPod struct {
	Pod            string       `json:"pod"`
	Timestamp      metav1.Time  `json:"timestamp"`
	InitialAttempt *metav1.Time `json:"initialAttempt"`
}

type orderAnswer struct {
	ID json.RawMessage `json:"id"`
	// Less has a row for each pod: whether it comes before each of the others.
	Less [][]bool `json:"less"`
}

// order compares each queued pod with each other one, with the queue sort plugin
// of the first profile.
func order(q *question) (any, error) {
	w, err := build(q, "")
	if err != nil {
		return nil, err
	}
	defer w.close()
	less, err := w.less(q)
	if err != nil {
		return nil, err
	}
	return &orderAnswer{ID: q.ID, Less: less}, nil
}

// podsByName decodes the pods among the objects.
func podsByName(objects []json.RawMessage) (map[string]*v1.Pod, error) {
	pods := make(map[string]*v1.Pod)
	for _, raw := range objects {
		if isCustom(raw) {
			continue
		}
		obj, _, err := decodeObject(raw)
		if err != nil {
			return nil, err
		}
		if pod, ok := obj.(*v1.Pod); ok {
			pods[nameOf(pod).String()] = pod
		}
	}
	return pods, nil
}

// less compares each queued pod with each other one.
func (w *world) less(q *question) ([][]bool, error) {
	pods, err := podsByName(q.Objects)
	if err != nil {
		return nil, err
	}
	infos := make([]*framework.QueuedPodInfo, 0, len(q.Queued))
	for _, queued := range q.Queued {
		pod, ok := pods[queued.Pod]
		if !ok {
			return nil, fmt.Errorf("pod %q is not among the objects", queued.Pod)
		}
		podInfo, err := framework.NewPodInfo(pod)
		if err != nil {
			return nil, err
		}
		info := &framework.QueuedPodInfo{PodInfo: podInfo, Timestamp: queued.Timestamp.Time}
		if queued.InitialAttempt != nil {
			info.InitialAttemptTimestamp = &queued.InitialAttempt.Time
		}
		infos = append(infos, info)
	}
	before := w.sched.Profiles[w.cfg.Profiles[0].SchedulerName].QueueSortFunc()
	less := [][]bool{}
	for _, x := range infos {
		row := []bool{}
		for _, y := range infos {
			row = append(row, before(x, y))
		}
		less = append(less, row)
	}
	return less, nil
}

type signAnswer struct {
	ID        json.RawMessage `json:"id"`
	Signature *string         `json:"signature"`
	RefusedBy []string        `json:"refusedBy,omitempty"`
}

func sign(q *question) (any, error) {
	w, fw, err := buildForPod(q)
	if err != nil {
		return nil, err
	}
	defer w.close()
	a := &signAnswer{ID: q.ID}
	if sig := w.signPod(fw); sig != nil {
		text := string(sig)
		a.Signature = &text
		return a, nil
	}
	a.RefusedBy = w.refusals(fw, w.pod)
	return a, nil
}

// refusals is informative. It covers only the plugins that the framework
// exposes, which are all but those that only score.
func (w *world) refusals(fw framework.Framework, pod *v1.Pod) []string {
	var names []string
	for _, ext := range fw.EnqueueExtensions() {
		if signer, ok := ext.(fwk.SignPlugin); ok {
			if _, status := signer.SignPod(w.ctx, pod); !status.IsSuccess() {
				names = append(names, ext.Name())
			}
		}
	}
	return names
}
