//! NodeResourcesAllocatable: prefers nodes with little (mode `Least`) or much (mode `Most`) allocatable, whatever is requested there.
//!
//! | | |
//! | --- | --- |
//! | extension points | Score |
//! | woken by | no event: it rejects no pod |
//! | upstream | `pkg/noderesources` of scheduler-plugins 0.35 |
//! | deviations | sums that exceed 64 bits are exact, where upstream's overflow |
//! | cost | O(resources of the arguments); only changes of the node object make a node's score be computed again |

use std::collections::BTreeMap;

use loadmaster_framework::incremental::RowDependency;
use loadmaster_framework::plugin_args::{self, PluginArgs};
use loadmaster_framework::{ExtensionPoints, FieldError, NodeInfo, PluginDef, PluginError, World};
use loadmaster_stdx::CollectByInsertion as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::normalized_node_score::{self, RawNodeScore};

pub const NAME: &str = "NodeResourcesAllocatable";

pub const DEF: PluginDef =
    PluginDef { name: NAME, build, args: Some(plugin_args::default_and_validate_args::<Args>) };

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Args {
    #[serde(deserialize_with = "resources_or_default")]
    resources: Vec<ResourceSpec>,
    #[serde(deserialize_with = "mode_or_default")]
    mode: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct ResourceSpec {
    name: String,
    weight: i64,
}

const LEAST: &str = "Least";
const MOST: &str = "Most";

impl Default for Args {
    /// Upstream's `SetDefaults_NodeResourcesAllocatableArgs`.
    fn default() -> Self {
        Args { resources: default_resources(), mode: LEAST.to_owned() }
    }
}

/// A milli-CPU weighs as much as a mebibyte of memory.
fn default_resources() -> Vec<ResourceSpec> {
    let spec = |name: &str, weight| ResourceSpec { name: name.to_owned(), weight };
    vec![spec("cpu", 1 << 20), spec("memory", 1)]
}

/// An empty list is the default list.
fn resources_or_default<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<ResourceSpec>, D::Error> {
    let given = Option::<Vec<ResourceSpec>>::deserialize(deserializer)?;
    Ok(given.filter(|list| !list.is_empty()).unwrap_or_else(default_resources))
}

/// An empty mode is the default mode.
fn mode_or_default<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let given = Option::<String>::deserialize(deserializer)?;
    Ok(given.filter(|mode| !mode.is_empty()).unwrap_or_else(|| LEAST.to_owned()))
}

impl PluginArgs for Args {
    fn validate(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        for (at, ResourceSpec { name, weight }) in self.resources.iter().enumerate() {
            if *weight <= 0 {
                let text =
                    format!("resource weight of {name} should be a positive value, got :{weight}");
                let path = format!("resources[{at}].weight");
                errors.push(FieldError::invalid(path, weight, text));
            }
        }
        if ![LEAST, MOST].contains(&self.mode.as_str()) {
            let mode = format!("{:?}", self.mode);
            errors.push(FieldError::invalid("mode", mode, "invalid support ModeType"));
        }
        errors
    }
}

struct NodeResourcesAllocatable {
    /// By name; of a name that is listed twice the last one counts.
    weights: BTreeMap<String, i64>,
    prefers_least: bool,
}

fn build(points: &mut ExtensionPoints, args: &Value) -> Result<(), PluginError> {
    let args: Args = plugin_args::decode_plugin_args(NAME, args)?;
    let weights = args.resources.into_iter().map(|it| (it.name, it.weight)).collect_by_insertion();
    let plugin = NodeResourcesAllocatable { weights, prefers_least: args.mode == LEAST };
    normalized_node_score::register(points, plugin);
    Ok(())
}

impl RawNodeScore for NodeResourcesAllocatable {
    const DEPENDENCY: RowDependency = RowDependency::Node;

    /// The weighted mean of what is allocatable (milli-CPU, bytes, counts), negative if less is better; integer division.
    fn raw_score(&self, _: &World, node: NodeInfo<'_>) -> i64 {
        let amounts = self.weights.iter().map(|(name, weight)| {
            let amount = node.allocatable(name);
            let amount = if self.prefers_least { -i128::from(amount) } else { amount.into() };
            amount * i128::from(*weight)
        });
        let weights = self.weights.values().map(|weight| i128::from(*weight));
        // A mean of 64-bit numbers fits into 64 bits; the weights are positive.
        (amounts.sum::<i128>() / weights.sum::<i128>().max(1)) as i64
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use loadmaster_framework::FeatureGates;
    use loadmaster_framework::testkit::incremental_history::check_incremental_history;
    use loadmaster_framework::testkit::{PluginTestBench, node, pod};
    use loadmaster_stdx::Rng;
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
        let default = expect![[
            r#"{"mode":"Least","resources":[{"name":"cpu","weight":1048576},{"name":"memory","weight":1}]}"#
        ]];
        check_args(json!({}), &default);
        check_args(json!({"resources": [], "mode": ""}), &default);
        check_args(json!({"resources": null, "mode": null}), &default);
        check_args(
            json!({"resources": [{"name": "cpu"}, {"name": "memory", "weight": -1}], "mode": "Foo"}),
            &expect![[r#"
                resources[0].weight: Invalid value: 0: resource weight of cpu should be a positive value, got :0
                resources[1].weight: Invalid value: -1: resource weight of memory should be a positive value, got :-1
                mode: Invalid value: "Foo": invalid support ModeType"#]],
        );
        check_args(
            json!({"Mode": "Most"}),
            &expect!["Mode: unknown field `Mode`, expected `resources` or `mode`"],
        );
    }

    /// CPU, memory and GPUs by node.
    #[track_caller]
    fn check(args: Value, nodes: &[[&str; 3]], want: &[i64]) {
        let mut bench = PluginTestBench::new(&DEF, args).unwrap();
        for (at, [cpu, memory, gpus]) in nodes.iter().enumerate() {
            let name = format!("n{at}");
            let node = node(&name).allocatable("cpu", cpu).allocatable("memory", memory);
            bench.node(node.allocatable("example.com/gpu", gpus)).unwrap();
            // Requests and running pods make no difference.
            bench.add_assigned_pod(&name, pod(&format!("p{at}")).request("cpu", "1")).unwrap();
        }
        let incoming = pod("new").request("memory", "1Gi");
        let scores = bench.score(incoming.clone()).unwrap();
        assert_eq!(scores.into_iter().map(|(_, score)| score).collect::<Vec<_>>(), want);
        let incoming = bench.parse_pod(incoming).unwrap();
        bench.check_incremental(&incoming).unwrap();
    }

    #[test]
    fn prefers_small_or_large_nodes() {
        let nodes = [["2", "4Gi", "0"], ["4", "8Gi", "8"], ["8", "16Gi", "1"]];
        check(json!({}), &nodes, &[100, 66, 0]);
        check(json!({"mode": "Most"}), &nodes, &[0, 33, 100]);
        check(json!({}), &nodes[..1], &[0]);
        let of = |name: &str| json!({"mode": "Most", "resources": [{"name": name, "weight": 3}]});
        check(of("example.com/gpu"), &nodes, &[0, 100, 12]);
        // Not counted, as upstream: no amount of it is kept.
        check(of("pods"), &nodes, &[0, 0, 0]);
        // The last weight of a name counts.
        let twice = json!({"mode": "Most", "resources": [
            {"name": "example.com/gpu", "weight": 1i64 << 40}, {"name": "cpu", "weight": 1},
            {"name": "example.com/gpu", "weight": 1}]});
        check(twice, &nodes, &[0, 33, 100]);
        // No overflow.
        let huge = json!({"mode": "Most", "resources": [{"name": "memory", "weight": i64::MAX}]});
        check(huge, &nodes, &[0, 33, 100]);
    }

    #[test]
    fn cached_evaluations_see_changed_nodes() {
        let mut bench = PluginTestBench::new(&DEF, json!({"mode": "Most"})).unwrap();
        let change = |bench: &mut PluginTestBench, rng: &mut Rng| {
            let on = *rng.pick(&["a", "b", "c"]);
            let is_there = bench.world.nodes().row(on).is_some();
            Ok(match rng.below(4) {
                0 if is_there => {
                    bench.add_assigned_pod(on, pod(&format!("p{on}")).request("cpu", "1"))?;
                    "assigned"
                }
                1 if is_there && rng.below(3) == 0 => {
                    bench.delete_node(on);
                    "deleted"
                }
                _ => {
                    let cpu = rng.below(5).to_string();
                    bench.node(node(on).allocatable("cpu", &cpu))?;
                    "updated"
                }
            })
        };
        let incoming = |_: &mut Rng| pod("new").into();
        check_incremental_history(&mut bench, &mut Rng::new(5), 1_000, incoming, change).unwrap();
    }

    #[test]
    fn the_key_is_the_same_for_all_pods() {
        let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
        bench.node(node("a")).unwrap();
        assert!(bench.check_key(pod("web")).unwrap().keeps("ordinal label"));
    }
}
