//! Brute-force check of preemption: every set of potential victims of a node is tried, in a world from which they are really removed.
//!
//! What the dry run of preemption claims, and what is checked here for each node where preemption might help:
//!
//! 1. The node is a candidate exactly if it has a pod of lower priority and the preemptor would fit if all of those were removed.
//! 2. The victims are what is left when the potential victims are reprieved in order, as long as the preemptor fits: first those
//!    whose eviction violates a PodDisruptionBudget, the more important ones first. So no victim can be reprieved in its turn.
//! 3. If removing pods never makes the node infeasible (no affinity to a victim, for example), no other choice reprieves more: of all
//!    sets of pods that could stay, the chosen one is the first in the order of 2, and no pod can be added to it.
//! 4. The best candidates are those that remain after five rules, applied one after the other.
//!
//! Two cases are left out, in which a dry run, here as in kube-scheduler, differs from a world without the victims.
//! PodTopologySpread's PreFilter does not count terminating pods, but its AddPod and RemovePod do. And
//! InterPodAffinity's PreFilter returns Skip when no existing pod matters to it, so that it misses the anti-affinity of a
//! nominated pod; in a dry run its PreFilter ran before the victims were removed.
//!
//! No code is shared with the dry run: no undo log, no AddPod or RemovePod; PreFilter runs again for every set.

pub mod cross_node;

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::Selector;
use loadmaster_engine::evaluate::per_node;
use loadmaster_engine::{Evaluation, FilterResult, explain};
use loadmaster_framework::{Code, NodeRow, PodInfo, World};

use loadmaster_engine::world_loader::SchedulingInput;

/// With more lower-priority pods than this on a node there are too many sets.
const N_PODS_MAX: usize = 7;

/// Counts of what was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BruteForceStats {
    pub n_nodes: usize,
    pub n_candidates: usize,
    pub n_sets: usize,
    /// Nodes on which removing a pod made the preemptor infeasible.
    pub n_not_monotone: usize,
}

impl BruteForceStats {
    /// Adds the counts of another case.
    pub fn add(&mut self, other: BruteForceStats) {
        self.n_nodes += other.n_nodes;
        self.n_candidates += other.n_candidates;
        self.n_sets += other.n_sets;
        self.n_not_monotone += other.n_not_monotone;
    }
}

/// A victim.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Victim {
    name: String,
    priority: i32,
    started: Option<i64>,
}

type Victims = (Vec<Victim>, usize);

/// Compares the preemption preview of `explain` with brute force. `None` for a case without preemption, or one that is too large.
///
/// # Errors
///
/// The first difference.
pub fn check_preemption_by_brute_force(
    input: &mut SchedulingInput<'_>,
) -> Result<Option<BruteForceStats>, String> {
    let nodes = format!("{:?}", input.world.nodes());
    let states = input.plugin_states();
    let shown =
        explain::explain_pod(input.profile, &mut input.world, &states, &input.pod).preemption;
    if nodes != format!("{:?}", input.world.nodes()) {
        return Err("the dry runs changed the world".to_owned());
    }
    let Some(shown) = shown else { return Ok(None) };
    if shown.message.starts_with("preemption: not eligible") {
        return Ok(None);
    }
    if is_excluded(input) {
        return Ok(None);
    }
    let evaluation = evaluate(input);
    let helpable: Vec<NodeRow> = evaluation
        .node_codes(&input.world, &input.pod)
        .into_iter()
        .filter(|(_, code)| *code == Code::Unschedulable)
        .map(|(row, _)| row)
        .collect();
    let mut stats = BruteForceStats::default();
    let mut want: BTreeMap<String, Victims> = BTreeMap::new();
    for row in helpable {
        let Some(node) = input.world.node(row) else { continue };
        let name = node.name().to_owned();
        let lower = reprieve_order(input, node.pods().cloned().collect());
        if lower.len() > N_PODS_MAX {
            return Ok(None);
        }
        stats.n_nodes += 1;
        if let Some(victims) = select_victims_on_node(input, row, &lower, &mut stats)? {
            want.insert(name, victims);
        }
    }
    stats.n_candidates = want.len();
    let found: BTreeMap<String, (Vec<String>, usize)> = shown
        .candidates
        .into_iter()
        .map(|candidate| (candidate.node, (candidate.victims, candidate.n_pdb_violations)))
        .collect();
    let names =
        |(victims, n): &Victims| (victims.iter().map(|victim| victim.name.clone()).collect(), *n);
    let wanted: BTreeMap<_, _> = want.iter().map(|(node, it)| (node.clone(), names(it))).collect();
    if found != wanted {
        return Err(format!("candidates {found:?}, brute force {wanted:?}"));
    }
    let best = pick_best_candidates(&want);
    match best == shown.best {
        true => Ok(Some(stats)),
        false => Err(format!("best {:?}, by the rules {best:?}", shown.best)),
    }
}

fn evaluate(input: &mut SchedulingInput<'_>) -> Evaluation {
    let mut states = input.plugin_states();
    per_node::evaluate_per_node(input.profile, &mut input.world, &mut states, &input.pod)
}

/// Whether a dry run may differ from a world without the victims (see the module documentation).
fn is_excluded(input: &SchedulingInput<'_>) -> bool {
    if has_claim_of_several_pods(input) {
        return true;
    }
    let constraints = &input.pod.template.spec.topology_spread_constraints;
    let is_hard = constraints.iter().any(|known| known.when_unsatisfiable == "DoNotSchedule");
    let is_going = |pod: &Arc<PodInfo>| {
        pod.terminating && pod.template.priority() < input.pod.template.priority()
    };
    let counts_terminating =
        is_hard && input.world.node_infos().any(|node| node.pods().any(is_going));
    let apart = |pod: &Arc<PodInfo>| pod.template.has_required_anti_affinity();
    let mut nodes = input.world.nominated_nodes();
    counts_terminating
        || nodes.any(|node| input.world.nominated_pods_for_node(node).iter().any(apart))
}

/// Whether several assigned pods name a claim of the pod, in any namespace. Dry runs count the users of a ReadWriteOncePod claim as
/// upstream does: the claim counts as used once, and every pod that is removed and names a claim like it frees it.
fn has_claim_of_several_pods(input: &SchedulingInput<'_>) -> bool {
    let claims = |pod: &PodInfo| -> Vec<String> {
        let volumes = pod.template.spec.volumes.iter();
        let claims = volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref());
        claims.map(|claim| claim.claim_name.to_string()).collect()
    };
    let own = claims(&input.pod);
    let assigned = input.world.node_infos().flat_map(|node| node.pods());
    let mut used: Vec<String> = assigned.flat_map(|pod| claims(pod)).collect();
    used.retain(|name| own.contains(name));
    let n_used = used.len();
    used.sort_unstable();
    used.dedup();
    used.len() < n_used
}

/// A pod of lower priority, and whether its eviction violates a budget.
type PotentialVictim = (Arc<PodInfo>, bool);

/// The pods of lower priority, in the order in which they are reprieved.
fn reprieve_order(input: &SchedulingInput<'_>, pods: Vec<Arc<PodInfo>>) -> Vec<PotentialVictim> {
    let mut lower: Vec<Arc<PodInfo>> = pods
        .into_iter()
        .filter(|pod| pod.template.priority() < input.pod.template.priority())
        .collect();
    lower.sort_by_key(|pod| importance(pod.template.priority(), pod.started.get().map(|at| at.0)));
    let violates = budget_violations(&input.world, &lower);
    let mut all: Vec<PotentialVictim> = lower.into_iter().zip(violates).collect();
    all.sort_by_key(|(_, violates)| !violates);
    all
}

/// For each pod, whether its eviction violates a budget if the pods are evicted in this order.
fn budget_violations(world: &World, pods: &[Arc<PodInfo>]) -> Vec<bool> {
    let mut used: BTreeMap<(String, String), i32> = BTreeMap::new();
    let mut all = Vec::new();
    for pod in pods {
        let labels = &pod.template.labels;
        let mut violates = false;
        let budgets = world.cluster_objects().disruption_budgets.get(&pod.template.namespace);
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
        all.push(violates);
    }
    all
}

/// Smaller is more important.
fn importance(priority: i32, started: Option<i64>) -> (i64, i64) {
    (-i64::from(priority), started.unwrap_or(i64::MAX))
}

fn select_victims_on_node(
    input: &mut SchedulingInput<'_>,
    row: NodeRow,
    lower: &[PotentialVictim],
    stats: &mut BruteForceStats,
) -> Result<Option<Victims>, String> {
    // Bit `at` of a set is 1 if the pod at that index stays.
    let n_sets = 1usize << lower.len();
    let fits: Vec<bool> = (0..n_sets).map(|stays| fits(input, row, lower, stays)).collect();
    stats.n_sets += n_sets;
    let is_monotone = (0..n_sets)
        .filter(|set| fits[*set])
        .all(|set| (0..lower.len()).all(|at| fits[set & !(1 << at)]));
    stats.n_not_monotone += usize::from(!is_monotone);
    if lower.is_empty() || !fits[0] {
        return Ok(None);
    }
    let mut reprieved = 0;
    for at in 0..lower.len() {
        if fits[reprieved | 1 << at] {
            reprieved |= 1 << at;
        }
    }
    if is_monotone {
        // The first pod counts most.
        let rank = |set: &usize| set.reverse_bits();
        let first = (0..n_sets).filter(|set| fits[*set]).max_by_key(rank);
        if first != Some(reprieved) {
            return Err(format!("reprieving {first:?} is better than {reprieved}"));
        }
        if (0..n_sets).any(|set| fits[set] && set != reprieved && set & reprieved == reprieved) {
            return Err(format!("more pods than {reprieved} could be reprieved"));
        }
    }
    let victims =
        || lower.iter().enumerate().filter(|(at, _)| reprieved & 1 << at == 0).map(|(_, it)| it);
    let n_violations = victims().filter(|(_, violates)| *violates).count();
    let mut victims: Vec<Victim> = victims()
        .map(|(pod, _)| Victim {
            name: pod.full_name(),
            priority: pod.template.priority(),
            started: pod.started.get().map(|at| at.0),
        })
        .collect();
    victims.sort_by_key(|victim| importance(victim.priority, victim.started));
    Ok(Some((victims, n_violations)))
}

/// Whether the preemptor would fit if only these pods stayed.
fn fits(
    input: &mut SchedulingInput<'_>,
    row: NodeRow,
    lower: &[PotentialVictim],
    stays: usize,
) -> bool {
    let leaving = || lower.iter().enumerate().filter(|(at, _)| stays & 1 << at == 0);
    for (_, (pod, _)) in leaving() {
        input.world.remove_pod(&pod.uid);
    }
    let evaluation = evaluate(input);
    let nominated = input.world.nodes().row(&input.pod.nominated_node_name);
    let node = evaluation.nodes.iter().find(|node| node.row == row);
    let fits = match node.map(|node| &node.filter_result) {
        Some(FilterResult::Feasible) => true,
        // The nominated node is evaluated even if PreFilter excludes it.
        Some(FilterResult::Excluded) => {
            nominated == Some(row) && evaluation.nominated_node_rejection.is_none()
        }
        _ => false,
    };
    for (_, (pod, _)) in leaving() {
        input.world.add_pod(row, pod.clone());
    }
    fits
}

/// The nodes that remain after the rules of pickOneNodeForPreemption, applied one after the other.
fn pick_best_candidates(all: &BTreeMap<String, Victims>) -> Vec<String> {
    let mut left: Vec<(&String, &Victims)> = all.iter().collect();
    let top = |victims: &Victims| victims.0.iter().map(|victim| victim.priority).max();
    let rules: [&dyn Fn(&Victims) -> i128; 5] = [
        &|victims| victims.1 as i128,
        &|victims| top(victims).map_or(0, i128::from),
        &|victims| victims.0.iter().map(|victim| i128::from(victim.priority) + (1 << 31)).sum(),
        &|victims| victims.0.len() as i128,
        &|victims| {
            let of_top = victims.0.iter().filter(|victim| Some(victim.priority) == top(victims));
            -of_top.map(|victim| i128::from(victim.started.unwrap_or(i64::MAX))).min().unwrap_or(0)
        },
    ];
    for rule in rules {
        let least = left.iter().map(|(_, victims)| rule(victims)).min();
        left.retain(|(_, victims)| Some(rule(victims)) == least);
    }
    left.into_iter().map(|(node, _)| node.clone()).collect()
}
