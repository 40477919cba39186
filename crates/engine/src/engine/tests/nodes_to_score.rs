//! Scoring only a part of the nodes (`percentageOfNodesToScore`), compared with a plain implementation of upstream's search.

use loadmaster_framework::NodeRow;

use super::*;
use crate::evaluate::{ExtenderResults, FilterResult, per_node};
use crate::scheduler::{Decision, Scheduler};

/// Nodes in three zones; every third one is too small, and every seventh one is tainted.
fn world(n_nodes: usize) -> World {
    let mut world = World::default();
    for nth in 0..n_nodes {
        let zone = ["a", "b", "b", "c"][nth % 4];
        let taints =
            if nth % 7 == 3 { json!([{"key": "k", "effect": "NoSchedule"}]) } else { json!([]) };
        let cpu = if nth % 3 == 1 { "500m" } else { "4" };
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": format!("n{nth}"), "labels": {"topology.kubernetes.io/zone": zone}},
            "spec": {"taints": taints},
            "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"}},
        }))
        .unwrap();
        world.upsert_node(Arc::new(node));
    }
    world
}

fn pod(world: &mut World, name: &str, spec: &Value) -> Arc<PodInfo> {
    let mut object = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
    });
    for (key, value) in spec.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    let pod: Pod = serde_json::from_value(object).unwrap();
    Arc::new(world.parse_pod(&pod).unwrap())
}

fn profile(percentage: i64, scores: bool) -> Arc<Profile> {
    let registry = loadmaster_plugins::in_tree_registry();
    let gates = AllFeatureGates::default();
    let mut profile = json!({"percentageOfNodesToScore": percentage});
    if !scores {
        profile["plugins"] = json!({"score": {"disabled": [{"name": "*"}]}});
    }
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "percentageOfNodesToScore": 77,
        "profiles": [profile],
    });
    let checked = check_configuration_value(config, &registry, &gates).unwrap();
    Arc::new(Profile::new(&checked.profiles[0], &gates.framework_gates()))
}

/// Upstream's search with one worker: the feasible rows, and the start of the next search.
fn naive(
    profile: &Profile,
    world: &mut World,
    pod: &PodInfo,
    start: usize,
    n_wanted: usize,
) -> (Vec<NodeRow>, usize) {
    let mut states = profile.states.clone();
    let all = per_node::evaluate_per_node(profile, world, &mut states, pod);
    let order = world.nodes().node_tree().rows();
    let (mut found, mut n_rejected) = (Vec::new(), 0);
    for nth in 0..order.len() {
        let row = order[(start + nth) % order.len()];
        let node = all.nodes.iter().find(|node| node.row == row).unwrap();
        if node.filter_result != FilterResult::Feasible {
            n_rejected += 1;
        } else if found.len() == n_wanted {
            break;
        } else {
            found.push(row);
        }
    }
    let next = (start + found.len() + n_rejected) % order.len();
    (found, next)
}

#[track_caller]
fn check(n_nodes: usize, percentage: i64, n_wanted: usize, spec: &Value) {
    let mut world = world(n_nodes);
    let profile = profile(percentage, true);
    let mut scheduler = Scheduler::new(profile.clone(), Rng::new(7));
    let mut start = 0;
    let mut starts = std::collections::BTreeSet::new();
    for nth in 0..60 {
        let pod = pod(&mut world, &format!("p{nth}"), spec);
        let (found, next) = naive(&profile, &mut world, &pod, start, n_wanted);
        let order = world.nodes().node_tree().rows();
        let search =
            crate::node_sampling::NodeSearch { sampling: profile.sampling, order: &order, start };
        let reference = per_node::evaluate_attempt_with_extenders(
            &profile,
            &mut world,
            &mut profile.states.clone(),
            &pod,
            Some(search),
            &ExtenderResults::default(),
        );
        let evaluation = &reference.evaluation;
        let feasible: Vec<NodeRow> = evaluation
            .nodes
            .iter()
            .filter(|it| it.filter_result == FilterResult::Feasible)
            .map(|it| it.row)
            .collect();
        let mut sorted = found.clone();
        sorted.sort_unstable();
        assert_eq!(feasible, sorted, "pod {nth} from {start}");
        match scheduler.schedule_pod(&mut world, &pod) {
            Decision::Selected { row, total, n_ties } => {
                assert!(evaluation.best_nodes().contains(&row), "pod {nth} from {start}");
                assert_eq!(
                    n_ties,
                    Some(evaluation.best_nodes().len() as u64),
                    "pod {nth} from {start}"
                );
                let best = evaluation.nodes.iter().filter_map(|node| node.total).max();
                assert_eq!(Some(total), best, "pod {nth} from {start}");
                world.add_pod(row, pod);
            }
            other => assert!(found.is_empty(), "pod {nth} from {start}: {other:?}"),
        }
        assert_eq!(scheduler.next_start_node_index(), next, "pod {nth} from {start}");
        start = next;
        starts.insert(start);
    }
    assert!(starts.len() > 3, "the start does not rotate: {starts:?}");
}

#[test]
fn only_the_first_feasible_nodes_are_scored() {
    check(400, 10, 100, &json!({}));
    check(1100, 20, 220, &json!({}));
    // With incremental and per-node plugins, and with plugins that aggregate over the cluster.
    check(
        400,
        30,
        120,
        &json!({"topologySpreadConstraints": [{
            "maxSkew": 5, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"a": "b"}},
        }]}),
    );
}

#[test]
fn small_clusters_are_searched_completely() {
    let mut world = world(99);
    let profile = profile(1, true);
    let mut scheduler = Scheduler::new(profile, Rng::new(7));
    let pod = pod(&mut world, "p", &json!({}));
    let Decision::Selected { n_ties: Some(n_ties), .. } = scheduler.schedule_pod(&mut world, &pod)
    else {
        panic!("it fits")
    };
    assert!(n_ties > 50);
    assert_eq!(scheduler.next_start_node_index(), 0);
}

#[test]
fn without_score_plugins_the_first_feasible_node_is_selected() {
    let mut world = world(200);
    let profile = profile(50, false);
    let mut scheduler = Scheduler::new(profile.clone(), Rng::new(7));
    let mut start = 0;
    for nth in 0..30 {
        let pod = pod(&mut world, &format!("p{nth}"), &json!({}));
        let (found, next) = naive(&profile, &mut world, &pod, start, 1);
        let decision = scheduler.schedule_pod(&mut world, &pod);
        assert_eq!(decision, Decision::Selected { row: found[0], total: 1, n_ties: Some(1) });
        assert_eq!(scheduler.next_start_node_index(), next);
        start = next;
    }
}

/// The pod's affinity names 150 nodes: PreFilter leaves these, 100 feasible ones are enough, and the start advances among them.
#[test]
fn the_search_is_limited_to_the_pre_filter_result() {
    let mut world = world(600);
    let names: Vec<String> = (0..600).step_by(4).map(|nth| format!("n{nth}")).collect();
    let terms: Vec<Value> = names.iter().map(|name| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]})).collect();
    let spec = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
    let profile = profile(20, true);
    let mut scheduler = Scheduler::new(profile, Rng::new(7));
    let pod = pod(&mut world, "p", &spec);
    let Decision::Selected { row, .. } = scheduler.schedule_pod(&mut world, &pod) else {
        panic!("it fits")
    };
    assert!(names.contains(&world.node(row).unwrap().name().to_owned()));
    // There are fewer than 100 feasible nodes, so all 150 were evaluated.
    assert_eq!(scheduler.next_start_node_index(), 150);
}

/// All profiles share one start, and a pod with a nominated node does not advance it.
#[test]
fn all_profiles_share_the_start_of_the_search() {
    let profiles = vec![profile(10, true)];
    let mut engine = Engine::new(
        profiles,
        AllFeatureGates::default().framework_gates(),
        EngineOptions::default(),
    );
    let now = Now { mono: MonoTime(10 * SECOND), wall: Timestamp(0) };
    let mut effects = Effects::new();
    let source = world(400);
    for node in source.node_infos() {
        engine.apply_event(
            now,
            EngineEvent::Upsert(ApiObject::Node(node.node().clone())),
            &mut effects,
        );
    }
    let set = |engine: &mut Engine, name: &str, status: Value| {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
            "status": status,
        }))
        .unwrap();
        engine.apply_event(
            now,
            EngineEvent::Upsert(ApiObject::Pod(Box::new(pod))),
            &mut Effects::new(),
        );
        assert_eq!(engine.cycle(now, &mut Effects::new()), CycleResult::Ran);
    };
    set(&mut engine, "one", json!({}));
    let after_one = engine.search_start;
    assert!(after_one > 100);
    set(&mut engine, "two", json!({"nominatedNodeName": "n0"}));
    assert_eq!(engine.search_start, after_one);
    set(&mut engine, "three", json!({}));
    assert_ne!(engine.search_start, after_one);
}
