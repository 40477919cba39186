//! Behaviours as files: a small cluster, steps, and what kube-scheduler said.
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
//! One idea a file, in the smallest world that shows it. [`shorthand`] describes nodes and pods; `objects` takes whole ones.
//! `config` is a KubeSchedulerConfiguration without its header; `plugins` and `args` are those of its only profile.
//!
//! | step | what it does |
//! | --- | --- |
//! | `submit` | pods that wait |
//! | `delete` | names of pods or nodes that go |
//! | `expect` | per pod, where it could go now and why not elsewhere ([`Expect`]) |
//! | `event`, `old`, `new`, `hints` | per plugin, what it says about a pod it rejected when this happens (`Queue`, `Skip`, ...) |
//! | `preempt` | per pod, who would have to go so that it fits, and where ([`Preempt`]) |
//! | `sign` | per pod, parts of its signature; null when it has none |
//!
//! What is expected is never written by hand: `cargo xtask scenarios record` asks kube-scheduler and fills it in. A file with a
//! `deviation` must *not* come out as recorded; the text says why we differ.

mod expect;
mod preempt;
pub mod shorthand;
mod steps;
mod write;

use std::io;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use loadmaster_api::document::{Document, DocumentError, Located};
use loadmaster_engine::Profile;
use loadmaster_framework::Registry;
use serde::Deserialize;
use serde_json::{Map, Value, json};

pub use expect::{Expect, Recorded};
pub use preempt::{Evictions, Preempt};
use shorthand::{NodeShort, PodShort, ShorthandError};
pub use steps::{About, Question, StepError};
pub use write::{from_case, record};

/// A scenario file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The idea, as a sentence.
    pub about: String,
    /// Where the idea comes from.
    #[serde(default)]
    pub from: Option<String>,
    /// Which kube-scheduler answered.
    #[serde(default)]
    pub oracle: Option<String>,
    /// Why we do not do what is recorded.
    #[serde(default)]
    pub deviation: Option<String>,
    #[serde(default)]
    config: Option<Value>,
    #[serde(default)]
    plugins: Option<Value>,
    /// By plugin.
    #[serde(default)]
    args: IndexMap<String, Value>,
    #[serde(default)]
    nodes: IndexMap<String, NodeShort>,
    /// Labels by name.
    #[serde(default)]
    namespaces: IndexMap<String, IndexMap<String, String>>,
    #[serde(default)]
    assigned: IndexMap<String, PodShort>,
    #[serde(default)]
    nominated: IndexMap<String, PodShort>,
    #[serde(default)]
    objects: Vec<Value>,
    pub steps: Vec<Step>,
}

/// One step; exactly one of its kinds is there.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    #[serde(default)]
    submit: Option<IndexMap<String, PodShort>>,
    #[serde(default)]
    delete: Option<Vec<String>>,
    #[serde(default)]
    pub expect: Option<IndexMap<String, Expect>>,
    #[serde(default)]
    pub preempt: Option<IndexMap<String, Preempt>>,
    #[serde(default)]
    pub sign: Option<IndexMap<String, Option<Map<String, Value>>>>,
    /// Resource and action, as upstream spells them: `Node Add`.
    #[serde(default)]
    pub event: Option<String>,
    /// The pod that waits; the last one submitted when not given.
    #[serde(default)]
    pod: Option<String>,
    /// A name of something in the cluster, a shorthand with a `name`, or a whole object.
    #[serde(default)]
    old: Option<Value>,
    #[serde(default)]
    new: Option<Value>,
    #[serde(default)]
    pub hints: Option<IndexMap<String, String>>,
}

/// A scenario cannot be played.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    #[error(transparent)]
    File(#[from] DocumentError),
    #[error(transparent)]
    Read(#[from] Located),
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
    /// Reads a scenario; unknown fields are refused.
    pub fn read(document: &Document) -> Result<Scenario, ScenarioError> {
        Ok(document.decode()?)
    }

    /// The objects before the first step.
    pub fn world(&self) -> Result<Vec<Value>, ScenarioError> {
        let failed = |kind: &str, name: &str| {
            let place = format!("{kind}.{name}");
            move |source| ScenarioError::Shorthand { place, source }
        };
        let mut objects = Vec::new();
        for (name, node) in &self.nodes {
            objects.push(node.object(name).map_err(failed("nodes", name))?);
        }
        for (name, labels) in &self.namespaces {
            let metadata = json!({"name": name, "labels": labels});
            objects.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
        }
        for (kind, pods) in [("assigned", &self.assigned), ("nominated", &self.nominated)] {
            for (name, pod) in pods {
                objects.push(pod.object(name).map_err(failed(kind, name))?);
            }
        }
        objects.extend(self.objects.iter().cloned());
        Ok(objects)
    }

    /// The configuration with its header; none for the default one.
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

/// All scenario files below a folder, sorted.
pub fn paths(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            paths.extend(self::paths(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// A file's text, and what it says.
pub fn read(path: &Path) -> Result<(String, Scenario), ScenarioError> {
    let name = path.display().to_string();
    let document = Document::read(&name, None)?;
    let scenario = Scenario::read(&document)?;
    Ok((document.text().to_owned(), scenario))
}

/// The plugin that a file is about by its folder: `node_ports` is NodePorts.
pub fn plugin_of(path: &Path) -> String {
    let folder = path.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    let words = folder.unwrap_or_default().split('_').map(|word| {
        let (first, rest) = word.split_at(word.len().min(1));
        format!("{}{rest}", first.to_uppercase())
    });
    words.collect()
}

/// The plugins whose scores files about this plugin show: all of them where it is none.
pub fn scorers(registry: &Registry, profiles: &[Profile], plugin: &str) -> Option<Vec<String>> {
    registry.get(plugin)?;
    let mut members = profiles.iter().flat_map(|profile| &profile.score);
    let scores = members.any(|member| member.name == plugin);
    Some(if scores { vec![plugin.to_owned()] } else { Vec::new() })
}
