//! Random scheduling questions: small clusters in which interesting coincidences are common.
//!
//! A case is plain data (API objects as JSON), so that the same case can be put to kube-scheduler, to us, into a file, and can
//! be made smaller field by field. Every case is valid for the real decoders. Most cases concentrate on a few features
//! ([`Focus`]), because a cluster with everything in it rejects every pod for the first of many reasons.

mod affinity;
pub mod answer;
mod cluster;
mod config;
mod draw;
mod event;
mod focus;
mod node;
mod pod;
mod preemption;
mod resources;
mod shrink;
mod spread;

use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use draw::Draw;
pub use focus::{Feature, Focus};
pub use shrink::shrink;

/// A question about one pod in one cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    pub id: u64,
    /// `namespace/name` of the pod asked about; empty where none is.
    pub pod: String,
    /// A KubeSchedulerConfiguration; the default one when absent.
    pub config: Option<Value>,
    pub objects: Vec<Value>,
    pub ask: Ask,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// Where the pod could go, and why not elsewhere.
    Explain,
    /// Which pods would have to go so that the pod fits, and from which node.
    Preemption,
    /// Whether an event may help the pod that a plugin rejected.
    Hint(Box<Event>),
    /// The pod's signature.
    Sign,
    /// Which plugins run at which point.
    Config,
}

/// Something that happened to an object. `old` and `new` are null where there is none.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub plugin: String,
    /// Upstream's name, such as `AssignedPod`.
    pub resource: String,
    /// Upstream's names, joined by `|`.
    pub action: String,
    pub old: Value,
    pub new: Value,
}

impl Case {
    /// The case as `conformance/README.md` describes a question.
    pub fn question(&self) -> Value {
        let mut question = json!({"id": self.id, "ask": self.ask.name(), "objects": self.objects});
        if !self.pod.is_empty() {
            question["pod"] = json!(self.pod);
        }
        if let Some(config) = &self.config {
            question["config"] = config.clone();
        }
        if let Ask::Hint(event) = &self.ask {
            question["plugin"] = json!(event.plugin);
            question["event"] = json!({"resource": event.resource, "action": event.action});
            question["old"] = event.old.clone();
            question["new"] = event.new.clone();
        }
        question
    }

    /// How large the case is, to tell whether a change made it smaller.
    pub fn n_bytes(&self) -> usize {
        self.question().to_string().len()
    }
}

impl Ask {
    /// The oracle's word for it.
    pub fn name(&self) -> &'static str {
        match self {
            Ask::Explain => "explain",
            Ask::Preemption => "preemption",
            Ask::Hint(_) => "hint",
            Ask::Sign => "sign",
            Ask::Config => "config",
        }
    }
}

/// Endless cases; a seed is the whole stream, and each case has a stream of its own, so that case 17 of a seed stays the same
/// however much chance case 16 uses.
#[derive(Clone, Debug)]
pub struct Generator {
    seed: u64,
    next: u64,
    /// Plugins that hint questions are asked about.
    plugins: Vec<String>,
    only_preemption: bool,
}

impl Generator {
    /// The cases of this seed; hints are asked of these plugins.
    pub fn new(seed: u64, plugins: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let plugins = plugins.into_iter().map(Into::into).collect();
        Generator { seed, next: 0, plugins, only_preemption: false }
    }

    /// Cases of this seed that all ask about preemption.
    pub fn preemption(seed: u64) -> Self {
        Generator { seed, next: 0, plugins: Vec::new(), only_preemption: true }
    }

    /// One case by its number.
    pub fn case(&self, id: u64) -> Case {
        let mut kind = Rng::new(self.seed).split(&format!("kind {id}"));
        let rng = Rng::new(self.seed).split(&format!("case {id}"));
        let mut draw = Draw::new(rng);
        if self.only_preemption {
            return preemption::case(&mut draw, id);
        }
        match kind.below(100) {
            70..90 if !self.plugins.is_empty() => {
                let plugin = kind.pick(&self.plugins);
                event::case(&mut draw, id, plugin)
            }
            90..95 => config::case_to_sign(&mut draw, id),
            95.. => {
                let config = Some(config::any(&mut draw));
                Case { id, pod: String::new(), config, objects: vec![], ask: Ask::Config }
            }
            _ => cluster::case(&mut draw, id),
        }
    }
}

/// Node, address, protocol and number of the host ports of a pod on a node, as it is written.
fn host_ports(pod: &Value) -> Vec<Value> {
    let spec = &pod["spec"];
    let containers = ["containers", "initContainers"].map(|kind| spec[kind].as_array());
    let ports = containers.into_iter().flatten().flatten();
    let ports = ports.filter_map(|container| container["ports"].as_array()).flatten();
    let held = ports.filter(|port| port["hostPort"].as_i64().unwrap_or_default() > 0);
    let or = |value: &Value, default: &'static str| match value.as_str() {
        Some(text) if !text.is_empty() => json!(text),
        _ => json!(default),
    };
    held.map(|port| {
        json!([
            spec["nodeName"],
            or(&port["hostIP"], "0.0.0.0"),
            or(&port["protocol"], "TCP"),
            port["hostPort"]
        ])
    })
    .collect()
}

/// Whether some node has two pods with one host port.
pub fn shares_ports(case: &Case) -> bool {
    let mut seen: Vec<Value> = Vec::new();
    case.objects.iter().filter(|object| object["spec"].get("nodeName").is_some()).any(|pod| {
        let own = host_ports(pod);
        let shared = own.iter().any(|port| seen.contains(port));
        seen.extend(own);
        shared
    })
}

/// Whether some node has two pods of one priority that have not started.
pub fn has_unstarted_equals(case: &Case) -> bool {
    let mut seen: Vec<Value> = Vec::new();
    let pods = case.objects.iter().filter(|object| object["spec"].get("nodeName").is_some());
    pods.filter(|pod| pod["status"].get("startTime").is_none_or(Value::is_null)).any(|pod| {
        let priority = pod["spec"]["priority"].as_i64().unwrap_or_default();
        let key = json!([pod["spec"]["nodeName"], priority]);
        let again = seen.contains(&key);
        seen.push(key);
        again
    })
}

/// `namespace/name` of an object as it is written.
fn full_name(object: &Value) -> String {
    let metadata = &object["metadata"];
    let namespace = metadata["namespace"].as_str().unwrap_or("default");
    format!("{namespace}/{}", metadata["name"].as_str().unwrap_or_default())
}

impl Iterator for Generator {
    type Item = Case;

    fn next(&mut self) -> Option<Case> {
        let case = self.case(self.next);
        self.next += 1;
        Some(case)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_case_depends_on_seed_and_number_only() {
        let all: Vec<Case> = Generator::new(7, ["NodePorts"]).take(50).collect();
        assert_eq!(Generator::new(7, ["NodePorts"]).case(49), all[49]);
        assert_ne!(Generator::new(8, ["NodePorts"]).case(49).question(), all[49].question());
        let kinds: BTreeSet<&str> = all.iter().map(|case| case.ask.name()).collect();
        assert_eq!(Vec::from_iter(kinds), ["config", "explain", "hint", "sign"]);
    }

    #[test]
    fn objects_have_names_of_their_own() {
        for case in Generator::new(1, ["NodePorts"]).take(500) {
            let mut seen = BTreeSet::new();
            for object in &case.objects {
                let meta = &object["metadata"];
                let name = (
                    object["kind"].to_string(),
                    meta["namespace"].to_string(),
                    meta["name"].to_string(),
                );
                assert!(seen.insert(name.clone()), "case {}: {name:?} is there twice", case.id);
            }
        }
    }
}
