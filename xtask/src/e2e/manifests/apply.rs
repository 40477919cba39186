//! Applies the variants to a real kube-apiserver, with server-side dry run and for real, and installs the chart.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use http::Method;
use serde_json::{Value, json};

use super::rendered::{self, NAMESPACE, RELEASE, Source, Variant};
use crate::e2e::api_client::ApiClient;
use crate::e2e::control_plane::{ControlPlane, ControlPlaneOptions};
use crate::e2e::programs::Program;
use crate::e2e::{load_objects, manifest, special_pods};

/// A namespace that enforces the Pod Security Standard "restricted".
const RESTRICTED: &str = "restricted";

/// The kinds of Prometheus Operator, without schemas of their fields.
pub fn operator_definitions() -> [Value; 2] {
    ["ServiceMonitor", "PrometheusRule"].map(|kind| {
        let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        let singular = kind.to_lowercase();
        let plural = format!("{singular}s");
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.monitoring.coreos.com")},
            "spec": {
                "group": "monitoring.coreos.com",
                "names": {"kind": kind, "plural": plural, "singular": singular},
                "scope": "Namespaced",
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
            },
        })
    })
}

/// Creates them, and waits until they are served.
pub async fn create_operator_definitions(api: &ApiClient) -> Result<()> {
    for definition in operator_definitions() {
        manifest::create(api, &definition).await?;
        let plural = definition["spec"]["names"]["plural"].as_str().context("a plural")?;
        let path = format!("/apis/monitoring.coreos.com/v1/{plural}");
        special_pods::wait_for_path(api, &path).await?;
    }
    Ok(())
}

/// Returns whether everything was accepted.
pub async fn check(variants: &[Variant]) -> Result<bool> {
    let plane = ControlPlane::start(&ControlPlaneOptions::default()).await?;
    let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
    prepare(&api).await?;
    let mut good = true;
    for variant in variants {
        let applied = check_variant(&api, &plane, variant).await;
        if let Err(error) = applied {
            println!("{}: {error:#}", variant.name);
            good = false;
        }
    }
    let static_pod = manifest::read("deploy/static-pod/kube-scheduler.yaml")?;
    let pods =
        format!("{}?dryRun=All&fieldValidation=Strict", manifest::collection_path(&static_pod[0])?);
    api.create(&pods, &static_pod[0]).await.context("the static pod")?;
    println!("{} variants and the static pod applied: {good}", variants.len());
    if good {
        plane.finish();
    }
    Ok(good)
}

/// What the manifests assume in a cluster.
async fn prepare(api: &ApiClient) -> Result<()> {
    special_pods::wait_for_path(api, "/api/v1/namespaces/kube-system").await?;
    load_objects::service_account(api, NAMESPACE).await?;
    load_objects::namespace(api, RESTRICTED).await?;
    let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
    let labels = json!({"metadata": {"labels": labels}}).to_string().into_bytes();
    let path = format!("/api/v1/namespaces/{RESTRICTED}");
    let headers =
        [("content-type", "application/merge-patch+json"), ("accept", "application/json")];
    let patched = api.request_with_headers(Method::PATCH, &path, labels, &headers).await?;
    ensure!(patched.status == 200, "labelling the namespace: status {}", patched.status);
    // Named by the values of scheduler-plugins' chart.
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": "batch-critical"}, "value": 1000});
    manifest::create(api, &class).await?;
    create_operator_definitions(api).await
}

async fn check_variant(api: &ApiClient, plane: &ControlPlane, variant: &Variant) -> Result<()> {
    let text = variant.render()?;
    let file = plane.folder().join(format!("{}.yaml", variant.name));
    std::fs::write(&file, &text).context("writing the manifests")?;
    let file = file.display().to_string();
    let kubeconfig = plane.admin_kubeconfig();
    let apply = ["apply", "--server-side", "--validate=strict", "--filename", &file];
    kubectl(&kubeconfig, &[&apply[..], &["--dry-run=server"]].concat())?;
    let is_written = match &variant.source {
        // Nothing is stored in another way than it is written: applied again, nothing changes.
        Source::Kustomize(_) => kubectl(&kubeconfig, &apply)
            .and_then(|()| kubectl(&kubeconfig, &["diff", "--server-side", "--filename", &file])),
        Source::Helm(values) => {
            let mut args = vec!["install".to_owned(), RELEASE.to_owned()];
            args.push(crate::root()?.join(rendered::CHART).display().to_string());
            args.extend(values.iter().map(|file| format!("--values={}", file.display())));
            helm(plane, &args)
        }
    };
    // Also after an error, for the next variant.
    let is_removed = match &variant.source {
        Source::Kustomize(_) => {
            kubectl(&kubeconfig, &["delete", "--wait=false", "--filename", &file])
        }
        Source::Helm(_) => helm(plane, &["uninstall".to_owned(), RELEASE.to_owned()]),
    };
    is_written?;
    is_removed.context("removing everything")?;
    for object in rendered::documents(&text)? {
        if object["kind"] == "Deployment" {
            check_pod(api, &object).await?;
        }
    }
    Ok(())
}

/// A pod of a Deployment's template is admitted, and, unless it is in the network of its node, in a restricted namespace.
async fn check_pod(api: &ApiClient, deployment: &Value) -> Result<()> {
    let template = &deployment["spec"]["template"];
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"]});
    pod["metadata"]["name"] = json!("pod");
    // The account of the manifests is removed already.
    pod["spec"]["serviceAccountName"] = json!("default");
    let is_in_host_network = template["spec"]["hostNetwork"] == true;
    let namespace = if is_in_host_network { NAMESPACE } else { RESTRICTED };
    let path = format!("/api/v1/namespaces/{namespace}/pods?dryRun=All&fieldValidation=Strict");
    let name = &deployment["metadata"]["name"];
    api.create(&path, &pod).await.map(drop).with_context(|| format!("a pod of {name}"))
}

/// Runs kubectl; an error with its output if it fails.
pub fn kubectl(kubeconfig: &Path, args: &[&str]) -> Result<()> {
    let mut command = Command::new(Program::Kubectl.path()?);
    command.arg("--kubeconfig").arg(kubeconfig).args(args);
    succeed(&mut command, args[0])
}

fn helm(plane: &ControlPlane, args: &[String]) -> Result<()> {
    let mut command = Command::new(Program::Helm.path()?);
    command.args(args).args(["--namespace", NAMESPACE]);
    command.arg("--kubeconfig").arg(plane.admin_kubeconfig());
    // Its caches.
    command.env("HOME", plane.folder());
    succeed(&mut command, &args[0])
}

fn succeed(command: &mut Command, what: &str) -> Result<()> {
    let output = command.output().with_context(|| format!("running {what}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    bail!("{what}: {}\n{}", text(&output.stderr), text(&output.stdout))
}
