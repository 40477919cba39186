use loadmaster::testkit::{PluginTestBenchError, PodBuilder, TestCluster, node, pod};
use serde_json::json;

use super::*;

fn cluster(seed: u64) -> Result<TestCluster, PluginTestBenchError> {
    let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": NAME}]}}});
    let mut cluster = TestCluster::with_seed([DEF], profile, seed)?;
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
fn a_member_that_times_out_rejects_the_others() -> Result<(), PluginTestBenchError> {
    let mut cluster = cluster(1)?;
    cluster.upsert_object(&gangs(), gang("x", 3));
    cluster.create_pod(member("x-0", "x"))?;
    cluster.run_until_idle()?;
    cluster.advance_time(Duration::from_secs(20))?;
    cluster.create_pod(member("x-1", "x"))?;
    cluster.run_until_idle()?;
    assert_eq!(cluster.waiting_pods(), ["default/x-0", "default/x-1"]);
    // The first pod times out; the second one had 20 seconds left.
    cluster.advance_time(Duration::from_millis(10_000))?;
    let why = |pod| cluster.pending_message(pod).unwrap_or_default();
    assert!(why("x-0").contains("timeout after waiting 30s at plugin Gang"), "{}", why("x-0"));
    assert!(why("x-1").contains("pod x-0 of gang \"x\" was rejected"), "{}", why("x-1"));
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
fn an_invalid_gang_is_reported_once() -> Result<(), PluginTestBenchError> {
    let mut cluster = cluster(3)?;
    let odd =
        json!({"metadata": {"name": "x", "namespace": "default"}, "spec": {"minMembers": "all"}});
    cluster.upsert_object(&gangs(), odd.clone());
    cluster.upsert_object(&gangs(), odd);
    cluster.run_until_idle()?;
    let errors = cluster.take_errors();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(
        errors[0].contains("gangs.v1.example.com default/x is ignored: spec.minMembers"),
        "{errors:?}"
    );
    Ok(())
}

#[test]
fn the_sample_configuration_is_valid() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/scheduler.yaml");
    let command = SchedulerCommand::new().with_plugin(DEF);
    let code = command.run_from(["gang", "config", "check", file]);
    assert_eq!(format!("{code:?}"), format!("{:?}", std::process::ExitCode::SUCCESS));
}
