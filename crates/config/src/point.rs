//! The extension points a configuration can name, and which of them a plugin entered itself at.

use std::fmt;

use loadmaster_framework::Points;

/// An extension point, in the order of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
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

impl Point {
    /// Every point.
    pub const ALL: [Point; 14] = [
        Point::PreEnqueue,
        Point::QueueSort,
        Point::PreFilter,
        Point::Filter,
        Point::PostFilter,
        Point::PreScore,
        Point::Score,
        Point::Reserve,
        Point::Permit,
        Point::PreBind,
        Point::Bind,
        Point::PostBind,
        Point::PlacementGenerate,
        Point::PlacementScore,
    ];

    /// The field of `plugins` in a configuration file.
    pub const fn field(self) -> &'static str {
        match self {
            Point::PreEnqueue => "preEnqueue",
            Point::QueueSort => "queueSort",
            Point::PreFilter => "preFilter",
            Point::Filter => "filter",
            Point::PostFilter => "postFilter",
            Point::PreScore => "preScore",
            Point::Score => "score",
            Point::Reserve => "reserve",
            Point::Permit => "permit",
            Point::PreBind => "preBind",
            Point::Bind => "bind",
            Point::PostBind => "postBind",
            Point::PlacementGenerate => "placementGenerate",
            Point::PlacementScore => "placementScore",
        }
    }

    /// Whether plugins have a weight here.
    pub const fn is_weighted(self) -> bool {
        matches!(self, Point::Score | Point::PlacementScore)
    }
}

/// Upstream's name of the interface, as its error messages say it: `FilterPlugin`.
impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}Plugin")
    }
}

/// A set of extension points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PointSet(u16);

impl PointSet {
    /// These points.
    pub const fn of(points: &[Point]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < points.len() {
            bits |= 1 << points[i] as u16;
            i += 1;
        }
        PointSet(bits)
    }

    /// Where a plugin entered itself when it was built.
    pub fn entered(points: &Points) -> Self {
        let at = [
            (Point::PreEnqueue, points.pre_enqueue.is_some()),
            (Point::QueueSort, points.queue_sort.is_some()),
            (Point::PreFilter, points.pre_filter.is_some()),
            (Point::Filter, points.filter.is_some()),
            (Point::PostFilter, points.post_filter.is_some()),
            (Point::PreScore, points.pre_score.is_some()),
            (Point::Score, points.score.is_some()),
            (Point::Reserve, points.reserve.is_some()),
            (Point::Permit, points.permit.is_some()),
            (Point::PreBind, points.pre_bind.is_some()),
            (Point::Bind, points.bind.is_some()),
            (Point::PostBind, points.post_bind.is_some()),
        ];
        at.into_iter()
            .filter(|(_, entered)| *entered)
            .fold(PointSet::default(), |set, (point, _)| set.with(point))
    }

    /// With one more.
    #[must_use]
    pub const fn with(self, point: Point) -> Self {
        PointSet(self.0 | 1 << point as u16)
    }

    /// The points of both.
    #[must_use]
    pub const fn or(self, other: PointSet) -> Self {
        PointSet(self.0 | other.0)
    }

    /// Whether the point is in it.
    pub const fn contains(self, point: Point) -> bool {
        self.0 & 1 << point as u16 != 0
    }
}
