package main

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	// Adds the arguments of the plugins to the scheme of the configuration.
	_ "sigs.k8s.io/scheduler-plugins/apis/config/scheme"
	"sigs.k8s.io/scheduler-plugins/pkg/capacityscheduling"
	"sigs.k8s.io/scheduler-plugins/pkg/coscheduling"
	"sigs.k8s.io/scheduler-plugins/pkg/noderesources"
	"sigs.k8s.io/scheduler-plugins/pkg/podstate"
	"sigs.k8s.io/scheduler-plugins/pkg/preemptiontoleration"
	"sigs.k8s.io/scheduler-plugins/pkg/qos"
)

// This file has what depends on the version of Kubernetes and on the set of
// plugins; the other files are those of conformance/cmd/oracle.

type eventRecorder = events.EventRecorder

var factories = map[string]frameworkruntime.PluginFactory{
	capacityscheduling.Name:       capacityscheduling.New,
	coscheduling.Name:             newCoscheduling,
	noderesources.AllocatableName: noderesources.NewAllocatable,
	podstate.Name:                 podstate.New,
	preemptiontoleration.Name:     preemptiontoleration.New,
	qos.Name:                      qos.New,
}

// versionOptions registers the plugins of scheduler-plugins, which read custom
// objects from a server. Those that are built can be found in w.plugins.
func (w *world) versionOptions() []scheduler.Option {
	registry := make(frameworkruntime.Registry)
	for name, factory := range factories {
		registry[name] = func(ctx context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
			plugin, err := factory(ctx, args, h)
			w.plugins[name] = plugin
			return plugin, err
		}
	}
	return []scheduler.Option{
		scheduler.WithFrameworkOutOfTreeRegistry(registry),
		scheduler.WithKubeConfig(w.serveCustomObjects()),
	}
}

func (w *world) enqueue(pod *v1.Pod) { w.sched.SchedulingQueue.Add(w.log, pod) }

// schedulePod runs the scheduling cycle up to the selection of a node.
func (w *world) schedulePod(fw framework.Framework, state fwk.CycleState, pod *v1.Pod) error {
	_, err := w.sched.SchedulePod(w.ctx, fw, state, pod)
	return err
}

func (w *world) signPod(fw framework.Framework) fwk.PodSignature {
	return fw.SignPod(w.ctx, w.pod, true)
}

func (w *world) preemptionPlugin(fw framework.Framework) (*preemptionPlugin, error) {
	if plugin, ok := w.plugins[preemptiontoleration.Name].(*preemptiontoleration.PreemptionToleration); ok {
		evaluator := preemption.NewEvaluator(plugin.Name(), fw, plugin, false)
		return &preemptionPlugin{evaluator, plugin}, nil
	}
	if plugin, ok := w.plugins[capacityscheduling.Name].(fwk.PostFilterPlugin); ok {
		return &preemptionPlugin{nil, plugin}, nil
	}
	return w.defaultPreemption(fw)
}

func init() { handlers["gangs"] = gangs }
