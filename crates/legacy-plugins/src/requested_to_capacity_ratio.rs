//! RequestedToCapacityRatio: scores nodes by a piecewise linear function of their utilization.
//!
//! | | |
//! | --- | --- |
//! | extension points | Score |
//! | woken by | no event: it rejects no pod |
//! | upstream | `plugins/noderesources/requested_to_capacity_ratio.go`, 1.22 |
//! | deviations | the CPU of a pod's overhead counts in full; upstream counts a core of it as a milli-CPU |
//! | cost | a division per resource and node |
//!
//! The score is the mean of `shape(requested * 100 / allocatable)`, by the weights of the resources and rounded, over the resources for
//! which it is above 0.

use loadmaster_api::meta::nullable;
use loadmaster_framework::plugin_args::{self, PluginArgs};
use loadmaster_framework::{ExtensionPoints, FieldError, PluginDef, PluginError};
use loadmaster_plugins::node_resources::allocation_score::{
    AllocationFormula, register_allocation_score,
};
use loadmaster_plugins::node_resources::args::{self, ResourceSpec};
use loadmaster_plugins::utilization_shape::{UtilizationShapePoint, validate_shape_with};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::resource_args::{check_weights, default_resources, with_last_weights};

pub const NAME: &str = "RequestedToCapacityRatio";

pub const DEF: PluginDef =
    PluginDef { name: NAME, build, args: Some(plugin_args::default_and_validate_args::<Args>) };

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Args {
    #[serde(deserialize_with = "nullable")]
    shape: Vec<UtilizationShapePoint>,
    #[serde(deserialize_with = "complete_resources")]
    resources: Vec<ResourceSpec>,
}

impl Default for Args {
    fn default() -> Self {
        Args { shape: Vec::new(), resources: default_resources() }
    }
}

/// CPU and memory if the list is empty, and 1 for a weight of 0 (upstream's `SetDefaults_RequestedToCapacityRatioArgs`).
fn complete_resources<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<ResourceSpec>, D::Error> {
    let mut resources: Vec<ResourceSpec> = nullable(deserializer)?;
    args::complete(&mut resources);
    Ok(resources)
}

impl PluginArgs for Args {
    /// Upstream's `ValidateRequestedToCapacityRatioArgs`. Unlike those of other plugins, the weights have no upper limit.
    fn validate(&self) -> Vec<FieldError> {
        let unsorted = "utilization values must be sorted in increasing order";
        let of_shape = validate_shape_with(&self.shape, unsorted).into_iter();
        let mut errors: Vec<FieldError> =
            of_shape.map(|error| error.with_path_prefix("shape")).collect();
        errors.extend(check_weights(&self.resources, 1..=i64::MAX, "[1, inf)"));
        errors
    }
}

fn build(points: &mut ExtensionPoints, args: &Value) -> Result<(), PluginError> {
    let args: Args = plugin_args::decode_plugin_args(NAME, args)?;
    let formula = AllocationFormula::RequestedToCapacityRatio(args.shape);
    register_allocation_score(points, formula, &with_last_weights(args.resources));
    Ok(())
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use loadmaster_framework::FeatureGates;
    use loadmaster_framework::testkit::{PluginTestBench, node, pod};
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check_args(given: Value, want: &Expect) {
        let complete = DEF.args.unwrap();
        want.assert_eq(&match complete(&given, &FeatureGates::default()) {
            Ok(args) => args.to_string(),
            Err(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
        });
    }

    #[test]
    fn args() {
        check_args(
            json!({}),
            &expect!["shape: Required value: at least one point must be specified"],
        );
        let up = || json!([{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]);
        check_args(
            json!({"shape": up(), "resources": [{"name": "cpu", "weight": 0}, {"name": "memory", "weight": 1000}]}),
            &expect![[
                r#"{"resources":[{"name":"cpu","weight":1},{"name":"memory","weight":1000}],"shape":[{"score":0,"utilization":0},{"score":10,"utilization":100}]}"#
            ]],
        );
        check_args(
            json!({"shape": up()}),
            &expect![[
                r#"{"resources":[{"name":"cpu","weight":1},{"name":"memory","weight":1}],"shape":[{"score":0,"utilization":0},{"score":10,"utilization":100}]}"#
            ]],
        );
        check_args(
            json!({"shape": [{"utilization": 50, "score": 11}, {"utilization": 50, "score": -1}, {"utilization": 101}],
                "resources": [{"name": "cpu", "weight": -1}]}),
            &expect![[r#"
                shape[1].utilization: Invalid value: 50: utilization values must be sorted in increasing order
                shape[0].score: Invalid value: 11: not in valid range [0, 10]
                shape[1].score: Invalid value: -1: not in valid range [0, 10]
                shape[2].utilization: Invalid value: 101: not in valid range [0, 100]
                resources[0].weight: Invalid value: -1: resource weight of cpu not in valid range [1, inf)"#]],
        );
        check_args(
            json!({"shape": [{"x": 1}]}),
            &expect!["shape[0].x: unknown field `x`, expected `utilization` or `score`"],
        );
    }

    /// Node "a" with 4 CPUs and 10 Gi, of which pods request 3 and 5 Gi; node "b" with 4 CPUs, 10 Gi and 4 GPUs without pods.
    #[track_caller]
    fn check(args: Value, incoming: [&str; 3], want: [i64; 2]) {
        let mut bench = PluginTestBench::new(&DEF, args).unwrap();
        let small = |name: &str| node(name).allocatable("cpu", "4").allocatable("memory", "10Gi");
        bench.node(small("a")).unwrap();
        bench.node(small("b").allocatable("nvidia.com/gpu", "4")).unwrap();
        let old = pod("old").request("cpu", "3").request("memory", "5Gi");
        bench.add_assigned_pod("a", old).unwrap();
        let [cpu, memory, gpus] = incoming;
        let incoming = pod("web").request("cpu", cpu).request("memory", memory);
        let incoming = incoming.request("nvidia.com/gpu", gpus);
        let scores = bench.score(incoming.clone()).unwrap();
        assert_eq!(scores.into_iter().map(|(_, score)| score).collect::<Vec<_>>(), want);
        assert!(bench.check_key(incoming).unwrap().keeps("ordinal label"));
    }

    #[test]
    fn the_score_is_read_from_the_shape() {
        let up = || json!([{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]);
        let down = json!([{"utilization": 0, "score": 10}, {"utilization": 100, "score": 0}]);
        check(json!({"shape": up()}), ["1", "1Gi", "0"], [80, 18]);
        // A score of 0 does not count: only memory does on a.
        check(json!({"shape": down}), ["1", "1Gi", "0"], [40, 83]);
        check(json!({"shape": [{"utilization": 50, "score": 3}]}), ["1", "1Gi", "0"], [30, 30]);
        let gpu_first = json!({"shape": up(), "resources": [
            {"name": "nvidia.com/gpu", "weight": 3}, {"name": "cpu", "weight": 1}]});
        check(gpu_first.clone(), ["1", "1Gi", "2"], [100, 44]);
        check(gpu_first, ["1", "1Gi", "0"], [100, 25]);
        // More than there is counts as all.
        check(json!({"shape": up()}), ["9", "10Gi", "0"], [100, 100]);
    }

    #[test]
    fn weights_that_overflow_wrap() {
        let up = json!([{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]);
        let huge = |name: &str| json!({"name": name, "weight": i64::MAX});
        let args = json!({"shape": up, "resources": [huge("cpu"), huge("memory")]});
        let mut bench = PluginTestBench::new(&DEF, args).unwrap();
        bench.node(node("a")).unwrap();
        bench.score(pod("web").request("cpu", "1")).unwrap();
    }
}
