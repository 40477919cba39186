//! The results of the tests, from Ginkgo's report.

use std::fmt;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// Ginkgo's state of a test that has passed.
pub const PASSED: &str = "passed";
/// The state of a test that is in the report, but was not chosen. Ginkgo calls it skipped, like a test that skips itself.
pub const NOT_CHOSEN: &str = "not chosen";

/// The result of a test.
#[derive(Clone, Debug, PartialEq)]
pub struct TestResult {
    /// The texts of its containers and its own, with upstream's labels.
    pub name: String,
    /// In Ginkgo's words, such as `passed`, `failed`, `skipped`, `timedout`; or [`NOT_CHOSEN`].
    pub state: String,
    /// How long it took, with its setup.
    pub seconds: f64,
    /// The reason of a failure or a skip.
    pub message: String,
}

impl TestResult {
    /// Whether it ended with neither success nor a skip.
    pub fn has_failed(&self) -> bool {
        ![PASSED, "skipped", NOT_CHOSEN].contains(&self.state.as_str())
    }
}

impl fmt::Display for TestResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:.0} s) {}", self.state, self.seconds, self.name)?;
        self.message.lines().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

/// Parses Ginkgo's JSON report of one suite.
///
/// An error if the suite's setup failed, so that no test was run.
pub fn parse(text: &str) -> Result<Vec<TestResult>> {
    let report: Value = serde_json::from_str(text).context("reading the report")?;
    let specs = report[0]["SpecReports"].as_array().context("the report has no SpecReports")?;
    let mut results = Vec::new();
    for spec in specs {
        let result = result(spec);
        if spec["LeafNodeType"] == "It" {
            results.push(result);
        } else if result.has_failed() {
            bail!("{} has failed: {}", spec["LeafNodeType"], result.message);
        }
    }
    Ok(results)
}

fn result(spec: &Value) -> TestResult {
    let containers = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten();
    let texts = containers.chain([&spec["LeafNodeText"]]).filter_map(Value::as_str);
    let message = spec["Failure"]["Message"].as_str().unwrap_or("").trim();
    let state = match spec["State"].as_str().unwrap_or("") {
        "skipped" if message.is_empty() => NOT_CHOSEN,
        state => state,
    };
    TestResult {
        name: texts.collect::<Vec<&str>>().join(" "),
        state: state.to_owned(),
        seconds: spec["RunTime"].as_f64().unwrap_or(0.0) / 1e9,
        message: message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(specs: &Value) -> String {
        json!([{"SuiteDescription": "x", "SpecReports": specs}]).to_string()
    }

    #[test]
    fn results_of_tests() {
        let spec = |name: &str, state: &str, message: &str| {
            json!({"ContainerHierarchyTexts": ["[sig-scheduling] A [Serial]", "b"], "LeafNodeType": "It",
                "LeafNodeText": name, "State": state, "RunTime": 1_600_000_000, "Failure": {"Message": message}})
        };
        let specs = json!([
            {"LeafNodeType": "BeforeSuite", "State": "passed", "ContainerHierarchyTexts": null},
            spec("c", "passed", ""),
            spec("d", "failed", "expected 1\nfound 2\n"),
            spec("e", "skipped", "needs 2 zones"),
            spec("f", "skipped", ""),
        ]);
        let results = parse(&report(&specs)).unwrap();
        let shown: Vec<String> = results.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "passed (2 s) [sig-scheduling] A [Serial] b c",
                "failed (2 s) [sig-scheduling] A [Serial] b d\n    expected 1\n    found 2",
                "skipped (2 s) [sig-scheduling] A [Serial] b e\n    needs 2 zones",
                "not chosen (2 s) [sig-scheduling] A [Serial] b f",
            ]
        );
        let failed: Vec<bool> = results.iter().map(TestResult::has_failed).collect();
        assert_eq!(failed, [false, true, false, false]);
    }

    #[test]
    fn a_failed_setup_is_an_error() {
        let check = |text: &str, want: &str| {
            assert_eq!(parse(text).unwrap_err().to_string(), want);
        };
        let setup = json!([{"LeafNodeType": "BeforeSuite", "State": "failed", "Failure": {"Message": "no nodes"}}]);
        check(&report(&setup), "\"BeforeSuite\" has failed: no nodes");
        check("[]", "the report has no SpecReports");
        check("", "reading the report");
    }
}
