//! The live dashboard on a terminal.

use std::collections::VecDeque;
use std::time::Duration;

use super::cluster_driver::{ClusterDriver, ClusterState};
use super::recent_decisions::RecentDecision;
use super::summary;
use crate::exit::CommandResult;
use crate::terminal::{self, Screen};
use crate::text::{Alignment, Line, Style, Table, bar, grouped, percent};

/// Time between two frames.
const FRAME: Duration = Duration::from_millis(100);

/// The rate of decisions is computed over this many frames.
const N_RATE_FRAMES: usize = 10;

const BAR: usize = 36;
const N_PENDING: usize = 8;
const N_RECENT: usize = 60;

/// Runs until `q` is pressed or, without `run_until_stopped`, until the cluster has settled. Returns the last state; `None` if the scheduler
/// has ended.
pub(super) fn run(
    driver: &mut ClusterDriver,
    head: &str,
    run_until_stopped: bool,
) -> CommandResult<Option<ClusterState>> {
    let screen = Screen::open()?;
    let color = terminal::has_color();
    let mut rate = Rate::default();
    loop {
        let Some(state) = driver.step() else { return Ok(None) };
        rate.note(&state);
        let recent = driver.cluster.recent_decisions.newest(N_RECENT);
        screen.draw(&view(&state, &recent, head, &rate), color)?;
        if state.is_settled && !run_until_stopped
            || screen.wait_for_quit(FRAME)?
            || driver.is_stop_requested()
        {
            return Ok(Some(state));
        }
    }
}

/// Decisions per second, over the last frames.
#[derive(Default)]
struct Rate(VecDeque<(Duration, u64)>);

impl Rate {
    fn note(&mut self, state: &ClusterState) {
        self.0.push_back((state.since, state.n_decisions));
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

fn view(state: &ClusterState, recent: &[RecentDecision], head: &str, rate: &Rate) -> Vec<Line> {
    let (_, rows) = terminal::size();
    let settled = if state.is_settled { " · settled" } else { "" };
    let time = format!("{:.0} s{settled}", state.since.as_secs_f64());
    let mut lines = vec![
        Line::new(Style::Bold, "loadmaster up")
            .with_text(Style::Dim, format!("  {time} · {head} · q to quit")),
        Line::default(),
    ];
    lines.push(pods(state));
    lines.push(decisions(state, rate));
    lines.extend(extended(state));
    lines.push(Line::default());
    let mut below = summary::zones(&state.view.zones);
    below.extend(summary::pending(&state.view, N_PENDING, short));
    // Recent decisions fill the rest of the screen.
    let n_left = rows.saturating_sub(lines.len() + below.len() + 3).max(4);
    lines.extend(decided(recent, n_left));
    lines.push(Line::default());
    lines.extend(below);
    lines
}

fn pods(state: &ClusterState) -> Line {
    let counts = state.counts;
    let n_pending = state.n_pending();
    let n_all = (counts.running + counts.starting + n_pending).max(1);
    let share = |n: usize| n * BAR / n_all;
    let (running, starting) = (share(counts.running), share(counts.starting));
    let pending = share(n_pending).max(usize::from(n_pending > 0));
    let rest = BAR.saturating_sub(running + starting + pending);
    Line::new(Style::Plain, "  pods       ")
        .with_text(Style::Good, "█".repeat(running + rest))
        .with_text(Style::Plain, "▓".repeat(starting))
        .with_text(Style::Warn, "░".repeat(pending))
        .with_text(Style::Good, format!("  {} running", grouped(counts.running as u64)))
        .with_text(Style::Plain, format!("  {} starting", grouped(counts.starting as u64)))
        .with_text(Style::Warn, format!("  {} pending", grouped(n_pending as u64)))
        .with_text(Style::Dim, format!("  {} succeeded", grouped(counts.succeeded as u64)))
}

fn decisions(state: &ClusterState, rate: &Rate) -> Line {
    let deciding = summary::rate(state.n_decisions, state.deciding);
    Line::new(Style::Plain, "  decisions  ")
        .with_text(Style::Bold, grouped(state.n_decisions))
        .with_text(Style::Plain, format!("  {} per second", grouped(rate.per_second())))
        .with_text(Style::Dim, format!("  {deciding} per second of scheduling time"))
}

fn extended(state: &ClusterState) -> Vec<Line> {
    let shares = state.view.extended.iter().take(2).map(|(name, share)| {
        Line::new(Style::Plain, format!("  {name}  {} ", bar(share.fraction(), 16))).with_text(
            Style::Dim,
            format!("{} of {}, {}", share.requested, share.allocatable, percent(share.fraction())),
        )
    });
    shares.collect()
}

fn decided(recent: &[RecentDecision], n: usize) -> Vec<Line> {
    let mut table = Table::new(&[Alignment::Left, Alignment::Left]);
    table.row(Style::Dim, [format!("{:<40}", "LAST DECISIONS"), "EVENT".to_owned()]);
    for RecentDecision { pod, is_warning, note } in recent.iter().take(n.saturating_sub(1)) {
        let style = if *is_warning { Style::Warn } else { Style::Plain };
        table.row(style, [pod.clone(), short(note).to_owned()]);
    }
    table.lines(2)
}

/// The reasons in a FitError message, without its prefix.
fn short(message: &str) -> &str {
    message.split_once(" nodes are available: ").map_or(message, |(_, reasons)| reasons)
}
