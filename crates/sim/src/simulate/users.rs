//! What is asked of the cluster: people and controllers create, change and delete; kubelets run and end pods.

use std::sync::Arc;

use loadmaster_api::{Node, Pod, PodDisruptionBudget, Str, Timestamp};
use loadmaster_stdx::Rng;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::truth::{Truth, has_ended};

/// What happens in a run; each is drawn by the seed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Habits {
    /// Pods ask for hardware, and nodes differ.
    selectors: bool,
    taints: bool,
    ports: bool,
    anti_affinity: bool,
    affinity: bool,
    spread: bool,
    priorities: bool,
    gates: bool,
    budgets: bool,
    /// Somebody else binds pods, too, and some of ours.
    other_scheduler: bool,
    node_flaps: bool,
    node_changes: bool,
    pod_changes: bool,
    deletions: bool,
    /// Deleted pods come back under their names.
    replacements: bool,
}

impl Habits {
    pub fn draw(rng: &mut Rng) -> Habits {
        let rare = |rng: &mut Rng| rng.one_in(3);
        let usual = |rng: &mut Rng| !rng.one_in(3);
        Habits {
            selectors: rare(rng),
            taints: rare(rng),
            ports: rare(rng),
            anti_affinity: rare(rng),
            affinity: rare(rng),
            spread: rare(rng),
            priorities: usual(rng),
            gates: rare(rng),
            budgets: rare(rng),
            other_scheduler: rare(rng),
            node_flaps: rare(rng),
            node_changes: usual(rng),
            pod_changes: rare(rng),
            deletions: usual(rng),
            replacements: rare(rng),
        }
    }
}

const N_TEMPLATES_MAX: i64 = 8;
const N_NODES_MAX: i64 = 12;
/// Nobody creates more pods than this at a time.
const N_PODS_MAX: usize = 120;
const TAINT: &str = "dedicated";

pub(super) struct Users {
    rng: Rng,
    habits: Habits,
    templates: Vec<Pod>,
    /// Nodes that are away and come back.
    away: Vec<Arc<Node>>,
    n_pods: u64,
    n_nodes: u64,
}

impl Users {
    pub fn new(mut rng: Rng, truth: &mut Truth) -> Users {
        let habits = Habits::draw(&mut rng);
        let n = rng.range(1, N_TEMPLATES_MAX);
        let templates = (0..n).filter_map(|nth| template(&mut rng, &habits, nth)).collect();
        let n_nodes = rng.range(1, N_NODES_MAX);
        let away = Vec::new();
        let mut users = Users { rng, habits, templates, away, n_pods: 0, n_nodes: 0 };
        for _ in 0..n_nodes {
            users.add_node(truth);
        }
        if habits.budgets {
            users.set_budget(truth);
        }
        users
    }

    /// Number of pods created.
    pub fn n_pods(&self) -> u64 {
        self.n_pods
    }

    /// One thing is done, or none.
    pub fn act(&mut self, truth: &mut Truth, now: Timestamp) {
        let habits = self.habits;
        match self.rng.below(32) {
            0..=6 => self.create_pods(truth, now),
            7..=10 if habits.deletions => self.delete_pod(truth, now),
            11 | 12 => self.end_pod(truth),
            13 if habits.node_flaps => self.flap(truth),
            14 if habits.node_changes && self.rng.one_in(3) => self.add_node(truth),
            15 | 16 if habits.node_changes => self.change_node(truth),
            17 | 18 if habits.gates => self.lift_gate(truth),
            19 if habits.budgets => self.set_budget(truth),
            20 if habits.other_scheduler => self.bind_elsewhere(truth),
            21 | 22 if habits.pod_changes => self.change_pod(truth),
            _ => {}
        }
    }

    /// Kubelets and the garbage collector do what is due: now and then, or all of it at once.
    pub fn keep_house(&mut self, truth: &mut Truth, now: Timestamp, all: bool) {
        for name in truth.pods_that(|pod| !pod.spec.node_name.is_empty()) {
            if !all && !self.rng.one_in(4) {
                continue;
            }
            let Some(pod) = truth.pod(&name) else { continue };
            let is_lost = truth.node(&pod.spec.node_name).is_none();
            if pod.metadata.deletion_timestamp.is_some() || (is_lost && (all || self.rng.one_in(8)))
            {
                truth.remove_pod(&name);
                if self.habits.replacements && !all && self.rng.one_in(2) {
                    self.create_like(truth, &name, now);
                }
            } else if pod.status.phase.is_empty() && !is_lost {
                truth.change_pod(&name, |pod| {
                    pod.status.phase = Str::new("Running");
                    pod.status.start_time = Some(now);
                });
            }
        }
    }

    /// Whether there is anything left for [`Users::keep_house`].
    pub fn is_house_kept(truth: &Truth) -> bool {
        let is_due = |pod: &Pod| {
            !pod.spec.node_name.is_empty()
                && (pod.metadata.deletion_timestamp.is_some()
                    || truth.node(&pod.spec.node_name).is_none()
                    || pod.status.phase.is_empty())
        };
        !truth.pods().any(is_due)
    }

    /// Nodes that are away come back, and stay.
    pub fn settle(&mut self, truth: &mut Truth) {
        for node in self.away.drain(..) {
            truth.set_node((*node).clone());
        }
    }

    fn create_pods(&mut self, truth: &mut Truth, now: Timestamp) {
        let n = if self.rng.one_in(6) { self.rng.range(4, 12) } else { self.rng.range(1, 3) };
        if self.templates.is_empty() || truth.pods().count() > N_PODS_MAX {
            return;
        }
        let template = self.rng.pick(&self.templates).clone();
        for _ in 0..n {
            let name = format!("p{}", self.n_pods);
            self.create(truth, &template, &name, now);
        }
    }

    fn create(&mut self, truth: &mut Truth, template: &Pod, name: &str, now: Timestamp) {
        let mut pod = template.clone();
        pod.metadata.name = name.into();
        pod.metadata.uid = format!("u{}", self.n_pods).into();
        pod.metadata.creation_timestamp = Some(now);
        pod.metadata.generation = 1;
        self.n_pods += 1;
        truth.create_pod(pod);
    }

    /// A pod of a name that was there before.
    fn create_like(&mut self, truth: &mut Truth, full_name: &str, now: Timestamp) {
        let name = full_name.split('/').next_back().unwrap_or(full_name);
        if !self.templates.is_empty() {
            let template = self.rng.pick(&self.templates).clone();
            self.create(truth, &template, name, now);
        }
    }

    fn any_pod(&mut self, truth: &Truth, is_wanted: impl Fn(&Pod) -> bool) -> Option<String> {
        let names = truth.pods_that(is_wanted);
        if names.is_empty() { None } else { Some(self.rng.pick(&names).clone()) }
    }

    fn delete_pod(&mut self, truth: &mut Truth, now: Timestamp) {
        let waits = self.rng.one_in(2);
        let found = self.any_pod(truth, |pod| pod.spec.node_name.is_empty() == waits);
        let Some(name) = found else { return };
        truth.delete_pod(&name, now);
        if waits && self.habits.replacements && self.rng.one_in(2) && truth.pod(&name).is_none() {
            self.create_like(truth, &name, now);
        }
    }

    /// A pod that runs succeeds or fails, or one that did is cleared away. Now and then one fails that never ran.
    fn end_pod(&mut self, truth: &mut Truth) {
        let odd = self.rng.one_in(10);
        let Some(name) = self.any_pod(truth, |pod| odd || !pod.spec.node_name.is_empty()) else {
            return;
        };
        if truth.pod(&name).is_some_and(has_ended) {
            return truth.remove_pod(&name);
        }
        let phase = if self.rng.one_in(2) { "Succeeded" } else { "Failed" };
        truth.change_pod(&name, |pod| pod.status.phase = Str::new(phase));
    }

    fn lift_gate(&mut self, truth: &mut Truth) {
        if let Some(name) = self.any_pod(truth, |pod| !pod.spec.scheduling_gates.is_empty()) {
            truth.change_pod(&name, |pod| drop(pod.spec.scheduling_gates.pop()));
        }
    }

    fn change_pod(&mut self, truth: &mut Truth) {
        let value = *self.rng.pick(&["web", "db", "cache"]);
        if let Some(name) = self.any_pod(truth, |pod| !has_ended(pod)) {
            truth.change_pod(&name, |pod| {
                let labels = std::mem::take(&mut pod.metadata.labels);
                pod.metadata.labels = labels.with("app", Str::new(value));
            });
        }
    }

    fn bind_elsewhere(&mut self, truth: &mut Truth) {
        let nodes: Vec<Str> = truth.nodes().map(|node| Str::new(node.name())).collect();
        let waits = |pod: &Pod| pod.spec.node_name.is_empty() && !has_ended(pod);
        if let Some(name) = self.any_pod(truth, waits)
            && !nodes.is_empty()
        {
            // It may be refused as any other.
            let _ = truth.bind(&name, self.rng.pick(&nodes).clone());
        }
    }

    fn any_node(&mut self, truth: &Truth) -> Option<Arc<Node>> {
        let nodes: Vec<Arc<Node>> = truth.nodes().cloned().collect();
        if nodes.is_empty() { None } else { Some(self.rng.pick(&nodes).clone()) }
    }

    fn add_node(&mut self, truth: &mut Truth) {
        let name = format!("n{}", self.n_nodes);
        if let Some(node) = node(&mut self.rng, &self.habits, &name) {
            self.n_nodes += 1;
            truth.set_node(node);
        }
    }

    fn flap(&mut self, truth: &mut Truth) {
        if let Some(node) = self.away.pop() {
            return truth.set_node((*node).clone());
        }
        if let Some(node) = self.any_node(truth) {
            self.away.extend(truth.remove_node(&Str::new(node.name())));
        }
    }

    /// Some part of a node becomes that of another one.
    fn change_node(&mut self, truth: &mut Truth) {
        let Some(old) = self.any_node(truth) else { return };
        let Some(other) = node(&mut self.rng, &self.habits, old.name()) else { return };
        let mut new = (*old).clone();
        match self.rng.below(4) {
            0 => new.metadata = other.metadata,
            1 => new.spec = other.spec,
            2 => new.spec.unschedulable = !new.spec.unschedulable,
            _ => new.status = other.status,
        }
        truth.set_node(new);
    }

    fn set_budget(&mut self, truth: &mut Truth) {
        let app = *self.rng.pick(&["web", "db", "cache"]);
        let allowed = self.rng.range(0, 2);
        let budget: Option<PodDisruptionBudget> = read(json!({
            "metadata": {"name": app, "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": app}}},
            "status": {"disruptionsAllowed": allowed},
        }));
        if let Some(budget) = budget {
            truth.set_budget(budget);
        }
    }
}

fn node(rng: &mut Rng, habits: &Habits, name: &str) -> Option<Node> {
    let labels = json!({
        "kubernetes.io/hostname": name,
        "topology.kubernetes.io/zone": *rng.pick(&["z1", "z2", "z3"]),
        "disk": if habits.selectors { *rng.pick(&["ssd", "hdd"]) } else { "ssd" },
    });
    let taints = match habits.taints && rng.one_in(3) {
        true => {
            json!([{"key": TAINT, "value": "a", "effect": *rng.pick(&["NoSchedule", "NoExecute", "PreferNoSchedule"])}])
        }
        false => json!([]),
    };
    read(json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints},
        "status": {"allocatable": {
            "cpu": *rng.pick(&["1", "2", "4", "8"]),
            "memory": *rng.pick(&["2Gi", "4Gi", "16Gi"]),
            "pods": *rng.pick(&["3", "8", "110"]),
        }},
    }))
}

fn template(rng: &mut Rng, habits: &Habits, nth: i64) -> Option<Pod> {
    let app = *rng.pick(&["web", "db", "cache"]);
    let selector = json!({"matchLabels": {"app": app}});
    let term = |key: &str| json!([{"labelSelector": selector, "topologyKey": key}]);
    let requests = json!({
        "cpu": *rng.pick(&["0", "100m", "500m", "1", "2"]),
        "memory": *rng.pick(&["64Mi", "1Gi", "2Gi"]),
    });
    let mut container = json!({"name": "c", "image": "web:2", "resources": {"requests": requests}});
    if habits.ports && rng.one_in(2) {
        container["ports"] = json!([{"containerPort": 80, "hostPort": rng.range(8_000, 8_001)}]);
    }
    let mut spec = json!({"schedulerName": "default-scheduler", "containers": [container]});
    if habits.priorities {
        spec["priority"] = json!(*rng.pick(&[-10, 0, 0, 10, 1000]));
        if rng.one_in(6) {
            spec["preemptionPolicy"] = json!("Never");
        }
    }
    if habits.selectors && rng.one_in(2) {
        spec["nodeSelector"] = json!({"disk": *rng.pick(&["ssd", "hdd"])});
    }
    if habits.taints && rng.one_in(2) {
        spec["tolerations"] = json!([{"key": TAINT, "operator": "Exists"}]);
    }
    if habits.gates && rng.one_in(2) {
        spec["schedulingGates"] = json!([{"name": "a"}, {"name": "b"}]);
    }
    let zone_or_host = *rng.pick(&["topology.kubernetes.io/zone", "kubernetes.io/hostname"]);
    if habits.anti_affinity && rng.one_in(2) {
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        spec["affinity"]["podAntiAffinity"] = json!({required: term(zone_or_host)});
    }
    if habits.affinity && rng.one_in(3) {
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        spec["affinity"]["podAffinity"] = json!({required: term("topology.kubernetes.io/zone")});
    }
    if habits.spread && rng.one_in(2) {
        spec["topologySpreadConstraints"] = json!([{
            "maxSkew": rng.range(1, 2),
            "topologyKey": zone_or_host,
            "whenUnsatisfiable": *rng.pick(&["DoNotSchedule", "DoNotSchedule", "ScheduleAnyway"]),
            "labelSelector": selector,
        }]);
    }
    if habits.other_scheduler && nth > 0 && rng.one_in(6) {
        spec["schedulerName"] = json!("other");
    }
    let labels = json!({"app": app});
    read(json!({"metadata": {"namespace": "default", "name": "", "labels": labels}, "spec": spec}))
}

/// What is written here is well formed; a unit test reads all of it.
fn read<T: DeserializeOwned>(value: Value) -> Option<T> {
    serde_json::from_value(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_drawn_can_be_read() {
        for seed in 0..500 {
            let mut rng = Rng::new(seed);
            let habits = Habits::draw(&mut rng);
            assert!(node(&mut rng, &habits, "n").is_some(), "seed {seed}");
            assert!(template(&mut rng, &habits, 1).is_some(), "seed {seed}");
            let mut truth = Truth::default();
            let mut users = Users::new(rng, &mut truth);
            users.set_budget(&mut truth);
            assert!(truth.nodes().count() > 0 && truth.budgets().count() > 0, "seed {seed}");
        }
    }
}
