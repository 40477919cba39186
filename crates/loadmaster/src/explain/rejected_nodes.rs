//! The rejected nodes in the text output of an explanation: one by one, or grouped by reason, with what the plugin says about them.

use std::collections::BTreeMap;

use loadmaster_engine::engine::scheduling_state::LastAttempt;
use loadmaster_engine::explain::{NodeExplanation, PreemptionExplanation, Status};
use loadmaster_stdx::SortCompactly as _;

use super::extent::Extent;
use super::table::{details, named};
use crate::text::{self, Alignment, Line, Style, Table, counted, grouped};

/// Maximum number of reasons without --all.
const N_GROUPS: usize = 12;
/// Maximum number of lines of details per reason.
const N_DETAILS: usize = 3;
/// Maximum number of example names.
pub(super) const N_EXAMPLES: usize = 3;
const PLUGIN: &str = "REJECTED BY";
const PREEMPTION: &str = "PREEMPTION";
/// Under the second column of the table of reasons.
const INDENT: usize = 9;

/// A row of a table of rejected nodes.
struct Row<'a> {
    /// The name of a node, or a number of nodes.
    nodes: String,
    plugin: &'a str,
    /// What preemption does.
    preemption: &'static str,
    reasons: String,
    /// Lines below the row.
    details: Vec<Line>,
}

/// One row per node.
pub(super) fn each(
    rejected: &[&NodeExplanation],
    preemption: Option<&PreemptionExplanation>,
) -> Vec<Line> {
    let rows = rejected.iter().map(|node| Row {
        nodes: node.name.clone(),
        plugin: node.filter.plugin.as_deref().unwrap_or("-"),
        preemption: preemption_of_node(node, preemption),
        reasons: node.filter.reasons.join(", "),
        details: match details(&node.details) {
            none if none.is_empty() => Vec::new(),
            some => text::wrapped(&some, 4, 6),
        },
    });
    lines_of((Alignment::Left, "NODE"), rows.collect())
}

/// Nodes by plugin, reasons and what preemption does there.
type Group<'a> = ((&'a str, String, &'static str), Vec<&'a NodeExplanation>);

/// One row per reason.
pub(super) fn groups(
    rejected: &[&NodeExplanation],
    preemption: Option<&PreemptionExplanation>,
    extent: Extent,
) -> Vec<Line> {
    let mut groups: BTreeMap<_, Vec<&NodeExplanation>> = BTreeMap::new();
    for node in rejected {
        let Status { plugin, reasons, .. } = &node.filter;
        let word = preemption_of_node(node, preemption);
        let key = (plugin.as_deref().unwrap_or("-"), reasons.join(", "), word);
        groups.entry(key).or_default().push(node);
    }
    let mut groups: Vec<Group<'_>> = groups.into_iter().collect();
    groups.sort_compactly_by(|a, b| b.1.len().cmp(&a.1.len()).then_with(|| a.0.cmp(&b.0)));
    let n_more = groups.len().saturating_sub(N_GROUPS);
    let shown = groups.into_iter().take(N_GROUPS);
    let rows = shown.map(|((plugin, reasons, preemption), nodes)| Row {
        nodes: grouped(nodes.len() as u64),
        plugin,
        preemption,
        reasons,
        details: own_details(&nodes, extent),
    });
    let mut lines = lines_of((Alignment::Right, "NODES"), rows.collect());
    if n_more > 0 {
        let more = counted(n_more, "more reason");
        let text = extent.and_more(&more, "every node");
        lines.push(Line::new(Style::Dim, format!("  {text}")));
    }
    lines
}

/// The reasons of a failed attempt.
pub(super) fn of_last_attempt(last: &LastAttempt) -> Vec<Line> {
    let rows = last.rejected_nodes.iter().map(|group| Row {
        nodes: grouped(group.n_nodes as u64),
        plugin: group.status.plugin.as_deref().unwrap_or("-"),
        preemption: match &*group.status.code {
            // The attempt ended with PostFilter, so that its result is known.
            "Unschedulable" if last.nominated_node.is_empty() => "does not help",
            _ => word_of_code(&group.status),
        },
        reasons: group.status.reasons.join(", "),
        details: text::wrapped(&some_of(&group.examples, group.n_nodes), INDENT, INDENT),
    });
    lines_of((Alignment::Right, "NODES"), rows.collect())
}

/// The lines of a table. Reasons are wrapped in their column.
fn lines_of((side, head): (Alignment, &str), rows: Vec<Row<'_>>) -> Vec<Line> {
    let width = |head: &str, cell: &dyn Fn(&Row<'_>) -> usize| {
        rows.iter().map(cell).max().unwrap_or(0).max(head.len())
    };
    let columns = [
        width(head, &|row| row.nodes.chars().count()),
        width(PLUGIN, &|row| row.plugin.chars().count()),
        width(PREEMPTION, &|row| row.preemption.len()),
    ];
    let indent = 2 + columns.iter().map(|width| width + 2).sum::<usize>();
    let mut table = Table::new(&[side, Alignment::Left, Alignment::Left, Alignment::Left]);
    table.row(Style::Dim, [head, PLUGIN, PREEMPTION, "REASON"]);
    let mut below: Vec<Vec<Line>> = vec![Vec::new()];
    for Row { nodes, plugin, preemption, reasons, details } in rows {
        let mut reasons = text::wrapped(&reasons, indent, indent).into_iter();
        let first = reasons.next().map(|line| line.render(usize::MAX, false)).unwrap_or_default();
        table.row(Style::Plain, [&nodes, plugin, preemption, first.trim_start()]);
        below.push(reasons.chain(details).collect());
    }
    let rows = table.lines(2).into_iter().zip(below);
    rows.flat_map(|(row, below)| [row].into_iter().chain(below)).collect()
}

/// What the plugin that rejected a group of nodes says about them: `a, b and 38 more: taints=[gpu:NoSchedule]`. What it says about most
/// nodes comes first.
fn own_details(nodes: &[&NodeExplanation], extent: Extent) -> Vec<Line> {
    let mut by_text: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for node in nodes {
        let by_plugin = node.details.iter().find(|it| Some(&it.0) == node.filter.plugin.as_ref());
        let text = by_plugin.map(|(_, details)| named(details)).unwrap_or_default();
        by_text.entry(text).or_default().push(&node.name);
    }
    let mut all: Vec<(String, Vec<&str>)> = by_text.into_iter().collect();
    // Nodes are in no useful order among the texts of one node each, so that the first node counts.
    all.sort_compactly_by(|a, b| b.1.len().cmp(&a.1.len()).then_with(|| a.1.cmp(&b.1)));
    let mut lines = Vec::new();
    for (text, names) in all.iter().take(N_DETAILS) {
        let names = examples(names.iter().copied());
        let line = if text.is_empty() { names } else { format!("{names}: {text}") };
        lines.extend(text::wrapped(&line, INDENT, INDENT + 2));
    }
    let n_more: usize = all.iter().skip(N_DETAILS).map(|(_, names)| names.len()).sum();
    if n_more > 0 {
        let more = counted(n_more, "more node");
        let text = format!("{:INDENT$}{}", "", extent.and_more(&more, "them"));
        lines.push(Line::new(Style::Dim, text));
    }
    lines
}

/// What preemption does for a node.
fn preemption_of_node(
    node: &NodeExplanation,
    preemption: Option<&PreemptionExplanation>,
) -> &'static str {
    match preemption {
        Some(preemption) if node.filter.code == "Unschedulable" => {
            let found = preemption.candidates.binary_search_by(|it| it.node.cmp(&node.name));
            if found.is_ok() { "helps" } else { "does not help" }
        }
        _ => word_of_code(&node.filter),
    }
}

/// What preemption does for a pod that was rejected before any node was evaluated.
pub(super) fn preemption_of_all(
    status: &Status,
    preemption: Option<&PreemptionExplanation>,
) -> String {
    let word = match preemption {
        Some(preemption) if status.code == "Unschedulable" => match preemption.candidates.len() {
            0 => "does not help",
            _ => "helps",
        },
        _ => word_of_code(status),
    };
    if word == "-" { String::new() } else { format!("; preemption {word}") }
}

/// Whether preemption can help, without its result.
fn word_of_code(status: &Status) -> &'static str {
    match &*status.code {
        "Unschedulable" => "may help",
        "UnschedulableAndUnresolvable" | "PreFilterResult" => "cannot help",
        _ => "-",
    }
}

/// The first of some names: `a, b, c and 4 more`.
pub(super) fn examples<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let n = names.len();
    let shown: Vec<String> = names.take(N_EXAMPLES).map(str::to_owned).collect();
    some_of(&shown, n)
}

/// Some names of `n`.
pub(super) fn some_of(names: &[String], n: usize) -> String {
    match n.saturating_sub(names.len()) {
        0 => names.join(", "),
        more => format!("{} and {} more", names.join(", "), grouped(more as u64)),
    }
}
