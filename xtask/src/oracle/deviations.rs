//! Intended deviations from kube-scheduler: for each, what Loadmaster must answer instead. Nothing is accepted without comparison.

mod gangs;

use std::borrow::Cow;

use anyhow::Result;
use loadmaster_sim::cases::{OracleCase, OracleCaseKind, reference_cases};
use serde_json::{Map, Value, json};

/// A deviation in some cases.
pub struct Deviation {
    pub text: &'static str,
    /// The file in `scenarios/` that shows it, which is checked in every run; `None` if kube-scheduler's answer depends on
    /// chance, if it panics, or if it is about a plugin of scheduler-plugins.
    pub scenario: Option<&'static str>,
    applies: fn(&OracleCase) -> bool,
    expected: ExpectedAnswer,
}

/// What Loadmaster must answer to a case of a deviation.
enum ExpectedAnswer {
    /// What kube-scheduler answers to this other case.
    OfReferenceCase(fn(&OracleCase) -> OracleCase),
    /// kube-scheduler's answer with these changes.
    Changed(fn(&OracleCase, &mut Value)),
}

const DEVIATIONS: [Deviation; 6] = [
    Deviation {
        text: "pods with ResourceClaims are rejected with our own reason, until devices are supported",
        scenario: Some("dynamic_resources/missing_claim.yaml"),
        applies: |case| is_about(case, &OracleCaseKind::Explain, has_resource_claims),
        expected: ExpectedAnswer::Changed(|_, answer| reject_claims(&RESOURCE_CLAIMS, answer)),
    },
    Deviation {
        text: "of two pods on a node with the same host port, kube-scheduler's dry run frees the port with the first victim",
        scenario: Some("default_preemption/two_victims_with_the_same_host_port.yaml"),
        applies: |case| {
            case.kind == OracleCaseKind::Preemption && reference_cases::has_shared_host_ports(case)
        },
        expected: ExpectedAnswer::OfReferenceCase(reference_cases::without_shared_host_ports),
    },
    Deviation {
        text: "kube-scheduler orders pods that have not started by two different readings of the clock",
        scenario: None,
        applies: |case| {
            case.kind == OracleCaseKind::Preemption
                && reference_cases::has_equal_unstarted_pods(case)
        },
        expected: ExpectedAnswer::OfReferenceCase(reference_cases::with_equal_start_times),
    },
    Deviation {
        text: "pods with preemptionPolicy Never that fit on no node lose their nomination",
        scenario: Some("default_preemption/preemption_policy_never.yaml"),
        applies: |case| is_about(case, &OracleCaseKind::Preemption, never_preempts),
        expected: ExpectedAnswer::Changed(|_, answer| clear_nomination_of_ineligible_pod(answer)),
    },
    Deviation {
        text: "pods that another plugin rejects in PreFilter lose their nomination, although CapacityScheduling keeps it",
        scenario: None,
        applies: |case| {
            let has_plugin = |config: &Value| config.to_string().contains("CapacityScheduling");
            case.kind == OracleCaseKind::Preemption && case.config.as_ref().is_some_and(has_plugin)
        },
        expected: ExpectedAnswer::Changed(|_, answer| clear_nomination_of_ineligible_pod(answer)),
    },
    Deviation {
        text: "kube-scheduler panics when it scores the capacity for a claim whose class is in the annotation only",
        scenario: None,
        applies: reference_cases::has_scored_annotated_claims,
        expected: ExpectedAnswer::OfReferenceCase(reference_cases::with_classes_in_spec),
    },
];

fn all() -> impl Iterator<Item = &'static Deviation> {
    DEVIATIONS.iter().chain(&gangs::DEVIATIONS)
}

/// The deviations that may affect this case.
pub fn of(case: &OracleCase) -> Vec<&'static Deviation> {
    all().filter(|deviation| (deviation.applies)(case)).collect()
}

/// All deviations that a scenario shows.
pub fn with_scenario() -> impl Iterator<Item = (&'static Deviation, &'static str)> {
    all().filter_map(|deviation| Some((deviation, deviation.scenario?)))
}

/// What Loadmaster must answer, from kube-scheduler's answer to the case. `ask` asks kube-scheduler about another case.
pub fn expected_answer<'a>(
    case: &OracleCase,
    theirs: &'a Value,
    ask: impl FnOnce(&OracleCase) -> Result<Value>,
) -> Result<Cow<'a, Value>> {
    let (mut reference, mut changes) = (Cow::Borrowed(case), Vec::new());
    for deviation in of(case) {
        match deviation.expected {
            ExpectedAnswer::OfReferenceCase(to) => reference = Cow::Owned(to(&reference)),
            ExpectedAnswer::Changed(change) => changes.push(change),
        }
    }
    let mut expected = match reference {
        Cow::Borrowed(_) => Cow::Borrowed(theirs),
        Cow::Owned(reference) => Cow::Owned(ask(&reference)?),
    };
    for change in changes {
        change(case, expected.to_mut());
    }
    Ok(expected)
}

/// How pods with claims of one kind are rejected. The generated clusters contain no claims.
struct ClaimRejection {
    /// kube-scheduler's plugins that reject a pod whose claim does not exist.
    plugins: &'static [&'static str],
    /// How their reasons begin.
    reasons: &'static [&'static str],
    /// Loadmaster's plugin, which rejects the pod in PreFilter, and its reason.
    our_plugin: &'static str,
    our_reason: &'static str,
}

const RESOURCE_CLAIMS: ClaimRejection = ClaimRejection {
    plugins: &["DynamicResources"],
    reasons: &["could not find ResourceClaim \""],
    our_plugin: "DynamicResources",
    our_reason: "pod has ResourceClaims, which this version does not support yet",
};

/// Replaces the rejection of a pod whose claim does not exist. Loadmaster has none in PreEnqueue.
fn reject_claims(claims: &ClaimRejection, answer: &mut Value) {
    if claims.reason(&answer["preEnqueue"]).is_some() {
        answer.as_object_mut().map(|fields| fields.remove("preEnqueue"));
    }
    let Some(reason) = claims.reason(&answer["preFilter"]).map(str::to_owned) else { return };
    let ours = json!({
        "code": "UnschedulableAndUnresolvable",
        "plugin": claims.our_plugin,
        "reasons": [claims.our_reason],
    });
    for node in answer["nodes"].as_array_mut().into_iter().flatten() {
        if claims.reason(&node["filter"]).is_some() {
            node["filter"] = ours.clone();
        }
    }
    answer["preFilter"] = ours;
    let message = answer["message"].as_str().unwrap_or_default();
    answer["message"] = json!(message.replace(&reason, claims.our_reason));
}

impl ClaimRejection {
    /// The reason of a status, if it is such a rejection by kube-scheduler.
    fn reason<'a>(&self, status: &'a Value) -> Option<&'a str> {
        let plugin = status["plugin"].as_str()?;
        let [reason] = status["reasons"].as_array()?.as_slice() else { return None };
        let reason = reason.as_str()?;
        let is_missing = self.reasons.iter().any(|start| reason.starts_with(start));
        (self.plugins.contains(&plugin) && is_missing).then_some(reason)
    }
}

/// Plugins that are not implemented, or only as far as pods with claims are rejected, and the extension points that they have in
/// Loadmaster.
const UNIMPLEMENTED_PLUGINS: [(&str, &[&str]); 1] = [("DynamicResources", &["preFilter", "score"])];

/// Placements of pod groups are not implemented.
const UNIMPLEMENTED_POINTS: [&str; 1] = ["placementScore"];

/// The plugins per profile and extension point that Loadmaster must have, from those that kube-scheduler has.
pub fn expected_plugins(theirs: &Value) -> Value {
    let mut profiles = theirs.clone();
    let profiles_mut = profiles.as_object_mut().into_iter().flatten();
    for points in profiles_mut.filter_map(|(_, points)| points.as_object_mut()) {
        points.retain(|point, plugins| {
            let Some(plugins) = plugins.as_array_mut() else { return true };
            plugins.retain(|plugin| {
                let known = UNIMPLEMENTED_PLUGINS.iter().find(|(name, _)| plugin[0] == *name);
                known.is_none_or(|(_, points)| points.contains(&point.as_str()))
            });
            !UNIMPLEMENTED_POINTS.contains(&point.as_str()) && !plugins.is_empty()
        });
    }
    profiles
}

/// Parts of pod signatures from plugins that are not implemented.
const UNIMPLEMENTED_FRAGMENTS: [&str; 1] = ["v1.Pod.Spec.DynamicResources"];

/// The part with a pod's volumes. Loadmaster does not store the whole of them, so only the names of claims are compared.
const VOLUMES_FRAGMENT: &str = "v1.Pod.Spec.Volumes.NonSyntheticSources()";

/// The signature that Loadmaster must give, from kube-scheduler's.
pub fn expected_signature(mut theirs: Map<String, Value>) -> Map<String, Value> {
    theirs.retain(|key, _| !UNIMPLEMENTED_FRAGMENTS.contains(&key.as_str()));
    compared_signature(theirs)
}

/// What is compared of a signature.
pub fn compared_signature(mut signature: Map<String, Value>) -> Map<String, Value> {
    if let Some(volumes) = signature.get_mut(VOLUMES_FRAGMENT) {
        let claims = volumes.as_array().into_iter().flatten().filter_map(|text| {
            let volume: Value = serde_json::from_str(text.as_str()?).ok()?;
            volume["persistentVolumeClaim"]["claimName"].as_str().map(str::to_owned)
        });
        let mut claims: Vec<String> = claims.collect();
        claims.sort_unstable();
        *volumes = json!(claims);
    }
    signature
}

/// The pod fits on no node and waits for no victim, and kube-scheduler keeps its nomination.
fn clear_nomination_of_ineligible_pod(answer: &mut Value) {
    // Plugins of scheduler-plugins write no prefix.
    let reason = answer["status"]["reasons"][0].as_str().unwrap_or_default();
    let ineligible = ["preemptionPolicy=Never.", "failed to read from cycleState"];
    if ineligible.iter().any(|why| reason.ends_with(&format!("not eligible due to {why}"))) {
        answer["nominated"] = json!("");
    }
}

fn is_pod(object: &Value, full_name: &str) -> bool {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    object["kind"] == "Pod" && full_name == format!("{namespace}/{name}")
}

/// Whether this is asked about a pod of this kind.
fn is_about(case: &OracleCase, kind: &OracleCaseKind, is_of_kind: fn(&Value) -> bool) -> bool {
    let pod = case.objects.iter().find(|object| is_pod(object, &case.pod));
    case.kind == *kind && pod.is_some_and(is_of_kind)
}

fn never_preempts(pod: &Value) -> bool {
    pod["spec"]["preemptionPolicy"] == "Never"
}

fn has_resource_claims(pod: &Value) -> bool {
    pod["spec"]["resourceClaims"].as_array().is_some_and(|claims| !claims.is_empty())
}

#[cfg(test)]
mod tests;
