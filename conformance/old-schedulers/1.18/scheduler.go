package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/component-base/codec"
	"k8s.io/klog"
	configv1alpha2 "k8s.io/kube-scheduler/config/v1alpha2"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/v1alpha1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
	frameworkplugins "k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/interpodaffinity"
	framework "k8s.io/kubernetes/pkg/scheduler/framework/v1alpha1"
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
	cfg, err := validConfiguration(text)
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
	configs := make([][]config.PluginConfig, len(cfg.Profiles))
	for i, profile := range cfg.Profiles {
		configs[i] = append(configs[i], profile.PluginConfig...)
		configs[i] = append(configs[i], ignoredResources(cfg.Extenders)...)
	}
	return answerFor(cfg, configs)
}

func validConfiguration(text []byte) (*config.KubeSchedulerConfiguration, error) {
	cfg, err := decode(text)
	if err != nil {
		return nil, err
	}
	return cfg, validation.ValidateKubeSchedulerConfiguration(cfg).ToAggregate()
}

// decode is strict, and lenient for v1alpha1.
func decode(text []byte) (*config.KubeSchedulerConfiguration, error) {
	object, gvk, err := scheme.Codecs.UniversalDecoder().Decode(text, nil, nil)
	if runtime.IsStrictDecodingError(err) {
		_, codecs, lenientErr := codec.NewLenientSchemeAndCodecs(config.AddToScheme, v1alpha1.AddToScheme)
		if lenientErr != nil {
			return nil, lenientErr
		}
		var strictErr error
		strictErr, err = err, nil
		if object, gvk, err = codecs.UniversalDecoder().Decode(text, nil, nil); err != nil {
			err = strictErr
		}
	}
	if err != nil {
		return nil, err
	}
	if cfg, ok := object.(*config.KubeSchedulerConfiguration); ok {
		return cfg, nil
	}
	return nil, fmt.Errorf("couldn't decode as KubeSchedulerConfiguration, got %s", gvk)
}

// readPolicy does what kube-scheduler does with its --policy-config-file flag and no
// --config file.
func readPolicy(text []byte) (answer, error) {
	cfg, remove, err := policyConfiguration(text)
	if err != nil {
		return nil, err
	}
	defer remove()
	policy := &config.Policy{}
	if err := runtime.DecodeInto(scheme.Codecs.UniversalDecoder(), text, policy); err != nil {
		return nil, err
	}
	result, err := answerFor(cfg, nil)
	if err != nil {
		return nil, err
	}
	profile := result["profiles"].([]any)[0].(map[string]any)
	configs := append(policyPluginConfig(policy), ignoredResources(policy.Extenders)...)
	if profile["args"], err = showArgs(cfg, configs, profile["plugins"].(map[string]any)); err != nil {
		return nil, err
	}
	result["extenders"] = plain(policy.Extenders)
	result["alwaysCheckAllPredicates"] = policy.AlwaysCheckAllPredicates
	return result, nil
}

// policyConfiguration writes a Policy into a file. The configuration is that of a kube-scheduler with no --config file.
func policyConfiguration(text []byte) (*config.KubeSchedulerConfiguration, func(), error) {
	file, err := os.CreateTemp("", "policy")
	if err != nil {
		return nil, nil, err
	}
	remove := func() { os.Remove(file.Name()) }
	_, err = file.Write(text)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	versioned := configv1alpha2.KubeSchedulerConfiguration{}
	scheme.Scheme.Default(&versioned)
	cfg := &config.KubeSchedulerConfiguration{}
	if err == nil {
		err = scheme.Scheme.Convert(&versioned, cfg, nil)
	}
	if err != nil {
		remove()
		return nil, nil, err
	}
	cfg.AlgorithmSource = config.SchedulerAlgorithmSource{
		Policy: &config.SchedulerPolicySource{
			File: &config.SchedulerPolicyFileSource{Path: file.Name()},
		},
	}
	return cfg, remove, nil
}

// policyPluginConfig is the part of createFromConfig that makes plugin arguments: the scheduler
// does not show them.
func policyPluginConfig(policy *config.Policy) []config.PluginConfig {
	registry := frameworkplugins.NewLegacyRegistry()
	args := &frameworkplugins.ConfigProducerArgs{}
	predicates := registry.DefaultPredicates
	if policy.Predicates != nil {
		predicates = sets.NewString()
		for _, predicate := range policy.Predicates {
			predicates.Insert(registry.ProcessPredicatePolicy(predicate, args))
		}
	}
	priorities := registry.DefaultPriorities
	if policy.Priorities != nil {
		priorities = map[string]int64{}
		for _, priority := range policy.Priorities {
			if priority.Name != frameworkplugins.EqualPriority {
				priorities[registry.ProcessPriorityPolicy(priority, args)] = priority.Weight
			}
		}
	}
	byName := map[string]config.PluginConfig{}
	add := func(configs []config.PluginConfig) {
		for _, it := range configs {
			byName[it.Name] = it
		}
	}
	if policy.HardPodAffinitySymmetricWeight != 0 {
		weight := policy.HardPodAffinitySymmetricWeight
		args.InterPodAffinityArgs = &interpodaffinity.Args{HardPodAffinityWeight: &weight}
	}
	for name := range predicates.Union(registry.MandatoryPredicates) {
		_, configs := registry.PredicateToConfigProducer[name](*args)
		add(configs)
	}
	for name, weight := range priorities {
		with := *args
		with.Weight = int32(weight)
		_, configs := registry.PriorityToConfigProducer[name](with)
		add(configs)
	}
	configs := []config.PluginConfig{}
	for _, it := range byName {
		configs = append(configs, it)
	}
	return configs
}

// ignoredResources is the argument of NodeResourcesFit that the scheduler makes of extenders.
func ignoredResources(extenders []config.Extender) []config.PluginConfig {
	var names []string
	for _, extender := range extenders {
		for _, resource := range extender.ManagedResources {
			if resource.IgnoredByScheduler {
				names = append(names, resource.Name)
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	return []config.PluginConfig{fitConfig(names)}
}

// answerFor makes a scheduler without a cluster and shows its profiles.
func answerFor(cfg *config.KubeSchedulerConfiguration, configs [][]config.PluginConfig) (answer, error) {
	// The scheduler writes defaults into them.
	extenders := plain(cfg.Extenders)
	client := fake.NewSimpleClientset()
	sched, stop, err := newScheduler(client, newFactory(client), cfg)
	if err != nil {
		return nil, err
	}
	defer stop()
	profiles := []any{}
	for i, profile := range cfg.Profiles {
		plugins := showPlugins(sched.Profiles[profile.SchedulerName].ListPlugins())
		shown := map[string]any{"schedulerName": profile.SchedulerName, "plugins": plugins}
		if configs != nil {
			if shown["args"], err = showArgs(cfg, configs[i], plugins); err != nil {
				return nil, err
			}
		}
		profiles = append(profiles, shown)
	}
	return answer{
		"profiles":                  profiles,
		"disablePreemption":         cfg.DisablePreemption,
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
	return informers.NewSharedInformerFactory(client, 0)
}

// newScheduler makes a scheduler that does not run.
func newScheduler(client *fake.Clientset, factory informers.SharedInformerFactory, cfg *config.KubeSchedulerConfiguration) (*scheduler.Scheduler, func(), error) {
	stopped := make(chan struct{})
	stop := func() { close(stopped) }
	sched, err := scheduler.New(client,
		factory,
		factory.Core().V1().Pods(),
		func(string) events.EventRecorder { return nil },
		stopped,
		scheduler.WithProfiles(cfg.Profiles...),
		scheduler.WithAlgorithmSource(cfg.AlgorithmSource),
		scheduler.WithPreemptionDisabled(cfg.DisablePreemption),
		scheduler.WithPercentageOfNodesToScore(cfg.PercentageOfNodesToScore),
		scheduler.WithBindTimeoutSeconds(cfg.BindTimeoutSeconds),
		scheduler.WithPodMaxBackoffSeconds(cfg.PodMaxBackoffSeconds),
		scheduler.WithPodInitialBackoffSeconds(cfg.PodInitialBackoffSeconds),
		scheduler.WithExtenders(cfg.Extenders...),
	)
	if err != nil {
		stop()
		return nil, nil, err
	}
	return sched, stop, nil
}

func showPlugins(listed map[string][]config.Plugin) map[string]any {
	plugins := map[string]any{}
	for extension, enabled := range listed {
		point := lowerCamel(strings.TrimSuffix(extension, "Plugin"))
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
	return plugins
}

// extensionPoints shows the extension points that the in-tree plugins implement.
func extensionPoints() (answer, error) {
	cfg, err := decode([]byte(
		`{"apiVersion":"kubescheduler.config.k8s.io/v1alpha2","kind":"KubeSchedulerConfiguration"}`))
	if err != nil {
		return nil, err
	}
	client := fake.NewSimpleClientset()
	sched, stop, err := newScheduler(client, newFactory(client), cfg)
	if err != nil {
		return nil, err
	}
	defer stop()
	interfaces := map[string]reflect.Type{
		"queueSort": reflect.TypeOf((*framework.QueueSortPlugin)(nil)).Elem(),
		"preFilter": reflect.TypeOf((*framework.PreFilterPlugin)(nil)).Elem(),
		"filter":    reflect.TypeOf((*framework.FilterPlugin)(nil)).Elem(),
		"preScore":  reflect.TypeOf((*framework.PreScorePlugin)(nil)).Elem(),
		"score":     reflect.TypeOf((*framework.ScorePlugin)(nil)).Elem(),
		"reserve":   reflect.TypeOf((*framework.ReservePlugin)(nil)).Elem(),
		"permit":    reflect.TypeOf((*framework.PermitPlugin)(nil)).Elem(),
		"preBind":   reflect.TypeOf((*framework.PreBindPlugin)(nil)).Elem(),
		"bind":      reflect.TypeOf((*framework.BindPlugin)(nil)).Elem(),
		"postBind":  reflect.TypeOf((*framework.PostBindPlugin)(nil)).Elem(),
		"unreserve": reflect.TypeOf((*framework.UnreservePlugin)(nil)).Elem(),
	}
	plugins := map[string]any{}
	for name, factory := range frameworkplugins.NewInTreeRegistry() {
		plugin, err := factory(exampleArgs(name), sched.Profiles["default-scheduler"])
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
