//! Differential test: random histories in which every fast decision is compared with per-node evaluation of every plugin.
//!
//! The world changes as clusters do: pods are assigned, removed, marked for deletion and nominated; nodes are added, removed, and
//! change labels, taints, images and allocatable; namespaces change labels. Pods come from a pool of templates, some often and some
//! once, so that score indexes, full scans and the switch between them all occur. Now and then some pods are scheduled in a trial of
//! the world, which is undone.

use std::sync::Arc;

use loadmaster_api::{Namespace, Node, Pod, Str};
use loadmaster_engine::evaluate::per_node;
use loadmaster_engine::{Decision, Profile, Scheduler};
use loadmaster_framework::world::Trial;
use loadmaster_framework::{FeatureGates, NodeRow, PodInfo, World};
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

/// The size of a history.
#[derive(Clone, Copy, Debug)]
pub struct HistoryOptions {
    pub seed: u64,
    pub steps: u32,
    /// Nodes at the beginning; the number changes over time.
    pub n_nodes: u32,
    /// Different pod templates in the pool.
    pub n_templates: u32,
    /// Values of the label `rack`.
    pub n_racks: u64,
}

impl HistoryOptions {
    /// Sizes drawn from the seed: mostly small worlds, sometimes many nodes, racks or templates.
    pub fn random(seed: u64, steps: u32) -> HistoryOptions {
        let mut rng = Rng::new(seed).split("options");
        let n_nodes = if rng.one_in(8) { 200 } else { rng.range(1, 40) as u32 };
        let n_templates = if rng.one_in(6) { 1_000 } else { rng.range(1, 40) as u32 };
        let n_racks = if rng.one_in(5) { 60 } else { rng.range(1, 8) as u64 };
        HistoryOptions { seed, steps, n_nodes, n_templates, n_racks }
    }
}

/// Counts of a history without a difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryReport {
    pub decisions: u64,
    pub placed: u64,
    pub unschedulable: u64,
    /// Nodes whose filter result and total score were compared.
    pub compared_nodes: u64,
    /// Hash of all placements: two runs with the same seed have the same.
    pub trace: u64,
}

/// A fast decision that differs from per-node evaluation.
#[derive(Clone, Debug, thiserror::Error)]
#[error("seed {seed}, step {step}, pod {pod}: fast {fast:?}, per node {slow:?}\n{manifest}")]
pub struct DecisionDifference {
    pub seed: u64,
    pub step: u32,
    pub pod: String,
    pub fast: Vec<(String, i64)>,
    pub slow: Vec<(String, i64)>,
    pub manifest: String,
}

/// Runs one history.
///
/// # Errors
///
/// The first difference.
pub fn run_history(
    profile: &Arc<Profile>,
    options: HistoryOptions,
) -> Result<HistoryReport, Box<DecisionDifference>> {
    let mut history = History::new(profile.clone(), options);
    for step in 0..options.steps {
        history.change_world();
        if history.rng.one_in(10) {
            history.schedule_pods_in_a_trial(step)?;
        }
        history.schedule_pod(step)?;
    }
    Ok(history.report)
}

const NAMESPACES: [&str; 3] = ["default", "blue", "green"];
const APPS: [&str; 4] = ["a", "b", "c", "d"];

struct History {
    options: HistoryOptions,
    rng: Rng,
    world: World,
    scheduler: Scheduler,
    profile: Arc<Profile>,
    pool: Vec<Option<(Value, Pod)>>,
    assigned: Vec<Arc<PodInfo>>,
    nodes: Vec<String>,
    n_nodes_made: u32,
    n_pods_made: u32,
    report: HistoryReport,
}

impl History {
    fn new(profile: Arc<Profile>, options: HistoryOptions) -> History {
        let rng = Rng::new(options.seed);
        let mut history = History {
            options,
            world: World::new(FeatureGates::default()),
            scheduler: Scheduler::new(profile.clone(), rng.split("ties")),
            rng: rng.split("history"),
            profile,
            pool: vec![None; options.n_templates as usize],
            assigned: Vec::new(),
            nodes: Vec::new(),
            n_nodes_made: 0,
            n_pods_made: 0,
            report: HistoryReport::default(),
        };
        for name in NAMESPACES {
            history.set_namespace(name);
        }
        for _ in 0..options.n_nodes {
            history.add_node();
        }
        history
    }

    /// Changes the world in one way, or most often not at all.
    fn change_world(&mut self) {
        match self.rng.below(40) {
            0..=9 => self.remove_pod(),
            10 => self.mark_pod_terminating(),
            11 => self.add_node(),
            12 => self.remove_node(),
            13..=15 => self.change_node(),
            16 if self.rng.one_in(6) => {
                let name = *self.rng.pick(&NAMESPACES);
                self.set_namespace(name);
            }
            17 if self.rng.one_in(4) => self.nominate_pod(),
            18 => self.clear_nominations(),
            _ => {}
        }
    }

    fn schedule_pod(&mut self, step: u32) -> Result<(), Box<DecisionDifference>> {
        let Some((manifest, pod)) = self.next_pod() else { return Ok(()) };
        let Ok(pod) = self.world.parse_pod(&pod) else { return Ok(()) };
        let pod = Arc::new(pod);
        let fast = self.scheduler.feasible_total_scores(&mut self.world, &pod);
        let nominated = self.world.nominated_nodes().next().is_some();
        let evaluation = per_node::evaluate_per_node(
            &self.profile,
            &mut self.world,
            &mut self.profile.states.clone(),
            &pod,
        );
        let slow = per_node::feasible_total_scores(&evaluation);
        self.report.compared_nodes += self.world.nodes().len() as u64;
        self.report.decisions += 1;
        if fast != slow && !nominated {
            return Err(self.difference(step, &pod, &manifest, &fast, &slow));
        }
        let decision = self.scheduler.schedule_pod(&mut self.world, &pod);
        let best = evaluation.best_nodes();
        match decision {
            Decision::Selected { row, n_ties, .. }
                if best.contains(&row) && n_ties == best.len() as u64 =>
            {
                let node_name =
                    self.world.node(row).map_or(Str::default(), |node| Str::new(node.name()));
                let placed = Arc::new(PodInfo { node_name, ..(*pod).clone() });
                self.world.add_pod(row, placed.clone());
                self.assigned.push(placed);
                self.report.placed += 1;
                self.report.trace = self.report.trace.rotate_left(5) ^ u64::from(row.0 + 1);
                Ok(())
            }
            Decision::Unschedulable if best.is_empty() => {
                self.report.unschedulable += 1;
                Ok(())
            }
            _ => Err(self.difference(step, &pod, &manifest, &fast, &slow)),
        }
    }

    /// Schedules some pods in a trial of the world, and undoes it: later decisions must not be affected.
    fn schedule_pods_in_a_trial(&mut self, step: u32) -> Result<(), Box<DecisionDifference>> {
        let mut pods = Vec::new();
        for _ in 0..self.rng.range(1, 4) {
            let Some((manifest, pod)) = self.next_pod() else { continue };
            pods.extend(self.world.parse_pod(&pod).ok().map(|pod| (manifest, Arc::new(pod))));
        }
        let mut different = None;
        let mut trial = Trial::new(&mut self.world);
        if !self.assigned.is_empty() {
            trial.evict(&self.rng.pick(&self.assigned).uid);
        }
        for (manifest, pod) in pods {
            let fast = self.scheduler.feasible_total_scores(trial.world_mut(), &pod);
            let mut states = self.profile.states.clone();
            let evaluation =
                per_node::evaluate_per_node(&self.profile, trial.world_mut(), &mut states, &pod);
            let slow = per_node::feasible_total_scores(&evaluation);
            self.report.compared_nodes += trial.nodes().len() as u64;
            if fast != slow && trial.nominated_nodes().next().is_none() {
                different = Some((pod, manifest, fast, slow));
                break;
            }
            let decision = self.scheduler.schedule_pod(trial.world_mut(), &pod);
            if let Decision::Selected { row, .. } = decision {
                trial.assume(row, pod);
            }
        }
        trial.undo();
        match different {
            None => Ok(()),
            Some((pod, manifest, fast, slow)) => {
                Err(self.difference(step, &pod, &manifest, &fast, &slow))
            }
        }
    }

    fn difference(
        &self,
        step: u32,
        pod: &PodInfo,
        manifest: &Value,
        fast: &[(NodeRow, i64)],
        slow: &[(NodeRow, i64)],
    ) -> Box<DecisionDifference> {
        let named = |rows: &[(NodeRow, i64)]| {
            let name = |row| self.world.node(row).map_or("?", |node| node.name()).to_owned();
            rows.iter().map(|(row, total)| (name(*row), *total)).collect()
        };
        Box::new(DecisionDifference {
            seed: self.options.seed,
            step,
            pod: pod.full_name(),
            fast: named(fast),
            slow: named(slow),
            manifest: format!("{manifest:#}"),
        })
    }

    /// Takes a template from the pool: the first two often, the others seldom.
    fn next_pod(&mut self) -> Option<(Value, Pod)> {
        let n = self.pool.len() as u64;
        let at =
            if self.rng.one_in(2) { self.rng.below(n.min(2)) } else { self.rng.below(n) } as usize;
        if self.pool[at].is_none() || self.rng.one_in(400) {
            let manifest = self.random_pod();
            let pod: Pod = serde_json::from_value(manifest.clone()).ok()?;
            self.pool[at] = Some((manifest, pod));
        }
        let (manifest, mut pod) = self.pool[at].clone()?;
        self.n_pods_made += 1;
        pod.metadata.name = format!("pod-{}", self.n_pods_made).into();
        Some((manifest, pod))
    }

    fn remove_pod(&mut self) {
        if self.assigned.is_empty() {
            return;
        }
        let at = self.rng.below(self.assigned.len() as u64) as usize;
        let pod = self.assigned.swap_remove(at);
        self.world.remove_pod(&pod.uid);
    }

    fn mark_pod_terminating(&mut self) {
        if self.assigned.is_empty() {
            return;
        }
        let at = self.rng.below(self.assigned.len() as u64) as usize;
        let pod = Arc::new(PodInfo { terminating: true, ..(*self.assigned[at]).clone() });
        if let Some(row) = self.world.row_of_pod(&pod.uid) {
            self.world.add_pod(row, pod.clone());
            self.assigned[at] = pod;
        }
    }

    fn nominate_pod(&mut self) {
        let Some((_, pod)) = self.next_pod() else { return };
        if self.nodes.is_empty() {
            return;
        }
        let node = Str::new(self.rng.pick(&self.nodes).as_str());
        if let Ok(pod) = self.world.parse_pod(&pod) {
            self.world.add_nominated_pod(node, Arc::new(pod));
        }
    }

    fn clear_nominations(&mut self) {
        let nodes: Vec<Str> = self.world.nominated_nodes().cloned().collect();
        let uids = nodes
            .iter()
            .flat_map(|node| self.world.nominated_pods_for_node(node))
            .map(|pod| pod.uid.clone());
        for uid in uids.collect::<Vec<_>>() {
            self.world.delete_nominated_pod(&uid);
        }
    }

    fn set_namespace(&mut self, name: &str) {
        let value =
            json!({"metadata": {"name": name, "labels": {"team": self.rng.pick(&["x", "y"])}}});
        if let Ok(namespace) = serde_json::from_value::<Namespace>(value) {
            self.world.upsert_namespace(Arc::new(namespace));
        }
    }

    fn add_node(&mut self) {
        let name = format!("node-{}", self.n_nodes_made);
        self.n_nodes_made += 1;
        self.set_node(&name);
        self.nodes.push(name);
    }

    fn remove_node(&mut self) {
        if self.nodes.len() <= 1 {
            return;
        }
        let at = self.rng.below(self.nodes.len() as u64) as usize;
        let name = self.nodes.swap_remove(at);
        for pod in self.world.remove_node(&name) {
            self.assigned.retain(|known| known.uid != pod.uid);
        }
    }

    fn change_node(&mut self) {
        if let Some(name) = (!self.nodes.is_empty()).then(|| self.rng.pick(&self.nodes).clone()) {
            self.set_node(&name);
        }
    }

    fn set_node(&mut self, name: &str) {
        let value = self.random_node(name);
        if let Ok(node) = serde_json::from_value::<Node>(value) {
            self.world.upsert_node(Arc::new(node));
        }
    }

    fn random_node(&mut self, name: &str) -> Value {
        let n_racks = self.options.n_racks;
        let rng = &mut self.rng;
        let mut labels =
            json!({"kubernetes.io/hostname": name, "disk": *rng.pick(&["ssd", "hdd"])});
        if !rng.one_in(12) {
            labels["topology.kubernetes.io/zone"] =
                json!(*rng.pick(&["z1", "z2", "z3", "z3", "z2", "z1", "z1", ""]));
        }
        if !rng.one_in(6) {
            labels["rack"] = json!(format!("r{}", rng.below(n_racks)));
        }
        if rng.one_in(15) {
            labels["kubernetes.io/hostname"] = json!("shared");
        }
        let mut taints = Vec::new();
        for (key, effect) in
            [("gpu", "NoSchedule"), ("spot", "PreferNoSchedule"), ("old", "PreferNoSchedule")]
        {
            if rng.one_in(6) {
                taints.push(json!({"key": key, "effect": effect}));
            }
        }
        let mut images = Vec::new();
        for (image, size) in [("app:v1", 500_000_000_u64), ("db:v2", 900_000_000)] {
            if rng.one_in(3) {
                images.push(json!({"names": [image], "sizeBytes": size}));
            }
        }
        json!({
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": taints, "unschedulable": rng.one_in(20)},
            "status": {
                "allocatable": {
                    "cpu": *rng.pick(&["2", "4", "7500m", "16"]),
                    "memory": *rng.pick(&["4Gi", "8Gi", "30Gi"]),
                    "pods": *rng.pick(&["5", "10", "20"]),
                    "example.com/gpu": rng.below(3).to_string(),
                },
                "images": images,
            },
        })
    }

    fn random_pod(&mut self) -> Value {
        let rng = &mut self.rng;
        let app = *rng.pick(&APPS);
        let mut requests = json!({});
        if !rng.one_in(5) {
            requests["cpu"] = json!(*rng.pick(&["100m", "250m", "1", "1500m"]));
            requests["memory"] = json!(*rng.pick(&["64Mi", "256Mi", "1Gi"]));
        }
        if rng.one_in(8) {
            requests["example.com/gpu"] = json!("1");
        }
        let image = *rng.pick(&["app:v1", "db:v2", "none"]);
        let mut container =
            json!({"name": "main", "image": image, "resources": {"requests": requests}});
        if rng.one_in(10) {
            container["ports"] = json!([{"hostPort": 8000 + rng.below(2), "containerPort": 80}]);
        }
        let mut spec = json!({"containers": [container], "priority": rng.below(3)});
        if rng.one_in(4) {
            spec["tolerations"] =
                json!([{"key": *rng.pick(&["gpu", "spot"]), "operator": "Exists"}]);
        }
        if rng.one_in(3) {
            spec["topologySpreadConstraints"] = random_spread(rng);
        }
        spec["affinity"] = random_affinity(rng);
        let namespace = *rng.pick(&NAMESPACES);
        let labels = json!({"app": app, "tier": *rng.pick(&["web", "db"])});
        json!({"metadata": {"namespace": namespace, "labels": labels}, "spec": spec})
    }
}

fn random_selector(rng: &mut Rng) -> Value {
    match rng.below(5) {
        0 => json!({"matchLabels": {"tier": *rng.pick(&["web", "db"])}}),
        1 => {
            json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [*rng.pick(&APPS)]}]})
        }
        2 => {
            json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", *rng.pick(&APPS)]}]})
        }
        _ => json!({"matchLabels": {"app": *rng.pick(&APPS)}}),
    }
}

const KEYS: [&str; 3] = ["topology.kubernetes.io/zone", "kubernetes.io/hostname", "rack"];

fn random_spread(rng: &mut Rng) -> Value {
    let n = 1 + rng.below(2);
    let constraint = |rng: &mut Rng, key: &str| {
        let mut constraint = json!({
            "maxSkew": rng.range(1, 3),
            "topologyKey": key,
            "whenUnsatisfiable": *rng.pick(&["DoNotSchedule", "ScheduleAnyway"]),
            "labelSelector": random_selector(rng),
        });
        if constraint["whenUnsatisfiable"] == "DoNotSchedule" && rng.one_in(4) {
            constraint["minDomains"] = json!(rng.range(1, 4));
        }
        if rng.one_in(3) {
            constraint["nodeTaintsPolicy"] = json!("Honor");
        }
        if rng.one_in(4) {
            constraint["nodeAffinityPolicy"] = json!("Ignore");
        }
        constraint
    };
    let start = rng.below(3) as usize;
    (0..n as usize).map(|at| constraint(rng, KEYS[(start + at) % 3])).collect()
}

fn random_affinity(rng: &mut Rng) -> Value {
    let mut affinity = json!({});
    if rng.one_in(4) {
        let operator = *rng.pick(&["In", "NotIn"]);
        let term =
            json!({"matchExpressions": [{"key": "disk", "operator": operator, "values": ["ssd"]}]});
        affinity["nodeAffinity"] = if rng.one_in(2) {
            json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}})
        } else {
            json!({"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": rng.range(1, 100), "preference": term}]})
        };
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        if rng.one_in(5) {
            affinity[kind] =
                json!({"requiredDuringSchedulingIgnoredDuringExecution": [random_term(rng)]});
        }
        if rng.one_in(5) {
            let preferred =
                json!([{"weight": rng.range(1, 100), "podAffinityTerm": random_term(rng)}]);
            affinity[kind]["preferredDuringSchedulingIgnoredDuringExecution"] = preferred;
        }
    }
    affinity
}

fn random_term(rng: &mut Rng) -> Value {
    let mut term = json!({"topologyKey": *rng.pick(&KEYS), "labelSelector": random_selector(rng)});
    if rng.one_in(3) {
        term["namespaces"] = json!([*rng.pick(&NAMESPACES)]);
    }
    if rng.one_in(4) {
        term["namespaceSelector"] = json!({"matchLabels": {"team": *rng.pick(&["x", "y"])}});
    }
    term
}
