//! Coscheduling in a scheduler. Where upstream behaves differently (scheduler-plugins 0.35), the test says how.

use std::collections::BTreeMap;
use std::time::Duration;

use loadmaster::framework::Rng;
use loadmaster::testkit::{
    FaultSimulation, PluginTestBenchError, PodBuilder, TestCluster, node, pod,
};
use loadmaster_scheduler_plugins::coscheduling::{DEF, NAME};
use loadmaster_scheduler_plugins::pod_group::{LABEL, old_pod_groups, pod_groups};
use serde_json::{Value, json};

type TestResult = Result<(), PluginTestBenchError>;

fn profile(args: Value) -> Value {
    json!({
        "plugins": {
            "multiPoint": {"enabled": [{"name": NAME}]},
            "queueSort": {"enabled": [{"name": NAME}], "disabled": [{"name": "*"}]},
        },
        "pluginConfig": [{"name": NAME, "args": args}],
    })
}

/// A cluster of nodes with room for one pod each.
fn cluster(n_nodes: usize, seed: u64) -> Result<TestCluster, PluginTestBenchError> {
    cluster_with_args(n_nodes, seed, json!({}))
}

fn cluster_with_args(
    n_nodes: usize,
    seed: u64,
    args: Value,
) -> Result<TestCluster, PluginTestBenchError> {
    let mut cluster = TestCluster::with_seed([DEF], profile(args), seed)?;
    add_nodes(&mut cluster, 0..n_nodes)?;
    cluster.set_kind_synced(&pod_groups(), true);
    cluster.set_kind_synced(&old_pod_groups(), true);
    Ok(cluster)
}

fn add_nodes(cluster: &mut TestCluster, numbers: std::ops::Range<usize>) -> TestResult {
    numbers
        .into_iter()
        .try_for_each(|nth| cluster.upsert_node(node(&format!("n{nth}")).allocatable("cpu", "1")))
}

fn pod_group(name: &str, n_min: usize) -> Value {
    let metadata = json!({
        "name": name, "namespace": "default", "creationTimestamp": "2023-11-14T00:00:00Z",
    });
    json!({"metadata": metadata, "spec": {"minMember": n_min, "scheduleTimeoutSeconds": 60}})
}

fn member(name: &str, group: &str) -> PodBuilder {
    pod(name).label(LABEL, group).request("cpu", "1")
}

fn create_gang(cluster: &mut TestCluster, group: &str, n: usize) -> TestResult {
    cluster.upsert_object(&pod_groups(), pod_group(group, n));
    (0..n).try_for_each(|nth| cluster.create_pod(member(&format!("{group}-{nth}"), group)))
}

fn n_bound(cluster: &TestCluster, group: &str, n: usize) -> usize {
    (0..n).filter(|nth| cluster.node_of(&format!("{group}-{nth}")).is_some()).count()
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Upstream counts members whose attempt failed as assigned until its informer says otherwise, and can bind one of them (its issue 930).
#[test]
fn a_gang_of_two_with_room_for_one_is_never_bound_in_part() -> TestResult {
    for seed in 0..20 {
        let mut cluster = cluster(1, seed)?;
        create_gang(&mut cluster, "g", 2)?;
        for _ in 0..60 {
            cluster.advance_time(seconds(5))?;
            assert_eq!(n_bound(&cluster, "g", 2), 0, "seed {seed}");
        }
        add_nodes(&mut cluster, 1..2)?;
        cluster.advance_time(seconds(11))?;
        assert_eq!(n_bound(&cluster, "g", 2), 2, "seed {seed}");
    }
    Ok(())
}

/// Upstream tries each pod when it is created, in vain while the group is not complete: an update of its status and an Event each.
#[test]
fn members_of_a_group_that_is_not_complete_are_reported_after_two_seconds() -> TestResult {
    let mut cluster = cluster(3, 0)?;
    cluster.upsert_object(&pod_groups(), pod_group("g", 3));
    cluster.run_until_idle()?;
    cluster.create_pod(member("g-0", "g"))?;
    cluster.advance_time(seconds(1))?;
    cluster.create_pod(member("g-1", "g"))?;
    cluster.run_until_idle()?;
    assert!(cluster.take_events().is_empty());
    cluster.advance_time(seconds(1))?;
    let message = cluster.pending_message("g-0").unwrap_or_default();
    let want = "cannot find enough sibling pods, current pods number: 2, minMember of group: 3";
    assert!(message.contains(want), "{message}");
    assert_eq!(cluster.pending_message("g-1"), None);
    cluster.create_pod(member("g-2", "g"))?;
    cluster.run_until_idle()?;
    assert_eq!(n_bound(&cluster, "g", 3), 3);
    Ok(())
}

/// Upstream tries all of them at once.
#[test]
fn one_member_is_tried_first_and_the_others_after_two_seconds() -> TestResult {
    for seed in 0..20 {
        let mut cluster = cluster(0, seed)?;
        cluster.upsert_object(&pod_groups(), pod_group("g", 5));
        cluster.run_until_idle()?;
        create_gang(&mut cluster, "g", 5)?;
        let n_reported = |cluster: &TestCluster| {
            let names = (0..5).map(|nth| format!("g-{nth}"));
            names.filter(|name| cluster.pending_message(name).is_some()).count()
        };
        cluster.advance_time(seconds(1))?;
        assert_eq!(n_reported(&cluster), 1, "seed {seed}");
        cluster.advance_time(seconds(2))?;
        assert_eq!(n_reported(&cluster), 5, "seed {seed}");
    }
    Ok(())
}

#[test]
fn another_member_is_tried_when_the_first_one_is_deleted() -> TestResult {
    for seed in 0..20 {
        let mut cluster = cluster(0, seed)?;
        cluster.upsert_object(&pod_groups(), pod_group("g", 5));
        cluster.run_until_idle()?;
        for nth in 0..4 {
            cluster.create_pod(member(&format!("g-{nth}"), "g"))?;
        }
        cluster.run_until_idle()?;
        cluster.upsert_object(&pod_groups(), pod_group("g", 3));
        cluster.run_until_idle()?;
        let first = (0..4).map(|nth| format!("g-{nth}"));
        let first = first.filter(|name| cluster.pending_message(name).is_some());
        let first: Vec<String> = first.collect();
        assert_eq!(first.len(), 1, "seed {seed}: {first:?}");
        cluster.delete_pod(&first[0]);
        add_nodes(&mut cluster, 0..3)?;
        cluster.advance_time(Duration::from_millis(200))?;
        assert_eq!(n_bound(&cluster, "g", 4), 3, "seed {seed}");
    }
    Ok(())
}

/// Upstream holds the nodes of the members that fit until the last one is tried, and keeps them if at most a tenth is missing.
#[test]
fn a_failed_gang_frees_its_nodes_at_once() -> TestResult {
    for seed in 0..20 {
        let mut cluster = cluster(18, seed)?;
        create_gang(&mut cluster, "g", 20)?;
        cluster.run_until_idle()?;
        assert!(cluster.waiting_pods().is_empty(), "seed {seed}");
        cluster.create_pod(pod("web").request("cpu", "1"))?;
        cluster.run_until_idle()?;
        assert!(cluster.node_of("web").is_some(), "seed {seed}");
        assert_eq!(n_bound(&cluster, "g", 20), 0, "seed {seed}");
    }
    Ok(())
}

/// With upstream each gang holds 18 nodes until the timeout, because at most a tenth is missing.
#[test]
fn two_gangs_that_fit_alone_and_not_together_run_one_after_the_other() -> TestResult {
    for seed in 0..10 {
        let mut cluster = cluster(36, seed)?;
        for group in ["a", "b"] {
            cluster.upsert_object(&pod_groups(), pod_group(group, 20));
        }
        for nth in 0..20 {
            for group in ["a", "b"] {
                cluster.create_pod(member(&format!("{group}-{nth}"), group))?;
            }
            if nth % 3 == 0 {
                cluster.run_until_idle()?;
            }
        }
        cluster.advance_time(seconds(5))?;
        let bound = ["a", "b"].map(|group| n_bound(&cluster, group, 20));
        assert!(bound == [20, 0] || bound == [0, 20], "seed {seed}: {bound:?}");
        let (first, second) = if bound[0] == 20 { ("a", "b") } else { ("b", "a") };
        for nth in 0..20 {
            cluster.delete_pod(&format!("{first}-{nth}"));
        }
        cluster.advance_time(seconds(11))?;
        assert_eq!(n_bound(&cluster, second, 20), 20, "seed {seed}");
    }
    Ok(())
}

#[test]
fn three_gangs_on_room_for_one_run_one_after_the_other() -> TestResult {
    for seed in 0..10 {
        let mut cluster = cluster(4, seed)?;
        let groups = ["a", "b", "c"];
        for group in groups {
            create_gang(&mut cluster, group, 3)?;
        }
        let mut finished = Vec::new();
        for _ in groups {
            cluster.advance_time(seconds(30))?;
            let running: Vec<&str> = groups
                .into_iter()
                .filter(|group| !finished.contains(group) && n_bound(&cluster, group, 3) > 0)
                .collect();
            let [running] = running[..] else { panic!("seed {seed}: {running:?} are running") };
            assert_eq!(n_bound(&cluster, running, 3), 3, "seed {seed}");
            (0..3).for_each(|nth| cluster.delete_pod(&format!("{running}-{nth}")));
            finished.push(running);
        }
    }
    Ok(())
}

/// Upstream tries such a gang again at once, and again, because it takes the nodes that it releases itself for a reason to retry.
#[test]
fn a_gang_without_room_is_not_tried_again_without_a_reason() -> TestResult {
    let mut cluster = cluster(5, 1)?;
    create_gang(&mut cluster, "g", 6)?;
    cluster.advance_time(seconds(20))?;
    cluster.take_events();
    cluster.advance_time(seconds(200))?;
    assert_eq!(cluster.take_events(), [""; 0], "no attempt");
    // A node that helps no pod of the gang is no reason either.
    cluster.upsert_node(node("small").allocatable("cpu", "100m"))?;
    cluster.advance_time(seconds(30))?;
    assert_eq!(cluster.take_events(), [""; 0], "no attempt");
    add_nodes(&mut cluster, 5..6)?;
    cluster.advance_time(seconds(11))?;
    assert_eq!(n_bound(&cluster, "g", 6), 6);
    Ok(())
}

#[test]
fn two_gangs_without_room_do_not_wake_each_other_for_ever() -> TestResult {
    let mut cluster = cluster(4, 1)?;
    for group in ["a", "b"] {
        create_gang(&mut cluster, group, 5)?;
    }
    cluster.advance_time(seconds(60))?;
    cluster.take_events();
    cluster.advance_time(seconds(100))?;
    let n_events = cluster.take_events().len();
    // Each is tried at most every ten seconds, and each attempt concerns five pods.
    assert!(n_events <= 2 * 11 * 10, "{n_events} events");
    Ok(())
}

/// Upstream activates it with each other member that waits, and then rejects that one.
#[test]
fn a_member_that_fits_nowhere_does_not_keep_enough_others_from_running() -> TestResult {
    for (n_broken, n_bound_before) in [(1, 0), (1, 1), (2, 0), (3, 1)] {
        let mut cluster = cluster(8, 0)?;
        cluster.upsert_object(&pod_groups(), pod_group("g", 3));
        for nth in 0..n_bound_before {
            let name = format!("bound-{nth}");
            cluster.create_pod(member(&name, "g").set_field("/spec/nodeName", "n7"))?;
        }
        let broken = |nth| member(&format!("broken-{nth}"), "g").node_selector("disk", "ssd");
        (0..n_broken).try_for_each(|nth| cluster.create_pod(broken(nth)))?;
        (0..4).try_for_each(|nth| cluster.create_pod(member(&format!("g-{nth}"), "g")))?;
        cluster.advance_time(seconds(120))?;
        assert_eq!(n_bound(&cluster, "g", 4), 4, "{n_broken} broken, {n_bound_before} bound");
    }
    Ok(())
}

/// The same with a pod that every deleted pod may help, so that it is always tried again.
#[test]
fn a_member_that_is_too_large_does_not_keep_enough_others_from_running() -> TestResult {
    let mut cluster = cluster(5, 0)?;
    cluster.upsert_object(&pod_groups(), pod_group("g", 3));
    cluster.create_pod(member("a-large-one", "g").request("cpu", "2"))?;
    (0..4).try_for_each(|nth| cluster.create_pod(member(&format!("g-{nth}"), "g")))?;
    for _ in 0..30 {
        cluster.create_pod(pod("web").set_field("/spec/nodeName", "n4"))?;
        cluster.advance_time(seconds(2))?;
        cluster.delete_pod("web");
        cluster.advance_time(seconds(1))?;
    }
    assert_eq!(n_bound(&cluster, "g", 4), 4);
    Ok(())
}

/// With upstream the pods wait for an event or for a flush of unschedulablePods after minutes.
#[test]
fn pods_that_come_one_by_one_are_bound_when_the_last_one_is_there() -> TestResult {
    for seed in 0..20 {
        let mut cluster = cluster(3, seed)?;
        cluster.upsert_object(&pod_groups(), pod_group("g", 3));
        for nth in 0..3 {
            assert_eq!(n_bound(&cluster, "g", 3), 0, "seed {seed}");
            cluster.advance_time(seconds(20))?;
            cluster.create_pod(member(&format!("g-{nth}"), "g"))?;
        }
        cluster.run_until_idle()?;
        assert_eq!(n_bound(&cluster, "g", 3), 3, "seed {seed}: without waiting for a backoff");
    }
    Ok(())
}

#[test]
fn a_pod_group_that_is_created_or_changed_wakes_its_members() -> TestResult {
    for seed in 0..20 {
        let mut cluster = cluster(3, seed)?;
        for nth in 0..3 {
            cluster.create_pod(member(&format!("g-{nth}"), "g"))?;
        }
        cluster.advance_time(seconds(100))?;
        let message = cluster.pending_message("g-0").unwrap_or_default();
        assert!(message.contains("PodGroup not found"), "seed {seed}: {message}");
        cluster.upsert_object(&pod_groups(), pod_group("g", 4));
        cluster.advance_time(seconds(20))?;
        let message = cluster.pending_message("g-0").unwrap_or_default();
        let want = "pre-filter pod g-0 cannot find enough sibling pods, current pods number: 3, minMember of group: 4";
        assert!(message.contains(want), "seed {seed}: {message}");
        cluster.upsert_object(&pod_groups(), pod_group("g", 3));
        cluster.run_until_idle()?;
        assert_eq!(n_bound(&cluster, "g", 3), 3, "seed {seed}");
    }
    Ok(())
}

/// Upstream tries all members again whenever the controller writes the status, several times for each pod that starts.
#[test]
fn a_change_of_the_status_wakes_no_member() -> TestResult {
    let mut cluster = cluster(1, 1)?;
    create_gang(&mut cluster, "g", 2)?;
    cluster.advance_time(seconds(20))?;
    cluster.take_events();
    let mut with_status = pod_group("g", 2);
    with_status["status"] = json!({"phase": "Scheduling", "scheduleStartTime": null});
    cluster.upsert_object(&pod_groups(), with_status);
    cluster.advance_time(seconds(20))?;
    assert_eq!(cluster.take_events(), [""; 0]);
    Ok(())
}

#[test]
fn a_pod_group_deleted_while_its_pods_wait_frees_their_nodes() -> TestResult {
    for seed in 0..20 {
        let mut cluster = cluster(3, seed)?;
        // The last member waits for a gate that another controller removes, so that the others wait for it.
        cluster.upsert_object(&pod_groups(), pod_group("g", 3));
        cluster.create_pod(member("g-0", "g"))?;
        cluster.create_pod(member("g-1", "g"))?;
        cluster.create_pod(member("g-2", "g").priority(-1).node_selector("zone", "later"))?;
        cluster.run_until_idle()?;
        cluster.delete_object(&pod_groups(), "default", "g");
        cluster.advance_time(seconds(70))?;
        assert!(cluster.waiting_pods().is_empty(), "seed {seed}");
        assert_eq!(n_bound(&cluster, "g", 3), 0, "seed {seed}");
        cluster.upsert_node(node("z").label("zone", "later").allocatable("cpu", "1"))?;
        cluster.upsert_object(&pod_groups(), pod_group("g", 3));
        cluster.advance_time(seconds(20))?;
        assert_eq!(n_bound(&cluster, "g", 3), 3, "seed {seed}");
    }
    Ok(())
}

#[test]
fn members_of_a_running_gang_are_replaced_one_by_one() -> TestResult {
    for seed in 0..20 {
        let mut cluster = cluster(3, seed)?;
        create_gang(&mut cluster, "g", 3)?;
        cluster.run_until_idle()?;
        assert_eq!(n_bound(&cluster, "g", 3), 3);
        cluster.delete_pod("g-1");
        cluster.advance_time(seconds(1))?;
        cluster.create_pod(member("g-1", "g"))?;
        cluster.run_until_idle()?;
        assert_eq!(n_bound(&cluster, "g", 3), 3, "seed {seed}");
    }
    Ok(())
}

#[test]
fn a_lower_min_member_allows_the_members_that_wait() -> TestResult {
    let mut cluster = cluster_with_args(2, 1, json!({"podGroupRejectPercentage": 50}))?;
    cluster.upsert_object(&pod_groups(), pod_group("g", 3));
    // The fourth member is not tried before the third one has failed, and nobody is left after it.
    for nth in 0..2 {
        cluster.create_pod(member(&format!("g-{nth}"), "g"))?;
    }
    cluster.run_until_idle()?;
    assert_eq!(n_bound(&cluster, "g", 2), 0);
    cluster.upsert_object(&pod_groups(), pod_group("g", 2));
    cluster.run_until_idle()?;
    assert_eq!(n_bound(&cluster, "g", 2), 2);
    Ok(())
}

#[test]
fn a_configured_backoff_delays_the_next_attempt() -> TestResult {
    let mut cluster = cluster_with_args(1, 1, json!({"podGroupBackoffSeconds": 40}))?;
    create_gang(&mut cluster, "g", 2)?;
    cluster.advance_time(seconds(5))?;
    add_nodes(&mut cluster, 1..2)?;
    cluster.advance_time(seconds(30))?;
    assert_eq!(n_bound(&cluster, "g", 2), 0);
    // Upstream tries again when some pod is added, or after minutes.
    cluster.advance_time(seconds(6))?;
    assert_eq!(n_bound(&cluster, "g", 2), 2);
    Ok(())
}

/// The state that users want: PodGroups, and the live pods of each.
#[derive(Default)]
struct Wanted {
    n_min: BTreeMap<&'static str, usize>,
    pods: BTreeMap<String, &'static str>,
    n_created: usize,
}

const GROUPS: [&str; 3] = ["a", "b", "c"];

impl Wanted {
    fn random_step(&mut self, cluster: &mut TestCluster, rng: &mut Rng) -> TestResult {
        let group = *rng.pick(&GROUPS);
        match rng.below(10) {
            0 => {
                let n_min = rng.range(1, 4) as usize;
                self.n_min.insert(group, n_min);
                cluster.upsert_object(&pod_groups(), pod_group(group, n_min));
            }
            1 | 2 => {
                let nth = rng.below(self.pods.len().max(1) as u64) as usize;
                if let Some(name) = self.pods.keys().nth(nth).cloned() {
                    cluster.delete_pod(&name);
                    self.pods.remove(&name);
                }
            }
            3 => cluster.advance_time(Duration::from_millis(rng.below(3000)))?,
            _ if self.pods.len() < 12 => {
                self.n_created += 1;
                let name = format!("p{}", self.n_created);
                cluster.create_pod(member(&name, group))?;
                self.pods.insert(name, group);
            }
            _ => cluster.run_until_idle()?,
        }
        Ok(())
    }

    fn bound<'a>(
        &'a self,
        cluster: &'a TestCluster,
        group: &'a str,
    ) -> impl Iterator<Item = &'a String> {
        let pods = self.pods.iter().filter(move |(_, of)| **of == group);
        pods.map(|(name, _)| name).filter(|name| cluster.node_of(name).is_some())
    }
}

#[test]
fn random_histories_bind_no_gang_in_part_and_leave_nothing_pending() -> TestResult {
    for seed in 0..8 {
        let (mut rng, mut wanted) = (Rng::new(seed), Wanted::default());
        let mut cluster = cluster(4, seed)?;
        let mut bound_before: Vec<String> = Vec::new();
        for step in 0..100 {
            wanted.random_step(&mut cluster, &mut rng)?;
            // All events are delivered, so that the scheduler knows what the test knows.
            cluster.run_until_idle()?;
            let mut bound_now = Vec::new();
            for group in GROUPS {
                let bound: Vec<String> = wanted.bound(&cluster, group).cloned().collect();
                let is_new = bound.iter().any(|name| !bound_before.contains(name));
                let n_min = wanted.n_min.get(group).copied().unwrap_or(usize::MAX);
                assert!(
                    !is_new || bound.len() >= n_min,
                    "seed {seed}, step {step}: {bound:?} of {n_min} in {group}"
                );
                bound_now.extend(bound);
            }
            bound_before = bound_now;
        }
        add_nodes(&mut cluster, 4..16)?;
        cluster.advance_time(seconds(30))?;
        for (group, n_min) in &wanted.n_min {
            let n_pods = wanted.pods.values().filter(|of| *of == group).count();
            let n_bound = wanted.bound(&cluster, group).count();
            let want = if n_pods >= *n_min { n_pods } else { n_bound };
            assert_eq!(n_bound, want, "seed {seed}: {group}, minMember {n_min}");
        }
    }
    Ok(())
}

#[test]
fn gangs_survive_faults() -> TestResult {
    let simulation = FaultSimulation::new([DEF], profile(json!({})))
        .pods(|rng, pod| match *rng.pick(&["", "x", "y", "z"]) {
            "" => pod,
            group => pod.label(LABEL, group),
        })
        .objects(pod_groups(), |rng, _| {
            let name = *rng.pick(&["x", "y", "z"]);
            Some(pod_group(name, rng.range(1, 5) as usize))
        });
    let report = simulation.run(0..20)?;
    assert!(report.bound > 100 && report.unschedulable > 100, "{report}");
    Ok(())
}
