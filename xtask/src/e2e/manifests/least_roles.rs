//! Runs schedulers, and the controllers, as the ServiceAccounts of the manifests: no request may be denied, and no permission may be there that
//! is not used.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use http::Method;
use serde_json::{Value, json};

use super::apply::{create_operator_definitions, kubectl};
use super::rendered::{self, NAMESPACE, Variant};
use crate::e2e::api_client::ApiClient;
use crate::e2e::bound_pods::BoundPods;
use crate::e2e::control_plane::{ControlPlane, ControlPlaneOptions, free_port};
use crate::e2e::process::Process;
use crate::e2e::workload::Workload;
use crate::e2e::{audit, load_objects, manifest, programs, special_pods};

/// The variants that are run.
const VARIANTS: [&str; 3] =
    ["kustomize-replace-kube-scheduler", "kustomize-with-controllers", "helm-with-controllers"];

/// The namespace of the pods.
const PODS: &str = "e2e";
const N_NODES: u32 = 20;
const N_PODS: u32 = 100;

/// What these runs do not need: verb and resource.
const FOR_OTHER_CASES: &[(&str, &str)] = &[
    // After a bind or an eviction whose response was lost.
    ("get", "pods"),
    // An Event that happens again.
    ("patch", "events"),
    // A volume that a provisioner has to make.
    ("update", "persistentvolumeclaims"),
];

/// Preemption, and a volume with delayed binding, which are only tried with default-scheduler.
const FOR_DEFAULT_SCHEDULER: &[(&str, &str)] =
    &[("delete", "pods"), ("update", "persistentvolumes")];

/// Returns whether no request was denied and no permission was unused.
pub async fn check(loadmaster: Option<&Path>) -> Result<bool> {
    let loadmaster = programs::loadmaster(loadmaster)?;
    let mut good = true;
    let all = rendered::variants()?;
    for variant in all.iter().filter(|variant| VARIANTS.contains(&variant.name.as_str())) {
        good &= check_variant(variant, &loadmaster)
            .await
            .with_context(|| format!("{}: running as its accounts", variant.name))?;
    }
    Ok(good)
}

async fn check_variant(variant: &Variant, loadmaster: &Path) -> Result<bool> {
    let plane = ControlPlane::start(&ControlPlaneOptions {
        audit_policy: Some(audit::policy_for_all_requests()),
        ..ControlPlaneOptions::default()
    })
    .await?;
    let text = variant.render()?;
    let objects = rendered::documents(&text)?;
    let worked = run_accounts(&plane, &text, &objects, loadmaster).await;
    let entries = audit::read(plane.audit_log())?;
    let mut good = true;
    for account in objects.iter().filter(|object| object["kind"] == "ServiceAccount") {
        let name = account["metadata"]["name"].as_str().context("an account without a name")?;
        let user = format!("system:serviceaccount:{NAMESPACE}:{name}");
        for (request, n) in audit::denied_requests(&entries, &user) {
            println!("{}: {name}: denied: {n} x {request}", variant.name);
            good = false;
        }
        let used: BTreeSet<(&str, &str)> = entries
            .iter()
            .filter(|entry| entry.user == user)
            .map(|entry| (entry.verb.as_str(), entry.resource.as_str()))
            .collect();
        ensure!(!used.is_empty() || worked.is_err(), "no requests as {user}");
        for permission in granted(&objects, name) {
            let (verb, resource) = (permission.0.as_str(), permission.1.as_str());
            let is_expected = FOR_OTHER_CASES.contains(&(verb, resource))
                || FOR_DEFAULT_SCHEDULER.contains(&(verb, resource))
                    && !variant.name.contains("replace");
            // API servers that cannot stream a list are listed first.
            let is_watched = verb == "list" && used.contains(&("watch", resource));
            if !is_expected && !is_watched && !used.contains(&(verb, resource)) {
                println!("{}: {name}: not used: {verb} {resource}", variant.name);
                good = false;
            }
        }
        println!("{}: {name}: {} kinds of requests", variant.name, used.len());
    }
    worked?;
    if good {
        plane.finish();
    }
    Ok(good)
}

/// What the roles that are bound to an account allow: verb and resource.
fn granted(objects: &[Value], account: &str) -> BTreeSet<(String, String)> {
    let mut all = BTreeSet::new();
    let is_binding = |object: &&Value| {
        object["kind"].as_str().is_some_and(|kind| kind.ends_with("Binding"))
            && object["subjects"][0]["name"] == account
    };
    for binding in objects.iter().filter(is_binding) {
        let role = objects.iter().find(|object| {
            object["kind"] == binding["roleRef"]["kind"]
                && object["metadata"]["name"] == binding["roleRef"]["name"]
                && (object["kind"] == "ClusterRole"
                    || object["metadata"]["namespace"] == binding["metadata"]["namespace"])
        });
        let rules = role.and_then(|role| role["rules"].as_array());
        for rule in rules.into_iter().flatten() {
            let list = |field: &str| {
                let items = rule[field].as_array().into_iter().flatten();
                items.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
            };
            for verb in list("verbs") {
                all.extend(list("resources").into_iter().map(|resource| (verb.clone(), resource)));
            }
        }
    }
    all
}

/// Applies the manifests and runs their programs until everything has been exercised.
async fn run_accounts(
    plane: &ControlPlane,
    text: &str,
    objects: &[Value],
    loadmaster: &Path,
) -> Result<()> {
    let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
    special_pods::wait_for_path(&api, "/api/v1/namespaces/kube-system").await?;
    create_operator_definitions(&api).await?;
    let file = plane.folder().join("manifests.yaml");
    std::fs::write(&file, text).context("writing the manifests")?;
    let file = file.display().to_string();
    let definitions = crate::root()?.join(rendered::CHART).join("crds").display().to_string();
    let kubeconfig = plane.admin_kubeconfig();
    // Helm installs what is in this folder first.
    kubectl(&kubeconfig, &["apply", "--server-side", "--filename", &definitions])?;
    kubectl(&kubeconfig, &["apply", "--server-side", "--force-conflicts", "--filename", &file])?;
    load_objects::namespace(&api, PODS).await?;
    load_objects::nodes(&api, N_NODES).await?;

    let (config, scheduler_name) = configuration(objects)?;
    let mut scheduler = start_scheduler(plane, &api, loadmaster, config).await?;
    let mut bound = BoundPods::watch(&api, PODS).await?;
    let name: &'static str =
        if scheduler_name == "loadmaster" { "loadmaster" } else { "default-scheduler" };
    load_objects::pods_for(&api, PODS, Workload::Mixed, N_PODS, [name, name]).await?;
    let all = bound.wait_for(N_PODS as usize, special_pods::STEP_TIMEOUT).await?;
    scheduler.process.check_running()?;
    ensure!(all, "only {} of {N_PODS} pods were bound", bound.bound_at().len());
    let unschedulable = special_pods::check_unschedulable_pod(&api, PODS, name);
    unschedulable.await.context("an unschedulable pod")?;
    if name == "default-scheduler" {
        special_pods::check_preemption(&api, PODS).await.context("preemption")?;
        special_pods::check_volume_on_demand(&api, PODS, plane)
            .await
            .context("a volume with delayed binding")?;
    } else {
        run_controllers(plane, &api, loadmaster).await.context("the controllers")?;
    }
    // The administrator is always allowed; others are by a SubjectAccessReview.
    for (token, want) in [(Some(plane.admin_token()?), 200), (None, 403)] {
        let metrics = ApiClient::insecure(&scheduler.url, token.as_deref())?;
        let status = metrics.request(Method::GET, "/metrics", Vec::new()).await?.status;
        ensure!(status == want, "/metrics: status {status}, not {want}");
    }
    // The release of the Lease is in the audit log.
    scheduler.process.terminate()?;
    let status = scheduler.process.wait(special_pods::STEP_TIMEOUT).await?;
    ensure!(status.success(), "the exit status after SIGTERM is {status}");
    Ok(())
}

/// The configuration in the ConfigMap, and the name of its first profile.
fn configuration(objects: &[Value]) -> Result<(Value, String)> {
    let config_map = objects.iter().find(|object| object["kind"] == "ConfigMap");
    let data = config_map.and_then(|object| object["data"].as_object()?.values().next()?.as_str());
    let config: Value = serde_saphyr::from_str(data.context("no ConfigMap with a configuration")?)
        .context("reading the configuration")?;
    let name = config["profiles"][0]["schedulerName"].as_str().unwrap_or("default-scheduler");
    let name = name.to_owned();
    Ok((config, name))
}

struct RunningScheduler {
    process: Process,
    url: String,
}

async fn start_scheduler(
    plane: &ControlPlane,
    api: &ApiClient,
    loadmaster: &Path,
    mut config: Value,
) -> Result<RunningScheduler> {
    let token = manifest::account_token(api, "loadmaster").await?;
    let kubeconfig = plane.kubeconfig_for_token("scheduler", &token)?;
    config["clientConnection"] = json!({"kubeconfig": kubeconfig});
    let file = plane.folder().join("scheduler.config");
    std::fs::write(&file, config.to_string()).context("writing the configuration")?;
    let port = free_port()?;
    let kubeconfig = kubeconfig.display();
    let mut command = Command::new(loadmaster);
    command.arg("kube-scheduler").arg(format!("--config={}", file.display()));
    command.arg(format!("--authentication-kubeconfig={kubeconfig}"));
    command.arg(format!("--authorization-kubeconfig={kubeconfig}"));
    command.args(["--bind-address=127.0.0.1".to_owned(), format!("--secure-port={port}")]);
    let log = plane.folder().join("scheduler.log");
    let process = Process::start("loadmaster", &mut command, &log)?;
    Ok(RunningScheduler { process, url: format!("https://127.0.0.1:{port}") })
}

/// Runs the controllers as their account until the status of a PodGroup and of an ElasticQuota is written.
async fn run_controllers(plane: &ControlPlane, api: &ApiClient, loadmaster: &Path) -> Result<()> {
    let groups = format!("/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{PODS}/podgroups");
    let quotas = format!("/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{PODS}/elasticquotas");
    let object = |kind: &str, spec: Value| json!({"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": kind, "metadata": {"name": "a"}, "spec": spec});
    api.create(&groups, &object("PodGroup", json!({"minMember": 2}))).await?;
    let quota = json!({"min": {"cpu": "1000"}, "max": {"cpu": "2000"}});
    api.create(&quotas, &object("ElasticQuota", quota)).await?;
    let token = manifest::account_token(api, "loadmaster-controllers").await?;
    let kubeconfig = plane.kubeconfig_for_token("controllers", &token)?;
    let mut command = Command::new(loadmaster);
    command.args(["controllers", "--enableLeaderElection", "--metricsAddr=0", "--probeAddr=0"]);
    command.arg("--kubeconfig").arg(kubeconfig);
    let log = plane.folder().join("controllers.log");
    let mut process = Process::start("controllers", &mut command, &log)?;
    for path in [&groups, &quotas] {
        special_pods::wait_until("a status", special_pods::STEP_TIMEOUT, async || {
            process.check_running()?;
            Ok(api.get_json(&format!("{path}/a")).await?["status"].is_object())
        })
        .await?;
    }
    process.terminate()?;
    process.wait(special_pods::STEP_TIMEOUT).await.map(drop)
}
