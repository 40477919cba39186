package main

import (
	"flag"
	"fmt"
	"io"
	"reflect"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkplugins "k8s.io/kubernetes/pkg/scheduler/framework/plugins"
)

// What 1.22 and 1.25 have in common.

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
	return answerFor(cfg)
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

// answerFor makes a scheduler without a cluster and shows its profiles.
func answerFor(cfg *config.KubeSchedulerConfiguration, options ...scheduler.Option) (answer, error) {
	// The scheduler writes defaults into them.
	extenders := plain(cfg.Extenders)
	client := fake.NewSimpleClientset()
	sched, captured, stop, err := newScheduler(client, newFactory(client), cfg, options...)
	if err != nil {
		return nil, err
	}
	defer stop()
	profiles := []any{}
	for _, profile := range captured {
		shown, err := showProfile(sched, profile)
		if err != nil {
			return nil, err
		}
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

func newFactory(client *fake.Clientset) informers.SharedInformerFactory {
	return scheduler.NewInformerFactory(client, 0)
}

// pluginsOf shows the plugins of a profile at every extension point, and their arguments.
func pluginsOf(sched *scheduler.Scheduler, profile config.KubeSchedulerProfile) map[string]any {
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
	cfg, err := decode([]byte(`{"apiVersion":"` + exampleVersion + `","kind":"KubeSchedulerConfiguration"}`))
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
