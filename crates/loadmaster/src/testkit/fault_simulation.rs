//! Plugins in the simulator with fault injection.

use std::collections::VecDeque;
use std::ops::Range;

use loadmaster_framework::{Gvr, PluginDef, Registry};
use loadmaster_sim::simulate::{
    ClusterView, OutOfTreeWorkload, SimulatedSchedulerConfig, SimulationOptions, SimulationReport,
    run_simulation,
};
use loadmaster_stdx::Rng;
use serde_json::Value;

use super::{BenchResult, PluginTestBenchError, PodBuilder, bench_error};

/// The last events and effects of a run that an error shows.
const N_TRACE_LINES: usize = 30;

/// Every so many seeds a run is repeated, and must be the same.
const REPEAT_EVERY: u64 = 10;

/// Runs plugins in the simulator: a whole scheduler in a cluster whose network delays, repeats and drops watch events and fails requests,
/// whose nodes come and go, and which loses its leader, all drawn from a seed. Random users create and delete pods.
///
/// Checked are the simulator's invariants: every decision equals per-node evaluation, so that a wrong incremental form is found; no pod is
/// bound to a node that Filter rejects in a world built from scratch; nothing is lost or counted twice; two runs of a seed are equal, whatever
/// the order of hash maps; and when the faults have ended, each pod that fits on a node is bound, so that a missing event registration or a
/// wrong queueing hint is found.
///
/// ```
/// use loadmaster::testkit::FaultSimulation;
/// # fn main() -> Result<(), loadmaster::testkit::PluginTestBenchError> {
/// let profile = serde_json::json!({"plugins": {"multiPoint": {"enabled": []}}});
/// let simulation = FaultSimulation::new([], profile)
///     .volumes()
///     .pods(|rng, pod| pod.label("team", *rng.pick(&["red", "blue"])));
/// let report = simulation.run(0..2)?;
/// assert!(report.bound > 0);
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing runs before `run`"]
pub struct FaultSimulation {
    registry: Registry,
    profile: Value,
    workload: OutOfTreeWorkload,
}

impl FaultSimulation {
    /// A scheduler with the in-tree plugins and these, and one profile as in a KubeSchedulerConfiguration.
    pub fn new(plugins: impl IntoIterator<Item = PluginDef>, profile: Value) -> FaultSimulation {
        let in_tree = loadmaster_plugins::in_tree_registry();
        let registry = plugins.into_iter().fold(in_tree, Registry::with);
        FaultSimulation { registry, profile, workload: OutOfTreeWorkload::default() }
    }

    /// Changes the pods that users create: called once for each of the few manifests from which the pods of a run are made. They are in the
    /// namespace `default`, have the label `app` (`web`, `db` or `cache`) and random requests.
    pub fn pods(
        mut self,
        change: impl Fn(&mut Rng, PodBuilder) -> PodBuilder + Send + Sync + 'static,
    ) -> Self {
        let change = move |rng: &mut Rng, manifest: &mut Value| {
            *manifest = change(rng, manifest.take().into()).into();
        };
        self.workload.pod_template = Some(Box::new(change));
        self
    }

    /// Creates, replaces and deletes objects of a kind that a plugin watches: `make` is called now and then, and an object of the same
    /// namespace and name is replaced. After the faults the objects stay as they are.
    pub fn objects(
        mut self,
        kind: Gvr,
        make: impl Fn(&mut Rng, ClusterView<'_>) -> Option<Value> + Send + Sync + 'static,
    ) -> Self {
        self.workload.objects.push((kind, Box::new(make)));
        self
    }

    /// Gives pods PersistentVolumeClaims, static and provisioned, with a CSI driver that fails now and then; next to the volumes that they
    /// have.
    pub fn volumes(mut self) -> Self {
        self.workload.volumes = true;
        self
    }

    /// Publishes values to a plugin, as its service does. Some expire before the next one is published.
    pub fn published_values(
        mut self,
        plugin: &str,
        make: impl Fn(&mut Rng, ClusterView<'_>) -> Value + Send + Sync + 'static,
    ) -> Self {
        self.workload.values.push((plugin.to_owned(), Box::new(make)));
        self
    }

    /// Checks the cluster when everything has settled. Pods that Permit holds or rejects are checked by this alone.
    pub fn check_at_end(
        mut self,
        check: impl Fn(ClusterView<'_>) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.workload.final_check = Some(Box::new(check));
        self
    }

    /// Runs these seeds. Returns the counts of all runs together.
    ///
    /// # Errors
    ///
    /// If the profile is invalid. Else the first invariant that was violated, with the seed and the last events and effects of its run.
    pub fn run(self, seeds: Range<u64>) -> BenchResult<SimulationReport> {
        self.registry.validate().map_err(|error| bench_error(&error))?;
        let config = SimulatedSchedulerConfig::with_out_of_tree_plugins(
            &self.registry,
            self.profile,
            self.workload,
        );
        let config = config.map_err(|error| bench_error(&error))?;
        let mut all = SimulationReport::default();
        for seed in seeds {
            let options = SimulationOptions::new(seed);
            let report = run_once(&config, options)?;
            if seed.is_multiple_of(REPEAT_EVERY)
                && run_once(&config, options.with_other_hash_seed())? != report
            {
                let text = format!(
                    "seed {seed}: two runs differ, so a plugin is not deterministic: it uses chance, or the order of a hash map"
                );
                return Err(PluginTestBenchError(text));
            }
            all.add(&report);
        }
        Ok(all)
    }
}

fn run_once(
    config: &SimulatedSchedulerConfig,
    options: SimulationOptions,
) -> BenchResult<SimulationReport> {
    run_simulation(config, options, None).map_err(|violation| {
        let mut lines = VecDeque::new();
        let mut log = |line: &str| {
            lines.push_back(line.to_owned());
            if lines.len() > N_TRACE_LINES {
                lines.pop_front();
            }
        };
        let _ = run_simulation(config, options, Some(&mut log));
        let lines: Vec<String> = lines.into();
        PluginTestBenchError(format!("{violation}\n{}", lines.join("\n")))
    })
}
