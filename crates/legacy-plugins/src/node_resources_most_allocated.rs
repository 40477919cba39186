//! NodeResourcesMostAllocated: prefers nodes with more requested resources (bin packing).
//!
//! | | |
//! | --- | --- |
//! | extension points | Score |
//! | woken by | no event: it rejects no pod |
//! | upstream | `plugins/noderesources/most_allocated.go`, 1.22 |
//! | deviations | the CPU of a pod's overhead counts in full; upstream counts a core of it as a milli-CPU |
//! | cost | a division per resource and node; over columns 2 ns per row (AVX2) |
//!
//! The score is the mean, by the weights of the resources, of `requested * 100 / allocatable`, in integers.

use loadmaster_framework::plugin_args;
use loadmaster_framework::{ExtensionPoints, PluginDef, PluginError};
use loadmaster_plugins::node_resources::allocation_score::{
    AllocationFormula, register_allocation_score,
};
use serde_json::Value;

use crate::resource_args::{WeightedResourcesArgs, with_last_weights};

pub const NAME: &str = "NodeResourcesMostAllocated";

pub const DEF: PluginDef = PluginDef {
    name: NAME,
    build,
    args: Some(plugin_args::default_and_validate_args::<WeightedResourcesArgs>),
};

fn build(points: &mut ExtensionPoints, args: &Value) -> Result<(), PluginError> {
    let args: WeightedResourcesArgs = plugin_args::decode_plugin_args(NAME, args)?;
    let resources = with_last_weights(args.resources);
    register_allocation_score(points, AllocationFormula::MostAllocated, &resources);
    Ok(())
}

#[cfg(test)]
mod tests {
    use loadmaster_framework::testkit::{PluginTestBench, node, pod};
    use serde_json::json;

    use super::*;

    /// Node "a" with 4 CPUs and 10 Gi, of which pods request 3 and 5 Gi; node "b" with 8 CPUs and 20 Gi without pods.
    #[track_caller]
    fn check(args: Value, [cpu, memory]: [&str; 2], want: [i64; 2]) {
        let mut bench = PluginTestBench::new(&DEF, args).unwrap();
        bench.node(node("a").allocatable("cpu", "4").allocatable("memory", "10Gi")).unwrap();
        bench.node(node("b").allocatable("cpu", "8").allocatable("memory", "20Gi")).unwrap();
        let old = pod("old").request("cpu", "3").request("memory", "5Gi");
        bench.add_assigned_pod("a", old).unwrap();
        let incoming = pod("web").request("cpu", cpu).request("memory", memory);
        let scores = bench.score(incoming.clone()).unwrap();
        assert_eq!(scores.into_iter().map(|(_, score)| score).collect::<Vec<_>>(), want);
        assert!(bench.check_key(incoming).unwrap().keeps("ordinal label"));
    }

    #[test]
    fn the_score_is_the_weighted_share_that_is_requested() {
        check(json!({}), ["1", "2Gi"], [85, 11]);
        let weighted = |cpu: i64, memory: i64| json!({"resources": [{"name": "cpu", "weight": cpu}, {"name": "memory", "weight": memory}]});
        check(weighted(3, 1), ["1", "2Gi"], [92, 11]);
        check(weighted(1, 100), ["1", "2Gi"], [70, 10]);
        // Never more than all.
        check(json!({}), ["4", "20Gi"], [100, 75]);
    }

    #[test]
    fn weights_are_checked() {
        let error = PluginTestBench::new(&DEF, json!({"resources": [{"name": "cpu"}]})).err();
        assert_eq!(
            error.unwrap().to_string(),
            "resources[0].weight: Invalid value: 0: resource weight of cpu not in valid range (0, 100]"
        );
    }
}
