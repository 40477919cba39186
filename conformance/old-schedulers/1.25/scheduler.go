package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"reflect"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	configv1beta2 "k8s.io/kube-scheduler/config/v1beta2"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkplugins "k8s.io/kubernetes/pkg/scheduler/framework/plugins"
)

func quietLog() {
	flags := flag.NewFlagSet("klog", flag.PanicOnError)
	klog.InitFlags(flags)
	flags.Set("logtostderr", "false")
	flags.Set("stderrthreshold", "FATAL")
	klog.SetOutput(io.Discard)
}

// readConfiguration does what kube-scheduler does with its --config file.
func readConfiguration(text []byte) (answer, error) {
	cfg, err := decode(text)
	if err != nil {
		return nil, err
	}
	if cfg.LeaderElection.LeaderElect {
		client := fake.NewSimpleClientset()
		_, err := resourcelock.New(cfg.LeaderElection.ResourceLock, "namespace", "name",
			client.CoreV1(), client.CoordinationV1(), resourcelock.ResourceLockConfig{})
		if err != nil {
			return nil, err
		}
	}
	// The scheduler writes defaults into them.
	extenders := plain(cfg.Extenders)
	client := fake.NewSimpleClientset()
	sched, captured, stop, err := newScheduler(client, newFactory(client), cfg)
	if err != nil {
		return nil, err
	}
	defer stop()
	implemented, err := implementedPoints(sched)
	if err != nil {
		return nil, err
	}
	profiles := []any{}
	for _, profile := range captured {
		shown := showProfile(sched, profile)
		shown["intendedPlugins"] = intendedPlugins(profile.Plugins, shown["plugins"].(map[string]any), implemented)
		profiles = append(profiles, shown)
	}
	return answer{
		"profiles":                  profiles,
		"parallelism":               cfg.Parallelism,
		"percentageOfNodesToScore":  cfg.PercentageOfNodesToScore,
		"podInitialBackoffSeconds":  cfg.PodInitialBackoffSeconds,
		"podMaxBackoffSeconds":      cfg.PodMaxBackoffSeconds,
		"enableProfiling":           cfg.EnableProfiling,
		"enableContentionProfiling": cfg.EnableContentionProfiling,
		"leaderElection":            plain(cfg.LeaderElection),
		"clientConnection":          plain(cfg.ClientConnection),
		"extenders":                 extenders,
	}, nil
}

// decode reads a valid configuration.
func decode(text []byte) (*config.KubeSchedulerConfiguration, error) {
	object, gvk, err := scheme.Codecs.UniversalDecoder().Decode(text, nil, nil)
	if err != nil {
		return nil, err
	}
	cfg, ok := object.(*config.KubeSchedulerConfiguration)
	if !ok {
		return nil, fmt.Errorf("couldn't decode as KubeSchedulerConfiguration, got %s", gvk)
	}
	cfg.TypeMeta.APIVersion = gvk.GroupVersion().String()
	if err := validation.ValidateKubeSchedulerConfiguration(cfg); err != nil {
		return nil, err
	}
	return cfg, nil
}

// readPolicy is about files that this version does not read.
func readPolicy([]byte) (answer, error) {
	return nil, fmt.Errorf("kube-scheduler 1.25 reads no Policy")
}

func newFactory(client *fake.Clientset) informers.SharedInformerFactory {
	return scheduler.NewInformerFactory(client, 0)
}

// newScheduler makes a scheduler that does not run. It returns the profiles with
// all their plugin arguments, too.
func newScheduler(client *fake.Clientset, factory informers.SharedInformerFactory, cfg *config.KubeSchedulerConfiguration) (*scheduler.Scheduler, []config.KubeSchedulerProfile, func(), error) {
	ctx, stop := context.WithCancel(context.Background())
	var captured []config.KubeSchedulerProfile
	sched, err := scheduler.New(client,
		factory,
		nil,
		func(string) events.EventRecorder { return nil },
		ctx.Done(),
		scheduler.WithComponentConfigVersion(cfg.TypeMeta.APIVersion),
		scheduler.WithProfiles(cfg.Profiles...),
		scheduler.WithPercentageOfNodesToScore(cfg.PercentageOfNodesToScore),
		scheduler.WithPodMaxBackoffSeconds(cfg.PodMaxBackoffSeconds),
		scheduler.WithPodInitialBackoffSeconds(cfg.PodInitialBackoffSeconds),
		scheduler.WithPodMaxInUnschedulablePodsDuration(5*time.Minute),
		scheduler.WithExtenders(cfg.Extenders...),
		scheduler.WithParallelism(cfg.Parallelism),
		scheduler.WithBuildFrameworkCapturer(func(profile config.KubeSchedulerProfile) {
			captured = append(captured, profile)
		}),
	)
	if err != nil {
		stop()
		return nil, nil, nil, err
	}
	return sched, captured, stop, nil
}

func showProfile(sched *scheduler.Scheduler, profile config.KubeSchedulerProfile) map[string]any {
	plugins := map[string]any{}
	listed := reflect.ValueOf(*sched.Profiles[profile.SchedulerName].ListPlugins())
	for i := 0; i < listed.NumField(); i++ {
		point := lowerCamel(listed.Type().Field(i).Name)
		enabled := listed.Field(i).Interface().(config.PluginSet).Enabled
		if len(enabled) == 0 {
			continue
		}
		list := []any{}
		for _, plugin := range enabled {
			if point == "score" {
				list = append(list, []any{plugin.Name, plugin.Weight})
			} else {
				list = append(list, plugin.Name)
			}
		}
		plugins[point] = list
	}
	args := map[string]any{}
	for _, configured := range profile.PluginConfig {
		args[configured.Name] = plain(configured.Args)
	}
	return map[string]any{"schedulerName": profile.SchedulerName, "plugins": plugins, "args": args}
}

// extensionPoints shows the extension points that the in-tree plugins implement.
func extensionPoints() (answer, error) {
	cfg, err := decode([]byte(
		`{"apiVersion":"kubescheduler.config.k8s.io/v1beta2","kind":"KubeSchedulerConfiguration"}`))
	if err != nil {
		return nil, err
	}
	client := fake.NewSimpleClientset()
	sched, _, stop, err := newScheduler(client, newFactory(client), cfg)
	if err != nil {
		return nil, err
	}
	defer stop()
	plugins, err := implementedPoints(sched)
	if err != nil {
		return nil, err
	}
	return answer{"plugins": plugins}, nil
}

func implementedPoints(sched *scheduler.Scheduler) (map[string][]string, error) {
	interfaces := map[string]reflect.Type{
		"queueSort":  reflect.TypeOf((*framework.QueueSortPlugin)(nil)).Elem(),
		"preFilter":  reflect.TypeOf((*framework.PreFilterPlugin)(nil)).Elem(),
		"filter":     reflect.TypeOf((*framework.FilterPlugin)(nil)).Elem(),
		"postFilter": reflect.TypeOf((*framework.PostFilterPlugin)(nil)).Elem(),
		"preScore":   reflect.TypeOf((*framework.PreScorePlugin)(nil)).Elem(),
		"score":      reflect.TypeOf((*framework.ScorePlugin)(nil)).Elem(),
		"reserve":    reflect.TypeOf((*framework.ReservePlugin)(nil)).Elem(),
		"permit":     reflect.TypeOf((*framework.PermitPlugin)(nil)).Elem(),
		"preBind":    reflect.TypeOf((*framework.PreBindPlugin)(nil)).Elem(),
		"bind":       reflect.TypeOf((*framework.BindPlugin)(nil)).Elem(),
		"postBind":   reflect.TypeOf((*framework.PostBindPlugin)(nil)).Elem(),
	}
	plugins := map[string][]string{}
	var handle framework.Framework
	for _, profile := range sched.Profiles {
		handle = profile
	}
	for name, factory := range frameworkplugins.NewInTreeRegistry() {
		args, err := defaultArgs(name)
		if err != nil {
			return nil, err
		}
		plugin, err := factory(args, handle)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		points := []string{}
		for point, extension := range interfaces {
			if reflect.TypeOf(plugin).Implements(extension) {
				points = append(points, point)
			}
		}
		plugins[name] = points
	}
	return plugins, nil
}

// intendedPlugins is what expandMultiPointPlugins documents: it deletes from a list while it
// ranges over it, so that with several overriding plugins at an extension point some are misplaced or stand
// twice. Later releases have mended this.
func intendedPlugins(plugins *config.Plugins, listed map[string]any, implemented map[string][]string) map[string]any {
	intended := map[string]any{}
	for point, list := range listed {
		entries := map[string]any{}
		for _, entry := range list.([]any) {
			name, isName := entry.(string)
			if !isName {
				name = entry.([]any)[0].(string)
			}
			entries[name] = entry
		}
		set := reflect.ValueOf(*plugins).FieldByNameFunc(func(field string) bool {
			return lowerCamel(field) == point
		}).Interface().(config.PluginSet)
		result := []any{}
		for _, name := range orderedNames(point, set, plugins.MultiPoint, implemented) {
			result = append(result, entries[name])
		}
		intended[point] = result
	}
	return intended
}

// orderedNames are first the plugins of the extension point that multiPoint has, too, then the others of
// multiPoint, and at last the others of the extension point.
func orderedNames(point string, set, multiPoint config.PluginSet, implemented map[string][]string) []string {
	disabled := map[string]bool{}
	for _, plugin := range set.Disabled {
		disabled[plugin.Name] = true
	}
	specific, expanded := map[string]bool{}, map[string]bool{}
	for _, plugin := range set.Enabled {
		specific[plugin.Name] = true
	}
	var first, second, third []string
	for _, plugin := range multiPoint.Enabled {
		name := plugin.Name
		if disabled["*"] || disabled[name] || !slices.Contains(implemented[name], point) {
			continue
		}
		expanded[name] = true
		if !specific[name] {
			second = append(second, name)
		}
	}
	for _, plugin := range set.Enabled {
		if expanded[plugin.Name] {
			first = append(first, plugin.Name)
		} else {
			third = append(third, plugin.Name)
		}
	}
	return slices.Concat(first, second, third)
}

// defaultArgs are arguments with which a plugin can be built.
func defaultArgs(plugin string) (runtime.Object, error) {
	args, err := scheme.Scheme.New(configv1beta2.SchemeGroupVersion.WithKind(plugin + "Args"))
	if runtime.IsNotRegisteredError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	scheme.Scheme.Default(args)
	return scheme.Scheme.ConvertToVersion(args, config.SchemeGroupVersion)
}
