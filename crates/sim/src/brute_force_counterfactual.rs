//! Brute-force check of counterfactuals: every change and every pair of changes is made in the objects of a case, from which a new world
//! is built each time.
//!
//! What the search claims, and what is checked here for a pod that fits on no node:
//!
//! 1. After the changes of each proposal the pod fits.
//! 2. If single changes make the pod fit, the proposals are these changes. Else they are the pairs that make it fit. So nothing is
//!    proposed only if nothing helps.
//! 3. No proposal has a change that could be smaller: with a smaller first change no size of the second is enough, and with the first
//!    change as proposed no smaller second one is.
//!
//! That a lower request never makes a pod infeasible is used here as there, but checked at a few sizes. No code is shared with the
//! search: changes are edits of JSON, and no trial is involved.

mod edit;

use std::collections::BTreeMap;

use loadmaster_engine::counterfactual::{self, Change, Counterfactual};
use loadmaster_engine::evaluate::per_node;
use loadmaster_engine::world_loader::SchedulingInput;
use loadmaster_engine::{Evaluation, FilterResult};
use loadmaster_framework::Rejection;
use loadmaster_stdx::Rng;
use serde_json::json;

use crate::cases::local_oracle::LocalOracle;
use crate::cases::{CaseGenerator, CaseSubject, OracleCase};
use edit::{Edit, edited, edits};

/// Counts of what was checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterfactualStats {
    /// Cases in which the pod fits on no node.
    pub n_cases: usize,
    /// Cases with single changes, with pairs, and without proposals.
    pub n_single: usize,
    pub n_pairs: usize,
    pub n_nothing: usize,
    /// Cases that were left out because the search was cut.
    pub n_cut: usize,
    /// Changed cases from which a world was built.
    pub n_tried: usize,
    /// Number of changes in proposals, by kind.
    pub n_changes: BTreeMap<&'static str, usize>,
}

impl CounterfactualStats {
    /// Adds the counts of another case.
    pub fn add(&mut self, other: CounterfactualStats) {
        self.n_cases += other.n_cases;
        self.n_single += other.n_single;
        self.n_pairs += other.n_pairs;
        self.n_nothing += other.n_nothing;
        self.n_cut += other.n_cut;
        self.n_tried += other.n_tried;
        for (kind, n) in other.n_changes {
            *self.n_changes.entry(kind).or_default() += n;
        }
    }
}

/// A case of any kind with a pod, in which many assigned pods have controllers.
pub fn random_case(seed: u64, id: u64) -> OracleCase {
    let rng = &mut Rng::new(seed).split(&format!("owners {id}"));
    let subject = if rng.one_in(2) { CaseSubject::Preemption } else { CaseSubject::All };
    let mut case = CaseGenerator::new(seed, [""; 0]).about(subject).generate_case(id);
    let name = case.pod.clone();
    let pods = case.objects.iter_mut().filter(|it| it["kind"] == "Pod");
    for pod in pods.filter(|pod| edit::full_name(pod) != name) {
        if rng.one_in(3) {
            continue;
        }
        let kind = *rng.pick(&["ReplicaSet", "ReplicaSet", "StatefulSet", "Job", "DaemonSet"]);
        let owner = format!("owner-{}", rng.below(3));
        pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": kind, "name": owner,
            "uid": owner, "controller": true}]);
        if rng.one_in(2) {
            pod["metadata"]["creationTimestamp"] =
                json!(format!("2026-01-0{}T00:00:00Z", 1 + rng.below(3)));
        }
    }
    case
}

/// Compares the proposals for the pod of a case with brute force. `None` if the pod fits, or if there is no such pod or no node.
///
/// # Errors
///
/// The first difference.
pub fn check_by_brute_force(
    ours: &LocalOracle,
    case: &OracleCase,
) -> Result<Option<CounterfactualStats>, String> {
    let found = ours.with_scheduling_input(case, |input| {
        let before = evaluate(input);
        let is_unschedulable = before.failure.is_none() && !before.is_feasible();
        if !is_unschedulable || input.world.nodes().is_empty() {
            return None;
        }
        let edits = edits(input, case);
        let found = counterfactual::search(input);
        Some((edits, found, evaluate(input) == before))
    });
    let Ok(Some((edits, found, is_restored))) = found else { return Ok(None) };
    if !is_restored {
        return Err("the search changed the world".to_owned());
    }
    let mut stats = CounterfactualStats { n_cases: 1, ..CounterfactualStats::default() };
    if found.is_cut {
        stats.n_cut += 1;
        return Ok(Some(stats));
    }
    let mut check = Check { ours, case, n_tried: 0 };
    check.proposals(&edits, &found)?;
    stats.n_tried = check.n_tried;
    match found.proposals.first().map(|it| it.changes.len()) {
        None => stats.n_nothing += 1,
        Some(1) => stats.n_single += 1,
        Some(_) => stats.n_pairs += 1,
    }
    for change in found.proposals.iter().flat_map(|it| &it.changes) {
        *stats.n_changes.entry(kind(change)).or_default() += 1;
    }
    Ok(Some(stats))
}

fn kind(change: &Change) -> &'static str {
    match change {
        Change::LowerRequest { .. } => "request",
        Change::AddToleration { .. } => "toleration",
        Change::RemoveNodeSelector { .. } => "node selector",
        Change::RemoveNodeAffinityRequirement { .. } => "node affinity requirement",
        Change::RemoveNodeAffinity {} => "node affinity",
        Change::RemoveSpreadConstraint { .. } => "spread constraint",
        Change::RemovePodAffinityTerm { .. } => "affinity term",
        Change::RemovePodAntiAffinityTerm { .. } => "anti-affinity term",
        Change::ScaleDown { .. } => "scale down",
        Change::AddNode { .. } => "node",
    }
}

fn evaluate(input: &mut SchedulingInput<'_>) -> Evaluation {
    let mut states = input.plugin_states();
    per_node::evaluate_per_node(input.profile, &mut input.world, &mut states, &input.pod)
}

/// Whether the pod fits on some node, and no plugin fails in Filter.
fn fits(evaluation: &Evaluation) -> bool {
    let failed = evaluation.nodes.iter().any(|node| match &node.filter_result {
        FilterResult::Rejected(rejected) => matches!(rejected.rejection, Rejection::Failed(_)),
        _ => false,
    });
    evaluation.is_feasible() && !failed
}

/// The comparison for one case.
struct Check<'a> {
    ours: &'a LocalOracle,
    case: &'a OracleCase,
    n_tried: usize,
}

/// Changes with their sizes.
type Sized<'a> = [(&'a Edit, u64)];

impl Check<'_> {
    fn proposals(&mut self, edits: &[Edit], found: &Counterfactual) -> Result<(), String> {
        let mut proposed: BTreeMap<Vec<&str>, Vec<u64>> = BTreeMap::new();
        for proposal in &found.proposals {
            let named = proposal.changes.iter().map(|change| {
                let known = edits.iter().find_map(|edit| Some((edit, edit.size_of(change)?)));
                known.ok_or_else(|| format!("{change:?} is no change that may be made"))
            });
            let named = named.collect::<Result<Vec<_>, String>>()?;
            let (names, sizes) =
                named.into_iter().map(|(edit, size)| (edit.name.as_str(), size)).unzip();
            if proposed.insert(names, sizes).is_some() {
                return Err(format!("{proposal:?} is proposed twice"));
            }
        }
        let mut n_single = 0;
        for one in edits {
            let sizes = proposed.remove(&vec![one.name.as_str()]);
            n_single += usize::from(sizes.is_some());
            self.set(&[one], sizes.as_deref())?;
        }
        if n_single == 0 {
            for (at, one) in edits.iter().enumerate() {
                for other in &edits[at + 1..] {
                    let sizes = proposed.remove(&vec![one.name.as_str(), other.name.as_str()]);
                    self.set(&[one, other], sizes.as_deref())?;
                }
            }
        }
        match proposed.pop_first() {
            None => Ok(()),
            Some(more) => Err(format!("{more:?} is proposed, but fewer changes are enough")),
        }
    }

    /// Checks a set of one or two changes, and the sizes with which it is proposed.
    fn set(&mut self, set: &[&Edit], proposed: Option<&[u64]>) -> Result<(), String> {
        let Some(sizes) = proposed else {
            let largest: Vec<Vec<u64>> = set.iter().map(|edit| edit.sizes_to_try()).collect();
            return match self.any_fits(set, &largest) {
                Some(sizes) => Err(format!("{} makes the pod fit", shown(set, &sizes))),
                None => Ok(()),
            };
        };
        if !self.fits(set, sizes) {
            return Err(format!("{} is proposed, but the pod does not fit", shown(set, sizes)));
        }
        for at in 0..set.len() {
            // Changes before this one as proposed, changes after it of any size.
            let tried = set.iter().enumerate().map(|(other, edit)| match other.cmp(&at) {
                std::cmp::Ordering::Less => vec![sizes[other]],
                std::cmp::Ordering::Equal => edit.smaller_sizes(sizes[at]),
                std::cmp::Ordering::Greater => edit.sizes_to_try(),
            });
            let tried: Vec<Vec<u64>> = tried.collect();
            if let Some(smaller) = self.any_fits(set, &tried) {
                let [smaller, proposed] = [&*smaller, sizes].map(|sizes| shown(set, sizes));
                return Err(format!("{smaller} is enough, proposed {proposed}"));
            }
        }
        Ok(())
    }

    /// The first combination of these sizes that makes the pod fit.
    fn any_fits(&mut self, set: &[&Edit], sizes: &[Vec<u64>]) -> Option<Vec<u64>> {
        let [first, rest @ ..] = sizes else { return None };
        let none = [0];
        let second: &[u64] = rest.first().map_or(&none, |second| second);
        for one in first {
            for other in second {
                let sizes = &[*one, *other][..set.len()];
                if self.fits(set, sizes) {
                    return Some(sizes.to_vec());
                }
            }
        }
        None
    }

    fn fits(&mut self, set: &[&Edit], sizes: &[u64]) -> bool {
        self.n_tried += 1;
        let sized: Vec<(&Edit, u64)> = set.iter().copied().zip(sizes.iter().copied()).collect();
        let case = edited(self.case, &sized);
        // A pod that is not valid any more fits nowhere.
        self.ours.with_scheduling_input(&case, |input| fits(&evaluate(input))).unwrap_or(false)
    }
}

fn shown(set: &[&Edit], sizes: &[u64]) -> String {
    let each = set.iter().zip(sizes).map(|(edit, size)| format!("{} by {size}", edit.name));
    each.collect::<Vec<String>>().join(" and ")
}
