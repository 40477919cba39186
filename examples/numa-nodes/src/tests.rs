use loadmaster::framework::testkit::incremental_history::check_incremental_history;
use loadmaster::testkit::{
    ClusterView, FaultSimulation, PluginTestBench, PluginTestBenchError, PodBuilder, TestCluster,
    node, pod,
};
use serde_json::{Value, json};

use super::*;

type TestResult = Result<(), PluginTestBenchError>;

const REJECTED: &str = "Unschedulable node(s) had no NUMA zone with enough free CPUs";

fn topologies() -> Gvr {
    Gvr::new("example.com", "v1", "nodetopologies")
}

/// A node's topology: the CPUs of each zone, and the uids of the pods in it.
fn topology(node: &str, zones: &[(u32, &[&str])]) -> Value {
    let zones = zones.iter().map(|(cpus, pods)| json!({"cpus": cpus, "pods": pods}));
    let zones: Vec<Value> = zones.collect();
    json!({"metadata": {"name": node}, "nodeName": node, "zones": zones})
}

fn wants(name: &str, cpu: &str) -> PodBuilder {
    pod(name).request("cpu", cpu)
}

fn bench(zones: &[(u32, &[&str])]) -> Result<PluginTestBench, PluginTestBenchError> {
    let mut bench = PluginTestBench::new(&DEF, json!({}))?;
    bench.node(node("a"))?;
    bench.object(&topologies(), topology("a", zones))?;
    Ok(bench)
}

#[test]
fn a_pod_fits_if_one_zone_has_enough_free_cpus() -> TestResult {
    let check = |zones: &[(u32, &[&str])], cpu: &str, want: Result<i64, &str>| {
        let mut bench = bench(zones)?;
        bench.add_assigned_pod("a", wants("old", "1"))?;
        let status = want.map_or_else(|why| why, |_| "Success");
        assert_eq!(bench.filter(wants("new", cpu))?, [format!("a {status}")]);
        let scores: Vec<_> = want.iter().map(|score| ("a".to_owned(), *score)).collect();
        assert_eq!(bench.score(wants("new", cpu))?, scores);
        Ok::<_, PluginTestBenchError>(())
    };
    // The agent has reported the pod: it is in the first zone.
    check(&[(2, &["default/old"]), (2, &[])], "1", Ok(100))?;
    check(&[(2, &["default/old"]), (2, &[])], "2", Ok(100))?;
    check(&[(2, &["default/old"]), (4, &[])], "2", Ok(50))?;
    check(&[(2, &["default/old"]), (2, &[])], "2001m", Err(REJECTED))?;
    // Nobody knows its zone: it counts in both.
    check(&[(2, &[]), (2, &[])], "1", Ok(100))?;
    check(&[(2, &[]), (2, &[])], "2", Err(REJECTED))?;
    check(&[], "1", Err(REJECTED))?;
    check(&[(1, &[])], "0", Ok(0))?;
    let mut bench = PluginTestBench::new(&DEF, json!({}))?;
    bench.node(node("a"))?;
    assert_eq!(bench.filter(wants("new", "64"))?, ["a Success"], "a node without a topology");
    Ok(())
}

/// The largest number of CPUs that a pod can request on the node `a`.
fn largest_request(bench: &mut PluginTestBench) -> Result<u32, PluginTestBenchError> {
    let mut largest = 0;
    for cpus in 1..=8 {
        if bench.filter(wants("next", &cpus.to_string()))?.contains(&"a Success".to_owned()) {
            largest = cpus;
        }
    }
    Ok(largest)
}

#[test]
fn a_zone_is_booked_until_the_pod_is_gone() -> TestResult {
    let mut bench = bench(&[(2, &[]), (4, &[])])?;
    let mut first = bench.start_cycle(wants("first", "2"), "a")?;
    assert_eq!(bench.reserve(&mut first), "Success");
    // The first zone is full. The second one has room for a pod, whose zone is booked, too.
    assert_eq!(largest_request(&mut bench)?, 4);
    let mut second = bench.start_cycle(wants("second", "3"), "a")?;
    assert_eq!(bench.reserve(&mut second), "Success");
    assert_eq!(bench.filter(wants("next", "2"))?, [format!("a {REJECTED}")]);
    bench.unreserve(second);
    assert_eq!(bench.filter(wants("next", "4"))?, ["a Success"]);
    // The agent found the pod in the other zone.
    bench.object(&topologies(), topology("a", &[(2, &[]), (4, &["default/first"])]))?;
    assert_eq!(largest_request(&mut bench)?, 2);
    bench.add_assigned_pod("a", wants("first", "2"))?;
    bench.delete_pod("default/first");
    assert_eq!(largest_request(&mut bench)?, 4);
    Ok(())
}

#[test]
fn only_events_of_nodes_on_which_the_pod_fits_wake_it() -> TestResult {
    for seed in 0..20 {
        let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": NAME}]}}});
        let mut cluster = TestCluster::with_seed([DEF], profile, seed)?;
        cluster.upsert_node(node("a").allocatable("cpu", "16"))?;
        cluster.upsert_object(&topologies(), topology("a", &[(2, &[]), (2, &[])]));
        cluster.run_until_idle()?;
        for (name, cpu) in [("one", "1"), ("two", "2"), ("three", "2")] {
            cluster.create_pod(wants(name, cpu))?;
            cluster.run_until_idle()?;
        }
        let why = cluster.pending_message("three").unwrap_or_default();
        assert!(why.contains("1 node(s) had no NUMA zone with enough free CPUs"), "{why}");
        let lines = cluster.take_log_lines();
        assert!(
            lines.contains(&"NumaFit 3 default/two: Booked zone 1 of a".to_owned()),
            "{lines:?}"
        );
        let attempts = |cluster: &TestCluster| {
            let mut all = cluster.engine().queue().iter();
            all.find(|(it, _)| &*it.info.pod.name == "three").map(|(it, _)| it.info.attempts)
        };
        assert_eq!(attempts(&cluster), Some(1));
        cluster.upsert_object(&topologies(), topology("a", &[(1, &[]), (2, &[])]));
        cluster.advance_time(std::time::Duration::from_secs(30))?;
        assert_eq!(attempts(&cluster), Some(1), "seed {seed}");
        cluster.delete_pod("two");
        cluster.advance_time(std::time::Duration::from_secs(30))?;
        assert_eq!(cluster.node_of("three").as_deref(), Some("a"), "seed {seed}");
    }
    Ok(())
}

fn random_topology(rng: &mut Rng, node: &str, uids: &[&str]) -> Value {
    let mut zones = vec![json!({"cpus": 0, "pods": []}); rng.below(4) as usize];
    for zone in &mut zones {
        zone["cpus"] = json!(rng.range(0, 4));
        let pods = uids.iter().filter(|_| rng.one_in(3));
        zone["pods"] = pods.map(|uid| json!(uid)).collect();
    }
    json!({"metadata": {"name": node}, "nodeName": node, "zones": zones})
}

#[test]
fn the_incremental_form_follows_pods_topologies_and_bookings() -> TestResult {
    const CPUS: [&str; 5] = ["0", "500m", "1", "2", "4"];
    for seed in 0..20 {
        let mut bench = PluginTestBench::new(&DEF, json!({}))?;
        let mut rng = Rng::new(seed);
        let change = |bench: &mut PluginTestBench, rng: &mut Rng| {
            let (name, on) = (*rng.pick(&["p", "q", "r", "s"]), *rng.pick(&["a", "b"]));
            let cpu = *rng.pick(&CPUS);
            match rng.below(6) {
                0 => {
                    bench.node(node(on))?;
                    return Ok("a node");
                }
                1 => {
                    let uids = ["default/p", "default/q", "default/r", "default/s"];
                    bench.object(&topologies(), random_topology(rng, on, &uids))?;
                    return Ok("a topology");
                }
                2 => {
                    bench.delete_pod(&format!("default/{name}"));
                    return Ok("a deleted pod");
                }
                3 if bench.world.row_of_pod(&format!("default/{name}")).is_none() => {
                    if let Ok(mut cycle) = bench.start_cycle(wants(name, cpu), on) {
                        bench.reserve(&mut cycle);
                        if rng.one_in(2) {
                            bench.unreserve(cycle);
                        } else {
                            bench.add_assigned_pod(on, wants(name, cpu))?;
                        }
                    }
                    return Ok("a booking");
                }
                _ => {}
            }
            if bench.world.nodes().row(on).is_some() {
                bench.delete_pod(&format!("default/{name}"));
                bench.add_assigned_pod(on, wants(name, cpu))?;
            }
            Ok("an assigned pod")
        };
        let pod = |rng: &mut Rng| {
            let cpus = *rng.pick(&CPUS);
            wants("web", cpus).into()
        };
        check_incremental_history(&mut bench, &mut rng, 100, pod, change)?;
        let report = bench.check_key(wants("web", "1"))?;
        assert!(report.keeps("ordinal label") && report.keeps("hostname"));
        assert!(!report.keeps("/spec/containers/0/resources/requests/cpu = 2"));
    }
    Ok(())
}

/// What an agent reports: some of the node's pods, each in one zone.
fn reported(rng: &mut Rng, cluster: ClusterView<'_>) -> Option<Value> {
    let nodes: Vec<&str> = cluster.nodes().map(|node| node.name()).collect();
    let name = *nodes.get(rng.below(nodes.len().max(1) as u64) as usize)?;
    let mut topology = random_topology(rng, name, &[]);
    let zones = topology["zones"].as_array_mut()?;
    for pod in cluster.pods().filter(|pod| pod.spec.node_name == name) {
        let at = rng.below(2 * zones.len() as u64 + 1) as usize;
        if let Some(zone) = zones.get_mut(at) {
            zone["pods"].as_array_mut()?.push(json!(pod.metadata.uid));
        }
    }
    Some(topology)
}

#[test]
fn zones_survive_faults() -> TestResult {
    let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": NAME}]}}});
    let simulation = FaultSimulation::new([DEF], profile).objects(topologies(), reported);
    let report = simulation.run(0..20)?;
    assert!(report.bound > 300 && report.unschedulable > 50, "{report}");
    Ok(())
}

#[test]
fn the_sample_configuration_is_valid() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/scheduler.yaml");
    let command = SchedulerCommand::new().with_plugin(DEF);
    let code = command.run_from(["numa-nodes", "config", "check", file]);
    assert_eq!(format!("{code:?}"), format!("{:?}", std::process::ExitCode::SUCCESS));
}
