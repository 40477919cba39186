//! The Prometheus text format 0.0.4, with numbers formatted like Go: the bound of a bucket is a
//! label, `le="1e-05"`, and must be formatted identically to be the same series.

use std::fmt::{self, Write as _};

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

/// The content type of `/metrics`.
pub(crate) const CONTENT_TYPE: &str =
    "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// Prints all families, in the given order.
pub(super) fn print(families: &[MetricFamily]) -> String {
    let mut out = String::new();
    for family in families.iter().filter(|family| !family.get_metric().is_empty()) {
        // Writing to a string cannot fail.
        let _ = print_family(&mut out, family);
    }
    out
}

fn print_family(out: &mut String, family: &MetricFamily) -> fmt::Result {
    let name = family.name();
    let kind = match family.get_field_type() {
        MetricType::COUNTER => "counter",
        MetricType::GAUGE => "gauge",
        MetricType::HISTOGRAM => "histogram",
        MetricType::SUMMARY => "summary",
        MetricType::UNTYPED => "untyped",
    };
    head(out, name, family.help(), kind)?;
    for metric in family.get_metric() {
        match family.get_field_type() {
            MetricType::COUNTER => line(out, name, metric, metric.get_counter().get_value())?,
            MetricType::GAUGE => line(out, name, metric, metric.get_gauge().get_value())?,
            MetricType::HISTOGRAM => print_histogram(out, name, metric)?,
            _ => {}
        }
    }
    Ok(())
}

/// `# HELP` and `# TYPE`.
pub(super) fn head(out: &mut String, name: &str, help: &str, kind: &str) -> fmt::Result {
    let help = help.replace('\\', r"\\").replace('\n', r"\n");
    writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

fn line(out: &mut String, name: &str, metric: &Metric, value: f64) -> fmt::Result {
    out.push_str(name);
    labels(out, metric.get_label(), None)?;
    writeln!(out, " {}", Number(value))
}

fn print_histogram(out: &mut String, name: &str, metric: &Metric) -> fmt::Result {
    let histogram = metric.get_histogram();
    let count = histogram.get_sample_count();
    let buckets = histogram.get_bucket().iter().map(|it| (it.upper_bound(), it.cumulative_count()));
    let buckets = buckets.filter(|(bound, _)| bound.is_finite());
    for (bound, cumulative) in buckets.chain([(f64::INFINITY, count)]) {
        write!(out, "{name}_bucket")?;
        labels(out, metric.get_label(), Some(bound))?;
        writeln!(out, " {cumulative}")?;
    }
    write!(out, "{name}_sum")?;
    labels(out, metric.get_label(), None)?;
    writeln!(out, " {}", Number(histogram.get_sample_sum()))?;
    write!(out, "{name}_count")?;
    labels(out, metric.get_label(), None)?;
    writeln!(out, " {count}")
}

fn labels(out: &mut String, pairs: &[LabelPair], bound: Option<f64>) -> fmt::Result {
    let bound = bound.map(|bound| ("le", Number(bound).to_string()));
    let pairs = pairs.iter().map(|pair| (pair.name(), escape(pair.value())));
    let mut open = '{';
    for (name, value) in pairs.chain(bound) {
        write!(out, "{open}{name}=\"{value}\"")?;
        open = ',';
    }
    if open == ',' {
        out.push('}');
    }
    Ok(())
}

/// Escapes a label value.
pub(super) fn escape(value: &str) -> String {
    value.replace('\\', r"\\").replace('\n', r"\n").replace('"', "\\\"")
}

/// Formats a number like Go's format `g`: fewest digits, with an exponent below 1e-4 and from 1e6.
pub(super) struct Number(pub f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0;
        if value.is_nan() {
            return f.write_str("NaN");
        }
        if value.is_infinite() {
            return f.write_str(if value > 0.0 { "+Inf" } else { "-Inf" });
        }
        let scientific = format!("{value:e}");
        let Some((mantissa, exponent)) = scientific.split_once('e') else { return Ok(()) };
        let exponent: i32 = exponent.parse().unwrap_or_default();
        let needs_exponent = !(-4..6).contains(&exponent);
        if value != 0.0 && needs_exponent {
            write!(f, "{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
        } else {
            write!(f, "{value}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Go's `strconv.FormatFloat(v, 'g', -1, 64)` prints.
    #[test]
    fn numbers_as_go_prints_them() {
        for (value, want) in [
            (0.0, "0"),
            (5.0, "5"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (9.999999999999999e-06, "9.999999999999999e-06"),
            (100_000.0, "100000"),
            (1_000_000.0, "1e+06"),
            (1_048_576.0, "1.048576e+06"),
            (1_234_567.5, "1.2345675e+06"),
            (1.79526344399e9, "1.79526344399e+09"),
            (1.8446744073709552e19, "1.8446744073709552e+19"),
            (16.384, "16.384"),
            (-2.5, "-2.5"),
            (f64::INFINITY, "+Inf"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(Number(value).to_string(), want);
        }
    }

    #[test]
    fn label_values_are_escaped() {
        assert_eq!(escape("a\"b\\c\nd"), r#"a\"b\\c\nd"#);
    }
}
