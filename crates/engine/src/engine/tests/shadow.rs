//! Comparisons with a plain implementation of kube-scheduler that decides in states of its own, with node sampling by several workers, and
//! whose bindings arrive late and in another order.

use loadmaster_framework::NodeRow;

use super::*;
use crate::engine::shadow::{ShadowResult, ShadowSummary, ShadowVerdict};
use crate::evaluate::{ExtenderResults, FilterResult, per_node};

const N_NODES: usize = 120;
/// The pods of a run; a verdict needs more.
const N_PODS: usize = 300;
const IMAGE: &str = "registry.example/app:1";
const MIB: i64 = 1 << 20;
/// The image's size on three kinds of nodes; the fourth kind does not have it.
const SIZES: [i64; 3] = [100 * MIB, 130 * MIB, 170 * MIB];

fn node_object(nth: usize) -> Node {
    let zone = ["a", "b", "b", "c"][nth % 4];
    let images = match SIZES.get(nth / 4 % 4) {
        Some(size) => json!([{"names": [IMAGE], "sizeBytes": size}]),
        None => json!([]),
    };
    let taints = match nth % 5 {
        0 => json!([{"key": "k", "effect": "PreferNoSchedule"}]),
        _ => json!([]),
    };
    let (name, cpu) = (format!("n{nth}"), ["4", "3", "2"][nth / 2 % 3]);
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {
            "topology.kubernetes.io/zone": zone, "kubernetes.io/hostname": name}},
        "spec": {"taints": taints},
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "30"}, "images": images},
    }))
    .unwrap()
}

fn pod_object(nth: usize, rng: &mut Rng) -> Value {
    let app = ["x", "y", "z"][rng.below(3) as usize];
    let selector = json!({"matchLabels": {"app": app}});
    let mut spec = json!({"priority": if rng.below(8) == 0 { 10 } else { 0 }});
    let image = if rng.below(10) > 0 { IMAGE } else { "other" };
    let cpu = ["50m", "100m", "200m"][rng.below(3) as usize];
    spec["containers"] = json!([{"name": "c", "image": image, "resources": {"requests": {"cpu": cpu, "memory": "200Mi"}}}]);
    match rng.below(4) {
        0 => {
            spec["topologySpreadConstraints"] = json!([{
                "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}]);
        }
        1 => {
            let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": selector});
            spec["affinity"] = json!({"podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 10, "podAffinityTerm": term}]}});
        }
        _ => {}
    }
    let name = format!("p{nth}");
    json!({"metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": app}}, "spec": spec})
}

fn profile_of(percentage: i64, weights: &Value) -> Arc<Profile> {
    let registry = loadmaster_plugins::in_tree_registry();
    let gates = AllFeatureGates::default();
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"percentageOfNodesToScore": percentage, "plugins": {"multiPoint": {"enabled": weights}}}],
    });
    let checked = check_configuration_value(config, &registry, &gates).unwrap();
    Arc::new(Profile::new(&checked.profiles[0], &gates.framework_gates()))
}

/// A scheduler as upstream's, without a cache of evaluations.
struct OtherScheduler {
    profile: Arc<Profile>,
    world: World,
    rng: Rng,
    start: usize,
    n_workers: usize,
}

impl OtherScheduler {
    /// Decides a pod, and assumes it. The sample is one that workers find that are equally fast or stop for a while.
    fn decide(&mut self, pod: &Arc<PodInfo>) -> Option<Str> {
        let order = self.world.nodes().node_tree().rows();
        let mut states = self.profile.states.clone();
        let all = per_node::evaluate_per_node(&self.profile, &mut self.world, &mut states, pod);
        let feasible = |row: NodeRow| {
            all.nodes.iter().any(|it| it.row == row && it.filter_result == FilterResult::Feasible)
        };
        let n_wanted = self.profile.upstream_sampling.num_feasible_nodes_to_find(order.len(), true);
        let sample = self.sample(&order, n_wanted, feasible);
        let excluded = order.iter().copied().filter(|row| !sample.contains(row)).collect();
        let extended = ExtenderResults { excluded, ..ExtenderResults::default() };
        let scored = per_node::evaluate_attempt_with_extenders(
            &self.profile,
            &mut self.world,
            &mut states,
            pod,
            None,
            &extended,
        );
        let best = scored.evaluation.best_nodes();
        let row = *best.get(self.rng.below(best.len().max(1) as u64) as usize)?;
        let node = Str::new(self.world.node(row)?.name());
        let assumed = PodInfo { node_name: node.clone(), ..(**pod).clone() };
        self.world.add_pod(row, Arc::new(assumed));
        Some(node)
    }

    fn sample(
        &mut self,
        order: &[NodeRow],
        n_wanted: usize,
        feasible: impl Fn(NodeRow) -> bool,
    ) -> Vec<NodeRow> {
        let n = order.len();
        let chunk = n.isqrt().min(n / 16 + 1);
        let mut chunks = (0..n).step_by(chunk).map(|from| from..(from + chunk).min(n));
        let mut workers: Vec<_> = chunks.by_ref().take(self.n_workers).collect();
        let mut found = Vec::new();
        while !workers.is_empty() && found.len() < n_wanted {
            let at = self.rng.below(workers.len() as u64) as usize;
            match workers[at].next() {
                Some(nth) => {
                    let row = order[(self.start + nth) % n];
                    found.extend(feasible(row).then_some(row));
                }
                None => match chunks.next() {
                    Some(next) => workers[at] = next,
                    None => drop(workers.swap_remove(at)),
                },
            }
        }
        self.start = (self.start + found.len()) % n;
        found
    }
}

/// One run: what the engine says of this many decisions.
struct ShadowRun {
    engine: Engine,
    other: OtherScheduler,
    now: Now,
    summary: ShadowSummary,
    unexplained: Vec<String>,
}

impl ShadowRun {
    fn new(seed: u64, percentage: i64, n_workers: usize, their_weights: &Value) -> ShadowRun {
        let options = EngineOptions { shadow: true, ..EngineOptions::default() };
        let gates = AllFeatureGates::default().framework_gates();
        let rng = Rng::new(seed);
        let mut other = OtherScheduler {
            profile: profile_of(percentage, their_weights),
            world: World::default(),
            rng: rng.split("other"),
            start: 0,
            n_workers,
        };
        let profile = profile_of(percentage, &json!([]));
        let now = Now { mono: MonoTime(10 * SECOND), wall: Timestamp(SECOND as i64) };
        let mut run = ShadowRun {
            engine: Engine::new(vec![profile], gates, options),
            now,
            summary: ShadowSummary::default(),
            unexplained: Vec::new(),
            other: {
                for nth in 0..N_NODES {
                    other.world.upsert_node(Arc::new(node_object(nth)));
                }
                other.world.replace_image_size(IMAGE, SIZES[1]);
                other
            },
        };
        for nth in 0..N_NODES {
            run.apply(ApiObject::Node(Arc::new(node_object(nth))));
        }
        run
    }

    fn apply(&mut self, object: ApiObject) {
        let mut effects = Effects::new();
        self.engine.apply_event(self.now, EngineEvent::Upsert(object), &mut effects);
        self.observe(effects);
        self.advance(SECOND / 1000);
    }

    fn advance(&mut self, nanos: u64) {
        self.now.mono = MonoTime(self.now.mono.0 + nanos);
        if self.engine.next_timeout().is_some_and(|due| due <= self.now.mono) {
            let mut effects = Effects::new();
            self.engine.handle_timeouts(self.now, &mut effects);
            self.observe(effects);
        }
    }

    fn observe(&mut self, effects: Effects) {
        for effect in effects {
            if let Effect::Observe(Observation::ShadowCompared(comparison)) = effect {
                self.summary.add(&comparison, None);
                if let ShadowResult::Unexplained(_) = comparison.result {
                    self.unexplained.push(comparison.to_string());
                }
            }
        }
    }

    fn bind(&mut self, mut pod: Value, node: &Str) {
        pod["spec"]["nodeName"] = json!(node.as_str());
        self.apply(ApiObject::Pod(serde_json::from_value(pod).unwrap()));
    }

    /// Pods arrive in groups; each group is decided in the order of the queue, and bound in nearly that order. Some pods are tried again among
    /// those of the next group.
    fn run(&mut self, n_pods: usize, seed: u64) {
        let mut rng = Rng::new(seed).split("pods");
        let mut retries = Rng::new(seed).split("retries");
        let (mut in_flight, mut retried): (Vec<(Value, Str)>, Vec<_>) = (Vec::new(), Vec::new());
        for group in 0..n_pods / 20 {
            let objects: Vec<Value> =
                (0..20).map(|nth| pod_object(20 * group + nth, &mut rng)).collect();
            let mut queue = Vec::new();
            for object in objects {
                let pod: Pod = serde_json::from_value(object.clone()).unwrap();
                let info = Arc::new(self.other.world.parse_pod(&pod).unwrap());
                self.apply(ApiObject::Pod(Box::new(pod)));
                queue.push((object, info));
            }
            queue.sort_by_key(|(_, info)| std::cmp::Reverse(info.template.priority()));
            let is_last = group + 1 == n_pods / 20;
            let is_retried = |_: &mut (_, _)| !is_last && retries.below(10) == 0;
            let postponed: Vec<_> = queue.extract_if(.., is_retried).collect();
            for pod in std::mem::replace(&mut retried, postponed) {
                queue.insert(retries.below(queue.len() as u64) as usize, pod);
            }
            for (object, info) in queue {
                if let Some(node) = self.other.decide(&info) {
                    in_flight.push((object, node));
                }
                if in_flight.len() > 6 {
                    let (object, node) = in_flight.remove(rng.below(6) as usize);
                    self.bind(object, &node);
                }
            }
        }
        for (object, node) in in_flight {
            self.bind(object, &node);
        }
        self.advance(5 * SECOND);
    }
}

#[test]
fn every_decision_of_upstream_is_explained() {
    let check = |percentage: i64, n_workers: usize| {
        let seed = 3 << 20 | (percentage as u64) << 8 | n_workers as u64;
        let mut run = ShadowRun::new(seed, percentage, n_workers, &json!([]));
        run.run(N_PODS, seed);
        assert_eq!(run.unexplained, Vec::<String>::new(), "{percentage} %, {n_workers} workers");
        assert_eq!(run.summary.n_compared(), N_PODS as u64);
        let report = run.summary.to_json();
        assert!(report["results"]["not_examined"].is_null(), "{report:#}");
        let by_sampling = !report["results"]["better_node_missed"].is_null();
        assert_eq!(by_sampling, percentage == 0, "{report:#}");
        assert!(report["explainedByOrderOf"]["images"].as_u64() > Some(5), "{report:#}");
    };
    check(100, 1);
    check(0, 2);
    check(0, 16);
}

#[test]
fn a_changed_weight_is_found() {
    let check = |percentage: i64, plugin: &str, weight: i64| {
        let weights = json!([{"name": plugin, "weight": weight}]);
        let mut run = ShadowRun::new(7, percentage, 2, &weights);
        run.run(1020, 7);
        assert_eq!(run.summary.verdict(), ShadowVerdict::Differs, "{plugin}: {}", run.summary);
        assert!(run.summary.differing_plugins().contains(&plugin), "{}", run.summary);
    };
    check(100, "NodeResourcesFit", 10);
    check(0, "ImageLocality", 10);
}
