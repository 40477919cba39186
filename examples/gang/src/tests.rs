use loadmaster::testkit::{BenchError, Cluster, PodBuilder, node, pod};
use serde_json::json;

use super::*;

fn cluster(seed: u64) -> Result<Cluster, BenchError> {
    let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": NAME}]}}});
    let mut cluster = Cluster::with_seed([DEF], profile, seed)?;
    for name in ["a", "b"] {
        cluster.node(node(name).allocatable("cpu", "1"))?;
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

fn bound(cluster: &Cluster, names: &[&str]) -> usize {
    names.iter().filter(|name| cluster.node_of(name).is_some()).count()
}

#[test]
fn the_last_one_brings_all_the_others() -> Result<(), BenchError> {
    let names = ["x-0", "x-1", "x-2"];
    for seed in 0..20 {
        let mut cluster = cluster(seed)?;
        cluster.object(&gangs(), gang("x", 3));
        for name in names {
            cluster.pod(member(name, "x"))?;
        }
        cluster.pass(Duration::from_secs(5))?;
        assert_eq!(cluster.waiting_pods().len(), 2, "seed {seed}");
        assert_eq!(bound(&cluster, &names), 0);
        cluster.node(node("c").allocatable("cpu", "1"))?;
        cluster.pass(Duration::from_secs(12))?;
        assert_eq!(bound(&cluster, &names), 3, "seed {seed}");
        assert!(cluster.waiting_pods().is_empty());
    }
    Ok(())
}

#[test]
fn who_waits_too_long_takes_the_others_along() -> Result<(), BenchError> {
    let mut cluster = cluster(1)?;
    cluster.object(&gangs(), gang("x", 3));
    cluster.pod(member("x-0", "x"))?;
    cluster.settle()?;
    cluster.pass(Duration::from_secs(20))?;
    cluster.pod(member("x-1", "x"))?;
    cluster.settle()?;
    assert_eq!(cluster.waiting_pods(), ["default/x-0", "default/x-1"]);
    // The first one's time is over; the second one had 20 seconds left.
    cluster.pass(Duration::from_millis(10_000))?;
    let why = |pod| cluster.why(pod).unwrap_or_default();
    assert!(why("x-0").contains("timeout after waiting 30s at plugin Gang"), "{}", why("x-0"));
    assert!(why("x-1").contains("pod x-0 of gang \"x\" gave its node up"), "{}", why("x-1"));
    Ok(())
}

#[test]
fn a_gang_may_come_after_its_pods() -> Result<(), BenchError> {
    let mut cluster = cluster(2)?;
    cluster.listed(&gangs(), true);
    cluster.pod(member("x-0", "x"))?;
    cluster.pod(pod("alone").request("cpu", "1"))?;
    cluster.settle()?;
    assert!(cluster.why("x-0").is_some_and(|why| why.contains("there is no gang \"x\"")));
    assert_eq!(bound(&cluster, &["alone"]), 1, "who is of no gang goes its way");
    cluster.object(&gangs(), gang("y", 1));
    cluster.pass(Duration::from_secs(20))?;
    assert_eq!(bound(&cluster, &["x-0"]), 0, "another gang");
    cluster.object(&gangs(), gang("x", 1));
    cluster.pass(Duration::from_secs(20))?;
    assert_eq!(bound(&cluster, &["x-0"]), 1);
    Ok(())
}

#[test]
fn a_gang_that_cannot_be_read_is_told_once() -> Result<(), BenchError> {
    let mut cluster = cluster(3)?;
    let odd =
        json!({"metadata": {"name": "x", "namespace": "default"}, "spec": {"minMembers": "all"}});
    cluster.object(&gangs(), odd.clone());
    cluster.object(&gangs(), odd);
    cluster.settle()?;
    let troubles = cluster.take_troubles();
    assert_eq!(troubles.len(), 1, "{troubles:?}");
    assert!(
        troubles[0].contains("gangs.v1.example.com default/x is left out: spec.minMembers"),
        "{troubles:?}"
    );
    Ok(())
}

#[test]
fn the_configuration_beside_it_is_right() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/scheduler.yaml");
    let command = SchedulerCommand::new().with_plugin(DEF);
    let code = command.run_from(["gang", "config", "check", file]);
    assert_eq!(format!("{code:?}"), format!("{:?}", std::process::ExitCode::SUCCESS));
}
