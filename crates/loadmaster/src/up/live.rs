//! A run on a terminal: a picture that is redrawn a few times a second.

#![expect(clippy::disallowed_types, reason = "what is shown changes with the clock")]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use loadmaster_sim::cluster::{Cluster, Millis, Outcome, Recent};

use super::drive::Drive;
use super::summary;
use crate::exit::Answer;
use crate::terminal::{self, Key, Screen};
use crate::text::{Line, Look, Side, Table, bar, grouped, percent};

/// Time between two pictures, and how much of it may go into work.
const FRAME: Duration = Duration::from_millis(100);
const WORK: Duration = Duration::from_millis(70);

/// The rate is that over so many pictures.
const N_RATE_FRAMES: usize = 10;

const BAR: usize = 36;
const N_PENDING: usize = 8;

/// Runs until somebody presses `q` (the answer is true), or, if it does not live on, until nothing more will happen.
pub(super) fn run(drive: &mut Drive, head: &str, lives_on: bool) -> Answer<bool> {
    let screen = Screen::open()?;
    let color = terminal::has_color();
    let mut rate = Rate::default();
    let mut paused = false;
    let mut shown_ms: Millis = 0;
    loop {
        let frame = Instant::now();
        rate.note(frame, drive.cluster.tally().decisions);
        screen.draw(&picture(&drive.cluster, head, &rate, paused), color)?;
        let mut arrived = true;
        if !paused {
            // The cluster's time follows ours, or jumps ahead when nobody waits for it.
            let until_ms =
                if lives_on { shown_ms + FRAME.as_millis() as Millis } else { Millis::MAX };
            arrived = drive.run(until_ms, WORK);
            shown_ms = drive.cluster.now_ms();
        }
        if !lives_on && arrived && drive.cluster.is_settled() {
            return Ok(false);
        }
        let wait = if arrived { FRAME.saturating_sub(frame.elapsed()) } else { Duration::ZERO };
        match screen.key(wait)? {
            Some(Key::Quit) => return Ok(true),
            Some(Key::Pause) => paused = !paused,
            None => {}
        }
    }
}

/// Decisions in the last second.
#[derive(Default)]
struct Rate(VecDeque<(Option<Instant>, u64)>);

impl Rate {
    fn note(&mut self, now: Instant, n_decisions: u64) {
        self.0.push_back((Some(now), n_decisions));
        if self.0.len() > N_RATE_FRAMES {
            self.0.pop_front();
        }
    }

    fn per_second(&self) -> u64 {
        let (Some((Some(from), n_from)), Some((Some(to), n_to))) = (self.0.front(), self.0.back())
        else {
            return 0;
        };
        let seconds = to.duration_since(*from).as_secs_f64();
        if seconds > 0.0 { ((n_to - n_from) as f64 / seconds) as u64 } else { 0 }
    }
}

fn picture(cluster: &Cluster, head: &str, rate: &Rate, paused: bool) -> Vec<Line> {
    let (_, rows) = terminal::size();
    let keys = if paused { "PAUSED · space goes on · q ends" } else { "space pauses · q ends" };
    let settled = if cluster.is_settled() { " · settled" } else { "" };
    let time = format!("{:.0} s{settled}", cluster.now_ms() as f64 / 1e3);
    let mut lines = vec![
        Line::new(Look::Bold, "loadmaster up")
            .with(Look::Dim, format!("  {head} · {time} · {keys}")),
        Line::default(),
    ];
    lines.extend(pods(cluster));
    lines.push(decisions(cluster, rate));
    lines.extend(extended(cluster));
    lines.push(Line::default());
    let mut below = summary::zones(&cluster.zones());
    below.extend(summary::pending(cluster, N_PENDING, short));
    // Decisions fill what is left of the screen.
    let n_left = rows.saturating_sub(lines.len() + below.len() + 3).max(4);
    lines.extend(recent(cluster, n_left));
    lines.push(Line::default());
    lines.extend(below);
    lines
}

fn pods(cluster: &Cluster) -> Vec<Line> {
    let tally = cluster.tally();
    let n_all = (tally.running + tally.starting + tally.pending()).max(1);
    let share = |n: usize| n * BAR / n_all;
    let (running, starting) = (share(tally.running), share(tally.starting));
    let pending = share(tally.pending()).max(usize::from(tally.pending() > 0));
    let rest = BAR.saturating_sub(running + starting + pending);
    let line = Line::new(Look::Plain, "  pods       ")
        .with(Look::Good, "█".repeat(running + rest))
        .with(Look::Plain, "▓".repeat(starting))
        .with(Look::Warn, "░".repeat(pending))
        .with(Look::Good, format!("  {} running", grouped(tally.running as u64)))
        .with(Look::Plain, format!("  {} starting", grouped(tally.starting as u64)))
        .with(Look::Warn, format!("  {} pending", grouped(tally.pending() as u64)))
        .with(Look::Dim, format!("  {} succeeded", grouped(tally.succeeded as u64)));
    vec![line]
}

fn decisions(cluster: &Cluster, rate: &Rate) -> Line {
    let tally = cluster.tally();
    Line::new(Look::Plain, "  decisions  ")
        .with(Look::Bold, grouped(tally.decisions))
        .with(Look::Plain, format!("  {} in the last second", grouped(rate.per_second())))
        .with(
            Look::Dim,
            format!(
                "  {} a second while deciding",
                summary::rate(tally.decisions, tally.decide_ns)
            ),
        )
}

fn extended(cluster: &Cluster) -> Vec<Line> {
    let shares = cluster.extended().into_iter().take(2).map(|(name, share)| {
        Line::new(Look::Plain, format!("  {name}  {} ", bar(share.fraction(), 16))).with(
            Look::Dim,
            format!("{} of {}, {}", share.requested, share.allocatable, percent(share.fraction())),
        )
    });
    shares.collect()
}

fn recent(cluster: &Cluster, n: usize) -> Vec<Line> {
    let mut table = Table::new(&[Side::Left, Side::Left, Side::Left]);
    table.row(
        Look::Dim,
        [format!("{:<32}", "LAST DECISIONS"), format!("{:<8}", "NODE"), "WHY".to_owned()],
    );
    for Recent { pod, outcome, .. } in cluster.recent().rev().take(n.saturating_sub(1)) {
        match outcome {
            Outcome::Placed { node, total, n_ties } => {
                let among = match n_ties {
                    0 | 1 => "the best".to_owned(),
                    n => format!("one of the {} best", grouped(*n)),
                };
                table.row(
                    Look::Plain,
                    [pod.full_name(), node.to_string(), format!("score {total}, {among}")],
                );
            }
            Outcome::TurnedDown(why) => {
                table.row(
                    Look::Warn,
                    [pod.full_name(), "-".to_owned(), short(&why.message).to_owned()],
                );
            }
        }
    }
    table.lines(2)
}

/// Why no node is feasible, without saying again that none is.
fn short(message: &str) -> &str {
    message.split_once(" nodes are available: ").map_or(message, |(_, reasons)| reasons)
}
