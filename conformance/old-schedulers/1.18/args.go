package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	frameworkplugins "k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/interpodaffinity"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodelabel"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/noderesources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/podtopologyspread"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/serviceaffinity"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"
	framework "k8s.io/kubernetes/pkg/scheduler/framework/v1alpha1"
)

// In this version plugins decode their own arguments and keep them to themselves. What follows
// decodes them likewise, with the defaults that the plugins use, which have no fields
// for all of them.

// showArgs shows the arguments of all plugins that are enabled.
func showArgs(cfg *config.KubeSchedulerConfiguration, configs []config.PluginConfig, plugins map[string]any) (map[string]any, error) {
	raw := map[string]*runtime.Unknown{}
	for i := range configs {
		raw[configs[i].Name] = &configs[i].Args
	}
	args := map[string]any{}
	for _, name := range enabledPlugins(plugins) {
		shown, err := pluginArgs(cfg, name, raw[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if shown != nil {
			args[name] = shown
		}
	}
	return args, nil
}

func enabledPlugins(plugins map[string]any) []string {
	names := []string{}
	for _, list := range plugins {
		for _, entry := range list.([]any) {
			if weighted, isWeighted := entry.([]any); isWeighted {
				entry = weighted[0]
			}
			names = append(names, entry.(string))
		}
	}
	return names
}

func pluginArgs(cfg *config.KubeSchedulerConfiguration, name string, raw *runtime.Unknown) (any, error) {
	switch name {
	case interpodaffinity.Name:
		weight := int32(interpodaffinity.DefaultHardPodAffinityWeight)
		args := interpodaffinity.Args{}
		err := framework.DecodeInto(raw, &args)
		if args.HardPodAffinityWeight == nil {
			args.HardPodAffinityWeight = &weight
		}
		return plain(args), err
	case nodelabel.Name:
		args := nodelabel.Args{}
		err := framework.DecodeInto(raw, &args)
		return plain(args), err
	case noderesources.FitName:
		args := noderesources.FitArgs{}
		err := framework.DecodeInto(raw, &args)
		return plain(args), err
	case podtopologyspread.Name:
		args := podtopologyspread.Args{}
		err := framework.DecodeInto(raw, &args)
		// There are no default constraints but those in the arguments.
		return map[string]any{"defaultConstraints": plain(args.DefaultConstraints), "defaultingType": "List"}, err
	case serviceaffinity.Name:
		args := serviceaffinity.Args{}
		err := framework.DecodeInto(raw, &args)
		return plain(args), err
	case noderesources.RequestedToCapacityRatioName:
		args := config.RequestedToCapacityRatioArguments{}
		err := framework.DecodeInto(raw, &args)
		for i := range args.Resources {
			if args.Resources[i].Weight == 0 {
				args.Resources[i].Weight = 1
			}
		}
		if len(args.Resources) == 0 {
			args.Resources = cpuAndMemory
		}
		return plain(args), err
	case noderesources.LeastAllocatedName, noderesources.MostAllocatedName, noderesources.BalancedAllocationName:
		return map[string]any{"resources": plain(cpuAndMemory)}, nil
	case volumebinding.Name:
		return map[string]any{"bindTimeoutSeconds": cfg.BindTimeoutSeconds}, nil
	}
	return nil, nil
}

// cpuAndMemory are the resources that the score plugins of resources consider.
var cpuAndMemory = []config.ResourceSpec{{Name: "cpu", Weight: 1}, {Name: "memory", Weight: 1}}

func fitConfig(ignored []string) config.PluginConfig {
	return frameworkplugins.NewPluginConfig(noderesources.FitName, noderesources.FitArgs{IgnoredResources: ignored})
}

// exampleArgs are arguments with which a plugin can be built.
func exampleArgs(plugin string) *runtime.Unknown {
	if plugin == noderesources.RequestedToCapacityRatioName {
		return &runtime.Unknown{Raw: []byte(`{"shape":[{"utilization":0,"score":0}]}`)}
	}
	return nil
}
