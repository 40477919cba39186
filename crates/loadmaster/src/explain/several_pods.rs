//! `loadmaster explain` of several pods: those without a node, grouped by the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use loadmaster_api::Pod;
use loadmaster_api::snapshot::Snapshot;
use loadmaster_engine::explain::{self, Explanation};
use loadmaster_engine::world_loader::{Cluster, SchedulingInput, SchedulingInputError};
use loadmaster_stdx::ErrorChain;
use loadmaster_stdx::SortCompactly as _;
use serde::Serialize;

use super::extent::Extent;
use super::plugin_inputs::PluginInputs;
use super::rejected_nodes::examples;
use super::{Args, Timings, extender_notes, now, print, table};
use crate::exit::{CommandResult, Exit, Failure, print_to_stderr};
use crate::input::ProfilesAndGates;
use crate::text::{self, Alignment, Line, Style, Table, counted, grouped};

/// What is known about a pod without a node.
#[derive(Serialize)]
#[serde(untagged)]
enum Outcome {
    Explained(Box<Explanation>),
    /// No profile schedules it, or a plugin keeps it out of the scheduling queue.
    NotScheduled {
        pod: String,
        message: String,
    },
}

impl Outcome {
    fn pod(&self) -> &str {
        match self {
            Outcome::Explained(explanation) => &explanation.pod,
            Outcome::NotScheduled { pod, .. } => pod,
        }
    }

    /// Why the pod has no node.
    fn reason(&self) -> &str {
        match self {
            Outcome::Explained(explanation) if !explanation.best.is_empty() => {
                "fits on some node, but is not scheduled yet"
            }
            Outcome::Explained(explanation) => &explanation.message,
            Outcome::NotScheduled { message, .. } => message,
        }
    }

    fn fits(&self) -> bool {
        matches!(self, Outcome::Explained(explanation) if !explanation.best.is_empty())
    }
}

/// All results, as they are printed in JSON and YAML.
#[derive(Serialize)]
struct Outcomes {
    items: Vec<Outcome>,
}

/// The notes that were printed: each only once.
#[derive(Default)]
struct Notes(BTreeSet<String>);

impl Notes {
    fn print(&mut self, notes: Vec<String>) {
        for note in notes {
            if !self.0.contains(&note) {
                print_to_stderr(&format!("note: {note}"));
                self.0.insert(note);
            }
        }
    }
}

pub(super) fn explain(
    args: &Args,
    setup: &ProfilesAndGates,
    snapshot: &Snapshot,
    inputs: &PluginInputs,
    pods: &[&Pod],
    timings: &mut Timings,
    out: &mut dyn Write,
) -> CommandResult<Exit> {
    let cluster = Cluster::load(snapshot, &setup.profiles, &setup.gates);
    let mut cluster = cluster.map_err(|error| Failure::invalid_input(ErrorChain(&error)))?;
    timings.lap("loading");
    let mut notes = Notes::default();
    let pending: Vec<&&Pod> = pods.iter().filter(|pod| pod.spec.node_name.is_empty()).collect();
    let mut outcomes = Outcomes { items: Vec::new() };
    // Most pods are equal to others of their controller.
    let mut known: Vec<(&Pod, usize)> = Vec::new();
    for pod in &pending {
        let equal = known.iter().find(|(known, _)| are_equal(known, pod)).map(|(_, at)| *at);
        let outcome = match equal.map(|at| &outcomes.items[at]) {
            Some(equal) => renamed(equal, pod),
            None => {
                known.push((pod, outcomes.items.len()));
                explain_one(&mut cluster, inputs, pod, &mut notes)?
            }
        };
        outcomes.items.push(outcome);
    }
    timings.lap("deciding");
    let groups = groups(&outcomes.items);
    for at in groups.values().map(|members| members[0]) {
        if let Outcome::Explained(explanation) = &mut outcomes.items[at] {
            let searched = cluster.with_pod(pending[at], |input| explanation.search_changes(input));
            searched.map_err(|error| Failure::invalid_input(ErrorChain(&error)))?;
        }
    }
    timings.lap("searching");
    let names: Vec<String> = pods.iter().map(|pod| pod.full_name()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let lines = || lines(args, &outcomes.items, &groups, pods.len());
    print(args, &names, &outcomes, lines, out)?;
    let all_fit = outcomes.items.iter().all(Outcome::fits);
    Ok(if all_fit { Exit::Done } else { Exit::Finding })
}

/// Whether two pods without a node have the same explanation: nothing that a plugin reads differs but their names.
fn are_equal(a: &Pod, b: &Pod) -> bool {
    let has_own_claims = |pod: &Pod| pod.spec.volumes.iter().any(|it| it.ephemeral.is_some());
    let controller = |pod: &Pod| pod.metadata.owner_references.clone();
    a.spec == b.spec
        && a.status == b.status
        && a.extra == b.extra
        && a.metadata.namespace == b.metadata.namespace
        && a.metadata.labels == b.metadata.labels
        && a.metadata.deletion_timestamp.is_some() == b.metadata.deletion_timestamp.is_some()
        && controller(a) == controller(b)
        && !has_own_claims(a)
}

fn renamed(outcome: &Outcome, pod: &Pod) -> Outcome {
    let name = pod.full_name();
    match outcome {
        Outcome::Explained(explanation) => {
            Outcome::Explained(Box::new(Explanation { pod: name, ..(**explanation).clone() }))
        }
        Outcome::NotScheduled { message, .. } => {
            Outcome::NotScheduled { pod: name, message: message.clone() }
        }
    }
}

fn explain_one(
    cluster: &mut Cluster<'_>,
    inputs: &PluginInputs,
    pod: &Pod,
    notes: &mut Notes,
) -> CommandResult<Outcome> {
    let name = pod.full_name();
    let explained = cluster.with_pod(pod, |input: &mut SchedulingInput<'_>| {
        notes.print(extender_notes(input.profile, &input.pod));
        notes.print(inputs.add_to_world(input.profile, &mut input.world, &input.pod));
        input.world.set_now(now());
        match input.pre_enqueue_rejection() {
            Some(message) => Outcome::NotScheduled { pod: name.clone(), message },
            None => Outcome::Explained(Box::new(explain::explain(input))),
        }
    });
    match explained {
        Ok(outcome) => Ok(outcome),
        Err(SchedulingInputError::ProfileNotFound { scheduler_name, .. }) => {
            let message = format!("no profile has its scheduler name, {scheduler_name}");
            Ok(Outcome::NotScheduled { pod: name, message })
        }
        Err(error) => Err(Failure::invalid_input(ErrorChain(&error))),
    }
}

/// The indexes of the pods with each reason.
fn groups(outcomes: &[Outcome]) -> BTreeMap<String, Vec<usize>> {
    let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, outcome) in outcomes.iter().enumerate() {
        groups.entry(outcome.reason().to_owned()).or_default().push(at);
    }
    groups
}

fn lines(
    args: &Args,
    outcomes: &[Outcome],
    groups: &BTreeMap<String, Vec<usize>>,
    n_pods: usize,
) -> Vec<Line> {
    let n_pending = grouped(outcomes.len() as u64);
    let head = match (n_pods, outcomes.len()) {
        (0, _) => "no pod is selected".to_owned(),
        (n, pending) if n == pending => format!("{} without a node", counted(n, "pod")),
        (n, _) => format!("{n_pending} of {} without a node", counted(n, "pod")),
    };
    let mut lines = vec![Line::new(Style::Bold, head)];
    if args.extent() == Extent::All {
        for outcome in outcomes {
            lines.push(Line::default());
            match outcome {
                Outcome::Explained(it) => lines.extend(table::lines(it, "", Extent::All)),
                Outcome::NotScheduled { pod, message } => {
                    lines.push(Line::new(Style::Bold, pod.as_str()));
                    lines.extend(text::wrapped(message, 2, 2));
                }
            }
        }
        return lines;
    }
    let mut sorted: Vec<(&String, &Vec<usize>)> = groups.iter().collect();
    sorted.sort_compactly_by(|a, b| b.1.len().cmp(&a.1.len()).then_with(|| a.0.cmp(b.0)));
    let mut table = Table::new(&[Alignment::Right, Alignment::Left]);
    table.row(Style::Dim, ["PODS", "REASON"]);
    let mut below: Vec<Vec<Line>> = vec![Vec::new()];
    for (reason, members) in sorted {
        // The reason is wrapped: its first line is a cell, the others follow.
        let mut wrapped = text::wrapped(reason, INDENT, INDENT).into_iter();
        let first = wrapped.next().map(|line| line.render(usize::MAX, false)).unwrap_or_default();
        table.row(Style::Plain, [grouped(members.len() as u64).as_str(), first.trim_start()]);
        let mut more: Vec<Line> = wrapped.collect();
        let names = examples(members.iter().map(|at| outcomes[*at].pod()));
        more.extend(text::wrapped(&format!("pods: {names}"), INDENT, INDENT + 2));
        if let Outcome::Explained(explanation) = &outcomes[members[0]]
            && let Some(found) = &explanation.counterfactual
        {
            more.extend(table::changes(found, Extent::First { has_flag: true }, INDENT));
        }
        below.push(more);
    }
    if !outcomes.is_empty() {
        lines.push(Line::default());
        let rows = table.lines(2).into_iter().zip(below);
        lines.extend(rows.flat_map(|(row, below)| [row].into_iter().chain(below)));
    }
    lines
}

/// Under the second column.
const INDENT: usize = 8;
