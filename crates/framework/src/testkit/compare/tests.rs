//! The test kit finds a `filter_nodes` that does not do what `filter` does.

use std::sync::Arc;

use serde_json::json;

use crate::testkit::{PluginTestBench, node, pod};
use crate::{
    Cx, Failure, Filter, NodeInfo, NodesToFilter, PluginDef, PodInfo, PreFilter, PreFilterResult,
    Rejection, SerialCx,
};

/// Rejects nodes by their name: "full" as unschedulable, "broken" with a failure. PreFilter leaves no node "other".
struct ByName {
    /// Nodes that `filter_nodes` rejects.
    rejects: &'static [&'static str],
    /// The node for which it fails.
    fails_for: &'static str,
}

impl PreFilter for ByName {
    fn pre_filter(&self, cx: SerialCx<'_>, _: &PodInfo) -> Result<PreFilterResult, Rejection> {
        let names = cx.world.node_infos().map(|node| node.name().into());
        Ok(PreFilterResult::Nodes(names.filter(|name| *name != "other").collect()))
    }
}

impl Filter for ByName {
    fn filter(&self, _: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        match node.name() {
            "full" => Err(Rejection::unschedulable("full")),
            "broken" => Err(Failure::new("broken").into()),
            "other" => panic!("not in the PreFilter result"),
            _ => Ok(()),
        }
    }

    fn filter_nodes(
        &self,
        _: Cx<'_>,
        _: &PodInfo,
        nodes: &mut NodesToFilter<'_>,
    ) -> Result<(), Failure> {
        nodes.try_retain(|node| match node.name() {
            "other" => panic!("not in the PreFilter result"),
            name if name == self.fails_for => Err(Failure::new("broken")),
            name => Ok(!self.rejects.contains(&name)),
        })
    }
}

/// What the bench says of a cluster of these nodes, when `filter_nodes` rejects some and fails for one.
fn filter<const CASE: usize>(names: &[&str]) -> String {
    let def = PluginDef {
        name: "ByName",
        build: |points, _| {
            let (rejects, fails_for) = CASES[CASE];
            let plugin = Arc::new(ByName { rejects, fails_for });
            points.pre_filter = Some(plugin.clone());
            points.filter = Some(plugin);
            Ok(())
        },
        args: None,
    };
    let mut bench = PluginTestBench::new(&def, json!({})).unwrap();
    for name in names {
        bench.node(node(name)).unwrap();
    }
    bench.filter(pod("p")).unwrap().join(", ")
}

const CASES: [(&[&str], &str); 4] =
    [(&["full"], "broken"), (&[], ""), (&["free", "full"], ""), (&["full"], "free")];

#[test]
fn equal_forms() {
    let results = filter::<0>(&["free", "full", "other"]);
    let other = "other UnschedulableAndUnresolvable not in the PreFilter result";
    assert_eq!(results, format!("free Success, full Unschedulable full, {other}"));
    assert_eq!(filter::<0>(&["broken", "full"]), "broken Error broken, full Unschedulable full");
}

#[test]
fn nodes_that_only_one_form_rejects() {
    let found = filter::<1>(&["free", "full"]);
    assert!(found.contains("node full: filter returned Err(Unschedulable"), "{found}");
    let found = filter::<2>(&["free", "full"]);
    assert!(found.contains("node free: filter returned Ok(())"), "{found}");
}

#[test]
fn failures_of_one_form() {
    let found = filter::<1>(&["broken", "free"]);
    assert!(found.contains("filter failed with"), "{found}");
    let found = filter::<3>(&["free", "full"]);
    assert!(found.contains("filter_nodes failed with"), "{found}");
}
