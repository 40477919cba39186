//! Whether the selectors of an expression find series with the labels that it reads.

use regex::Regex;

use super::expressions::{Expression, Matcher, Use};
use super::metrics_text::Series;

/// The labels that Prometheus adds to every series that it reads from a scheduler.
pub const TARGET_LABELS: [&str; 7] =
    ["job", "instance", "namespace", "pod", "container", "service", "endpoint"];

/// What is wrong with the expression.
pub fn faults(expression: &Expression, series: &[Series]) -> Vec<String> {
    let place = &expression.source.place;
    let mut faults = Vec::new();
    for it in &expression.uses {
        if let Err(fault) = find(it, series) {
            faults.push(format!("{place}: {fault}"));
        }
    }
    for label in &expression.source.shown {
        if !is_in_result(expression, label, series) {
            faults.push(format!("{place}: the result has no label {label}"));
        }
    }
    faults
}

fn is_target_label(label: &str) -> bool {
    TARGET_LABELS.contains(&label)
}

/// Finds a series for a selector.
fn find(it: &Use, series: &[Series]) -> Result<(), String> {
    let metric = &it.metric;
    let of_metric = || series.iter().filter(|series| series.metric == *metric);
    if of_metric().next().is_none() {
        return Err(format!("there is no metric {metric}"));
    }
    let matchers: Vec<&Matcher> =
        it.matchers.iter().filter(|matcher| !is_target_label(&matcher.label)).collect();
    let labels = it.labels.iter().filter(|label| !is_target_label(label));
    let needed: Vec<&String> = matchers.iter().map(|it| &it.label).chain(labels).collect();
    if let Some(label) =
        needed.iter().find(|label| !of_metric().any(|series| series.labels.contains_key(**label)))
    {
        return Err(format!("{metric} has no label {label}"));
    }
    let is_found = |series: &Series| {
        needed.iter().all(|label| series.labels.contains_key(*label))
            && matchers.iter().all(|matcher| matches(matcher, series))
    };
    if of_metric().any(is_found) {
        return Ok(());
    }
    let texts = matchers.iter().map(|it| format!("{}{}{:?}", it.label, it.op, it.value));
    Err(format!("{metric} has no series with {}", texts.collect::<Vec<_>>().join(", ")))
}

/// Grafana's variables match everything.
fn matches(matcher: &Matcher, series: &Series) -> bool {
    let Some(value) = series.labels.get(&matcher.label) else { return false };
    if matcher.value.contains('$') {
        return true;
    }
    let pattern = Regex::new(&format!("^(?:{})$", matcher.value));
    let matches_pattern = pattern.is_ok_and(|pattern| pattern.is_match(value));
    match matcher.op.as_str() {
        "=" => *value == matcher.value,
        "!=" => *value != matcher.value,
        "=~" => matches_pattern,
        _ => !matches_pattern,
    }
}

fn is_in_result(expression: &Expression, label: &String, series: &[Series]) -> bool {
    if let Some(by) = &expression.by {
        return by.contains(label);
    }
    let mut metrics = expression.results.iter().filter_map(|nth| expression.uses.get(*nth));
    metrics.any(|it| {
        is_target_label(label)
            || series
                .iter()
                .any(|series| series.metric == it.metric && series.labels.contains_key(label))
    })
}

#[cfg(test)]
mod tests {
    use super::super::expressions::Source;
    use super::super::metrics_text;
    use super::*;

    fn selector(metric: &str, matchers: &[(&str, &str, &str)], labels: &[&str]) -> Use {
        let matcher = |(label, op, value): &(&str, &str, &str)| Matcher {
            label: (*label).to_owned(),
            op: (*op).to_owned(),
            value: (*value).to_owned(),
        };
        Use {
            metric: metric.to_owned(),
            matchers: matchers.iter().map(matcher).collect(),
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        }
    }

    #[track_caller]
    fn check(it: Use, by: Option<&[&str]>, shown: &[&str], want: &[&str]) {
        let text = "pods{queue=\"active\"} 1\npods{queue=\"gated\"} 1\nup 1\n";
        let series = metrics_text::parse(text).unwrap();
        let texts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let source =
            Source { place: "here".to_owned(), promql: String::new(), shown: texts(shown) };
        let expression = Expression { source, uses: vec![it], results: vec![0], by: by.map(texts) };
        let want: Vec<String> = want.iter().map(|fault| format!("here: {fault}")).collect();
        assert_eq!(faults(&expression, &series), want);
    }

    #[test]
    fn selectors_need_series() {
        let pods = |matchers, labels| selector("pods", matchers, labels);
        check(pods(&[], &["queue", "instance"]), None, &["queue", "job"], &[]);
        check(pods(&[("queue", "=", "gated"), ("job", "=", "any")], &[]), None, &[], &[]);
        check(pods(&[("queue", "=~", "act.*|x")], &[]), None, &[], &[]);
        check(pods(&[("queue", "=~", "$queue")], &[]), None, &[], &[]);
        check(pods(&[("queue", "!=", "gated")], &[]), None, &[], &[]);
        let wrong = r#"pods has no series with queue="other""#;
        check(pods(&[("queue", "=", "other")], &[]), None, &[], &[wrong]);
        let wrong = r#"pods has no series with queue=~"act""#;
        check(pods(&[("queue", "=~", "act")], &[]), None, &[], &[wrong]);
        let wrong = r#"pods has no series with queue!~".*""#;
        check(pods(&[("queue", "!~", ".*")], &[]), None, &[], &[wrong]);
        // Each has a series, both have none.
        let both = [("queue", "=", "gated"), ("queue", "!=", "gated")];
        let wrong = r#"pods has no series with queue="gated", queue!="gated""#;
        check(pods(&both, &[]), None, &[], &[wrong]);
        check(pods(&[("other", "!=", "")], &[]), None, &[], &["pods has no label other"]);
        check(pods(&[], &["other"]), None, &[], &["pods has no label other"]);
        check(selector("nodes", &[], &[]), None, &[], &["there is no metric nodes"]);
    }

    #[test]
    fn shown_labels_are_in_the_result() {
        let pods = || selector("pods", &[], &[]);
        check(pods(), Some(&["queue"]), &["queue"], &[]);
        check(pods(), Some(&["job"]), &["queue"], &["the result has no label queue"]);
        check(pods(), Some(&[]), &["job"], &["the result has no label job"]);
        check(pods(), None, &["other"], &["the result has no label other"]);
    }
}
