//! NodeResourcesBalancedAllocation: prefers nodes on which the pod evens out how much of each resource is used.
//!
//! | | |
//! | --- | --- |
//! | extension points | PreScore, Score |
//! | woken by | nothing: it does not filter |
//! | upstream | `plugins/noderesources/balanced_allocation.go`, 1.36 |
//! | deviations | what dynamic resource allocation provides does not count yet |
//! | cost | 4 divisions a node; over columns 3 ns a row (AVX2) |

use std::sync::Arc;

use loadmaster_api::meta::nullable;
use loadmaster_framework::args::{self, FieldError};
use loadmaster_framework::points::{Fragment, Unsignable};
use loadmaster_framework::prepare::{OutOfRange, Reads, RowPart, RowSet};
use loadmaster_framework::{
    Cx, Failure, FeatureGates, NodeInfo, NodeTable, PluginDef, PluginError, PodInfo, Points,
    PreScore, PreScored, Prepare, Prepared, Row, Run, Score, SerialCx, Sign, Slot, World,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::amounts::{Basis, Demand, Scored, scored};
use super::args::{ResourceSpec, complete, encode};
use super::formula::Formula;
use super::scorer::Scorer;

/// The plugin's name in configurations.
pub const NAME: &str = "NodeResourcesBalancedAllocation";

/// How the plugin enters a registry.
pub const DEF: PluginDef = PluginDef { name: NAME, build, args: Some(complete_args) };

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Args {
    #[serde(deserialize_with = "nullable")]
    resources: Vec<ResourceSpec>,
}

fn complete_args(given: &Value, _: &FeatureGates) -> Result<Value, Vec<FieldError>> {
    let mut args: Args = args::decode(given).map_err(|error| vec![error])?;
    complete(&mut args.resources);
    let errors = validate(&args);
    encode(&args, errors)
}

fn validate(args: &Args) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (at, ResourceSpec { name, weight }) in args.resources.iter().enumerate() {
        if args.resources[..at].iter().any(|earlier| earlier.name == *name) {
            errors.push(FieldError::duplicate(format!("resources[{at}].name"), name));
        }
        if *weight != 1 {
            errors.push(FieldError::invalid(
                format!("resources[{at}].weight"),
                weight,
                "must be 1",
            ));
        }
    }
    errors
}

struct BalancedAllocation {
    scored: Scored,
    demand: Slot<Demand>,
}

fn build(points: &mut Points, args: &Value) -> Result<(), PluginError> {
    let args: Args =
        args::decode(args).map_err(|error| PluginError::Args { plugin: NAME, error })?;
    let plugin =
        Arc::new(BalancedAllocation { scored: scored(&args.resources), demand: points.slot() });
    points.pre_score = Some(plugin.clone());
    points.score = Some(plugin.clone());
    points.prepare = Some(plugin.clone());
    points.sign = Some(plugin);
    points.wake_on_nothing();
    Ok(())
}

impl BalancedAllocation {
    /// `None` for a pod that asks for none of the resources: all such pods would gather on one node.
    fn demand(&self, pod: &PodInfo) -> Option<Demand> {
        let demand = Demand::new(&self.scored, Basis::Requested, &pod.requests().resources);
        demand.parts.iter().any(|part| part.wanted != 0).then_some(demand)
    }
}

impl PreScore for BalancedAllocation {
    fn pre_score(
        &self,
        cx: SerialCx<'_>,
        pod: &PodInfo,
        _: &[NodeInfo<'_>],
    ) -> Result<PreScored, Failure> {
        let Some(demand) = self.demand(pod) else { return Ok(PreScored::Skip) };
        cx.cycle.set(self.demand, demand);
        Ok(PreScored::Ready)
    }
}

impl Score for BalancedAllocation {
    fn score(&self, cx: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        let Some(demand) = cx.cycle.get(self.demand) else { return Ok(0) };
        Ok(Formula::Balanced.score(demand.of_node(node)))
    }
}

impl Prepare for BalancedAllocation {
    fn prepare(&self, world: &mut World, pod: &PodInfo) -> Prepared {
        let Some(demand) = self.demand(pod) else { return Prepared::Skip };
        let scorer = Scorer::new(Formula::Balanced, demand, world.nodes());
        Prepared::Run(Box::new(BalancedRun(scorer)))
    }
}

struct BalancedRun(Scorer);

impl Run for BalancedRun {
    fn reads(&self) -> Reads {
        Reads { score: Some(RowPart::Pods), ..Reads::default() }
    }

    fn score_row(&self, nodes: &NodeTable, row: Row) -> i64 {
        self.0.score_row(nodes, row.index())
    }

    fn score_all(
        &self,
        nodes: &NodeTable,
        set: &RowSet,
        weight: i64,
        out: &mut [i64],
    ) -> Result<(), OutOfRange> {
        self.0.score_all(nodes, set, weight, out)
    }

    fn is_stale(&self, world: &World) -> bool {
        self.0.is_stale(world.nodes())
    }
}

impl Sign for BalancedAllocation {
    fn sign(&self, pod: &PodInfo) -> Result<Vec<Fragment>, Unsignable> {
        Ok(vec![super::requests_fragment(pod)])
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_framework::testkit::Bench;
    use serde_json::json;

    use super::*;

    fn pod(requests: Value) -> Value {
        let containers = json!([{"name": "c", "resources": {"requests": requests}}]);
        json!({"metadata": {"name": "web"}, "spec": {"containers": containers}})
    }

    #[track_caller]
    fn check(args: Value, used: Value, wanted: Value, want: Option<i64>) {
        let mut bench = Bench::new(&DEF, args).unwrap();
        let offered = json!({"cpu": 10, "memory": 1000, "ephemeral-storage": 100, "a.io/x": 8});
        bench.node(json!({"metadata": {"name": "n"}, "status": {"allocatable": offered}})).unwrap();
        bench
            .assigned("n", json!({"metadata": {"name": "there"}, "spec": pod(used)["spec"]}))
            .unwrap();
        let scores = bench.score(pod(wanted)).unwrap();
        assert_eq!(scores.first().map(|(_, score)| *score), want);
    }

    #[test]
    fn score() {
        let check = |used, wanted, want| check(json!({}), used, wanted, want);
        check(json!({}), json!({"cpu": 5, "memory": 500}), Some(75));
        check(json!({}), json!({"cpu": 10}), Some(50));
        check(json!({"memory": 1000}), json!({"cpu": 10}), Some(100));
        check(json!({"memory": 300}), json!({"cpu": 3}), Some(82));
        // More than there is counts as all there is.
        check(json!({"memory": 1000}), json!({"cpu": 99}), Some(100));
        // Pods without requests count as nothing here; one that asks for none of the resources is not scored.
        check(json!({}), json!({}), None);
        check(json!({}), json!({"cpu": 0, "memory": 0, "ephemeral-storage": 1}), None);
    }

    #[test]
    fn score_of_other_resources() {
        let three =
            || json!({"resources": [{"name": "cpu"}, {"name": "memory"}, {"name": "a.io/x"}]});
        check(three(), json!({}), json!({"cpu": 5}), Some(62));
        check(three(), json!({}), json!({"cpu": 5, "a.io/x": 8}), Some(54));
        check(
            json!({"resources": [{"name": "b.io/y"}]}),
            json!({}),
            json!({"b.io/y": 1}),
            Some(75),
        );
        check(json!({"resources": [{"name": "b.io/y"}]}), json!({}), json!({"cpu": 1}), None);
    }

    #[test]
    fn pod_level_requests_count() {
        let mut bench = Bench::new(&DEF, json!({})).unwrap();
        let offered = json!({"cpu": 10, "memory": 1000});
        bench.node(json!({"metadata": {"name": "n"}, "status": {"allocatable": offered}})).unwrap();
        let spec = json!({"containers": [{"name": "c"}], "resources": {"requests": {"cpu": 10}}});
        let scores = bench.score(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap();
        assert_eq!(scores, [("n".to_owned(), 50)]);
    }

    #[test]
    fn args() {
        let text = |given: Value| match complete_args(&given, &FeatureGates::default()) {
            Ok(args) => args.to_string(),
            Err(errors) => errors.iter().map(FieldError::to_string).collect::<Vec<_>>().join("; "),
        };
        let default = r#"{"resources":[{"name":"cpu","weight":1},{"name":"memory","weight":1}]}"#;
        assert_eq!(text(json!({})), default);
        assert_eq!(text(json!({"resources": null})), default);
        assert_eq!(
            text(json!({"resources": [{"name": "x", "weight": 0}]})),
            r#"{"resources":[{"name":"x","weight":1}]}"#
        );
        assert_eq!(
            text(json!({"resources": [{"name": "cpu", "weight": 2}, {"name": "cpu"}]})),
            "resources[0].weight: Invalid value: 2: must be 1; resources[1].name: Duplicate value: \"cpu\""
        );
        assert!(text(json!({"foo": 1})).starts_with("foo: unknown field `foo`"));
    }
}
