//! Values that the schema of the chart must reject, and values of the chart of scheduler-plugins that it must understand.

use anyhow::{Context as _, Result};

use super::rendered::{documents, helm_template};
use crate::root;

/// Arguments of helm, and what the error has to name.
const REJECTED: &[(&[&str], &str)] = &[
    (&["--set", "schedulr.name=a"], "schedulr"),
    (&["--set", "scheduler.replicas=2"], "replicas"),
    (&["--set", "controller.leaderElection=true"], "leaderElection"),
    (&["--set", "plugins.enable={A}"], "enable"),
    (&["--set", "gpushare.port=1"], "port"),
    (&["--set", "serviceMonitor.intervall=1m"], "intervall"),
    (&["--set", "prometheusRule.enabled=1"], "enabled"),
    (&["--set", "grafanaDashboard.label.a=b"], "label"),
    (&["--set-string", "scheduler.replicaCount=two"], "replicaCount"),
    (&["--set", "scheduler.replicaCount=-1"], "replicaCount"),
    (&["--set-string", "scheduler.leaderElect=yes"], "leaderElect"),
    (&["--set", "scheduler.name=Upper_Case"], "name"),
    (&["--set", "scheduler.securePort=70000"], "securePort"),
    (&["--set", "scheduler.image="], "image"),
    (&["--set", "scheduler.imagePullPolicy=Sometimes"], "imagePullPolicy"),
    (&["--set", "scheduler.tolerations=all"], "tolerations"),
    (&["--set-json", r#"scheduler.tolerations=[{"keys": "a"}]"#], "keys"),
    (&["--set-json", r#"scheduler.nodeSelector={"a": 1}"#], "nodeSelector"),
    (&["--set-json", r#"scheduler.affinity={"nodeAfinity": {}}"#], "nodeAfinity"),
    (&["--set-json", r#"scheduler.resources={"request": {}}"#], "request"),
    (&["--set", "plugins.enabled=Coscheduling"], "enabled"),
    (&["--set-json", r#"pluginConfig=[{"args": {}}]"#], "name"),
    (&["--set-json", r#"pluginConfig=[{"name": "A", "arg": {}}]"#], "arg"),
    (&["--set-json", r#"extenders=[{"urlPrefix": "127.0.0.1:1"}]"#], "urlPrefix"),
    (&["--set-json", r#"extenders=[{"urlPrefix": "http://a", "filter": "b"}]"#], "filter"),
    (&["--set", "networkPolicy.enabled=1"], "enabled"),
    (&["--set", "plugins.enabled={NodeResourceTopologyMatch}"], "not implemented"),
    (&["--set", "config.kind=A,plugins.enabled={Coscheduling}"], "config is the whole"),
    (&["--set", "config.kind=A,scheduler.leaderElect=false"], "config is the whole"),
    (&["--set", "extenderSidecar.enabled=true"], "never called"),
];

/// Returns whether all of them are rejected with such an error, and the values of scheduler-plugins have their meaning.
pub fn check() -> Result<bool> {
    let mut good = true;
    for (args, want) in REJECTED {
        let output = helm_template(&[], args)?.output().context("running helm")?;
        let error = String::from_utf8_lossy(&output.stderr);
        if output.status.success() || !error.contains(want) {
            println!("{args:?}: expected an error that names {want:?}, but: {error}");
            good = false;
        }
    }
    println!("{} wrong values rejected: {good}", REJECTED.len());
    Ok(good & check_scheduler_plugins_values()?)
}

/// What each value of scheduler-plugins' chart is for: a path in an object of a kind.
fn check_scheduler_plugins_values() -> Result<bool> {
    let values = root()?.join(super::rendered::CHART).join("ci/scheduler-plugins.yaml");
    let output = helm_template(&[values], &[])?.output().context("running helm")?;
    let objects = documents(&String::from_utf8_lossy(&output.stdout))?;
    let mut good = true;
    for (kind, name, pointer, want) in [
        ("Deployment", "batch", "/spec/replicas", "3"),
        ("Deployment", "batch", "/spec/template/spec/serviceAccountName", "\"batch\""),
        ("Deployment", "batch", "/spec/template/spec/priorityClassName", "\"batch-critical\""),
        (
            "Deployment",
            "batch",
            "/spec/template/spec/containers/0/image",
            "\"example.com/scheduler:v1\"",
        ),
        (
            "Deployment",
            "batch",
            "/spec/template/spec/containers/0/command",
            r#"["/bin/kube-scheduler"]"#,
        ),
        (
            "Deployment",
            "batch",
            "/spec/template/spec/containers/0/args",
            r#"["--config=/etc/kubernetes/scheduler-config.yaml"]"#,
        ),
        ("Deployment", "batch", "/spec/template/spec/containers/0/resources/requests/cpu", "\"2\""),
        ("Deployment", "batch", "/spec/template/spec/nodeSelector", r#"{"pool":"control"}"#),
        ("Deployment", "batch", "/spec/template/spec/tolerations/0/key", "\"dedicated\""),
        (
            "Deployment",
            "batch",
            "/spec/template/spec/affinity/podAntiAffinity/preferredDuringSchedulingIgnoredDuringExecution/0/weight",
            "1",
        ),
        ("Deployment", "batch-controller", "/spec/replicas", "2"),
        (
            "Deployment",
            "batch-controller",
            "/spec/template/spec/containers/0/args",
            r#"["--enableLeaderElection"]"#,
        ),
        (
            "Deployment",
            "batch-controller",
            "/spec/template/spec/containers/0/image",
            "\"example.com/controller:v1\"",
        ),
    ] {
        let object = objects
            .iter()
            .find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
        let found = object.and_then(|object| object.pointer(pointer)).map(ToString::to_string);
        if found.as_deref() != Some(want) {
            println!("{kind} {name}{pointer}: expected {want}, found {found:?}");
            good = false;
        }
    }
    let config = objects.iter().find(|object| object["kind"] == "ConfigMap");
    let config = config.and_then(|object| object["data"]["scheduler-config.yaml"].as_str());
    if config != Some(CONFIGURATION) {
        println!("the configuration is {}", config.unwrap_or("missing"));
        good = false;
    }
    Ok(good)
}

/// The configuration that scheduler-plugins' chart makes of these values, with other quotation marks.
const CONFIGURATION: &str = r#"apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceNamespace: "kube-system"
  resourceName: "batch"
profiles:
- schedulerName: "batch"
  plugins:
    multiPoint:
      enabled:
      - name: "Coscheduling"
      - name: "CapacityScheduling"
      disabled:
      - name: "PrioritySort"
      - name: "DefaultPreemption"
  pluginConfig:
  - args:
      permitWaitingTimeSeconds: 20
    name: Coscheduling
"#;
