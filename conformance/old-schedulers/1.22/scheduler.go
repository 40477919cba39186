package main

import (
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	configv1beta1 "k8s.io/kube-scheduler/config/v1beta1"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
)

// exampleVersion is a version that this release reads.
const exampleVersion = "kubescheduler.config.k8s.io/v1beta1"

// readPolicy does what kube-scheduler does with its --policy-config-file flag and no
// --config file.
func readPolicy(text []byte) (answer, error) {
	cfg, source, remove, err := policySource(text)
	if err != nil {
		return nil, err
	}
	defer remove()
	result, err := answerFor(cfg, scheduler.WithLegacyPolicySource(source))
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

// newScheduler makes a scheduler that does not run. It returns the profiles with
// all their plugin arguments, too.
func newScheduler(client *fake.Clientset, factory informers.SharedInformerFactory, cfg *config.KubeSchedulerConfiguration, options ...scheduler.Option) (*scheduler.Scheduler, []config.KubeSchedulerProfile, func(), error) {
	stopped := make(chan struct{})
	stop := func() { close(stopped) }
	var captured []config.KubeSchedulerProfile
	options = append(options,
		scheduler.WithComponentConfigVersion(cfg.TypeMeta.APIVersion),
		scheduler.WithProfiles(cfg.Profiles...),
		scheduler.WithPercentageOfNodesToScore(cfg.PercentageOfNodesToScore),
		scheduler.WithPodMaxBackoffSeconds(cfg.PodMaxBackoffSeconds),
		scheduler.WithPodInitialBackoffSeconds(cfg.PodInitialBackoffSeconds),
		scheduler.WithExtenders(cfg.Extenders...),
		scheduler.WithParallelism(cfg.Parallelism),
		scheduler.WithBuildFrameworkCapturer(func(profile config.KubeSchedulerProfile) {
			captured = append(captured, profile)
		}),
	)
	sched, err := scheduler.New(client,
		factory,
		func(string) events.EventRecorder { return nil },
		stopped,
		options...,
	)
	if err != nil {
		stop()
		return nil, nil, nil, err
	}
	return sched, captured, stop, nil
}

func showProfile(sched *scheduler.Scheduler, profile config.KubeSchedulerProfile) (map[string]any, error) {
	return pluginsOf(sched, profile), nil
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
