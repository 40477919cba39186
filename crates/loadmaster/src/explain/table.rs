//! The text output of an explanation: the result, the best nodes with their scores, and rejected nodes grouped by reason.

use loadmaster_engine::counterfactual::{Change, Counterfactual, Proposal};
use loadmaster_engine::engine::scheduling_state::{LastAttempt, PodSchedulingState, PodState};
use loadmaster_engine::explain::{
    DetailsByName, DetailsByPlugin, Explanation, NodeExplanation, PreemptionExplanation, Status,
};
use loadmaster_stdx::SortCompactly as _;

use super::extent::Extent;
use super::rejected_nodes::{self, N_EXAMPLES, examples, some_of};
use super::running_scheduler;
use crate::text::{self, Alignment, Line, Style, Table, counted, grouped};

/// Maximum number of feasible nodes without --all.
const N_FEASIBLE: usize = 10;
/// Maximum number of proposals without --all.
const N_PROPOSALS: usize = 5;

/// The lines of the output. `runs_on` is the node to which the pod is assigned, or empty.
pub(super) fn lines(explanation: &Explanation, runs_on: &str, extent: Extent) -> Vec<Line> {
    let mut feasible: Vec<&NodeExplanation> =
        explanation.nodes.iter().filter(|node| node.total.is_some()).collect();
    feasible.sort_compactly_by(|a, b| b.total.cmp(&a.total).then_with(|| a.name.cmp(&b.name)));
    let rejected: Vec<&NodeExplanation> =
        explanation.nodes.iter().filter(|node| node.total.is_none()).collect();
    let mut lines = headline(explanation, feasible.len(), runs_on);
    if !feasible.is_empty() {
        lines.push(Line::default());
        lines.extend(scores(explanation, &feasible, extent));
    }
    if !rejected.is_empty() && explanation.pre_filter.is_none() {
        lines.push(Line::default());
        let preemption = explanation.preemption.as_ref();
        lines.extend(match extent {
            Extent::All => rejected_nodes::each(&rejected, preemption),
            _ => rejected_nodes::groups(&rejected, preemption, extent),
        });
    }
    if let Some(preemption) = &explanation.preemption {
        lines.push(Line::default());
        lines.extend(evictions(preemption, extent));
    }
    if let Some(found) = &explanation.counterfactual {
        lines.push(Line::default());
        lines.extend(changes(found, extent, 2));
    }
    lines
}

/// What would make the pod fit.
pub(super) fn changes(found: &Counterfactual, extent: Extent, indent: usize) -> Vec<Line> {
    let Counterfactual { proposals, is_cut } = found;
    let head = match proposals.first().map(|it| it.changes.len()) {
        None => "no one or two changes were found that would make it fit",
        Some(1) => "would fit after one of these changes:",
        Some(_) => "would fit after two changes together, one of these pairs:",
    };
    let mut lines = text::wrapped(head, indent, indent);
    let n_max = extent.n_max(N_PROPOSALS);
    for Proposal { changes, node } in proposals.iter().take(n_max) {
        let is_new = changes.iter().any(|change| matches!(change, Change::AddNode { .. }));
        let changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
        let mut text = format!("- {}", changes.join(", and "));
        if !is_new {
            text.push_str(&format!(" (fits on {node})"));
        }
        lines.extend(text::wrapped(&text, indent, indent + 2));
    }
    if proposals.len() > n_max {
        let more = format!("{} more", grouped((proposals.len() - n_max) as u64));
        let text = format!("{:indent$}{}", "", extent.and_more(&more, "them"));
        lines.push(Line::new(Style::Dim, text));
    }
    if *is_cut {
        let text = "not everything was tried, because there are too many possibilities";
        lines.push(Line::new(Style::Dim, format!("{:indent$}{text}", "")));
    }
    lines
}

fn headline(explanation: &Explanation, n_feasible: usize, runs_on: &str) -> Vec<Line> {
    let n_nodes = explanation.nodes.len();
    let line = Line::new(Style::Bold, explanation.pod.as_str());
    let nodes = counted(n_nodes, "node");
    let headline = if n_feasible > 0 {
        line.with_text(Style::Good, format!(" fits {} of {nodes}", grouped(n_feasible as u64)))
            .with_text(
                Style::Plain,
                format!("; best: {}", examples(explanation.best.iter().map(String::as_str))),
            )
    } else if n_nodes == 0 {
        line.with_text(Style::Bad, " fits no node: there are no nodes")
    } else {
        line.with_text(Style::Bad, format!(" fits none of {nodes}"))
    };
    let mut lines = vec![headline];
    if !explanation.message.is_empty() {
        lines.extend(text::wrapped(&explanation.message, 2, 2));
    }
    if let Some(status) = &explanation.pre_filter {
        let plugin = status.plugin.as_ref().map(|it| format!(" by {it}")).unwrap_or_default();
        let word = rejected_nodes::preemption_of_all(status, explanation.preemption.as_ref());
        let text = format!("rejected{plugin} before any node was evaluated{word}");
        lines.extend(text::wrapped(&text, 2, 2));
    }
    let mut about = format!("  profile {}", explanation.profile);
    if !runs_on.is_empty() {
        about = format!("{about}; assigned to {runs_on}, explained as if it were pending");
    }
    lines.push(Line::new(Style::Dim, about));
    for (plugin, details) in &explanation.details {
        lines.extend(text::wrapped(&format!("{plugin}: {}", named(details)), 2, 4));
    }
    lines
}

/// `Gang: members=3, waiting=1; Quota: used=4`.
pub(super) fn details(by_plugin: &DetailsByPlugin) -> String {
    let plugins = by_plugin.iter().map(|(plugin, details)| format!("{plugin}: {}", named(details)));
    plugins.collect::<Vec<_>>().join("; ")
}

pub(super) fn named(details: &DetailsByName) -> String {
    let each = details.iter().map(|(name, value)| format!("{name}={value}"));
    each.collect::<Vec<_>>().join(", ")
}

/// One row per feasible node, one column per plugin with a score other than 0.
fn scores(explanation: &Explanation, feasible: &[&NodeExplanation], extent: Extent) -> Vec<Line> {
    let n_max = extent.n_max(N_FEASIBLE);
    let gives_points = |at: &usize| feasible.iter().any(|node| score(node, *at) != 0);
    let all = 0..feasible[0].scores.len();
    let (columns, silent): (Vec<usize>, Vec<usize>) = all.partition(gives_points);
    let name = |at: &usize| &*feasible[0].scores[*at].0;
    let has_details = feasible.iter().take(n_max).any(|node| !node.details.is_empty());
    let sides = [Alignment::Left, Alignment::Right]
        .into_iter()
        .chain(columns.iter().map(|_| Alignment::Right))
        .chain(has_details.then_some(Alignment::Left));
    let mut table = Table::new(&sides.collect::<Vec<_>>());
    let heads: Vec<Vec<String>> = columns.iter().map(|at| words(name(at))).collect();
    let height = heads.iter().map(Vec::len).max().unwrap_or(0).max(1);
    for at in 0..height {
        let is_last = at + 1 == height;
        let first = if is_last { ["NODE", "TOTAL"] } else { ["", ""] };
        // The words of a plugin's name are written below each other, the last one at the bottom.
        let word = |head: &Vec<String>| {
            (at + head.len()).checked_sub(height).map_or("", |at| &head[at]).to_owned()
        };
        let last = has_details.then(|| if is_last { "DETAILS" } else { "" }.to_owned());
        let first = first.into_iter().map(str::to_owned);
        table.row(Style::Dim, first.chain(heads.iter().map(word)).chain(last));
    }
    for node in feasible.iter().take(n_max) {
        let look = if explanation.best.contains(&node.name) { Style::Good } else { Style::Plain };
        let total = node.total.unwrap_or_default().to_string();
        let scores = columns.iter().map(|at| score(node, *at).to_string());
        let last = has_details.then(|| details(&node.details));
        table.row(look, [node.name.clone(), total].into_iter().chain(scores).chain(last));
    }
    let mut lines = table.lines(2);
    if feasible.len() > n_max {
        let more = counted(feasible.len() - n_max, "more node");
        lines.push(Line::new(Style::Dim, format!("  {}", extent.and_more(&more, "them"))));
    }
    if !silent.is_empty() {
        let names: Vec<&str> = silent.iter().map(name).collect();
        lines.push(Line::new(Style::Dim, format!("  score 0 for all nodes: {}", names.join(", "))));
    }
    lines
}

/// A remote explanation may have fewer plugins on one node than on the next.
fn score(node: &NodeExplanation, at: usize) -> i64 {
    node.scores.get(at).map_or(0, |(_, score)| *score)
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

/// The state of a pod, and why its last attempt failed.
pub(super) fn progress(progress: &PodSchedulingState) -> Vec<Line> {
    let head = Line::new(Style::Bold, progress.pod.as_str());
    let mut state = format!(" {}", running_scheduler::state(progress));
    if let Some(since) = &progress.since {
        state.push_str(&format!(" since {since}"));
    }
    let mut lines = vec![head.with_text(Style::Plain, state)];
    let mut push = |text: String| lines.push(Line::new(Style::Plain, format!("  {text}")));
    if let Some(until) = &progress.backoff_until {
        push(format!("in backoff until {until}"));
    }
    if let Some(Status { plugin, reasons, .. }) = &progress.gated {
        let plugin = plugin.as_deref().unwrap_or("a plugin");
        push(format!("gated by {plugin}: {}", reasons.join(", ")));
    }
    for wait in &progress.waits_for {
        let until = match progress.state {
            PodState::Permit | PodState::Binding | PodState::InFlight => "its result".to_owned(),
            _ if wait.events.is_empty() => "any event".to_owned(),
            _ => wait.events.join(", "),
        };
        push(format!("waits for {}: {until}", wait.plugin));
    }
    let profile = &progress.profile;
    let attempts = match progress.state {
        PodState::Assigned => "its attempts are not stored any more".to_owned(),
        _ => format!("{} so far", counted(progress.attempts as usize, "attempt")),
    };
    let failed = if progress.last.is_none() { ", none of which failed" } else { "" };
    let failed = if progress.attempts == 0 { "" } else { failed };
    lines.push(Line::new(Style::Dim, format!("  {attempts}{failed}; profile {profile}")));
    lines.extend(progress.last.iter().flat_map(last_attempt));
    lines
}

fn last_attempt(last: &LastAttempt) -> Vec<Line> {
    let head = format!("attempt {} ended at {}: ", last.attempt, last.time);
    let result = Line::new(Style::Plain, head).with_text(Style::Bad, last.result.as_ref());
    let mut lines = vec![Line::default(), result];
    lines.extend(text::wrapped(&last.message, 2, 2));
    if !last.rejected_nodes.is_empty() {
        lines.push(Line::default());
        lines.extend(rejected_nodes::of_last_attempt(last));
    }
    if last.n_other_nodes > 0 {
        let more = counted(last.n_other_nodes, "node");
        lines.push(Line::new(Style::Dim, format!("  and {more} with other reasons")));
    }
    if !last.nominated_node.is_empty() {
        let node = &last.nominated_node;
        let text = match last.n_victims {
            0 => format!("  nominated to {node}"),
            n => {
                format!("  nominated to {node}; victims: {}", some_of(&last.victims, n))
            }
        };
        lines.extend([Line::default(), Line::new(Style::Plain, text)]);
    }
    lines
}

/// The best preemption candidates, or all of them.
fn evictions(preemption: &PreemptionExplanation, extent: Extent) -> Vec<Line> {
    if preemption.candidates.is_empty() {
        return text::wrapped(&preemption.message, 2, 2);
    }
    let is_best = |node: &String| preemption.best.contains(node);
    let n = counted(preemption.candidates.len(), "node");
    let best = examples(preemption.best.iter().map(String::as_str));
    let head = format!("  preemption is possible on {n}; best: {best}");
    let mut table =
        Table::new(&[Alignment::Left, Alignment::Right, Alignment::Right, Alignment::Left]);
    table.row(Style::Dim, ["NODE", "VICTIMS", "PDB VIOLATIONS", "FOR EXAMPLE"]);
    let mut shown: Vec<_> = preemption.candidates.iter().collect();
    shown.sort_compactly_by_key(|candidate| !is_best(&candidate.node));
    let n_max = extent.n_max(N_EXAMPLES);
    for candidate in shown.iter().take(n_max) {
        let look = if is_best(&candidate.node) { Style::Good } else { Style::Plain };
        let victims = &candidate.victims;
        let names = match extent {
            Extent::All => victims.join(", "),
            _ => examples(victims.iter().map(String::as_str)),
        };
        let [n_victims, n_violations] =
            [victims.len(), candidate.n_pdb_violations].map(|n| n.to_string());
        table.row(look, [candidate.node.clone(), n_victims, n_violations, names]);
    }
    let mut lines = vec![Line::new(Style::Plain, head)];
    lines.extend(table.lines(2));
    if shown.len() > n_max {
        let more = counted(shown.len() - n_max, "more node");
        lines.push(Line::new(Style::Dim, format!("  {}", extent.and_more(&more, "them"))));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_of_plugins_are_shown() {
        let explanation: Explanation = serde_json::from_value(serde_json::json!({
            "pod": "shop/web", "profile": "default-scheduler", "best": ["a"], "message": "",
            "details": {"Gang": {"members": 3, "complete": true}, "Quota": {"used": "4"}},
            "nodes": [
                {"name": "a", "filter": {"code": "Success"}, "scores": {"Fit": 7}, "total": 7,
                 "details": {"Devices": {"free": ["d1", "d2"]}}},
                {"name": "b", "filter": {"code": "Unschedulable", "plugin": "Devices", "reasons": ["none"]},
                 "scores": {}, "details": {"Devices": {"free": []}}},
            ],
        }))
        .unwrap();
        let text = |extent: Extent| {
            let lines = lines(&explanation, "", extent).into_iter();
            lines.map(|line| line.render(200, false)).collect::<Vec<_>>().join("\n")
        };
        assert!(
            text(Extent::First { has_flag: false })
                .contains("  Gang: complete=true, members=3\n  Quota: used=4\n")
        );
        for want in ["DETAILS", "Devices: free=[d1 d2]", "Devices: free=[]"] {
            assert!(text(Extent::All).contains(want), "{want} in {}", text(Extent::All));
        }
        let short = text(Extent::First { has_flag: false });
        assert!(short.ends_with("none\n         b: free=[]"), "{short}");
    }

    #[test]
    fn long_lists_are_cut_and_the_flag_is_named_where_there_is_one() {
        let node = |nth: usize| {
            serde_json::json!({"name": format!("n{nth}"), "filter": {"code": "Success"}, "scores": {"Fit": 7},
                "total": 7})
        };
        let nodes: Vec<_> = (0..12).map(node).collect();
        let explanation: Explanation = serde_json::from_value(serde_json::json!({
            "pod": "shop/web", "profile": "default-scheduler", "best": ["n0"], "message": "", "nodes": nodes,
        }))
        .unwrap();
        for (extent, want) in [
            (Extent::All, None),
            (Extent::First { has_flag: true }, Some("  and 2 more nodes (--all shows them)")),
            (Extent::First { has_flag: false }, Some("  and 2 more nodes")),
        ] {
            let lines = lines(&explanation, "", extent);
            let lines = lines.into_iter().map(|line| line.render(200, false));
            let more: Vec<String> = lines.filter(|line| line.contains("more")).collect();
            assert_eq!(more.first().map(String::as_str), want, "{extent:?}");
        }
    }

    #[test]
    fn plugin_names_are_split_into_words() {
        assert_eq!(words("NodeResourcesFit"), ["Node", "Resources", "Fit"]);
        assert_eq!(words("InterPodAffinity"), ["Inter", "Pod", "Affinity"]);
        assert_eq!(words("mine"), ["mine"]);
        assert_eq!(words("GPUShare"), ["GPUShare"]);
    }
}
