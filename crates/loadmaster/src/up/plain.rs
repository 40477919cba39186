//! A run without somebody looking on: a line now and then.

use std::io::Write;
use std::time::Duration;

use loadmaster_sim::cluster::{Cluster, Millis};

use super::drive::Drive;
use crate::exit::Answer;
use crate::text::grouped;

/// A line comes when so much time of the cluster has passed: twice as much each time.
const FIRST_MS: Millis = 1_000;

/// And when it takes longer than this.
const PATIENCE: Duration = Duration::from_secs(1);

/// Runs until nothing more will happen. Never stops before.
pub(super) fn run(drive: &mut Drive, head: &str, out: &mut dyn Write) -> Answer<bool> {
    writeln!(out, "loadmaster up: {head}")?;
    let mut until_ms = 0;
    loop {
        let arrived = drive.run(until_ms, PATIENCE);
        writeln!(out, "{}", line(&drive.cluster))?;
        out.flush()?;
        if drive.cluster.is_settled() {
            return Ok(false);
        }
        if arrived {
            let next_ms = if until_ms == 0 { FIRST_MS } else { until_ms.saturating_mul(2) };
            until_ms = next_ms.max(drive.cluster.due_ms().unwrap_or(next_ms));
        }
    }
}

fn line(cluster: &Cluster) -> String {
    let tally = cluster.tally();
    format!(
        "{:>7.1} s  {:>7} running  {:>6} starting  {:>6} pending  {:>7} succeeded  {:>8} decisions",
        cluster.now_ms() as f64 / 1e3,
        grouped(tally.running as u64),
        grouped(tally.starting as u64),
        grouped(tally.pending() as u64),
        grouped(tally.succeeded as u64),
        grouped(tally.decisions),
    )
}
