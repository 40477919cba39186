//! A run that is kept current from the world's log, as the engine keeps it, and held against the
//! one-node methods.
//!
//! [`super::Bench::check_incremental`] makes a run anew each time, so it cannot see that an answer
//! went stale. This does: a plugin that reads more than its [`Reads`] admit is found out by a
//! random history.

use loadmaster_stdx::Rng;
use serde_json::Value;

use super::{Answer, Bench, BenchError, compare, verdict};
use crate::pod::PodInfo;
use crate::prepare::{Classes, Prepared, Reads, RowPart, Run, Words};
use crate::table::Row;
use crate::world::{Change, World};

/// Pods asked about all through a history.
const N_PODS: usize = 4;

/// Runs a random history: keeps the answers for a few pods current over `n_steps` changes of the bench's world, and compares
/// after each. `change` makes one change and names its kind, for the error.
pub fn check_history(
    bench: &mut Bench,
    rng: &mut Rng,
    n_steps: u64,
    mut pod: impl FnMut(&mut Rng) -> Value,
    mut change: impl FnMut(&mut Bench, &mut Rng) -> Answer<&'static str>,
) -> Answer<()> {
    let mut all = Vec::new();
    for _ in 0..N_PODS {
        let pod = bench.pod(pod(rng))?;
        all.push(Kept::new(bench, pod));
    }
    for step in 0..n_steps {
        let what = change(bench, rng)?;
        for (at, kept) in all.iter_mut().enumerate() {
            kept.check(bench)
                .map_err(|error| BenchError(format!("step {step} ({what}), pod {at}: {error}")))?;
        }
    }
    all.into_iter().for_each(|kept| kept.release(bench));
    Ok(())
}

/// The answers for one pod, kept current.
struct Kept {
    pod: PodInfo,
    prepared: Prepared,
    /// What was asked of each row; `None` for rows that a row-local filter turns down and for free
    /// ones.
    rows: Vec<Option<RowAnswer>>,
    seen: u64,
}

/// What a run says about one row.
#[derive(Clone)]
struct RowAnswer {
    local: i64,
    words: Words,
}

impl Kept {
    /// Asks the plugin of the bench about this pod.
    fn new(bench: &mut Bench, pod: PodInfo) -> Kept {
        let prepared = Kept::prepare(bench, &pod);
        let mut kept = Kept { pod, prepared, rows: Vec::new(), seen: bench.world.now() };
        kept.read_all(&bench.world);
        kept
    }

    /// Takes in what happened to the bench's world, and compares.
    fn check(&mut self, bench: &mut Bench) -> Answer<()> {
        self.catch_up(bench);
        let naive = bench.one_by_one(&self.pod);
        match &self.prepared {
            Prepared::OneByOne => Ok(()),
            Prepared::Rejected(rejection) => {
                let want = verdict(Err(rejection.clone()));
                let differs = naive.filters.iter().any(|(_, verdict)| *verdict != want);
                if differs { Err(BenchError(format!("not {want} everywhere"))) } else { Ok(()) }
            }
            Prepared::Skip => compare(&bench.world, &naive, |_| true, |_| 0),
            Prepared::Run(run) => {
                let answers = self.answers(&bench.world, &**run);
                let score = |row: Row| answers[row.index()].unwrap_or(0);
                compare(&bench.world, &naive, |row| answers[row.index()].is_some(), score)
            }
        }
    }

    /// Gives back what the plugin took from the world.
    fn release(mut self, bench: &mut Bench) {
        if let Prepared::Run(run) = &mut self.prepared {
            run.release(&mut bench.world);
        }
    }

    fn prepare(bench: &mut Bench, pod: &PodInfo) -> Prepared {
        match bench.points.prepare.clone() {
            Some(plugin) => plugin.prepare(&mut bench.world, pod),
            None => Prepared::OneByOne,
        }
    }

    fn catch_up(&mut self, bench: &mut Bench) {
        let changes = bench.world.changes_since(self.seen).map(<[Change]>::to_vec);
        let is_lost = changes.as_ref().is_none_or(|all| all.contains(&Change::Everything));
        let is_stale =
            !is_lost && matches!(&self.prepared, Prepared::Run(run) if run.is_stale(&bench.world));
        if is_lost || is_stale {
            if let Prepared::Run(run) = &mut self.prepared {
                run.release(&mut bench.world);
            }
            self.prepared = Kept::prepare(bench, &self.pod);
            self.read_all(&bench.world);
        } else {
            for change in changes.unwrap_or_default() {
                self.take_in(&bench.world, change);
            }
        }
        self.seen = bench.world.now();
    }

    fn read_all(&mut self, world: &World) {
        self.rows = vec![None; world.nodes().n_rows()];
        let Prepared::Run(run) = &self.prepared else { return };
        for row in world.nodes().rows() {
            self.rows[row.index()] = read(world, &**run, row);
        }
    }

    fn take_in(&mut self, world: &World, change: Change) {
        self.rows.resize(world.nodes().n_rows(), None);
        let Prepared::Run(run) = &self.prepared else { return };
        let Reads { filter, score, class, node_set } = run.reads();
        match change {
            Change::Node(row) => self.rows[row.index()] = read(world, &**run, row),
            Change::Pods(row) => {
                let fresh = read(world, &**run, row);
                let reads_pods = |part: Option<RowPart>| part == Some(RowPart::Pods);
                match (&mut self.rows[row.index()], fresh) {
                    (kept, fresh) if reads_pods(filter) => *kept = fresh,
                    (Some(kept), Some(fresh)) => {
                        if reads_pods(score) {
                            kept.local = fresh.local;
                        }
                        if reads_pods(class) {
                            kept.words = fresh.words;
                        }
                    }
                    _ => {}
                }
            }
            Change::NodeSet if node_set => {
                for row in world.nodes().rows() {
                    self.rows[row.index()] = read(world, &**run, row);
                }
            }
            Change::NodeSet | Change::Everything => {}
        }
    }

    /// By row, the score of those that pass.
    fn answers(&self, world: &World, run: &dyn Run) -> Vec<Option<i64>> {
        let mut words: Vec<Words> = Vec::new();
        let mut rows: Vec<u32> = Vec::new();
        let classes: Vec<Option<usize>> = (self.rows.iter())
            .map(|row| {
                let mine = &row.as_ref()?.words;
                let class = words.iter().position(|known| known == mine).unwrap_or_else(|| {
                    words.push(mine.clone());
                    rows.push(0);
                    rows.len() - 1
                });
                rows[class] += 1;
                Some(class)
            })
            .collect();
        let feasible: Vec<bool> =
            words.iter().map(|words| run.class_filter(world, words)).collect();
        let mut scores = vec![0; words.len()];
        if run.scores_classes() {
            let n_words = run.n_words();
            let words = words.concat();
            let classes = Classes {
                words: &words,
                stride: n_words,
                offset: 0,
                n_words,
                rows: &rows,
                feasible: &feasible,
            };
            run.class_score(world, &classes, &mut scores);
        }
        let score = |(row, class): (&Option<RowAnswer>, &Option<usize>)| {
            let (row, class) = (row.as_ref()?, (*class)?);
            feasible[class].then(|| row.local + scores[class])
        };
        self.rows.iter().zip(&classes).map(score).collect()
    }
}

fn read(world: &World, run: &dyn Run, row: Row) -> Option<RowAnswer> {
    let nodes = world.nodes();
    if nodes.node(row).is_none() || !run.filter_row(nodes, row) {
        return None;
    }
    let mut words = Words::new();
    run.class_row(world, row, &mut words);
    Some(RowAnswer { local: run.score_row(nodes, row), words })
}
