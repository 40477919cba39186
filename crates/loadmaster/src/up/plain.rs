//! A run without somebody looking on: a line now and then.

#![expect(clippy::disallowed_methods, reason = "a cluster that runs has a clock")]

use std::io::Write;
use std::time::Duration;

use super::drive::{Drive, Moment};
use crate::exit::Answer;
use crate::text::grouped;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// A line comes at this time, then after twice as much each time, at most so much.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// Runs until nothing more will happen, or for ever. The last moment; nothing if the scheduler has ended before.
pub(super) fn run(
    drive: &mut Drive,
    lives_on: bool,
    out: &mut dyn Write,
) -> Answer<Option<Moment>> {
    let (mut next, mut pause) = (FIRST, FIRST);
    loop {
        let Some(moment) = drive.step() else { return Ok(None) };
        let is_over = moment.is_settled && !lives_on || drive.is_told_to_stop();
        if is_over || moment.since >= next {
            writeln!(out, "{}", line(&moment))?;
            out.flush()?;
            pause = (pause * 2).min(LONGEST);
            next = moment.since + pause;
        }
        if is_over {
            return Ok(Some(moment));
        }
        std::thread::sleep(LOOK);
    }
}

fn line(moment: &Moment) -> String {
    let tally = moment.tally;
    format!(
        "{:>7.1} s  {:>7} running  {:>6} starting  {:>6} pending  {:>7} succeeded  {:>8} decisions",
        moment.since.as_secs_f64(),
        grouped(tally.running as u64),
        grouped(tally.starting as u64),
        grouped(moment.n_pending() as u64),
        grouped(tally.succeeded as u64),
        grouped(moment.n_decisions),
    )
}
