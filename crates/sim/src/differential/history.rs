//! The steps of a history: a random change of the world, then a decision, which is compared with the reference.

mod trials;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use loadmaster_api::{Pod, Str, Timestamp};
use loadmaster_engine::evaluate::{Evaluation, FilterResult, PluginRejection, per_node};
use loadmaster_engine::node_sampling::NodeSampling;
use loadmaster_engine::{Decision, Profile, Scheduler};
use loadmaster_framework::{NodeRow, PodInfo};
use loadmaster_stdx::Rng;
use serde_json::Value;

use super::cluster::Cluster;
use super::objects::{ObjectChange, change_random_object, random_node, set_namespace};
use super::pods::{NAMESPACES, PodSource, random_pod, resize};
use super::reference::{NodeResult, Reference, ReferenceEvaluation};
use super::{DecisionDifference, HistoryOptions, HistoryReport, ReferenceBug};

/// Moves of pods, each of which is two changes, that no change log of the world reaches back over.
const OVERFLOWING_MOVES: u32 = 33_000;

/// The reference world is built again once in so many steps.
const REBUILD_EVERY: u64 = 40;

pub(super) struct History {
    options: HistoryOptions,
    rng: Rng,
    profile: Arc<Profile>,
    scheduler: Scheduler,
    cluster: Cluster,
    source: PodSource,
    /// Where the reference starts its next search.
    start: usize,
    /// Uids of the pods of an earlier revision, which are deleted one by one after a rollout.
    outdated_pods: Vec<Box<str>>,
    /// Their owners, which are deleted after them.
    outdated_owners: Vec<Value>,
    n_nodes_made: u32,
    n_pods_made: u64,
    step: u32,
    report: HistoryReport,
}

/// What is compared with the scheduler's results for one pod.
struct Expected<'a> {
    pod: &'a Pod,
    info: Arc<PodInfo>,
    evaluation: ReferenceEvaluation,
}

type Compared = Result<(), Box<DecisionDifference>>;

impl History {
    pub fn new(profile: Arc<Profile>, options: HistoryOptions) -> History {
        let rng = Rng::new(options.seed);
        let mut history = History {
            options,
            scheduler: Scheduler::new(profile.clone(), rng.split("ties")),
            rng: rng.split("history"),
            profile,
            cluster: Cluster::new(options.reference_bug),
            source: PodSource::new(options.pods, options.n_templates),
            start: 0,
            outdated_pods: Vec::new(),
            outdated_owners: Vec::new(),
            n_nodes_made: 0,
            n_pods_made: 0,
            step: 0,
            report: HistoryReport::default(),
        };
        for name in NAMESPACES {
            set_namespace(&mut history.rng, &mut history.cluster, name);
        }
        for _ in 0..options.n_nodes {
            history.add_node();
        }
        history
    }

    pub fn run(mut self) -> Result<HistoryReport, Box<DecisionDifference>> {
        let overflow_at = self.options.overflows_change_log.then_some(self.options.steps / 2);
        for step in 0..self.options.steps {
            self.step = step;
            self.change_world();
            if overflow_at == Some(step) {
                self.overflow_change_log();
            } else if self.rng.one_in(REBUILD_EVERY) && self.options.reference_bug.is_none() {
                self.cluster.rebuild_reference();
            }
            if self.rng.one_in(10) {
                self.schedule_pods_in_a_trial()?;
            }
            self.schedule_pod()?;
        }
        Ok(self.report)
    }

    /// Changes the world in one way, or most often not at all.
    fn change_world(&mut self) {
        if self.rng.one_in(3) {
            self.remove_outdated_pod();
        }
        match self.rng.below(48) {
            0..=10 => self.remove_pod(),
            11 => self.mark_pod_terminating(),
            12 => self.add_node(),
            13 => self.remove_node(),
            14..=16 => self.change_node(),
            17 if self.rng.one_in(6) => {
                let name = *self.rng.pick(&NAMESPACES);
                set_namespace(&mut self.rng, &mut self.cluster, name);
            }
            18 | 19 if self.rng.one_in(2) => self.nominate_pod(),
            20 => self.clear_nominations(),
            21 if self.rng.one_in(2) => {
                change_random_object(&mut self.rng, &mut self.cluster);
                self.report.object_changes += 1;
            }
            22 => self.resize_pod(),
            23 => self.roll_out(),
            24 if self.rng.one_in(2) => self.change_owner(),
            _ => {}
        }
    }

    fn schedule_pod(&mut self) -> Compared {
        let Some(pod) = self.next_pod() else { return Ok(()) };
        let Ok(info) = self.cluster.world.parse_pod(&pod) else { return Ok(()) };
        let evaluation = self.evaluate_reference(&pod)?;
        let expected = Expected { pod: &pod, info: Arc::new(info), evaluation };
        self.count(&expected);
        let has_nominations = !self.cluster.nominated.is_empty();
        if self.profile.sampling == NodeSampling::All && (has_nominations || self.rng.one_in(3)) {
            self.compare_per_node_evaluation(&expected)?;
        }
        let start = self.scheduler.next_start_node_index();
        // Either of the two prepares cached evaluations for the other.
        let totals_first = self.rng.one_in(2);
        if totals_first {
            self.compare_totals(&expected, start)?;
        }
        self.scheduler.set_next_start_node_index(start);
        let decision = self.scheduler.schedule_pod(&mut self.cluster.world, &expected.info);
        let selected_among = match self.cluster.world.nominates_any_pod() {
            false => self.scheduler.best_rows(&self.cluster.world, &expected.info),
            true => None,
        };
        let next_start = self.scheduler.next_start_node_index();
        if !totals_first {
            self.compare_totals(&expected, start)?;
        }
        self.scheduler.set_next_start_node_index(next_start);
        self.compare_decision(&expected, &decision, selected_among.as_deref())?;
        if self.profile.sampling != NodeSampling::All {
            let wanted = expected.evaluation.next_start;
            self.compare(&expected, "next start index", &next_start, &wanted)?;
        }
        match decision {
            Decision::Selected { row, .. } => self.bind(pod, row),
            _ => self.report.unschedulable += 1,
        }
        Ok(())
    }

    fn evaluate_reference(
        &mut self,
        pod: &Pod,
    ) -> Result<ReferenceEvaluation, Box<DecisionDifference>> {
        let bug = self.options.reference_bug;
        let mut nominated = self.cluster.nominated.clone();
        match bug {
            Some(ReferenceBug::IgnoresNominations) => nominated.clear(),
            Some(ReferenceBug::IgnoresPriority) => {
                for (_, pod) in &mut nominated {
                    pod.spec.change(|spec| spec.priority = Some(i32::MAX));
                }
            }
            _ => {}
        }
        let order = self.cluster.zones.search_order();
        let restarts = bug == Some(ReferenceBug::RestartsSearch);
        let mut reference = Reference {
            profile: &self.profile,
            world: &mut self.cluster.reference,
            nominated: &nominated,
            order: &order,
            start: if restarts { 0 } else { self.start },
        };
        let evaluation = reference.evaluate(pod).map_err(|failure| {
            self.difference(pod, "the reference failed", &failure, &"no failure")
        })?;
        self.start = evaluation.next_start;
        Ok(evaluation)
    }

    fn count(&mut self, expected: &Expected<'_>) {
        let report = &mut self.report;
        report.decisions += 1;
        report.of_nominated_pods += u64::from(!expected.info.nominated_node_name.is_empty());
        report.with_nominated_pods += u64::from(!self.cluster.nominated.is_empty());
        let n_filtered = expected.evaluation.results.len();
        report.sampled += u64::from(n_filtered > 0 && n_filtered < self.cluster.node_names.len());
        report.compared_nodes += n_filtered as u64;
    }

    /// Compares the engine's own per-node evaluation, from which pods are diagnosed and explained: results, reasons and totals.
    fn compare_per_node_evaluation(&mut self, expected: &Expected<'_>) -> Compared {
        let found = per_node::evaluate_per_node(
            &self.profile,
            &mut self.cluster.world,
            &mut self.profile.states.clone(),
            &expected.info,
        );
        let is_rejected = found.pre_filter_rejection.is_some();
        let wanted = &expected.evaluation;
        self.compare(expected, "rejected by PreFilter", &is_rejected, &wanted.is_rejected)?;
        let results = self.results_by_name(&found);
        self.compare(expected, "per-node results", &results, &wanted.results)?;
        let totals = per_node::feasible_total_scores(&found);
        self.compare_total_scores(expected, "per-node totals", &totals)
    }

    /// Compares the feasible nodes and their totals, found in the way that the scheduler chooses.
    fn compare_totals(&mut self, expected: &Expected<'_>, start: usize) -> Compared {
        let (wanted, info) = (&expected.evaluation, &expected.info);
        let is_plain = self.profile.sampling == NodeSampling::All
            && self.cluster.nominated.is_empty()
            && info.resized.is_none();
        if is_plain {
            let totals = self.scheduler.feasible_total_scores(&mut self.cluster.world, info);
            self.compare_total_scores(expected, "totals", &totals)?;
        }
        self.scheduler.set_next_start_node_index(start);
        let world = &mut self.cluster.world;
        let nominated_row = self.scheduler.evaluate_nominated_node(world, info);
        let totals = match self.scheduler.find_feasible_nodes(world, info) {
            Ok(nodes) => self.scheduler.score_nodes(world, info, &nodes.rows),
            Err(decision) => Err(decision),
        };
        let totals = match totals {
            Ok(totals) => totals,
            Err(Decision::Unschedulable) => Vec::new(),
            Err(decision) => {
                return Err(self.difference(expected.pod, "totals", &decision, &wanted.totals));
            }
        };
        let nominated_node = nominated_row.map(|row| self.cluster.node_name(row));
        self.compare(expected, "nominated node", &nominated_node, &wanted.nominated_node)?;
        self.compare_total_scores(expected, "feasible nodes with totals", &totals)?;
        if self.profile.sampling == NodeSampling::All || wanted.nominated_node.is_some() {
            return Ok(());
        }
        let next_start = self.scheduler.next_start_node_index();
        self.compare(expected, "next start index of the search", &next_start, &wanted.next_start)
    }

    /// A single feasible node is selected without scoring, so that it may have any total.
    fn compare_total_scores(
        &self,
        expected: &Expected<'_>,
        what: &'static str,
        found: &[(NodeRow, i64)],
    ) -> Compared {
        let wanted = &expected.evaluation.totals;
        let found: BTreeMap<Str, i64> =
            found.iter().map(|(row, total)| (self.cluster.node_name(*row), *total)).collect();
        if wanted.len() == 1 {
            return self.compare(
                expected,
                what,
                &found.keys().collect::<Vec<_>>(),
                &wanted.keys().collect(),
            );
        }
        self.compare(expected, what, &found, wanted)
    }

    /// `selected_among` are the nodes among which a score index selected one.
    fn compare_decision(
        &mut self,
        expected: &Expected<'_>,
        decision: &Decision,
        selected_among: Option<&[NodeRow]>,
    ) -> Compared {
        let wanted = &expected.evaluation;
        let (highest, best) = wanted.best();
        let is_right = match (decision, &wanted.nominated_node) {
            (Decision::Selected { row, n_ties, .. }, Some(node)) => {
                self.cluster.node_name(*row) == *node && *n_ties == Some(1)
            }
            (Decision::Selected { row, n_ties, total }, None) => {
                // A single feasible node is selected whatever its score.
                let has_total = *total == highest || wanted.totals.len() == 1;
                let name = self.cluster.node_name(*row);
                let has_all = selected_among.is_none_or(|rows| {
                    let names = rows.iter().map(|row| self.cluster.node_name(*row));
                    names.collect::<BTreeSet<_>>() == best.iter().copied().cloned().collect()
                });
                let has_ties = n_ties.is_none_or(|n| n == best.len() as u64);
                best.contains(&&name) && has_ties && has_all && has_total
            }
            (Decision::Unschedulable, node) => node.is_none() && best.is_empty(),
            (Decision::Failed(_), _) => false,
        };
        match is_right {
            true => Ok(()),
            false => {
                let wanted = (&wanted.nominated_node, highest, best);
                let found = match decision {
                    Decision::Selected { row, .. } => self.cluster.node_name(*row),
                    _ => Str::default(),
                };
                Err(self.difference(expected.pod, "decision", &(decision, found), &wanted))
            }
        }
    }

    fn bind(&mut self, mut pod: Pod, row: NodeRow) {
        pod.spec.node_name = self.cluster.node_name(row);
        pod.status.nominated_node_name = Str::default();
        self.cluster.assign_pod(pod);
        self.report.placed += 1;
        self.report.trace = self.report.trace.rotate_left(5) ^ u64::from(row.0 + 1);
    }

    fn results_by_name(&self, evaluation: &Evaluation) -> BTreeMap<Str, NodeResult> {
        let nodes = evaluation.nodes.iter().map(|node| {
            let result = match &node.filter_result {
                FilterResult::Feasible => NodeResult::Feasible,
                FilterResult::Excluded => NodeResult::Excluded,
                FilterResult::Rejected(PluginRejection { plugin, rejection }) => {
                    NodeResult::Rejected(plugin.unwrap_or_default(), rejection.clone())
                }
            };
            (self.cluster.node_name(node.row), result)
        });
        nodes.collect()
    }

    fn compare<T: Debug + PartialEq>(
        &self,
        expected: &Expected<'_>,
        what: &'static str,
        found: &T,
        wanted: &T,
    ) -> Compared {
        if found == wanted {
            Ok(())
        } else {
            Err(self.difference(expected.pod, what, found, wanted))
        }
    }

    fn difference(
        &self,
        pod: &Pod,
        what: &'static str,
        found: &dyn Debug,
        expected: &dyn Debug,
    ) -> Box<DecisionDifference> {
        Box::new(DecisionDifference {
            seed: self.options.seed,
            pods: self.options.pods,
            step: self.step,
            pod: pod.full_name(),
            what,
            found: format!("{found:?}"),
            expected: format!("{expected:?}"),
            object: format!("{pod:#?}"),
        })
    }

    /// A new pod, or a pending pod that is nominated.
    fn next_pod(&mut self) -> Option<Pod> {
        if !self.cluster.nominated.is_empty() && self.rng.one_in(5) {
            return Some(self.rng.pick(&self.cluster.nominated).1.clone());
        }
        self.new_pod()
    }

    fn new_pod(&mut self) -> Option<Pod> {
        self.n_pods_made += 1;
        let (mut pod, controller) = self.source.next(&mut self.rng, self.n_pods_made)?;
        if let Some(controller) = controller
            && !self.rng.one_in(4)
        {
            let owner = controller.owner();
            self.cluster.change_object(ObjectChange::Upsert, &owner);
            self.report.object_changes += 1;
        }
        if self.rng.one_in(40) {
            resize(&mut self.rng, &mut pod);
            self.report.resizes += 1;
        }
        Some(pod)
    }

    fn any_assigned(&mut self) -> Option<usize> {
        let n = self.cluster.assigned.len() as u64;
        (n > 0).then(|| self.rng.below(n) as usize)
    }

    fn remove_pod(&mut self) {
        if let Some(at) = self.any_assigned() {
            self.cluster.remove_pod(at);
        }
    }

    fn mark_pod_terminating(&mut self) {
        if let Some(at) = self.any_assigned() {
            self.cluster.update_pod(at, |pod| pod.metadata.deletion_timestamp = Some(Timestamp(1)));
        }
    }

    fn resize_pod(&mut self) {
        let Some(at) = self.any_assigned() else { return };
        self.report.resizes += 1;
        let rng = &mut self.rng;
        if self.options.reference_bug == Some(ReferenceBug::IgnoresResizes) {
            return self.cluster.update_pod_of_scheduler(at, |pod| resize(rng, pod));
        }
        self.cluster.update_pod(at, |pod| resize(rng, pod));
    }

    fn nominate_pod(&mut self) {
        if self.cluster.node_names.is_empty() {
            return;
        }
        let node = self.rng.pick(&self.cluster.node_names).clone();
        if let Some(pod) = self.new_pod() {
            self.cluster.nominate(node, pod);
        }
    }

    /// Clears one nomination, or all of them.
    fn clear_nominations(&mut self) {
        let uids = self.cluster.nominated.iter().map(|(_, pod)| pod.metadata.uid.clone());
        let uids: Vec<Box<str>> = uids.collect();
        let all = self.rng.one_in(2);
        let n = if all { uids.len() } else { 1 };
        uids.into_iter().take(n).for_each(|uid| self.cluster.clear_nomination(&uid));
    }

    fn add_node(&mut self) {
        let name = format!("node-{}", self.n_nodes_made);
        self.n_nodes_made += 1;
        self.set_node(&name);
    }

    fn remove_node(&mut self) {
        if self.cluster.node_names.len() > 1 {
            let name = self.rng.pick(&self.cluster.node_names).clone();
            self.cluster.remove_node(&name);
        }
    }

    fn change_node(&mut self) {
        if !self.cluster.node_names.is_empty() {
            let name = self.rng.pick(&self.cluster.node_names).clone();
            self.set_node(&name);
        }
    }

    fn set_node(&mut self, name: &str) {
        if let Some(node) = random_node(&mut self.rng, name, self.options.n_racks) {
            self.cluster.set_node(node);
        }
    }

    /// A controller gets another template: its pods are deleted in the following steps.
    fn roll_out(&mut self) {
        let rng = &mut self.rng;
        let Some(controller) = self.source.controller_mut(rng) else { return };
        let (old, owner_uid) = (controller.owner(), controller.owner_uid());
        let mut template = controller.template().clone();
        if rng.one_in(2) {
            template["spec"] = random_pod(rng)["spec"].clone();
        }
        controller.roll_out(rng, template);
        let new = controller.owner();
        let is_its =
            |pod: &&Pod| pod.metadata.owner_references.iter().any(|owner| *owner.uid == *owner_uid);
        let pods = self.cluster.assigned.iter().filter(is_its);
        self.outdated_pods.extend(pods.map(|pod| pod.metadata.uid.clone()));
        if old["metadata"]["name"] != new["metadata"]["name"] {
            self.outdated_owners.push(old);
        }
        self.cluster.change_object(ObjectChange::Upsert, &new);
        self.report.rollouts += 1;
    }

    fn remove_outdated_pod(&mut self) {
        if let Some(uid) = self.outdated_pods.pop() {
            let at = self.cluster.assigned.iter().position(|pod| pod.metadata.uid == uid);
            if let Some(at) = at {
                self.cluster.remove_pod(at);
            }
        } else if let Some(owner) = self.outdated_owners.pop() {
            self.cluster.change_object(ObjectChange::Delete, &owner);
        }
    }

    /// The object that owns the pods of a controller is deleted, or added again.
    fn change_owner(&mut self) {
        let Some(controller) = self.source.controller_mut(&mut self.rng) else { return };
        let owner = controller.owner();
        let change = if self.rng.one_in(2) { ObjectChange::Upsert } else { ObjectChange::Delete };
        self.cluster.change_object(change, &owner);
        self.report.object_changes += 1;
    }

    /// Moves pods until the change log does not reach back to the last decision.
    fn overflow_change_log(&mut self) {
        if self.cluster.assigned.is_empty() || self.cluster.node_names.is_empty() {
            return;
        }
        let before = self.cluster.world.next_change_seq();
        for _ in 0..OVERFLOWING_MOVES {
            let node = self.rng.pick(&self.cluster.node_names).clone();
            if let Some(at) = self.any_assigned() {
                self.cluster.move_pod(at, &node);
            }
        }
        self.report.log_overflows += u64::from(self.cluster.world.changes_since(before).is_none());
        if self.options.reference_bug != Some(ReferenceBug::MissesLogOverflow) {
            self.cluster.rebuild_reference();
        }
    }
}
