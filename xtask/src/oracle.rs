//! `cargo xtask oracle`: compares Loadmaster with kube-scheduler on random cases.
//!
//! Case 17 of a seed is always the same. The seed is printed first, the coverage last, and every kind of difference is shown once,
//! with
//! the smallest case that has it, which is also written as a scenario.

mod apply;
mod compare;
mod coverage;
mod deviations;
mod old_configurations;
mod old_decisions;
pub(crate) mod process;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use loadmaster_sim::cases::local_oracle::LocalOracle;
use loadmaster_sim::cases::{CaseGenerator, CaseSubject, OracleCase, shrink_case};
use loadmaster_sim::scenario;
use serde_json::Value;

use compare::Difference;
use coverage::Coverage;
use old_configurations::answers::{Answers, Subject};
use process::{Oracle, OracleProgram};

use crate::scenarios;

/// Compare Loadmaster with kube-scheduler on random cases.
#[derive(Parser)]
pub struct Args {
    /// Number of cases.
    #[arg(long, default_value_t = 1_000)]
    cases: u64,
    /// Seed of the random number generator; from the clock by default.
    #[arg(long)]
    seed: Option<u64>,
    /// Number of cases that kube-scheduler answers concurrently; it mostly waits for its informers.
    #[arg(long, default_value_t = 8)]
    workers: usize,
    /// Run so many preemption cases instead of cases of all kinds.
    #[arg(long, value_name = "CASES", conflicts_with = "cases")]
    preemption: Option<u64>,
    /// Run so many cases of pods with volumes instead of cases of all kinds.
    #[arg(long, value_name = "CASES", conflicts_with_all = ["cases", "preemption"])]
    claims: Option<u64>,
    /// Run so many server-side apply cases instead: random updates and applies, compared with the API server's field manager.
    #[arg(long, value_name = "CASES", conflicts_with_all = ["cases", "preemption", "claims"])]
    apply: Option<u64>,
    /// Run so many cases of the plugins of scheduler-plugins instead, compared with these.
    #[arg(long, value_name = "CASES", conflicts_with_all = ["cases", "preemption", "claims", "apply"])]
    scheduler_plugins: Option<u64>,
    /// Read so many random configuration files of every version before v1, and so many Policies, and compare with the kube-schedulers that
    /// read them.
    #[arg(long, value_name = "CASES", group = "old_schedulers", conflicts_with_all = ["cases", "preemption", "claims", "apply", "scheduler_plugins"])]
    old_configurations: Option<u64>,
    /// Let the plugins of each old kube-scheduler and those of Loadmaster filter and score the nodes of so many random clusters, for each
    /// version of configurations and Policies of that time, and compare.
    #[arg(long, value_name = "CASES", group = "old_schedulers", conflicts_with_all = ["cases", "preemption", "claims", "apply", "scheduler_plugins"])]
    old_decisions: Option<u64>,
    /// Keep the answers of the old schedulers in this file.
    #[arg(long, value_name = "FILE", requires = "old_schedulers")]
    record: Option<PathBuf>,
    /// Compare old configurations or decisions with the answers in this file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cases", "preemption", "claims", "apply", "scheduler_plugins", "old_configurations", "old_decisions"])]
    recorded: Option<PathBuf>,
    /// Run only the case with this number, and show both answers.
    #[arg(long)]
    only: Option<u64>,
    /// How many smaller cases are tried per difference.
    #[arg(long, default_value_t = 3_000)]
    tries: usize,
    /// Do not write scenarios into scenarios/found.
    #[arg(long)]
    dry: bool,
}

impl Args {
    fn n_cases(&self) -> u64 {
        self.preemption.or(self.claims).or(self.scheduler_plugins).unwrap_or(self.cases)
    }

    /// What the cases are about, and the flag that says so, with this number of cases.
    fn subject(&self, n_cases: u64) -> (CaseSubject, String) {
        if self.preemption.is_some() {
            (CaseSubject::Preemption, format!("--preemption {n_cases}"))
        } else if self.claims.is_some() {
            (CaseSubject::Volumes, format!("--claims {n_cases}"))
        } else if self.scheduler_plugins.is_some() {
            (CaseSubject::SchedulerPlugins, format!("--scheduler-plugins {n_cases}"))
        } else {
            (CaseSubject::All, format!("--cases {n_cases}"))
        }
    }

    fn program(&self) -> OracleProgram {
        match self.scheduler_plugins {
            Some(_) => OracleProgram::SchedulerPlugins,
            None => OracleProgram::KubeScheduler,
        }
    }

    /// The command that runs a case again.
    fn reproduce_command(&self, seed: u64, id: u64) -> String {
        let (_, flag) = self.subject(1);
        format!("cargo xtask oracle {flag} --seed {seed} --only {id}")
    }
}

/// How often kube-scheduler is asked again about a case in which the answers differ, and about how many cases.
const N_TIMES: usize = 12;
const N_ASKED_AGAIN_MAX: usize = 100;

/// Returns whether there was no difference.
pub fn run(args: &Args) -> Result<bool> {
    let seed = args.seed.unwrap_or_else(process::seed_from_clock);
    if let Some(n) = args.apply {
        return apply::run(n, seed, args.only);
    }
    if let Some(n) = args.old_configurations {
        return old_configurations::run(n, seed, args.only, args.record.as_deref());
    }
    if let Some(n) = args.old_decisions {
        let (only, record) = (args.only, args.record.as_deref());
        return old_decisions::run(n, seed, only, args.tries, record);
    }
    if let Some(file) = &args.recorded {
        let (questions, answers) = Answers::read(file)?;
        return match questions.subject {
            Subject::OldConfigurations => old_configurations::run_recorded(questions, answers),
            Subject::OldDecisions => old_decisions::run_recorded(questions, answers),
        };
    }
    let binary = args.program().build()?;
    let (subject, flag) = args.subject(args.n_cases());
    println!("oracle: --seed {seed} {flag}");
    let ours = local_oracle()?;
    let generator = CaseGenerator::new(seed, hinted_plugins(&ours)).about(subject);
    if let Some(id) = args.only {
        return show(&binary, &ours, &generator.generate_case(id));
    }
    let stopwatch = process::Stopwatch::start();
    let mut found = ask_all(args, &binary, &ours, &generator)?;
    let seconds = stopwatch.seconds();
    println!("{}", found.coverage);
    let n_cases = args.n_cases();
    let per_second = n_cases as f64 / seconds;
    println!("{n_cases} cases in {seconds:.1} s, {per_second:.0} cases/s");
    let mut oracle = Oracle::start(&binary)?;
    ask_again(&mut found, &mut oracle, &ours)?;
    if found.n_by_chance > 0 {
        println!("in {} cases kube-scheduler's answer depends on chance", found.n_by_chance);
    }
    compare_deviations(&mut found, &mut oracle, &ours)?;
    for (text, (n_cases, n_different)) in &found.n_deviations {
        println!("known deviation: in {n_different} of {n_cases} cases, {text}");
    }
    let deviations_are_shown = match args.program() {
        OracleProgram::KubeScheduler => check_scenarios_of_deviations(&mut oracle, &ours)?,
        OracleProgram::SchedulerPlugins => true,
    };
    Ok(report(args, seed, &mut oracle, &ours, found.differences)? && deviations_are_shown)
}

/// Loadmaster with all plugins that it has.
pub(crate) fn local_oracle() -> Result<LocalOracle> {
    let registry = loadmaster_plugins::in_tree_registry();
    LocalOracle::new(loadmaster_scheduler_plugins::with_scheduler_plugins(registry))
        .context("creating the default profile")
}

/// Plugins that register events.
fn hinted_plugins(ours: &LocalOracle) -> Vec<String> {
    let plugins = ours.default_profiles().iter().flat_map(|profile| &profile.plugins);
    let hinted =
        plugins.filter(|plugin| plugin.events.as_ref().is_none_or(|events| !events.is_empty()));
    hinted.map(|plugin| plugin.name.to_owned()).collect()
}

#[derive(Default)]
struct Found {
    coverage: Coverage,
    /// Cases of deviations, with kube-scheduler's answers.
    deviating: Vec<(OracleCase, Value)>,
    /// By text: the number of cases that a deviation may affect, and of those in which kube-scheduler's answer is another one.
    n_deviations: BTreeMap<&'static str, (u64, u64)>,
    /// Other cases in which the answers differ.
    different: Vec<(OracleCase, Difference)>,
    /// Number of cases in which kube-scheduler gave Loadmaster's answer when it was asked again.
    n_by_chance: u64,
    /// By kind: the number of cases, and the smallest case.
    differences: BTreeMap<String, (u64, OracleCase, Difference)>,
}

impl Found {
    fn add(&mut self, case: &OracleCase, difference: Difference) {
        let entry = self.differences.entry(difference.kind.clone());
        let entry = entry.or_insert_with(|| (0, case.clone(), difference.clone()));
        entry.0 += 1;
        if case.json_size_bytes() < entry.1.json_size_bytes() {
            (entry.1, entry.2) = (case.clone(), difference);
        }
    }
}

/// Streams the cases to the oracle, and answers them here meanwhile.
fn ask_all(
    args: &Args,
    binary: &std::path::Path,
    ours: &LocalOracle,
    generator: &CaseGenerator,
) -> Result<Found> {
    let (mut child, stdin, stdout) = process::spawn(binary, args.workers)?;
    let mut found = Found::default();
    let (send, receive) = mpsc::sync_channel::<OracleCase>(256);
    let outcome = thread::scope(|scope| -> Result<()> {
        let cases = generator.clone().take(usize::try_from(args.n_cases())?);
        let writer = scope.spawn(move || -> Result<()> {
            let mut stdin = BufWriter::new(stdin);
            for case in cases {
                writeln!(stdin, "{}", case.question()).context("sending a case to the oracle")?;
                if send.send(case).is_err() {
                    break;
                }
            }
            stdin.flush().context("sending a case to the oracle")
        });
        let mut lines = BufReader::new(stdout).lines();
        for case in receive {
            let line = lines
                .next()
                .context("the oracle ended early")?
                .context("reading the oracle's answer")?;
            let theirs: Value =
                serde_json::from_str(&line).context("reading the oracle's answer")?;
            compare_answers(&mut found, &case, theirs, ours);
        }
        writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?
    });
    outcome?;
    child.wait().context("waiting for the oracle")?;
    Ok(found)
}

fn compare_answers(found: &mut Found, case: &OracleCase, theirs: Value, ours: &LocalOracle) {
    found.coverage.add(case, &theirs);
    if !deviations::of(case).is_empty() {
        found.deviating.push((case.clone(), theirs));
    } else if let Some(difference) = compare::difference(case, &theirs, &ours.answer_case(case)) {
        found.different.push((case.clone(), difference));
    }
}

/// Asks kube-scheduler again where the answers differ. Some of its answers depend on the order of a Go map, such as which of two volumes that
/// are reserved for one claim is found first: then one of them must be Loadmaster's.
fn ask_again(found: &mut Found, oracle: &mut Oracle, ours: &LocalOracle) -> Result<()> {
    for (nth, (case, difference)) in std::mem::take(&mut found.different).into_iter().enumerate() {
        if nth < N_ASKED_AGAIN_MAX && answers_alike_by_chance(oracle, ours, &case)? {
            found.n_by_chance += 1;
        } else {
            found.add(&case, difference);
        }
    }
    Ok(())
}

/// Whether kube-scheduler gives Loadmaster's answer when it is asked some times.
fn answers_alike_by_chance(
    oracle: &mut Oracle,
    ours: &LocalOracle,
    case: &OracleCase,
) -> Result<bool> {
    let mine = ours.answer_case(case);
    for _ in 0..N_TIMES {
        let theirs = oracle.ask(&case.question())?;
        if compare::difference(case, &theirs, &mine).is_none() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Compares the answers to cases of deviations, about which kube-scheduler may have to be asked again.
fn compare_deviations(found: &mut Found, oracle: &mut Oracle, ours: &LocalOracle) -> Result<()> {
    for (case, theirs) in std::mem::take(&mut found.deviating) {
        let mine = ours.answer_case(&case);
        let is_different = compare::difference(&case, &theirs, &mine).is_some();
        for deviation in deviations::of(&case) {
            let (n_cases, n_different) = found.n_deviations.entry(deviation.text).or_default();
            *n_cases += 1;
            *n_different += u64::from(is_different);
        }
        let ask = |case: &OracleCase| oracle.ask(&case.question());
        if let Some(difference) = compare::compare(&case, &theirs, &mine, ask)? {
            found.add(&case, difference);
        }
    }
    Ok(())
}

/// Whether kube-scheduler and Loadmaster still answer as the scenarios of the deviations say: a deviation that is gone must be removed.
fn check_scenarios_of_deviations(oracle: &mut Oracle, ours: &LocalOracle) -> Result<bool> {
    let mut are_shown = true;
    for (deviation, path) in deviations::with_scenario() {
        for line in scenarios::differences(oracle, ours, path)? {
            println!("scenarios/{path}: {line}\n  (it shows the deviation: {})", deviation.text);
            are_shown = false;
        }
    }
    Ok(are_shown)
}

fn report(
    args: &Args,
    seed: u64,
    oracle: &mut Oracle,
    ours: &LocalOracle,
    differences: BTreeMap<String, (u64, OracleCase, Difference)>,
) -> Result<bool> {
    if differences.is_empty() {
        println!("no difference");
        return Ok(true);
    }
    for (kind, (n, case, _)) in &differences {
        let small = shrink_difference(oracle, ours, case, kind, args.tries)?;
        println!("\n== {kind}: {n} cases, for example case {} of seed {seed}", case.id);
        show_with(oracle, ours, &small)?;
        if !args.dry {
            let about = format!("Differs from kube-scheduler: {kind}.");
            let from = args.reproduce_command(seed, case.id);
            match scenario::scenario_from_case(&small, &about, &from) {
                Some(text) => {
                    let path = scenarios::write_found((args.program(), oracle), ours, kind, text)?;
                    println!("written to {path}");
                }
                None => println!("(this case cannot be written as a scenario)"),
            }
        }
    }
    println!("\n{} kinds of difference", differences.len());
    Ok(false)
}

/// The smallest case with this kind of difference.
fn shrink_difference(
    oracle: &mut Oracle,
    ours: &LocalOracle,
    case: &OracleCase,
    kind: &str,
    tries: usize,
) -> Result<OracleCase> {
    let mut failure = None;
    let small = shrink_case(case, tries, |candidate| {
        if failure.is_some() {
            return false;
        }
        match ask_both(oracle, ours, candidate) {
            Ok((.., difference)) => difference.is_some_and(|difference| difference.kind == kind),
            Err(error) => {
                failure = Some(error);
                false
            }
        }
    });
    match failure {
        Some(error) => Err(error),
        None => Ok(small),
    }
}

fn show(binary: &std::path::Path, ours: &LocalOracle, case: &OracleCase) -> Result<bool> {
    let mut oracle = Oracle::start(binary)?;
    show_with(&mut oracle, ours, case)
}

fn show_with(oracle: &mut Oracle, ours: &LocalOracle, case: &OracleCase) -> Result<bool> {
    let (theirs, mine, difference) = ask_both(oracle, ours, case)?;
    println!("question: {}", case.question());
    for deviation in deviations::of(case) {
        println!("known deviation: {}", deviation.text);
    }
    match &difference {
        Some(difference) => println!("difference: {}", difference.text),
        None => println!("kube-scheduler: {theirs}\nLoadmaster: {mine}"),
    }
    Ok(difference.is_none())
}

/// kube-scheduler's answer, Loadmaster's, and their first difference.
fn ask_both(
    oracle: &mut Oracle,
    ours: &LocalOracle,
    case: &OracleCase,
) -> Result<(Value, Value, Option<Difference>)> {
    let (theirs, mine) = (oracle.ask(&case.question())?, ours.answer_case(case));
    let ask = |case: &OracleCase| oracle.ask(&case.question());
    let difference = compare::compare(case, &theirs, &mine, ask)?;
    Ok((theirs, mine, difference))
}

/// Starts an oracle that answers one question after the other.
pub(crate) fn start(program: OracleProgram) -> Result<Oracle> {
    let binary = program.build()?;
    if !binary.exists() {
        bail!("{} was not built", binary.display());
    }
    Oracle::start(&binary)
}
