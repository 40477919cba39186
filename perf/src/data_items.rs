//! Figures as JSON, in the form of Kubernetes' scheduler_perf: `{"version": "v1", "dataItems": [..]}`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// Figures of one metric of one workload.
#[derive(Clone, Debug, PartialEq)]
pub struct DataItem {
    data: BTreeMap<&'static str, f64>,
    unit: &'static str,
    labels: BTreeMap<&'static str, String>,
}

impl DataItem {
    /// Without figures.
    pub fn new(workload: &str, metric: &str, unit: &'static str) -> DataItem {
        let labels = [("Name", workload.to_owned()), ("Metric", metric.to_owned())];
        DataItem { data: BTreeMap::new(), unit, labels: labels.into() }
    }

    /// Adds a figure, such as `Average`.
    #[must_use]
    pub fn with(mut self, name: &'static str, figure: f64) -> DataItem {
        self.data.insert(name, figure);
        self
    }

    /// Adds a label.
    #[must_use]
    pub fn with_label(mut self, name: &'static str, value: String) -> DataItem {
        self.labels.insert(name, value);
        self
    }

    fn to_json(&self) -> Value {
        json!({"data": self.data, "unit": self.unit, "labels": self.labels})
    }
}

/// All figures. As in scheduler_perf, all have the same labels, because Kubernetes' dashboard shows no others.
fn to_json(items: &[DataItem]) -> Value {
    let mut items = items.to_vec();
    let names: BTreeSet<_> = items.iter().flat_map(|it| it.labels.keys().copied()).collect();
    for item in &mut items {
        for &name in &names {
            item.labels.entry(name).or_insert_with(|| "not applicable".to_owned());
        }
    }
    let items: Vec<Value> = items.iter().map(DataItem::to_json).collect();
    json!({"version": "v1", "dataItems": items})
}

/// Writes the figures to a file.
pub fn write(file: &Path, items: &[DataItem]) -> Result<()> {
    let text = serde_json::to_string_pretty(&to_json(items))?;
    std::fs::write(file, text + "\n").with_context(|| format!("writing {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_items_have_the_same_labels() {
        let items = [
            DataItem::new("basic", "PeakRSS", "MiB").with("Max", 2.5),
            DataItem::new("basic", "Time", "us").with_label("Nodes", "100".to_owned()),
        ];
        let expected = json!({"version": "v1", "dataItems": [
            {"data": {"Max": 2.5}, "unit": "MiB",
             "labels": {"Name": "basic", "Metric": "PeakRSS", "Nodes": "not applicable"}},
            {"data": {}, "unit": "us", "labels": {"Name": "basic", "Metric": "Time", "Nodes": "100"}},
        ]});
        assert_eq!(to_json(&items), expected);
    }
}
