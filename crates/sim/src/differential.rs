//! Differential test: random histories in which every decision is compared with a reference that calls every plugin for every node.
//!
//! The world changes as clusters do: pods are assigned, removed, resized in place, marked for deletion and nominated; nodes are added,
//! removed, and change labels, taints, images and allocatable; namespaces change labels; Services and the objects that own pods come,
//! change and go. Pods come from a pool of templates, some often and some once, so that score indexes, full scans and the switch
//! between them all occur. Now and then some pods are scheduled in a trial of the world, which is undone.
//!
//! | module | |
//! | --- | --- |
//! | `history` | the random steps, and the comparison |
//! | `cluster` | the objects, in the world of the scheduler and in that of the reference |
//! | `reference` | upstream's `schedulePod`, step by step |
//! | `pods`, `objects` | random pods, nodes and other objects |

mod cluster;
mod history;
mod objects;
mod pods;
mod reference;

use std::sync::Arc;

use loadmaster_config::{AllFeatureGates, check_configuration_value};
use loadmaster_engine::Profile;
use loadmaster_framework::Registry;
use loadmaster_stdx::Rng;
use serde_json::json;

use history::History;
use loadmaster_engine::world_loader::{DefaultProfileError, build_profiles, default_profile};
pub use pods::PodPool;

/// The profiles of histories.
pub struct TwinProfiles {
    /// The default profile, which filters all nodes.
    pub all_nodes: Arc<Profile>,
    /// The same with `percentageOfNodesToScore: 30`.
    pub sampling: Arc<Profile>,
}

impl TwinProfiles {
    /// Builds both profiles from these plugins.
    ///
    /// # Errors
    ///
    /// When the registry lacks a plugin of the default configuration.
    pub fn new(registry: &Registry) -> Result<TwinProfiles, DefaultProfileError> {
        let gates = AllFeatureGates::default();
        let config = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "percentageOfNodesToScore": 30,
        });
        let checked = check_configuration_value(config, registry, &gates)
            .map_err(DefaultProfileError::Config)?;
        let mut sampling = build_profiles(&checked, &gates.framework_gates());
        Ok(TwinProfiles {
            all_nodes: Arc::new(default_profile(registry)?),
            sampling: Arc::new(sampling.swap_remove(0)),
        })
    }
}

/// The size and the contents of a history.
#[derive(Clone, Copy, Debug)]
pub struct HistoryOptions {
    pub seed: u64,
    pub steps: u32,
    /// Nodes at the beginning; the number changes over time.
    pub n_nodes: u32,
    /// Different pod templates in the pool.
    pub n_templates: u32,
    /// Values of the label `rack`.
    pub n_racks: u64,
    pub pods: PodPool,
    /// Use the profile that filters only some of the nodes, if there are more than a hundred.
    pub samples_nodes: bool,
    /// Once there are more changes between two decisions than the world's change log holds.
    pub overflows_change_log: bool,
    /// A bug in the reference, which must be found.
    pub reference_bug: Option<ReferenceBug>,
}

impl HistoryOptions {
    /// Sizes drawn from the seed: mostly small worlds, sometimes many nodes, racks or templates.
    pub fn random(seed: u64, steps: u32, pods: PodPool) -> HistoryOptions {
        let mut rng = Rng::new(seed).split("options");
        let n_nodes = if rng.one_in(8) { 200 } else { rng.range(1, 40) as u32 };
        let n_templates = if rng.one_in(6) { 1_000 } else { rng.range(1, 40) as u32 };
        let n_racks = if rng.one_in(5) { 60 } else { rng.range(1, 8) as u64 };
        let samples_nodes = rng.one_in(8);
        HistoryOptions {
            seed,
            steps,
            n_nodes: if samples_nodes { rng.range(150, 250) as u32 } else { n_nodes },
            n_templates,
            n_racks,
            pods,
            samples_nodes,
            overflows_change_log: rng.one_in(8),
            reference_bug: None,
        }
    }
}

/// A deliberate bug in the reference, to show that histories find the same bug in the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferenceBug {
    /// Nominated pods are not added to their nodes.
    IgnoresNominations,
    /// Nominated pods are added whatever their priority.
    IgnoresPriority,
    /// Changes of Services and of the owners of pods are not seen.
    IgnoresClusterObjects,
    /// In-place resizes of assigned pods are not seen.
    IgnoresResizes,
    /// Every search for feasible nodes begins at the first node.
    RestartsSearch,
    /// The changes that overflow the change log are not seen.
    MissesLogOverflow,
}

/// Counts of a history without a difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryReport {
    pub decisions: u64,
    pub placed: u64,
    pub unschedulable: u64,
    /// Decisions about pods that had a nominated node.
    pub of_nominated_pods: u64,
    /// Decisions while pods were nominated.
    pub with_nominated_pods: u64,
    /// Decisions in which only some of the nodes were filtered.
    pub sampled: u64,
    /// Resizes of assigned and pending pods.
    pub resizes: u64,
    /// Changes of Services and of the owners of pods.
    pub object_changes: u64,
    pub rollouts: u64,
    /// How often a cached evaluation was older than the change log.
    pub log_overflows: u64,
    /// Nodes whose filter result and total score were compared.
    pub compared_nodes: u64,
    /// Hash of all placements: two runs with the same seed have the same.
    pub trace: u64,
}

impl HistoryReport {
    /// Adds the counts of another history, and clears the trace.
    pub fn add(&mut self, other: &HistoryReport) {
        self.decisions += other.decisions;
        self.placed += other.placed;
        self.unschedulable += other.unschedulable;
        self.of_nominated_pods += other.of_nominated_pods;
        self.with_nominated_pods += other.with_nominated_pods;
        self.sampled += other.sampled;
        self.resizes += other.resizes;
        self.object_changes += other.object_changes;
        self.rollouts += other.rollouts;
        self.log_overflows += other.log_overflows;
        self.compared_nodes += other.compared_nodes;
        self.trace = 0;
    }
}

/// A decision that differs from the reference.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "seed {seed}, {pods:?} pods, step {step}, pod {pod}: {what}: {found}, expected {expected}\n{object}"
)]
pub struct DecisionDifference {
    pub seed: u64,
    pub pods: PodPool,
    pub step: u32,
    pub pod: String,
    /// What differs.
    pub what: &'static str,
    pub found: String,
    pub expected: String,
    /// The pod.
    pub object: String,
}

/// Runs one history.
///
/// # Errors
///
/// The first difference.
pub fn run_history(
    profiles: &TwinProfiles,
    options: HistoryOptions,
) -> Result<HistoryReport, Box<DecisionDifference>> {
    let profile = if options.samples_nodes { &profiles.sampling } else { &profiles.all_nodes };
    History::new(profile.clone(), options).run()
}
