//! NodeResourcesLeastAllocated: prefers nodes with more unrequested resources.
//!
//! | | |
//! | --- | --- |
//! | extension points | Score |
//! | woken by | no event: it rejects no pod |
//! | upstream | `plugins/noderesources/least_allocated.go`, 1.22 |
//! | deviations | the CPU of a pod's overhead counts in full; upstream counts a core of it as a milli-CPU |
//! | cost | a division per resource and node; over columns 2 ns per row (AVX2) |
//!
//! The score is the mean, by the weights of the resources, of `(allocatable - requested) * 100 / allocatable`, in integers.

use loadmaster_framework::plugin_args;
use loadmaster_framework::{ExtensionPoints, PluginDef, PluginError};
use loadmaster_plugins::node_resources::allocation_score::{
    AllocationFormula, register_allocation_score,
};
use serde_json::Value;

use crate::resource_args::{WeightedResourcesArgs, with_last_weights};

pub const NAME: &str = "NodeResourcesLeastAllocated";

pub const DEF: PluginDef = PluginDef {
    name: NAME,
    build,
    args: Some(plugin_args::default_and_validate_args::<WeightedResourcesArgs>),
};

fn build(points: &mut ExtensionPoints, args: &Value) -> Result<(), PluginError> {
    let args: WeightedResourcesArgs = plugin_args::decode_plugin_args(NAME, args)?;
    let resources = with_last_weights(args.resources);
    register_allocation_score(points, AllocationFormula::LeastAllocated, &resources);
    Ok(())
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
        let default =
            expect![[r#"{"resources":[{"name":"cpu","weight":1},{"name":"memory","weight":1}]}"#]];
        check_args(json!({}), &default);
        check_args(json!({"resources": null}), &default);
        check_args(json!({"resources": []}), &default);
        check_args(
            json!({"resources": [{"name": "cpu"}, {"name": "memory", "weight": 101},
                {"name": "nvidia.com/gpu", "weight": 100}, {"name": "x", "weight": -1}]}),
            &expect![[r#"
                resources[0].weight: Invalid value: 0: resource weight of cpu not in valid range (0, 100]
                resources[1].weight: Invalid value: 101: resource weight of memory not in valid range (0, 100]
                resources[3].weight: Invalid value: -1: resource weight of x not in valid range (0, 100]"#]],
        );
        check_args(
            json!({"resource": []}),
            &expect!["resource: unknown field `resource`, expected `resources`"],
        );
    }

    /// Node "a" with 4 CPUs and 10 Gi, of which pods request 3 and 5 Gi; node "b" with 8 CPUs, 20 Gi and 4 GPUs, of which pods
    /// request 1, 2 Gi and 1.
    fn bench(args: Value) -> PluginTestBench {
        let mut bench = PluginTestBench::new(&DEF, args).unwrap();
        bench.node(node("a").allocatable("cpu", "4").allocatable("memory", "10Gi")).unwrap();
        let large = node("b").allocatable("cpu", "8").allocatable("memory", "20Gi");
        bench.node(large.allocatable("nvidia.com/gpu", "4")).unwrap();
        let old = |name: &str, cpu: &str, memory: &str| {
            pod(name).request("cpu", cpu).request("memory", memory)
        };
        bench.add_assigned_pod("a", old("old-a", "3", "5Gi")).unwrap();
        let with_gpu = old("old-b", "1", "2Gi").request("nvidia.com/gpu", "1");
        bench.add_assigned_pod("b", with_gpu).unwrap();
        bench
    }

    #[track_caller]
    fn check(args: Value, incoming: impl Into<Value>, want: [i64; 2]) {
        let scores = bench(args).score(incoming).unwrap();
        assert_eq!(scores.into_iter().map(|(_, score)| score).collect::<Vec<_>>(), want);
    }

    #[test]
    fn the_score_is_the_weighted_share_that_stays_free() {
        let web = || pod("web").request("cpu", "1").request("memory", "2Gi");
        // a: 0 % of CPU and 30 % of memory, b: 75 % and 80 %.
        check(json!({}), web(), [15, 77]);
        let weighted = |cpu: i64, memory: i64| json!({"resources": [{"name": "cpu", "weight": cpu}, {"name": "memory", "weight": memory}]});
        check(weighted(3, 1), web(), [7, 76]);
        // More than a has.
        check(json!({}), pod("web").request("cpu", "2").request("memory", "2Gi"), [15, 71]);
        // 100 milli-CPU and 200 MB for a container without requests.
        check(json!({}), pod("web"), [35, 87]);
    }

    #[test]
    fn scalar_resources_count_where_a_node_has_them_if_the_pod_requests_them() {
        let args = || json!({"resources": [{"name": "cpu", "weight": 1}, {"name": "nvidia.com/gpu", "weight": 3}]});
        check(args(), pod("web").request("cpu", "1"), [0, 75]);
        let with_gpu = pod("web").request("cpu", "1").request("nvidia.com/gpu", "1");
        check(args(), with_gpu, [0, 56]);
        // The last weight of a name counts, once.
        let twice = json!({"resources": [{"name": "cpu", "weight": 90}, {"name": "memory", "weight": 1},
            {"name": "cpu", "weight": 1}]});
        check(twice, pod("web").request("cpu", "1").request("memory", "2Gi"), [15, 77]);
    }

    #[test]
    fn cached_evaluations_see_pods_and_nodes() {
        let mut bench = bench(json!({}));
        let change = |bench: &mut PluginTestBench, rng: &mut Rng| {
            let on = *rng.pick(&["a", "b"]);
            let name = format!("p{}", rng.below(6));
            Ok(match rng.below(4) {
                0 => {
                    bench.delete_pod(&format!("default/{name}"));
                    "deleted"
                }
                1 => {
                    bench.node(node(on).allocatable("cpu", &rng.below(9).to_string()))?;
                    "updated"
                }
                _ => {
                    let requests = pod(&name).request("cpu", &rng.below(3).to_string());
                    bench.add_assigned_pod(on, requests)?;
                    "assigned"
                }
            })
        };
        let incoming =
            |rng: &mut Rng| pod("web").request("cpu", &format!("{}", rng.below(3))).into();
        check_incremental_history(&mut bench, &mut Rng::new(8), 1_000, incoming, change).unwrap();
    }

    #[test]
    fn the_key_has_all_that_is_read_of_a_pod() {
        let args = json!({"resources": [{"name": "cpu", "weight": 1}, {"name": "nvidia.com/gpu", "weight": 1}]});
        let incoming = pod("web").request("cpu", "1").request("nvidia.com/gpu", "2");
        assert!(bench(args).check_key(incoming).unwrap().keeps("ordinal label"));
    }
}
