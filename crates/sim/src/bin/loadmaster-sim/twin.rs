//! `cargo xtask twin`: random histories in which every decision is compared with a reference that calls every plugin for every node,
//! and random cases in which the preemption search, of DefaultPreemption or of CrossNodePreemption, is compared with a brute-force search
//! over all sets of victims, or what `explain` proposes for an unschedulable pod with one over all changes and pairs of changes.

use anyhow::{Context as _, Result};
use loadmaster_scheduler_plugins::with_scheduler_plugins;
use loadmaster_sim::brute_force_counterfactual::{self, CounterfactualStats};
use loadmaster_sim::brute_force_preemption::cross_node::{self, CrossNodeStats};
use loadmaster_sim::brute_force_preemption::{self, BruteForceStats};
use loadmaster_sim::cases::local_oracle::LocalOracle;
use loadmaster_sim::cases::{CaseGenerator, CaseSubject};
use loadmaster_sim::differential::{self, HistoryOptions, HistoryReport, PodPool, TwinProfiles};

/// Steps of one history; the next one has another seed, and so another size.
const STEPS_EACH: u32 = 250;

#[derive(clap::Args)]
pub struct Args {
    /// Number of steps of all histories with one kind of pods together.
    #[arg(long, default_value_t = 100_000)]
    steps: u32,
    /// Kind of the pods: bare manifests, as controllers and admission make them in a cluster, or first one and then the other.
    #[arg(long, value_enum, default_value_t = Pods::Both, conflicts_with = "preemption")]
    pods: Pods,
    /// Seed of the first history.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run so many small preemption cases instead of histories.
    #[arg(long, value_name = "CASES", conflicts_with = "steps")]
    preemption: Option<u64>,
    /// Run so many small cases of CrossNodePreemption instead of histories.
    #[arg(long, value_name = "CASES", conflicts_with_all = ["steps", "pods", "preemption"])]
    cross_node_preemption: Option<u64>,
    /// Run so many small cases of unschedulable pods, and of what would make them fit, instead of histories.
    #[arg(long, value_name = "CASES", conflicts_with_all = ["steps", "pods", "preemption", "cross_node_preemption"])]
    counterfactual: Option<u64>,
}

/// The values of `--pods`.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Pods {
    Bare,
    Cluster,
    Both,
}

impl Pods {
    fn pools(self) -> &'static [PodPool] {
        match self {
            Pods::Bare => &[PodPool::Bare],
            Pods::Cluster => &[PodPool::ClusterMade],
            Pods::Both => &[PodPool::Bare, PodPool::ClusterMade],
        }
    }
}

/// Runs the histories; false after the first difference.
pub fn run(args: &Args) -> Result<bool> {
    if let Some(n_cases) = args.preemption {
        return every_eviction(args.seed, n_cases);
    }
    if let Some(n_cases) = args.cross_node_preemption {
        return every_cross_node_eviction(args.seed, n_cases);
    }
    if let Some(n_cases) = args.counterfactual {
        return every_change(args.seed, n_cases);
    }
    let profiles = TwinProfiles::new(&loadmaster_plugins::in_tree_registry())?;
    for pods in args.pods.pools() {
        let mut all = HistoryReport::default();
        for history in 0..u64::from(args.steps.div_ceil(STEPS_EACH)) {
            let options = HistoryOptions::random(args.seed + history, STEPS_EACH, *pods);
            match differential::run_history(&profiles, options) {
                Ok(report) => all.add(&report),
                Err(difference) => {
                    println!("{difference}");
                    return Ok(false);
                }
            }
        }
        print_report(args.seed, *pods, &all);
    }
    Ok(true)
}

fn print_report(seed: u64, pods: PodPool, all: &HistoryReport) {
    let kind = match pods {
        PodPool::Bare => "bare",
        PodPool::ClusterMade => "cluster-made",
    };
    println!(
        "twin: {} decisions about {kind} pods from seed {seed}, {} placed, {} without a node, {} with nominated pods, {} with node \
         sampling, {} resizes, {} changes of services and owners, {} rollouts, {} overflows of the change log, {} filter results and \
         scores: no difference",
        all.decisions,
        all.placed,
        all.unschedulable,
        all.with_nominated_pods,
        all.sampled,
        all.resizes,
        all.object_changes,
        all.rollouts,
        all.log_overflows,
        all.compared_nodes
    );
}

/// Generates cases until `n_cases` of them were small enough for brute force and had candidates.
fn every_eviction(seed: u64, n_cases: u64) -> Result<bool> {
    let ours = LocalOracle::new(loadmaster_plugins::in_tree_registry())?;
    let (mut all, mut n_tried) = (BruteForceStats::default(), 0);
    let mut cases = CaseGenerator::new(seed, [""; 0]).about(CaseSubject::Preemption);
    while n_tried < n_cases {
        let case = cases.next().context("the generator never ends")?;
        let Ok(checked) = ours
            .with_scheduling_input(&case, brute_force_preemption::check_preemption_by_brute_force)
        else {
            continue;
        };
        match checked {
            Ok(Some(seen)) if seen.n_nodes > 0 => {
                all.add(seen);
                n_tried += 1;
            }
            Ok(_) => {}
            Err(difference) => {
                println!("case {} of seed {seed}: {difference}\n{}", case.id, case.question());
                return Ok(false);
            }
        }
    }
    println!(
        "twin: {n_tried} preemption cases from seed {seed}, {} nodes, {} candidates, {} sets of pods tried, {} nodes where removing \
         a pod makes the preemptor infeasible: no difference",
        all.n_nodes, all.n_candidates, all.n_sets, all.n_not_monotone
    );
    Ok(true)
}

/// Generates cases until the pod fitted on no node in `n_cases` of them.
fn every_cross_node_eviction(seed: u64, n_cases: u64) -> Result<bool> {
    let registry = with_scheduler_plugins(loadmaster_plugins::in_tree_registry());
    let ours = LocalOracle::new(registry)?;
    let mut all = CrossNodeStats::default();
    for id in 0.. {
        if all.n_cases as u64 >= n_cases {
            break;
        }
        let case = cross_node::random_case(seed, id);
        match ours.with_scheduling_input(&case, cross_node::check_by_brute_force)? {
            Ok(seen) => all.add(seen.unwrap_or_default()),
            Err(difference) => {
                println!("case {id} of seed {seed}: {difference}\n{}", case.question());
                return Ok(false);
            }
        }
    }
    println!(
        "twin: {} cases of CrossNodePreemption from seed {seed}, {} nodes, {} candidates, {} with victims on several nodes, {} without \
         victims on their own node, {} that violate a budget, {} sets of pods tried, {} nodes where removing a pod makes the preemptor \
         infeasible: no difference",
        all.n_cases,
        all.n_nodes,
        all.n_candidates,
        all.n_on_several_nodes,
        all.n_elsewhere,
        all.n_violating,
        all.n_sets,
        all.n_not_monotone
    );
    Ok(true)
}

/// Generates cases until the pod fitted on no node in `n_cases` of them, and the search tried everything.
fn every_change(seed: u64, n_cases: u64) -> Result<bool> {
    let registry = with_scheduler_plugins(loadmaster_plugins::in_tree_registry());
    let ours = LocalOracle::new(registry)?;
    let mut all = CounterfactualStats::default();
    for id in 0.. {
        if (all.n_cases - all.n_cut) as u64 >= n_cases {
            break;
        }
        let case = brute_force_counterfactual::random_case(seed, id);
        match brute_force_counterfactual::check_by_brute_force(&ours, &case) {
            Ok(seen) => all.add(seen.unwrap_or_default()),
            Err(difference) => {
                println!("case {id} of seed {seed}: {difference}\n{}", case.question());
                return Ok(false);
            }
        }
    }
    println!(
        "twin: {} unschedulable pods from seed {seed}, {} with single changes, {} with pairs of changes, {} without proposals, {} changed \
         clusters tried, proposed changes {:?}, {} cases left out: no difference",
        all.n_cases - all.n_cut,
        all.n_single,
        all.n_pairs,
        all.n_nothing,
        all.n_tried,
        all.n_changes,
        all.n_cut
    );
    Ok(true)
}
