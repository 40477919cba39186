//! Filter plugins without an incremental form, which a full scan calls once for all nodes.

use loadmaster_framework::{
    Cx, ExtensionPoints, Failure, Filter, NodeInfo, PluginDef, PluginError, Rejection,
};

use super::*;

/// Rejects the first nodes, and fails for one.
struct Fails {
    n_rejected: u32,
    fails_for: &'static str,
}

impl Filter for Fails {
    fn filter(&self, _: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        match node.name() {
            name if name == self.fails_for => {
                Err(Failure::new(format!("no answer from {name}")).into())
            }
            _ if node.row().0 < self.n_rejected => Err(Rejection::unschedulable("rejected")),
            _ => Ok(()),
        }
    }
}

const PLUGINS: [PluginDef; 3] = [
    PluginDef { name: "Rejects", build: |points, _| build(points, 3, ""), args: None },
    PluginDef { name: "First", build: |points, _| build(points, 3, "n9"), args: None },
    PluginDef { name: "Second", build: |points, _| build(points, 0, "n5"), args: None },
];

fn build(
    points: &mut ExtensionPoints,
    n_rejected: u32,
    fails_for: &'static str,
) -> Result<(), PluginError> {
    points.filter = Some(Arc::new(Fails { n_rejected, fails_for }));
    Ok(())
}

/// The decision about a pod, compared with the per-node evaluation, if these plugins are enabled.
fn decide(names: &[&str]) -> Decision {
    let registry = PLUGINS
        .iter()
        .cloned()
        .fold(loadmaster_plugins::in_tree_registry(), |all, it| all.with(it));
    let enabled: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    let profile = profile_of(&registry, json!({"plugins": {"multiPoint": {"enabled": enabled}}}));
    let mut scheduler = Scheduler::new(profile, Rng::new(1));
    scheduler.set_verification_interval(1);
    let mut world = world();
    let pod = parse(&mut world, "web-0", "web", &json!({}));
    let decided = scheduler.schedule_pod(&mut world, &pod);
    assert_eq!(scheduler.decision_mismatches(), [""; 0], "{names:?}");
    decided
}

#[test]
fn nodes_that_a_plugin_rejects_are_not_selected() {
    let decided = decide(&["Rejects"]);
    assert!(matches!(decided, Decision::Selected { row, .. } if row.0 >= 3), "{decided:?}");
}

/// One plugin filters all nodes before the next one does.
#[test]
fn the_failure_of_the_first_node_counts() {
    let failed = |plugin: &str, node: &str| {
        format!("running {plugin:?} filter plugin: no answer from {node}")
    };
    for (names, want) in [
        (&["First", "Second"][..], failed("Second", "n5")),
        (&["Second", "First"], failed("Second", "n5")),
        (&["First", "Rejects"], failed("First", "n9")),
    ] {
        let decided = decide(names);
        assert!(
            matches!(&decided, Decision::Failed(why) if *why == want),
            "{names:?}: {decided:?}"
        );
    }
}
