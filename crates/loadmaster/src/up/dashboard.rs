//! The live dashboard on a terminal.

use std::collections::VecDeque;
use std::time::Duration;

use super::cluster_driver::{ClusterDriver, ClusterState};
use super::pending_table::{KeyRequest, PendingTable};
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
/// Lines on the smallest screen beside zones, extended resources and rows of pending pods.
const N_OTHER_LINES: usize = 16;
const N_DECIDED_MIN: usize = 4;
/// Lines below an explanation.
const N_DETAIL_MARGIN: usize = 2;

/// What does not change in the header.
pub(super) struct Head {
    /// Follows the time.
    pub title: String,
    /// A command to try.
    pub command: String,
}

/// Runs until `q` or Ctrl-C is pressed or, without `run_until_stopped`, until the cluster has settled. Returns the last state; `None` if the scheduler
/// has ended.
pub(super) fn run(
    driver: &mut ClusterDriver,
    head: &Head,
    run_until_stopped: bool,
) -> CommandResult<Option<ClusterState>> {
    let screen = Screen::open()?;
    let color = terminal::has_color();
    let mut rate = Rate::default();
    let mut table = PendingTable::default();
    // The pod to explain, as soon as the scheduler is not busy. Before the step, which uses the scheduler, too.
    let mut wanted: Option<String> = None;
    loop {
        if let Some(lines) = wanted.as_deref().and_then(|pod| driver.cluster.explain(pod)) {
            table.show(lines);
            wanted = None;
        }
        let Some(state) = driver.step() else { return Ok(None) };
        rate.note(&state);
        let recent = driver.cluster.recent_decisions.newest(N_RECENT);
        let (columns, rows) = terminal::size();
        let page = rows.saturating_sub(N_DETAIL_MARGIN).max(1);
        let lines = match table.details(page) {
            Some(details) => details.into_iter().chain([Line::default(), table.keys()]).collect(),
            None => view(&state, &recent, &rate, &table, head, (columns, rows)),
        };
        screen.draw(&lines, color)?;
        if state.is_settled && !run_until_stopped || driver.is_stop_requested() {
            return Ok(Some(state));
        }
        for key in screen.read_keys(FRAME)? {
            let page = match table.details(page) {
                Some(_) => page,
                None => n_pending_rows(&state, rows),
            };
            match table.press(key, &state.view.pending, page) {
                Some(KeyRequest::Quit) => return Ok(Some(state)),
                Some(KeyRequest::Explain(pod)) => {
                    table.show(vec![Line::new(Style::Dim, format!("explaining {pod}"))]);
                    wanted = Some(pod);
                }
                None => {}
            }
        }
        wanted = wanted.filter(|_| table.details(page).is_some());
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

/// The number of rows for pending pods on a screen: the rest of it has the other lines, with a few recent decisions.
fn n_pending_rows(state: &ClusterState, rows: usize) -> usize {
    let n_others = N_OTHER_LINES + extended(state).len() + state.view.zones.len();
    rows.saturating_sub(n_others).clamp(1, N_PENDING)
}

fn view(
    state: &ClusterState,
    recent: &[RecentDecision],
    rate: &Rate,
    table: &PendingTable,
    head: &Head,
    (columns, rows): (usize, usize),
) -> Vec<Line> {
    let settled = if state.is_settled { " · settled" } else { "" };
    let time = format!("{:.0} s{settled}", state.since.as_secs_f64());
    let mut lines = vec![
        Line::new(Style::Bold, "loadmaster up")
            .with_text(Style::Dim, format!("  {time} · {}", head.title)),
        Line::new(Style::Dim, format!("  try: {}", head.command)),
    ];
    lines.push(pods(state, columns));
    lines.push(decisions(state, rate));
    lines.extend(extended(state));
    lines.push(Line::default());
    let mut below = summary::zones(&state.view.zones);
    let pending = table.lines(&state.view.pending, n_pending_rows(state, rows));
    if !pending.is_empty() {
        below.push(Line::default());
        below.extend(pending);
    }
    below.extend([Line::default(), table.keys()]);
    // Recent decisions fill the rest of the screen.
    let n_left = rows.saturating_sub(lines.len() + below.len() + 3).max(N_DECIDED_MIN);
    lines.extend(decided(recent, n_left));
    lines.push(Line::default());
    lines.extend(below);
    lines
}

fn pods(state: &ClusterState, columns: usize) -> Line {
    let counts = state.counts;
    let n_pending = state.n_pending();
    let numbers = [
        (Style::Good, counts.running, "running"),
        (Style::Plain, counts.starting, "starting"),
        (Style::Warn, n_pending, "pending"),
        (Style::Dim, counts.succeeded, "succeeded"),
    ]
    .map(|(style, n, what)| (style, format!("  {} {what}", grouped(n as u64))));
    let title = "  pods       ";
    // The numbers matter more than the bar.
    let used = title.len() + numbers.iter().map(|(_, text)| text.len()).sum::<usize>();
    let width = columns.saturating_sub(used).min(BAR);
    let n_all = (counts.running + counts.starting + n_pending).max(1);
    let share = |n: usize| n * width / n_all;
    let (running, starting) = (share(counts.running), share(counts.starting));
    let pending = share(n_pending).max(usize::from(n_pending > 0));
    let rest = width.saturating_sub(running + starting + pending);
    let line = Line::new(Style::Plain, title)
        .with_text(Style::Good, "█".repeat(running + rest))
        .with_text(Style::Plain, "▓".repeat(starting))
        .with_text(Style::Warn, "░".repeat(pending));
    numbers.into_iter().fold(line, |line, (style, text)| line.with_text(style, text))
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
pub(super) fn short(message: &str) -> &str {
    message.split_once(" nodes are available: ").map_or(message, |(_, reasons)| reasons)
}

#[cfg(test)]
mod tests {
    use super::super::cluster_view::{ClusterView, PendingGroup, Utilization, Zone};
    use super::super::pod_counts::PodCounts;
    use super::*;

    /// 12 reasons, three zones and two extended resources.
    fn state() -> ClusterState {
        let group = |nth: usize| PendingGroup {
            n_pods: 100 - nth,
            message: format!("0/3 nodes are available: 3 reason {nth}."),
            example: format!("default/pod-{nth}"),
            is_gated: false,
        };
        let zone = |name: &str| Zone { name: name.to_owned(), ..Zone::default() };
        let view = ClusterView {
            pending: (0..12).map(group).collect(),
            zones: ["a", "b", "c"].map(zone).into(),
            extended: ["x", "y"].map(|it| (it.into(), Utilization::default())).into(),
            ..ClusterView::default()
        };
        let counts = PodCounts {
            running: 123_456,
            starting: 1_000,
            succeeded: 98_765,
            ..PodCounts::default()
        };
        ClusterState {
            since: Duration::from_secs(9),
            view: view.into(),
            counts,
            n_decisions: 1,
            deciding: Duration::ZERO,
            is_settled: false,
        }
    }

    #[test]
    fn all_of_it_is_on_a_small_screen_and_a_large_one() {
        for (columns, rows, n_pending) in [(80, 24, 3), (80, 30, 8), (200, 60, 8)] {
            let (rate, table) = (Rate::default(), PendingTable::default());
            let head = Head { title: "3 nodes".to_owned(), command: "kubectl get pods".to_owned() };
            let lines = view(&state(), &[], &rate, &table, &head, (columns, rows));
            let lines: Vec<String> = lines.iter().map(|it| it.render(columns, false)).collect();
            let text = lines.join("\n");
            assert!(lines.len() <= rows, "{columns}x{rows}: {} lines\n{text}", lines.len());
            assert!(lines.last().is_some_and(|it| it.contains("q quit")), "{text}");
            assert!(text.contains("98,765 succeeded"), "{text}");
            assert!(text.contains("try: kubectl get pods"), "{text}");
            let n_shown = lines.iter().filter(|it| it.contains("default/pod-")).count();
            assert_eq!(n_shown, n_pending, "{text}");
        }
    }
}
