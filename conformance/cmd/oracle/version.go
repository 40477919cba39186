package main

import (
	"encoding/json"
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// This file has what depends on the version of Kubernetes and on the set of
// plugins; conformance/scheduler-plugins has another one.

type eventRecorder = events.EventRecorderLogger

// versionOptions are options of the scheduler besides those of the configuration.
func (w *world) versionOptions() []scheduler.Option { return nil }

func (w *world) enqueue(pod *v1.Pod) { w.sched.SchedulingQueue.Add(w.ctx, pod) }

// schedulePod runs the scheduling cycle up to the selection of a node.
func (w *world) schedulePod(fw framework.Framework, state fwk.CycleState, pod *v1.Pod) error {
	podInfo, err := framework.NewPodInfo(pod)
	if err != nil {
		return err
	}
	_, err = w.sched.SchedulePod(w.ctx, fw, state, &framework.QueuedPodInfo{PodInfo: podInfo})
	return err
}

func (w *world) signPod(fw framework.Framework) fwk.PodSignature { return fw.SignPod(w.ctx, w.pod) }

// isCustom says whether this is an object of a custom resource that a plugin watches.
func isCustom(json.RawMessage) bool { return false }

// beforeInformers is called when the scheduler is built and before it receives pods.
func (w *world) beforeInformers() {}

// preemptPerNode is for plugins without evaluator.
func (w *world) preemptPerNode(framework.Framework, fwk.PostFilterPlugin, fwk.CycleState, *framework.NodeToStatus, *preemptionAnswer) error {
	return errors.New("the plugin has no evaluator")
}

func (w *world) preemptionPlugin(fw framework.Framework) (*preemptionPlugin, error) {
	return w.defaultPreemption(fw)
}
