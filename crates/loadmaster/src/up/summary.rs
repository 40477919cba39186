//! What came of it.

use std::io::Write;

use loadmaster_sim::cluster::{Cluster, Zone};

use super::drive::Drive;
use crate::exit::Answer;
use crate::terminal;
use crate::text::{self, Line, Look, Side, Table, bar, counted, duration, grouped, percent};

const N_PENDING: usize = 20;
const N_NODES: usize = 5;
const BAR: usize = 16;

/// Prints the summary. `stopped` says that somebody ended the run.
pub(super) fn print(
    drive: &Drive,
    stopped: bool,
    check_every: u64,
    out: &mut dyn Write,
) -> Answer<()> {
    let cluster = &drive.cluster;
    let mut lines = vec![Line::default(), verdict(cluster, stopped), Line::default()];
    lines.extend(facts(drive, check_every));
    lines.extend(pending(cluster, N_PENDING, |message| message));
    lines.push(Line::default());
    lines.extend(zones(&cluster.zones()));
    lines.push(Line::default());
    lines.extend(fullest(cluster));
    for error in cluster.errors() {
        lines.push(Line::new(Look::Bad, format!("error: {}", loadmaster_stdx::Chain(error))));
    }
    for disagreement in cluster.disagreements() {
        lines.push(Line::new(
            Look::Bad,
            format!("this is a bug: decided otherwise than node by node: {disagreement}"),
        ));
    }
    text::print(out, &lines, terminal::has_color())?;
    Ok(())
}

fn verdict(cluster: &Cluster, stopped: bool) -> Line {
    let tally = cluster.tally();
    let on_nodes = tally.starting + tally.running;
    let (look, text) = match tally.pending() {
        0 => (Look::Good, "every pod has its node".to_owned()),
        n if tally.gated + tally.unschedulable + tally.backoff == n => {
            (Look::Warn, format!("{} pending, everything else has its node", counted(n, "pod")))
        }
        n => (Look::Warn, format!("{} not decided yet or pending", counted(n, "pod"))),
    };
    let when = if stopped { "stopped" } else { "settled" };
    let seconds = cluster.now_ms() as f64 / 1e3;
    Line::new(Look::Bold, format!("{when} after {seconds:.1} s of cluster time: "))
        .with(look, text)
        .with(Look::Plain, format!(" ({} on nodes)", grouped(on_nodes as u64)))
}

fn facts(drive: &Drive, check_every: u64) -> Vec<Line> {
    let tally = drive.cluster.tally();
    let mut table = Table::new(&[Side::Left, Side::Left]);
    let gone = format!(
        "{} running, {} starting, {} succeeded, {} deleted",
        grouped(tally.running as u64),
        grouped(tally.starting as u64),
        grouped(tally.succeeded as u64),
        grouped(tally.deleted as u64)
    );
    table.row(Look::Plain, ["pods".to_owned(), gone]);
    let each_ns = tally.decide_ns / tally.decisions.max(1);
    let rate = rate(tally.decisions, tally.decide_ns);
    let decisions = format!(
        "{}, {} of them placements; {rate} a second, {} each",
        grouped(tally.decisions),
        grouped(tally.placed),
        duration(each_ns)
    );
    table.row(Look::Plain, ["decisions".to_owned(), decisions]);
    let busy_ns = u64::try_from(drive.busy.as_nanos()).unwrap_or(u64::MAX);
    let rest_ns = busy_ns.saturating_sub(tally.decide_ns + tally.diagnose_ns);
    let elapsed_ns = u64::try_from(drive.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let split = format!(
        "{} deciding, {} finding reasons, {} in controllers and kubelets, {} in all",
        duration(tally.decide_ns),
        duration(tally.diagnose_ns),
        duration(rest_ns),
        duration(elapsed_ns)
    );
    table.row(Look::Plain, ["time".to_owned(), split]);
    if check_every > 0 {
        let n_wrong = drive.cluster.disagreements().count();
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
pub(super) fn rate(n: u64, ns: u64) -> String {
    if ns == 0 { "-".to_owned() } else { grouped((n as f64 * 1e9 / ns as f64) as u64) }
}

/// Pods that wait, grouped by reason; `shown` is what is shown of a message.
pub(super) fn pending(cluster: &Cluster, n_max: usize, shown: fn(&str) -> &str) -> Vec<Line> {
    let groups = cluster.pending();
    if groups.is_empty() {
        return Vec::new();
    }
    let mut table = Table::new(&[Side::Right, Side::Left, Side::Left]);
    table.row(Look::Dim, ["PENDING", "FOR EXAMPLE", "REASON"]);
    for group in groups.iter().take(n_max) {
        let look = if group.gated { Look::Dim } else { Look::Warn };
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

fn fullest(cluster: &Cluster) -> Vec<Line> {
    let mut table = Table::new(&[Side::Left, Side::Left, Side::Right, Side::Right, Side::Right]);
    table.row(Look::Dim, ["FULLEST NODES", "ZONE", "PODS", "CPU", "MEMORY"]);
    for node in cluster.fullest(N_NODES) {
        let (cpu, memory) = (percent(node.cpu.fraction()), percent(node.memory.fraction()));
        table.row(Look::Plain, [node.name, node.zone, grouped(node.n_pods as u64), cpu, memory]);
    }
    table.lines(2)
}
