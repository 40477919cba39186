//! A run on a terminal: a picture that is redrawn a few times a second.

use std::collections::VecDeque;
use std::time::Duration;

use super::drive::{Drive, Moment};
use super::recent::Recent;
use super::summary;
use crate::exit::Answer;
use crate::terminal::{self, Screen};
use crate::text::{Line, Look, Side, Table, bar, grouped, percent};

/// Time between two pictures.
const FRAME: Duration = Duration::from_millis(100);

/// The rate is that over so many pictures.
const N_RATE_FRAMES: usize = 10;

const BAR: usize = 36;
const N_PENDING: usize = 8;
const N_RECENT: usize = 60;

/// Runs until somebody presses `q`, or, if it does not live on, until nothing more will happen. The last moment; nothing if the
/// scheduler has ended before.
pub(super) fn run(drive: &mut Drive, head: &str, lives_on: bool) -> Answer<Option<Moment>> {
    let screen = Screen::open()?;
    let color = terminal::has_color();
    let mut rate = Rate::default();
    loop {
        let Some(moment) = drive.step() else { return Ok(None) };
        rate.note(&moment);
        let recent = drive.cluster.recents.newest(N_RECENT);
        screen.draw(&picture(&moment, &recent, head, &rate), color)?;
        if moment.is_settled && !lives_on || screen.is_quit(FRAME)? || drive.is_told_to_stop() {
            return Ok(Some(moment));
        }
    }
}

/// Decisions in the last second.
#[derive(Default)]
struct Rate(VecDeque<(Duration, u64)>);

impl Rate {
    fn note(&mut self, moment: &Moment) {
        self.0.push_back((moment.since, moment.n_decisions));
        if self.0.len() > N_RATE_FRAMES {
            self.0.pop_front();
        }
    }

    fn per_second(&self) -> u64 {
        let (Some((from, n_from)), Some((to, n_to))) = (self.0.front(), self.0.back()) else {
            return 0;
        };
        let seconds = to.saturating_sub(*from).as_secs_f64();
        if seconds > 0.0 { ((n_to - n_from) as f64 / seconds) as u64 } else { 0 }
    }
}

fn picture(moment: &Moment, recent: &[Recent], head: &str, rate: &Rate) -> Vec<Line> {
    let (_, rows) = terminal::size();
    let settled = if moment.is_settled { " · settled" } else { "" };
    let time = format!("{:.0} s{settled}", moment.since.as_secs_f64());
    let mut lines = vec![
        Line::new(Look::Bold, "loadmaster up")
            .with(Look::Dim, format!("  {time} · {head} · q ends")),
        Line::default(),
    ];
    lines.push(pods(moment));
    lines.push(decisions(moment, rate));
    lines.extend(extended(moment));
    lines.push(Line::default());
    let mut below = summary::zones(&moment.picture.zones);
    below.extend(summary::pending(&moment.picture, N_PENDING, short));
    // Decisions fill what is left of the screen.
    let n_left = rows.saturating_sub(lines.len() + below.len() + 3).max(4);
    lines.extend(decided(recent, n_left));
    lines.push(Line::default());
    lines.extend(below);
    lines
}

fn pods(moment: &Moment) -> Line {
    let tally = moment.tally;
    let n_pending = moment.n_pending();
    let n_all = (tally.running + tally.starting + n_pending).max(1);
    let share = |n: usize| n * BAR / n_all;
    let (running, starting) = (share(tally.running), share(tally.starting));
    let pending = share(n_pending).max(usize::from(n_pending > 0));
    let rest = BAR.saturating_sub(running + starting + pending);
    Line::new(Look::Plain, "  pods       ")
        .with(Look::Good, "█".repeat(running + rest))
        .with(Look::Plain, "▓".repeat(starting))
        .with(Look::Warn, "░".repeat(pending))
        .with(Look::Good, format!("  {} running", grouped(tally.running as u64)))
        .with(Look::Plain, format!("  {} starting", grouped(tally.starting as u64)))
        .with(Look::Warn, format!("  {} pending", grouped(n_pending as u64)))
        .with(Look::Dim, format!("  {} succeeded", grouped(tally.succeeded as u64)))
}

fn decisions(moment: &Moment, rate: &Rate) -> Line {
    let deciding = summary::rate(moment.n_decisions, moment.deciding);
    Line::new(Look::Plain, "  decisions  ")
        .with(Look::Bold, grouped(moment.n_decisions))
        .with(Look::Plain, format!("  {} in the last second", grouped(rate.per_second())))
        .with(Look::Dim, format!("  {deciding} a second while deciding"))
}

fn extended(moment: &Moment) -> Vec<Line> {
    let shares = moment.picture.extended.iter().take(2).map(|(name, share)| {
        Line::new(Look::Plain, format!("  {name}  {} ", bar(share.fraction(), 16))).with(
            Look::Dim,
            format!("{} of {}, {}", share.requested, share.allocatable, percent(share.fraction())),
        )
    });
    shares.collect()
}

fn decided(recent: &[Recent], n: usize) -> Vec<Line> {
    let mut table = Table::new(&[Side::Left, Side::Left]);
    table.row(Look::Dim, [format!("{:<40}", "LAST DECISIONS"), "AS ITS EVENT SAYS".to_owned()]);
    for Recent { pod, is_warning, note } in recent.iter().take(n.saturating_sub(1)) {
        let look = if *is_warning { Look::Warn } else { Look::Plain };
        table.row(look, [pod.clone(), short(note).to_owned()]);
    }
    table.lines(2)
}

/// Why no node is feasible, without saying again that none is.
fn short(message: &str) -> &str {
    message.split_once(" nodes are available: ").map_or(message, |(_, reasons)| reasons)
}
