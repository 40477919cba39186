//! A piecewise linear function of the utilization, as the arguments of several plugins give it (upstream's `FunctionShape`).

use loadmaster_framework::{FieldError, MAX_NODE_SCORE};
use serde::{Deserialize, Serialize};

/// A point as it is configured.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct UtilizationShapePoint {
    /// In percent.
    pub utilization: i32,
    /// In `0..=10`.
    pub score: i32,
}

/// The maximum score of a point (upstream's `MaxCustomPriorityScore`).
pub(crate) const SHAPE_SCORE_MAX: i32 = 10;

/// What is wrong with the points, with paths relative to their list.
pub(crate) fn validate_shape(shape: &[UtilizationShapePoint]) -> Vec<FieldError> {
    validate_shape_with(shape, "values must be sorted in increasing order")
}

/// The same with another text for points that are not sorted: kube-scheduler has changed it.
pub fn validate_shape_with(shape: &[UtilizationShapePoint], unsorted: &str) -> Vec<FieldError> {
    if shape.is_empty() {
        return vec![FieldError::required("", "at least one point must be specified")];
    }
    let mut errors = Vec::new();
    if let Some(at) =
        (1..shape.len()).find(|at| shape[at - 1].utilization >= shape[*at].utilization)
    {
        let path = format!("[{at}].utilization");
        errors.push(FieldError::invalid(path, shape[at].utilization, unsorted));
    }
    for (at, point) in shape.iter().enumerate() {
        for (field, value, max) in
            [("utilization", point.utilization, 100), ("score", point.score, SHAPE_SCORE_MAX)]
        {
            if !(0..=max).contains(&value) {
                let why = format!("not in valid range [0, {max}]");
                errors.push(FieldError::invalid(format!("[{at}].{field}"), value, why));
            }
        }
    }
    errors
}

/// A piecewise linear function through points of ascending utilization, constant outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape(pub Box<[ShapePoint]>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShapePoint {
    /// In percent.
    pub utilization: i64,
    /// In `0..=100`.
    pub score: i64,
}

impl Shape {
    /// Through points that [`validate_shape`] accepts.
    pub(crate) fn new(points: impl IntoIterator<Item = UtilizationShapePoint>) -> Shape {
        Shape(points.into_iter().map(ShapePoint::from).collect())
    }

    /// The score at a utilization in percent, in integers.
    pub(crate) fn at(&self, utilization: i64) -> i64 {
        let points = &self.0;
        let Some(next) = points.iter().position(|point| utilization <= point.utilization) else {
            return points.last().map_or(0, |last| last.score);
        };
        let Some(before) = next.checked_sub(1) else { return points[0].score };
        let (from, to) = (points[before], points[next]);
        let rise = (to.score - from.score) * (utilization - from.utilization);
        from.score + rise / (to.utilization - from.utilization)
    }
}

impl From<UtilizationShapePoint> for ShapePoint {
    /// Scales the score from `0..=10` to the range of plugin scores.
    fn from(point: UtilizationShapePoint) -> ShapePoint {
        let scale = MAX_NODE_SCORE / i64::from(SHAPE_SCORE_MAX);
        ShapePoint {
            utilization: i64::from(point.utilization),
            score: i64::from(point.score) * scale,
        }
    }
}
