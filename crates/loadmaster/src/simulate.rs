//! `loadmaster simulate`: the engine in a cluster that misbehaves, seed after seed.

use std::io::Write;
use std::sync::Arc;

use loadmaster_config::Gates;
use loadmaster_framework::Registry;
use loadmaster_sim::load::default_profile;
use loadmaster_sim::simulate::{Options, Report, Setup, extenders, nervous, run as run_seed};
use loadmaster_stdx::Chain;

use crate::exit::{Answer, Exit, Failure};
use crate::text::counted;

/// Try the scheduler in clusters that misbehave.
///
/// A seed is a cluster, what its users do, and what goes wrong: news that come late, twice or never, calls that are refused or whose
/// answers are lost, nodes that flap, leaders that die in the middle of a bind, plugins that panic. While it runs, what must always hold is checked; then
/// nothing goes wrong any more, and everything must settle: each pod that fits is bound. Time is virtual. It ends with 0 when every
/// seed holds, with 1 when one does not.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  loadmaster simulate --runs 1000
  loadmaster simulate --seed 17 --verbose     all that happened in one run")]
pub(crate) struct Args {
    /// The first seed.
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// How many seeds from there.
    #[arg(long, value_name = "N", default_value_t = 1)]
    runs: u64,
    /// How long things go wrong.
    #[arg(long, value_name = "N", default_value_t = Options::new(0).steps)]
    steps: u32,
    /// Print every event, call and word of every run.
    #[arg(short, long)]
    verbose: bool,
}

pub(crate) fn run(args: &Args, registry: &Registry, out: &mut dyn Write) -> Answer<Exit> {
    let profile = default_profile(registry).map_err(|error| Failure::input(Chain(&error)))?;
    let nervous = nervous::profile(registry).map_err(|error| Failure::input(Chain(&error)))?;
    let extended = extenders::profiles_with(registry);
    let extended = extended.map_err(|error| Failure::input(Chain(&error)))?;
    let setup = Setup {
        profile: Arc::new(profile),
        nervous: Some(Arc::new(nervous)),
        extended: extended.map(Arc::new).into(),
        gates: Gates::default().framework(),
    };
    let mut all = Report::default();
    let mut n_broken = 0u64;
    for seed in (0..args.runs).map(|nth| args.seed.wrapping_add(nth)) {
        let options = Options { steps: args.steps, ..Options::new(seed) };
        let mut lines: Vec<String> = Vec::new();
        let mut log = |line: &str| lines.push(line.to_owned());
        let ended = run_seed(&setup, options, if args.verbose { Some(&mut log) } else { None });
        for line in lines {
            writeln!(out, "{line}")?;
        }
        match ended {
            Ok(report) => {
                all.add(&report);
                if args.verbose || args.runs == 1 {
                    writeln!(out, "seed {seed}: trace {:016x}", report.trace)?;
                }
            }
            Err(broken) => {
                n_broken += 1;
                let steps = if args.steps == Options::new(seed).steps {
                    String::new()
                } else {
                    format!(" --steps {}", args.steps)
                };
                writeln!(out, "{broken}\n  loadmaster simulate --seed {seed}{steps} --verbose")?;
            }
        }
        out.flush()?;
    }
    writeln!(
        out,
        "{}, {} broken: {} pods, {} attempts, {} binds, {} evictions, {} calls gone wrong, {} relists, {} lost leaders, {} panics, {} questions to extenders, {} of them without an answer, {} pods bound after a flush, {} left",
        counted(args.runs as usize, "run"),
        n_broken,
        all.pods,
        all.attempts,
        all.binds,
        all.evictions,
        all.refused,
        all.relists,
        all.leader_losses,
        all.panics,
        all.asked,
        all.unanswered,
        all.bound_after_flush,
        all.left,
    )?;
    Ok(if n_broken == 0 { Exit::Done } else { Exit::Finding })
}
