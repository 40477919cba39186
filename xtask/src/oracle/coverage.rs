//! What a run has covered, by kube-scheduler's answers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use loadmaster_sim::cases::{OracleCase, OracleCaseKind};
use loadmaster_sim::scenario::ExpectedPreemption;
use serde_json::{Value, json};

use super::compare::without_names;

/// Counters of answers.
#[derive(Default)]
pub struct Coverage {
    kinds: BTreeMap<&'static str, u64>,
    codes: BTreeMap<String, u64>,
    /// By plugin and text.
    reasons: BTreeMap<(String, String), u64>,
    /// By plugin: all weighted scores.
    scores: BTreeMap<String, BTreeSet<i64>>,
    hints: BTreeMap<(String, String, String), u64>,
    preemptions: BTreeMap<String, u64>,
    signed: u64,
    refused: BTreeMap<String, u64>,
    errors: BTreeMap<String, u64>,
    n_feasible: BTreeMap<usize, u64>,
}

impl Coverage {
    /// Counts an answer.
    pub fn add(&mut self, case: &OracleCase, answer: &Value) {
        *self.kinds.entry(case.kind.name()).or_default() += 1;
        if let Some(error) = answer["error"].as_str() {
            *self.errors.entry(without_names(error)).or_default() += 1;
        }
        match &case.kind {
            OracleCaseKind::Explain => self.explanation(answer),
            OracleCaseKind::Preemption => self.preemption(answer),
            OracleCaseKind::Hint(event) => {
                let hint = answer["hint"].as_str().unwrap_or("no answer").to_owned();
                let event_name = format!("{}/{}", event.resource, event.action);
                *self.hints.entry((event.plugin.clone(), event_name, hint)).or_default() += 1;
            }
            OracleCaseKind::Sign if answer["signature"].is_string() => self.signed += 1,
            OracleCaseKind::Sign => {
                *self.refused.entry(answer["refusedBy"].to_string()).or_default() += 1
            }
            OracleCaseKind::Gangs(_) => {
                for step in answer["steps"].as_array().into_iter().flatten() {
                    for point in ["preFilter", "postFilter", "permit"] {
                        if let Some(status) = step.get(point) {
                            self.gang_status(point, status);
                        }
                    }
                }
            }
            OracleCaseKind::Config | OracleCaseKind::Order(_) => {}
        }
    }

    fn explanation(&mut self, answer: &Value) {
        for part in ["preEnqueue", "preFilter"] {
            if let Some(status) = answer.get(part) {
                self.status(part, status);
            }
        }
        let mut n_feasible = 0;
        for node in answer["nodes"].as_array().into_iter().flatten() {
            self.status("filter", &node["filter"]);
            n_feasible += usize::from(node["filter"]["code"] == "Success");
            for (plugin, score) in node["scores"].as_object().into_iter().flatten() {
                self.scores.entry(plugin.clone()).or_default().extend(score.as_i64());
            }
        }
        *self.n_feasible.entry(n_feasible).or_default() += 1;
    }

    fn preemption(&mut self, answer: &Value) {
        let Some(status) = answer.get("status") else {
            let why = if answer["fits"] == true { "fits as it is" } else { "cycle fails" };
            *self.preemptions.entry(why.to_owned()).or_default() += 1;
            return;
        };
        self.status("preemption", &json!({"code": status["code"]}));
        for text in ExpectedPreemption::from_answer(answer).rejection_reasons() {
            if !text.starts_with("preemption: 0/") {
                *self
                    .reasons
                    .entry(("DefaultPreemption".to_owned(), without_names(&text)))
                    .or_default() += 1;
            }
        }
        let candidates = answer["candidates"].as_object();
        let mut count = |what: &str, n: usize| {
            *self.preemptions.entry(format!("{what} {n:>2}")).or_default() += 1;
        };
        count("candidates", candidates.map_or(0, serde_json::Map::len));
        count("best", answer["best"].as_array().map_or(0, Vec::len));
        for candidate in candidates.into_iter().flatten().map(|(_, candidate)| candidate) {
            count("victims", candidate["victims"].as_array().map_or(0, Vec::len));
            let n = candidate["pdbViolations"].as_u64().unwrap_or_default();
            count("violations", usize::try_from(n).unwrap_or(usize::MAX));
        }
    }

    /// A status of Coscheduling, whose reasons have names and numbers.
    fn gang_status(&mut self, point: &str, status: &Value) {
        let code = status["code"].as_str().unwrap_or("none");
        *self.codes.entry(format!("Coscheduling's {point} {code}")).or_default() += 1;
        if let Some(reason) = status["reasons"][0].as_str() {
            let words: Vec<&str> = reason.split(' ').filter(|it| it.len() > 3).take(5).collect();
            let reason = without_names(&words.join(" "));
            *self.reasons.entry(("Coscheduling".to_owned(), reason)).or_default() += 1;
        }
    }

    fn status(&mut self, point: &str, status: &Value) {
        let code = status["code"].as_str().unwrap_or("none");
        *self.codes.entry(format!("{point} {code}")).or_default() += 1;
        let plugin = status["plugin"].as_str().unwrap_or("-");
        for reason in status["reasons"].as_array().into_iter().flatten() {
            let reason = reason.as_str().unwrap_or_default().to_owned();
            *self.reasons.entry((plugin.to_owned(), reason)).or_default() += 1;
        }
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nquestions: {}", counts(&self.kinds))?;
        writeln!(f, "codes: {}", counts(&self.codes))?;
        writeln!(f, "feasible nodes: {}", counts(&self.n_feasible))?;
        writeln!(f, "reasons:")?;
        for ((plugin, reason), n) in &self.reasons {
            writeln!(f, "  {n:>6}  {plugin}: {reason}")?;
        }
        writeln!(f, "weighted scores:")?;
        for (plugin, scores) in &self.scores {
            let (low, high) = (scores.first().unwrap_or(&0), scores.last().unwrap_or(&0));
            writeln!(f, "  {plugin}: {} different, {low} to {high}", scores.len())?;
        }
        writeln!(f, "hints:")?;
        let mut by_plugin: BTreeMap<(&str, &str), BTreeMap<&str, u64>> = BTreeMap::new();
        for ((plugin, event, hint), n) in &self.hints {
            by_plugin.entry((plugin, event)).or_default().insert(hint, *n);
        }
        for ((plugin, event), answers) in by_plugin {
            // Events that the plugin has not registered are left out.
            if answers.keys().any(|answer| *answer != "Unregistered") {
                writeln!(f, "  {plugin} {event}: {}", counts(&answers))?;
            }
        }
        writeln!(f, "preemption: {}", counts(&self.preemptions))?;
        writeln!(f, "signatures: {} signed, refused by {}", self.signed, counts(&self.refused))?;
        write!(f, "errors:")?;
        for (error, n) in &self.errors {
            write!(f, "\n  {n:>6}  {error}")?;
        }
        Ok(())
    }
}

fn counts<K: fmt::Display>(all: &BTreeMap<K, u64>) -> String {
    let all: Vec<String> = all.iter().map(|(key, n)| format!("{key} {n}")).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}
