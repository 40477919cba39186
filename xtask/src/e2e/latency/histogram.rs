//! Histograms among the metrics of a scheduler.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};

/// How many observations are at most so large, for all labels together.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Upper bounds in seconds, the last one infinite, and the observations up to each.
    buckets: Vec<(f64, f64)>,
}

impl Histogram {
    /// The histogram of this name in the text of `/metrics`; an error if there is none.
    pub fn of_metrics(text: &str, name: &str) -> Result<Histogram> {
        let start = format!("{name}_bucket{{");
        let mut by_bound = BTreeMap::new();
        for line in text.lines().filter(|line| line.starts_with(&start)) {
            // The last label; that of the profile ends in the same letters.
            let bound = line.rsplit_once("le=\"").and_then(|(_, rest)| rest.split_once('"'));
            let n = line.rsplit_once(' ').and_then(|(_, n)| n.parse::<f64>().ok());
            let ((bound, _), n) = bound.zip(n).with_context(|| format!("reading {line:?}"))?;
            let seconds: f64 = bound.parse().with_context(|| format!("reading {line:?}"))?;
            // Positive numbers are in the order of their bits.
            by_bound.entry(seconds.to_bits()).or_insert((seconds, 0.0)).1 += n;
        }
        let buckets: Vec<(f64, f64)> = by_bound.into_values().collect();
        buckets.last().with_context(|| format!("there is no histogram {name}"))?;
        Ok(Histogram { buckets })
    }

    /// The observations since an earlier moment.
    pub fn since(&self, before: &Histogram) -> Histogram {
        let earlier = |bound: f64| {
            before.buckets.iter().find(|(at, _)| *at == bound).map_or(0.0, |(_, n)| *n)
        };
        let buckets = self.buckets.iter().map(|&(bound, n)| (bound, n - earlier(bound)));
        Histogram { buckets: buckets.collect() }
    }

    /// The seconds that this share of the observations does not exceed, estimated as by `histogram_quantile` of Prometheus.
    pub fn percentile(&self, share: f64) -> f64 {
        let n = self.buckets.last().map_or(0.0, |(_, n)| *n);
        let (wanted, mut lower, mut n_lower) = (n * share, 0.0, 0.0);
        for &(bound, n) in &self.buckets {
            if n >= wanted && n > n_lower {
                let part = (wanted - n_lower) / (n - n_lower);
                return if bound.is_finite() { lower + (bound - lower) * part } else { lower };
            }
            (lower, n_lower) = (bound, n);
        }
        f64::NAN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "scheduler_scheduling_attempt_duration_seconds";

    fn bucket(result: &str, bound: &str, n: u32) -> String {
        format!("{NAME}_bucket{{profile=\"p\",result=\"{result}\",le=\"{bound}\"}} {n}\n")
    }

    #[test]
    fn percentiles_are_interpolated() {
        let text = [("0.001", 90), ("0.002", 99), ("0.004", 100), ("+Inf", 100)];
        let text: String = text.iter().map(|(bound, n)| bucket("scheduled", bound, *n)).collect();
        let histogram = Histogram::of_metrics(&text, NAME).unwrap();
        let check = |share: f64, want: f64| {
            let got = histogram.percentile(share);
            assert!((got - want).abs() < 1e-9, "{share}: {got}, not {want}");
        };
        check(0.45, 0.0005);
        check(0.9, 0.001);
        check(0.99, 0.002);
        check(0.995, 0.003);
        check(1.0, 0.004);
    }

    #[test]
    fn results_are_added_and_earlier_observations_are_not_counted() {
        let at = |n: u32| {
            let text = bucket("scheduled", "0.001", n)
                + &bucket("unschedulable", "0.001", 1)
                + &bucket("scheduled", "+Inf", n + 1)
                + &bucket("unschedulable", "+Inf", 1);
            Histogram::of_metrics(&text, NAME).unwrap()
        };
        assert_eq!(at(5).buckets, [(0.001, 6.0), (f64::INFINITY, 7.0)]);
        assert_eq!(at(5).since(&at(2)).buckets, [(0.001, 3.0), (f64::INFINITY, 3.0)]);
        assert!(at(5).since(&at(5)).percentile(0.5).is_nan());
    }

    #[test]
    fn text_without_a_histogram_is_an_error() {
        assert!(Histogram::of_metrics("scheduler_pending_pods 1\n", NAME).is_err());
        assert!(Histogram::of_metrics(&format!("{NAME}_bucket{{le=\"x\"}} 1\n"), NAME).is_err());
    }
}
