//! The reference: what upstream's `schedulePod` does, step by step, for every node, with nothing shared or cached.
//!
//! It calls the plugins of the profile itself. Where upstream tells plugins that pods are added to a node (`AddPod`, for nominated
//! pods), the reference really adds them to its world, runs PreFilter and Filter again, and removes them.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::{Pod, Str};
use loadmaster_engine::Profile;
use loadmaster_engine::node_sampling::NodeSampling;
use loadmaster_framework::extension_points::{NodeScore, SerialCx};
use loadmaster_framework::{
    Cx, CycleState, Failure, NodeInfo, NodeRow, PluginStates, PodInfo, PreFilterResult,
    PreScoreResult, Rejection, World,
};
use loadmaster_stdx::Set;

/// A node's filter result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodeResult {
    Feasible,
    /// It is not in the PreFilter result.
    Excluded,
    /// The first plugin that rejects it.
    Rejected(&'static str, Rejection),
}

/// The decision about a pod.
#[derive(Debug, Default)]
pub(super) struct ReferenceEvaluation {
    /// PreFilter rejected the pod.
    pub is_rejected: bool,
    /// By node name; only the nodes that were filtered.
    pub results: BTreeMap<Str, NodeResult>,
    /// The feasible nodes that were found, with their totals.
    pub totals: BTreeMap<Str, i64>,
    /// The pod's nominated node, if the pod fits there: it is selected without a search.
    pub nominated_node: Option<Str>,
    /// Index at which the next search starts (upstream's `nextStartNodeIndex`).
    pub next_start: usize,
}

impl ReferenceEvaluation {
    /// The highest total, and the nodes that have it.
    pub fn best(&self) -> (i64, Vec<&Str>) {
        let highest = self.totals.values().copied().max().unwrap_or_default();
        let best = self.totals.iter().filter(|(_, total)| **total == highest);
        (highest, best.map(|(name, _)| name).collect())
    }
}

/// Decides about a pod. A plugin that fails ends it.
pub(super) struct Reference<'a> {
    pub profile: &'a Profile,
    /// Without nominations.
    pub world: &'a mut World,
    /// Nominated pods, by node name.
    pub nominated: &'a [(Str, Pod)],
    /// All nodes in search order.
    pub order: &'a [Str],
    /// Where the search starts.
    pub start: usize,
}

/// The results of PreFilter.
struct PreFiltered {
    cycle: CycleState,
    states: PluginStates,
    skipped: Vec<usize>,
    /// The nodes that are left; `None` for all.
    nodes: Option<Set<Str>>,
}

impl Reference<'_> {
    pub fn evaluate(&mut self, pod: &Pod) -> Result<ReferenceEvaluation, Failure> {
        let mut evaluation =
            ReferenceEvaluation { next_start: self.start, ..ReferenceEvaluation::default() };
        let Ok(info) = self.world.parse_pod(pod) else { return Ok(evaluation) };
        let Ok(mut before) = self.pre_filter(&info)? else {
            evaluation.is_rejected = true;
            return Ok(evaluation);
        };
        let mut n_statuses = 0;
        let nominated_node = info.nominated_node_name.clone();
        if !nominated_node.is_empty() && self.world.nodes().row(&nominated_node).is_some() {
            match self.filter_node(&info, &before, &nominated_node)? {
                NodeResult::Feasible => evaluation.nominated_node = Some(nominated_node.clone()),
                // Its status counts as a visited node, whether the search visits it or not.
                _ => n_statuses = 1,
            }
        }
        let visited = self.search(&info, &before, &mut evaluation)?;
        if visited.contains(&nominated_node) {
            n_statuses = 0;
        }
        let n_nodes = self.order.len().max(1);
        if evaluation.nominated_node.is_none() {
            evaluation.next_start = (self.start + visited.len() + n_statuses) % n_nodes;
        }
        self.score(&info, &mut before, &mut evaluation)?;
        Ok(evaluation)
    }

    fn pre_filter(&self, pod: &PodInfo) -> Result<Result<PreFiltered, Rejection>, Failure> {
        let mut done = PreFiltered {
            cycle: CycleState::default(),
            states: self.profile.states.clone(),
            skipped: Vec::new(),
            nodes: None,
        };
        let mut rejected = None;
        for member in &self.profile.pre_filter {
            let cx =
                SerialCx { world: self.world, cycle: &mut done.cycle, states: &mut done.states };
            match member.point.pre_filter(cx, pod) {
                Ok(PreFilterResult::All) => {}
                Ok(PreFilterResult::Skip) => done.skipped.push(member.plugin),
                Ok(PreFilterResult::Nodes(names)) => {
                    let names: Set<Str> = names.into_iter().collect();
                    let is_left =
                        |name: &Str| done.nodes.as_ref().is_none_or(|left| left.contains(name));
                    let left = self.order.iter().filter(|name| names.contains(*name));
                    done.nodes = Some(left.filter(|name| is_left(name)).cloned().collect());
                }
                Err(Rejection::Failed(failure)) => return Err(failure),
                Err(rejection) => drop(rejected.get_or_insert(rejection)),
            }
        }
        if done.nodes.as_ref().is_some_and(Set::is_empty) {
            rejected.get_or_insert(Rejection::unresolvable("no node is left"));
        }
        Ok(rejected.map_or(Ok(done), Err))
    }

    /// Filters nodes from the start index until one more feasible node than needed is found; returns the visited nodes.
    fn search(
        &mut self,
        pod: &PodInfo,
        before: &PreFiltered,
        evaluation: &mut ReferenceEvaluation,
    ) -> Result<Vec<Str>, Failure> {
        let is_left = |name: &&Str| before.nodes.as_ref().is_none_or(|left| left.contains(*name));
        let left: Vec<Str> = self.order.iter().filter(is_left).cloned().collect();
        for name in self.order.iter().filter(|name| !is_left(name)) {
            evaluation.results.insert(name.clone(), NodeResult::Excluded);
        }
        let n_wanted = self.num_feasible_nodes_to_find(left.len());
        let mut visited = Vec::new();
        for nth in 0..left.len() {
            let name = &left[(self.start + nth) % left.len()];
            let result = self.filter_node(pod, before, name)?;
            if result == NodeResult::Feasible {
                if evaluation.totals.len() == n_wanted {
                    break;
                }
                evaluation.totals.insert(name.clone(), 0);
            }
            evaluation.results.insert(name.clone(), result);
            visited.push(name.clone());
        }
        Ok(visited)
    }

    /// Upstream's `numFeasibleNodesToFind`, without its adaptive percentage.
    fn num_feasible_nodes_to_find(&self, n_nodes: usize) -> usize {
        match self.profile.sampling {
            NodeSampling::Percentage(percentage) if n_nodes >= 100 => {
                (n_nodes * percentage / 100).max(100)
            }
            _ => n_nodes,
        }
    }

    /// Filters a node with the pods of equal or higher priority that are nominated to it, if there are any, and then without them
    /// (upstream's `RunFilterPluginsWithNominatedPods`).
    fn filter_node(
        &mut self,
        pod: &PodInfo,
        before: &PreFiltered,
        name: &Str,
    ) -> Result<NodeResult, Failure> {
        let Some(row) = self.world.nodes().row(name) else { return Ok(NodeResult::Excluded) };
        let nominated = self.nominated.iter().filter(|(node, other)| {
            let priority = other.spec.priority.unwrap_or(0);
            node == name && priority >= pod.template.priority() && other.metadata.uid != pod.uid
        });
        let nominated: Vec<Pod> = nominated.map(|(_, other)| other.clone()).collect();
        if !nominated.is_empty() {
            for other in &nominated {
                if let Ok(info) = self.world.parse_pod(other) {
                    self.world.add_pod(row, Arc::new(PodInfo { node_name: name.clone(), ..info }));
                }
            }
            let result = self.filter_with_added_pods(pod, before, row);
            for other in &nominated {
                self.world.remove_pod(&other.metadata.uid);
            }
            let result = result?;
            if result != NodeResult::Feasible {
                return Ok(result);
            }
        }
        self.filter_row(pod, before, row)
    }

    /// Runs PreFilter and Filter while pods are added to the row. As upstream, plugins that returned Skip before the pods were added
    /// are not called.
    fn filter_with_added_pods(
        &self,
        pod: &PodInfo,
        before: &PreFiltered,
        row: NodeRow,
    ) -> Result<NodeResult, Failure> {
        let Ok(mut added) = self.pre_filter(pod)? else { return Ok(NodeResult::Excluded) };
        added.skipped.clone_from(&before.skipped);
        self.filter_row(pod, &added, row)
    }

    fn filter_row(
        &self,
        pod: &PodInfo,
        before: &PreFiltered,
        row: NodeRow,
    ) -> Result<NodeResult, Failure> {
        let Some(node) = self.world.node(row) else { return Ok(NodeResult::Excluded) };
        let cx = Cx { world: self.world, cycle: &before.cycle, states: &before.states };
        for member in &self.profile.filter {
            if before.skipped.contains(&member.plugin) {
                continue;
            }
            match member.point.filter(cx, pod, node) {
                Ok(()) => {}
                Err(Rejection::Failed(failure)) => return Err(failure),
                Err(rejection) => return Ok(NodeResult::Rejected(member.name, rejection)),
            }
        }
        Ok(NodeResult::Feasible)
    }

    /// Scores the feasible nodes, without nominated pods (upstream's `prioritizeNodes`).
    fn score(
        &self,
        pod: &PodInfo,
        before: &mut PreFiltered,
        evaluation: &mut ReferenceEvaluation,
    ) -> Result<(), Failure> {
        let world: &World = self.world;
        let rows = evaluation.totals.keys().filter_map(|name| world.nodes().row(name));
        let nodes: Vec<NodeInfo<'_>> = rows.filter_map(|row| world.node(row)).collect();
        if nodes.is_empty() {
            return Ok(());
        }
        let mut skipped = Vec::new();
        for member in &self.profile.pre_score {
            let PreFiltered { cycle, states, .. } = before;
            let cx = SerialCx { world, cycle, states };
            if member.point.pre_score(cx, pod, &nodes)? == PreScoreResult::Skip {
                skipped.push(member.plugin);
            }
        }
        let cx = Cx { world, cycle: &before.cycle, states: &before.states };
        for member in self.profile.score.iter().filter(|it| !skipped.contains(&it.plugin)) {
            let mut scores = Vec::new();
            for node in &nodes {
                let score = member.point.score(cx, pod, *node)?;
                scores.push(NodeScore { row: node.row(), score });
            }
            member.point.normalize(cx, pod, &mut scores)?;
            for (total, node) in evaluation.totals.values_mut().zip(scores) {
                *total += node.score * member.weight;
            }
        }
        Ok(())
    }
}
