//! Scenario files: a small cluster, steps, and the recorded results of kube-scheduler.
//!
//! ```yaml
//! about: A host port that is taken keeps the pod off that node.
//! from: plugins/nodeports, 1.36
//! oracle: v1.36.3
//! nodes: {a: {cpu: 4, pods: 10}, b: {cpu: 4, pods: 10}}
//! assigned: {old: {node: a, hostPorts: [8080]}}
//! steps:
//! - submit: {web: {hostPorts: [8080]}}
//! - expect:
//!     web:
//!       nodes:
//!         a: NodePorts, Unschedulable, node(s) didn't have free ports for the requested pod ports
//!         b: fits
//!       best: [b]
//! - event: AssignedPod Delete
//!   old: old
//!   hints: {NodePorts: Queue}
//! ```
//!
//! One idea per file, in the smallest cluster that shows it. [`shorthand`] describes nodes and pods; `objects` takes full objects.
//! `config` is a KubeSchedulerConfiguration without apiVersion and kind; `plugins` and `args` are those of its only profile.
//! `featureGates` sets gates for the whole file.
//!
//! | step | what it does |
//! | --- | --- |
//! | `submit` | creates pending pods |
//! | `delete` | deletes pods or nodes by name |
//! | `expect` | per pod, the nodes where it is feasible now, and why others are rejected ([`ExpectedResult`]) |
//! | `event`, `old`, `new`, `hints` | per plugin, its queueing hint for a pod it rejected when this event happens (`Queue`, `Skip`, ...) |
//! | `preempt` | per pod, the preemption candidates and their victims ([`ExpectedPreemption`]) |
//! | `sign` | per pod, parts of its signature; null if it has none |
//!
//! Expectations are never written by hand: `cargo xtask scenarios record` runs kube-scheduler and fills them in.
//!
//! Where Loadmaster differs on purpose, `deviation` says why, and the steps in which it differs have Loadmaster's result beside
//! kube-scheduler's, in the same form. This one is written by hand, and compared as strictly:
//!
//! ```yaml
//! deviation: Volumes are not supported yet.
//! steps:
//! - submit: {web: {spec: {volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]}}}
//! - expect:
//!     web:
//!       preFilter: VolumeBinding, UnschedulableAndUnresolvable, pod has unbound immediate PersistentVolumeClaims
//!   loadmaster:
//!     web:
//!       preFilter: VolumeBinding, UnschedulableAndUnresolvable, pod has PersistentVolumeClaims, ...
//! ```
//!
//! [`check_scenario`] fails if Loadmaster gives any other result, kube-scheduler's included.

mod check;
mod expect;
mod preempt;
mod recording;
pub mod shorthand;
mod steps;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use loadmaster_api::document::{Document, DocumentError, LocatedError};
use loadmaster_engine::Profile;
use loadmaster_framework::Registry;
use serde::Deserialize;
use serde_json::{Map, Value, json};

pub use check::check_scenario;
pub use expect::{ExpectedResult, RecordedResult};
pub use preempt::{CandidateVictims, ExpectedPreemption};
pub use recording::{scenario_from_case, write_recorded_results};
use shorthand::{NodeShorthand, PodShorthand, ShorthandError};
pub use steps::{ExpectationKind, OracleQuestion, StepError};

/// A scenario file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What the scenario shows, as a sentence.
    pub about: String,
    /// The upstream source of the scenario.
    #[serde(default)]
    pub from: Option<String>,
    /// The version of kube-scheduler that was recorded.
    #[serde(default)]
    pub oracle: Option<String>,
    /// Why Loadmaster differs from the recorded result.
    #[serde(default)]
    pub deviation: Option<String>,
    #[serde(default)]
    config: Option<Value>,
    #[serde(default)]
    plugins: Option<Value>,
    /// Plugin arguments by plugin name.
    #[serde(default)]
    args: IndexMap<String, Value>,
    /// Feature gates that are not at their defaults.
    #[serde(default, rename = "featureGates")]
    feature_gates: BTreeMap<String, bool>,
    #[serde(default)]
    nodes: IndexMap<String, NodeShorthand>,
    /// Labels of namespaces by name.
    #[serde(default)]
    namespaces: IndexMap<String, IndexMap<String, String>>,
    #[serde(default)]
    assigned: IndexMap<String, PodShorthand>,
    #[serde(default)]
    nominated: IndexMap<String, PodShorthand>,
    #[serde(default)]
    objects: Vec<Value>,
    pub steps: Vec<ScenarioStep>,
}

/// One step; exactly one kind of step is present.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioStep {
    #[serde(default)]
    submit: Option<IndexMap<String, PodShorthand>>,
    #[serde(default)]
    delete: Option<Vec<String>>,
    #[serde(default)]
    pub expect: Option<IndexMap<String, ExpectedResult>>,
    #[serde(default)]
    pub preempt: Option<IndexMap<String, ExpectedPreemption>>,
    #[serde(default)]
    pub sign: Option<IndexMap<String, Option<Map<String, Value>>>>,
    /// Resource and action type, as upstream spells them: `Node Add`.
    #[serde(default)]
    pub event: Option<String>,
    /// The pending pod; by default the one that was submitted last.
    #[serde(default)]
    pod: Option<String>,
    /// The name of an object in the cluster, a shorthand with a `name`, or a full object.
    #[serde(default)]
    old: Option<Value>,
    #[serde(default)]
    new: Option<Value>,
    #[serde(default)]
    pub hints: Option<IndexMap<String, String>>,
    /// Loadmaster's results where they differ from kube-scheduler's: per pod as in `expect`, `preempt` or `sign`, per plugin as in
    /// `hints`.
    #[serde(default)]
    pub loadmaster: Option<IndexMap<String, Value>>,
}

/// A scenario file cannot be read or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    #[error(transparent)]
    File(#[from] DocumentError),
    #[error(transparent)]
    Read(#[from] LocatedError),
    #[error("{place}")]
    Shorthand {
        place: String,
        #[source]
        source: ShorthandError,
    },
    #[error("steps[{step}]")]
    Step {
        step: usize,
        #[source]
        source: StepError,
    },
}

impl Scenario {
    /// Decodes a scenario; unknown fields are rejected.
    pub fn read(document: &Document) -> Result<Scenario, ScenarioError> {
        Ok(document.decode()?)
    }

    /// The objects before the first step.
    pub fn initial_objects(&self) -> Result<Vec<Value>, ScenarioError> {
        let failed = |kind: &str, name: &str| {
            let place = format!("{kind}.{name}");
            move |source| ScenarioError::Shorthand { place, source }
        };
        let mut objects = Vec::new();
        for (name, node) in &self.nodes {
            objects.push(node.expand_object(name).map_err(failed("nodes", name))?);
        }
        for (name, labels) in &self.namespaces {
            let metadata = json!({"name": name, "labels": labels});
            objects.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
        }
        for (kind, pods) in [("assigned", &self.assigned), ("nominated", &self.nominated)] {
            for (name, pod) in pods {
                objects.push(pod.expand_object(name).map_err(failed(kind, name))?);
            }
        }
        objects.extend(self.objects.iter().cloned());
        Ok(objects)
    }

    /// The configuration with apiVersion and kind; `None` for the default configuration.
    pub fn configuration(&self) -> Option<Value> {
        let mut config = self.config.clone().unwrap_or_else(|| json!({}));
        if self.plugins.is_some() || !self.args.is_empty() {
            let args = self.args.iter().map(|(name, args)| json!({"name": name, "args": args}));
            let mut profile = json!({"pluginConfig": args.collect::<Vec<_>>()});
            if let Some(plugins) = &self.plugins {
                profile["plugins"] = plugins.clone();
            }
            config["profiles"] = json!([profile]);
        } else if self.config.is_none() {
            return None;
        }
        config["apiVersion"] = json!("kubescheduler.config.k8s.io/v1");
        config["kind"] = json!("KubeSchedulerConfiguration");
        Some(config)
    }
}

/// The paths of all scenario files below a folder, sorted.
pub fn scenario_paths(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            paths.extend(self::scenario_paths(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Reads a file: its text, and the scenario.
pub fn read_scenario_file(path: &Path) -> Result<(String, Scenario), ScenarioError> {
    let name = path.display().to_string();
    let document = Document::read(&name, None)?;
    let scenario = Scenario::read(&document)?;
    Ok((document.text().to_owned(), scenario))
}

/// The plugin that a file tests, by its folder: `node_ports` is NodePorts.
pub fn plugin_of_scenario_path(path: &Path) -> String {
    let folder = path.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    let words = folder.unwrap_or_default().split('_').map(|word| {
        let (first, rest) = word.split_at(word.len().min(1));
        format!("{}{rest}", first.to_uppercase())
    });
    words.collect()
}

/// The plugins whose scores are recorded in files that test `plugin`; `None` means all plugins.
pub fn recorded_score_plugins(
    registry: &Registry,
    profiles: &[Profile],
    plugin: &str,
) -> Option<Vec<String>> {
    registry.get(plugin)?;
    let mut members = profiles.iter().flat_map(|profile| &profile.score);
    let scores = members.any(|member| member.name == plugin);
    Some(if scores { vec![plugin.to_owned()] } else { Vec::new() })
}
