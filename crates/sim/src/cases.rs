//! Random scheduling cases: small clusters in which interesting combinations are common.
//!
//! A case is plain data (API objects as JSON), so that the same case can be given to kube-scheduler and to Loadmaster, written to a
//! file, and shrunk field by field. Every case is valid for the real decoders. Most cases concentrate on a few features
//! ([`CaseFeatureSet`]), because a cluster that uses all of them rejects every pod for the first of many reasons.

mod affinity;
mod case_rng;
mod cluster;
mod cluster_event;
mod config;
mod features;
mod gangs;
pub mod local_oracle;
mod node;
mod pod;
mod preemption;
pub mod reference_cases;
mod resources;
mod scheduler_plugins;
mod shrink;
mod spread;
mod volumes;
mod watched_objects;

use std::collections::BTreeMap;

use loadmaster_stdx::Rng;
use serde::Serialize;
use serde_json::{Value, json};

use case_rng::CaseRng;
pub use features::{CaseFeature, CaseFeatureSet};
pub use shrink::shrink_case;

/// One pod in one cluster, and what is asked about it.
#[derive(Clone, Debug, PartialEq)]
pub struct OracleCase {
    pub id: u64,
    /// `namespace/name` of the pod to schedule; empty for cases without one.
    pub pod: String,
    /// A KubeSchedulerConfiguration; the default one if absent.
    pub config: Option<Value>,
    /// Feature gates that are set for this case; all others have their defaults.
    pub feature_gates: BTreeMap<String, bool>,
    pub objects: Vec<Value>,
    pub kind: OracleCaseKind,
}

/// What is asked about the pod.
#[derive(Clone, Debug, PartialEq)]
pub enum OracleCaseKind {
    /// Filter results, scores and best nodes.
    Explain,
    /// Preemption candidates and their victims.
    Preemption,
    /// A plugin's queueing hint for an event.
    Hint(Box<CaseEvent>),
    /// The pod's signature.
    Sign,
    /// The enabled plugins per extension point.
    Config,
    /// Which of these pods comes first in activeQ, pair by pair.
    Order(Vec<CaseQueuedPod>),
    /// What Coscheduling does with the members of groups.
    Gangs(Box<GangCase>),
}

/// Members of groups, and what happens to them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GangCase {
    /// The pods that are compared by [`GangStep::Order`].
    pub queued: Vec<CaseQueuedPod>,
    /// In this order.
    pub steps: Vec<GangStep>,
    /// kube-scheduler only: PostFilter is not called for pods that PreFilter rejects.
    pub no_post_filter_after_pre_filter: bool,
    /// kube-scheduler only: Unreserve of a rejected pod is called after the next step, as its binding cycle may.
    pub late_unreserve: bool,
}

/// What happens to a pod. Pods are named `namespace/name`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "do", rename_all = "camelCase")]
pub enum GangStep {
    /// A scheduling cycle, unless the pod has a node: on this node, or, without one, no node fits.
    Schedule {
        pod: String,
        node: String,
        /// Loadmaster only: right after the step before, not eleven seconds later.
        immediately: bool,
    },
    /// The pod times out at Permit, if it waits.
    Timeout { pod: String },
    /// The bind of the pod fails, if it is to be bound.
    BindFails { pod: String },
    /// Which pod comes first in activeQ, pair by pair.
    Order,
}

/// A pod of the case's objects in the scheduling queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CaseQueuedPod {
    /// `namespace/name`.
    pub pod: String,
    /// When it was added to its current queue, as in objects.
    pub timestamp: String,
    /// When it was first added to activeQ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_attempt: Option<String>,
}

/// A cluster event. `old` and `new` are null if there is no such object.
#[derive(Clone, Debug, PartialEq)]
pub struct CaseEvent {
    pub plugin: String,
    /// Upstream's event resource, such as `AssignedPod`.
    pub resource: String,
    /// Upstream's action types, joined by `|`.
    pub action: String,
    pub old: Value,
    pub new: Value,
}

impl OracleCase {
    /// The case as a question in the format of `conformance/README.md`.
    pub fn question(&self) -> Value {
        let mut question = json!({"id": self.id, "ask": self.kind.name(), "objects": self.objects});
        if !self.pod.is_empty() {
            question["pod"] = json!(self.pod);
        }
        if let Some(config) = &self.config {
            question["config"] = config.clone();
        }
        if !self.feature_gates.is_empty() {
            question["featureGates"] = json!(self.feature_gates);
        }
        if let OracleCaseKind::Hint(event) = &self.kind {
            question["plugin"] = json!(event.plugin);
            question["event"] = json!({"resource": event.resource, "action": event.action});
            question["old"] = event.old.clone();
            question["new"] = event.new.clone();
        }
        if let OracleCaseKind::Order(queued) = &self.kind {
            question["queued"] = json!(queued);
        }
        if let OracleCaseKind::Gangs(gangs) = &self.kind {
            question["queued"] = json!(gangs.queued);
            question["steps"] = json!(gangs.steps);
            question["calls"] = json!({"lateUnreserve": gangs.late_unreserve,
                "noPostFilterAfterPreFilter": gangs.no_post_filter_after_pre_filter});
        }
        question
    }

    /// Size of the case as JSON, in bytes.
    pub fn json_size_bytes(&self) -> usize {
        self.question().to_string().len()
    }
}

impl OracleCaseKind {
    /// The value of the field `ask` in the oracle's protocol.
    pub fn name(&self) -> &'static str {
        match self {
            OracleCaseKind::Explain => "explain",
            OracleCaseKind::Preemption => "preemption",
            OracleCaseKind::Hint(_) => "hint",
            OracleCaseKind::Sign => "sign",
            OracleCaseKind::Config => "config",
            OracleCaseKind::Order(_) => "order",
            OracleCaseKind::Gangs(_) => "gangs",
        }
    }
}

/// An endless iterator of random cases. Each case has its own random stream, derived from seed and number, so that case 17 of a seed
/// stays the same when the generation of case 16 changes.
#[derive(Clone, Debug)]
pub struct CaseGenerator {
    seed: u64,
    next: u64,
    /// Plugins whose queueing hints are asked for.
    plugins: Vec<String>,
    subject: CaseSubject,
}

/// What all cases of a generator are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseSubject {
    /// Cases of all kinds.
    All,
    /// Preemption only.
    Preemption,
    /// Pods with volumes, in all kinds of cases.
    Volumes,
    /// The plugins of scheduler-plugins.
    SchedulerPlugins,
}

/// Plugins that reject pods for their volumes.
const VOLUME_PLUGINS: [&str; 4] =
    ["VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone"];

impl CaseGenerator {
    /// The cases of this seed; queueing hints are asked for these plugins.
    pub fn new(seed: u64, plugins: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let plugins = plugins.into_iter().map(Into::into).collect();
        CaseGenerator { seed, next: 0, plugins, subject: CaseSubject::All }
    }

    /// The same, with cases of this subject only.
    pub fn about(self, subject: CaseSubject) -> Self {
        CaseGenerator { subject, ..self }
    }

    /// One case by its number.
    pub fn generate_case(&self, id: u64) -> OracleCase {
        let kind = Rng::new(self.seed).split(&format!("kind {id}"));
        let rng = Rng::new(self.seed).split(&format!("case {id}"));
        let mut draw = CaseRng::new(rng);
        match self.subject {
            CaseSubject::All => self.case_of_any_kind(&mut draw, kind, id),
            CaseSubject::Preemption => preemption::case(&mut draw, id),
            CaseSubject::Volumes => self.volume_case(&mut draw, kind, id),
            CaseSubject::SchedulerPlugins => scheduler_plugins::case(&mut draw, id),
        }
    }

    /// A case in which the pod has volumes and mostly few other features.
    fn volume_case(&self, draw: &mut CaseRng, mut kind: Rng, id: u64) -> OracleCase {
        if draw.percent(60) {
            draw.clear_features();
        }
        draw.add(CaseFeature::Volumes);
        match kind.below(100) {
            0..70 => {
                let mut case = match kind.below(3) {
                    0 => preemption::case(draw, id),
                    _ => cluster::case(draw, id),
                };
                volumes::add_config(draw, &mut case);
                case
            }
            70..95 => cluster_event::case(draw, id, kind.pick::<&str>(&VOLUME_PLUGINS)),
            _ => config::sign_case(draw, id),
        }
    }

    fn case_of_any_kind(&self, draw: &mut CaseRng, mut kind: Rng, id: u64) -> OracleCase {
        match kind.below(100) {
            70..90 if !self.plugins.is_empty() => {
                let plugin = kind.pick(&self.plugins);
                cluster_event::case(draw, id, plugin)
            }
            90..95 => config::sign_case(draw, id),
            95.. => {
                let config = Some(config::random_config(draw));
                OracleCase {
                    id,
                    pod: String::new(),
                    config,
                    feature_gates: BTreeMap::new(),
                    objects: vec![],
                    kind: OracleCaseKind::Config,
                }
            }
            _ => cluster::case(draw, id),
        }
    }
}

/// `namespace/name` of an object.
fn full_name(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    format!("{}/{name}", namespace_of(object))
}

/// The namespace of an object of a kind that has namespaces.
fn namespace_of(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or("default")
}

impl Iterator for CaseGenerator {
    type Item = OracleCase;

    fn next(&mut self) -> Option<OracleCase> {
        let case = self.generate_case(self.next);
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
        let all: Vec<OracleCase> = CaseGenerator::new(7, ["NodePorts"]).take(50).collect();
        assert_eq!(CaseGenerator::new(7, ["NodePorts"]).generate_case(49), all[49]);
        assert_ne!(
            CaseGenerator::new(8, ["NodePorts"]).generate_case(49).question(),
            all[49].question()
        );
        let kinds: BTreeSet<&str> = all.iter().map(|case| case.kind.name()).collect();
        assert_eq!(Vec::from_iter(kinds), ["config", "explain", "hint", "sign"]);
    }

    #[test]
    fn object_names_are_unique() {
        for case in CaseGenerator::new(1, ["NodePorts"]).take(500) {
            let mut seen = BTreeSet::new();
            for object in &case.objects {
                let meta = &object["metadata"];
                let name = (
                    object["kind"].to_string(),
                    meta["namespace"].to_string(),
                    meta["name"].to_string(),
                );
                assert!(seen.insert(name.clone()), "case {}: {name:?} occurs twice", case.id);
            }
        }
    }
}
