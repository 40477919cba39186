package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	configv1beta1 "k8s.io/kube-scheduler/config/v1beta1"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
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
	return answerFor(cfg, nil)
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

// readPolicy does what kube-scheduler does with its --policy-config-file flag and no
// --config file.
func readPolicy(text []byte) (answer, error) {
	cfg, source, remove, err := policySource(text)
	if err != nil {
		return nil, err
	}
	defer remove()
	result, err := answerFor(cfg, source)
	if err != nil {
		return nil, err
	}
	policy := &config.Policy{}
	if err := runtime.DecodeInto(scheme.Codecs.UniversalDecoder(), text, policy); err != nil {
		return nil, err
	}
	result["extenders"] = plain(policy.Extenders)
	result["alwaysCheckAllPredicates"] = policy.AlwaysCheckAllPredicates
	return result, nil
}

// policySource writes a Policy into a file. The configuration is that of a kube-scheduler with no --config file.
func policySource(text []byte) (*config.KubeSchedulerConfiguration, *config.SchedulerPolicySource, func(), error) {
	file, err := os.CreateTemp("", "policy")
	if err != nil {
		return nil, nil, nil, err
	}
	remove := func() { os.Remove(file.Name()) }
	_, err = file.Write(text)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	var cfg *config.KubeSchedulerConfiguration
	if err == nil {
		cfg, err = latest.Default()
	}
	if err != nil {
		remove()
		return nil, nil, nil, err
	}
	cfg.Profiles = nil
	source := &config.SchedulerPolicySource{File: &config.SchedulerPolicyFileSource{Path: file.Name()}}
	return cfg, source, remove, nil
}

func answerFor(cfg *config.KubeSchedulerConfiguration, policy *config.SchedulerPolicySource) (answer, error) {
	// The scheduler writes defaults into them.
	extenders := plain(cfg.Extenders)
	client := fake.NewSimpleClientset()
	sched, captured, stop, err := newScheduler(client, newFactory(client), cfg, policy)
	if err != nil {
		return nil, err
	}
	defer stop()
	profiles := []any{}
	for _, profile := range captured {
		profiles = append(profiles, showProfile(sched, profile))
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

// newScheduler makes a scheduler that does not run. It returns the profiles with
// all their plugin arguments, too.
func newScheduler(client *fake.Clientset, factory informers.SharedInformerFactory, cfg *config.KubeSchedulerConfiguration, policy *config.SchedulerPolicySource) (*scheduler.Scheduler, []config.KubeSchedulerProfile, func(), error) {
	stopped := make(chan struct{})
	stop := func() { close(stopped) }
	var captured []config.KubeSchedulerProfile
	sched, err := scheduler.New(client,
		factory,
		func(string) events.EventRecorder { return nil },
		stopped,
		scheduler.WithComponentConfigVersion(cfg.TypeMeta.APIVersion),
		scheduler.WithProfiles(cfg.Profiles...),
		scheduler.WithLegacyPolicySource(policy),
		scheduler.WithPercentageOfNodesToScore(cfg.PercentageOfNodesToScore),
		scheduler.WithPodMaxBackoffSeconds(cfg.PodMaxBackoffSeconds),
		scheduler.WithPodInitialBackoffSeconds(cfg.PodInitialBackoffSeconds),
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

func showProfile(sched *scheduler.Scheduler, profile config.KubeSchedulerProfile) any {
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
		`{"apiVersion":"kubescheduler.config.k8s.io/v1beta1","kind":"KubeSchedulerConfiguration"}`))
	if err != nil {
		return nil, err
	}
	client := fake.NewSimpleClientset()
	sched, _, stop, err := newScheduler(client, newFactory(client), cfg, nil)
	if err != nil {
		return nil, err
	}
	defer stop()
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
	plugins := map[string]any{}
	for name, factory := range frameworkplugins.NewInTreeRegistry() {
		args, err := defaultArgs(name)
		if err != nil {
			return nil, err
		}
		plugin, err := factory(args, sched.Profiles["default-scheduler"])
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
	return answer{"plugins": plugins}, nil
}

// defaultArgs are arguments with which a plugin can be built.
func defaultArgs(plugin string) (runtime.Object, error) {
	args, err := scheme.Scheme.New(configv1beta1.SchemeGroupVersion.WithKind(plugin + "Args"))
	if runtime.IsNotRegisteredError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if args, isRatio := args.(*configv1beta1.RequestedToCapacityRatioArgs); isRatio {
		args.Shape = []configv1beta1.UtilizationShapePoint{{Utilization: 0, Score: 0}}
	}
	scheme.Scheme.Default(args)
	return scheme.Scheme.ConvertToVersion(args, config.SchemeGroupVersion)
}
