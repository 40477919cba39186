//! The nodes and pods of workloads, as JSON objects.

use anyhow::{Result, ensure};
use clap::ValueEnum;
use serde_json::{Value, json};

/// The number of groups of pods with anti-affinity.
const N_ANTI_AFFINITY_GROUPS: u32 = 20;
/// The number of groups of pods with affinity.
const N_AFFINITY_GROUPS: u32 = 10;
/// The capacity of a node in pods.
pub const N_PODS_MAX_PER_NODE: u32 = 110;

/// The Job of cluster-made pods: a controller whose pods get no default topology spread constraints, as bare pods do not.
const JOB: &str = "job";
const JOB_UID: &str = "2d0b3f5c-6f0e-4f2c-9d7e-6c1f3a5b7e91";

/// The kind of pods.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Workload {
    /// Requests only.
    Basic,
    /// Zone spread (required) and hostname spread (preferred).
    Spread,
    /// Required hostname anti-affinity in 20 groups.
    AntiAffinity,
    /// Required zone affinity and preferred hostname affinity in 10 groups.
    Affinity,
    /// 60 % basic, 20 % spread, 10 % of each kind of affinity.
    Mixed,
}

/// The kind of one pod, and its group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PodShape {
    Basic,
    Spread,
    AntiAffinity(u32),
    Affinity(u32),
}

/// What is around the pods of a workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PodForm {
    /// Created by hand, without a service account's token: pods of a workload are equal except for their names.
    Bare,
    /// As clusters have them: of a Job, and with the token volume that admission adds, whose name is random.
    ClusterMade,
}

impl PodForm {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            PodForm::Bare => "bare",
            PodForm::ClusterMade => "cluster-made",
        }
    }

    /// A pod of a workload in this form, to be created.
    pub fn apply(self, mut pod: Value) -> Value {
        match self {
            PodForm::Bare => pod["spec"]["automountServiceAccountToken"] = json!(false),
            PodForm::ClusterMade => {
                pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] = json!(JOB);
                pod["metadata"]["labels"]["batch.kubernetes.io/controller-uid"] = json!(JOB_UID);
                pod["metadata"]["ownerReferences"] = json!([{
                    "apiVersion": "batch/v1", "kind": "Job", "name": JOB, "uid": JOB_UID,
                    "controller": true, "blockOwnerDeletion": true}]);
            }
        }
        pod
    }

    /// Whether a created pod has this form: whether admission has added a token volume where it should.
    pub fn is_form_of(self, pod: &Value) -> bool {
        let mut volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
        let has_token = volumes.any(|volume| {
            volume["name"].as_str().is_some_and(|name| name.starts_with("kube-api-access-"))
        });
        has_token == (self == PodForm::ClusterMade)
    }
}

impl Workload {
    /// An error if the pods cannot all be scheduled.
    pub fn check_size(self, n_nodes: u32, n_pods: u32) -> Result<()> {
        let capacity = u64::from(n_nodes) * u64::from(N_PODS_MAX_PER_NODE);
        ensure!(u64::from(n_pods) <= capacity, "{n_nodes} nodes have capacity for {capacity} pods");
        let n_apart =
            (0..n_pods).filter(|&i| matches!(self.shape(i), PodShape::AntiAffinity(0))).count();
        ensure!(
            n_apart <= n_nodes as usize,
            "{n_apart} pods of one group may not share a node, and there are {n_nodes} nodes"
        );
        Ok(())
    }

    /// Pod number `i`; numbers are unique in a namespace.
    pub fn pod(self, i: u32) -> Value {
        match self.shape(i) {
            PodShape::Basic => pod(&format!("basic-{i}"), "basic", json!({})),
            PodShape::Spread => pod(&format!("spread-{i}"), "spread", spread("spread")),
            PodShape::AntiAffinity(group) => {
                let app = format!("apart-{group}");
                pod(&format!("{app}-{i}"), &app, anti_affinity(&app))
            }
            PodShape::Affinity(group) => {
                let app = format!("near-{group}");
                pod(&format!("{app}-{i}"), &app, affinity(&app))
            }
        }
    }

    fn shape(self, i: u32) -> PodShape {
        match self {
            Workload::Basic => PodShape::Basic,
            Workload::Spread => PodShape::Spread,
            Workload::AntiAffinity => PodShape::AntiAffinity(i % N_ANTI_AFFINITY_GROUPS),
            Workload::Affinity => PodShape::Affinity(i % N_AFFINITY_GROUPS),
            Workload::Mixed => match i % 10 {
                0..=5 => PodShape::Basic,
                6..=7 => PodShape::Spread,
                8 => PodShape::AntiAffinity(i / 10 % N_ANTI_AFFINITY_GROUPS),
                _ => PodShape::Affinity(i / 10 % N_AFFINITY_GROUPS),
            },
        }
    }
}

/// Node number `i`: 32 CPU, 256 GiB, in one of three zones, with ten images, ready.
pub fn node(i: u32) -> Value {
    let name = format!("node-{i}");
    let zone = ["zone-a", "zone-b", "zone-c"][i as usize % 3];
    let images: Vec<Value> = (0..10)
        .map(|k| json!({"names": [format!("registry.example/app-{k}:v1")], "sizeBytes": 20_000_000 * (k + 1)}))
        .collect();
    let amounts = json!({"cpu": "32", "memory": "256Gi", "pods": N_PODS_MAX_PER_NODE.to_string()});
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name,
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux",
            "topology.kubernetes.io/zone": zone}},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "images": images,
            "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

/// A pod that requests 100 millicores and 500 MiB, as in upstream's scheduler_perf.
fn pod(name: &str, app: &str, more: Value) -> Value {
    let requests = json!({"cpu": "100m", "memory": "500Mi"});
    let container = json!({
        "name": "main", "image": "registry.example/app-0:v1", "resources": {"requests": requests}});
    let mut spec = json!({"containers": [container], "terminationGracePeriodSeconds": 0});
    if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
        spec.extend(more);
    }
    let metadata = json!({"name": name, "labels": {"app": app}});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

fn spread(app: &str) -> Value {
    let constraint = |key: &str, when: &str| {
        json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when,
            "labelSelector": {"matchLabels": {"app": app}}})
    };
    json!({"topologySpreadConstraints": [
        constraint("topology.kubernetes.io/zone", "DoNotSchedule"),
        constraint("kubernetes.io/hostname", "ScheduleAnyway")]})
}

fn term(key: &str, app: &str) -> Value {
    json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}})
}

fn anti_affinity(app: &str) -> Value {
    let terms = json!([term("kubernetes.io/hostname", app)]);
    json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}})
}

fn affinity(app: &str) -> Value {
    let preferred = json!({"weight": 10, "podAffinityTerm": term("kubernetes.io/hostname", app)});
    json!({"affinity": {"podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [term("topology.kubernetes.io/zone", app)],
        "preferredDuringSchedulingIgnoredDuringExecution": [preferred]}}})
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn shapes(workload: Workload, n: u32) -> BTreeMap<String, u32> {
        let mut counts = BTreeMap::new();
        for i in 0..n {
            let kind = match workload.shape(i) {
                PodShape::AntiAffinity(_) => "Apart".to_owned(),
                PodShape::Affinity(_) => "Near".to_owned(),
                other => format!("{other:?}"),
            };
            *counts.entry(kind).or_default() += 1;
        }
        counts
    }

    #[test]
    fn shares_are_as_documented() {
        let check = |workload, want: &[(&str, u32)]| {
            let want = want.iter().map(|&(kind, n)| (kind.to_owned(), n)).collect();
            assert_eq!(shapes(workload, 1_000), want, "{workload:?}");
        };
        check(Workload::Basic, &[("Basic", 1_000)]);
        check(Workload::Spread, &[("Spread", 1_000)]);
        check(Workload::AntiAffinity, &[("Apart", 1_000)]);
        check(Workload::Affinity, &[("Near", 1_000)]);
        check(Workload::Mixed, &[("Apart", 100), ("Basic", 600), ("Near", 100), ("Spread", 200)]);
    }

    #[test]
    fn every_group_of_the_mixed_workload_has_pods() {
        let groups: BTreeSet<u32> = (0..200)
            .filter_map(|i| match Workload::Mixed.shape(i) {
                PodShape::AntiAffinity(group) => Some(group),
                _ => None,
            })
            .collect();
        assert_eq!(groups.len(), N_ANTI_AFFINITY_GROUPS as usize);
    }

    #[test]
    fn names_are_unique_and_labels_match_their_selectors() {
        for workload in Workload::value_variants() {
            let pods: Vec<Value> = (0..300).map(|i| workload.pod(i)).collect();
            let names: BTreeSet<_> =
                pods.iter().map(|pod| pod["metadata"]["name"].to_string()).collect();
            assert_eq!(names.len(), pods.len(), "{workload:?}");
            for pod in &pods {
                let app = pod["metadata"]["labels"]["app"].as_str().unwrap();
                let spec = pod["spec"].to_string();
                let n_selectors = spec.matches("matchLabels").count();
                let n_own = spec.matches(&format!(r#""matchLabels":{{"app":"{app}"}}"#)).count();
                assert_eq!(n_selectors, n_own, "{pod}");
            }
        }
    }

    #[test]
    fn forms_differ_in_owner_and_token() {
        let token_volume = json!([{"name": "kube-api-access-x2b4c"}]);
        let check = |form: PodForm, n_owners, with_token: bool| {
            let mut pod = form.apply(Workload::Basic.pod(1));
            let owners = pod["metadata"]["ownerReferences"].as_array().map_or(0, Vec::len);
            assert_eq!(owners, n_owners, "{form:?}");
            assert_eq!(pod["metadata"]["labels"]["app"], "basic", "{form:?}");
            assert_eq!(form.is_form_of(&pod), !with_token, "{form:?}");
            pod["spec"]["volumes"] = token_volume.clone();
            assert_eq!(form.is_form_of(&pod), with_token, "{form:?}");
        };
        check(PodForm::Bare, 0, false);
        check(PodForm::ClusterMade, 1, true);
    }

    #[test]
    fn a_workload_that_does_not_fit_is_rejected() {
        let check = |workload: Workload, n_nodes, n_pods, fits: bool| {
            let checked = workload.check_size(n_nodes, n_pods);
            assert_eq!(checked.is_ok(), fits, "{workload:?} {n_nodes} {n_pods}");
        };
        check(Workload::Basic, 10, 1_100, true);
        check(Workload::Basic, 10, 1_101, false);
        check(Workload::AntiAffinity, 10, 200, true);
        check(Workload::AntiAffinity, 10, 201, false);
        check(Workload::Mixed, 1, 110, true);
        check(Workload::Mixed, 1, 111, false);
    }

    #[test]
    fn nodes_are_in_three_zones() {
        let zone = |i| node(i)["metadata"]["labels"]["topology.kubernetes.io/zone"].to_string();
        let zones: BTreeSet<String> = (0..9).map(zone).collect();
        assert_eq!(zones.len(), 3);
        assert_eq!(zone(0), zone(3));
    }
}
