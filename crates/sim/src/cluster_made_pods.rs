//! Pods as a real cluster has them: a controller creates them from its template, and admission adds fields.
//!
//! Pods of one controller are equal objects only in tests. In a cluster each has a token volume of random name; those of a StatefulSet
//! also differ in labels and hostname, those of an Indexed Job in labels, hostname and environment. [`PodController`] creates such pods
//! from a bare manifest: what the user wrote stays as it is.

use loadmaster_stdx::Rng;
use serde_json::{Map, Value, json};

/// What creates the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerKind {
    /// The ReplicaSet of a Deployment: label `pod-template-hash`, and another ReplicaSet after a rollout.
    ReplicaSet,
    /// Labels with the pod's name and ordinal, hostname and subdomain; another `controller-revision-hash` after a rollout.
    StatefulSet,
    /// A Job with `completionMode: Indexed`: label, annotation, hostname and environment with the index.
    IndexedJob,
    /// Like a ReplicaSet without a hash; its selector is a plain map.
    ReplicationController,
}

/// All kinds.
pub const CONTROLLER_KINDS: [ControllerKind; 4] = [
    ControllerKind::ReplicaSet,
    ControllerKind::StatefulSet,
    ControllerKind::IndexedJob,
    ControllerKind::ReplicationController,
];

/// What `kubectl` and the controllers use for random names: no vowels, no digits that look like letters.
const NAME_CHARS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// A number of characters as the API server adds to `generateName`.
pub fn random_suffix(rng: &mut Rng, len: usize) -> String {
    (0..len).map(|_| char::from(*rng.pick(NAME_CHARS))).collect()
}

/// Number of teams, each with a namespace.
pub const N_TEAMS: usize = 50;
/// Number of environment variables of a team's pods.
const N_VARIABLES: u32 = 12;

/// A controller that creates pods.
#[derive(Clone, Debug)]
pub struct PodController {
    kind: ControllerKind,
    name: String,
    /// Metadata (namespace, labels) and spec of the pods.
    template: Value,
    /// Changes with every rollout.
    hash: String,
    n_rollouts: u64,
    /// Ordinal or completion index of the next pod.
    next: u64,
}

impl PodController {
    /// A controller whose template has the namespace, labels, annotations and spec of this bare manifest.
    pub fn new(kind: ControllerKind, name: &str, template: Value, rng: &mut Rng) -> PodController {
        let hash = random_suffix(rng, 9);
        PodController { kind, name: name.to_owned(), template, hash, n_rollouts: 0, next: 0 }
    }

    /// The n-th controller of a cluster with 50 teams, in the namespace of its team: a StatefulSet if n is the third of three, else a ReplicaSet.
    /// Its pods have the labels and spec of the manifest, and environment variables.
    pub fn of_team(nth: usize, name: &str, manifest: &Value, rng: &mut Rng) -> PodController {
        let kinds =
            [ControllerKind::ReplicaSet, ControllerKind::ReplicaSet, ControllerKind::StatefulSet];
        let mut template = manifest.clone();
        template["metadata"]["namespace"] = json!(format!("team-{}", nth % N_TEAMS));
        let variable =
            |n| json!({"name": format!("VARIABLE_{n}"), "value": format!("value {n} of {nth}")});
        template["spec"]["containers"][0]["env"] = (0..N_VARIABLES).map(variable).collect();
        PodController::new(kinds[nth % kinds.len()], name, template, rng)
    }

    /// A headless Service that selects the pods by their label `app`, which is its name.
    pub fn service(&self) -> Value {
        let app = &self.template["metadata"]["labels"]["app"];
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": app, "namespace": self.namespace()},
            "spec": {"clusterIP": "None", "selector": {"app": app}},
        })
    }

    /// What creates the pods.
    pub fn kind(&self) -> ControllerKind {
        self.kind
    }

    /// The namespace of the controller and its pods.
    pub fn namespace(&self) -> &str {
        self.template["metadata"]["namespace"].as_str().unwrap_or("default")
    }

    /// The template of the pods; a change is a rollout.
    pub fn template(&self) -> &Value {
        &self.template
    }

    /// The name of the object that owns the pods; a Deployment has another ReplicaSet after a rollout.
    pub fn owner_name(&self) -> String {
        match self.kind {
            ControllerKind::ReplicaSet => format!("{}-{}", self.name, self.hash),
            _ => self.name.clone(),
        }
    }

    /// Changes the template, so that the pods created from now on belong to another revision. Ordinals and indexes begin again.
    pub fn roll_out(&mut self, rng: &mut Rng, template: Value) {
        self.template = template;
        self.hash = random_suffix(rng, 9);
        self.n_rollouts += 1;
        self.next = 0;
    }

    /// The object that owns the pods, with its selector: a ReplicaSet, StatefulSet, Job or ReplicationController.
    pub fn owner(&self) -> Value {
        let pods = &self.template["metadata"]["labels"];
        let mut labels = pods.as_object().cloned().unwrap_or_default();
        let selector = match self.kind {
            ControllerKind::ReplicationController => Value::Object(labels),
            ControllerKind::ReplicaSet => {
                labels.insert("pod-template-hash".to_owned(), json!(self.hash));
                json!({"matchLabels": labels})
            }
            ControllerKind::StatefulSet => json!({"matchLabels": labels}),
            ControllerKind::IndexedJob => {
                json!({"matchLabels": {"batch.kubernetes.io/controller-uid": self.owner_uid()}})
            }
        };
        let (api_version, kind) = self.owner_type();
        json!({
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {"name": self.owner_name(), "namespace": self.namespace(), "uid": self.owner_uid()},
            "spec": {"selector": selector},
        })
    }

    /// The next pod, as the API server has it when the scheduler first sees it.
    pub fn create_pod(&mut self, rng: &mut Rng) -> Value {
        let index = self.next;
        self.next += 1;
        let suffix = random_suffix(rng, 5);
        let name = match self.kind {
            ControllerKind::StatefulSet => format!("{}-{index}", self.name),
            ControllerKind::IndexedJob => format!("{}-{index}-{suffix}", self.name),
            _ => format!("{}-{suffix}", self.owner_name()),
        };
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": self.template["metadata"],
            "spec": self.template["spec"],
            "status": {"phase": "Pending", "qosClass": "Burstable"},
        });
        self.add_owner(&mut pod, &name, index);
        admit(&mut pod, rng);
        pod
    }

    fn owner_type(&self) -> (&'static str, &'static str) {
        match self.kind {
            ControllerKind::ReplicaSet => ("apps/v1", "ReplicaSet"),
            ControllerKind::StatefulSet => ("apps/v1", "StatefulSet"),
            ControllerKind::IndexedJob => ("batch/v1", "Job"),
            ControllerKind::ReplicationController => ("v1", "ReplicationController"),
        }
    }

    /// The uid of that object.
    pub fn owner_uid(&self) -> String {
        format!("uid-of-{}-{}", self.namespace(), self.owner_name())
    }

    /// What the controller sets.
    fn add_owner(&self, pod: &mut Value, name: &str, index: u64) {
        let (api_version, kind) = self.owner_type();
        let metadata = &mut pod["metadata"];
        metadata["name"] = json!(name);
        // A StatefulSet's pods get the same names again.
        metadata["uid"] =
            json!(format!("uid-of-{}-{name}-{}-{}", self.namespace(), self.n_rollouts, self.hash));
        metadata["ownerReferences"] = json!([{
            "apiVersion": api_version, "kind": kind, "name": self.owner_name(), "uid": self.owner_uid(),
            "controller": true, "blockOwnerDeletion": true,
        }]);
        if metadata["labels"].is_null() {
            metadata["labels"] = json!({});
        }
        let labels = &mut metadata["labels"];
        match self.kind {
            ControllerKind::ReplicaSet => labels["pod-template-hash"] = json!(self.hash),
            ControllerKind::ReplicationController => {}
            ControllerKind::StatefulSet => {
                labels["apps.kubernetes.io/pod-index"] = json!(index.to_string());
                labels["controller-revision-hash"] = json!(format!("{}-{}", self.name, self.hash));
                labels["statefulset.kubernetes.io/pod-name"] = json!(name);
                pod["spec"]["hostname"] = json!(name);
                pod["spec"]["subdomain"] = json!(self.name);
            }
            ControllerKind::IndexedJob => {
                labels["batch.kubernetes.io/controller-uid"] = json!(self.owner_uid());
                labels["batch.kubernetes.io/job-completion-index"] = json!(index.to_string());
                labels["batch.kubernetes.io/job-name"] = json!(self.name);
                labels["controller-uid"] = json!(self.owner_uid());
                labels["job-name"] = json!(self.name);
                if metadata["annotations"].is_null() {
                    metadata["annotations"] = json!({});
                }
                let index = index.to_string();
                metadata["annotations"]["batch.kubernetes.io/job-completion-index"] = json!(index);
                pod["spec"]["hostname"] = json!(format!("{}-{index}", self.name));
                pod["spec"]["restartPolicy"] = json!("Never");
                let path = "metadata.labels['batch.kubernetes.io/job-completion-index']";
                let variable = json!({
                    "name": "JOB_COMPLETION_INDEX",
                    "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}},
                });
                for container in containers(pod) {
                    push(container, "env", variable.clone());
                }
            }
        }
    }
}

/// What defaulting and the admission plugins ServiceAccount, Priority and DefaultTolerationSeconds add to a pod.
pub fn admit(pod: &mut Value, rng: &mut Rng) {
    let volume = format!("kube-api-access-{}", random_suffix(rng, 5));
    for container in containers(pod) {
        set_defaults(
            container,
            &json!({
                "imagePullPolicy": "IfNotPresent",
                "resources": {},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
            }),
        );
        let path = "/var/run/secrets/kubernetes.io/serviceaccount";
        push(
            container,
            "volumeMounts",
            json!({"name": volume, "readOnly": true, "mountPath": path}),
        );
    }
    let spec = &mut pod["spec"];
    set_defaults(
        spec,
        &json!({
            "dnsPolicy": "ClusterFirst",
            "enableServiceLinks": true,
            "preemptionPolicy": "PreemptLowerPriority",
            "priority": 0,
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
            "securityContext": {},
            "serviceAccount": "default",
            "serviceAccountName": "default",
            "terminationGracePeriodSeconds": 30,
        }),
    );
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let toleration = json!({
            "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300,
        });
        push(spec, "tolerations", toleration);
    }
    let sources = json!([
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [
            {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
        ]}},
    ]);
    let projected = json!({"sources": sources, "defaultMode": 420});
    push(spec, "volumes", json!({"name": volume, "projected": projected}));
    pod["metadata"]["managedFields"] = json!([{
        "manager": "kube-controller-manager",
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-01-31T12:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:labels": {".": {}}}, "f:spec": {"f:containers": {}}},
    }]);
}

fn containers(pod: &mut Value) -> impl Iterator<Item = &mut Value> {
    pod["spec"]["containers"].as_array_mut().into_iter().flatten()
}

fn set_defaults(object: &mut Value, defaults: &Value) {
    let defaults = defaults.as_object().into_iter().flatten();
    if let Some(object) = object.as_object_mut() {
        for (key, value) in defaults {
            object.entry(key).or_insert_with(|| value.clone());
        }
    }
}

fn push(object: &mut Value, list: &str, item: Value) {
    let object: Option<&mut Map<String, Value>> = object.as_object_mut();
    let list = object.map(|object| object.entry(list).or_insert_with(|| json!([])));
    if let Some(Value::Array(items)) = list {
        items.push(item);
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn controller(kind: ControllerKind, rng: &mut Rng) -> PodController {
        let template = json!({
            "metadata": {"namespace": "default", "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "main", "image": "web:1"}]},
        });
        PodController::new(kind, "web", template, rng)
    }

    /// Checks the name, labels, hostname and owner of a controller's second pod.
    #[track_caller]
    fn check(kind: ControllerKind, want: &Expect) {
        let rng = &mut Rng::new(1);
        let mut controller = controller(kind, rng);
        controller.create_pod(rng);
        let pod = controller.create_pod(rng);
        let metadata = &pod["metadata"];
        let owner = &metadata["ownerReferences"][0];
        let volume = &pod["spec"]["volumes"][0]["name"];
        assert_eq!(volume, &pod["spec"]["containers"][0]["volumeMounts"][0]["name"]);
        want.assert_eq(&format!(
            "{} of {} {}, host {}, {}, {}",
            metadata["name"],
            owner["kind"],
            owner["name"],
            pod["spec"]["hostname"],
            metadata["labels"],
            volume
        ));
    }

    #[test]
    fn pods_of_each_kind() {
        check(
            ControllerKind::ReplicaSet,
            &expect![[
                r#""web-t29pp26sk-6cdrf" of "ReplicaSet" "web-t29pp26sk", host null, {"app":"web","pod-template-hash":"t29pp26sk"}, "kube-api-access-kcrzc""#
            ]],
        );
        check(
            ControllerKind::StatefulSet,
            &expect![[
                r#""web-1" of "StatefulSet" "web", host "web-1", {"app":"web","apps.kubernetes.io/pod-index":"1","controller-revision-hash":"web-t29pp26sk","statefulset.kubernetes.io/pod-name":"web-1"}, "kube-api-access-kcrzc""#
            ]],
        );
        check(
            ControllerKind::IndexedJob,
            &expect![[
                r#""web-1-6cdrf" of "Job" "web", host "web-1", {"app":"web","batch.kubernetes.io/controller-uid":"uid-of-default-web","batch.kubernetes.io/job-completion-index":"1","batch.kubernetes.io/job-name":"web","controller-uid":"uid-of-default-web","job-name":"web"}, "kube-api-access-kcrzc""#
            ]],
        );
        check(
            ControllerKind::ReplicationController,
            &expect![[
                r#""web-6cdrf" of "ReplicationController" "web", host null, {"app":"web"}, "kube-api-access-kcrzc""#
            ]],
        );
    }

    #[test]
    fn an_index_is_in_the_environment_and_the_annotations() {
        let rng = &mut Rng::new(1);
        let pod = controller(ControllerKind::IndexedJob, rng).create_pod(rng);
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["env"][0]["name"], "JOB_COMPLETION_INDEX");
        let annotations = &pod["metadata"]["annotations"];
        assert_eq!(annotations["batch.kubernetes.io/job-completion-index"], "0");
    }

    #[test]
    fn a_rollout_changes_hash_owner_and_uid() {
        for kind in [ControllerKind::ReplicaSet, ControllerKind::StatefulSet] {
            let rng = &mut Rng::new(2);
            let mut controller = controller(kind, rng);
            let (old, old_owner) = (controller.create_pod(rng), controller.owner_name());
            controller.roll_out(rng, controller.template().clone());
            let new = controller.create_pod(rng);
            assert_ne!(old["metadata"]["uid"], new["metadata"]["uid"]);
            assert_ne!(old["metadata"]["labels"], new["metadata"]["labels"]);
            let is_same_owner = old_owner == controller.owner_name();
            assert_eq!(is_same_owner, kind == ControllerKind::StatefulSet);
        }
    }
}
