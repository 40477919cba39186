//! The objects of the test: definitions, permissions, nodes, PodGroups, ElasticQuotas and their pods.

use std::ops::Range;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::super::api_client::ApiClient;
use super::super::workload::PodForm;
use super::super::{load_objects, manifest, special_pods};

/// The label of a PodGroup's members.
pub const LABEL: &str = "scheduling.x-k8s.io/pod-group";
const API_VERSION: &str = "scheduling.x-k8s.io/v1alpha1";
/// The label of nodes, which pods select.
const POOL: &str = "e2e/pool";
/// The number of pods that fit on a node; each requests one CPU.
const N_PODS_PER_NODE: u32 = 10;

/// The collection of a custom resource in a namespace.
pub fn collection(namespace: &str, resource: &str) -> String {
    format!("/apis/{API_VERSION}/namespaces/{namespace}/{resource}")
}

/// The collection of pods in a namespace.
pub fn pods(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

/// Creates the definitions that `loadmaster crds` prints, and waits until they are served.
pub async fn install_definitions(api: &ApiClient, loadmaster: &Path) -> Result<()> {
    let output = Command::new(loadmaster).arg("crds").output().context("starting Loadmaster")?;
    ensure!(output.status.success(), "`loadmaster crds` ended with {}", output.status);
    let printed = String::from_utf8(output.stdout).context("reading the definitions")?;
    for definition in manifest::parse(&printed).context("reading the definitions")? {
        manifest::create(api, &definition).await?;
    }
    for resource in ["podgroups", "elasticquotas"] {
        let path = collection("default", resource);
        special_pods::wait_until(resource, special_pods::STEP_TIMEOUT, async || {
            Ok(api.request(Method::GET, &path, Vec::new()).await?.status == 200)
        })
        .await?;
    }
    Ok(())
}

/// Lets the user of schedulers read the custom resources.
pub async fn allow_schedulers_to_read(api: &ApiClient) -> Result<()> {
    let name = "e2e:scheduler-plugins";
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [{"apiGroups": ["scheduling.x-k8s.io", "scheduling.sigs.k8s.io"],
            "resources": ["podgroups", "elasticquotas"], "verbs": ["get", "list", "watch"]}],
    });
    let user = json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "system:kube-scheduler"});
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": name}, "subjects": [user],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
    });
    for object in [role, binding] {
        manifest::create(api, &object).await?;
    }
    Ok(())
}

/// Creates nodes with room for exactly `n_pods` pods, which no pods of other pools may use.
pub async fn nodes(api: &ApiClient, pool: &str, n_pods: u32) -> Result<()> {
    let pool = pool.to_owned();
    let make = move |i: u32| {
        let n_here = N_PODS_PER_NODE.min(n_pods - i * N_PODS_PER_NODE);
        let name = format!("{pool}-{i}");
        let amounts = json!({"cpu": n_here.to_string(), "memory": "64Gi", "pods": "110"});
        let labels = json!({"kubernetes.io/hostname": name, POOL: pool});
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
            "status": {"capacity": amounts, "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True"}]}})
    };
    let n_nodes = n_pods.div_ceil(N_PODS_PER_NODE);
    load_objects::create_all(api, "/api/v1/nodes", 0..n_nodes, make).await.context("creating nodes")
}

/// Creates a PodGroup.
pub async fn pod_group(
    api: &ApiClient,
    namespace: &str,
    name: &str,
    min_member: u32,
) -> Result<()> {
    let group = json!({"apiVersion": API_VERSION, "kind": "PodGroup", "metadata": {"name": name},
        "spec": {"minMember": min_member}});
    api.create(&collection(namespace, "podgroups"), &group).await.map(drop)
}

/// Creates an ElasticQuota of CPUs.
pub async fn quota(api: &ApiClient, namespace: &str, min: u32, max: u32) -> Result<()> {
    let quota = json!({"apiVersion": API_VERSION, "kind": "ElasticQuota", "metadata": {"name": "quota"},
        "spec": {"min": {"cpu": min.to_string()}, "max": {"cpu": max.to_string()}}});
    api.create(&collection(namespace, "elasticquotas"), &quota).await.map(drop)
}

/// A pod that requests one CPU, as a Job makes it, for the nodes of a pool.
pub fn pod(name: &str, pool: &str, group: Option<&str>) -> Value {
    let requests = json!({"cpu": "1"});
    let container = json!({"name": "main", "image": "registry.example/app", "resources": {"requests": requests}});
    let mut labels = json!({"app": pool});
    if let Some(group) = group {
        labels[LABEL] = json!(group);
    }
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [container], "nodeSelector": {POOL: pool}, "terminationGracePeriodSeconds": 0}});
    PodForm::ClusterMade.apply(pod)
}

/// The name of the pod that is member `member` of a gang.
pub fn member_name(gang: &str, member: u32) -> String {
    format!("{gang}-{member}")
}

/// The gang of a member, by its name.
pub fn gang_of(member: &str) -> Option<&str> {
    member.rsplit_once('-').map(|(gang, _)| gang)
}

/// Creates the members of a gang.
pub async fn members(
    api: &ApiClient,
    namespace: &str,
    pool: &str,
    gang: &str,
    which: Range<u32>,
) -> Result<()> {
    let (pool, gang) = (pool.to_owned(), gang.to_owned());
    let make = move |i| pod(&member_name(&gang, i), &pool, Some(&gang));
    load_objects::create_all(api, &pods(namespace), which, make).await.context("creating members")
}

/// Deletes the members of a gang, at once.
pub async fn delete_members(api: &ApiClient, namespace: &str, gang: &str, size: u32) -> Result<()> {
    let mut tasks = JoinSet::new();
    for i in 0..size {
        let path = format!("{}/{}", pods(namespace), member_name(gang, i));
        let api = api.clone();
        tasks.spawn(async move { api.request(Method::DELETE, &path, Vec::new()).await });
    }
    while let Some(deleted) = tasks.join_next().await {
        let deleted = deleted.context("deleting a pod")??;
        ensure!(matches!(deleted.status, 200 | 404), "deleting a pod: status {}", deleted.status);
    }
    Ok(())
}

/// The number of pods of a namespace that have a node, and the number of all.
pub async fn n_bound(api: &ApiClient, namespace: &str) -> Result<(usize, usize)> {
    let list = api.list(&pods(namespace)).await?;
    let is_bound = |pod: &&Value| pod["spec"]["nodeName"].is_string();
    Ok((list.iter().filter(is_bound).count(), list.len()))
}
