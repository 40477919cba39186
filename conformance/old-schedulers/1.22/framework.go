package main

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// What differs between the frameworks of the releases.
type (
	pluginStatus = framework.Status
	pluginScores = framework.PluginToNodeScores
)

var newCycleState = framework.NewCycleState

func reasonsOf(status *pluginStatus) []string { return status.Reasons() }

func cacheOf(sched *scheduler.Scheduler) any { return sched.SchedulerCache }

// fillCache adds nodes and assigned pods. A node's images keep the number of nodes that had them when
// the node was last updated: after updates of all nodes these are the numbers of all nodes.
func fillCache(sched *scheduler.Scheduler, nodes []*v1.Node, pods []*v1.Pod) error {
	for _, node := range nodes {
		sched.SchedulerCache.AddNode(node)
	}
	for _, node := range nodes {
		sched.SchedulerCache.UpdateNode(node, node)
	}
	for _, pod := range pods {
		if err := sched.SchedulerCache.AddPod(pod); err != nil {
			return err
		}
	}
	return nil
}

func runPreFilter(ctx context.Context, profile framework.Framework, state *framework.CycleState, pod *v1.Pod) (string, *pluginStatus) {
	status := profile.RunPreFilterPlugins(ctx, state, pod)
	if status.IsSuccess() {
		return "", nil
	}
	return status.FailedPlugin(), status
}

// schedulerOf makes the scheduler of a question about a decision.
func schedulerOf(client *fake.Clientset, factory informers.SharedInformerFactory, q *question) (*scheduler.Scheduler, func(), error) {
	if !q.IsPolicy {
		cfg, err := decode([]byte(q.Text))
		if err != nil {
			return nil, nil, err
		}
		sched, _, stop, err := newScheduler(client, factory, cfg)
		return sched, stop, err
	}
	cfg, source, remove, err := policySource([]byte(q.Text))
	if err != nil {
		return nil, nil, err
	}
	defer remove()
	sched, _, stop, err := newScheduler(client, factory, cfg, scheduler.WithLegacyPolicySource(source))
	return sched, stop, err
}
