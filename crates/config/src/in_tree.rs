//! kube-scheduler's own plugins and the extension points at which each of them runs in 1.36.
//!
//! A configuration that kube-scheduler accepts is accepted whatever part of a plugin is built here,
//! and one it refuses is refused: so this table, not what was built, says whether an in-tree plugin
//! may be enabled at a point.

use crate::point::{Point, PointSet};
use Point::{
    Bind, Filter, Permit, PlacementGenerate, PlacementScore, PostFilter, PreBind, PreEnqueue,
    PreFilter, PreScore, QueueSort, Reserve, Score,
};

const PLUGINS: &[(&str, PointSet)] = &[
    ("SchedulingGates", PointSet::of(&[PreEnqueue])),
    ("PrioritySort", PointSet::of(&[QueueSort])),
    ("NodeUnschedulable", PointSet::of(&[Filter])),
    ("NodeName", PointSet::of(&[Filter])),
    ("TaintToleration", PointSet::of(&[Filter, PreScore, Score])),
    ("NodeAffinity", PointSet::of(&[PreFilter, Filter, PreScore, Score])),
    ("NodePorts", PointSet::of(&[PreFilter, Filter])),
    ("NodeResourcesFit", PointSet::of(&[PreFilter, Filter, PreScore, Score, PlacementScore])),
    ("VolumeRestrictions", PointSet::of(&[PreFilter, Filter])),
    ("NodeVolumeLimits", PointSet::of(&[PreFilter, Filter])),
    ("VolumeBinding", PointSet::of(&[PreFilter, Filter, PreScore, Score, Reserve, PreBind])),
    ("VolumeZone", PointSet::of(&[PreFilter, Filter])),
    ("PodTopologySpread", PointSet::of(&[PreFilter, Filter, PreScore, Score])),
    ("InterPodAffinity", PointSet::of(&[PreFilter, Filter, PreScore, Score])),
    (
        "DynamicResources",
        PointSet::of(&[PreEnqueue, PreFilter, Filter, PostFilter, Score, Reserve, PreBind]),
    ),
    ("DefaultPreemption", PointSet::of(&[PreEnqueue, PostFilter])),
    ("NodeResourcesBalancedAllocation", PointSet::of(&[PreScore, Score])),
    ("ImageLocality", PointSet::of(&[Score])),
    ("DefaultBinder", PointSet::of(&[Bind])),
    ("NodeDeclaredFeatures", PointSet::of(&[PreFilter, Filter])),
    ("GangScheduling", PointSet::of(&[PreEnqueue, Permit])),
    ("TopologyPlacementGenerator", PointSet::of(&[PlacementGenerate])),
    ("PodGroupPodsCount", PointSet::of(&[PlacementScore])),
];

/// Where the in-tree plugin of this name runs; `None` for a name that kube-scheduler does not have.
pub fn points(name: &str) -> Option<PointSet> {
    PLUGINS.iter().find(|(known, _)| *known == name).map(|(_, points)| *points)
}

/// The names, the default plugins first.
pub fn names() -> impl Iterator<Item = &'static str> {
    PLUGINS.iter().map(|(name, _)| *name)
}
