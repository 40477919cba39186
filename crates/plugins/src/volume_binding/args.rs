//! The arguments: complete, valid, decoded.

use std::time::Duration;

use loadmaster_framework::plugin_args::{decode_given_args, decode_json_value};
use loadmaster_framework::{FeatureGates, FieldError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::score::VolumeCapacityScorer;
use crate::utilization_shape::{SHAPE_SCORE_MAX, Shape, UtilizationShapePoint, validate_shape};

/// Upstream's default for `bindTimeoutSeconds`.
const BIND_TIMEOUT_SECONDS: i64 = 600;

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Args {
    bind_timeout_seconds: Option<i64>,
    shape: Option<Vec<UtilizationShapePoint>>,
}

/// A point as upstream's message about an unexpected shape prints it.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct PrintedPoint {
    utilization: i32,
    score: i32,
}

pub(super) fn complete_args(given: &Value, gates: &FeatureGates) -> Result<Value, Vec<FieldError>> {
    let args: Args = decode_given_args(given)?;
    let mut errors = Vec::new();
    let seconds = args.bind_timeout_seconds.unwrap_or(BIND_TIMEOUT_SECONDS);
    if seconds < 0 {
        let expected = "invalid BindTimeoutSeconds, should not be a negative value";
        errors.push(FieldError::invalid("bindTimeoutSeconds", seconds, expected));
    }
    let mut complete = json!({"bindTimeoutSeconds": seconds});
    if gates.storage_capacity_scoring {
        let default = vec![
            UtilizationShapePoint { utilization: 0, score: SHAPE_SCORE_MAX },
            UtilizationShapePoint { utilization: 100, score: 0 },
        ];
        let shape = args.shape.filter(|shape| !shape.is_empty()).unwrap_or(default);
        let found = validate_shape(&shape).into_iter();
        errors.extend(found.map(|error| error.with_path_prefix("shape")));
        complete["shape"] = json!(shape);
    } else if let Some(shape) = args.shape {
        let printed = shape
            .iter()
            .map(|point| PrintedPoint { utilization: point.utilization, score: point.score });
        let printed: Vec<PrintedPoint> = printed.collect();
        let expected = "unexpected field `shape`, remove it or turn on the feature gate StorageCapacityScoring";
        let printed = serde_json::to_string(&printed).unwrap_or_default();
        errors.push(FieldError::invalid("shape", printed, expected));
    }
    if errors.is_empty() { Ok(complete) } else { Err(errors) }
}

impl Args {
    pub fn decode(given: &Value) -> Result<Args, FieldError> {
        decode_json_value(given)
    }

    pub fn bind_timeout(&self) -> Duration {
        let seconds = self.bind_timeout_seconds.unwrap_or(BIND_TIMEOUT_SECONDS);
        Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
    }

    /// The scorer, with the gate StorageCapacityScoring.
    pub fn scorer(self, gates: &FeatureGates) -> Option<VolumeCapacityScorer> {
        let shape = Shape::new(self.shape.unwrap_or_default());
        gates.storage_capacity_scoring.then_some(VolumeCapacityScorer { shape })
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    #[track_caller]
    fn check(scoring: bool, given: Value, want: &Expect) {
        let gates = FeatureGates { storage_capacity_scoring: scoring, ..FeatureGates::default() };
        want.assert_eq(&match complete_args(&given, &gates) {
            Ok(args) => args.to_string(),
            Err(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
        });
    }

    #[test]
    fn timeout() {
        check(false, json!({}), &expect![[r#"{"bindTimeoutSeconds":600}"#]]);
        check(
            false,
            json!({"bindTimeoutSeconds": 0, "shape": null}),
            &expect![[r#"{"bindTimeoutSeconds":0}"#]],
        );
        check(
            false,
            json!({"timeout": 1}),
            &expect!["timeout: unknown field `timeout`, expected `bindTimeoutSeconds` or `shape`"],
        );
    }

    #[test]
    fn shape_without_the_gate() {
        check(
            false,
            json!({"bindTimeoutSeconds": -1, "shape": [{"utilization": 0, "score": 10}]}),
            &expect![[r#"
                bindTimeoutSeconds: Invalid value: -1: invalid BindTimeoutSeconds, should not be a negative value
                shape: Invalid value: [{"Utilization":0,"Score":10}]: unexpected field `shape`, remove it or turn on the feature gate StorageCapacityScoring"#]],
        );
    }

    #[test]
    fn shape_with_the_gate() {
        let default = expect![[
            r#"{"bindTimeoutSeconds":600,"shape":[{"score":10,"utilization":0},{"score":0,"utilization":100}]}"#
        ]];
        check(true, json!({}), &default);
        check(true, json!({"shape": []}), &default);
        let shape = json!([{"utilization": 50, "score": 11}, {"utilization": 50, "score": 1}]);
        check(
            true,
            json!({"shape": shape}),
            &expect![[r#"
                shape[1].utilization: Invalid value: 50: values must be sorted in increasing order
                shape[0].score: Invalid value: 11: not in valid range [0, 10]"#]],
        );
    }
}
