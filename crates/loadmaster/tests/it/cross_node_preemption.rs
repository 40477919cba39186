//! CrossNodePreemption in a scheduler, alone and after DefaultPreemption.

use std::time::Duration;

use loadmaster::framework::Rng;
use loadmaster::testkit::{PluginTestBenchError, PodBuilder, TestCluster, node, pod};
use loadmaster_scheduler_plugins::cross_node_preemption::{DEF, NAME};
use loadmaster_sim::cluster_made_pods::{ControllerKind, PodController};
use serde_json::{Value, json};

type TestResult = Result<(), PluginTestBenchError>;

/// The two ways to enable the plugin.
fn profiles() -> [Value; 2] {
    let enabled = json!([{"name": NAME}]);
    let alone = json!({"disabled": [{"name": "*"}], "enabled": enabled});
    let after_default = json!({"enabled": enabled});
    [alone, after_default].map(|post_filter| json!({"plugins": {"postFilter": post_filter}}))
}

/// Nodes `a0`, `a1` and `b0` with 4 CPUs, in zones `a` and `b`.
fn cluster(profile: Value) -> Result<TestCluster, PluginTestBenchError> {
    let mut cluster = TestCluster::new([DEF], profile)?;
    for name in ["a0", "a1", "b0"] {
        cluster.upsert_node(node(name).label("zone", &name[..1]))?;
    }
    Ok(cluster)
}

/// A pod as a ReplicaSet and admission make it.
fn cluster_made(bare: PodBuilder, name: &str) -> PodBuilder {
    let mut rng = Rng::new(1).split(name);
    let mut controller =
        PodController::new(ControllerKind::ReplicaSet, "rs", bare.into(), &mut rng);
    let made = controller.create_pod(&mut rng);
    PodBuilder::from(made).set_field("/metadata/name", name).set_field("/metadata/uid", name)
}

fn running(name: &str, app: &str, on: &str, priority: i32) -> PodBuilder {
    let bare = pod(name).label("app", app).request("cpu", "1").priority(priority);
    cluster_made(bare, name).set_field("/spec/nodeName", on)
}

/// A pod of priority 5 that must not be in a zone with a pod of the app `db`.
fn web() -> PodBuilder {
    let term = json!({"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": "zone"});
    let affinity =
        json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    let bare = pod("web").label("app", "web").request("cpu", "1").priority(5);
    cluster_made(bare.set_field("/spec/affinity", affinity), "web")
}

/// DefaultPreemption cannot help: on either node of zone `a` there is one pod that keeps the pod out of the zone, and in zone `b` one of
/// higher priority.
#[test]
fn victims_on_several_nodes_are_evicted_and_the_pod_is_bound() -> TestResult {
    for profile in profiles() {
        let mut cluster = cluster(profile)?;
        cluster.create_pod(running("db-0", "db", "a0", 1))?;
        cluster.create_pod(running("db-1", "db", "a1", 2))?;
        cluster.create_pod(running("db-2", "db", "b0", 9))?;
        cluster.create_pod(running("other", "other", "a1", 0))?;
        cluster.create_pod(web())?;
        cluster.run_until_idle()?;
        let mut events = cluster.take_events();
        events.retain(|event| event.starts_with("Preempted"));
        events.sort_unstable();
        let bound = cluster.node_of("web").unwrap_or_default();
        let preempted = |name| format!("Preempted {name}: Preempted by pod web on node {bound}");
        assert_eq!(events, [preempted("db-0"), preempted("db-1")]);
        assert!(["a0", "a1"].contains(&bound.as_str()), "bound to {bound}");
        assert_eq!(cluster.node_of("db-2").as_deref(), Some("b0"));
        assert_eq!(cluster.node_of("other").as_deref(), Some("a1"));
        assert_eq!(cluster.take_errors(), Vec::<String>::new());
    }
    Ok(())
}

#[test]
fn no_pod_is_evicted_if_one_of_them_has_higher_priority() -> TestResult {
    for (profile, prefix) in profiles().into_iter().zip(["", "preemption: 0/3 nodes"]) {
        let mut cluster = cluster(profile)?;
        for (name, on, priority) in [("db-0", "a0", 1), ("db-1", "a1", 5), ("db-2", "b0", 6)] {
            cluster.create_pod(running(name, "db", on, priority))?;
        }
        cluster.create_pod(web())?;
        cluster.run_until_idle()?;
        assert_eq!(cluster.node_of("web"), None);
        assert_eq!(cluster.node_of("db-0").as_deref(), Some("a0"));
        let message = cluster.pending_message("web").unwrap_or_default();
        assert!(message.contains(prefix), "{message}");
        let end = "cross-node preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod, 2 node(s) didn't match pod anti-affinity rules.";
        assert!(message.ends_with(end), "{message}");
    }
    Ok(())
}

/// While victims of an earlier attempt terminate on other nodes than the nominated one, no other pods are evicted, and the pod stays
/// nominated, even if DefaultPreemption finds no node. Otherwise the plugin alone would evict a cheaper victim that appears meanwhile.
#[test]
fn a_preemptor_waits_for_victims_on_other_nodes() -> TestResult {
    for (profile, is_alone) in profiles().into_iter().zip([true, false]) {
        let mut cluster = cluster(profile)?;
        cluster.upsert_node(node("a2").label("zone", "a"))?;
        cluster.create_pod(running("db-high", "db", "b0", 9))?;
        for (db, other, on) in [("db-1", "other-1", "a1"), ("db-2", "other-2", "a2")] {
            cluster.create_pod(running(db, "db", on, 1).request("cpu", "500m"))?;
            // No room for the pod: it is to run on a0.
            cluster.create_pod(running(other, "other", on, 9).request("cpu", "3500m"))?;
        }
        cluster.keep_terminating_pods(true);
        cluster.create_pod(web())?;
        cluster.run_until_idle()?;
        if is_alone {
            cluster.upsert_node(node("c0").label("zone", "c"))?;
            cluster.create_pod(running("db-low", "db", "c0", 0))?;
        }
        // After this time unschedulable pods are tried again.
        cluster.advance_time(Duration::from_secs(400))?;
        let message = cluster.pending_message("web").unwrap_or_default();
        let end = "cross-node preemption: not eligible due to a terminating pod on another node.";
        assert!(message.ends_with(end), "{message}");
        let nominated = cluster.engine().world().nominated_node("web");
        assert_eq!(nominated.map(|node| &**node), Some("a0"));
        cluster.keep_terminating_pods(false);
        cluster.run_until_idle()?;
        assert_eq!(cluster.node_of("web").as_deref(), Some("a0"));
        let mut events = cluster.take_events();
        events.retain(|event| event.starts_with("Preempted"));
        events.sort_unstable();
        let preempted = |name| format!("Preempted {name}: Preempted by pod web on node a0");
        assert_eq!(events, [preempted("db-1"), preempted("db-2")]);
    }
    Ok(())
}
