//! kube-scheduler's in-tree plugins, and the extension points that each of them implements in 1.36.
//!
//! A configuration is accepted if kube-scheduler accepts it, even if a plugin is implemented only in
//! part here. So this table, not the plugin itself, decides whether an in-tree plugin may be enabled at
//! an extension point.

use crate::extension_point::{ExtensionPoint, ExtensionPointSet};
use ExtensionPoint::{
    Bind, Filter, Permit, PlacementGenerate, PlacementScore, PostFilter, PreBind, PreEnqueue,
    PreFilter, PreScore, QueueSort, Reserve, Score,
};

const PLUGINS: &[(&str, ExtensionPointSet)] = &[
    ("SchedulingGates", ExtensionPointSet::from_points(&[PreEnqueue])),
    ("PrioritySort", ExtensionPointSet::from_points(&[QueueSort])),
    ("NodeUnschedulable", ExtensionPointSet::from_points(&[Filter])),
    ("NodeName", ExtensionPointSet::from_points(&[Filter])),
    ("TaintToleration", ExtensionPointSet::from_points(&[Filter, PreScore, Score])),
    ("NodeAffinity", ExtensionPointSet::from_points(&[PreFilter, Filter, PreScore, Score])),
    ("NodePorts", ExtensionPointSet::from_points(&[PreFilter, Filter])),
    (
        "NodeResourcesFit",
        ExtensionPointSet::from_points(&[PreFilter, Filter, PreScore, Score, PlacementScore]),
    ),
    ("VolumeRestrictions", ExtensionPointSet::from_points(&[PreFilter, Filter])),
    ("NodeVolumeLimits", ExtensionPointSet::from_points(&[PreFilter, Filter])),
    (
        "VolumeBinding",
        ExtensionPointSet::from_points(&[PreFilter, Filter, PreScore, Score, Reserve, PreBind]),
    ),
    ("VolumeZone", ExtensionPointSet::from_points(&[PreFilter, Filter])),
    ("PodTopologySpread", ExtensionPointSet::from_points(&[PreFilter, Filter, PreScore, Score])),
    ("InterPodAffinity", ExtensionPointSet::from_points(&[PreFilter, Filter, PreScore, Score])),
    (
        "DynamicResources",
        ExtensionPointSet::from_points(&[
            PreEnqueue, PreFilter, Filter, PostFilter, Score, Reserve, PreBind,
        ]),
    ),
    ("DefaultPreemption", ExtensionPointSet::from_points(&[PreEnqueue, PostFilter])),
    ("NodeResourcesBalancedAllocation", ExtensionPointSet::from_points(&[PreScore, Score])),
    ("ImageLocality", ExtensionPointSet::from_points(&[Score])),
    ("DefaultBinder", ExtensionPointSet::from_points(&[Bind])),
    ("NodeDeclaredFeatures", ExtensionPointSet::from_points(&[PreFilter, Filter])),
    ("GangScheduling", ExtensionPointSet::from_points(&[PreEnqueue, Permit])),
    ("TopologyPlacementGenerator", ExtensionPointSet::from_points(&[PlacementGenerate])),
    ("PodGroupPodsCount", ExtensionPointSet::from_points(&[PlacementScore])),
];

/// The extension points of the in-tree plugin with this name; `None` if kube-scheduler has no such plugin.
pub fn in_tree_extension_points(name: &str) -> Option<ExtensionPointSet> {
    PLUGINS.iter().find(|(known, _)| *known == name).map(|(_, points)| *points)
}

/// The names of all in-tree plugins, the default plugins first.
pub fn in_tree_plugin_names() -> impl Iterator<Item = &'static str> {
    PLUGINS.iter().map(|(name, _)| *name)
}

/// Plugins that v1beta2 and later versions do not have.
pub(crate) const REMOVED_IN_V1BETA2: &[&str] = &[
    "NodeLabel",
    "ServiceAffinity",
    "NodePreferAvoidPods",
    "NodeResourcesLeastAllocated",
    "NodeResourcesMostAllocated",
    "RequestedToCapacityRatio",
];

/// The names of all plugins of older versions that v1 does not have.
pub(crate) fn old_plugin_names() -> impl Iterator<Item = &'static str> {
    REMOVED_IN_V1BETA2.iter().copied().chain(["SelectorSpread"])
}
