//! `cargo xtask oracle --old-configurations N`: reads random configuration files of all old versions, and Policies, with the old
//! schedulers that read them and with Loadmaster, and compares which files are accepted, the plugins at every extension point and their
//! arguments. With `--record FILE` the answers of the old schedulers are kept in a file, and with `--recorded FILE` they come from there, so that
//! nothing of old releases has to be built.

pub(super) mod answers;
mod compare;
mod expected;
mod generate;
mod plugin_args;
mod policy;
pub(super) mod version;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use loadmaster_api::document::Document;
use loadmaster_config::{AllFeatureGates, CheckedConfiguration, check_configuration};
use loadmaster_framework::Registry;
use serde_json::Value;

use answers::{Answers, RecordedQuestions, Subject};
use compare::Difference;
use version::{OldRelease, OldVersion, PluginTable};

/// Runs `n` files of every version of a seed, or one of them; returns whether there was no difference. The answers are written to `record`.
pub fn run(n: u64, seed: u64, only: Option<u64>, record: Option<&Path>) -> Result<bool> {
    let answers = Answers::from_programs(record.is_some())?;
    let (is_equal, answers) = compare_all(answers, n, seed, only)?;
    if let Some(file) = record {
        let subject = Subject::OldConfigurations;
        answers.write(file, RecordedQuestions { subject, cases: n, seed })?;
    }
    Ok(is_equal)
}

/// Runs the files whose answers were recorded.
pub fn run_recorded(questions: RecordedQuestions, answers: Answers) -> Result<bool> {
    let (is_equal, answers) = compare_all(answers, questions.cases, questions.seed, None)?;
    answers.check_all_used()?;
    Ok(is_equal)
}

fn compare_all(answers: Answers, n: u64, seed: u64, only: Option<u64>) -> Result<(bool, Answers)> {
    println!("oracle: --seed {seed} --old-configurations {n}");
    let mut comparison = Comparison::new(answers, seed)?;
    let n_versions = OldVersion::ALL.len() as u64;
    let mut found = Found::default();
    for id in only.map_or(0..n * n_versions, |id| id..id + 1) {
        let case = comparison.case(id)?;
        if only.is_some() {
            println!("{}", case.show());
        }
        found.add(case);
    }
    Ok((found.report(seed), comparison.answers))
}

/// A file with both answers.
#[derive(Clone, Debug)]
struct Case {
    id: u64,
    version: OldVersion,
    text: String,
    theirs: Value,
    ours: Value,
    differences: Vec<Difference>,
}

impl Case {
    fn show(&self) -> String {
        format!(
            "-- {} file:\n{}\n-- old scheduler: {}\n-- Loadmaster: {}",
            self.version.name(),
            self.text.trim_end(),
            self.theirs,
            self.ours
        )
    }
}

/// What is needed to compare files.
struct Comparison {
    seed: u64,
    answers: Answers,
    tables: BTreeMap<(OldVersion, OldRelease), PluginTable>,
    registry: Registry,
    gates: AllFeatureGates,
}

impl Comparison {
    fn new(mut answers: Answers, seed: u64) -> Result<Comparison> {
        let mut tables = BTreeMap::new();
        for version in OldVersion::ALL {
            for release in version.releases() {
                tables.insert(
                    (version, *release),
                    PluginTable::ask(&mut answers, *release, version)?,
                );
            }
        }
        let registry = loadmaster_plugins::in_tree_registry();
        let registry = loadmaster_scheduler_plugins::with_scheduler_plugins(registry);
        let registry = loadmaster_legacy_plugins::with_legacy_plugins(registry);
        Ok(Comparison { seed, answers, tables, registry, gates: AllFeatureGates::default() })
    }

    /// Case `id`: the version is that of the remainder.
    fn case(&mut self, id: u64) -> Result<Case> {
        let n_versions = OldVersion::ALL.len() as u64;
        let version = OldVersion::ALL[(id % n_versions) as usize];
        let releases = version.releases();
        let release = releases[(id / n_versions) as usize % releases.len()];
        let table = self.tables.get(&(version, release)).context("a table of plugins")?;
        let text = generate::file(self.seed, id, version, table)?;
        let theirs = self.answers.ask(release, &version.question(&text))?;
        let ours = read(&text, &self.registry, &self.gates);
        let differences = compare::differences(version, table, &theirs, &ours);
        Ok(Case { id, version, text, theirs, ours: compare::shown(&ours), differences })
    }
}

/// Loadmaster's answer.
fn read(
    text: &str,
    registry: &Registry,
    gates: &AllFeatureGates,
) -> Result<CheckedConfiguration, Vec<String>> {
    let document = Document::new("file", text);
    check_configuration(&document, registry, gates)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

/// Cases in which a kind of difference was found.
struct Kind {
    ids: Vec<u64>,
    /// The smallest of them.
    example: Case,
    text: String,
}

#[derive(Default)]
struct Found {
    /// By version: the number of files, of those that the old scheduler accepts, and of those with a difference.
    counts: BTreeMap<OldVersion, (u64, u64, u64)>,
    kinds: BTreeMap<(OldVersion, String), Kind>,
}

impl Found {
    fn add(&mut self, case: Case) {
        let (n_files, n_accepted, n_different) = self.counts.entry(case.version).or_default();
        *n_files += 1;
        *n_accepted += u64::from(case.theirs.get("errors").is_none());
        *n_different += u64::from(!case.differences.is_empty());
        for difference in &case.differences {
            let (example, text) = (case.clone(), difference.text.clone());
            let kind = self.kinds.entry((case.version, difference.kind.clone()));
            let kind = kind.or_insert_with(|| Kind { ids: Vec::new(), example, text });
            if kind.ids.last() != Some(&case.id) {
                kind.ids.push(case.id);
            }
            if case.text.len() < kind.example.text.len() {
                (kind.example, kind.text) = (case.clone(), difference.text.clone());
            }
        }
    }

    fn report(&self, seed: u64) -> bool {
        for ((version, name), kind) in &self.kinds {
            println!("\n== {} {name}: {} cases: {:?}", version.name(), kind.ids.len(), kind.ids);
            println!(
                "cargo xtask oracle --old-configurations 1 --seed {seed} --only {}",
                kind.example.id
            );
            println!("{}\n-- difference: {}", kind.example.show(), kind.text);
        }
        println!();
        for (version, (n_files, n_accepted, n_different)) in &self.counts {
            println!(
                "{}: {n_files} files, {n_accepted} accepted by the old scheduler, {n_different} with a difference",
                version.name()
            );
        }
        for ((version, name), kind) in &self.kinds {
            println!("{:4} {} {name}", kind.ids.len(), version.name());
        }
        println!("{} kinds of difference", self.kinds.len());
        self.kinds.is_empty()
    }
}
