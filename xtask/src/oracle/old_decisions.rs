//! `cargo xtask oracle --old-decisions N`: random clusters with configurations of old versions and Policies. The plugins of old schedulers and
//! those of Loadmaster filter and score every node for a pod; compared are the plugin that rejects each node, its reasons, and the scores of
//! each plugin with weights. Answers can be recorded, as those about configurations.

mod cluster;
mod compare;
mod configuration;
mod dice;
mod pods;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use loadmaster_sim::cases::local_oracle::LocalOracle;
use loadmaster_sim::cases::{OracleCase, OracleCaseKind, shrink_case};
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use cluster::{TARGET, Topics};
use compare::{Asked, Difference};
use configuration::ASKED;
use dice::Dice;

use super::old_configurations::answers::{Answers, RecordedQuestions, Subject};
use super::old_configurations::version::{OldRelease, OldVersion, PluginTable};

/// Runs `n` cases of every version of a seed, or one of them; returns whether there was no difference. For each kind of difference so many
/// smaller cases are tried. The answers are written to `record`.
pub fn run(
    n: u64,
    seed: u64,
    only: Option<u64>,
    tries: usize,
    record: Option<&Path>,
) -> Result<bool> {
    let mut comparison = Comparison::new(Answers::from_programs(record.is_some())?, seed)?;
    let found = compare_all(&mut comparison, n, only)?;
    if let Some(file) = record {
        let subject = Subject::OldDecisions;
        comparison.answers.write(file, RecordedQuestions { subject, cases: n, seed })?;
    }
    found.report(&mut comparison, tries)
}

/// Runs the cases whose answers were recorded.
pub fn run_recorded(questions: RecordedQuestions, answers: Answers) -> Result<bool> {
    let mut comparison = Comparison::new(answers, questions.seed)?;
    let found = compare_all(&mut comparison, questions.cases, None)?;
    comparison.answers.check_all_used()?;
    found.report(&mut comparison, 0)
}

fn compare_all(comparison: &mut Comparison, n: u64, only: Option<u64>) -> Result<Found> {
    println!("oracle: --seed {} --old-decisions {n}", comparison.seed);
    let n_asked = ASKED.len() as u64;
    let mut found = Found::default();
    for id in only.map_or(0..n * n_asked, |id| id..id + 1) {
        let case = comparison.case(id)?;
        let answers = comparison.ask(&case)?;
        if only.is_some() {
            println!("{}", case.show(&answers));
        }
        found.add(case, answers);
    }
    Ok(found)
}

/// A question to a release in the form of this version.
#[derive(Clone, Debug)]
struct Case {
    release: OldRelease,
    version: OldVersion,
    question: OracleCase,
}

impl Case {
    fn show(&self, answers: &BothAnswers) -> String {
        let config = self.question.config.as_ref().map_or(String::new(), Value::to_string);
        let objects: Vec<String> = self.question.objects.iter().map(Value::to_string).collect();
        format!(
            "-- {} {}: {config}\n-- objects:\n{}\n-- old scheduler: {}\n-- Loadmaster: {}",
            self.release.name(),
            self.version.name(),
            objects.join("\n"),
            answers.theirs,
            answers.ours
        )
    }

    fn size(&self) -> usize {
        let config = self.question.config.iter();
        self.question.objects.iter().chain(config).map(|it| it.to_string().len()).sum()
    }
}

#[derive(Clone)]
struct BothAnswers {
    theirs: Value,
    ours: Value,
    differences: Vec<Difference>,
}

/// What is needed to compare cases.
struct Comparison {
    seed: u64,
    answers: Answers,
    tables: BTreeMap<(OldRelease, OldVersion), PluginTable>,
    ours: LocalOracle,
}

impl Comparison {
    fn new(mut answers: Answers, seed: u64) -> Result<Comparison> {
        let mut tables = BTreeMap::new();
        for &(release, version) in ASKED {
            let table = PluginTable::ask(&mut answers, release, version)?;
            tables.insert((release, version), table);
        }
        let registry = loadmaster_plugins::in_tree_registry();
        let registry = loadmaster_legacy_plugins::with_legacy_plugins(registry);
        let ours = LocalOracle::new(registry).context("creating the default profile")?;
        Ok(Comparison { seed, answers, tables, ours })
    }

    /// Case `id`: the version is that of the remainder.
    fn case(&self, id: u64) -> Result<Case> {
        let (release, version) = ASKED[(id % ASKED.len() as u64) as usize];
        let table = self.tables.get(&(release, version)).context("a table of plugins")?;
        let rng = Rng::new(self.seed).split("old decisions").split(&id.to_string());
        let mut dice = Dice::new(rng.split("configuration"));
        let config = configuration::configuration(&mut dice, version, table);
        let mut dice = Dice::new(rng.split("cluster"));
        let mut topics = Topics::draw(&mut dice);
        let text = config.to_string();
        // VolumeBinding learns of claims from informers only, which do not run.
        topics.claims &= version == OldVersion::Policy || text.contains("\"*\"");
        // Up to 1.22, PodTopologySpread also counted pods on nodes that the node affinity of the pod excludes, or that lack a label of
        // another required constraint.
        topics.many_required_constraints = release > OldRelease::V1_22;
        let is_spread = topics.spread || text.contains("DoNotSchedule");
        topics.node_affinity &= release > OldRelease::V1_22 || !is_spread;
        topics.always_has_owner = release == OldRelease::V1_18;
        // Of several services, 1.22 and 1.18 take any for the score of ServiceAffinity.
        topics.many_services = !text.contains("erviceAffinity") && !text.contains("AntiAffinity");
        let mut objects = cluster::objects(&mut dice, topics);
        if let Some(name) = config.get("schedulerName")
            && let Some(pod) = objects.iter_mut().find(|object| cluster::is_target(object))
        {
            pod["spec"]["schedulerName"] = name.clone();
        }
        let question = OracleCase {
            id,
            pod: TARGET.to_owned(),
            config: Some(config),
            feature_gates: BTreeMap::new(),
            objects,
            kind: OracleCaseKind::Explain,
        };
        Ok(Case { release, version, question })
    }

    fn ask(&mut self, case: &Case) -> Result<BothAnswers> {
        let OracleCase { config, objects, pod, .. } = &case.question;
        let question = json!({
            "kind": "decide",
            "text": config.as_ref().map_or(String::new(), Value::to_string),
            "isPolicy": case.version == OldVersion::Policy,
            "objects": objects,
            "pod": pod,
        });
        let theirs = self.answers.ask(case.release, &question)?;
        let ours = self.ours.answer_case(&case.question);
        let target = objects.iter().find(|object| cluster::is_target(object));
        let asked = Asked::new(case.release, target.unwrap_or(&Value::Null));
        let differences = compare::differences(&asked, &theirs, &ours);
        Ok(BothAnswers { theirs, ours, differences })
    }

    /// A smaller case with a difference of this kind.
    fn shrink(&mut self, case: &Case, kind: &str, tries: usize) -> Result<Case> {
        let mut failure = None;
        let question = shrink_case(&case.question, tries, |candidate| {
            if failure.is_some() || !is_complete(candidate, &case.question) {
                return false;
            }
            let candidate = Case { question: candidate.clone(), ..case.clone() };
            match self.ask(&candidate) {
                Ok(answers) => answers.differences.iter().any(|difference| difference.kind == kind),
                Err(error) => {
                    failure = Some(error);
                    false
                }
            }
        });
        match failure {
            Some(error) => Err(error),
            None => Ok(Case { question, ..case.clone() }),
        }
    }
}

/// Whether a smaller question has what would otherwise be defaulted.
fn is_complete(question: &OracleCase, original: &OracleCase) -> bool {
    let Some(config) = &question.config else { return false };
    let fields = original.config.as_ref().and_then(Value::as_object).into_iter().flatten();
    let mut nodes = question.objects.iter().filter(|object| object["kind"] == "Node");
    fields.into_iter().all(|(field, _)| config.get(field).is_some())
        && nodes.all(|node| node["status"]["allocatable"].is_object())
}

/// Cases in which a kind of difference was found.
struct Kind {
    ids: Vec<u64>,
    /// The smallest of them.
    example: Case,
    answers: BothAnswers,
}

/// What the cases of a version were about.
#[derive(Default)]
struct Counts {
    n_cases: u64,
    n_errors: u64,
    n_nodes: u64,
    n_feasible: u64,
    n_different: u64,
    /// By plugin: how many nodes it rejected, and in how many cases it gave nodes different scores.
    rejecting: BTreeMap<String, u64>,
    preferring: BTreeMap<String, u64>,
}

impl Counts {
    fn add(&mut self, answers: &BothAnswers) {
        self.n_cases += 1;
        self.n_errors += u64::from(answers.theirs.get("errors").is_some());
        self.n_different += u64::from(!answers.differences.is_empty());
        let mut scores: BTreeMap<&String, Vec<&Value>> = BTreeMap::new();
        for node in answers.theirs["nodes"].as_array().into_iter().flatten() {
            self.n_nodes += 1;
            match node["filter"]["plugin"].as_str() {
                Some(plugin) => *self.rejecting.entry(plugin.to_owned()).or_default() += 1,
                None => self.n_feasible += 1,
            }
            for (plugin, score) in node["scores"].as_object().into_iter().flatten() {
                scores.entry(plugin).or_default().push(score);
            }
        }
        for (plugin, scores) in scores {
            if scores.iter().any(|score| score != &scores[0]) {
                *self.preferring.entry(plugin.clone()).or_default() += 1;
            }
        }
    }
}

#[derive(Default)]
struct Found {
    counts: BTreeMap<(OldRelease, OldVersion), Counts>,
    kinds: BTreeMap<(OldRelease, String), Kind>,
}

impl Found {
    fn add(&mut self, case: Case, answers: BothAnswers) {
        self.counts.entry((case.release, case.version)).or_default().add(&answers);
        for difference in &answers.differences {
            let kind = self.kinds.entry((case.release, difference.kind.clone()));
            let kind = kind.or_insert_with(|| Kind {
                ids: Vec::new(),
                example: case.clone(),
                answers: answers.clone(),
            });
            if kind.ids.last() != Some(&case.question.id) {
                kind.ids.push(case.question.id);
            }
            if case.size() < kind.example.size() {
                (kind.example, kind.answers) = (case.clone(), answers.clone());
            }
        }
    }

    /// Shows every kind of difference with its smallest case, or a smaller one if other questions can be asked.
    fn report(self, comparison: &mut Comparison, tries: usize) -> Result<bool> {
        for ((release, name), kind) in &self.kinds {
            println!("\n== {} {name}: {} cases: {:?}", release.name(), kind.ids.len(), kind.ids);
            println!(
                "cargo xtask oracle --old-decisions 1 --seed {} --only {}",
                comparison.seed, kind.example.question.id
            );
            let (case, answers) = if comparison.answers.are_recorded() {
                (kind.example.clone(), kind.answers.clone())
            } else {
                let small = comparison.shrink(&kind.example, name, tries)?;
                let answers = comparison.ask(&small)?;
                (small, answers)
            };
            println!("{}", case.show(&answers));
            for difference in answers.differences.iter().filter(|it| it.kind == *name) {
                println!("-- difference: {}", difference.text);
            }
        }
        println!();
        for ((release, version), counts) in &self.counts {
            println!(
                "{} {}: {} cases ({} errors), {} nodes, {} feasible, {} cases with a difference",
                release.name(),
                version.name(),
                counts.n_cases,
                counts.n_errors,
                counts.n_nodes,
                counts.n_feasible,
                counts.n_different
            );
            println!("  nodes rejected by: {}", show_counts(&counts.rejecting));
            println!("  cases with different scores of: {}", show_counts(&counts.preferring));
        }
        for ((release, name), kind) in &self.kinds {
            println!("{:4} {} {name}", kind.ids.len(), release.name());
        }
        println!("{} kinds of difference", self.kinds.len());
        Ok(self.kinds.is_empty())
    }
}

fn show_counts(counts: &BTreeMap<String, u64>) -> String {
    let shown: Vec<String> = counts.iter().map(|(name, n)| format!("{name} {n}")).collect();
    shown.join(", ")
}
