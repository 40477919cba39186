//! The summary at the end of a run.

use std::io::Write;
use std::time::Duration;

use super::cluster_driver::{ClusterDriver, ClusterState};
use super::cluster_view::{ClusterView, NodeLoad, Zone};
use crate::exit::CommandResult;
use crate::terminal;
use crate::text::{self, Alignment, Line, Style, Table, bar, counted, duration, grouped, percent};

const N_PENDING: usize = 20;
const BAR: usize = 16;
/// Of the reasons below the names of pods.
const REASON_INDENT: usize = 13;

/// Prints the summary.
pub(super) fn print(
    last: &ClusterState,
    driver: &ClusterDriver,
    check_every: u64,
    out: &mut dyn Write,
) -> CommandResult<()> {
    let mut lines = vec![Line::default(), headline(last), Line::default()];
    lines.extend(facts(last, check_every));
    lines.extend(pending(&last.view, terminal::is_interactive()));
    if last.view.n_nodes > 0 {
        lines.push(Line::default());
        lines.extend(zones(&last.view.zones));
        lines.push(Line::default());
        lines.extend(fullest(&last.view.fullest));
    }
    for message in &driver.rejected_actions {
        lines.push(Line::new(Style::Bad, format!("error: {message}")));
    }
    for disagreement in &last.view.disagreements {
        lines.push(Line::new(
            Style::Bad,
            format!("this is a bug: decision differs from per-node evaluation: {disagreement}"),
        ));
    }
    text::print(out, &lines, terminal::has_color())?;
    Ok(())
}

fn headline(last: &ClusterState) -> Line {
    let (style, text) = match (last.n_pending(), last.view.n_busy) {
        (0, _) => (Style::Good, "all pods are assigned".to_owned()),
        (n, 0) => {
            (Style::Warn, format!("{} pending, all other pods are assigned", counted(n, "pod")))
        }
        (n, _) => (Style::Warn, format!("{} not scheduled yet or pending", counted(n, "pod"))),
    };
    let when = if last.is_settled { "settled" } else { "stopped" };
    let n_assigned = last.view.n_assigned;
    Line::new(Style::Bold, format!("{when} after {:.1} s: ", last.since.as_secs_f64()))
        .with_text(style, text)
        .with_text(Style::Plain, format!(" ({} assigned)", grouped(n_assigned as u64)))
}

fn facts(last: &ClusterState, check_every: u64) -> Vec<Line> {
    let counts = last.counts;
    let mut table = Table::new(&[Alignment::Left, Alignment::Left]);
    let pods = format!(
        "{} running, {} starting, {} succeeded, {} failed",
        grouped(counts.running as u64),
        grouped(counts.starting as u64),
        grouped(counts.succeeded as u64),
        grouped(counts.failed as u64)
    );
    table.row(Style::Plain, ["pods".to_owned(), pods]);
    let each_ns = last.deciding.as_nanos() / u128::from(last.n_decisions.max(1));
    let decisions = format!(
        "{}; {} per second, {} each",
        grouped(last.n_decisions),
        rate(last.n_decisions, last.deciding),
        duration(u64::try_from(each_ns).unwrap_or(u64::MAX))
    );
    table.row(Style::Plain, ["decisions".to_owned(), decisions]);
    if check_every > 0 {
        let n_mismatches = last.view.disagreements.len();
        let found = if n_mismatches == 0 {
            "no difference".to_owned()
        } else {
            counted(n_mismatches, "difference")
        };
        table.row(
            Style::Plain,
            ["verified".to_owned(), format!("one in {check_every} decisions: {found}")],
        );
    }
    table.lines(2)
}

/// The rate per second.
pub(super) fn rate(n: u64, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    if seconds > 0.0 { grouped((n as f64 / seconds) as u64) } else { "-".to_owned() }
}

/// Pending pods, grouped by reason. On a terminal the reasons are wrapped; else each group is one line, for scripts.
fn pending(view: &ClusterView, is_wrapped: bool) -> Vec<Line> {
    let groups = &view.pending;
    if groups.is_empty() {
        return Vec::new();
    }
    let mut table = Table::new(&[Alignment::Right, Alignment::Left, Alignment::Left]);
    table.row(Style::Dim, ["PENDING", "FOR EXAMPLE", if is_wrapped { "" } else { "REASON" }]);
    let mut reasons = vec![Vec::new()];
    for group in groups.iter().take(N_PENDING) {
        let style = if group.is_gated { Style::Dim } else { Style::Warn };
        let message = if is_wrapped { "" } else { &group.message };
        table.row(style, [grouped(group.n_pods as u64), group.example.clone(), message.to_owned()]);
        reasons.push(match is_wrapped {
            true => text::wrapped(&group.message, REASON_INDENT, REASON_INDENT),
            false => Vec::new(),
        });
    }
    let mut lines = vec![Line::default()];
    let rows = table.lines(2).into_iter().zip(reasons);
    lines.extend(rows.flat_map(|(row, reasons)| [row].into_iter().chain(reasons)));
    if groups.len() > N_PENDING {
        lines.push(Line::new(
            Style::Dim,
            format!("  and {} more reasons", groups.len() - N_PENDING),
        ));
    }
    lines
}

/// Zones and their utilization.
pub(super) fn zones(zones: &[Zone]) -> Vec<Line> {
    let mut table = Table::new(&[
        Alignment::Left,
        Alignment::Right,
        Alignment::Right,
        Alignment::Left,
        Alignment::Right,
        Alignment::Left,
        Alignment::Right,
    ]);
    table.row(Style::Dim, ["ZONE", "NODES", "PODS", "CPU", "", "MEMORY", ""]);
    for zone in zones {
        let name = if zone.name.is_empty() { "(none)".to_owned() } else { zone.name.clone() };
        let (cpu, memory) = (zone.cpu.fraction(), zone.memory.fraction());
        table.row(
            Style::Plain,
            [
                name,
                grouped(zone.n_nodes as u64),
                grouped(zone.n_pods as u64),
                bar(cpu, BAR),
                percent(cpu),
                bar(memory, BAR),
                percent(memory),
            ],
        );
    }
    table.lines(2)
}

fn fullest(nodes: &[NodeLoad]) -> Vec<Line> {
    let mut table = Table::new(&[
        Alignment::Left,
        Alignment::Left,
        Alignment::Right,
        Alignment::Right,
        Alignment::Right,
    ]);
    table.row(Style::Dim, ["FULLEST NODES", "ZONE", "PODS", "CPU", "MEMORY"]);
    for node in nodes {
        let (cpu, memory) = (percent(node.cpu.fraction()), percent(node.memory.fraction()));
        let n_pods = grouped(node.n_pods as u64);
        table.row(Style::Plain, [node.name.clone(), node.zone.clone(), n_pods, cpu, memory]);
    }
    table.lines(2)
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::super::cluster_view::PendingGroup;
    use super::*;

    #[test]
    fn reasons_are_wrapped_on_a_terminal_only() {
        let group = PendingGroup {
            n_pods: 4,
            message:
                "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
                    .to_owned(),
            example: "default/web".to_owned(),
            is_gated: false,
        };
        let view = ClusterView { pending: vec![group], ..ClusterView::default() };
        let check = |is_wrapped, want: Expect| {
            let lines = pending(&view, is_wrapped);
            let lines = lines.iter().map(|it| format!("|{}\n", it.render(usize::MAX, false)));
            want.assert_eq(&lines.collect::<String>());
        };
        check(
            true,
            expect![[r#"
                |
                |  PENDING  FOR EXAMPLE
                |        4  default/web
                |             0/3 nodes are available: 3 node(s) didn't match Pod's node
                |             affinity/selector.
            "#]],
        );
        check(
            false,
            expect![[r#"
                |
                |  PENDING  FOR EXAMPLE  REASON
                |        4  default/web  0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.
            "#]],
        );
    }
}
