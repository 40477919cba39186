package main

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kubernetes/pkg/scheduler"
)

// statusJSON is what a plugin says about a pod or about a node.
type statusJSON struct {
	Code    string   `json:"code"`
	Plugin  string   `json:"plugin,omitempty"`
	Reasons []string `json:"reasons,omitempty"`
}

type nodeJSON struct {
	Name   string           `json:"name"`
	Filter statusJSON       `json:"filter"`
	Scores map[string]int64 `json:"scores,omitempty"`
}

func showStatus(plugin string, status *pluginStatus) statusJSON {
	shown := statusJSON{Code: status.Code().String()}
	if !status.IsSuccess() {
		shown.Plugin, shown.Reasons = plugin, reasonsOf(status)
	}
	return shown
}

// decide runs the plugins of its profile for a pod: PreFilter, Filter of every node, PreScore,
// and Score with normalization and weights of the nodes that pass.
func decide(q *question) (answer, error) {
	client := fake.NewSimpleClientset()
	factory := newFactory(client)
	sched, stop, err := schedulerOf(client, factory, q)
	if err != nil {
		return nil, err
	}
	defer stop()
	pod, nodes, err := fillCluster(factory, sched, q)
	if err != nil {
		return nil, err
	}
	profile, ok := sched.Profiles[pod.Spec.SchedulerName]
	if !ok {
		return nil, fmt.Errorf("there is no profile %q", pod.Spec.SchedulerName)
	}
	snapshot := profile.SnapshotSharedLister()
	if err := updateSnapshot(cacheOf(sched), snapshot); err != nil {
		return nil, err
	}

	ctx, state := context.Background(), newCycleState()
	if plugin, status := runPreFilter(ctx, profile, state, pod); !status.IsSuccess() {
		return answer{"preFilter": showStatus(plugin, status)}, nil
	}
	shown := make([]nodeJSON, len(nodes))
	var feasible []*v1.Node
	for i, node := range nodes {
		shown[i] = nodeJSON{Name: node.Name, Filter: statusJSON{Code: "Success"}}
		info, err := snapshot.NodeInfos().Get(node.Name)
		if err != nil {
			return nil, err
		}
		statuses := profile.RunFilterPlugins(ctx, state, pod, info)
		for plugin, status := range statuses {
			shown[i].Filter = showStatus(plugin, status)
		}
		if len(statuses) == 0 {
			feasible = append(feasible, info.Node())
			shown[i].Scores = map[string]int64{}
		}
	}
	if len(feasible) > 0 {
		if status := profile.RunPreScorePlugins(ctx, state, pod, feasible); !status.IsSuccess() {
			return nil, fmt.Errorf("PreScore: %v", status.AsError())
		}
		byPlugin, status := profile.RunScorePlugins(ctx, state, pod, feasible)
		if !status.IsSuccess() {
			return nil, fmt.Errorf("Score: %v", status.AsError())
		}
		addScores(shown, byPlugin)
	}
	return answer{"nodes": shown}, nil
}

func addScores(nodes []nodeJSON, byPlugin pluginScores) {
	for plugin, scores := range byPlugin {
		for _, score := range scores {
			for i := range nodes {
				if nodes[i].Name == score.Name {
					nodes[i].Scores[plugin] = score.Score
				}
			}
		}
	}
}

// fillCluster adds the objects to the stores of informers, which are not started, and to the
// cache. It returns the pod of the question, which is in neither, and the nodes.
func fillCluster(factory informers.SharedInformerFactory, sched *scheduler.Scheduler, q *question) (*v1.Pod, []*v1.Node, error) {
	var asked *v1.Pod
	var nodes []*v1.Node
	var assigned []*v1.Pod
	for i, raw := range q.Objects {
		object, kind, err := clientscheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
		if err != nil {
			return nil, nil, fmt.Errorf("object %d: %w", i, err)
		}
		accessor, err := meta.Accessor(object)
		if err != nil {
			return nil, nil, fmt.Errorf("object %d: %w", i, err)
		}
		isClusterWide := kind.Kind == "Node" || kind.Kind == "PersistentVolume"
		if accessor.GetNamespace() == "" && !isClusterWide {
			accessor.SetNamespace(v1.NamespaceDefault)
		}
		switch it := object.(type) {
		case *v1.Node:
			nodes = append(nodes, it)
		case *v1.Pod:
			if it.Spec.SchedulerName == "" {
				it.Spec.SchedulerName = v1.DefaultSchedulerName
			}
			it.UID = types.UID(it.Namespace + "/" + it.Name)
			if it.Namespace+"/"+it.Name == q.Pod {
				asked = it
				continue
			}
			assigned = append(assigned, it)
		}
		resource, _ := meta.UnsafeGuessKindToResource(*kind)
		informer, err := factory.ForResource(resource)
		if err != nil {
			return nil, nil, err
		}
		if err := informer.Informer().GetIndexer().Add(object); err != nil {
			return nil, nil, err
		}
	}
	if asked == nil {
		return nil, nil, fmt.Errorf("pod %q is not among the objects", q.Pod)
	}
	return asked, nodes, fillCache(sched, nodes, assigned)
}

// updateSnapshot calls a method of the cache, which is of an internal package like the type of the snapshot.
func updateSnapshot(cache, snapshot any) error {
	method := reflect.ValueOf(cache).MethodByName("UpdateSnapshot")
	err, _ := method.Call([]reflect.Value{reflect.ValueOf(snapshot)})[0].Interface().(error)
	return err
}

// question has the fields of all kinds of questions.
type question struct {
	Kind string `json:"kind"`
	Text string `json:"text"`

	// Of decisions: whether Text is a Policy, all objects, and the pod to schedule as namespace/name.
	IsPolicy bool              `json:"isPolicy"`
	Objects  []json.RawMessage `json:"objects"`
	Pod      string            `json:"pod"`
}
