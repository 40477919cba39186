//! Runs the test cases of Kubernetes' own benchmark, scheduler_perf, from its files, in process: the engine with its queue, in a cluster in
//! memory. Rates are pods bound per second of time in the engine; the API server and the network are not part of it.

mod cluster;
mod operations;
mod test_case;
mod text_template;
mod throughput;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, ensure};
use loadmaster_config::{AllFeatureGates, check_configuration_value};
use loadmaster_engine::Profile;
use loadmaster_plugins::in_tree_registry;
use serde_json::{Value, json};

use crate::data_items::DataItem;
use crate::timed_engine::TimedEngine;
use cluster::Cluster;
use operations::Run;
use test_case::{Operation, TestCase, Workload};
use throughput::Figures;

/// What came of a workload.
enum Outcome {
    Measured(Vec<Figures>),
    /// Why not.
    NotRun(String),
}

/// Runs the workloads in the files below a folder that have a label and whose name contains the text, and prints a table; returns the figures.
///
/// # Errors
///
/// A file cannot be read, or workloads fail; those that cannot be run are named instead.
pub fn measure(folder: &Path, label: &str, wanted: &str) -> Result<Vec<DataItem>> {
    println!(
        "| workload | pods measured | pods per second: average | Perc50 | Perc90 | Perc95 | Perc99 |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let (mut items, mut not_run, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for case in &test_case::load(folder)? {
        for workload in &case.workloads {
            let name = format!("{}/{}", case.name, workload.name);
            if !workload.labels.iter().any(|it| it == label) || !name.contains(wanted) {
                continue;
            }
            let figures = match run(case, workload) {
                Ok(Outcome::Measured(figures)) => figures,
                Ok(Outcome::NotRun(reason)) => {
                    not_run.push((name, reason));
                    continue;
                }
                Err(error) => {
                    failed.push((name, error));
                    continue;
                }
            };
            for it in &figures {
                let [p50, p90, p95, p99] = it.percentiles;
                println!(
                    "| {name}/{} | {} | {:.0} | {p50:.0} | {p90:.0} | {p95:.0} | {p99:.0} |",
                    it.name, it.n_pods, it.average
                );
                items.push(it.to_item(&name));
            }
        }
    }
    for (name, reason) in &not_run {
        println!("not run: {name}: {reason}");
    }
    for (name, error) in &failed {
        println!("failed: {name}: {error:#}");
    }
    ensure!(failed.is_empty(), "{} workloads failed", failed.len());
    Ok(items)
}

fn run(case: &TestCase, workload: &Workload) -> Result<Outcome> {
    let operations: Vec<Operation> = match case.operations() {
        Ok(operations) => operations,
        Err(reason) => return Ok(Outcome::NotRun(reason)),
    };
    // Those of the workload override those of the test case.
    let gates = case.feature_gates.iter().chain(&workload.feature_gates);
    let gates = gates.map(|(name, on)| format!("{name}={on}")).collect::<Vec<_>>().join(",");
    let gates =
        match AllFeatureGates::parse([gates.as_str()].into_iter().filter(|it| !it.is_empty())) {
            Ok(gates) => gates,
            Err(errors) => {
                let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
                return Ok(Outcome::NotRun(errors.join("; ")));
            }
        };
    let config: Value = match &case.scheduler_config_path {
        Some(path) => {
            let file = case.folder.join(path);
            let text = std::fs::read_to_string(&file);
            test_case::yaml(&text.with_context(|| format!("reading {}", file.display()))?)?
        }
        None => {
            json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"})
        }
    };
    let checked = check_configuration_value(config, &in_tree_registry(), &gates)
        .map_err(|errors| anyhow!("the configuration: {errors:?}"))?;
    let profile = checked.profiles.first().context("a configuration without a profile")?;
    let profile = Arc::new(Profile::new(profile, &gates.framework_gates()));
    let cluster = Cluster::new(TimedEngine::of_profile(profile, &gates))?;
    Run::new(case, workload, cluster).run(&operations).map(Outcome::Measured)
}

#[cfg(test)]
mod tests;
