//! The workload: users and controllers create, change and delete objects; simulated kubelets run and end pods.

use std::marker::PhantomData;
use std::sync::Arc;

use loadmaster_api::{Node, Pod, PodDisruptionBudget, Str, Timestamp};
use loadmaster_stdx::{Rng, decode_erased};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::gangs::GangWorkload;
use super::out_of_tree::PodTemplateChange;
use super::quotas::QuotaWorkload;
use super::volumes::VolumeWorkload;
use crate::cluster_made_pods::{CONTROLLER_KINDS, PodController};
use crate::fake_api_server::{FakeApiServer, is_pod_terminal};

/// The features of the workload of a run; each is drawn by the seed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WorkloadFeatures {
    /// Pods have node selectors, and nodes differ in labels.
    selectors: bool,
    taints: bool,
    ports: bool,
    anti_affinity: bool,
    affinity: bool,
    spread: bool,
    priorities: bool,
    gates: bool,
    budgets: bool,
    /// Another scheduler binds pods as well, including some of ours.
    other_scheduler: bool,
    node_flaps: bool,
    node_changes: bool,
    pod_changes: bool,
    deletions: bool,
    /// Deleted pods are created again with the same name.
    replacements: bool,
}

impl WorkloadFeatures {
    pub fn random(rng: &mut Rng) -> WorkloadFeatures {
        let rare = |rng: &mut Rng| rng.one_in(3);
        let usual = |rng: &mut Rng| !rng.one_in(3);
        WorkloadFeatures {
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

/// What only some runs have.
#[derive(Default)]
pub(super) struct OptionalWorkloads {
    pub volumes: Option<VolumeWorkload>,
    pub gangs: Option<GangWorkload>,
    pub quotas: Option<QuotaWorkload>,
}

const N_TEMPLATES_MAX: i64 = 8;
const N_NODES_MAX: i64 = 12;
/// No pods are created while there are more than this.
const N_PODS_MAX: usize = 120;
const TAINT: &str = "dedicated";

pub(super) struct Workload {
    rng: Rng,
    features: WorkloadFeatures,
    templates: Vec<Pod>,
    /// The controllers of these templates, in the same order, if pods are made as in a real cluster.
    controllers: Vec<PodController>,
    /// For what controllers and admission draw.
    admission_rng: Rng,
    optional: OptionalWorkloads,
    /// Nodes that were removed and will come back.
    removed_nodes: Vec<Arc<Node>>,
    n_pods: u64,
    n_nodes: u64,
}

impl Workload {
    /// Every pod template is passed to `change` first.
    pub fn new(
        mut rng: Rng,
        change: Option<&PodTemplateChange>,
        mut optional: OptionalWorkloads,
        api_server: &mut FakeApiServer,
    ) -> Workload {
        let features = WorkloadFeatures::random(&mut rng);
        let n = rng.range(1, N_TEMPLATES_MAX);
        let mut manifests: Vec<Value> =
            (0..n).map(|nth| template(&mut rng, &features, nth)).collect();
        if let Some(change) = change {
            let mut rng = rng.split("pod templates");
            manifests.iter_mut().for_each(|manifest| change(&mut rng, manifest));
        }
        // All claims are in one namespace.
        if let Some(quotas) = optional.quotas.as_mut().filter(|_| optional.volumes.is_none()) {
            manifests.iter_mut().for_each(|manifest| quotas.set_namespace(manifest));
        }
        let mut admission_rng = rng.split("admission");
        let is_cluster_made = admission_rng.one_in(3);
        let controllers = manifests.iter().enumerate().filter(|_| is_cluster_made);
        let controllers = controllers.map(|(at, manifest)| {
            let kind = *admission_rng.pick(&CONTROLLER_KINDS);
            PodController::new(kind, &format!("c{at}"), manifest.clone(), &mut admission_rng)
        });
        let controllers = controllers.collect();
        let templates = manifests.into_iter().filter_map(decode).collect();
        let n_nodes = rng.range(1, N_NODES_MAX);
        let removed_nodes = Vec::new();
        let mut workload = Workload {
            rng,
            features,
            templates,
            controllers,
            admission_rng,
            optional,
            removed_nodes,
            n_pods: 0,
            n_nodes: 0,
        };
        for _ in 0..n_nodes {
            workload.add_node(api_server);
        }
        if features.budgets {
            workload.set_budget(api_server);
        }
        workload
    }

    /// Number of pods created.
    pub fn n_pods(&self) -> u64 {
        self.n_pods
    }

    /// What there is around claims, in runs with claims.
    pub fn volumes(&self) -> Option<&VolumeWorkload> {
        self.optional.volumes.as_ref()
    }

    /// Number of PodGroups created.
    pub fn n_gangs(&self) -> u64 {
        self.optional.gangs.as_ref().map_or(0, |gangs| gangs.n_groups)
    }

    /// Runs the controllers of claims and volumes. Returns their Events.
    pub fn run_volume_controllers(
        &mut self,
        api_server: &mut FakeApiServer,
        all: bool,
    ) -> Vec<String> {
        let Some(volumes) = &mut self.optional.volumes else { return Vec::new() };
        volumes.controllers.run(api_server, all);
        volumes.controllers.provisioner.take_events()
    }

    /// Does one random operation, or none.
    pub fn random_operation(&mut self, api_server: &mut FakeApiServer, now: Timestamp) {
        let OptionalWorkloads { volumes, gangs, quotas } = &mut self.optional;
        if let Some(volumes) = volumes {
            volumes.random_operation(api_server);
        }
        if let Some(gangs) = gangs {
            gangs.random_operation(api_server, now);
        }
        if let Some(quotas) = quotas {
            quotas.random_operation(api_server);
        }
        let features = self.features;
        match self.rng.below(32) {
            0..=6 => self.create_pods(api_server, now),
            7..=10 if features.deletions => self.delete_pod(api_server, now),
            11 | 12 => self.end_pod(api_server),
            13 if features.node_flaps => self.remove_or_restore_node(api_server),
            14 if features.node_changes && self.rng.one_in(3) => self.add_node(api_server),
            15 | 16 if features.node_changes => self.change_node(api_server),
            17 | 18 if features.gates => self.remove_scheduling_gate(api_server),
            19 if features.budgets => self.set_budget(api_server),
            20 if features.other_scheduler => self.bind_by_other_scheduler(api_server),
            21 | 22 if features.pod_changes => self.change_pod(api_server),
            _ => {}
        }
    }

    /// Runs the simulated kubelets and the garbage collector: on a random part of the pods, or on all.
    pub fn run_kubelets(&mut self, api_server: &mut FakeApiServer, now: Timestamp, all: bool) {
        for name in api_server.pod_names_matching(|pod| !pod.spec.node_name.is_empty()) {
            if !all && !self.rng.one_in(4) {
                continue;
            }
            let Some(pod) = api_server.pod(&name) else { continue };
            let is_lost = api_server.node(&pod.spec.node_name).is_none();
            if pod.metadata.deletion_timestamp.is_some() || (is_lost && (all || self.rng.one_in(8)))
            {
                api_server.delete_pod(&name);
                if self.features.replacements && !all && self.rng.one_in(2) {
                    self.recreate_pod(api_server, &name, now);
                }
            } else if pod.status.phase.is_empty() && !is_lost {
                api_server.update_pod(&name, |pod| {
                    pod.status.phase = Str::new("Running");
                    pod.status.start_time = Some(now);
                });
            }
        }
    }

    /// Whether [`Workload::run_kubelets`] has nothing left to do.
    pub fn kubelets_are_idle(api_server: &FakeApiServer) -> bool {
        let is_due = |pod: &Pod| {
            !pod.spec.node_name.is_empty()
                && (pod.metadata.deletion_timestamp.is_some()
                    || api_server.node(&pod.spec.node_name).is_none()
                    || pod.status.phase.is_empty())
        };
        !api_server.pods().any(is_due)
    }

    /// The faults have ended: adds the removed nodes again, for good, and what pods need for their claims and groups.
    pub fn restore_objects(&mut self, api_server: &mut FakeApiServer) {
        if let Some(volumes) = &mut self.optional.volumes {
            volumes.create_missing(api_server);
        }
        if let Some(gangs) = &mut self.optional.gangs {
            gangs.create_missing(api_server);
        }
        for node in self.removed_nodes.drain(..) {
            api_server.upsert_node((*node).clone());
        }
    }

    fn create_pods(&mut self, api_server: &mut FakeApiServer, now: Timestamp) {
        let n = if self.rng.one_in(6) { self.rng.range(4, 12) } else { self.rng.range(1, 3) };
        if self.templates.is_empty() || api_server.pods().count() > N_PODS_MAX {
            return;
        }
        let template = self.rng.below(self.templates.len() as u64) as usize;
        for _ in 0..n {
            self.create_pod(api_server, template, None, now);
        }
    }

    fn create_pod(
        &mut self,
        api_server: &mut FakeApiServer,
        template: usize,
        name: Option<&str>,
        now: Timestamp,
    ) {
        let controller = self.controllers.get_mut(template);
        let made = controller.map(|it| it.create_pod(&mut self.admission_rng));
        let mut pod = made.and_then(decode::<Pod>).unwrap_or_else(|| {
            let mut pod = self.templates[template].clone();
            pod.metadata.name = format!("p{}", self.n_pods).into();
            pod
        });
        if let Some(name) = name {
            pod.metadata.name = name.into();
        }
        pod.metadata.uid = format!("u{}", self.n_pods).into();
        pod.metadata.creation_timestamp = Some(now);
        pod.metadata.generation = 1;
        self.n_pods += 1;
        if let Some(volumes) = &mut self.optional.volumes {
            volumes.add_to_pod(template, &mut pod, api_server);
        }
        if let Some(gangs) = &mut self.optional.gangs {
            gangs.add_to_pod(template, &mut pod, api_server, now);
        }
        api_server.create_pod(pod);
    }

    /// Creates a pod with the name of an earlier one.
    fn recreate_pod(&mut self, api_server: &mut FakeApiServer, full_name: &str, now: Timestamp) {
        let name = full_name.split('/').next_back().unwrap_or(full_name);
        if !self.templates.is_empty() {
            let template = self.rng.below(self.templates.len() as u64) as usize;
            self.create_pod(api_server, template, Some(name), now);
        }
    }

    fn any_pod(
        &mut self,
        api_server: &FakeApiServer,
        is_wanted: impl Fn(&Pod) -> bool,
    ) -> Option<String> {
        let names = api_server.pod_names_matching(is_wanted);
        if names.is_empty() { None } else { Some(self.rng.pick(&names).clone()) }
    }

    fn delete_pod(&mut self, api_server: &mut FakeApiServer, now: Timestamp) {
        let waits = self.rng.one_in(2);
        let found = self.any_pod(api_server, |pod| pod.spec.node_name.is_empty() == waits);
        let Some(name) = found else { return };
        api_server.delete_pod_gracefully(&name, now);
        if waits
            && self.features.replacements
            && self.rng.one_in(2)
            && api_server.pod(&name).is_none()
        {
            self.recreate_pod(api_server, &name, now);
        }
    }

    /// A running pod succeeds or fails, or a terminal pod is removed. Sometimes a pod fails that never ran.
    fn end_pod(&mut self, api_server: &mut FakeApiServer) {
        let odd = self.rng.one_in(10);
        let Some(name) = self.any_pod(api_server, |pod| odd || !pod.spec.node_name.is_empty())
        else {
            return;
        };
        if api_server.pod(&name).is_some_and(is_pod_terminal) {
            return api_server.delete_pod(&name);
        }
        let phase = if self.rng.one_in(2) { "Succeeded" } else { "Failed" };
        api_server.update_pod(&name, |pod| pod.status.phase = Str::new(phase));
    }

    fn remove_scheduling_gate(&mut self, api_server: &mut FakeApiServer) {
        if let Some(name) = self.any_pod(api_server, |pod| !pod.spec.scheduling_gates.is_empty()) {
            api_server.update_pod(&name, |pod| {
                pod.spec.change(|spec| drop(spec.scheduling_gates.pop()));
            });
        }
    }

    fn change_pod(&mut self, api_server: &mut FakeApiServer) {
        let value = *self.rng.pick(&["web", "db", "cache"]);
        if let Some(name) = self.any_pod(api_server, |pod| !is_pod_terminal(pod)) {
            api_server.update_pod(&name, |pod| {
                let labels = std::mem::take(&mut pod.metadata.labels);
                pod.metadata.labels = labels.with("app", Str::new(value));
            });
        }
    }

    fn bind_by_other_scheduler(&mut self, api_server: &mut FakeApiServer) {
        let nodes: Vec<Str> = api_server.nodes().map(|node| Str::new(node.name())).collect();
        let waits = |pod: &Pod| pod.spec.node_name.is_empty() && !is_pod_terminal(pod);
        if let Some(name) = self.any_pod(api_server, waits)
            && !nodes.is_empty()
        {
            // It may be rejected like any other bind.
            let _ = api_server.bind_pod(&name, self.rng.pick(&nodes).clone());
        }
    }

    fn any_node(&mut self, api_server: &FakeApiServer) -> Option<Arc<Node>> {
        let nodes: Vec<Arc<Node>> = api_server.nodes().cloned().collect();
        if nodes.is_empty() { None } else { Some(self.rng.pick(&nodes).clone()) }
    }

    fn add_node(&mut self, api_server: &mut FakeApiServer) {
        let name = format!("n{}", self.n_nodes);
        if let Some(node) = node(&mut self.rng, &self.features, &name) {
            self.n_nodes += 1;
            api_server.upsert_node(node);
        }
    }

    fn remove_or_restore_node(&mut self, api_server: &mut FakeApiServer) {
        if let Some(node) = self.removed_nodes.pop() {
            return api_server.upsert_node((*node).clone());
        }
        if let Some(node) = self.any_node(api_server) {
            self.removed_nodes.extend(api_server.delete_node(&Str::new(node.name())));
        }
    }

    /// Replaces a part of a node with that of another random node.
    fn change_node(&mut self, api_server: &mut FakeApiServer) {
        let Some(old) = self.any_node(api_server) else { return };
        let Some(other) = node(&mut self.rng, &self.features, old.name()) else { return };
        let mut new = (*old).clone();
        match self.rng.below(4) {
            0 => new.metadata = other.metadata,
            1 => new.spec = other.spec,
            2 => new.spec.unschedulable = !new.spec.unschedulable,
            _ => new.status = other.status,
        }
        api_server.upsert_node(new);
    }

    fn set_budget(&mut self, api_server: &mut FakeApiServer) {
        let app = *self.rng.pick(&["web", "db", "cache"]);
        let allowed = self.rng.range(0, 2);
        let budget: Option<PodDisruptionBudget> = decode(json!({
            "metadata": {"name": app, "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": app}}},
            "status": {"disruptionsAllowed": allowed},
        }));
        if let Some(budget) = budget {
            api_server.upsert_disruption_budget(budget);
        }
    }
}

fn node(rng: &mut Rng, features: &WorkloadFeatures, name: &str) -> Option<Node> {
    let labels = json!({
        "kubernetes.io/hostname": name,
        "topology.kubernetes.io/zone": *rng.pick(&["z1", "z2", "z3"]),
        "disk": if features.selectors { *rng.pick(&["ssd", "hdd"]) } else { "ssd" },
    });
    let taints = match features.taints && rng.one_in(3) {
        true => {
            json!([{"key": TAINT, "value": "a", "effect": *rng.pick(&["NoSchedule", "NoExecute", "PreferNoSchedule"])}])
        }
        false => json!([]),
    };
    decode(json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints},
        "status": {"allocatable": {
            "cpu": *rng.pick(&["1", "2", "4", "8"]),
            "memory": *rng.pick(&["2Gi", "4Gi", "16Gi"]),
            "pods": *rng.pick(&["3", "8", "110"]),
        }},
    }))
}

fn template(rng: &mut Rng, features: &WorkloadFeatures, nth: i64) -> Value {
    let app = *rng.pick(&["web", "db", "cache"]);
    let selector = json!({"matchLabels": {"app": app}});
    let term = |key: &str| json!([{"labelSelector": selector, "topologyKey": key}]);
    let requests = json!({
        "cpu": *rng.pick(&["0", "100m", "500m", "1", "2"]),
        "memory": *rng.pick(&["64Mi", "1Gi", "2Gi"]),
    });
    let mut container = json!({"name": "c", "image": "web:2", "resources": {"requests": requests}});
    if features.ports && rng.one_in(2) {
        container["ports"] = json!([{"containerPort": 80, "hostPort": rng.range(8_000, 8_001)}]);
    }
    let mut spec = json!({"schedulerName": "default-scheduler", "containers": [container]});
    if features.priorities {
        spec["priority"] = json!(*rng.pick(&[-10, 0, 0, 10, 1000]));
        if rng.one_in(6) {
            spec["preemptionPolicy"] = json!("Never");
        }
    }
    if features.selectors && rng.one_in(2) {
        spec["nodeSelector"] = json!({"disk": *rng.pick(&["ssd", "hdd"])});
    }
    if features.taints && rng.one_in(2) {
        spec["tolerations"] = json!([{"key": TAINT, "operator": "Exists"}]);
    }
    if features.gates && rng.one_in(2) {
        spec["schedulingGates"] = json!([{"name": "a"}, {"name": "b"}]);
    }
    let zone_or_host = *rng.pick(&["topology.kubernetes.io/zone", "kubernetes.io/hostname"]);
    if features.anti_affinity && rng.one_in(2) {
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        spec["affinity"]["podAntiAffinity"] = json!({required: term(zone_or_host)});
    }
    if features.affinity && rng.one_in(3) {
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        spec["affinity"]["podAffinity"] = json!({required: term("topology.kubernetes.io/zone")});
    }
    if features.spread && rng.one_in(2) {
        spec["topologySpreadConstraints"] = json!([{
            "maxSkew": rng.range(1, 2),
            "topologyKey": zone_or_host,
            "whenUnsatisfiable": *rng.pick(&["DoNotSchedule", "DoNotSchedule", "ScheduleAnyway"]),
            "labelSelector": selector,
        }]);
    }
    if features.other_scheduler && nth > 0 && rng.one_in(6) {
        spec["schedulerName"] = json!("other");
    }
    let labels = json!({"app": app});
    json!({"metadata": {"namespace": "default", "name": "", "labels": labels}, "spec": spec})
}

/// Decodes an object. All values in this file are well formed, which a unit test checks.
fn decode<T: DeserializeOwned>(value: Value) -> Option<T> {
    decode_erased(PhantomData, value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_generated_objects_can_be_decoded() {
        for seed in 0..500 {
            let mut rng = Rng::new(seed);
            let features = WorkloadFeatures::random(&mut rng);
            assert!(node(&mut rng, &features, "n").is_some(), "seed {seed}");
            let manifest = template(&mut rng, &features, 1);
            let kind = CONTROLLER_KINDS[seed as usize % CONTROLLER_KINDS.len()];
            let mut controller = PodController::new(kind, "c", manifest.clone(), &mut rng);
            for pod in [manifest, controller.create_pod(&mut rng)] {
                assert!(decode::<Pod>(pod).is_some(), "seed {seed}");
            }
            let mut api_server = FakeApiServer::default();
            let mut workload =
                Workload::new(rng, None, OptionalWorkloads::default(), &mut api_server);
            workload.set_budget(&mut api_server);
            assert!(
                api_server.nodes().count() > 0 && api_server.disruption_budgets().count() > 0,
                "seed {seed}"
            );
        }
    }
}
