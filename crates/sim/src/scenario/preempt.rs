//! What a scenario records about preemption, and what an answer says about it, in one form.

use std::fmt::Write as _;

use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::Value;

use super::write::scalar;

/// Which pods would have to go so that the pod fits. All of it is compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Preempt {
    /// The pod fits as it is.
    pub fits: bool,
    /// By node.
    pub candidates: IndexMap<String, Evictions>,
    /// The candidates of which one is chosen.
    pub best: Vec<String>,
    /// Why there is none.
    pub message: Option<String>,
    /// Whether a node that was promised to the pod is promised no longer.
    pub clears_nomination: bool,
}

/// The pods that would have to go, the most important first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Evictions {
    pub victims: Vec<String>,
    pub pdb_violations: i64,
}

impl Preempt {
    /// What an answer in the words of `conformance/README.md` says.
    pub fn from_answer(answer: &Value) -> Preempt {
        let texts = |list: &Value| -> Vec<String> {
            let texts = list.as_array().into_iter().flatten().filter_map(Value::as_str);
            texts.map(str::to_owned).collect()
        };
        let candidates = answer["candidates"].as_object().into_iter().flatten();
        let reasons = texts(&answer["status"]["reasons"]).join(", ");
        let error = answer["cycleError"].as_str().map(str::to_owned);
        Preempt {
            fits: answer["fits"] == true,
            candidates: candidates
                .map(|(node, gone)| {
                    let pdb_violations = gone["pdbViolations"].as_i64().unwrap_or_default();
                    (node.clone(), Evictions { victims: texts(&gone["victims"]), pdb_violations })
                })
                .collect(),
            best: texts(&answer["best"]),
            message: error.or_else(|| Some(reasons).filter(|reasons| !reasons.is_empty())),
            clears_nomination: answer["nominated"] == "",
        }
    }

    /// What is found to be otherwise.
    pub fn differences(&self, found: &Preempt) -> Vec<String> {
        if self == found { Vec::new() } else { vec![format!("expected {self:?}, found {found:?}")] }
    }

    /// The texts with which it says no: the whole message, and the reasons that it counts.
    pub fn reasons(&self) -> Vec<String> {
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
        for (node, gone) in &self.candidates {
            let victims: Vec<String> = gone.victims.iter().map(|name| scalar(name)).collect();
            let victims = victims.join(", ");
            let n = gone.pdb_violations;
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
