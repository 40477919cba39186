//! The recorded list of tests, with their results with kube-scheduler, and its comparison with the results of a run.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail};

use super::super::scheduler::SchedulerKind;
use super::report::{PASSED, TestResult};

/// The list, in the root folder.
pub const FILE: &str = "conformance/cmd/e2e/tests.txt";

/// A test of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedTest {
    /// As Ginkgo shows it.
    pub name: String,
    result: RecordedResult,
}

/// The result of a test with kube-scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordedResult {
    /// It passes, and is part of `.ci/run`.
    Quick,
    /// It passes.
    Slow,
    Failed,
    Skipped,
}

impl RecordedTest {
    /// Whether the test is part of `.ci/run`.
    pub fn is_quick(&self) -> bool {
        self.result == RecordedResult::Quick
    }

    /// Ginkgo's state of its result.
    fn state(&self) -> &'static str {
        match self.result {
            RecordedResult::Quick | RecordedResult::Slow => PASSED,
            RecordedResult::Failed => "failed",
            RecordedResult::Skipped => "skipped",
        }
    }
}

/// Reads the list.
pub fn read() -> Result<Vec<RecordedTest>> {
    let text = std::fs::read_to_string(crate::root()?.join(FILE));
    let text = text.with_context(|| format!("reading {FILE}"))?;
    parse(&text).with_context(|| format!("reading {FILE}"))
}

/// Parses the list: a result and a name per line.
fn parse(text: &str) -> Result<Vec<RecordedTest>> {
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (result, name) = line.split_once(' ').unwrap_or((line, ""));
            let result = match result {
                "quick" => RecordedResult::Quick,
                "slow" => RecordedResult::Slow,
                "failed" => RecordedResult::Failed,
                "skipped" => RecordedResult::Skipped,
                _ => bail!("expected quick, slow, failed or skipped and a name, found {line:?}"),
            };
            Ok(RecordedTest { name: name.trim().to_owned(), result })
        })
        .collect()
}

/// The differences between results and the recorded ones. Tests that do not pass with kube-scheduler may have any result with Loadmaster.
pub fn faults(
    kind: SchedulerKind,
    recorded: &[RecordedTest],
    chosen: &[&RecordedTest],
    results: &[TestResult],
) -> Vec<String> {
    let by_name: BTreeMap<&str, &TestResult> =
        results.iter().map(|result| (result.name.as_str(), result)).collect();
    let known: BTreeSet<&str> = recorded.iter().map(|test| test.name.as_str()).collect();
    let mut faults = Vec::new();
    for test in recorded.iter().filter(|test| !by_name.contains_key(test.name.as_str())) {
        faults.push(format!("{} is in {FILE}, but is not a test of Kubernetes", test.name));
    }
    for name in by_name.keys().filter(|name| !known.contains(*name)) {
        faults.push(format!("{name} is not in {FILE}"));
    }
    for test in chosen {
        let Some(result) = by_name.get(test.name.as_str()) else { continue };
        let is_compared = kind == SchedulerKind::KubeScheduler || test.state() == PASSED;
        if is_compared && result.state != test.state() {
            faults.push(format!(
                "{}: expected {}, found {}",
                test.name,
                test.state(),
                result.state
            ));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# about\n\nquick a [Serial]\nslow  b\n# why\nfailed c\nskipped d\n";

    #[test]
    fn the_list_is_parsed() {
        let tests = parse(LIST).unwrap();
        let shown: Vec<(&str, &str, bool)> =
            tests.iter().map(|test| (&*test.name, test.state(), test.is_quick())).collect();
        let want = [
            ("a [Serial]", "passed", true),
            ("b", "passed", false),
            ("c", "failed", false),
            ("d", "skipped", false),
        ];
        assert_eq!(shown, want);
        let error = parse("passed x").unwrap_err().to_string();
        assert_eq!(error, "expected quick, slow, failed or skipped and a name, found \"passed x\"");
        assert!(read().unwrap().len() > 20);
    }

    /// The results are given as `NAME STATE`.
    #[test]
    fn every_difference_is_a_fault() {
        let tests = parse(LIST).unwrap();
        let check = |kind, chosen: &[usize], results: &[(&str, &str)], want: &[&str]| {
            let results: Vec<TestResult> = results
                .iter()
                .map(|&(name, state)| TestResult {
                    name: name.to_owned(),
                    state: state.to_owned(),
                    seconds: 1.0,
                    message: String::new(),
                })
                .collect();
            let chosen: Vec<&RecordedTest> = chosen.iter().map(|&n| &tests[n]).collect();
            assert_eq!(faults(kind, &tests, &chosen, &results), want);
        };
        let (reference, ours) = (SchedulerKind::KubeScheduler, SchedulerKind::Loadmaster);
        let results =
            [("a [Serial]", "passed"), ("b", "failed"), ("c", "passed"), ("d", "skipped")];
        let passes = "c: expected failed, found passed";
        check(reference, &[0, 1, 2, 3], &results, &["b: expected passed, found failed", passes]);
        check(ours, &[0, 1, 2, 3], &results, &["b: expected passed, found failed"]);
        check(reference, &[0, 2], &results, &[passes]);
        let results =
            [("a [Serial]", "not chosen"), ("b", "passed"), ("c", "failed"), ("e", "passed")];
        let list = "conformance/cmd/e2e/tests.txt";
        let missing = format!("d is in {list}, but is not a test of Kubernetes");
        let new = format!("e is not in {list}");
        let not_run = "a [Serial]: expected passed, found not chosen";
        check(ours, &[0, 1, 2, 3], &results, &[&missing, &new, not_run]);
        check(reference, &[1], &results, &[&missing, &new]);
    }
}
