//! Every file in `scenarios/`: our results must equal the recorded results of kube-scheduler.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

use std::path::Path;

use loadmaster_sim::cases::local_oracle::LocalOracle;
use loadmaster_sim::scenario;
use loadmaster_stdx::ErrorChain;

/// All differences of one file.
fn check(path: &Path, ours: &LocalOracle) -> Vec<String> {
    let (_, file) = match scenario::read_scenario_file(path) {
        Ok(read) => read,
        Err(error) => return vec![ErrorChain(&error).to_string()],
    };
    let plugin = scenario::plugin_of_scenario_path(path);
    let scorers =
        scenario::recorded_score_plugins(ours.registry(), ours.default_profiles(), &plugin);
    let questions = match file.questions(&plugin) {
        Ok(questions) => questions,
        Err(error) => return vec![ErrorChain(&error).to_string()],
    };
    let mut lines = Vec::new();
    if questions.is_empty() {
        lines.push("has no expectations".to_owned());
    }
    for question in questions {
        let Some(recorded) = file.recorded_result(&question) else {
            lines.push(format!(
                "steps[{}]: not recorded, run `cargo xtask scenarios record`",
                question.step
            ));
            continue;
        };
        let answer = ours.answer_case(&question.case);
        let differences =
            recorded.differences(&question.to_recorded_result(&answer, scorers.as_deref()));
        let differences =
            differences.into_iter().map(|line| format!("steps[{}]: {line}", question.step));
        lines.extend(differences);
        if let Some(error) = answer["error"].as_str() {
            lines.push(format!("steps[{}]: {error}", question.step));
        }
    }
    match &file.deviation {
        Some(_) if lines.is_empty() => {
            vec!["is marked as a deviation, but there is no difference".to_owned()]
        }
        Some(_) => Vec::new(),
        None => lines,
    }
}

#[test]
fn scenarios() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let ours = LocalOracle::new(loadmaster_plugins::in_tree_registry()).unwrap();
    let paths = scenario::scenario_paths(&folder).unwrap();
    assert!(!paths.is_empty());
    let mut wrong = Vec::new();
    for path in &paths {
        let name = path.strip_prefix(&folder).unwrap().display();
        wrong.extend(check(path, &ours).into_iter().map(|line| format!("{name}: {line}")));
    }
    assert!(wrong.is_empty(), "{} of {} files:\n{}", wrong.len(), paths.len(), wrong.join("\n"));
}
