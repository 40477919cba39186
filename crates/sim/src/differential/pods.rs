//! The random pods of a history: bare ones, and pods as controllers and admission make them.

use loadmaster_api::Pod;
use loadmaster_api::pod::PodStatus;
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use super::objects::decode;
use crate::cluster_made_pods::{CONTROLLER_KINDS, PodController};

pub(super) const NAMESPACES: [&str; 3] = ["default", "blue", "green"];
pub(super) const APPS: [&str; 4] = ["a", "b", "c", "d"];
/// Names of the objects that own bare pods; they need not exist.
pub(super) const OWNER_NAMES: [&str; 3] = ["owner-0", "owner-1", "owner-2"];

/// Which pods a history has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPool {
    /// Manifests from a pool: pods made from one of them are equal but for their names.
    Bare,
    /// Pods of controllers after admission, no two of them equal ([`crate::cluster_made_pods`]).
    ClusterMade,
}

/// A source of pods; the first two of its templates are used often, the others seldom.
pub(super) enum PodSource {
    Bare(Vec<Option<Value>>),
    ClusterMade(Vec<Option<PodController>>),
}

impl PodSource {
    pub fn new(pool: PodPool, n_templates: u32) -> PodSource {
        match pool {
            PodPool::Bare => PodSource::Bare(vec![None; n_templates as usize]),
            PodPool::ClusterMade => PodSource::ClusterMade(vec![None; n_templates as usize]),
        }
    }

    /// The next pod, and the controller that made it if it is a new one. The uid contains `nth`.
    pub fn next(&mut self, rng: &mut Rng, nth: u64) -> Option<(Pod, Option<PodController>)> {
        match self {
            PodSource::Bare(pool) => {
                let at = pick_template(rng, pool.len());
                if pool[at].is_none() || rng.one_in(400) {
                    pool[at] = Some(random_pod(rng));
                }
                let mut pod: Pod = decode(pool[at].clone()?)?;
                pod.metadata.name = format!("pod-{nth}").into();
                pod.metadata.uid = format!("uid-{nth}").into();
                Some((pod, None))
            }
            PodSource::ClusterMade(pool) => {
                let at = pick_template(rng, pool.len());
                let mut new = None;
                if pool[at].is_none() {
                    let name = format!("{}-{at}", rng.pick(&APPS));
                    let kind = *rng.pick(&CONTROLLER_KINDS);
                    let controller = PodController::new(kind, &name, random_pod(rng), rng);
                    new = Some(controller.clone());
                    pool[at] = Some(controller);
                }
                let mut pod: Pod = decode(pool[at].as_mut()?.create_pod(rng))?;
                // A StatefulSet's pod with the same name is another pod.
                pod.metadata.uid = format!("{}-{nth}", pod.metadata.uid).into();
                Some((pod, new))
            }
        }
    }

    /// A controller that has made pods.
    pub fn controller_mut(&mut self, rng: &mut Rng) -> Option<&mut PodController> {
        match self {
            PodSource::Bare(_) => None,
            PodSource::ClusterMade(pool) => {
                let at = pick_template(rng, pool.len());
                pool[at].as_mut()
            }
        }
    }
}

fn pick_template(rng: &mut Rng, n: usize) -> usize {
    let n = n as u64;
    let at = if rng.one_in(2) { rng.below(n.min(2)) } else { rng.below(n) };
    at as usize
}

/// Starts, continues or ends an in-place resize: the spec has the desired requests, the status those that the kubelet has allocated and
/// applied, and a condition why they differ.
pub(super) fn resize(rng: &mut Rng, pod: &mut Pod) {
    let cpu = *rng.pick(&["100m", "250m", "1", "1500m"]);
    if rng.one_in(2)
        && let Ok(cpu) = cpu.parse()
    {
        pod.spec.change(|spec| {
            let Some(container) = spec.containers.first_mut() else { return };
            let requests = std::mem::take(&mut container.resources.requests);
            container.resources.requests = requests.with("cpu", cpu);
        });
    }
    let amounts = |rng: &mut Rng| json!({"cpu": *rng.pick(&["100m", "250m", "1", "1500m"])});
    let status = match rng.below(4) {
        // The resize is complete.
        0 => json!({}),
        kind => {
            let reason = *rng.pick(&["Infeasible", "Deferred"]);
            let conditions =
                json!([{"type": "PodResizePending", "status": "True", "reason": reason}]);
            json!({
                "conditions": if kind == 1 { conditions } else { json!([]) },
                "containerStatuses": [{
                    "name": "main",
                    "allocatedResources": amounts(rng),
                    "resources": {"requests": amounts(rng)},
                }],
            })
        }
    };
    if let Some(status) = decode::<PodStatus>(status) {
        pod.status.conditions = status.conditions;
        pod.status.container_statuses = status.container_statuses;
    }
}

/// A bare pod: what a user writes.
pub(super) fn random_pod(rng: &mut Rng) -> Value {
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
    if rng.one_in(12) {
        container["restartPolicyRules"] = json!([{"action": "RestartAllContainers"}]);
    }
    if rng.one_in(10) {
        container["ports"] = json!([{"hostPort": 8000 + rng.below(2), "containerPort": 80}]);
    }
    let mut spec = json!({"containers": [container], "priority": rng.below(3)});
    if rng.one_in(4) {
        spec["tolerations"] = json!([{"key": *rng.pick(&["gpu", "spot"]), "operator": "Exists"}]);
    }
    if rng.one_in(3) {
        spec["topologySpreadConstraints"] = random_spread(rng);
    }
    spec["affinity"] = random_affinity(rng);
    let namespace = *rng.pick(&NAMESPACES);
    let labels = json!({"app": app, "tier": *rng.pick(&["web", "db"])});
    let mut metadata = json!({"namespace": namespace, "labels": labels});
    if rng.one_in(3) {
        metadata["ownerReferences"] = random_owner(rng);
    }
    json!({"metadata": metadata, "spec": spec})
}

/// A label selector that matches some of the pods.
pub(super) fn random_selector(rng: &mut Rng) -> Value {
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

fn random_owner(rng: &mut Rng) -> Value {
    let (api_version, kind) = *rng.pick(&[
        ("apps/v1", "ReplicaSet"),
        ("apps/v1", "StatefulSet"),
        ("v1", "ReplicationController"),
    ]);
    let name = *rng.pick(&OWNER_NAMES);
    json!([{"apiVersion": api_version, "kind": kind, "name": name, "uid": name, "controller": true}])
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_random_pod_can_be_decoded() {
        for pool in [PodPool::Bare, PodPool::ClusterMade] {
            let mut rng = Rng::new(1);
            let mut source = PodSource::new(pool, 20);
            assert!((0..500).all(|nth| source.next(&mut rng, nth).is_some()), "{pool:?}");
        }
    }

    #[test]
    fn a_resize_changes_spec_and_status() {
        let mut rng = Rng::new(1);
        let (mut n_spec, mut n_status) = (0, 0);
        for _ in 0..100 {
            let mut pod: Pod = decode(random_pod(&mut rng)).unwrap();
            let before = pod.clone();
            resize(&mut rng, &mut pod);
            n_spec += u32::from(pod.spec != before.spec);
            n_status += u32::from(pod.status != before.status);
        }
        assert!(n_spec > 20 && n_status > 50, "{n_spec} and {n_status}");
    }
}
