package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

// syncLimit bounds the wait for started informers; see world.startInformers.
const syncLimit = 10 * time.Second

// emptyClient is used by every case whose indexers are filled directly. No answer
// depends on data read from it, so one client is enough for all.
var emptyClient = fake.NewClientset()

var (
	backgroundPanics panicLog
	schedulers       atomic.Int64
)

type panicLog struct {
	mu   sync.Mutex
	n    int
	text string
}

func (p *panicLog) record(_ context.Context, v any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n++
	p.text = fmt.Sprint(v)
}

func (p *panicLog) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.n
}

func (p *panicLog) last() (string, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text, p.n
}

func prepareProcess() {
	metrics.Register()
	// A panic in one case must not end the process: record the panic of a framework
	// goroutine and let its question fail.
	utilruntime.ReallyCrash = false
	utilruntime.PanicHandlers = append(utilruntime.PanicHandlers, backgroundPanics.record)
}

// world is the cluster of one question and the scheduler built for it.
type world struct {
	ctx    context.Context
	cancel context.CancelFunc
	log    klog.Logger

	// cfg is kept as decoded; profiles are those the frameworks were built from.
	cfg      *config.KubeSchedulerConfiguration
	profiles []config.KubeSchedulerProfile
	sched    *scheduler.Scheduler
	client   *fake.Clientset
	// plugins are those of profiles that an option of the scheduler captured.
	plugins map[string]fwk.Plugin
	// custom are objects of custom resources.
	custom []json.RawMessage

	nodes []*v1.Node
	pod   *v1.Pod
}

// build creates the scheduler and adds the objects to it. If podName is not
// empty, the pod of that name is prepared to be scheduled (again).
func build(q *question, podName string) (*world, error) {
	cfg, err := loadConfig(q.Config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &world{ctx: ctx, cancel: cancel, log: klog.FromContext(ctx), cfg: cfg, plugins: make(map[string]fwk.Plugin)}
	if err := w.fill(q.Objects, podName); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *world) close() { w.cancel() }

func loadConfig(raw json.RawMessage) (*config.KubeSchedulerConfiguration, error) {
	var cfg *config.KubeSchedulerConfiguration
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		var err error
		if cfg, err = latest.Default(); err != nil {
			return nil, err
		}
	} else {
		// The decoder is strict and applies the defaults, as it does for the
		// file given to --config.
		obj, gvk, err := scheme.Codecs.UniversalDecoder().Decode(raw, nil, nil)
		if err != nil {
			return nil, err
		}
		var ok bool
		if cfg, ok = obj.(*config.KubeSchedulerConfiguration); !ok {
			return nil, fmt.Errorf("couldn't decode as KubeSchedulerConfiguration, got %s: ", gvk)
		}
		cfg.APIVersion = gvk.GroupVersion().String()
	}
	if err := validation.ValidateKubeSchedulerConfiguration(cfg); err != nil {
		return nil, err
	}
	return cfg, nil
}

// newScheduler goes through the constructor of the real scheduler so that
// extender handling, profile validation, plugin wiring (volumes, dynamic
// resources, nominator) and queueing hints are never a reproduction of it.
func (w *world) newScheduler(client *fake.Clientset, factory informers.SharedInformerFactory) error {
	options := append(w.versionOptions(),
		scheduler.WithComponentConfigVersion(w.cfg.APIVersion),
		scheduler.WithProfiles(w.cfg.Profiles...),
		scheduler.WithPercentageOfNodesToScore(w.cfg.PercentageOfNodesToScore),
		scheduler.WithExtenders(w.cfg.Extenders...),
		// The degree of parallelism changes no answer except for which of
		// several errors is reported; with one worker that is the first.
		scheduler.WithParallelism(1),
		scheduler.WithBuildFrameworkCapturer(func(p config.KubeSchedulerProfile) {
			w.profiles = append(w.profiles, p)
		}),
	)
	sched, err := scheduler.New(w.ctx, client, factory, nil,
		func(string) eventRecorder { return &events.FakeRecorder{} }, options...)
	if err != nil {
		return err
	}
	// The constructor subscribes to its debugging signal and never unsubscribes:
	// one channel per scheduler. Unsubscribing is slow, so it is not always done.
	if schedulers.Add(1)%1000 == 0 {
		signal.Reset(syscall.SIGUSR2)
	}
	// Configured extenders have already affected the profiles. They must not be
	// called: no extender is running.
	sched.Extenders = nil
	w.sched, w.client = sched, client
	return nil
}

// informerDriven kinds reach their plugins only as informer events.
func informerDriven(gvk schema.GroupVersionKind) bool {
	return gvk.Group == "resource.k8s.io"
}

type identity struct {
	kind schema.GroupVersionKind
	name types.NamespacedName
}

func (w *world) fill(raws []json.RawMessage, podName string) error {
	objects := make([]runtime.Object, 0, len(raws))
	kinds := make([]schema.GroupVersionKind, 0, len(raws))
	seen := make(map[identity]bool, len(raws))
	started := false
	for i, raw := range raws {
		if isCustom(raw) {
			w.custom = append(w.custom, raw)
			started = true
			continue
		}
		obj, gvk, err := decodeObject(raw)
		if err != nil {
			return fmt.Errorf("object %d: %w", i, err)
		}
		id := identity{kind: gvk, name: nameOf(obj)}
		if seen[id] {
			return fmt.Errorf("object %d: %s %s is there twice", i, gvk.Kind, id.name)
		}
		seen[id] = true

		switch o := obj.(type) {
		case *v1.Node:
			w.nodes = append(w.nodes, o)
		case *v1.Pod:
			if podName != "" && id.name.String() == podName {
				o = askedPod(o)
				w.pod, obj = o, o
			} else if o.Status.Phase == v1.PodSucceeded || o.Status.Phase == v1.PodFailed {
				// The scheduler's pod informer leaves these out.
				continue
			}
		}
		started = started || informerDriven(gvk)
		objects = append(objects, obj)
		kinds = append(kinds, gvk)
	}
	if podName != "" && w.pod == nil {
		return fmt.Errorf("pod %q is not among the objects", podName)
	}

	if started {
		return w.startInformers(objects)
	}

	factory := scheduler.NewInformerFactory(emptyClient, 0)
	if err := w.newScheduler(emptyClient, factory); err != nil {
		return err
	}
	// Starting informers costs a tenth of a second. Listers only look at the
	// indexers, so those are filled directly and the informers never run.
	for i, obj := range objects {
		gvr, _ := meta.UnsafeGuessKindToResource(kinds[i])
		informer, err := factory.ForResource(gvr)
		if err != nil {
			return err
		}
		if err := informer.Informer().GetIndexer().Add(obj); err != nil {
			return err
		}
	}
	for _, obj := range objects {
		switch o := obj.(type) {
		case *v1.Node:
			w.sched.Cache.AddNode(w.log, o)
		case *v1.Pod:
			if o == w.pod {
				continue
			}
			if o.Spec.NodeName != "" {
				if err := w.sched.Cache.AddPod(w.log, o); err != nil {
					return err
				}
			} else if o.Status.NominatedNodeName != "" && w.sched.Profiles.HandlesSchedulerName(o.Spec.SchedulerName) {
				// The nominator resolves its entries through the queue, so a
				// nominated pod must be in the queue. Pods without a nomination
				// do not affect other pods.
				w.enqueue(o)
			}
		}
	}
	return nil
}

// startInformers starts informers that deliver events to the scheduler. It is much
// slower than filling indexers and used only for kinds that need informer events.
func (w *world) startInformers(objects []runtime.Object) error {
	visible := make([]runtime.Object, 0, len(objects))
	for _, obj := range objects {
		// The pod of the question is passed by the question, not by the informer;
		// if it still names a node it would be added to the snapshot.
		if pod, ok := obj.(*v1.Pod); !ok || pod != w.pod {
			visible = append(visible, obj)
		}
	}
	client := fake.NewClientset(visible...)
	factory := scheduler.NewInformerFactory(client, 0)
	if err := w.newScheduler(client, factory); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(w.ctx, syncLimit)
	defer cancel()
	w.beforeInformers()
	factory.Start(w.ctx.Done())
	for kind, ok := range factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			return fmt.Errorf("informer for %v did not sync", kind)
		}
	}
	if err := w.sched.WaitForHandlersSync(ctx); err != nil {
		return err
	}
	if w.pod == nil {
		return nil
	}
	// Preemption looks it up.
	return factory.Core().V1().Pods().Informer().GetIndexer().Add(w.pod)
}

// buildForPod builds the world of a question that must name a pod, and the
// framework of that pod's profile. The caller closes the world.
func buildForPod(q *question) (*world, framework.Framework, error) {
	w, err := build(q, q.Pod)
	if err != nil {
		return nil, nil, err
	}
	if w.pod == nil {
		w.close()
		return nil, nil, fmt.Errorf("the question names no pod")
	}
	fw, err := w.framework()
	if err != nil {
		w.close()
		return nil, nil, err
	}
	return w, fw, nil
}

// framework returns the framework of the pod's profile, with an updated
// snapshot.
func (w *world) framework() (framework.Framework, error) {
	fw, ok := w.sched.Profiles[w.pod.Spec.SchedulerName]
	if !ok {
		return nil, fmt.Errorf("profile not found for scheduler name %q", w.pod.Spec.SchedulerName)
	}
	snapshot, ok := fw.SnapshotSharedLister().(*internalcache.Snapshot)
	if !ok {
		return nil, errors.New("the framework has no snapshot")
	}
	return fw, w.sched.Cache.UpdateSnapshot(w.log, snapshot)
}

// decodeObject reads an API object without the API server's defaulting, except
// for what a question may omit: the namespace, the scheduler name, and the UID
// by which the cache and the nominator identify pods.
func decodeObject(raw json.RawMessage) (runtime.Object, schema.GroupVersionKind, error) {
	obj, gvk, err := clientscheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
	if err != nil {
		return nil, schema.GroupVersionKind{}, err
	}
	acc, err := meta.Accessor(obj)
	if err != nil {
		return nil, *gvk, err
	}
	if acc.GetNamespace() == "" && namespaced(*gvk) {
		acc.SetNamespace(metav1.NamespaceDefault)
	}
	if pod, ok := obj.(*v1.Pod); ok {
		if pod.Spec.SchedulerName == "" {
			pod.Spec.SchedulerName = v1.DefaultSchedulerName
		}
		if pod.UID == "" {
			pod.UID = types.UID(pod.Namespace + "/" + pod.Name)
		}
	}
	return obj, *gvk, nil
}

func namespaced(gvk schema.GroupVersionKind) bool {
	switch gvk.Kind {
	case "Node", "Namespace", "PriorityClass", "PersistentVolume", "StorageClass",
		"CSINode", "CSIDriver", "VolumeAttachment", "DeviceClass", "ResourceSlice":
		return false
	}
	return true
}

func nameOf(obj runtime.Object) types.NamespacedName {
	acc, err := meta.Accessor(obj)
	if err != nil {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: acc.GetNamespace(), Name: acc.GetName()}
}

// askedPod clears the node that the scheduler assigned before, so that the pod
// is scheduled again. A node name that was set from the start is kept: it is
// handled by the NodeName plugin.
func askedPod(pod *v1.Pod) *v1.Pod {
	if pod.Spec.NodeName != "" && wasScheduled(pod) {
		pod = pod.DeepCopy()
		pod.Spec.NodeName = ""
	}
	return pod
}

func wasScheduled(pod *v1.Pod) bool {
	if pod.Status.Phase == v1.PodRunning || pod.Status.StartTime != nil {
		return true
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.PodScheduled && c.Status == v1.ConditionTrue {
			return true
		}
	}
	return false
}
