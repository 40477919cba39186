//! The expected preemption result, and the conversion of an oracle's answer to the same form.

use std::fmt::Write as _;

use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::Value;

use super::recording::scalar;

/// The expected preemption result. All fields are compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ExpectedPreemption {
    /// The pod is feasible without preemption.
    pub fits: bool,
    /// Candidates by node name.
    pub candidates: IndexMap<String, CandidateVictims>,
    /// The best candidates, of which one is selected.
    pub best: Vec<String>,
    /// Why there is no candidate, or why the question cannot be answered.
    pub message: Option<String>,
    /// Whether the pod's nominated node is cleared.
    pub clears_nomination: bool,
}

/// The victims on a candidate node, the most important first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct CandidateVictims {
    pub victims: Vec<String>,
    pub pdb_violations: i64,
}

impl ExpectedPreemption {
    /// Converts an answer in the format of `conformance/README.md`.
    pub fn from_answer(answer: &Value) -> ExpectedPreemption {
        let texts = |list: &Value| -> Vec<String> {
            let texts = list.as_array().into_iter().flatten().filter_map(Value::as_str);
            texts.map(str::to_owned).collect()
        };
        let candidates = answer["candidates"].as_object().into_iter().flatten();
        let reasons = texts(&answer["status"]["reasons"]).join(", ");
        let error = answer["cycleError"].as_str().or_else(|| answer["error"].as_str());
        ExpectedPreemption {
            fits: answer["fits"] == true,
            candidates: candidates
                .map(|(node, candidate)| {
                    let pdb_violations = candidate["pdbViolations"].as_i64().unwrap_or_default();
                    (
                        node.clone(),
                        CandidateVictims { victims: texts(&candidate["victims"]), pdb_violations },
                    )
                })
                .collect(),
            best: texts(&answer["best"]),
            message: error
                .map(str::to_owned)
                .or_else(|| Some(reasons).filter(|reasons| !reasons.is_empty())),
            clears_nomination: answer["nominated"] == "",
        }
    }

    /// The differences to what was found.
    pub fn differences(&self, found: &ExpectedPreemption) -> Vec<String> {
        if self == found { Vec::new() } else { vec![format!("expected {self:?}, found {found:?}")] }
    }

    /// The texts of a rejection: the whole message, and its reasons without their counts.
    pub fn rejection_reasons(&self) -> Vec<String> {
        let message = self.message.iter().flat_map(|message| {
            let counted = message.rsplit(": ").next().unwrap_or_default().split(", ");
            let digits = |text: &'_ str| {
                text.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ').to_owned()
            };
            counted.map(digits).chain([message.clone()]).collect::<Vec<_>>()
        });
        message.collect()
    }

    pub(super) fn write(&self, text: &mut String, pod: &str) {
        let _ = writeln!(text, "    {}:", scalar(pod));
        if self.fits {
            text.push_str("      fits: true\n");
        }
        if !self.candidates.is_empty() {
            text.push_str("      candidates:\n");
        }
        for (node, candidate) in &self.candidates {
            let victims: Vec<String> = candidate.victims.iter().map(|name| scalar(name)).collect();
            let victims = victims.join(", ");
            let n = candidate.pdb_violations;
            let _ = writeln!(
                text,
                "        {}: {{victims: [{victims}], pdbViolations: {n}}}",
                scalar(node)
            );
        }
        if !self.best.is_empty() {
            let best: Vec<String> = self.best.iter().map(|name| scalar(name)).collect();
            let _ = writeln!(text, "      best: [{}]", best.join(", "));
        }
        if let Some(message) = &self.message {
            let _ = writeln!(text, "      message: {}", scalar(message));
        }
        if self.clears_nomination {
            text.push_str("      clearsNomination: true\n");
        }
    }
}
