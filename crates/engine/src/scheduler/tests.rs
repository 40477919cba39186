//! Decisions after many changes at once, each compared with the per-node evaluation.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::{Node, Pod, Service};
use loadmaster_config::{AllFeatureGates, check_configuration_value};
use loadmaster_framework::Registry;
use serde_json::{Value, json};

use super::*;

mod plugin_filters;

const N_NODES: u64 = 320;

fn profile() -> Arc<Profile> {
    profile_of(&loadmaster_plugins::in_tree_registry(), json!({}))
}

fn profile_of(registry: &Registry, profile: Value) -> Arc<Profile> {
    let gates = AllFeatureGates::default();
    let config = json!({"apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration", "profiles": [profile]});
    let checked = check_configuration_value(config, registry, &gates);
    Arc::new(Profile::new(&checked.unwrap().profiles[0], &gates.framework_gates()))
}

/// Nodes of different sizes in three zones; one of them has more memory than vector loops compute.
fn world() -> World {
    let mut world = World::default();
    for at in 0..N_NODES {
        let memory = if at == 7 { "64Ti".to_owned() } else { format!("{}Gi", 4 + at % 7) };
        world.upsert_node(node(at, at % 3, &memory));
    }
    world
}

fn node(at: u64, zone: u64, memory: &str) -> Arc<Node> {
    let node = json!({
        "metadata": {"name": format!("n{at}"), "labels":
            {"kubernetes.io/hostname": format!("n{at}"), "topology.kubernetes.io/zone": format!("z{zone}"),
             "pool": format!("p{}", (at + zone) % 8)}},
        "status": {"allocatable": {"cpu": 1 + at % 5, "memory": memory, "pods": 20}},
    });
    Arc::new(serde_json::from_value(node).unwrap())
}

fn parse(world: &mut World, name: &str, app: &str, spec: &Value) -> PodInfo {
    parse_with_cpu(world, name, app, spec, 300)
}

fn parse_with_cpu(world: &mut World, name: &str, app: &str, spec: &Value, milli: u64) -> PodInfo {
    parse_with_labels(world, name, &json!({"app": app}), spec, milli)
}

fn parse_with_labels(
    world: &mut World,
    name: &str,
    labels: &Value,
    spec: &Value,
    milli: u64,
) -> PodInfo {
    let requests = json!({"cpu": format!("{milli}m"), "memory": "900Mi"});
    let container = json!({"name": "c", "resources": {"requests": requests}});
    let mut pod =
        json!({"metadata": {"name": name, "namespace": "default", "labels": labels}, "spec": spec});
    pod["spec"]["containers"] = json!([container]);
    world.parse_pod(&serde_json::from_value::<Pod>(pod).unwrap()).unwrap()
}

/// After as many placements of other pods as said, in turn, the pod's decision equals the per-node evaluation. Few changes are applied row by
/// row, more as a list, and after more still, all rows are computed again.
#[track_caller]
fn check(spec: &Value) {
    let mut world = world();
    let mut scheduler = Scheduler::new(profile(), Rng::new(1));
    scheduler.set_verification_interval(1);
    let mut rng = Rng::new(2);
    let mut placed: Vec<Box<str>> = Vec::new();
    for (turn, n_changes) in
        [0, 1, 2, 15, 16, 20, 33, 39, 45, 20, 70, 20, 30].into_iter().enumerate()
    {
        for nth in 0..n_changes {
            if rng.one_in(4) && !placed.is_empty() {
                let at = rng.below(placed.len() as u64) as usize;
                world.remove_pod(&placed.swap_remove(at));
                continue;
            }
            let app = *rng.pick(&["web", "other"]);
            let other = parse(&mut world, &format!("other-{turn}-{nth}"), app, &json!({}));
            placed.push(other.uid.clone());
            world.add_pod(NodeRow(rng.below(N_NODES) as u32), Arc::new(other));
        }
        let pod = parse(&mut world, &format!("web-{turn}"), "web", spec);
        let decided = scheduler.schedule_pod(&mut world, &pod);
        let Decision::Selected { row, .. } = decided else { panic!("turn {turn}: {decided:?}") };
        world.add_pod(row, Arc::new(pod));
        assert_eq!(scheduler.decision_mismatches(), [""; 0], "turn {turn}");
    }
}

#[test]
fn decisions_after_many_changes() {
    let selector = json!({"matchLabels": {"app": "web"}});
    let host = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": selector});
    check(&json!({}));
    check(
        &json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [host]}}}),
    );
    check(&json!({"topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector},
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}]}));
}

/// Pods are scheduled, and in between pods are removed, and nodes change or are replaced.
struct History {
    world: World,
    scheduler: Scheduler,
    rng: Rng,
    placed: Vec<Box<str>>,
}

impl History {
    /// Each decision is compared with the per-node evaluation.
    fn new() -> History {
        let mut scheduler = Scheduler::new(profile(), Rng::new(1));
        scheduler.set_verification_interval(1);
        History { world: world(), scheduler, rng: Rng::new(2), placed: Vec::new() }
    }

    /// Makes one of these changes, or none.
    fn change(&mut self) {
        let History { world, rng, placed, .. } = self;
        let at = rng.below(N_NODES);
        match rng.below(40) {
            0 => drop(world.upsert_node(node(at, rng.below(3), "5Gi"))),
            1 => {
                let pods = world.remove_node(&format!("n{at}"));
                placed.retain(|uid| pods.iter().all(|pod| pod.uid != *uid));
                world.upsert_node(node(at, rng.below(3), "9Gi"));
            }
            2..12 if !placed.is_empty() => {
                let at = rng.below(placed.len() as u64) as usize;
                world.remove_pod(&placed.swap_remove(at));
            }
            _ => {}
        }
    }

    /// Compares the totals of all feasible nodes with the per-node evaluation.
    #[track_caller]
    fn compare_totals(&mut self, turn: u64, pod: &PodInfo) {
        let totals = self.scheduler.feasible_total_scores(&mut self.world, pod);
        let per_node = self.scheduler.evaluate_for_diagnosis(&mut self.world, pod);
        assert_eq!(totals, per_node::feasible_total_scores(&per_node), "turn {turn}");
    }

    #[track_caller]
    fn schedule(&mut self, turn: u64, pod: PodInfo) {
        let decided = self.scheduler.schedule_pod(&mut self.world, &pod);
        let Decision::Selected { row, .. } = decided else { panic!("turn {turn}: {decided:?}") };
        self.placed.push(pod.uid.clone());
        self.world.add_pod(row, Arc::new(pod));
        assert_eq!(self.scheduler.decision_mismatches(), [""; 0], "turn {turn}");
    }
}

/// Pods of six applications, which share an index of rows and count their own pods, are scheduled in random order. At first there is only one of
/// them, which has the index for itself. In between pods are removed, and nodes change or are replaced.
#[test]
fn applications_that_share_an_index() {
    let constraints = |app: &str| {
        let selector = json!({"matchLabels": {"app": app}});
        json!({"topologySpreadConstraints": [
            {"maxSkew": 2, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector},
            {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}]})
    };
    let apps = ["a", "b", "c", "d", "e", "f"].map(|app| (app, constraints(app)));
    let mut history = History::new();
    for turn in 0..600 {
        history.change();
        let n_apps = if turn < 150 { 1 } else { apps.len() };
        let (app, spec) = history.rng.pick(&apps[..n_apps]);
        let pod = parse(&mut history.world, &format!("{app}-{turn}"), app, spec);
        history.schedule(turn, pod);
    }
}

/// The pods of two applications keep away from others of their application, and are spread over hosts and zones: of each version anew, which
/// comes every 40 turns. In between pods are removed, and nodes change or are replaced.
#[test]
fn rollouts() {
    let mut history = History::new();
    for turn in 0..800 {
        history.change();
        let app = *history.rng.pick(&["a", "b"]);
        let labels = json!({"app": app, "version": (turn / 40).to_string()});
        let soft = |key: &str| {
            json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": labels}})
        };
        let others = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}});
        let apart = json!([{"weight": 3, "podAffinityTerm": others}]);
        let spec = json!({
            "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": apart}},
            "topologySpreadConstraints": [soft("kubernetes.io/hostname"), soft("topology.kubernetes.io/zone")]});
        let pod =
            parse_with_labels(&mut history.world, &format!("{app}-{turn}"), &labels, &spec, 300);
        history.schedule(turn, pod);
    }
}

/// Most pods request what no other does, so that all nodes are scanned, or those of the pool that a pod selects, in which one pod is nominated to a
/// node. In between pods are removed, and nodes change or are replaced, and most of them come to have another pool.
#[test]
fn pods_that_select_a_pool_of_nodes() {
    let selector = json!({"matchLabels": {"app": "a"}});
    let spread = json!([{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}]);
    let mut history = History::new();
    let nominated =
        parse_with_cpu(&mut history.world, "nominated", "a", &json!({"priority": 1}), 3_900);
    history.world.add_nominated_pod("n8".into(), Arc::new(nominated));
    for turn in 0..600 {
        history.change();
        let mut spec = json!({});
        if history.rng.below(8) > 0 {
            spec["nodeSelector"] = json!({"pool": format!("p{}", history.rng.below(8))});
        }
        if history.rng.one_in(2) {
            spec["topologySpreadConstraints"] = spread.clone();
        }
        let cpu = if history.rng.one_in(4) { 100 } else { 100 + turn };
        let pod = parse_with_cpu(&mut history.world, &format!("a-{turn}"), "a", &spec, cpu);
        // The first search for a key is a full scan, and selects the node in the other turns.
        if turn % 2 == 0 {
            history.compare_totals(turn, &pod);
        }
        history.schedule(turn, pod);
    }
}

/// Most pods request what no other does and have a label of their own, so that most of their keys are those of the pod before. A Service comes
/// and goes, and selects them by other labels; some pods have another priority, toleration or selector. In between pods are removed, and nodes
/// change or are replaced.
#[test]
fn pods_whose_requests_and_labels_differ() {
    let service = |selector: Value| {
        let metadata = json!({"name": "web", "namespace": "default"});
        let service = json!({"metadata": metadata, "spec": {"selector": selector}});
        Arc::new(serde_json::from_value::<Service>(service).unwrap())
    };
    let specs = [
        json!({}),
        json!({"priority": 1}),
        json!({"tolerations": [{"key": "own", "operator": "Exists"}]}),
        json!({"nodeSelector": {"pool": "p1"}}),
    ];
    let mut history = History::new();
    for turn in 0..600 {
        history.change();
        let History { world, rng, .. } = &mut history;
        match rng.below(24) {
            0 => world.upsert_listed(service(json!({"app": "web"}))),
            1 => world.upsert_listed(service(json!({"app": "web", "tier": "0"}))),
            2 => world.delete_listed::<Service>(&"default".into(), "web"),
            _ => {}
        }
        let labels = json!({"app": rng.pick(&["web", "other"]), "tier": rng.below(2).to_string(),
            "id": turn.to_string()});
        let spec = if rng.one_in(4) { rng.pick(&specs) } else { &specs[0] };
        let cpu = if rng.one_in(4) { 100 } else { 100 + turn };
        let pod = parse_with_labels(world, &format!("web-{turn}"), &labels, spec, cpu);
        if turn % 2 == 0 {
            history.compare_totals(turn, &pod);
        }
        history.schedule(turn, pod);
    }
}

/// Nodes with the same score have different numbers of pods that the constraint counts, so that only some of them are the best ones: each of these
/// is selected equally often. `n_pods` are the numbers of such pods, by row, repeated.
#[track_caller]
fn check_that_each_best_node_is_selected(n_pods: &[usize]) {
    let spread = |app: &str| {
        json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"app": app}}}]})
    };
    let mut world = world();
    let mut scheduler = Scheduler::new(profile(), Rng::new(1));
    for row in (0..N_NODES).map(|at| NodeRow(at as u32)) {
        for nth in 0..n_pods[row.index() % n_pods.len()] {
            let pod = parse(&mut world, &format!("a-{}-{nth}", row.0), "a", &json!({}));
            world.add_pod(row, Arc::new(pod));
        }
    }
    let mut select = |world: &mut World, name: &str, app: &str| {
        let pod = parse(world, name, app, &spread(app));
        let decided = scheduler.schedule_pod(world, &pod);
        let Decision::Selected { row, .. } = decided else { panic!("{decided:?}") };
        (row, scheduler.best_rows(world, &pod), pod)
    };
    // Both share an index.
    for (nth, app) in ["a", "b", "a", "b"].into_iter().enumerate() {
        let (row, _, pod) = select(&mut world, &format!("{app}-{nth}"), app);
        world.add_pod(row, Arc::new(pod));
    }
    let (_, best, _) = select(&mut world, "next", "a");
    let best = best.expect("a score index");
    assert!(best.len() > 1, "{best:?}");
    let mut n_selected = BTreeMap::new();
    for _ in 0..1_000 * best.len() {
        *n_selected.entry(select(&mut world, "next", "a").0).or_insert(0) += 1;
    }
    assert_eq!(n_selected.keys().copied().collect::<Vec<_>>(), best);
    assert!(n_selected.values().all(|n| (850..1_150).contains(n)), "{n_selected:?}");
}

#[test]
fn each_of_the_best_nodes_is_selected_equally_often() {
    // The best nodes are counted, and some of those with the same score.
    check_that_each_best_node_is_selected(&[1, 1, 2, 2, 3]);
    // They are not counted.
    check_that_each_best_node_is_selected(&[0, 1, 2, 2, 3]);
    // They are few among many.
    check_that_each_best_node_is_selected(&[&[1][..], &[2; 34][..]].concat());
    check_that_each_best_node_is_selected(&[&[0][..], &[1; 34][..]].concat());
}
