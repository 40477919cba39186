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
    ("SchedulingGates", ExtensionPointSet::of(&[PreEnqueue])),
    ("PrioritySort", ExtensionPointSet::of(&[QueueSort])),
    ("NodeUnschedulable", ExtensionPointSet::of(&[Filter])),
    ("NodeName", ExtensionPointSet::of(&[Filter])),
    ("TaintToleration", ExtensionPointSet::of(&[Filter, PreScore, Score])),
    ("NodeAffinity", ExtensionPointSet::of(&[PreFilter, Filter, PreScore, Score])),
    ("NodePorts", ExtensionPointSet::of(&[PreFilter, Filter])),
    (
        "NodeResourcesFit",
        ExtensionPointSet::of(&[PreFilter, Filter, PreScore, Score, PlacementScore]),
    ),
    ("VolumeRestrictions", ExtensionPointSet::of(&[PreFilter, Filter])),
    ("NodeVolumeLimits", ExtensionPointSet::of(&[PreFilter, Filter])),
    (
        "VolumeBinding",
        ExtensionPointSet::of(&[PreFilter, Filter, PreScore, Score, Reserve, PreBind]),
    ),
    ("VolumeZone", ExtensionPointSet::of(&[PreFilter, Filter])),
    ("PodTopologySpread", ExtensionPointSet::of(&[PreFilter, Filter, PreScore, Score])),
    ("InterPodAffinity", ExtensionPointSet::of(&[PreFilter, Filter, PreScore, Score])),
    (
        "DynamicResources",
        ExtensionPointSet::of(&[
            PreEnqueue, PreFilter, Filter, PostFilter, Score, Reserve, PreBind,
        ]),
    ),
    ("DefaultPreemption", ExtensionPointSet::of(&[PreEnqueue, PostFilter])),
    ("NodeResourcesBalancedAllocation", ExtensionPointSet::of(&[PreScore, Score])),
    ("ImageLocality", ExtensionPointSet::of(&[Score])),
    ("DefaultBinder", ExtensionPointSet::of(&[Bind])),
    ("NodeDeclaredFeatures", ExtensionPointSet::of(&[PreFilter, Filter])),
    ("GangScheduling", ExtensionPointSet::of(&[PreEnqueue, Permit])),
    ("TopologyPlacementGenerator", ExtensionPointSet::of(&[PlacementGenerate])),
    ("PodGroupPodsCount", ExtensionPointSet::of(&[PlacementScore])),
];

/// The extension points of the in-tree plugin with this name; `None` if kube-scheduler has no such plugin.
pub fn extension_points(name: &str) -> Option<ExtensionPointSet> {
    PLUGINS.iter().find(|(known, _)| *known == name).map(|(_, points)| *points)
}

/// The names of all in-tree plugins, the default plugins first.
pub fn names() -> impl Iterator<Item = &'static str> {
    PLUGINS.iter().map(|(name, _)| *name)
}
