//! Runs of consecutive seeds.

use std::fmt::{self, Display, Formatter};
use std::io::{self, Write};
use std::sync::Arc;

use loadmaster_config::AllFeatureGates;
use loadmaster_framework::Registry;

use super::simulated_profiles::{SchedulerPluginsProfiles, profile_with_plugins};
use super::{
    InvariantViolation, SimulatedSchedulerConfig, SimulationOptions, SimulationReport,
    fake_extenders, panicking_plugin, profiles_with_test_plugins, run_simulation,
};
use loadmaster_engine::world_loader::DefaultProfileError;

/// Which seeds are run, and what is printed.
#[derive(Clone, Copy, Debug)]
pub struct SimulationRuns {
    pub first_seed: u64,
    pub runs: u64,
    /// Steps with faults per run.
    pub steps: u32,
    /// Print every event and effect of every run.
    pub verbose: bool,
}

impl SimulatedSchedulerConfig {
    /// The default profile with these plugins, in some runs with a plugin that panics, with extenders, with plugins that hold pods and watch
    /// objects, with claims, with gangs, with quotas, or with reloads.
    ///
    /// # Errors
    ///
    /// If one of the profiles cannot be built.
    pub fn with_all_faults(
        registry: &Registry,
    ) -> Result<SimulatedSchedulerConfig, DefaultProfileError> {
        let panicking = panicking_plugin::profile_with_panicking_plugin(registry)?;
        let with_extenders = fake_extenders::profiles_with_extenders(registry)?;
        Ok(SimulatedSchedulerConfig {
            profile: Arc::new(profile_with_plugins(registry, &[])?),
            panicking: Some(Arc::new(panicking)),
            with_extenders: with_extenders.map(Arc::new).into(),
            with_test_plugins: profiles_with_test_plugins(registry)?.into(),
            out_of_tree: None,
            // They take several times as long as others.
            volume_runs: 12,
            gang_runs: 8,
            quota_runs: 8,
            reload_runs: 8,
            registry: registry.clone(),
            with_scheduler_plugins: Some(SchedulerPluginsProfiles::new(registry)?),
            gates: AllFeatureGates::default().framework_gates(),
        })
    }
}

/// One in this many runs is repeated with another hash seed.
const REPEAT_EVERY: u64 = 10;

impl SimulationRuns {
    /// Runs the seeds, and writes every violated invariant with `reproduce_command`, which gets the flags of its run. Returns the counts of
    /// the runs that passed together, and the number of the others.
    ///
    /// # Errors
    ///
    /// If the output cannot be written.
    pub fn run(
        self,
        config: &SimulatedSchedulerConfig,
        reproduce_command: &str,
        out: &mut dyn Write,
    ) -> io::Result<(SimulationReport, u64)> {
        let (mut all, mut n_failed) = (SimulationReport::default(), 0);
        for seed in (0..self.runs).map(|nth| self.first_seed.wrapping_add(nth)) {
            let default = SimulationOptions::new(seed);
            let options = SimulationOptions { steps: self.steps, ..default };
            let mut lines: Vec<String> = Vec::new();
            let mut log = |line: &str| lines.push(line.to_owned());
            let ended =
                run_simulation(config, options, if self.verbose { Some(&mut log) } else { None });
            for line in lines {
                writeln!(out, "{line}")?;
            }
            let ended = match ended {
                Ok(report) if seed.is_multiple_of(REPEAT_EVERY) => {
                    compare_with_other_hash_seed(config, options, report)
                }
                ended => ended,
            };
            match ended {
                Ok(report) => {
                    all.add(&report);
                    if self.verbose || self.runs == 1 {
                        writeln!(out, "seed {seed}: trace {:016x}", report.trace)?;
                    }
                }
                Err(violation) => {
                    n_failed += 1;
                    let steps = match self.steps == default.steps {
                        true => String::new(),
                        false => format!(" --steps {}", self.steps),
                    };
                    writeln!(
                        out,
                        "{violation}\n  {reproduce_command} --seed {seed}{steps} --verbose"
                    )?;
                }
            }
            out.flush()?;
        }
        Ok((all, n_failed))
    }
}

fn compare_with_other_hash_seed(
    config: &SimulatedSchedulerConfig,
    options: SimulationOptions,
    report: SimulationReport,
) -> Result<SimulationReport, Box<InvariantViolation>> {
    if run_simulation(config, options.with_other_hash_seed(), None)? == report {
        return Ok(report);
    }
    Err(Box::new(InvariantViolation {
        seed: options.seed,
        step: 0,
        at_ms: 0,
        message:
            "another hash seed leads to another run: the order of a hash map decides, or chance"
                .to_owned(),
    }))
}

impl Display for SimulationReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} pods, {} attempts, {} binds, {} evictions, {} failed calls, {} relists, {} leader changes, {} panics, {} extender calls, {} of them failed, {} waits at Permit, {} waits in PreBind, {} claims, {} writes of PreBind for them, {} failures of the provisioner, {} gangs, {} waits of members, {} rejections of gangs, {} pods within quotas, {} over quotas, {} reloads, {} of them with pods in flight, {} pods bound after a flush, {} unschedulable",
            self.pods,
            self.attempts,
            self.binds,
            self.evictions,
            self.failed_calls,
            self.relists,
            self.leader_losses,
            self.panics,
            self.extender_calls,
            self.failed_extender_calls,
            self.held,
            self.waits,
            self.claims,
            self.volume_writes,
            self.failed_provisions,
            self.gangs,
            self.gang_waits,
            self.failed_gangs,
            self.within_quota,
            self.over_quota,
            self.reloads,
            self.busy_reloads,
            self.bound_after_flush,
            self.unschedulable,
        )
    }
}
