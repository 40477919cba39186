//! The PromQL expressions of the alerts and of the dashboard, and what they need.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use regex::Regex;
use serde_json::{Value, json};

use super::super::programs::Program;
use super::{MONITORING, read as read_file, rule_tests};

/// An expression of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Which alert, panel or variable.
    pub place: String,
    /// The expression, with values for Grafana's durations.
    pub promql: String,
    /// Labels of the result that texts read.
    pub shown: Vec<String>,
}

/// An expression, parsed.
#[derive(Clone, Debug)]
pub struct Expression {
    pub source: Source,
    pub uses: Vec<Use>,
    /// The selectors, as indices, from whose series the labels of the result come.
    pub results: Vec<usize>,
    /// The labels of the result if the expression lists them; otherwise all of the series.
    pub by: Option<Vec<String>>,
}

/// A selector, and what the expression reads of its series.
#[derive(Clone, Debug)]
pub struct Use {
    pub metric: String,
    pub matchers: Vec<Matcher>,
    /// Labels in `by`, `on` and the like.
    pub labels: Vec<String>,
}

/// `label="value"`, `label=~"value"` and so on.
#[derive(Clone, Debug)]
pub struct Matcher {
    pub label: String,
    pub op: String,
    pub value: String,
}

/// The expressions of all files.
pub fn read() -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    let label = Regex::new(r"\$labels\.([a-zA-Z_]+)")?;
    for alert in rule_tests::alerts()? {
        let texts = format!("{} {}", alert.summary, alert.description);
        sources.push(Source {
            place: format!("alert {}", alert.name),
            promql: alert.expr,
            shown: names(&label, &texts),
        });
    }
    let dashboard: Value =
        serde_json::from_str(&read_file(&format!("{MONITORING}/dashboard.json"))?)
            .context("reading the dashboard")?;
    sources.extend(of_variables(&dashboard)?);
    let legend = Regex::new(r"\{\{\s*([a-zA-Z_]+)\s*\}\}")?;
    for panel in dashboard["panels"].as_array().context("a dashboard without panels")? {
        let title = panel["title"].as_str().context("a panel without a title")?;
        let targets = panel["targets"].as_array().map_or(&[][..], Vec::as_slice);
        ensure!(panel["type"] == "row" || !targets.is_empty(), "the panel {title} shows nothing");
        for target in targets {
            let promql = target["expr"].as_str().context("a target without an expression")?;
            let shown = names(&legend, target["legendFormat"].as_str().unwrap_or_default());
            let place = format!("panel {title} {}", target["refId"].as_str().unwrap_or_default());
            sources.push(Source { place, promql: without_durations(promql), shown });
        }
    }
    Ok(sources)
}

/// The variables whose values are labels: `label_values(SELECTOR, LABEL)`.
fn of_variables(dashboard: &Value) -> Result<Vec<Source>> {
    let call = Regex::new(r"^label_values\((.*), *([a-zA-Z_]+)\)$")?;
    let variables = dashboard["templating"]["list"].as_array().context("no variables")?;
    let mut sources = Vec::new();
    for variable in variables.iter().filter(|it| it["type"] == "query") {
        let query = variable["query"].as_str().context("a variable without a query")?;
        let parts = call.captures(query).with_context(|| format!("the query {query}"))?;
        sources.push(Source {
            place: format!("variable {}", variable["name"].as_str().unwrap_or_default()),
            promql: parts[1].to_owned(),
            shown: vec![parts[2].to_owned()],
        });
    }
    Ok(sources)
}

fn names(pattern: &Regex, text: &str) -> Vec<String> {
    let mut names: Vec<String> =
        pattern.captures_iter(text).map(|found| found[1].to_owned()).collect();
    names.sort();
    names.dedup();
    names
}

/// Grafana replaces these variables before it sends an expression.
fn without_durations(promql: &str) -> String {
    promql.replace("$__rate_interval", "5m").replace("$__range", "1h")
}

/// Parses expressions with Prometheus' parser.
pub fn parse(sources: &[Source]) -> Result<Vec<Expression>> {
    let mut command = Command::new(Program::PromqlUses.path()?);
    let mut parser = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let questions: String =
        sources.iter().map(|source| format!("{}\n", json!({"expr": source.promql}))).collect();
    let mut input = parser.stdin.take().context("no standard input")?;
    // It reads everything before it answers.
    input.write_all(questions.as_bytes()).context("writing to promql-uses")?;
    drop(input);
    let output = parser.wait_with_output().context("reading the answers of promql-uses")?;
    ensure!(output.status.success(), "promql-uses failed");
    let answers = String::from_utf8(output.stdout).context("reading the answers")?;
    ensure!(answers.lines().count() == sources.len(), "promql-uses has not answered all");
    let pairs = sources.iter().zip(answers.lines());
    pairs.map(|(source, line)| expression(source, &serde_json::from_str(line)?)).collect()
}

fn expression(source: &Source, answer: &Value) -> Result<Expression> {
    if let Some(error) = answer["error"].as_str() {
        bail!("{}: {error}:\n{}", source.place, source.promql);
    }
    let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let texts = |value: &Value| array(value).iter().map(text).collect::<Vec<_>>();
    let one_use = |it: &Value| Use {
        metric: text(&it["metric"]),
        matchers: array(&it["matchers"])
            .iter()
            .map(|it| Matcher {
                label: text(&it["label"]),
                op: text(&it["op"]),
                value: text(&it["value"]),
            })
            .collect(),
        labels: texts(&it["labels"]),
    };
    let results = array(&answer["results"]);
    Ok(Expression {
        source: source.clone(),
        uses: array(&answer["uses"]).iter().map(one_use).collect(),
        results: results.iter().filter_map(|nth| usize::try_from(nth.as_u64()?).ok()).collect(),
        by: answer["by"].is_array().then(|| texts(&answer["by"])),
    })
}

/// A line of JSON for each expression.
pub fn record(expressions: &[Expression]) -> String {
    let mut text = String::new();
    for Expression { source, uses, results, by } in expressions {
        let uses: Vec<Value> = uses
            .iter()
            .map(|it| {
                let matchers: Vec<Value> = it
                    .matchers
                    .iter()
                    .map(|it| json!({"label": it.label, "op": it.op, "value": it.value}))
                    .collect();
                json!({"metric": it.metric, "matchers": matchers, "labels": it.labels})
            })
            .collect();
        let line = json!({"place": source.place, "expr": source.promql, "shown": source.shown,
            "uses": uses, "results": results, "by": by});
        text += &format!("{line}\n");
    }
    text
}

/// The recorded expressions.
#[cfg(test)]
pub fn recorded() -> Result<Vec<Expression>> {
    let text = read_file(super::EXPRESSIONS)?;
    let one = |line: &str| {
        let line: Value = serde_json::from_str(line)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let shown = line["shown"].as_array().context("no labels")?;
        let source = Source {
            place: text(&line["place"]),
            promql: text(&line["expr"]),
            shown: shown.iter().map(text).collect(),
        };
        expression(&source, &line)
    };
    text.lines().map(one).collect()
}
