package main

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	configv1beta2 "k8s.io/kube-scheduler/config/v1beta2"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
)

// exampleVersion is a version that this release reads.
const exampleVersion = "kubescheduler.config.k8s.io/v1beta2"

// readPolicy is about files that this version does not read.
func readPolicy([]byte) (answer, error) {
	return nil, fmt.Errorf("kube-scheduler 1.25 reads no Policy")
}

// newScheduler makes a scheduler that does not run. It returns the profiles with
// all their plugin arguments, too.
func newScheduler(client *fake.Clientset, factory informers.SharedInformerFactory, cfg *config.KubeSchedulerConfiguration, options ...scheduler.Option) (*scheduler.Scheduler, []config.KubeSchedulerProfile, func(), error) {
	ctx, stop := context.WithCancel(context.Background())
	var captured []config.KubeSchedulerProfile
	options = append(options,
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
	sched, err := scheduler.New(client,
		factory,
		nil,
		func(string) events.EventRecorder { return nil },
		ctx.Done(),
		options...,
	)
	if err != nil {
		stop()
		return nil, nil, nil, err
	}
	return sched, captured, stop, nil
}

// showProfile shows a profile, and the plugins that it is meant to have.
func showProfile(sched *scheduler.Scheduler, profile config.KubeSchedulerProfile) (map[string]any, error) {
	implemented, err := implementedPoints(sched)
	if err != nil {
		return nil, err
	}
	shown := pluginsOf(sched, profile)
	shown["intendedPlugins"] = intendedPlugins(profile.Plugins, shown["plugins"].(map[string]any), implemented)
	return shown, nil
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
