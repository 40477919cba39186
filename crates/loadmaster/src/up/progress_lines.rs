//! Progress output without a terminal: one line from time to time.

#![expect(clippy::disallowed_methods, reason = "a running cluster has a clock")]

use std::io::Write;
use std::time::Duration;

use super::cluster_driver::{ClusterDriver, ClusterState};
use crate::exit::CommandResult;
use crate::text::grouped;

/// Time between two steps.
const STEP_INTERVAL: Duration = Duration::from_millis(50);

/// Time of the first line. The interval then doubles, up to a maximum.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// Runs until the cluster has settled, or with `run_until_stopped` until a signal. Returns the last state; `None` if the scheduler has ended.
pub(super) fn run(
    driver: &mut ClusterDriver,
    run_until_stopped: bool,
    out: &mut dyn Write,
) -> CommandResult<Option<ClusterState>> {
    let (mut next, mut pause) = (FIRST, FIRST);
    loop {
        let Some(state) = driver.step() else { return Ok(None) };
        let is_done = state.is_settled && !run_until_stopped || driver.is_stop_requested();
        if is_done || state.since >= next {
            writeln!(out, "{}", line(&state))?;
            out.flush()?;
            pause = (pause * 2).min(LONGEST);
            next = state.since + pause;
        }
        if is_done {
            return Ok(Some(state));
        }
        std::thread::sleep(STEP_INTERVAL);
    }
}

fn line(state: &ClusterState) -> String {
    let counts = state.counts;
    format!(
        "{:>7.1} s  {:>7} running  {:>6} starting  {:>6} pending  {:>7} succeeded  {:>8} decisions",
        state.since.as_secs_f64(),
        grouped(counts.running as u64),
        grouped(counts.starting as u64),
        grouped(state.n_pending() as u64),
        grouped(counts.succeeded as u64),
        grouped(state.n_decisions),
    )
}
