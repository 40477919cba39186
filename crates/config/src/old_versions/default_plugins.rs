//! The default plugins of kube-scheduler in the time of a configuration version, and what has been added since.
//!
//! From upstream's `pkg/scheduler/algorithmprovider/registry.go` of 1.18 (v1alpha1, v1alpha2) and
//! `pkg/scheduler/apis/config/v1beta1/default_plugins.go` and `v1beta2/default_plugins.go` of 1.22.

use crate::default_values::GATED_PLUGINS;
use crate::extension_point::ExtensionPoint::{
    self, Bind, Filter, PostFilter, PreBind, PreEnqueue, PreFilter, PreScore, QueueSort, Reserve,
    Score,
};
use crate::gates::AllFeatureGates;
use crate::v1::Plugin;
use crate::version::ConfigVersion;

/// Plugins of an extension point with their weights; 0 where there is none.
type PluginsAt = (ExtensionPoint, &'static [(&'static str, i32)]);

const V1ALPHA: &[PluginsAt] = &[
    (QueueSort, &[("PrioritySort", 0)]),
    (
        PreFilter,
        &[
            ("NodeResourcesFit", 0),
            ("NodePorts", 0),
            ("InterPodAffinity", 0),
            ("PodTopologySpread", 0),
        ],
    ),
    (
        Filter,
        &[
            ("NodeUnschedulable", 0),
            ("NodeResourcesFit", 0),
            ("NodeName", 0),
            ("NodePorts", 0),
            ("NodeAffinity", 0),
            ("VolumeRestrictions", 0),
            ("TaintToleration", 0),
            ("EBSLimits", 0),
            ("GCEPDLimits", 0),
            ("NodeVolumeLimits", 0),
            ("AzureDiskLimits", 0),
            ("VolumeBinding", 0),
            ("VolumeZone", 0),
            ("InterPodAffinity", 0),
            ("PodTopologySpread", 0),
        ],
    ),
    // Preemption was not a plugin yet.
    (PostFilter, &[("DefaultPreemption", 0)]),
    (
        PreScore,
        &[
            ("InterPodAffinity", 0),
            ("SelectorSpread", 0),
            ("TaintToleration", 0),
            ("PodTopologySpread", 0),
        ],
    ),
    (
        Score,
        &[
            ("NodeResourcesBalancedAllocation", 1),
            ("ImageLocality", 1),
            ("InterPodAffinity", 1),
            ("NodeResourcesLeastAllocated", 1),
            ("NodeAffinity", 1),
            ("NodePreferAvoidPods", 10000),
            ("SelectorSpread", 1),
            ("TaintToleration", 1),
            ("PodTopologySpread", 1),
        ],
    ),
    (Bind, &[("DefaultBinder", 0)]),
];

const V1BETA: &[PluginsAt] = &[
    (QueueSort, &[("PrioritySort", 0)]),
    (
        PreFilter,
        &[
            ("NodeResourcesFit", 0),
            ("NodePorts", 0),
            ("VolumeRestrictions", 0),
            ("PodTopologySpread", 0),
            ("InterPodAffinity", 0),
            ("VolumeBinding", 0),
            ("NodeAffinity", 0),
        ],
    ),
    (
        Filter,
        &[
            ("NodeUnschedulable", 0),
            ("NodeName", 0),
            ("TaintToleration", 0),
            ("NodeAffinity", 0),
            ("NodePorts", 0),
            ("NodeResourcesFit", 0),
            ("VolumeRestrictions", 0),
            ("EBSLimits", 0),
            ("GCEPDLimits", 0),
            ("NodeVolumeLimits", 0),
            ("AzureDiskLimits", 0),
            ("VolumeBinding", 0),
            ("VolumeZone", 0),
            ("PodTopologySpread", 0),
            ("InterPodAffinity", 0),
        ],
    ),
    (PostFilter, &[("DefaultPreemption", 0)]),
    (
        PreScore,
        &[
            ("InterPodAffinity", 0),
            ("PodTopologySpread", 0),
            ("TaintToleration", 0),
            ("NodeAffinity", 0),
        ],
    ),
    (Reserve, &[("VolumeBinding", 0)]),
    (PreBind, &[("VolumeBinding", 0)]),
    (Bind, &[("DefaultBinder", 0)]),
];

const V1BETA1_SCORE: PluginsAt = (
    Score,
    &[
        ("NodeResourcesBalancedAllocation", 1),
        ("ImageLocality", 1),
        ("InterPodAffinity", 1),
        ("NodeResourcesLeastAllocated", 1),
        ("NodeAffinity", 1),
        ("NodePreferAvoidPods", 10000),
        ("PodTopologySpread", 2),
        ("TaintToleration", 1),
    ],
);

const V1BETA2_SCORE: PluginsAt = (
    Score,
    &[
        ("NodeResourcesBalancedAllocation", 1),
        ("ImageLocality", 1),
        ("InterPodAffinity", 1),
        ("NodeResourcesFit", 1),
        ("NodeAffinity", 1),
        ("PodTopologySpread", 2),
        ("TaintToleration", 1),
    ],
);

/// The default plugins at one extension point, for a version without `multiPoint`.
pub(super) fn default_plugins_at(version: ConfigVersion, point: ExtensionPoint) -> Vec<Plugin> {
    let (sets, score): (_, &[PluginsAt]) = match version {
        ConfigVersion::V1Alpha1 | ConfigVersion::V1Alpha2 => (V1ALPHA, &[]),
        ConfigVersion::V1Beta1 => (V1BETA, &[V1BETA1_SCORE]),
        _ => (V1BETA, &[V1BETA2_SCORE]),
    };
    let at = sets.iter().chain(score).find(|(known, _)| *known == point);
    let plugins = at.map_or(&[][..], |(_, plugins)| *plugins);
    plugins
        .iter()
        .map(|(name, weight)| Plugin { name: (*name).to_owned(), weight: *weight })
        .collect()
}

/// In-tree plugins that run at an extension point since a later release: (plugin, enabled at this extension point, runs at
/// this one as well). The last six were added between 1.18 and 1.22.
const ADDED_EXTENSION_POINTS: &[(&str, ExtensionPoint, ExtensionPoint)] = &[
    ("NodeResourcesFit", Score, PreScore),
    ("NodeResourcesBalancedAllocation", Score, PreScore),
    ("VolumeBinding", Score, PreScore),
    ("NodeVolumeLimits", Filter, PreFilter),
    ("VolumeZone", Filter, PreFilter),
    ("DefaultPreemption", PostFilter, PreEnqueue),
    ("VolumeRestrictions", Filter, PreFilter),
    ("NodeAffinity", Score, PreScore),
    ("NodeAffinity", Filter, PreFilter),
    ("VolumeBinding", Filter, PreFilter),
    ("VolumeBinding", Filter, Reserve),
    ("VolumeBinding", Filter, PreBind),
];

/// The number of entries of [`ADDED_EXTENSION_POINTS`] that were added after 1.22.
const N_ADDED_AFTER_1_22: usize = 6;

/// Extension points at which an in-tree plugin of a version without `multiPoint` runs since later: (plugin, enabled at this extension
/// point, runs at this one as well).
pub(crate) fn added_extension_points(
    version: ConfigVersion,
) -> &'static [(&'static str, ExtensionPoint, ExtensionPoint)] {
    if version <= ConfigVersion::V1Alpha2 {
        ADDED_EXTENSION_POINTS
    } else {
        &ADDED_EXTENSION_POINTS[..N_ADDED_AFTER_1_22]
    }
}

/// Default plugins that no version without `multiPoint` knew, and without which pods would be scheduled that must wait: pods with
/// scheduling gates, resource claims or required node features.
pub(crate) fn added_plugins(gates: &AllFeatureGates) -> Vec<&'static str> {
    let gated = GATED_PLUGINS
        .iter()
        .filter(|(gate, name, _)| *name == "NodeDeclaredFeatures" && gates.enabled(gate));
    ["SchedulingGates", "DynamicResources"]
        .into_iter()
        .chain(gated.map(|(_, name, _)| *name))
        .collect()
}
