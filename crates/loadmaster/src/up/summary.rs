//! What came of it.

use std::io::Write;
use std::time::Duration;

use super::drive::{Drive, Moment};
use super::picture::{NodeLoad, Picture, Zone};
use crate::exit::Answer;
use crate::terminal;
use crate::text::{self, Line, Look, Side, Table, bar, counted, duration, grouped, percent};

const N_PENDING: usize = 20;
const BAR: usize = 16;

/// Prints the summary.
pub(super) fn print(
    last: &Moment,
    drive: &Drive,
    check_every: u64,
    out: &mut dyn Write,
) -> Answer<()> {
    let mut lines = vec![Line::default(), verdict(last), Line::default()];
    lines.extend(facts(last, check_every));
    lines.extend(pending(&last.picture, N_PENDING, |message| message));
    if last.picture.n_nodes > 0 {
        lines.push(Line::default());
        lines.extend(zones(&last.picture.zones));
        lines.push(Line::default());
        lines.extend(fullest(&last.picture.fullest));
    }
    for refused in &drive.refused {
        lines.push(Line::new(Look::Bad, format!("error: {refused}")));
    }
    for disagreement in &last.picture.disagreements {
        lines.push(Line::new(
            Look::Bad,
            format!("this is a bug: decided otherwise than node by node: {disagreement}"),
        ));
    }
    text::print(out, &lines, terminal::has_color())?;
    Ok(())
}

fn verdict(last: &Moment) -> Line {
    let (look, text) = match (last.n_pending(), last.picture.n_busy) {
        (0, _) => (Look::Good, "every pod has its node".to_owned()),
        (n, 0) => {
            (Look::Warn, format!("{} pending, everything else has its node", counted(n, "pod")))
        }
        (n, _) => (Look::Warn, format!("{} not decided yet or pending", counted(n, "pod"))),
    };
    let when = if last.is_settled { "settled" } else { "stopped" };
    let n_assigned = last.picture.n_assigned;
    Line::new(Look::Bold, format!("{when} after {:.1} s: ", last.since.as_secs_f64()))
        .with(look, text)
        .with(Look::Plain, format!(" ({} on nodes)", grouped(n_assigned as u64)))
}

fn facts(last: &Moment, check_every: u64) -> Vec<Line> {
    let tally = last.tally;
    let mut table = Table::new(&[Side::Left, Side::Left]);
    let pods = format!(
        "{} running, {} starting, {} succeeded, {} failed",
        grouped(tally.running as u64),
        grouped(tally.starting as u64),
        grouped(tally.succeeded as u64),
        grouped(tally.failed as u64)
    );
    table.row(Look::Plain, ["pods".to_owned(), pods]);
    let each_ns = last.deciding.as_nanos() / u128::from(last.n_decisions.max(1));
    let decisions = format!(
        "{}; {} a second, {} each",
        grouped(last.n_decisions),
        rate(last.n_decisions, last.deciding),
        duration(u64::try_from(each_ns).unwrap_or(u64::MAX))
    );
    table.row(Look::Plain, ["decisions".to_owned(), decisions]);
    if check_every > 0 {
        let n_wrong = last.picture.disagreements.len();
        let found =
            if n_wrong == 0 { "no difference".to_owned() } else { counted(n_wrong, "difference") };
        table.row(
            Look::Plain,
            ["checked".to_owned(), format!("one decision in {check_every}: {found}")],
        );
    }
    table.lines(2)
}

/// How many in a second, if so many took so long.
pub(super) fn rate(n: u64, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    if seconds > 0.0 { grouped((n as f64 / seconds) as u64) } else { "-".to_owned() }
}

/// Pods that wait, grouped by reason; `shown` is what is shown of a message.
pub(super) fn pending(picture: &Picture, n_max: usize, shown: fn(&str) -> &str) -> Vec<Line> {
    let groups = &picture.pending;
    if groups.is_empty() {
        return Vec::new();
    }
    let mut table = Table::new(&[Side::Right, Side::Left, Side::Left]);
    table.row(Look::Dim, ["PENDING", "FOR EXAMPLE", "REASON"]);
    for group in groups.iter().take(n_max) {
        let look = if group.is_gated { Look::Dim } else { Look::Warn };
        table.row(
            look,
            [grouped(group.n_pods as u64), group.example.clone(), shown(&group.message).to_owned()],
        );
    }
    let mut lines = vec![Line::default()];
    lines.extend(table.lines(2));
    if groups.len() > n_max {
        lines.push(Line::new(Look::Dim, format!("  and {} more reasons", groups.len() - n_max)));
    }
    lines
}

/// Zones and how full they are.
pub(super) fn zones(zones: &[Zone]) -> Vec<Line> {
    let mut table = Table::new(&[
        Side::Left,
        Side::Right,
        Side::Right,
        Side::Left,
        Side::Right,
        Side::Left,
        Side::Right,
    ]);
    table.row(Look::Dim, ["ZONE", "NODES", "PODS", "CPU", "", "MEMORY", ""]);
    for zone in zones {
        let name = if zone.name.is_empty() { "(none)".to_owned() } else { zone.name.clone() };
        let (cpu, memory) = (zone.cpu.fraction(), zone.memory.fraction());
        table.row(
            Look::Plain,
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
    let mut table = Table::new(&[Side::Left, Side::Left, Side::Right, Side::Right, Side::Right]);
    table.row(Look::Dim, ["FULLEST NODES", "ZONE", "PODS", "CPU", "MEMORY"]);
    for node in nodes {
        let (cpu, memory) = (percent(node.cpu.fraction()), percent(node.memory.fraction()));
        let n_pods = grouped(node.n_pods as u64);
        table.row(Look::Plain, [node.name.clone(), node.zone.clone(), n_pods, cpu, memory]);
    }
    table.lines(2)
}
