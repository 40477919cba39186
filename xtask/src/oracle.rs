//! `cargo xtask oracle`: the same random questions to kube-scheduler and to us.
//!
//! A run is its seed: case 17 of a seed is always the same. The seed comes first, what was reached comes last, and every kind of
//! difference is shown once, with the smallest case that has it, which is also written as a scenario.

mod apply;
mod compare;
mod coverage;
mod deviations;
pub(crate) mod process;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::sync::mpsc;
use std::thread;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use loadmaster_sim::cases::answer::Answerer;
use loadmaster_sim::cases::{Case, Generator, shrink};
use loadmaster_sim::scenario;
use serde_json::Value;

use compare::Difference;
use coverage::Coverage;
use process::Oracle;

use crate::scenarios;

/// Ask kube-scheduler and us the same random questions.
#[derive(Parser)]
pub struct Args {
    /// How many questions.
    #[arg(long, default_value_t = 1_000)]
    cases: u64,
    /// Which questions; from the clock when not given.
    #[arg(long)]
    seed: Option<u64>,
    /// How many questions kube-scheduler works on at a time.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// So many questions about preemption instead of those of every kind.
    #[arg(long, value_name = "CASES", conflicts_with = "cases")]
    preemption: Option<u64>,
    /// So many histories of an object that managers update and apply to, asked of the API server's field manager.
    #[arg(long, value_name = "CASES", conflicts_with_all = ["cases", "preemption"])]
    apply: Option<u64>,
    /// Ask only the question with this number, and show both answers.
    #[arg(long)]
    only: Option<u64>,
    /// How often a smaller case may be tried per difference.
    #[arg(long, default_value_t = 3_000)]
    tries: usize,
    /// Do not write differences into scenarios/found.
    #[arg(long)]
    dry: bool,
}

impl Args {
    fn n_cases(&self) -> u64 {
        self.preemption.unwrap_or(self.cases)
    }

    /// What asks the same question again.
    fn again(&self, seed: u64, id: u64) -> String {
        let kind = if self.preemption.is_some() { " --preemption 1" } else { "" };
        format!("cargo xtask oracle{kind} --seed {seed} --only {id}")
    }
}

/// Answers whether there was no difference.
pub fn run(args: &Args) -> Result<bool> {
    let seed = args.seed.unwrap_or_else(process::seed_from_clock);
    if let Some(n) = args.apply {
        return apply::run(n, seed, args.only);
    }
    let binary = process::build()?;
    match args.preemption {
        Some(n) => println!("oracle: --seed {seed} --preemption {n}"),
        None => println!("oracle: --seed {seed} --cases {}", args.cases),
    }
    let ours =
        Answerer::new(loadmaster_plugins::in_tree()).context("making the default profile")?;
    let generator = match args.preemption {
        Some(_) => Generator::preemption(seed),
        None => Generator::new(seed, hinted_plugins(&ours)),
    };
    if let Some(id) = args.only {
        return show(&binary, &ours, &generator.case(id));
    }
    let watch = process::Watch::start();
    let found = ask_all(args, &binary, &ours, &generator)?;
    let seconds = watch.seconds();
    println!("{}", found.coverage);
    let n_cases = args.n_cases();
    let per_second = n_cases as f64 / seconds;
    println!("{n_cases} cases in {seconds:.1} s, {per_second:.0} cases/s");
    for (name, n) in &found.passed_over {
        println!("known deviation: {n} x {name}");
    }
    report(args, seed, &binary, &ours, found.differences)
}

/// Plugins that say what wakes their pods.
fn hinted_plugins(ours: &Answerer) -> Vec<String> {
    let plugins = ours.default_profiles().iter().flat_map(|profile| &profile.plugins);
    let hinted =
        plugins.filter(|plugin| plugin.events.as_ref().is_none_or(|events| !events.is_empty()));
    hinted.map(|plugin| plugin.name.to_owned()).collect()
}

#[derive(Default)]
struct Found {
    coverage: Coverage,
    passed_over: BTreeMap<&'static str, u64>,
    /// By kind: how many, and the smallest case seen.
    differences: BTreeMap<String, (u64, Case, Difference)>,
}

/// Streams the cases through the oracle; ours are answered here meanwhile.
fn ask_all(
    args: &Args,
    binary: &std::path::Path,
    ours: &Answerer,
    generator: &Generator,
) -> Result<Found> {
    let (mut child, stdin, stdout) = process::spawn(binary, args.workers)?;
    let mut found = Found::default();
    let (send, receive) = mpsc::sync_channel::<Case>(256);
    let outcome = thread::scope(|scope| -> Result<()> {
        let cases = generator.clone().take(usize::try_from(args.n_cases())?);
        let writer = scope.spawn(move || -> Result<()> {
            let mut stdin = BufWriter::new(stdin);
            for case in cases {
                writeln!(stdin, "{}", case.question()).context("asking the oracle")?;
                if send.send(case).is_err() {
                    break;
                }
            }
            stdin.flush().context("asking the oracle")
        });
        let mut lines = BufReader::new(stdout).lines();
        for case in receive {
            let line =
                lines.next().context("the oracle ended early")?.context("reading its answer")?;
            let theirs: Value = serde_json::from_str(&line).context("reading its answer")?;
            judge(&mut found, &case, &theirs, ours);
        }
        writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?
    });
    outcome?;
    child.wait().context("waiting for the oracle")?;
    Ok(found)
}

fn judge(found: &mut Found, case: &Case, theirs: &Value, ours: &Answerer) {
    found.coverage.add(case, theirs);
    if let Some(deviation) = deviations::of(case) {
        *found.passed_over.entry(deviation).or_default() += 1;
        return;
    }
    let Some(difference) = compare::compare(case, theirs, &ours.answer(case)) else { return };
    let entry = found.differences.entry(difference.kind.clone());
    let entry = entry.or_insert_with(|| (0, case.clone(), difference.clone()));
    entry.0 += 1;
    if case.n_bytes() < entry.1.n_bytes() {
        (entry.1, entry.2) = (case.clone(), difference);
    }
}

fn report(
    args: &Args,
    seed: u64,
    binary: &std::path::Path,
    ours: &Answerer,
    differences: BTreeMap<String, (u64, Case, Difference)>,
) -> Result<bool> {
    if differences.is_empty() {
        println!("no difference");
        return Ok(true);
    }
    let mut oracle = Oracle::start(binary)?;
    for (kind, (n, case, _)) in &differences {
        let small = make_smaller(&mut oracle, ours, case, kind, args.tries)?;
        println!("\n== {kind}: {n} cases, case {} of seed {seed} is one", case.id);
        show_with(&mut oracle, ours, &small)?;
        if !args.dry {
            let about = format!("Differs from kube-scheduler: {kind}.");
            let from = args.again(seed, case.id);
            match scenario::from_case(&small, &about, &from) {
                Some(text) => {
                    let path = scenarios::write_found(&mut oracle, ours, kind, text)?;
                    println!("written to {path}");
                }
                None => println!("(no scenario can say this)"),
            }
        }
    }
    println!("\n{} kinds of difference", differences.len());
    Ok(false)
}

/// The smallest case with this kind of difference.
fn make_smaller(
    oracle: &mut Oracle,
    ours: &Answerer,
    case: &Case,
    kind: &str,
    tries: usize,
) -> Result<Case> {
    let mut broken = None;
    let small = shrink(case, tries, |candidate| {
        if broken.is_some() || deviations::of(candidate).is_some() {
            return false;
        }
        match oracle.ask(&candidate.question()) {
            Ok(theirs) => {
                let difference = compare::compare(candidate, &theirs, &ours.answer(candidate));
                difference.is_some_and(|difference| difference.kind == kind)
            }
            Err(error) => {
                broken = Some(error);
                false
            }
        }
    });
    match broken {
        Some(error) => Err(error),
        None => Ok(small),
    }
}

fn show(binary: &std::path::Path, ours: &Answerer, case: &Case) -> Result<bool> {
    let mut oracle = Oracle::start(binary)?;
    show_with(&mut oracle, ours, case)
}

fn show_with(oracle: &mut Oracle, ours: &Answerer, case: &Case) -> Result<bool> {
    let (theirs, mine) = (oracle.ask(&case.question())?, ours.answer(case));
    println!("question: {}", case.question());
    match compare::compare(case, &theirs, &mine) {
        Some(difference) => {
            println!("difference: {}", difference.text);
            Ok(false)
        }
        None => {
            println!("both: {theirs}");
            Ok(true)
        }
    }
}

/// Asks one question after the other.
pub(crate) fn start() -> Result<Oracle> {
    let binary = process::build()?;
    if !binary.exists() {
        bail!("{} was not built", binary.display());
    }
    Oracle::start(&binary)
}
