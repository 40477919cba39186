//! Brute-force check of CrossNodePreemption: every set of pods of lower priority, on all nodes, is tried in a world from which they are really
//! removed.
//!
//! A node where preemption might help is a candidate exactly if the preemptor fits there without some set. Its victims are such a set, and
//! none costs less, by the five rules of pickOneNodeForPreemption applied to sets. The best candidates are those of the least cost.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_engine::{FilterResult, explain};
use loadmaster_framework::{Code, NodeRow, PodInfo, World};
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use super::{budget_violations, evaluate, importance};
use crate::cases::{OracleCase, OracleCaseKind};
use crate::cluster_made_pods;
use loadmaster_engine::world_loader::SchedulingInput;

/// With more pods of lower priority than this there are too many sets.
const N_PODS_MAX: u64 = 7;

/// Counts of what was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrossNodeStats {
    /// Cases in which the pod fits on no node.
    pub n_cases: usize,
    /// Nodes where preemption might help.
    pub n_nodes: usize,
    pub n_candidates: usize,
    /// Candidates with victims on several nodes.
    pub n_on_several_nodes: usize,
    /// Candidates without a victim on the candidate's own node.
    pub n_elsewhere: usize,
    /// Candidates with a victim whose eviction violates a budget.
    pub n_violating: usize,
    pub n_sets: usize,
    /// Nodes that are feasible without some pods, and infeasible without these and another one.
    pub n_not_monotone: usize,
}

impl CrossNodeStats {
    /// Adds the counts of another case.
    pub fn add(&mut self, other: CrossNodeStats) {
        self.n_cases += other.n_cases;
        self.n_nodes += other.n_nodes;
        self.n_candidates += other.n_candidates;
        self.n_on_several_nodes += other.n_on_several_nodes;
        self.n_elsewhere += other.n_elsewhere;
        self.n_violating += other.n_violating;
        self.n_sets += other.n_sets;
        self.n_not_monotone += other.n_not_monotone;
    }
}

/// A case in a small cluster, with only CrossNodePreemption and the Filter plugins that matter to it.
pub fn random_case(seed: u64, id: u64) -> OracleCase {
    let rng = &mut Rng::new(seed).split(&format!("case {id}"));
    let n_nodes = 2 + rng.below(3);
    let mut objects: Vec<Value> = (0..n_nodes).map(|at| random_node(rng, at)).collect();
    let has_constraints = !rng.one_in(3);
    for at in 0..=rng.below(N_PODS_MAX) {
        let priority = rng.range(0, 2);
        // PreFilter of PodTopologySpread does not count terminating pods, but its RemovePod does.
        let is_terminating = !has_constraints && rng.one_in(12);
        let name = format!("low-{at}");
        objects.push(existing_pod(rng, &name, n_nodes, priority, is_terminating));
    }
    for at in 0..rng.below(2) {
        objects.push(existing_pod(rng, &format!("high-{at}"), n_nodes, 9, false));
    }
    let n_budgets = rng.below(5).saturating_sub(2) as usize;
    for app in &["web", "db"][..n_budgets] {
        objects.push(json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": app, "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": app}}},
            "status": {"disruptionsAllowed": rng.below(3)},
        }));
    }
    if rng.one_in(8) {
        let mut nominated = random_pod(rng, "nominated", 9);
        nominated["status"] = json!({"nominatedNodeName": "n0"});
        objects.push(nominated);
    }
    objects.push(random_preemptor(rng, has_constraints));
    OracleCase {
        id,
        pod: "default/preemptor".to_owned(),
        config: Some(configuration()),
        feature_gates: BTreeMap::new(),
        objects,
        kind: OracleCaseKind::Preemption,
    }
}

fn configuration() -> Value {
    let enabled = [
        "PrioritySort",
        "NodeResourcesFit",
        "InterPodAffinity",
        "PodTopologySpread",
        "DefaultBinder",
        "CrossNodePreemption",
    ];
    let enabled: Vec<Value> = enabled.iter().map(|name| json!({"name": name})).collect();
    let none = json!({"disabled": [{"name": "*"}]});
    let multi_point = json!({"disabled": [{"name": "*"}], "enabled": enabled});
    json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"plugins": {"multiPoint": multi_point, "preScore": none, "score": none}}],
    })
}

fn random_node(rng: &mut Rng, at: u64) -> Value {
    let name = format!("n{at}");
    let mut labels = json!({"host": name});
    if !rng.one_in(12) {
        labels["zone"] = json!(rng.pick(&["a", "b"]));
    }
    let taints = match rng.one_in(8) {
        true => json!([{"key": "dedicated", "effect": "NoSchedule"}]),
        false => json!([]),
    };
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints},
        "status": {"allocatable": {"cpu": rng.pick(&["2", "3", "4"]), "memory": "8Gi", "pods": "10"}},
    })
}

/// As admission leaves it, with an owner.
fn random_pod(rng: &mut Rng, name: &str, priority: i64) -> Value {
    let app = *rng.pick(&["web", "web", "db"]);
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "default", "uid": name, "labels": {"app": app},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": app, "controller": true}],
        },
        "spec": {
            "priority": priority,
            "containers": [{"name": "main", "resources": {"requests": {"cpu": rng.pick(&["0", "500m", "1", "2"])}}}],
        },
    });
    cluster_made_pods::admit(&mut pod, rng);
    pod
}

fn existing_pod(
    rng: &mut Rng,
    name: &str,
    n_nodes: u64,
    priority: i64,
    terminating: bool,
) -> Value {
    let mut pod = random_pod(rng, name, priority);
    pod["spec"]["nodeName"] = format!("n{}", rng.below(n_nodes)).into();
    if !rng.one_in(4) {
        let minute = rng.range(10, 14);
        pod["status"] = json!({"startTime": format!("2026-01-01T10:{minute}:00Z")});
    }
    if rng.one_in(4) {
        let term = affinity_term(rng);
        pod["spec"]["affinity"] = json!({"podAntiAffinity": {REQUIRED: [term]}});
    }
    if terminating {
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T11:00:00Z".into();
    }
    pod
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

fn affinity_term(rng: &mut Rng) -> Value {
    let (app, key) = (rng.pick(&["web", "web", "db"]), rng.pick(&["zone", "zone", "host"]));
    json!({"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key})
}

fn random_preemptor(rng: &mut Rng, has_constraints: bool) -> Value {
    let mut pod = random_pod(rng, "preemptor", 5);
    let spec = &mut pod["spec"];
    let mut affinity = json!({});
    if !rng.one_in(3) {
        let terms: Vec<Value> = (0..=rng.below(2)).map(|_| affinity_term(rng)).collect();
        affinity["podAntiAffinity"] = json!({REQUIRED: terms});
    }
    if rng.one_in(4) {
        affinity["podAffinity"] = json!({REQUIRED: [affinity_term(rng)]});
    }
    if has_constraints {
        let constraint = |rng: &mut Rng| {
            let term = affinity_term(rng);
            let mut constraint = json!({
                "topologyKey": term["topologyKey"], "labelSelector": term["labelSelector"],
                "maxSkew": rng.range(1, 2), "whenUnsatisfiable": "DoNotSchedule",
            });
            if rng.one_in(6) {
                constraint["minDomains"] = rng.range(1, 3).into();
            }
            if rng.one_in(6) {
                constraint["nodeTaintsPolicy"] = "Honor".into();
            }
            constraint
        };
        let constraints: Vec<Value> = (0..=rng.below(2)).map(|_| constraint(rng)).collect();
        spec["topologySpreadConstraints"] = constraints.into();
        if rng.one_in(8) {
            spec["nodeSelector"] = json!({"zone": "a"});
        }
    }
    spec["affinity"] = affinity;
    pod
}

/// What a set of victims costs; smaller is better.
type Cost = (usize, i64, i128, usize, Reverse<i64>);

/// All pods of lower priority, the most important first, and for each set of them the nodes where the preemptor fits without it.
struct AllSets {
    pods: Vec<Arc<PodInfo>>,
    feasible: Vec<Vec<NodeRow>>,
}

impl AllSets {
    fn new(input: &mut SchedulingInput<'_>) -> AllSets {
        let priority = input.pod.template.priority();
        let assigned = input.world.node_infos().flat_map(|node| node.pods());
        let lower = assigned.filter(|pod| pod.template.priority() < priority);
        let mut pods: Vec<Arc<PodInfo>> = lower.cloned().collect();
        pods.sort_by_key(|pod| {
            importance(pod.template.priority(), pod.started.get().map(|at| at.0))
        });
        let feasible = (0..1_usize << pods.len()).map(|set| feasible(input, &pods, set)).collect();
        AllSets { pods, feasible }
    }

    fn members(&self, set: usize) -> Vec<Arc<PodInfo>> {
        let is_member = |at: &usize| set & 1 << at != 0;
        (0..self.pods.len()).filter(is_member).map(|at| self.pods[at].clone()).collect()
    }

    fn set_of(&self, names: &[String]) -> Option<usize> {
        let bit = |name: &String| {
            Some(1_usize << self.pods.iter().position(|pod| pod.full_name() == *name)?)
        };
        names.iter().map(bit).sum()
    }

    fn cost(&self, world: &World, set: usize) -> Cost {
        let pods = self.members(set);
        let n_violations = budget_violations(world, &pods).into_iter().filter(|it| *it).count();
        let priority = |pod: &Arc<PodInfo>| i64::from(pod.template.priority());
        let top = pods.iter().map(priority).max().unwrap_or(i64::MIN);
        let sum = pods.iter().map(|pod| i128::from(priority(pod)) + (1 << 31)).sum();
        let of_top = pods.iter().filter(|pod| priority(pod) == top);
        let earliest = of_top.map(|pod| pod.started.get().map_or(i64::MAX, |at| at.0)).min();
        (n_violations, top, sum, pods.len(), Reverse(earliest.unwrap_or(i64::MAX)))
    }

    /// Whether a node that is feasible without a set is infeasible without another pod, too.
    fn is_not_monotone(&self, row: NodeRow) -> bool {
        let fits = |set: usize| self.feasible[set].contains(&row);
        let all = 0..self.feasible.len();
        { all }.any(|set| fits(set) && (0..self.pods.len()).any(|at| !fits(set | 1 << at)))
    }
}

/// The nodes where the preemptor fits without these pods.
fn feasible(input: &mut SchedulingInput<'_>, pods: &[Arc<PodInfo>], set: usize) -> Vec<NodeRow> {
    let removed: Vec<(NodeRow, &Arc<PodInfo>)> = (pods.iter().enumerate())
        .filter(|(at, _)| set & 1 << at != 0)
        .filter_map(|(_, pod)| Some((input.world.row_of_pod(&pod.uid)?, pod)))
        .collect();
    for (_, pod) in &removed {
        input.world.remove_pod(&pod.uid);
    }
    let nodes = evaluate(input).nodes;
    for (row, pod) in removed {
        input.world.add_pod(row, pod.clone());
    }
    let fits = nodes.iter().filter(|node| node.filter_result == FilterResult::Feasible);
    fits.map(|node| node.row).collect()
}

/// Compares the preemption preview of `explain` with brute force. `None` if the pod fits without preemption.
///
/// # Errors
///
/// The first difference.
pub fn check_by_brute_force(
    input: &mut SchedulingInput<'_>,
) -> Result<Option<CrossNodeStats>, String> {
    let nodes = format!("{:?}", input.world.nodes());
    let states = input.plugin_states();
    let shown =
        explain::explain_pod(input.profile, &mut input.world, &states, &input.pod).preemption;
    if nodes != format!("{:?}", input.world.nodes()) {
        return Err("the dry runs changed the world".to_owned());
    }
    let Some(shown) = shown else { return Ok(None) };
    let codes = evaluate(input).node_codes(&input.world, &input.pod);
    let all = AllSets::new(input);
    let mut stats =
        CrossNodeStats { n_cases: 1, n_sets: all.feasible.len(), ..CrossNodeStats::default() };
    let mut least: Vec<(Cost, String)> = Vec::new();
    for (row, _) in codes.into_iter().filter(|(_, code)| *code == Code::Unschedulable) {
        let Some(node) = input.world.node(row) else { continue };
        let name = node.name();
        stats.n_nodes += 1;
        stats.n_not_monotone += usize::from(all.is_not_monotone(row));
        let sets = (0..all.feasible.len()).filter(|set| all.feasible[*set].contains(&row));
        let cheapest = sets.map(|set| (all.cost(&input.world, set), set)).min();
        let found = shown.candidates.iter().find(|candidate| candidate.node == *name);
        let ((cost, set), found) = match (cheapest, found) {
            (None, None) => continue,
            (Some(cheapest), Some(found)) => (cheapest, found),
            (None, Some(found)) => return Err(format!("{name}: {found:?}, but no set fits")),
            (Some((_, set)), None) => {
                let names = names(&all.members(set));
                return Err(format!("{name} is no candidate, but fits without {names:?}"));
            }
        };
        let victims = all.set_of(&found.victims).ok_or("a victim has no lower priority")?;
        let names = names(&all.members(set));
        if !all.feasible[victims].contains(&row) {
            return Err(format!("{name}: {found:?} is not enough, {names:?} is"));
        }
        let found_cost = all.cost(&input.world, victims);
        if found_cost != cost || found.n_pdb_violations != cost.0 {
            return Err(format!("{name}: {found:?} costs {found_cost:?}, {names:?} {cost:?}"));
        }
        let mut rows: Vec<NodeRow> = (all.members(victims).iter())
            .filter_map(|pod| input.world.row_of_pod(&pod.uid))
            .collect();
        rows.sort_unstable();
        rows.dedup();
        stats.n_candidates += 1;
        stats.n_on_several_nodes += usize::from(rows.len() > 1);
        stats.n_elsewhere += usize::from(!rows.contains(&row));
        stats.n_violating += usize::from(cost.0 > 0);
        least.push((cost, name.to_owned()));
    }
    if least.len() != shown.candidates.len() {
        return Err(format!("unexpected candidates: {:?}", shown.candidates));
    }
    let cheapest = least.iter().map(|(cost, _)| *cost).min();
    let best = least.iter().filter(|(cost, _)| Some(*cost) == cheapest);
    let mut best: Vec<String> = best.map(|(_, name)| name.clone()).collect();
    best.sort_unstable();
    match best == shown.best {
        true => Ok(Some(stats)),
        false => Err(format!("best {:?}, by the rules {best:?}", shown.best)),
    }
}

fn names(pods: &[Arc<PodInfo>]) -> Vec<String> {
    pods.iter().map(|pod| pod.full_name()).collect()
}
