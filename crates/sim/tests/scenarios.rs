//! Every file in `scenarios/`: our results must equal the recorded results of kube-scheduler.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

use std::path::Path;

use loadmaster_scheduler_plugins::with_scheduler_plugins;
use loadmaster_sim::cases::local_oracle::LocalOracle;
use loadmaster_sim::scenario;
use loadmaster_stdx::ErrorChain;

/// All differences of one file.
fn check(path: &Path, ours: &LocalOracle) -> Vec<String> {
    let plugin = scenario::plugin_of_scenario_path(path);
    let scorers =
        scenario::recorded_score_plugins(ours.registry(), ours.default_profiles(), &plugin);
    let checked = scenario::read_scenario_file(path).and_then(|(_, file)| {
        let answer = |case: &_| ours.answer_case(case);
        scenario::check_scenario(&file, &plugin, scorers.as_deref(), answer)
    });
    checked.unwrap_or_else(|error| vec![ErrorChain(&error).to_string()])
}

#[test]
fn scenarios() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let registry = with_scheduler_plugins(loadmaster_plugins::in_tree_registry());
    let ours = LocalOracle::new(registry).unwrap();
    let paths = scenario::scenario_paths(&folder).unwrap();
    assert!(!paths.is_empty());
    let mut wrong = Vec::new();
    for path in &paths {
        let name = path.strip_prefix(&folder).unwrap().display();
        wrong.extend(check(path, &ours).into_iter().map(|line| format!("{name}: {line}")));
    }
    assert!(wrong.is_empty(), "{} of {} files:\n{}", wrong.len(), paths.len(), wrong.join("\n"));
}
