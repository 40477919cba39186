//! How many pods are bound per second of the engine's time.

use std::collections::BTreeMap;
use std::time::Duration;

use super::cluster::PodState;
use crate::data_items::DataItem;

/// Counts pods while they are bound. A sample is the rate of some pods in a row; scheduler_perf takes one per second instead, in which all
/// pods of many workloads are bound here.
pub struct Throughput {
    name: String,
    namespaces: Vec<String>,
    selector: BTreeMap<String, String>,
    n_per_sample: u32,
    started: Duration,
    sample_started: Duration,
    n_in_sample: u32,
    n_pods: u32,
    last: Duration,
    /// Pods per second.
    samples: Vec<f64>,
}

impl Throughput {
    /// Begins at this time of the engine.
    pub fn new(
        name: String,
        namespaces: Vec<String>,
        selector: BTreeMap<String, String>,
        n_per_sample: u32,
        now: Duration,
    ) -> Throughput {
        Throughput {
            name,
            namespaces,
            selector,
            n_per_sample: n_per_sample.max(1),
            started: now,
            sample_started: now,
            n_in_sample: 0,
            n_pods: 0,
            last: now,
            samples: Vec::new(),
        }
    }

    /// Whether a pod counts.
    pub fn counts(&self, pod: &PodState) -> bool {
        self.namespaces.contains(&pod.namespace) && pod.has_labels(&self.selector)
    }

    /// A pod was bound at this time of the engine.
    pub fn add_pod(&mut self, now: Duration) {
        (self.n_pods, self.n_in_sample, self.last) = (self.n_pods + 1, self.n_in_sample + 1, now);
        if self.n_in_sample == self.n_per_sample {
            let taken = now.saturating_sub(self.sample_started);
            self.samples.push(rate(self.n_in_sample, taken));
            (self.n_in_sample, self.sample_started) = (0, now);
        }
    }

    /// The figures, by their names in scheduler_perf; `None` if no pod was bound.
    pub fn finish(mut self) -> Option<Figures> {
        let average = rate(self.n_pods, self.last.saturating_sub(self.started));
        self.samples.sort_by(f64::total_cmp);
        let percentile = |percent: usize| {
            // As scheduler_perf: the sample at this rank, rounded up.
            let rank = (self.samples.len() * percent).div_ceil(100);
            self.samples.get(rank.saturating_sub(1)).copied().unwrap_or(average)
        };
        let percentiles = [50, 90, 95, 99].map(percentile);
        (self.n_pods > 0).then_some(Figures {
            name: self.name,
            n_pods: self.n_pods,
            average,
            percentiles,
        })
    }
}

/// The throughput of some pods.
#[derive(Debug, PartialEq)]
pub struct Figures {
    /// Of the operation that created the pods.
    pub name: String,
    pub n_pods: u32,
    /// Pods per second.
    pub average: f64,
    /// Perc50, Perc90, Perc95, Perc99 of the samples.
    pub percentiles: [f64; 4],
}

impl Figures {
    /// For the file.
    pub fn to_item(&self, workload: &str) -> DataItem {
        let name = format!("{workload}/{}", self.name);
        let item =
            DataItem::new(&name, "SchedulingThroughput", "pods/s").with("Average", self.average);
        let names = ["Perc50", "Perc90", "Perc95", "Perc99"];
        names.into_iter().zip(self.percentiles).fold(item, |item, (name, it)| item.with(name, it))
    }
}

fn rate(n: u32, time: Duration) -> f64 {
    // A clock may not notice a short time.
    f64::from(n) / time.as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_samples() {
        let ms = Duration::from_millis;
        let mut throughput =
            Throughput::new("pods".to_owned(), Vec::new(), BTreeMap::new(), 2, ms(100));
        for at in [105, 110, 115, 130, 300] {
            throughput.add_pod(ms(at));
        }
        let figures = throughput.finish().unwrap();
        assert_eq!((figures.n_pods, figures.average.round()), (5, 25.0));
        assert_eq!(figures.percentiles.map(f64::round), [100.0, 200.0, 200.0, 200.0]);
        let none = Throughput::new("pods".to_owned(), Vec::new(), BTreeMap::new(), 2, ms(100));
        assert_eq!(none.finish(), None);
    }
}
