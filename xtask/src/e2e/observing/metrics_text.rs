//! The text format of metrics: names and labels of series, without values.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail};
use regex::Regex;

use super::expressions::Expression;

/// A series: the name of its metric, and its labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series {
    pub metric: String,
    pub labels: BTreeMap<String, String>,
}

/// The series of a text, each once, in order. Values may be absent.
pub fn parse(text: &str) -> Result<Vec<Series>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let series: BTreeSet<Series> = lines
        .map(|line| parse_series(line).with_context(|| format!("the line {line:?}")))
        .collect::<Result<_>>()?;
    Ok(series.into_iter().collect())
}

/// A series, perhaps with a value after it.
pub fn parse_series(line: &str) -> Result<Series> {
    let end = line.find(['{', ' ']).unwrap_or(line.len());
    let (metric, rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    let mut rest = rest.strip_prefix('{');
    while let Some(text) = rest {
        let text = text.trim_start();
        if text.starts_with('}') {
            break;
        }
        let (name, value) = text.split_once("=\"").context("a label without a value")?;
        let (value, after) = quoted(value).context("a value without an end")?;
        labels.insert(name.trim().to_owned(), value);
        match after.trim_start().strip_prefix(',') {
            Some(after) => rest = Some(after),
            None if after.trim_start().starts_with('}') => break,
            None => bail!("a label that does not end"),
        }
    }
    Ok(Series { metric: metric.to_owned(), labels })
}

/// The text up to the next quotation mark, without escapes, and what is after it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                c => value.push(c),
            },
            c => value.push(c),
        }
    }
    None
}

const HEADER: &str = "\
# Written by `cargo xtask e2e observing --write`: series of running schedulers, of the metrics that deploy/monitoring reads. Of a histogram, the
# last bucket.
";

/// The series that the expressions read, with one port for all addresses, which have another one in each run.
pub fn record(series: &[Series], expressions: &[Expression]) -> Result<String> {
    let address = Regex::new(r"127\.0\.0\.1:[0-9]+").context("the pattern of addresses")?;
    let mut lines = BTreeSet::new();
    for Series { metric, labels } in of_expressions(series, expressions) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| {
                let value = address.replace_all(value, "127.0.0.1:8888");
                format!("{name}={value:?}")
            })
            .collect();
        lines.insert(format!("{metric}{{{}}}\n", labels.join(",")));
    }
    Ok(HEADER.to_owned() + &lines.into_iter().collect::<String>())
}

/// Metrics whose labels differ from the recorded ones.
pub fn changed_labels(
    recorded: &[Series],
    current: &[Series],
    expressions: &[Expression],
) -> Vec<String> {
    let names = |series: &[Series]| {
        let mut names: BTreeMap<String, BTreeSet<Vec<String>>> = BTreeMap::new();
        for Series { metric, labels } in of_expressions(series, expressions) {
            names.entry(metric.clone()).or_default().insert(labels.keys().cloned().collect());
        }
        names
    };
    let (recorded, current) = (names(recorded), names(current));
    let all: BTreeSet<&String> = recorded.keys().chain(current.keys()).collect();
    let is_changed = |metric: &&&String| recorded.get(**metric) != current.get(**metric);
    all.iter()
        .filter(is_changed)
        .map(|metric| {
            let (old, new) = (recorded.get(*metric), current.get(*metric));
            format!("{metric} has the labels {new:?}, recorded are {old:?}")
        })
        .collect()
}

/// Of a histogram, only the last bucket.
fn of_expressions<'a>(
    series: &'a [Series],
    expressions: &'a [Expression],
) -> impl Iterator<Item = &'a Series> {
    let uses = expressions.iter().flat_map(|expression| &expression.uses);
    let metrics: BTreeSet<&str> = uses.map(|it| it.metric.as_str()).collect();
    series.iter().filter(move |it| {
        metrics.contains(it.metric.as_str())
            && it.labels.get("le").is_none_or(|bound| bound == "+Inf")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_parsed() {
        let check = |line: &str, want: &str| {
            let got = match parse_series(line) {
                Ok(Series { metric, labels }) => format!("{metric} {labels:?}"),
                Err(error) => format!("{error:#}"),
            };
            assert_eq!(got, want);
        };
        check("up 1", "up {}");
        check("up", "up {}");
        check("up{}", "up {}");
        check(r#"up{a="b"} 1e-05"#, r#"up {"a": "b"}"#);
        check(r#"up{a="b, {c}", d="\"e\" \\"} 2"#, r#"up {"a": "b, {c}", "d": "\"e\" \\"}"#);
        check(r#"up{a="b",}"#, r#"up {"a": "b"}"#);
        check(r#"up{a="b"#, "a value without an end");
        check(r#"up{a} 1"#, "a label without a value");
        check(r#"up{a="b" c="d"} 1"#, "a label that does not end");
        let text = "# HELP b x\nb 1\n\na{c=\"d\"} 1\nb 2\n";
        let names: Vec<String> =
            parse(text).unwrap().into_iter().map(|series| series.metric).collect();
        assert_eq!(names, ["a", "b"]);
    }
}
