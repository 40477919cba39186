use loadmaster::testkit::{
    FaultSimulation, PluginTestBench, PluginTestBenchError, PodBuilder, TestCluster, node, pod,
};
use serde_json::json;

use super::*;

fn gangs() -> Gvr {
    Gvr::new("example.com", "v1", "gangs")
}

/// The plugin takes the place of PrioritySort.
fn profile() -> Value {
    json!({"plugins": {
        "multiPoint": {"enabled": [{"name": NAME}]},
        "queueSort": {"enabled": [{"name": NAME}], "disabled": [{"name": "*"}]},
    }})
}

fn cluster(seed: u64) -> Result<TestCluster, PluginTestBenchError> {
    let mut cluster = TestCluster::with_seed([DEF], profile(), seed)?;
    for name in ["a", "b"] {
        cluster.upsert_node(node(name).allocatable("cpu", "1"))?;
    }
    Ok(cluster)
}

fn gang(name: &str, members: usize) -> Value {
    let metadata = json!({"name": name, "namespace": "default"});
    json!({"metadata": metadata, "spec": {"minMembers": members, "timeoutSeconds": 30}})
}

fn member(name: &str, gang: &str) -> PodBuilder {
    pod(name).label(LABEL, gang).request("cpu", "1")
}

fn bound(cluster: &TestCluster, names: &[&str]) -> usize {
    names.iter().filter(|name| cluster.node_of(name).is_some()).count()
}

#[test]
fn the_last_member_allows_all_waiting_members() -> Result<(), PluginTestBenchError> {
    let names = ["x-0", "x-1", "x-2"];
    for seed in 0..20 {
        let mut cluster = cluster(seed)?;
        cluster.upsert_object(&gangs(), gang("x", 3));
        for name in names {
            cluster.create_pod(member(name, "x"))?;
        }
        cluster.advance_time(Duration::from_secs(5))?;
        assert_eq!(cluster.waiting_pods().len(), 2, "seed {seed}");
        assert_eq!(bound(&cluster, &names), 0);
        cluster.upsert_node(node("c").allocatable("cpu", "1"))?;
        cluster.advance_time(Duration::from_secs(12))?;
        assert_eq!(bound(&cluster, &names), 3, "seed {seed}");
        assert!(cluster.waiting_pods().is_empty());
    }
    Ok(())
}

#[test]
fn all_members_wait_until_the_same_time() -> Result<(), PluginTestBenchError> {
    let mut cluster = cluster(1)?;
    cluster.delete_node("b");
    cluster.upsert_object(&gangs(), gang("x", 3));
    for name in ["x-0", "x-1", "x-2"] {
        cluster.create_pod(member(name, "x"))?;
    }
    cluster.run_until_idle()?;
    assert_eq!(cluster.waiting_pods().len(), 1);
    cluster.advance_time(Duration::from_secs(20))?;
    cluster.upsert_node(node("b").allocatable("cpu", "1"))?;
    cluster.advance_time(Duration::from_secs(9))?;
    assert_eq!(cluster.waiting_pods().len(), 2);
    cluster.take_events();
    // The second pod has waited for less than 10 seconds.
    cluster.advance_time(Duration::from_secs(1))?;
    let events = cluster.take_events();
    let n_with = |text: &str| events.iter().filter(|event| event.contains(text)).count();
    let n_rejected = n_with("timeout after waiting") + n_with("of the same gang was rejected");
    assert_eq!(n_rejected, 2, "{events:?}");
    Ok(())
}

#[test]
fn members_wait_in_the_queue_until_the_gang_is_complete() -> Result<(), PluginTestBenchError> {
    for seed in 0..20 {
        let mut cluster = cluster(seed)?;
        cluster.upsert_object(&gangs(), gang("x", 2));
        cluster.create_pod(member("x-0", "x"))?;
        cluster.run_until_idle()?;
        assert!(cluster.waiting_pods().is_empty(), "seed {seed}");
        let why = cluster.pending_message("x-0").unwrap_or_default();
        assert!(why.contains("gang \"x\" has only 1 pods"), "seed {seed}: {why}");
        cluster.create_pod(member("x-1", "x"))?;
        cluster.run_until_idle()?;
        assert_eq!(bound(&cluster, &["x-0", "x-1"]), 2, "seed {seed}");
    }
    Ok(())
}

#[test]
fn gangs_take_turns() -> Result<(), PluginTestBenchError> {
    let mut bench = PluginTestBench::new(&DEF, json!({}))?;
    bench.node(node("n"))?;
    bench.object(&gangs(), gang("a", 2))?;
    let pods = || [member("b-0", "b"), member("a-1", "a"), pod("alone"), member("a-0", "a")];
    for name in ["a-0", "a-1"] {
        bench.add_pending_pod(member(name, "a"))?;
    }
    bench.advance_time(Duration::from_secs(10));
    bench.add_pending_pod(member("b-0", "b"))?;
    assert_eq!(bench.queue_order(pods())?, ["a-1", "a-0", "alone", "b-0"]);
    bench.advance_time(Duration::from_secs(10));
    let mut cycle = bench.start_cycle(member("a-0", "a"), "n")?;
    assert_eq!(bench.permit(&mut cycle), "Wait 30s");
    bench.unreserve(cycle);
    assert_eq!(bench.queue_order(pods())?, ["alone", "b-0", "a-1", "a-0"]);
    let urgent = pods().map(|pod| pod.priority(1)).into_iter().take(1).chain(pods());
    assert_eq!(bench.queue_order(urgent)?[0], "b-0", "priority comes first");
    // The last pod of the gang leaves.
    for name in ["a-0", "a-1"] {
        bench.delete_pod(&format!("default/{name}"));
    }
    bench.add_pending_pod(member("a-2", "a"))?;
    assert_eq!(bench.queue_order(pods())?, ["alone", "b-0", "a-1", "a-0"]);
    Ok(())
}

#[test]
fn a_gang_may_be_created_after_its_pods() -> Result<(), PluginTestBenchError> {
    let mut cluster = cluster(2)?;
    cluster.set_kind_synced(&gangs(), true);
    cluster.create_pod(member("x-0", "x"))?;
    cluster.create_pod(pod("alone").request("cpu", "1"))?;
    cluster.run_until_idle()?;
    assert!(cluster.pending_message("x-0").is_some_and(|why| why.contains("gang \"x\" not found")));
    assert_eq!(bound(&cluster, &["alone"]), 1, "a pod without a gang is scheduled");
    cluster.upsert_object(&gangs(), gang("y", 1));
    cluster.advance_time(Duration::from_secs(20))?;
    assert_eq!(bound(&cluster, &["x-0"]), 0, "another gang");
    cluster.upsert_object(&gangs(), gang("x", 1));
    cluster.advance_time(Duration::from_secs(20))?;
    assert_eq!(bound(&cluster, &["x-0"]), 1);
    Ok(())
}

#[test]
fn pods_without_a_gang_share_their_results() -> Result<(), PluginTestBenchError> {
    let mut bench = PluginTestBench::new(&DEF, json!({}))?;
    bench.node(node("n"))?;
    let report = bench.check_key(pod("alone"))?;
    assert!(report.keeps("ordinal label") && report.keeps("token volume"));
    assert!(!bench.have_equal_keys(pod("alone"), member("x-0", "x"))?);
    Ok(())
}

#[test]
fn gangs_survive_faults() -> Result<(), PluginTestBenchError> {
    let simulation = FaultSimulation::new([DEF], profile())
        .pods(|rng, pod| match *rng.pick(&["", "x", "y", "z"]) {
            "" => pod,
            gang => pod.label(LABEL, gang),
        })
        .objects(gangs(), |rng, _| {
            let name = *rng.pick(&["x", "y", "z"]);
            Some(gang(name, rng.range(1, 5) as usize))
        });
    let report = simulation.run(0..20)?;
    assert!(report.bound > 100 && report.unschedulable > 100, "{report}");
    Ok(())
}

#[test]
fn the_sample_configuration_is_valid() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/scheduler.yaml");
    let command = SchedulerCommand::new().with_plugin(DEF);
    let code = command.run_from(["gang", "config", "check", file]);
    assert_eq!(format!("{code:?}"), format!("{:?}", std::process::ExitCode::SUCCESS));
}
