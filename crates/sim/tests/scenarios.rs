//! Every file in `scenarios/`: what kube-scheduler said must be what we say.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

use std::path::Path;

use loadmaster_sim::cases::answer::Answerer;
use loadmaster_sim::scenario;
use loadmaster_stdx::Chain;

/// Everything that is wrong with one file.
fn check(path: &Path, ours: &Answerer) -> Vec<String> {
    let (_, file) = match scenario::read(path) {
        Ok(read) => read,
        Err(error) => return vec![Chain(&error).to_string()],
    };
    let plugin = scenario::plugin_of(path);
    let scorers = scenario::scorers(ours.registry(), ours.default_profiles(), &plugin);
    let questions = match file.questions(&plugin) {
        Ok(questions) => questions,
        Err(error) => return vec![Chain(&error).to_string()],
    };
    let mut lines = Vec::new();
    if questions.is_empty() {
        lines.push("expects nothing".to_owned());
    }
    for question in questions {
        let Some(recorded) = file.recorded(&question) else {
            lines.push(format!(
                "steps[{}]: not recorded, run `cargo xtask scenarios record`",
                question.step
            ));
            continue;
        };
        let answer = ours.answer(&question.case);
        let differences = recorded.differences(&question.found(&answer, scorers.as_deref()));
        let differences =
            differences.into_iter().map(|line| format!("steps[{}]: {line}", question.step));
        lines.extend(differences);
        if let Some(error) = answer["error"].as_str() {
            lines.push(format!("steps[{}]: {error}", question.step));
        }
    }
    match &file.deviation {
        Some(_) if lines.is_empty() => vec!["is a deviation no longer".to_owned()],
        Some(_) => Vec::new(),
        None => lines,
    }
}

#[test]
fn scenarios() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let ours = Answerer::new(loadmaster_plugins::in_tree()).unwrap();
    let paths = scenario::paths(&folder).unwrap();
    assert!(!paths.is_empty());
    let mut wrong = Vec::new();
    for path in &paths {
        let name = path.strip_prefix(&folder).unwrap().display();
        wrong.extend(check(path, &ours).into_iter().map(|line| format!("{name}: {line}")));
    }
    assert!(wrong.is_empty(), "{} of {} files:\n{}", wrong.len(), paths.len(), wrong.join("\n"));
}
