//! What a decision costs in clusters of 100 to 1,000,000 nodes.

use anyhow::Result;

use crate::data_items::DataItem;
use crate::decisions::{self, Rates};
use crate::node_cost_plot::Line;
use crate::pod_source::Shape;
use crate::workload::Kind;

/// The sizes of clusters.
const NODES: [u32; 9] = [100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000];

/// Pods for each node, so that all fit on small clusters, too, and at most this many.
const PODS_PER_NODE: u32 = 10;
const N_PODS_MAX: u32 = 20_000;

const WORKLOADS: [(&str, Kind); 3] = [
    ("basic", Kind::Basic),
    ("zone + hostname spread", Kind::Spread),
    ("anti-affinity, 20 groups", Kind::AntiAffinity),
];

const SHAPES: [(&str, Shape); 2] = [("bare", Shape::Bare), ("clustered", Shape::Clustered)];

/// Measures clusters of up to this many nodes and prints a table; returns the lines of the plot and all figures.
pub fn measure(n_nodes_max: u32) -> Result<(Vec<Line>, Vec<DataItem>)> {
    let nodes: Vec<u32> = NODES.into_iter().filter(|n| *n <= n_nodes_max).collect();
    println!(
        "| cost against nodes: workload | nodes | us per decision | ms, first pod of a new key | peak RSS MiB |"
    );
    println!("| --- | --- | --- | --- | --- |");
    let (mut lines, mut items) = (Vec::new(), Vec::new());
    for (workload, kind) in WORKLOADS {
        for (shape_name, shape) in SHAPES {
            let name = format!("{workload}, {shape_name}");
            let mut points = Vec::new();
            for &n_nodes in &nodes {
                let rates = median_run(kind, shape, n_nodes)?;
                let micros = 1e6 / rates.per_second;
                println!(
                    "| {name} | {n_nodes} | {micros:.2} | {:.2} | {} |",
                    rates.new_key_ms, rates.peak_mib
                );
                points.push((f64::from(n_nodes), micros));
                let item = |metric, unit, figure| {
                    let item = DataItem::new(&name, metric, unit).with("Perc50", figure);
                    item.with_label("Nodes", n_nodes.to_string())
                };
                items.push(item("TimePerDecision", "us", micros));
                items.push(item("FirstPodOfNewKey", "ms", rates.new_key_ms));
                items.push(item("PeakRSS", "MiB", rates.peak_mib as f64));
            }
            lines.push(Line { label: name, points, is_dashed: shape == Shape::Clustered });
        }
    }
    println!("\n| workload | time per decision grows with this power of the number of nodes |");
    println!("| --- | --- |");
    for line in &lines {
        if let Some(slope) = slope(&line.points) {
            println!("| {} | {slope:.2} |", line.label);
            items
                .push(DataItem::new(&line.label, "Slope", "power of nodes").with("Average", slope));
        }
    }
    Ok((lines, items))
}

/// The run with the median rate; fewer runs of larger clusters, in which more is measured at once.
fn median_run(kind: Kind, shape: Shape, n_nodes: u32) -> Result<Rates> {
    let n_runs = match n_nodes {
        ..10_001 => 5,
        10_001..100_001 => 3,
        _ => 1,
    };
    let n_pods = n_nodes.saturating_mul(PODS_PER_NODE).min(N_PODS_MAX);
    let mut runs = (0..n_runs)
        .map(|_| decisions::run_in_cluster_of(n_nodes, kind, shape, n_pods))
        .collect::<Result<Vec<_>>>()?;
    runs.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    Ok(runs.swap_remove(n_runs / 2))
}

/// The exponent of the power of x that fits y best; `None` for fewer than two different x.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (log10(*x), log10(*y))).collect();
    let n = logs.len() as f64;
    let mean_x = logs.iter().map(|(x, _)| x).sum::<f64>() / n;
    let mean_y = logs.iter().map(|(_, y)| y).sum::<f64>() / n;
    let covariance: f64 = logs.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let variance: f64 = logs.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    (variance > 0.0).then(|| covariance / variance)
}

/// The logarithm, for a plot and a fit.
#[expect(clippy::disallowed_methods, reason = "the last bit does not matter here")]
pub(crate) fn log10(value: f64) -> f64 {
    value.log10()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_is_the_exponent() {
        for (points, expected) in [
            (vec![(100.0, 2.0), (1_000.0, 2.0), (10_000.0, 2.0)], Some(0.0)),
            (vec![(100.0, 3.0), (10_000.0, 300.0)], Some(1.0)),
            (vec![(100.0, 3.0), (1_000.0, 3.0 * 10_f64.sqrt())], Some(0.5)),
            (vec![(100.0, 3.0)], None),
            (Vec::new(), None),
        ] {
            match (slope(&points), expected) {
                (Some(slope), Some(expected)) => {
                    assert!((slope - expected).abs() < 1e-9, "{points:?}: {slope}");
                }
                (slope, expected) => assert_eq!(slope, expected, "{points:?}"),
            }
        }
    }
}
