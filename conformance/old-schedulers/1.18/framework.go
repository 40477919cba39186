package main

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/scheduler"
	framework "k8s.io/kubernetes/pkg/scheduler/framework/v1alpha1"
	schedulerprofile "k8s.io/kubernetes/pkg/scheduler/profile"
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

func runPreFilter(ctx context.Context, profile *schedulerprofile.Profile, state *framework.CycleState, pod *v1.Pod) (string, *pluginStatus) {
	// It does not say which plugin rejects the pod.
	return "", profile.RunPreFilterPlugins(ctx, state, pod)
}

// schedulerOf makes the scheduler of a question about a decision.
func schedulerOf(client *fake.Clientset, factory informers.SharedInformerFactory, q *question) (*scheduler.Scheduler, func(), error) {
	if !q.IsPolicy {
		cfg, err := validConfiguration([]byte(q.Text))
		if err != nil {
			return nil, nil, err
		}
		return newScheduler(client, factory, cfg)
	}
	cfg, remove, err := policyConfiguration([]byte(q.Text))
	if err != nil {
		return nil, nil, err
	}
	defer remove()
	return newScheduler(client, factory, cfg)
}
