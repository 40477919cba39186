use std::time::Duration;

use loadmaster::framework::testkit::incremental_history::check_incremental_history;
use loadmaster::testkit::{
    FaultSimulation, PluginTestBench, PluginTestBenchError, PodBuilder, TestCluster, node, pod,
};
use serde_json::json;

use super::*;

type TestResult = Result<(), PluginTestBenchError>;

fn quota(hard: Value) -> Value {
    json!({"metadata": {"name": "team", "namespace": "default"}, "spec": {"hard": hard}})
}

fn web(name: &str, cpu: &str) -> PodBuilder {
    pod(name).request("cpu", cpu)
}

#[track_caller]
fn check(hard: Value, pod: PodBuilder, want: &str) {
    let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
    bench.node(node("a")).unwrap();
    bench.object(&quotas(), quota(hard)).unwrap();
    bench.add_assigned_pod("a", web("first", "1").request("example.com/gpu", "1")).unwrap();
    bench.add_assigned_pod("a", web("other", "9").namespace("other")).unwrap();
    let report = bench.check_key(pod.clone()).unwrap();
    assert!(report.keeps("ordinal label") && report.keeps("token volume"), "{report:?}");
    assert_eq!(bench.filter(pod).unwrap(), [format!("a {want}")]);
}

#[test]
fn pods_of_a_namespace_are_limited_together() {
    check(json!({}), web("b", "8"), "Success");
    check(json!({"cpu": "2"}), web("b", "1"), "Success");
    check(json!({"cpu": "2"}), web("b", "1100m"), "Unschedulable quota \"team\" is exceeded: cpu");
    check(json!({"pods": 2}), web("b", "9"), "Success");
    check(json!({"pods": 1}), pod("b"), "Unschedulable quota \"team\" is exceeded: pods");
    check(json!({"cpu": "2"}), web("b", "9").namespace("other"), "Success");
    let gpu = web("b", "1").request("example.com/gpu", "1");
    check(json!({"example.com/gpu": "2"}), gpu.clone(), "Success");
    check(
        json!({"example.com/gpu": "1"}),
        gpu,
        "Unschedulable quota \"team\" is exceeded: example.com/gpu",
    );
    check(json!({"example.com/gpu": "0"}), web("b", "1"), "Success");
}

fn cluster(seed: u64, hard: Value) -> Result<TestCluster, PluginTestBenchError> {
    let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": NAME}]}}});
    let mut cluster = TestCluster::with_seed([DEF], profile, seed)?;
    for name in ["a", "b"] {
        cluster.upsert_node(node(name).allocatable("cpu", "8"))?;
    }
    cluster.upsert_object(&quotas(), quota(hard));
    cluster.run_until_idle()?;
    Ok(cluster)
}

#[test]
fn pods_wait_until_the_quota_has_room() -> TestResult {
    for seed in 0..10 {
        let mut cluster = cluster(seed, json!({"cpu": "3"}))?;
        for name in ["p0", "p1", "p2", "p3", "p4"] {
            cluster.create_pod(web(name, "1"))?;
        }
        cluster.create_pod(web("elsewhere", "4").namespace("other"))?;
        cluster.advance_time(Duration::from_secs(15))?;
        let bound = |cluster: &TestCluster| {
            ["p0", "p1", "p2", "p3", "p4"]
                .into_iter()
                .filter(|pod| cluster.node_of(pod).is_some())
                .count()
        };
        assert_eq!(bound(&cluster), 3, "seed {seed}");
        assert!(cluster.node_of("other/elsewhere").is_some());
        let first =
            ["p0", "p1", "p2", "p3", "p4"].into_iter().find(|it| cluster.node_of(it).is_some());
        cluster.delete_pod(&format!("default/{}", first.unwrap_or_default()));
        cluster.advance_time(Duration::from_secs(15))?;
        assert_eq!(bound(&cluster), 3, "seed {seed}: one more, and one was deleted");
        cluster.upsert_object(&quotas(), quota(json!({"cpu": "10"})));
        cluster.advance_time(Duration::from_secs(15))?;
        assert_eq!(bound(&cluster), 4, "seed {seed}");
    }
    Ok(())
}

#[test]
fn a_pod_of_higher_priority_preempts_one_of_its_own_namespace() -> TestResult {
    for seed in 0..10 {
        let mut cluster = cluster(seed, json!({"cpu": "2"}))?;
        for name in ["low", "middle"] {
            let priority = if name == "low" { 1 } else { 2 };
            cluster.create_pod(web(name, "1").priority(priority))?;
            cluster.create_pod(web(name, "1").namespace("other"))?;
        }
        cluster.run_until_idle()?;
        cluster.create_pod(web("high", "1").priority(9))?;
        cluster.advance_time(Duration::from_secs(20))?;
        assert!(cluster.node_of("high").is_some(), "seed {seed}: {:?}", cluster.take_events());
        assert!(
            cluster.node_of("other/low").is_some() && cluster.node_of("other/middle").is_some()
        );
        let remaining = ["low", "middle"].into_iter().filter(|it| cluster.node_of(it).is_some());
        assert_eq!(
            remaining.collect::<Vec<_>>(),
            ["middle"],
            "seed {seed}: the least important one is evicted"
        );
        cluster.create_pod(web("equal", "1").priority(2))?;
        cluster.advance_time(Duration::from_secs(20))?;
        let why = cluster.pending_message("equal").unwrap_or_default();
        assert!(why.contains("quota \"team\" is exceeded: cpu"), "{why}");
    }
    Ok(())
}

#[test]
fn pods_on_unknown_nodes_and_terminating_pods_count() -> TestResult {
    let mut cluster = cluster(1, json!({"pods": 2}))?;
    cluster.create_pod(pod("lost").set_field("/spec/nodeName", "unknown"))?;
    cluster.create_pod(pod("first"))?;
    cluster.create_pod(pod("second"))?;
    cluster.advance_time(Duration::from_secs(15))?;
    let n_bound = |cluster: &TestCluster| {
        ["first", "second"].into_iter().filter(|it| cluster.node_of(it).is_some()).count()
    };
    assert_eq!(n_bound(&cluster), 1);
    // The node appears: the pod on it counts once.
    cluster.upsert_node(node("unknown"))?;
    cluster.advance_time(Duration::from_secs(15))?;
    assert_eq!(n_bound(&cluster), 1);
    cluster.delete_node("unknown");
    cluster.advance_time(Duration::from_secs(15))?;
    assert_eq!(n_bound(&cluster), 1);
    cluster.delete_pod("default/lost");
    cluster.advance_time(Duration::from_secs(15))?;
    assert_eq!(n_bound(&cluster), 2);
    Ok(())
}

/// The cached evaluation equals per-node results over random changes of pods, quotas and nodes.
#[test]
fn the_incremental_form_stays_up_to_date() -> TestResult {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut bench = PluginTestBench::new(&DEF, json!({}))?;
        bench.node(node("a"))?;
        let incoming = |rng: &mut Rng| {
            let cpu = *rng.pick(&["1", "2", "4"]);
            web("incoming", cpu).into()
        };
        check_incremental_history(&mut bench, &mut rng, 60, incoming, |bench, rng| {
            let name = format!("p{}", rng.below(8));
            let (cpu, node_name) = (*rng.pick(&["1", "2"]), *rng.pick(&["a", "b", "c"]));
            match rng.below(6) {
                0 => bench.object(
                    &quotas(),
                    quota(json!({"cpu": rng.range(2, 12), "pods": rng.range(2, 8)})),
                )?,
                1 => drop(bench.node(node(node_name))?),
                2 => drop(bench.world.remove_pod(&name)),
                _ => {
                    let namespace = *rng.pick(&["default", "default", "other"]);
                    let pod = web(&name, cpu).namespace(namespace);
                    drop(bench.add_assigned_pod("a", pod.set_field("/metadata/uid", name))?);
                }
            }
            Ok("a pod, a node or a quota")
        })?;
    }
    Ok(())
}

#[test]
fn quotas_survive_faults() -> TestResult {
    let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": NAME}]}}});
    let simulation = FaultSimulation::new([DEF], profile)
        .objects(quotas(), |rng, _| Some(quota(json!({"pods": rng.range(4, 30)}))));
    let report = simulation.run(0..20)?;
    assert!(report.bound > 200 && report.evictions > 0, "{report}");
    Ok(())
}

#[test]
fn the_sample_configuration_is_valid() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/scheduler.yaml");
    let command = SchedulerCommand::new().with_plugin(DEF);
    let code = command.run_from(["namespace-quota", "config", "check", file]);
    assert_eq!(format!("{code:?}"), format!("{:?}", std::process::ExitCode::SUCCESS));
}
