//! The alert rules, and the tests of them that promtool runs.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::label_checks::TARGET_LABELS;
use super::metrics_text::{self, Series};
use super::{MONITORING, read};

/// An alert.
#[derive(Clone, Debug)]
pub struct Alert {
    pub name: String,
    pub expr: String,
    pub summary: String,
    pub description: String,
}

/// The alerts, in order.
pub fn alerts() -> Result<Vec<Alert>> {
    let file: Value = parse("alerts.yaml")?;
    let groups = array(&file["groups"])?;
    let mut alerts = Vec::new();
    for group in groups {
        for rule in array(&group["rules"])? {
            let text = |value: &Value| value.as_str().map(str::to_owned);
            let of = |name: &str| text(&rule["annotations"][name]).unwrap_or_default();
            alerts.push(Alert {
                name: text(&rule["alert"]).context("a rule that is no alert")?,
                expr: text(&rule["expr"]).context("an alert without an expression")?,
                summary: of("summary"),
                description: of("description"),
            });
        }
    }
    Ok(alerts)
}

fn parse(name: &str) -> Result<Value> {
    serde_saphyr::from_str(&read(&format!("{MONITORING}/{name}"))?)
        .with_context(|| format!("reading {name}"))
}

fn array(value: &Value) -> Result<&Vec<Value>> {
    value.as_array().context("expected a list")
}

/// What is wrong with the tests: an alert that is not tested in both directions, or a series that no scheduler shows.
pub fn faults(series: &[Series]) -> Result<Vec<String>> {
    let file = parse("alerts_test.yaml")?;
    let mut shown: BTreeMap<&str, BTreeSet<Vec<&str>>> = BTreeMap::new();
    for Series { metric, labels } in series {
        let labels = labels.keys().map(String::as_str).collect();
        shown.entry(metric).or_default().insert(labels);
    }
    let mut faults = Vec::new();
    let mut tested = BTreeSet::new();
    for test in array(&file["tests"])? {
        for input in array(&test["input_series"])? {
            let text = input["series"].as_str().context("no series")?;
            let Series { metric, labels } = metrics_text::parse_series(text)?;
            let labels: Vec<&str> = labels
                .keys()
                .map(String::as_str)
                .filter(|label| !TARGET_LABELS.contains(label))
                .collect();
            if !shown.get(metric.as_str()).is_some_and(|known| known.contains(&labels)) {
                faults.push(format!("test {}: no scheduler shows {text}", test["name"]));
            }
        }
        for case in array(&test["alert_rule_test"])? {
            let name = case["alertname"].as_str().context("no alert")?.to_owned();
            let fires = case["exp_alerts"].as_array().is_some_and(|alerts| !alerts.is_empty());
            tested.insert((name, fires));
        }
    }
    for alert in alerts()? {
        for fires in [true, false] {
            if !tested.contains(&(alert.name.clone(), fires)) {
                let what = if fires { "fires" } else { "does not fire" };
                faults.push(format!("no test in which {} {what}", alert.name));
            }
        }
    }
    Ok(faults)
}
