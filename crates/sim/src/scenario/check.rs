//! Checks Loadmaster's results against a scenario: they must equal those of kube-scheduler, and, in a deviation, those that the file
//! has for Loadmaster.

use serde_json::Value;

use super::steps::OracleQuestion;
use super::{RecordedResult, Scenario, ScenarioError};
use crate::cases::OracleCase;

/// All differences, one per line; none if the scenario passes. `answer` returns Loadmaster's answer to a case in the format of
/// `conformance/README.md`; `scorers` are the plugins whose scores are recorded (`None` means all).
///
/// # Errors
///
/// If a step is invalid.
pub fn check_scenario(
    scenario: &Scenario,
    plugin: &str,
    scorers: Option<&[String]>,
    mut answer: impl FnMut(&OracleCase) -> Value,
) -> Result<Vec<String>, ScenarioError> {
    let questions = scenario.questions(plugin)?;
    let mut lines = deviations_without_effect(scenario, &questions);
    if questions.is_empty() {
        lines.push("has no expectations".to_owned());
    }
    for question in &questions {
        let answer = answer(&question.case);
        let differences = question_differences(scenario, question, &answer, scorers)?;
        let error = answer["error"].as_str().map(str::to_owned);
        let all = differences.into_iter().chain(error);
        lines.extend(all.map(|line| format!("steps[{}]: {line}", question.step)));
    }
    Ok(lines)
}

fn question_differences(
    scenario: &Scenario,
    question: &OracleQuestion,
    answer: &Value,
    scorers: Option<&[String]>,
) -> Result<Vec<String>, ScenarioError> {
    let Some(recorded) = scenario.recorded_result(question) else {
        return Ok(vec!["not recorded, run `cargo xtask scenarios record`".to_owned()]);
    };
    let found = question.to_recorded_result(answer, scorers);
    let Some(written) = scenario.deviating_result(question)? else {
        return Ok(recorded.differences(&found));
    };
    let name = question.about.name();
    if !is_complete(&written) {
        return Ok(vec![format!("loadmaster: {name}: expected a whole result, this one fits any")]);
    }
    // What is written for Loadmaster must not be what kube-scheduler answers.
    if recorded.differences(&written).is_empty() {
        return Ok(vec![format!("loadmaster: {name}: no deviation, this is the recorded result")]);
    }
    let differences = written.differences(&found);
    if !differences.is_empty() && recorded.differences(&found).is_empty() {
        return Ok(vec![format!(
            "{name}: is marked as a deviation, but gives kube-scheduler's result"
        )]);
    }
    Ok(differences.into_iter().map(|line| format!("deviation: {line}")).collect())
}

/// Whether a result is compared with all that is found: without nodes, or without parts of a signature, it is not.
fn is_complete(written: &RecordedResult) -> bool {
    match written {
        RecordedResult::Expect(expect) => expect.nodes.is_some(),
        RecordedResult::Signature(Some(parts)) => !parts.is_empty(),
        RecordedResult::Signature(None) | RecordedResult::Preempt(_) | RecordedResult::Hint(_) => {
            true
        }
    }
}

/// A reason without a deviating result, a result without a reason, and results of pods and plugins that the step does not ask for.
fn deviations_without_effect(scenario: &Scenario, questions: &[OracleQuestion]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut n_deviating = 0;
    for (at, step) in scenario.steps.iter().enumerate() {
        for name in step.loadmaster.iter().flatten().map(|(name, _)| name) {
            n_deviating += 1;
            let is_asked = questions.iter().any(|one| one.step == at && one.about.name() == name);
            if !is_asked {
                lines.push(format!(
                    "steps[{at}]: loadmaster: {name}: the step does not expect anything of it"
                ));
            }
        }
    }
    match (&scenario.deviation, n_deviating) {
        (Some(_), 0) => lines.push(
            "is marked as a deviation, but no step says what Loadmaster's result is (`loadmaster`)"
                .to_owned(),
        ),
        (None, 1..) => lines.push("has results of Loadmaster without a `deviation`".to_owned()),
        _ => {}
    }
    lines
}

#[cfg(test)]
mod tests {
    use loadmaster_api::document::Document;
    use serde_json::json;

    use super::*;

    const SCENARIO: &str = "
about: x
deviation: Loadmaster differs.
nodes: {a: {}}
steps:
- submit: {web: {}, db: {}}
- expect:
    web: {pending: [P], nodes: {a: 'P, Unschedulable, theirs'}}
    db: {nodes: {a: fits}}
  loadmaster:
    web: {pending: [P], nodes: {a: 'P, Unschedulable, ours'}}
- preempt:
    web: {best: [a]}
  loadmaster:
    web: {message: none}
- event: Node Add
  new: {name: b}
  hints: {P: Queue, Q: Queue}
  loadmaster: {P: Skip}
- sign: {web: {a: 1}}
  loadmaster: {web: null}
";

    /// The expected answers of Loadmaster, changed by a test.
    struct Answers {
        web: Value,
        db: Value,
        preempt: Value,
        hint_p: Value,
        hint_q: Value,
        sign: Value,
    }

    impl Default for Answers {
        fn default() -> Answers {
            Answers {
                web: rejected("ours"),
                db: json!({"nodes": [{"name": "a", "filter": {"code": "Success"}}]}),
                preempt: json!({"status": {"reasons": ["none"]}}),
                hint_p: json!({"hint": "QueueSkip"}),
                hint_q: json!({"hint": "Queue"}),
                sign: json!({"signature": null}),
            }
        }
    }

    fn rejected(reason: &str) -> Value {
        let filter = json!({"code": "Unschedulable", "plugin": "P", "reasons": [reason]});
        json!({"nodes": [{"name": "a", "filter": filter}]})
    }

    #[track_caller]
    fn check(text: &str, answers: &Answers, want: &[&str]) {
        let scenario = Scenario::read(&Document::new("x.yaml", text)).unwrap();
        let found = check_scenario(&scenario, "P", None, |case| {
            let question = case.question();
            match (question["ask"].as_str().unwrap(), question["plugin"].as_str()) {
                ("explain", _) if case.pod == "default/web" => answers.web.clone(),
                ("explain", _) => answers.db.clone(),
                ("preemption", _) => answers.preempt.clone(),
                ("hint", Some("P")) => answers.hint_p.clone(),
                ("hint", _) => answers.hint_q.clone(),
                _ => answers.sign.clone(),
            }
        });
        let found = found.unwrap();
        assert_eq!(found.len(), want.len(), "{found:#?}");
        for (found, want) in found.iter().zip(want) {
            assert!(found.contains(want), "{found}\nwant {want}");
        }
    }

    #[test]
    fn the_written_deviation_passes() {
        check(SCENARIO, &Answers::default(), &[]);
    }

    /// Each result in turn is kube-scheduler's again.
    #[test]
    fn a_deviation_that_no_longer_occurs_fails() {
        let gone = "is marked as a deviation, but gives kube-scheduler's result";
        let web = Answers { web: rejected("theirs"), ..Answers::default() };
        check(SCENARIO, &web, &[gone]);
        check(
            SCENARIO,
            &Answers { preempt: json!({"best": ["a"]}), ..Answers::default() },
            &[gone],
        );
        check(
            SCENARIO,
            &Answers { hint_p: json!({"hint": "Queue"}), ..Answers::default() },
            &[gone],
        );
        let signed = json!({"signature": {"a": 1}});
        check(SCENARIO, &Answers { sign: signed, ..Answers::default() }, &[gone]);
    }

    /// Each result in turn is neither kube-scheduler's nor the one written.
    #[test]
    fn another_deviation_fails() {
        let other = Answers { web: rejected("other"), ..Answers::default() };
        check(SCENARIO, &other, &["deviation: node a: expected \"P, Unschedulable, ours\""]);
        let other = json!({"best": ["b"]});
        check(
            SCENARIO,
            &Answers { preempt: other, ..Answers::default() },
            &["deviation: expected"],
        );
        let other = json!({"hint": "Error"});
        check(SCENARIO, &Answers { hint_p: other, ..Answers::default() }, &["deviation: expected"]);
        let other = json!({"signature": {"a": 2}});
        check(SCENARIO, &Answers { sign: other, ..Answers::default() }, &["deviation: expected"]);
    }

    /// A mark excuses only what it is written for.
    #[test]
    fn other_results_of_a_marked_file_must_be_those_of_kube_scheduler() {
        let want = ["steps[1]: pending: expected nothing", "steps[1]: node a: expected \"fits\""];
        check(SCENARIO, &Answers { db: rejected("x"), ..Answers::default() }, &want);
        let skip = json!({"hint": "QueueSkip"});
        let want = ["steps[3]: expected Hint(\"Queue\")"];
        check(SCENARIO, &Answers { hint_q: skip, ..Answers::default() }, &want);
        let mut failed = rejected("ours");
        failed["error"] = json!("no such plugin");
        check(SCENARIO, &Answers { web: failed, ..Answers::default() }, &["no such plugin"]);
    }

    #[test]
    fn marks_without_effect_fail() {
        let answers = Answers::default();
        let text = SCENARIO.replace("deviation: Loadmaster differs.\n", "");
        check(&text, &answers, &["has results of Loadmaster without a `deviation`"]);
        let text = SCENARIO.replace("loadmaster: {P: Skip}", "loadmaster: {P: Skip, R: Skip}");
        check(&text, &answers, &["steps[3]: loadmaster: R: the step does not expect anything"]);
        let text = SCENARIO.replace("nodes: {a: 'P, Unschedulable, ours'}", "message: x");
        check(&text, &answers, &["steps[1]: loadmaster: web: expected a whole result"]);
        let text = SCENARIO.replace("loadmaster: {web: null}", "loadmaster: {web: {}}");
        check(&text, &answers, &["steps[4]: loadmaster: web: expected a whole result"]);
        let text = SCENARIO.replace("'P, Unschedulable, theirs'", "'P, Unschedulable, ours'");
        check(&text, &answers, &["loadmaster: web: no deviation, this is the recorded result"]);
        let unwritten = "
about: x
deviation: Loadmaster differs.
nodes: {a: {}}
steps:
- submit: {db: {}}
- expect: {db: {nodes: {a: fits}}}
";
        check(unwritten, &answers, &["no step says what Loadmaster's result is"]);
        let text = unwritten.replace("deviation: Loadmaster differs.\n", "");
        check(&text, &answers, &[]);
        check(
            &text.replace("- expect: {db: {nodes: {a: fits}}}\n", ""),
            &answers,
            &["has no expectations"],
        );
        check(&text.replace("{nodes: {a: fits}}", "{}"), &answers, &["not recorded"]);
    }

    #[test]
    fn the_form_of_a_deviation_is_checked() {
        let text = SCENARIO.replace("    web: {message: none}", "    web: {mesage: none}");
        let scenario = Scenario::read(&Document::new("x.yaml", text)).unwrap();
        let error = check_scenario(&scenario, "P", None, |_| json!({})).unwrap_err();
        let text = loadmaster_stdx::ErrorChain(&error).to_string();
        assert!(text.starts_with("steps[2]: loadmaster: web: "), "{text}");
        assert!(text.contains("mesage"), "{text}");
    }
}
