//! Decisions per second, for bare pods and for pods as they are in a cluster.
//!
//! Three rates are measured: (a) deciding and assuming a parsed pod, which is shared with the queue as in the engine, (b) the same with
//! parsing a decoded pod, (c) the same with decoding it from protobuf. What comes before the part that is measured is done before the clock
//! starts. The first fifth of the pods, in which every template occurs for the first time, does not count.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use loadmaster_api::Pod;
use loadmaster_api::proto::decode_as;
use loadmaster_apiserver::{protobuf, schema};
use loadmaster_engine::{Decision, Scheduler};
use loadmaster_framework::{PodInfo, World};
use loadmaster_plugins::in_tree_registry;
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use crate::data_items::DataItem;
use crate::pod_source::{Change, PodSource, Shape};
use crate::profile_of;
use crate::workload::{self, Kind};

/// In a rollout something changes after this many decisions.
const DECISIONS_PER_CHANGE: u32 = 100;

/// Pods are made before this many decisions. Making them empties the caches of the processor: with 2,000 decisions in a batch, those about
/// clustered pods took 13 to 20 % longer.
const DECISIONS_PER_BATCH: u32 = 10_000;

/// Before so many decisions and deletions their pods are decoded, or, if they are parsed already, read once more: a scheduler that keeps up decides
/// about pods that it has just received, and those that were parsed up to 10,000 decisions before come from memory.
const STEPS_PER_GROUP: usize = 64;

/// Pods whose decision is measured one by one at the end, each the first of its key.
const N_NEW_KEYS: u32 = 5;

/// Pods that run at the same time where pods are deleted.
const N_RUNNING: usize = 1_000;

/// How much of taking in a pod is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    Parsed,
    Decoded,
    Protobuf,
}

const ALL_INPUTS: &[Input] = &[Input::Parsed, Input::Decoded, Input::Protobuf];

/// A row of the table.
struct Row {
    name: &'static str,
    kind: Kind,
    n_nodes: u32,
    n_pods: u32,
    /// Whether objects that pods depend on change all the time.
    is_rollout: bool,
    /// The name of the row that it is compared with.
    compared_with: Option<&'static str>,
    /// The columns that are measured.
    inputs: &'static [Input],
}

const ROWS: &[Row] = &[
    row("basic", Kind::Basic, 100_000),
    row("basic with deletes", Kind::BasicWithDeletes, 100_000),
    row("zone + hostname spread", Kind::Spread, 100_000),
    row("anti-affinity, 20 groups", Kind::AntiAffinity, 60_000),
    row("affinity", Kind::Affinity, 60_000),
    row("spread over 1,000 racks", Kind::Racks, 60_000),
    row("mix of 40", Kind::Mix, 60_000),
    row("1,000 signatures in turn", Kind::RoundRobin, 30_000),
    Row {
        compared_with: Some("basic"),
        ..row("labels of every pod differ", Kind::LabelsDiffer, 60_000)
    },
    row("every pod different", Kind::Different, 20_000),
    row("20,000 pairs of requests, 50 sets of selectors and tolerations", Kind::Pairs, 20_000),
    Row {
        is_rollout: true,
        compared_with: Some("mix of 40"),
        ..row("mix of 40, in a rollout", Kind::Mix, 60_000)
    },
    row("examples/sample-plugin", Kind::SamplePlugin, 10_000),
    large_row("basic, 100,000 nodes", Kind::Basic),
    large_row("zone + hostname spread, 100,000 nodes", Kind::Spread),
    large_row("anti-affinity, 20 groups, 100,000 nodes", Kind::AntiAffinity),
    Row {
        n_nodes: 1_000_000,
        inputs: &[Input::Parsed],
        ..row("basic, 1,000,000 nodes", Kind::Basic, 1_000_000)
    },
];

const fn row(name: &'static str, kind: Kind, n_pods: u32) -> Row {
    Row {
        name,
        kind,
        n_nodes: 5_000,
        n_pods,
        is_rollout: false,
        compared_with: None,
        inputs: ALL_INPUTS,
    }
}

const fn large_row(name: &'static str, kind: Kind) -> Row {
    Row { n_nodes: 100_000, ..row(name, kind, 60_000) }
}

/// Prints and returns the rates of all rows whose name and shape contain the text.
pub fn measure(wanted: &str) -> Result<Vec<DataItem>> {
    let mut items = Vec::new();
    println!(
        "| workload, 5,000 nodes unless said | pods | (a) per second | (b) | (c) | keys | ms, first pod of a new key | peak RSS MiB | (a), share of a row |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for row in ROWS {
        for (shape, name) in [(Shape::Bare, "bare"), (Shape::Clustered, "clustered")] {
            if format!("{}, {name}", row.name).contains(wanted) {
                print_row(row, shape, name, &mut items)?;
            }
        }
    }
    Ok(items)
}

/// Runs a workload whose pods are parsed before, in a cluster of this many nodes.
pub(crate) fn run_in_cluster_of(
    n_nodes: u32,
    kind: Kind,
    shape: Shape,
    n_pods: u32,
) -> Result<Rates> {
    run(&Row { n_nodes, ..row("cost against nodes", kind, n_pods) }, shape, Input::Parsed)
}

fn print_row(row: &Row, shape: Shape, shape_name: &str, items: &mut Vec<DataItem>) -> Result<()> {
    let name = format!("{}, {shape_name}", row.name);
    let mut per_second = Vec::new();
    let (mut n_keys, mut new_key_ms, mut peak_mib) = (0, 0.0, 0);
    for &input in row.inputs {
        let rates = run(row, shape, input)?;
        per_second.push(format!("{:.0}", rates.per_second));
        let item = DataItem::new(&name, "DecisionsPerSecond", "decisions/s");
        let item = item.with("Average", rates.per_second);
        items.push(item.with_label("Input", format!("{input:?}")));
        // Decoding and parsing do not change these, and parsed pods take the least memory.
        if input == Input::Parsed {
            (n_keys, new_key_ms, peak_mib) = (rates.n_keys, rates.new_key_ms, rates.peak_mib);
        }
    }
    items.push(DataItem::new(&name, "FirstPodOfNewKey", "ms").with("Perc50", new_key_ms));
    items.push(DataItem::new(&name, "PeakRSS", "MiB").with("Max", peak_mib as f64));
    per_second.resize(ALL_INPUTS.len(), "-".to_owned());
    let mut share = "-".to_owned();
    if let Some(other) = row.compared_with {
        let other = ROWS.iter().find(|it| it.name == other).context("no such row")?;
        let n_pods = row.n_pods.min(other.n_pods);
        let rates = rates_in_turns([row, other].map(|it| Row { n_pods, ..*it }), shape)?;
        let value = rates[0] / rates[1];
        let item = DataItem::new(&name, "ShareOfRate", "").with("Average", value);
        items.push(item.with_label("ComparedWith", other.name.to_owned()));
        share = format!("{value:.2} of {}", other.name);
    }
    println!(
        "| {} | {shape_name} | {} | {n_keys} | {new_key_ms:.2} | {peak_mib} | {share} |",
        row.name,
        per_second.join(" | ")
    );
    Ok(())
}

/// What one run of a row gives.
pub(crate) struct Rates {
    /// Decisions per second, without the first fifth of the pods.
    pub per_second: f64,
    /// Number of keys that plugins prepared evaluators for.
    n_keys: usize,
    /// Median time of the decision about a pod that is the first of its key, in milliseconds.
    pub new_key_ms: f64,
    /// Peak resident set size since the run began, with what the allocator keeps from runs before.
    pub peak_mib: u64,
}

fn run(row: &Row, shape: Shape, input: Input) -> Result<Rates> {
    reset_peak_rss();
    let mut bench = Bench::new(row, shape, input)?;
    let [per_second] = run_in_turns([&mut bench])?;
    Ok(Rates {
        per_second,
        n_keys: bench.scheduler.cache_size().keys,
        new_key_ms: bench.time_new_keys()?.as_secs_f64() * 1e3,
        peak_mib: peak_rss_mib().context("reading the peak resident set size")?,
    })
}

/// The rates of two rows with parsed pods, of which batches are run in turns: the speed of a machine may change within seconds.
fn rates_in_turns(rows: [Row; 2], shape: Shape) -> Result<[f64; 2]> {
    let [one, other] = &rows;
    let mut one = Bench::new(one, shape, Input::Parsed)?;
    let mut other = Bench::new(other, shape, Input::Parsed)?;
    run_in_turns([&mut one, &mut other])
}

/// Runs rows with the same number of pods, batch by batch in turns; returns decisions per second.
fn run_in_turns<const N: usize>(mut benches: [&mut Bench<'_>; N]) -> Result<[f64; N]> {
    let n_pods = benches[0].row.n_pods;
    // At least five batches, of which the first is a fifth.
    let n_per_batch = DECISIONS_PER_BATCH.min(n_pods / 5);
    let n_batches = n_pods / n_per_batch;
    let mut times = [Duration::ZERO; N];
    for nth in 0..n_batches {
        for (bench, time) in benches.iter_mut().zip(&mut times) {
            let elapsed = bench.run_batch(n_per_batch)?;
            *time += if nth < n_batches / 5 { Duration::ZERO } else { elapsed };
        }
    }
    let n_counted = n_per_batch * (n_batches - n_batches / 5);
    Ok(times.map(|time| f64::from(n_counted) / time.as_secs_f64()))
}

/// A run of a row.
struct Bench<'a> {
    row: &'a Row,
    input: Input,
    world: World,
    pods: PodSource,
    scheduler: Scheduler,
    /// The uids of the pods that may be deleted.
    running: Vec<Box<str>>,
    rng: Rng,
}

/// The next thing that happens.
enum Step<T> {
    Change(Box<Change>),
    Schedule(T),
    /// A running pod with this uid is deleted.
    Delete(Box<str>),
}

/// Brings the pods of these steps into another form. The uid of a deleted pod is that of an event, which is new, not one that was kept since
/// the pod was made, which would have to come from memory.
fn map_pods<T, U>(
    steps: impl IntoIterator<Item = Step<T>>,
    mut map: impl FnMut(T) -> Result<U>,
) -> Result<Vec<Step<U>>> {
    let steps = steps.into_iter().map(|step| {
        Ok(match step {
            Step::Schedule(pod) => Step::Schedule(map(pod)?),
            Step::Change(change) => Step::Change(change),
            Step::Delete(uid) => Step::Delete(uid.clone()),
        })
    });
    steps.collect()
}

impl Bench<'_> {
    fn new(row: &Row, shape: Shape, input: Input) -> Result<Bench<'_>> {
        let (mut registry, mut profile) = (in_tree_registry(), json!({}));
        if row.kind == Kind::SamplePlugin {
            registry = registry.with(sample_plugin::DEF);
            profile = workload::sample_plugin();
        }
        let mut world = workload::world(row.n_nodes, row.kind)?;
        let pods = PodSource::new(row.kind, shape, |object| object.apply(&mut world))?;
        let scheduler = Scheduler::new(profile_of(&registry, profile, json!([]))?, Rng::new(1));
        Ok(Bench { row, input, world, pods, scheduler, running: Vec::new(), rng: Rng::new(7) })
    }

    /// Schedules this many pods, in a rollout with changes between them; returns the time that it took.
    fn run_batch(&mut self, n_pods: u32) -> Result<Duration> {
        let steps = self.make_steps(n_pods)?;
        let decode = |bytes: &[u8]| Ok(decode_as::<Pod>(bytes)?);
        let parse = |world: &mut World, pod: &Pod| Ok(Arc::new(world.parse_pod(pod)?));
        match self.input {
            Input::Parsed => {
                // Decoding is no part of this rate. Between groups it would replace what is in the caches of the processor.
                let parse_bytes = |bytes: Vec<u8>| parse(&mut self.world, &decode(&bytes)?);
                let steps = map_pods(steps, parse_bytes)?;
                let read = |pod: Arc<PodInfo>| {
                    black_box(PodInfo::clone(&pod));
                    Ok(pod)
                };
                self.run_groups(steps, read, |_, pod| Ok(pod))
            }
            Input::Decoded => {
                self.run_groups(steps, |bytes| decode(&bytes), |world, pod| parse(world, &pod))
            }
            Input::Protobuf => self.run_groups(
                steps,
                // As if they were read from a connection now.
                |bytes| Ok(bytes.clone()),
                |world, bytes| parse(world, &decode(&bytes)?),
            ),
        }
    }

    /// The next pods, encoded, the changes of a rollout, and which pods are deleted.
    fn make_steps(&mut self, n_pods: u32) -> Result<Vec<Step<Vec<u8>>>> {
        let kind = schema::schema().find_kind("", "v1", "Pod").context("no pods")?;
        let mut steps = Vec::new();
        for nth in 0..n_pods {
            if self.row.is_rollout && nth.is_multiple_of(DECISIONS_PER_CHANGE) {
                steps.push(Step::Change(Box::new(self.pods.next_change()?)));
            }
            let pod = self.pods.next_pod();
            let deleted = self.next_deletion(&pod);
            steps.push(Step::Schedule(protobuf::encode_object(kind, &pod)));
            steps.extend(deleted.map(Step::Delete));
        }
        Ok(steps)
    }

    /// The uid of the pod that is deleted after this one was scheduled.
    fn next_deletion(&mut self, pod: &Value) -> Option<Box<str>> {
        if self.row.kind != Kind::BasicWithDeletes {
            return None;
        }
        self.running.extend(pod["metadata"]["uid"].as_str().map(Box::from));
        let at = self.rng.below(self.running.len() as u64) as usize;
        (self.running.len() > N_RUNNING).then(|| self.running.swap_remove(at))
    }

    /// Runs the steps in groups, before each of which its pods are brought into the form that is taken in; returns the time that the steps took.
    fn run_groups<T, U>(
        &mut self,
        steps: Vec<Step<T>>,
        mut prepare: impl FnMut(T) -> Result<U>,
        mut take_in: impl FnMut(&mut World, U) -> Result<Arc<PodInfo>>,
    ) -> Result<Duration> {
        let mut elapsed = Duration::ZERO;
        let mut steps = steps.into_iter();
        while !steps.as_slice().is_empty() {
            let group = map_pods(steps.by_ref().take(STEPS_PER_GROUP), &mut prepare)?;
            elapsed += self.run_steps(group, &mut take_in)?;
        }
        Ok(elapsed)
    }

    /// Applies changes, takes in pods, and decides and assumes each; returns the time that it took.
    fn run_steps<T>(
        &mut self,
        steps: Vec<Step<T>>,
        mut take_in: impl FnMut(&mut World, T) -> Result<Arc<PodInfo>>,
    ) -> Result<Duration> {
        let start = Instant::now();
        for step in steps {
            match step {
                Step::Change(change) => change.apply(&mut self.world),
                Step::Schedule(pod) => {
                    let pod = take_in(&mut self.world, pod)?;
                    self.schedule_pod(pod)?;
                }
                Step::Delete(uid) => _ = self.world.remove_pod(&uid),
            }
        }
        Ok(start.elapsed())
    }

    /// Decides about a pod and assumes it. Every pod fits.
    fn schedule_pod(&mut self, pod: Arc<PodInfo>) -> Result<()> {
        match self.scheduler.schedule_pod(&mut self.world, &pod) {
            Decision::Selected { row, .. } => {
                self.world.add_pod(row, pod);
                Ok(())
            }
            _ => bail!("{}: pod {} has no node", self.row.name, pod.name),
        }
    }

    /// The median time of decisions about pods that are the first of their key.
    fn time_new_keys(&mut self) -> Result<Duration> {
        let mut times = Vec::new();
        for nth in 0..N_NEW_KEYS {
            let pod = serde_json::from_value(self.pods.pod_of_new_key(nth))?;
            let pod = Arc::new(self.world.parse_pod(&pod)?);
            let start = Instant::now();
            self.schedule_pod(pod)?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        Ok(times[times.len() / 2])
    }
}

/// Lets the peak resident set size begin anew, where the kernel can do that.
fn reset_peak_rss() {
    // Else the peak is that of the whole process.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The peak resident set size from `/proc`; 0 where there is no `/proc`.
fn peak_rss_mib() -> Option<u64> {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return Some(0) };
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib / 1024)
}
