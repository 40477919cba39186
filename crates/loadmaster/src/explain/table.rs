//! An explanation for people: the verdict, the best nodes with their scores, and the others grouped by reason.

use std::collections::BTreeMap;

use loadmaster_engine::explain::{Explanation, Node, Preemption, Status};

use crate::text::{Line, Look, Side, Table, counted, grouped};

/// Rows shown unless all are wanted.
const N_FEASIBLE: usize = 10;
const N_GROUPS: usize = 12;
/// Names given for a group of nodes, and for nodes that are equally good.
const N_EXAMPLES: usize = 3;

/// The table. `runs_on` is the pod's node now, empty if it has none.
pub(super) fn lines(explanation: &Explanation, runs_on: &str, all: bool) -> Vec<Line> {
    let mut feasible: Vec<&Node> =
        explanation.nodes.iter().filter(|node| node.total.is_some()).collect();
    feasible.sort_by(|a, b| b.total.cmp(&a.total).then_with(|| a.name.cmp(&b.name)));
    let rejected: Vec<&Node> =
        explanation.nodes.iter().filter(|node| node.total.is_none()).collect();
    let mut lines = verdict(explanation, feasible.len(), runs_on);
    if !feasible.is_empty() {
        lines.push(Line::default());
        lines.extend(scores(explanation, &feasible, if all { usize::MAX } else { N_FEASIBLE }));
    }
    if !rejected.is_empty() && explanation.pre_filter.is_none() {
        lines.push(Line::default());
        lines.extend(if all { each(&rejected) } else { groups(&rejected) });
    }
    if let Some(preemption) = &explanation.preemption {
        lines.push(Line::default());
        lines.extend(evictions(preemption, all));
    }
    lines
}

fn verdict(explanation: &Explanation, n_feasible: usize, runs_on: &str) -> Vec<Line> {
    let n_nodes = explanation.nodes.len();
    let line = Line::new(Look::Bold, explanation.pod.as_str());
    let nodes = counted(n_nodes, "node");
    let verdict = if n_feasible > 0 {
        line.with(Look::Good, format!(" fits {} of {nodes}", grouped(n_feasible as u64))).with(
            Look::Plain,
            format!("; best: {}", examples(explanation.best.iter().map(String::as_str))),
        )
    } else if n_nodes == 0 {
        line.with(Look::Bad, " fits nowhere: there are no nodes")
    } else {
        line.with(Look::Bad, format!(" fits none of {nodes}"))
    };
    let mut lines = vec![verdict];
    if !explanation.message.is_empty() {
        lines.push(Line::new(Look::Plain, format!("  {}", explanation.message)));
    }
    if let Some(status) = &explanation.pre_filter {
        let plugin = status.plugin.map(|plugin| format!(" by {plugin}")).unwrap_or_default();
        let text = format!("  turned down{plugin} before any node was asked{}", preemption(status));
        lines.push(Line::new(Look::Plain, text));
    }
    let mut about = format!("  profile {}", explanation.profile);
    if !runs_on.is_empty() {
        about = format!("{about}; it is on {runs_on} now, and explained as if it came anew");
    }
    lines.push(Line::new(Look::Dim, about));
    lines
}

/// A row a feasible node, a column a plugin that gives points to any.
fn scores(explanation: &Explanation, feasible: &[&Node], n_max: usize) -> Vec<Line> {
    let gives_points = |at: &usize| feasible.iter().any(|node| node.scores[*at].1 != 0);
    let all = 0..feasible[0].scores.len();
    let (columns, silent): (Vec<usize>, Vec<usize>) = all.partition(gives_points);
    let name = |at: &usize| feasible[0].scores[*at].0;
    let sides = [Side::Left, Side::Right].into_iter().chain(columns.iter().map(|_| Side::Right));
    let mut table = Table::new(&sides.collect::<Vec<_>>());
    let heads: Vec<Vec<String>> = columns.iter().map(|at| words(name(at))).collect();
    let height = heads.iter().map(Vec::len).max().unwrap_or(0).max(1);
    for at in 0..height {
        let is_last = at + 1 == height;
        let first = if is_last { ["NODE", "TOTAL"] } else { ["", ""] };
        // The words of a plugin's name stand above each other, the last one lowest.
        let word = |head: &Vec<String>| {
            (at + head.len()).checked_sub(height).map_or("", |at| &head[at]).to_owned()
        };
        table.row(Look::Dim, first.into_iter().map(str::to_owned).chain(heads.iter().map(word)));
    }
    for node in feasible.iter().take(n_max) {
        let look = if explanation.best.contains(&node.name) { Look::Good } else { Look::Plain };
        let total = node.total.unwrap_or_default().to_string();
        let scores = columns.iter().map(|at| node.scores[*at].1.to_string());
        table.row(look, [node.name.clone(), total].into_iter().chain(scores));
    }
    let mut lines = table.lines(2);
    if feasible.len() > n_max {
        let more = counted(feasible.len() - n_max, "more node");
        lines.push(Line::new(Look::Dim, format!("  and {more} (--all shows them)")));
    }
    if !silent.is_empty() {
        let names: Vec<&str> = silent.iter().map(name).collect();
        lines.push(Line::new(
            Look::Dim,
            format!("  no points for any node from {}", names.join(", ")),
        ));
    }
    lines
}

/// `NodeResourcesFit`: Node, Resources, Fit.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut after_lower = true;
    for letter in name.chars() {
        match words.last_mut() {
            Some(word) if !(letter.is_uppercase() && after_lower) => word.push(letter),
            _ => words.push(letter.to_string()),
        }
        after_lower = !letter.is_uppercase();
    }
    words
}

fn each(rejected: &[&Node]) -> Vec<Line> {
    let mut table = Table::new(&[Side::Left, Side::Left, Side::Left, Side::Left]);
    table.row(Look::Dim, ["NODE", "TURNED DOWN BY", "PREEMPTION", "REASON"]);
    for node in rejected {
        let Status { plugin, reasons, .. } = &node.filter;
        let help = preemption_word(&node.filter);
        table.row(Look::Plain, [&node.name, plugin.unwrap_or("-"), help, &reasons.join(", ")]);
    }
    table.lines(2)
}

fn groups(rejected: &[&Node]) -> Vec<Line> {
    let mut groups: BTreeMap<(&str, String, &str), Vec<&str>> = BTreeMap::new();
    for node in rejected {
        let Status { plugin, reasons, .. } = &node.filter;
        let key = (plugin.unwrap_or("-"), reasons.join(", "), preemption_word(&node.filter));
        groups.entry(key).or_default().push(&node.name);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by(|a, b| b.1.len().cmp(&a.1.len()).then_with(|| a.0.cmp(&b.0)));
    let mut table = Table::new(&[Side::Right, Side::Left, Side::Left, Side::Left, Side::Left]);
    table.row(Look::Dim, ["NODES", "TURNED DOWN BY", "PREEMPTION", "REASON", "FOR EXAMPLE"]);
    for ((plugin, reasons, help), names) in groups.iter().take(N_GROUPS) {
        let n = grouped(names.len() as u64);
        let examples = examples(names.iter().copied());
        table.row(Look::Plain, [n.as_str(), plugin, help, reasons, &examples]);
    }
    let mut lines = table.lines(2);
    if groups.len() > N_GROUPS {
        let more = counted(groups.len() - N_GROUPS, "more reason");
        lines.push(Line::new(Look::Dim, format!("  and {more} (--all shows every node)")));
    }
    lines
}

/// The best nodes to evict pods from, or all of them.
fn evictions(preemption: &Preemption, all: bool) -> Vec<Line> {
    if preemption.candidates.is_empty() {
        return vec![Line::new(Look::Plain, format!("  {}", preemption.message))];
    }
    let is_best = |node: &String| preemption.best.contains(node);
    let n = counted(preemption.candidates.len(), "node");
    let best = examples(preemption.best.iter().map(String::as_str));
    let head = format!("  evicting pods of lower priority makes room on {n}; best: {best}");
    let mut table = Table::new(&[Side::Left, Side::Right, Side::Right, Side::Left]);
    table.row(Look::Dim, ["NODE", "VICTIMS", "PDB VIOLATIONS", "FOR EXAMPLE"]);
    let mut shown: Vec<_> = preemption.candidates.iter().collect();
    shown.sort_by_key(|candidate| !is_best(&candidate.node));
    let n_max = if all { usize::MAX } else { N_EXAMPLES };
    for candidate in shown.iter().take(n_max) {
        let look = if is_best(&candidate.node) { Look::Good } else { Look::Plain };
        let victims = &candidate.victims;
        let names = match all {
            true => victims.join(", "),
            false => examples(victims.iter().map(String::as_str)),
        };
        let [n_victims, n_violations] =
            [victims.len(), candidate.n_pdb_violations].map(|n| n.to_string());
        table.row(look, [candidate.node.clone(), n_victims, n_violations, names]);
    }
    let mut lines = vec![Line::new(Look::Plain, head)];
    lines.extend(table.lines(2));
    if shown.len() > n_max {
        let more = counted(shown.len() - n_max, "more node");
        lines.push(Line::new(Look::Dim, format!("  and {more} (--all shows them)")));
    }
    lines
}

/// What evicting pods could do about it.
fn preemption_word(status: &Status) -> &'static str {
    match status.code {
        "Unschedulable" => "may help",
        "UnschedulableAndUnresolvable" | "PreFilterResult" => "cannot help",
        _ => "-",
    }
}

fn preemption(status: &Status) -> String {
    match preemption_word(status) {
        "-" => String::new(),
        word => format!("; preemption {word}"),
    }
}

fn examples<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let n = names.len();
    let shown: Vec<&str> = names.take(N_EXAMPLES).collect();
    match n.saturating_sub(N_EXAMPLES) {
        0 => shown.join(", "),
        more => format!("{} and {} more", shown.join(", "), grouped(more as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_plugins_in_words() {
        assert_eq!(words("NodeResourcesFit"), ["Node", "Resources", "Fit"]);
        assert_eq!(words("InterPodAffinity"), ["Inter", "Pod", "Affinity"]);
        assert_eq!(words("mine"), ["mine"]);
        assert_eq!(words("GPUShare"), ["GPUShare"]);
    }
}
