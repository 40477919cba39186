//! The naive twin of preemption: every set of pods that could leave a node is tried, on a world from which they are really gone.
//!
//! What the search claims, and what is checked here for each node that it may try:
//!
//! 1. The node is a candidate just when some pod on it has lower priority and the pod would fit if all of those were gone.
//! 2. The victims are what remains when the others come back one by one, as long as the pod fits: first those whose eviction
//!    violates a budget, the more important ones first. So no victim could have come back when its turn came.
//! 3. Where fewer pods never make it worse (there is no affinity to a victim, say), no other choice keeps more: of all sets
//!    of pods that could stay, the kept one is the first in the order of 2, position by position, and nothing can be added to it.
//! 4. The best candidates are those that five rules, one after the other, leave.
//!
//! Two things are left out, in which a dry run, here as in kube-scheduler, says something else than a world from which pods are
//! gone. PodTopologySpread's PreFilter does not count pods that are terminating, and its AddPod and RemovePod do. And
//! InterPodAffinity is not asked at all when no pod that is there matters to it, so that it misses the anti-affinity of a
//! nominated one; in a dry run it was asked before the others went.
//!
//! Nothing is shared with the search: no dry run, no overlay, no AddPod or RemovePod; PreFilter runs anew for every set.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::Selector;
use loadmaster_engine::evaluate::one_by_one;
use loadmaster_engine::{Evaluation, Verdict, explain};
use loadmaster_framework::{Code, PodInfo, Row};

use crate::load::Loaded;

/// More lower-priority pods than this on a node make too many sets.
const N_PODS_MAX: usize = 7;

/// What a case had to offer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub n_nodes: usize,
    pub n_candidates: usize,
    pub n_sets: usize,
    /// Nodes on which fewer pods made it worse.
    pub n_not_monotone: usize,
}

impl Seen {
    /// Adds what another case had.
    pub fn add(&mut self, other: Seen) {
        self.n_nodes += other.n_nodes;
        self.n_candidates += other.n_candidates;
        self.n_sets += other.n_sets;
        self.n_not_monotone += other.n_not_monotone;
    }
}

/// A pod that would have to go: name, priority, start.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Gone {
    name: String,
    priority: i32,
    started: Option<i64>,
}

type Victims = (Vec<Gone>, usize);

/// Holds what `explain` says about preemption against trying everything. `None` for a case that asks nothing, or too much.
///
/// # Errors
///
/// The first difference.
pub fn check(loaded: &mut Loaded<'_>) -> Result<Option<Seen>, String> {
    let shown =
        explain::explain(loaded.profile, &loaded.world, &loaded.profile.states, &loaded.pod)
            .preemption;
    let Some(shown) = shown else { return Ok(None) };
    if shown.message.starts_with("preemption: not eligible") {
        return Ok(None);
    }
    if is_left_out(loaded) {
        return Ok(None);
    }
    let evaluation = evaluate(loaded);
    let helpable: Vec<Row> = evaluation
        .codes(&loaded.world, &loaded.pod)
        .into_iter()
        .filter(|(_, code)| *code == Code::Unschedulable)
        .map(|(row, _)| row)
        .collect();
    let mut seen = Seen::default();
    let mut want: BTreeMap<String, Victims> = BTreeMap::new();
    for row in helpable {
        let Some(node) = loaded.world.node(row) else { continue };
        let name = node.name().to_owned();
        let lower = in_order(loaded, node.pods().cloned().collect());
        if lower.len() > N_PODS_MAX {
            return Ok(None);
        }
        seen.n_nodes += 1;
        if let Some(victims) = victims_on(loaded, row, &lower, &mut seen)? {
            want.insert(name, victims);
        }
    }
    seen.n_candidates = want.len();
    let found: BTreeMap<String, (Vec<String>, usize)> = shown
        .candidates
        .into_iter()
        .map(|candidate| (candidate.node, (candidate.victims, candidate.n_pdb_violations)))
        .collect();
    let names = |(gone, n): &Victims| (gone.iter().map(|gone| gone.name.clone()).collect(), *n);
    let wanted: BTreeMap<_, _> = want.iter().map(|(node, it)| (node.clone(), names(it))).collect();
    if found != wanted {
        return Err(format!("candidates {found:?}, trying everything {wanted:?}"));
    }
    let best = best(&want);
    match best == shown.best {
        true => Ok(Some(seen)),
        false => Err(format!("best {:?}, by the rules {best:?}", shown.best)),
    }
}

fn evaluate(loaded: &Loaded<'_>) -> Evaluation {
    one_by_one::evaluate(
        loaded.profile,
        &loaded.world,
        &mut loaded.profile.states.clone(),
        &loaded.pod,
    )
}

/// Whether a dry run may differ from a world in which the same pods are gone.
fn is_left_out(loaded: &Loaded<'_>) -> bool {
    let constraints = &loaded.pod.template.spec.topology_spread_constraints;
    let is_hard = constraints.iter().any(|known| known.when_unsatisfiable == "DoNotSchedule");
    let is_going = |pod: &Arc<PodInfo>| {
        pod.terminating && pod.template.priority() < loaded.pod.template.priority()
    };
    let counts_terminating =
        is_hard && loaded.world.node_infos().any(|node| node.pods().any(is_going));
    let apart = |pod: &Arc<PodInfo>| pod.template.has_required_anti_affinity();
    let mut nodes = loaded.world.nominated_nodes();
    counts_terminating || nodes.any(|node| loaded.world.nominated(node).iter().any(apart))
}

/// A pod of lower priority, and whether its eviction violates a budget.
type Lower = (Arc<PodInfo>, bool);

/// The pods of lower priority in the order in which they may come back.
fn in_order(loaded: &Loaded<'_>, pods: Vec<Arc<PodInfo>>) -> Vec<Lower> {
    let mut lower: Vec<Arc<PodInfo>> = pods
        .into_iter()
        .filter(|pod| pod.template.priority() < loaded.pod.template.priority())
        .collect();
    lower.sort_by_key(|pod| importance(pod.template.priority(), pod.started.map(|at| at.0)));
    let mut used: BTreeMap<(String, String), i32> = BTreeMap::new();
    let mut all = Vec::new();
    for pod in lower {
        let labels = &pod.template.labels;
        let mut violates = false;
        let budgets = loaded.world.cluster().disruption_budgets.get(&pod.template.namespace);
        for budget in budgets.into_iter().flatten() {
            let Some(selector) = &budget.spec.selector else { continue };
            let says_something =
                !selector.match_labels.is_empty() || !selector.match_expressions.is_empty();
            let matches = Selector::new(Some(selector)).is_ok_and(|it| it.matches(labels));
            let is_counted = budget.status.disrupted_pods.contains_key(&pod.name);
            if says_something && matches && !labels.is_empty() && !is_counted {
                let name =
                    (budget.metadata.namespace.to_string(), budget.metadata.name.to_string());
                let n = used.entry(name).or_default();
                *n += 1;
                violates |= *n > budget.status.disruptions_allowed;
            }
        }
        all.push((pod, violates));
    }
    all.sort_by_key(|(_, violates)| !violates);
    all
}

/// Smaller is more important.
fn importance(priority: i32, started: Option<i64>) -> (i64, i64) {
    (-i64::from(priority), started.unwrap_or(i64::MAX))
}

fn victims_on(
    loaded: &mut Loaded<'_>,
    row: Row,
    lower: &[Lower],
    seen: &mut Seen,
) -> Result<Option<Victims>, String> {
    // Bit `at` of a set says that the pod at that place stays.
    let n_sets = 1usize << lower.len();
    let fits: Vec<bool> = (0..n_sets).map(|stays| fits(loaded, row, lower, stays)).collect();
    seen.n_sets += n_sets;
    let is_monotone = (0..n_sets)
        .filter(|set| fits[*set])
        .all(|set| (0..lower.len()).all(|at| fits[set & !(1 << at)]));
    seen.n_not_monotone += usize::from(!is_monotone);
    if lower.is_empty() || !fits[0] {
        return Ok(None);
    }
    let mut kept = 0;
    for at in 0..lower.len() {
        if fits[kept | 1 << at] {
            kept |= 1 << at;
        }
    }
    if is_monotone {
        // The first place counts most.
        let rank = |set: &usize| set.reverse_bits();
        let first = (0..n_sets).filter(|set| fits[*set]).max_by_key(rank);
        if first != Some(kept) {
            return Err(format!("keeping {first:?} is better than {kept}"));
        }
        if (0..n_sets).any(|set| fits[set] && set != kept && set & kept == kept) {
            return Err(format!("more could stay than {kept}"));
        }
    }
    let gone = || lower.iter().enumerate().filter(|(at, _)| kept & 1 << at == 0).map(|(_, it)| it);
    let n_violations = gone().filter(|(_, violates)| *violates).count();
    let mut gone: Vec<Gone> = gone()
        .map(|(pod, _)| Gone {
            name: pod.full_name(),
            priority: pod.template.priority(),
            started: pod.started.map(|at| at.0),
        })
        .collect();
    gone.sort_by_key(|gone| importance(gone.priority, gone.started));
    Ok(Some((gone, n_violations)))
}

/// Whether the pod would fit if only these stayed.
fn fits(loaded: &mut Loaded<'_>, row: Row, lower: &[Lower], stays: usize) -> bool {
    let leaving = || lower.iter().enumerate().filter(|(at, _)| stays & 1 << at == 0);
    for (_, (pod, _)) in leaving() {
        loaded.world.remove_pod(&pod.uid);
    }
    let evaluation = evaluate(loaded);
    let nominated = loaded.world.nodes().row(&loaded.pod.nominated_node_name);
    let node = evaluation.nodes.iter().find(|node| node.row == row);
    let fits = match node.map(|node| &node.verdict) {
        Some(Verdict::Feasible) => true,
        // The nominated node is asked even if PreFilter leaves it out.
        Some(Verdict::Narrowed) => nominated == Some(row) && evaluation.nominated.is_none(),
        _ => false,
    };
    for (_, (pod, _)) in leaving() {
        loaded.world.add_pod(row, pod.clone());
    }
    fits
}

/// The nodes that the rules leave, one rule after the other.
fn best(all: &BTreeMap<String, Victims>) -> Vec<String> {
    let mut left: Vec<(&String, &Victims)> = all.iter().collect();
    let top = |victims: &Victims| victims.0.iter().map(|gone| gone.priority).max();
    let rules: [&dyn Fn(&Victims) -> i128; 5] = [
        &|victims| victims.1 as i128,
        &|victims| top(victims).map_or(0, i128::from),
        &|victims| victims.0.iter().map(|gone| i128::from(gone.priority) + (1 << 31)).sum(),
        &|victims| victims.0.len() as i128,
        &|victims| {
            let of_top = victims.0.iter().filter(|gone| Some(gone.priority) == top(victims));
            -of_top.map(|gone| i128::from(gone.started.unwrap_or(i64::MAX))).min().unwrap_or(0)
        },
    ];
    for rule in rules {
        let least = left.iter().map(|(_, victims)| rule(victims)).min();
        left.retain(|(_, victims)| Some(rule(victims)) == least);
    }
    left.into_iter().map(|(node, _)| node.clone()).collect()
}
