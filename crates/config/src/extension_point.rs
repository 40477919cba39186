//! The extension points of a configuration, and the set of those that a plugin implements.

use std::fmt;

use loadmaster_framework::ExtensionPoints;

/// An extension point, in the order of `plugins` in a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExtensionPoint {
    PreEnqueue,
    QueueSort,
    PreFilter,
    Filter,
    PostFilter,
    PreScore,
    Score,
    Reserve,
    Permit,
    PreBind,
    Bind,
    PostBind,
    PlacementGenerate,
    PlacementScore,
}

impl ExtensionPoint {
    /// Every extension point.
    pub const ALL: [ExtensionPoint; 14] = [
        ExtensionPoint::PreEnqueue,
        ExtensionPoint::QueueSort,
        ExtensionPoint::PreFilter,
        ExtensionPoint::Filter,
        ExtensionPoint::PostFilter,
        ExtensionPoint::PreScore,
        ExtensionPoint::Score,
        ExtensionPoint::Reserve,
        ExtensionPoint::Permit,
        ExtensionPoint::PreBind,
        ExtensionPoint::Bind,
        ExtensionPoint::PostBind,
        ExtensionPoint::PlacementGenerate,
        ExtensionPoint::PlacementScore,
    ];

    /// The field of `plugins` in a configuration file.
    pub const fn field_name(self) -> &'static str {
        match self {
            ExtensionPoint::PreEnqueue => "preEnqueue",
            ExtensionPoint::QueueSort => "queueSort",
            ExtensionPoint::PreFilter => "preFilter",
            ExtensionPoint::Filter => "filter",
            ExtensionPoint::PostFilter => "postFilter",
            ExtensionPoint::PreScore => "preScore",
            ExtensionPoint::Score => "score",
            ExtensionPoint::Reserve => "reserve",
            ExtensionPoint::Permit => "permit",
            ExtensionPoint::PreBind => "preBind",
            ExtensionPoint::Bind => "bind",
            ExtensionPoint::PostBind => "postBind",
            ExtensionPoint::PlacementGenerate => "placementGenerate",
            ExtensionPoint::PlacementScore => "placementScore",
        }
    }

    /// Whether plugins have a weight at this extension point.
    pub const fn is_weighted(self) -> bool {
        matches!(self, ExtensionPoint::Score | ExtensionPoint::PlacementScore)
    }
}

/// Upstream's name of the interface, as in its error messages: `FilterPlugin`.
impl fmt::Display for ExtensionPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}Plugin")
    }
}

/// A set of extension points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtensionPointSet(u16);

impl ExtensionPointSet {
    /// The set of these extension points.
    pub const fn from_points(points: &[ExtensionPoint]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < points.len() {
            bits |= 1 << points[i] as u16;
            i += 1;
        }
        ExtensionPointSet(bits)
    }

    /// The extension points that a plugin has registered for when it was built.
    pub fn implemented_by(points: &ExtensionPoints) -> Self {
        let at = [
            (ExtensionPoint::PreEnqueue, points.pre_enqueue.is_some()),
            (ExtensionPoint::QueueSort, points.queue_sort.is_some()),
            (ExtensionPoint::PreFilter, points.pre_filter.is_some()),
            (ExtensionPoint::Filter, points.filter.is_some()),
            (ExtensionPoint::PostFilter, points.post_filter.is_some()),
            (ExtensionPoint::PreScore, points.pre_score.is_some()),
            (ExtensionPoint::Score, points.score.is_some()),
            (ExtensionPoint::Reserve, points.reserve.is_some()),
            (ExtensionPoint::Permit, points.permit.is_some()),
            (ExtensionPoint::PreBind, points.pre_bind.is_some()),
            (ExtensionPoint::Bind, points.bind.is_some()),
            (ExtensionPoint::PostBind, points.post_bind.is_some()),
        ];
        at.into_iter()
            .filter(|(_, entered)| *entered)
            .fold(ExtensionPointSet::default(), |set, (point, _)| set.with(point))
    }

    /// The set with one more extension point.
    #[must_use]
    pub const fn with(self, point: ExtensionPoint) -> Self {
        ExtensionPointSet(self.0 | 1 << point as u16)
    }

    /// The union of both sets.
    #[must_use]
    pub const fn union(self, other: ExtensionPointSet) -> Self {
        ExtensionPointSet(self.0 | other.0)
    }

    /// Whether the extension point is in the set.
    pub const fn contains(self, point: ExtensionPoint) -> bool {
        self.0 & 1 << point as u16 != 0
    }
}
