//! `cargo xtask e2e observing`: the alerts and the dashboard of `deploy/monitoring` against the metrics of running schedulers.
//!
//! Schedulers run on a real control plane until `/metrics` has every series that operators look for: pods that are bound, pending and gated, a
//! leader and a standby, an extender that fails, plugins that panic and are stuck. Every selector of every expression has to find such
//! a series with the labels that it reads; the expressions are parsed by Prometheus' own parser. promtool checks and tests the alert rules.
//! The series and the parsed expressions are recorded in `conformance/observing`, where unit tests find them.

mod cluster;
mod expressions;
mod label_checks;
mod metrics_text;
mod rule_tests;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use clap::Parser;

use super::programs::{self, Program};
use metrics_text::Series;

/// Test the alerts and the dashboard with the metrics of running schedulers, and with promtool.
#[derive(Parser)]
pub struct Args {
    /// Write the series and the parsed expressions to conformance/observing.
    #[arg(long)]
    write: bool,
    /// Use the recorded series instead of running schedulers.
    #[arg(long)]
    recorded: bool,
    /// The loadmaster binary; by default that of the release profile.
    #[arg(long, value_name = "FILE")]
    loadmaster: Option<PathBuf>,
}

/// Returns whether everything was as expected.
pub async fn run(args: &Args) -> Result<bool> {
    programs::build(&[Program::Promtool, Program::PromqlUses])?;
    let mut good = promtool(&["check", "rules", "alerts.yaml"])?;
    good &= promtool(&["test", "rules", "alerts_test.yaml"])?;
    let expressions = expressions::parse(&expressions::read()?)?;
    let series = match args.recorded {
        true => recorded_series()?,
        false => {
            let is_complete = |series: &[Series]| Ok(faults(&expressions, series)?.is_empty());
            cluster::series(args.loadmaster.as_deref(), is_complete).await?
        }
    };
    let faults = faults(&expressions, &series)?;
    faults.iter().for_each(|fault| println!("{fault}"));
    good &= faults.is_empty();
    let n_selectors: usize = expressions.iter().map(|it| it.uses.len()).sum();
    println!(
        "{} expressions with {n_selectors} selectors, {} series: {} faults",
        expressions.len(),
        series.len(),
        faults.len()
    );
    let (of_metrics, of_expressions) =
        (metrics_text::record(&series, &expressions)?, expressions::record(&expressions));
    if args.write {
        write(METRICS, &of_metrics)?;
        write(EXPRESSIONS, &of_expressions)?;
        return Ok(good);
    }
    if read(EXPRESSIONS)? != of_expressions {
        println!("{EXPRESSIONS} has other expressions; `--write` writes it");
        good = false;
    }
    let changed = metrics_text::changed_labels(&recorded_series()?, &series, &expressions);
    changed.iter().for_each(|text| println!("{text}; `--write` writes {METRICS}"));
    Ok(good & changed.is_empty())
}

/// Everything in `deploy/monitoring` that does not match the series.
fn faults(expressions: &[expressions::Expression], series: &[Series]) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for expression in expressions {
        faults.extend(label_checks::faults(expression, series));
    }
    faults.extend(rule_tests::faults(series)?);
    Ok(faults)
}

/// The recorded files.
const METRICS: &str = "conformance/observing/recorded-metrics.txt";
const EXPRESSIONS: &str = "conformance/observing/recorded-expressions.jsonl";
/// The folder of the alerts and the dashboard.
const MONITORING: &str = "deploy/monitoring";

fn recorded_series() -> Result<Vec<Series>> {
    metrics_text::parse(&read(METRICS)?)
}

/// A file below the root of the repository.
fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(crate::root()?.join(path)).with_context(|| format!("reading {path}"))
}

fn write(path: &str, text: &str) -> Result<()> {
    std::fs::write(crate::root()?.join(path), text).with_context(|| format!("writing {path}"))
}

/// Runs promtool in the folder of the rules; returns whether it succeeded.
fn promtool(args: &[&str]) -> Result<bool> {
    let folder: PathBuf = crate::root()?.join(Path::new(MONITORING));
    let mut command = Command::new(Program::Promtool.path()?);
    let status = command.args(args).current_dir(folder).status().context("running promtool")?;
    println!("promtool {}: {status}", args.join(" "));
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_expression_finds_recorded_series() {
        let expressions = expressions::recorded().unwrap();
        assert_eq!(
            faults(&expressions, &recorded_series().unwrap()).unwrap(),
            Vec::<String>::new(),
            "run `cargo xtask e2e observing`"
        );
    }

    /// Without Go: the parsed expressions belong to the files.
    #[test]
    fn the_recorded_expressions_are_those_of_the_files() {
        let recorded = expressions::recorded().unwrap();
        let recorded: Vec<_> = recorded.into_iter().map(|it| it.source).collect();
        let current = expressions::read().unwrap();
        assert_eq!(recorded, current, "run `cargo xtask e2e observing --write`");
        assert!(recorded.len() > 60, "{}", recorded.len());
    }

    #[test]
    fn every_alert_has_a_section_in_the_guide() {
        let page = read("docs/src/how-to/observe.md").unwrap();
        let sections: Vec<&str> =
            page.lines().filter_map(|line| line.strip_prefix("### Loadmaster")).collect();
        let alerts = rule_tests::alerts().unwrap();
        let names: Vec<&str> =
            alerts.iter().filter_map(|alert| alert.name.strip_prefix("Loadmaster")).collect();
        assert_eq!(sections, names, "the alerts, in order");
        for alert in &alerts {
            assert!(!alert.summary.is_empty() && !alert.description.is_empty(), "{}", alert.name);
        }
    }
}
