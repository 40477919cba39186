//! Writes recorded results into a scenario's text, and random cases as scenario files.
//!
//! Hand-written text stays as it is, including comments and line breaks: only the `oracle` line, the `expect`, `preempt` and `sign`
//! steps (except for Loadmaster's own results), and the `hints` of events are rewritten.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::expect::{ExpectedResult, RecordedResult};
use super::steps::{ExpectationKind, OracleQuestion};
use crate::cases::{OracleCase, OracleCaseKind};

/// Returns the text with these results in it.
pub fn write_recorded_results(
    text: &str,
    version: &str,
    answers: &[(OracleQuestion, RecordedResult)],
) -> String {
    let (head, steps) = split(text);
    let mut new = with_oracle_version(&head, version);
    for (at, step) in steps.iter().enumerate() {
        let answers: Vec<&(OracleQuestion, RecordedResult)> =
            answers.iter().filter(|(question, _)| question.step == at).collect();
        if answers.is_empty() {
            new.push_str(step);
            continue;
        }
        match answers[0].0.about {
            ExpectationKind::Expect { .. } => new.push_str("- expect:\n"),
            ExpectationKind::Preempt { .. } => new.push_str("- preempt:\n"),
            ExpectationKind::Sign { .. } => new.push_str("- sign:\n"),
            ExpectationKind::Hint { .. } => {
                new.push_str(&without_results(step));
                let hints =
                    answers.iter().filter_map(|(question, found)| match (&question.about, found) {
                        (ExpectationKind::Hint { plugin }, RecordedResult::Hint(hint)) => {
                            Some(format!("{plugin}: {}", scalar(hint)))
                        }
                        _ => None,
                    });
                let _ = writeln!(new, "  hints: {{{}}}", hints.collect::<Vec<_>>().join(", "));
            }
        }
        for (question, found) in answers {
            match (&question.about, found) {
                (ExpectationKind::Expect { pod }, RecordedResult::Expect(expect)) => {
                    write_expect(&mut new, pod, expect)
                }
                (ExpectationKind::Preempt { pod }, RecordedResult::Preempt(preempt)) => {
                    preempt.write(&mut new, pod)
                }
                (ExpectationKind::Sign { pod }, RecordedResult::Signature(parts)) => {
                    write_signature(&mut new, pod, parts.as_ref())
                }
                _ => {}
            }
        }
        new.push_str(&field_text(step, "loadmaster"));
        new.push_str(&trailing_comments(step));
    }
    new
}

/// A case as a scenario without results; `None` for kinds of cases that scenarios do not have.
pub fn scenario_from_case(case: &OracleCase, about: &str, from: &str) -> Option<String> {
    let mut text = format!("about: {}\nfrom: {}\n", scalar(about), scalar(from));
    if let Some(config) = &case.config {
        let mut config = config.clone();
        if let Some(fields) = config.as_object_mut() {
            fields.retain(|field, _| field != "apiVersion" && field != "kind");
        }
        let _ = writeln!(text, "config: {config}");
    }
    if !case.feature_gates.is_empty() {
        let _ = writeln!(text, "featureGates: {}", json!(case.feature_gates));
    }
    text.push_str("objects:\n");
    for object in &case.objects {
        let _ = writeln!(text, "- {object}");
    }
    text.push_str("steps:\n");
    let pod = scalar(&case.pod);
    match &case.kind {
        OracleCaseKind::Explain => {
            let _ = writeln!(text, "- expect: {{{pod}: {{}}}}");
        }
        OracleCaseKind::Preemption => {
            let _ = writeln!(text, "- preempt: {{{pod}: {{}}}}");
        }
        OracleCaseKind::Sign => {
            let _ = writeln!(text, "- sign: {{{pod}: null}}");
        }
        OracleCaseKind::Hint(event) => {
            let _ = writeln!(text, "- event: {} {}", event.resource, event.action);
            let _ = writeln!(text, "  pod: {pod}");
            for (field, object) in [("old", &event.old), ("new", &event.new)] {
                if !object.is_null() {
                    let _ = writeln!(text, "  {field}: {}", with_kind(object, &event.resource));
                }
            }
            let _ = writeln!(text, "  hints: {{{}: unknown}}", event.plugin);
        }
        OracleCaseKind::Config | OracleCaseKind::Order(_) | OracleCaseKind::Gangs(_) => {
            return None;
        }
    }
    Some(text)
}

/// The object with its kind, which pods and nodes of events may lack.
fn with_kind(object: &Value, resource: &str) -> Value {
    let mut object = object.clone();
    if object.get("kind").is_some() {
        return object;
    }
    object["apiVersion"] = "v1".into();
    object["kind"] = if resource == "Node" { "Node".into() } else { "Pod".into() };
    object
}

/// The text up to `steps:`, and the text of each step.
fn split(text: &str) -> (String, Vec<String>) {
    let mut head = String::new();
    let mut steps: Vec<String> = Vec::new();
    let mut in_steps = false;
    for line in text.split_inclusive('\n') {
        let begins = line.starts_with("- ") && in_steps;
        match steps.last_mut() {
            Some(last) if !begins => last.push_str(line),
            _ if begins => steps.push(line.to_owned()),
            _ => head.push_str(line),
        }
        in_steps |= line.trim_end() == "steps:";
    }
    (head, steps)
}

/// Adds the line `oracle:` below `about:` and `from:`.
fn with_oracle_version(head: &str, version: &str) -> String {
    let mut new = String::new();
    let mut lines =
        head.split_inclusive('\n').filter(|line| !line.starts_with("oracle:")).peekable();
    let mut is_written = false;
    while let Some(line) = lines.next() {
        new.push_str(line);
        let is_about = line.starts_with("about:") || line.starts_with("from:");
        let continues =
            lines.peek().is_some_and(|next| next.starts_with("from:") || next.starts_with(' '));
        if is_about && !continues && !is_written {
            let _ = writeln!(new, "oracle: {version}");
            is_written = true;
        }
    }
    new
}

/// The step without `hints`, `loadmaster` and comments.
fn without_results(step: &str) -> String {
    let mut result = String::new();
    let mut in_results = false;
    for line in step.split_inclusive('\n') {
        let begins = line.starts_with("  hints:") || line.starts_with("  loadmaster:");
        in_results = begins || in_results && line.starts_with("   ");
        let is_comment = line.starts_with('#') || line.trim().is_empty();
        if !in_results && !is_comment {
            result.push_str(line);
        }
    }
    result
}

/// The lines of a step's field, empty if the step does not have it.
fn field_text(step: &str, field: &str) -> String {
    let begin = format!("  {field}:");
    let lines = step.split_inclusive('\n').skip_while(|line| !line.starts_with(&begin));
    lines
        .enumerate()
        .take_while(|(at, line)| *at == 0 || line.starts_with("   "))
        .map(|(_, line)| line)
        .collect()
}

/// Comments and empty lines in front of the next step.
fn trailing_comments(step: &str) -> String {
    let lines: Vec<&str> = step.split_inclusive('\n').collect();
    let n = lines
        .iter()
        .rev()
        .take_while(|line| line.starts_with('#') || line.trim().is_empty())
        .count();
    lines[lines.len() - n..].concat()
}

fn write_expect(text: &mut String, pod: &str, expect: &ExpectedResult) {
    let _ = writeln!(text, "    {}:", scalar(pod));
    let mut field = |name: &str, value: &Option<String>| {
        if let Some(value) = value {
            let _ = writeln!(text, "      {name}: {}", scalar(value));
        }
    };
    field("preEnqueue", &expect.pre_enqueue);
    field("preFilter", &expect.pre_filter);
    if let Some(plugins) = &expect.pending {
        let _ = writeln!(text, "      pending: [{}]", plugins.join(", "));
    }
    match expect.nodes.as_ref() {
        Some(nodes) if nodes.is_empty() => text.push_str("      nodes: {}\n"),
        Some(nodes) => {
            text.push_str("      nodes:\n");
            for (name, result) in nodes {
                let _ = writeln!(text, "        {}: {}", scalar(name), scalar(result));
            }
        }
        None => {}
    }
    if let Some(scores) = &expect.scores {
        text.push_str("      scores:\n");
        for (plugin, scores) in scores {
            let scores = scores.iter().map(|(name, score)| format!("{}: {score}", scalar(name)));
            let _ =
                writeln!(text, "        {plugin}: {{{}}}", scores.collect::<Vec<_>>().join(", "));
        }
    }
    if let Some(best) = &expect.best {
        let best: Vec<String> = best.iter().map(|name| scalar(name)).collect();
        let _ = writeln!(text, "      best: [{}]", best.join(", "));
    }
    if let Some(message) = &expect.message {
        let _ = writeln!(text, "      message: {}", scalar(message));
    }
}

fn write_signature(text: &mut String, pod: &str, parts: Option<&Map<String, Value>>) {
    let Some(parts) = parts else {
        let _ = writeln!(text, "    {}: null", scalar(pod));
        return;
    };
    let _ = writeln!(text, "    {}:", scalar(pod));
    for (key, value) in parts {
        let _ = writeln!(text, "      {key}: {value}");
    }
}

/// A YAML scalar: plain where possible, else quoted.
pub(super) fn scalar(text: &str) -> String {
    let first = text.chars().next();
    let plain_start = first.is_some_and(char::is_alphabetic);
    let words = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let odd = [": ", " #", "[", "]", "{", "}", "\n", "\""].iter().any(|odd| text.contains(odd));
    let reserved =
        words.contains(&text.to_lowercase().as_str()) || text.ends_with(':') || text.ends_with(' ');
    if plain_start && !odd && !reserved { text.to_owned() } else { Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use loadmaster_api::document::Document;
    use serde_json::json;

    use super::super::Scenario;
    use super::*;
    use crate::cases::CaseGenerator;

    #[test]
    fn hand_written_text_is_preserved() {
        let text = "\
# A comment.
about: x
nodes: {a: {cpu: 4}}  # why
steps:
- submit: {web: {}}
# The result.
- expect: {web: {}}
  loadmaster:
    web: {nodes: {a: P}}  # why

# Then a node is added.
- event: Node Add
  new: {name: b}
  hints: {NodeName: old}
  loadmaster: {NodeName: Queue}
";
        let scenario = Scenario::read(&Document::new("x.yaml", text)).unwrap();
        let questions = scenario.questions("NodeName").unwrap();
        let answers = [
            json!({"nodes": [{"name": "a", "filter": {"code": "Unschedulable", "plugin": "P", "reasons": ["r: 1"]}}], "best": [], "message": "no"}),
            json!({"hint": "QueueSkip"}),
        ];
        let found =
            questions.iter().zip(&answers).map(|(q, a)| (q.clone(), q.to_recorded_result(a, None)));
        let written = write_recorded_results(text, "v1", &found.collect::<Vec<_>>());
        expect![[r##"
            # A comment.
            about: x
            oracle: v1
            nodes: {a: {cpu: 4}}  # why
            steps:
            - submit: {web: {}}
            # The result.
            - expect:
                web:
                  pending: [P]
                  nodes:
                    a: "P, Unschedulable, r: 1"
                  message: "no"
              loadmaster:
                web: {nodes: {a: P}}  # why

            # Then a node is added.
            - event: Node Add
              new: {name: b}
              hints: {NodeName: Skip}
              loadmaster: {NodeName: Queue}
        "##]]
        .assert_eq(&written);
        let again = Scenario::read(&Document::new("x.yaml", written.as_str())).unwrap();
        let found =
            questions.iter().zip(&answers).map(|(q, a)| (q.clone(), q.to_recorded_result(a, None)));
        for (question, found) in found {
            assert_eq!(
                again.recorded_result(&question).unwrap().differences(&found),
                Vec::<String>::new()
            );
        }
    }

    /// A random case asks the same question after it was written to a file.
    #[test]
    fn cases_are_equal_after_writing_and_reading() {
        let mut n_files = 0;
        for case in CaseGenerator::new(5, ["NodePorts", "NodeAffinity"]).take(500) {
            let Some(text) = scenario_from_case(&case, "It is: so # and so.", "x") else {
                continue;
            };
            let scenario = Scenario::read(&Document::new("x.yaml", text.as_str())).unwrap();
            let questions = scenario.questions("").unwrap();
            let [question] = &questions[..] else { panic!("{text}") };
            let mut want = case.question();
            let mut found = question.case.question();
            for question in [&mut want, &mut found] {
                question["id"] = json!(0);
                for side in ["old", "new"] {
                    if question[side].is_object() {
                        question[side]["apiVersion"] = json!("v1");
                        question[side]["kind"] = json!(null);
                    }
                }
            }
            assert_eq!(found, want, "{text}");
            n_files += 1;
        }
        assert!(n_files > 400);
    }
}
