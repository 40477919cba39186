//! Workloads whose allocations and instructions are counted: small, and the same in every run.
//!
//! All pods are made before the first decision. The first part of the decisions, in which every template occurs for the first time, is not
//! counted: a program that ends after it and one that does not differ in the counted decisions alone.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Result, bail};
use loadmaster_engine::{Decision, Scheduler};
use loadmaster_framework::{PodInfo, World};
use loadmaster_plugins::in_tree_registry;
use loadmaster_stdx::Rng;
use serde_json::json;

use crate::pod_source::{Change, PodSource, Shape};
use crate::preemption::Bench as FullCluster;
use crate::profile_of;
use crate::workload::{self, Kind};

/// Nodes of every workload but preemption.
const N_NODES: u32 = 1_000;
/// In a rollout something changes after this many decisions.
const DECISIONS_PER_CHANGE: u32 = 100;
/// Nodes of the cluster in which pods preempt others.
const N_FULL_NODES: u32 = 200;

/// A workload.
pub struct Counted {
    /// What it is called.
    pub name: &'static str,
    input: Input,
    /// Decisions before those that are counted.
    n_first: u32,
    /// Decisions that are counted.
    pub n_counted: u32,
}

enum Input {
    Pods { kind: Kind, shape: Shape, is_rollout: bool },
    Preemption,
}

/// All workloads.
pub const COUNTED: &[Counted] = &[
    pods("basic, bare", Kind::Basic, Shape::Bare, 1_000, 4_000),
    pods("affinity, clustered", Kind::Affinity, Shape::Clustered, 1_000, 2_000),
    pods("anti-affinity, 20 groups, bare", Kind::AntiAffinity, Shape::Bare, 1_000, 3_000),
    pods("mix of 40, clustered", Kind::Mix, Shape::Clustered, 1_000, 2_000),
    pods("1,000 signatures in turn, bare", Kind::RoundRobin, Shape::Bare, 1_000, 2_000),
    Counted {
        input: Input::Pods { kind: Kind::Mix, shape: Shape::Clustered, is_rollout: true },
        ..pods("mix of 40, in a rollout, clustered", Kind::Mix, Shape::Clustered, 1_000, 2_000)
    },
    pods("every pod different, bare", Kind::Different, Shape::Bare, 300, 1_000),
    Counted { name: "2 of 4 pods evicted", input: Input::Preemption, n_first: 10, n_counted: 50 },
];

const fn pods(
    name: &'static str,
    kind: Kind,
    shape: Shape,
    n_first: u32,
    n_counted: u32,
) -> Counted {
    Counted { name, input: Input::Pods { kind, shape, is_rollout: false }, n_first, n_counted }
}

/// The next thing that happens to a cluster.
enum Step {
    Change(Box<Change>),
    Schedule(PodInfo),
}

/// A workload after the decisions that are not counted.
pub struct Prepared(Remaining);

/// A cluster, and what remains to be done in it.
enum Remaining {
    Pods(Box<PodRun>),
    /// With the numbers of the pods that preempt others.
    Preemption(Box<FullCluster>, Range<u32>),
}

struct PodRun {
    name: &'static str,
    world: World,
    scheduler: Scheduler,
    steps: std::vec::IntoIter<Step>,
}

impl Counted {
    /// Makes the pods, and the decisions that are not counted.
    pub fn prepare(&self) -> Result<Prepared> {
        let Input::Pods { kind, shape, is_rollout } = self.input else {
            let mut cluster = FullCluster::new(N_FULL_NODES)?;
            (0..self.n_first).try_for_each(|_| cluster.preempt())?;
            let pods = self.n_first..self.n_first + self.n_counted;
            return Ok(Prepared(Remaining::Preemption(Box::new(cluster), pods)));
        };
        let mut world = workload::world(N_NODES, kind)?;
        let mut source = PodSource::new(kind, shape, |object| object.apply(&mut world))?;
        let profile = profile_of(&in_tree_registry(), json!({}), json!([]))?;
        let scheduler = Scheduler::new(profile, Rng::new(1));
        let (mut first, mut counted) = (Vec::new(), Vec::new());
        for nth in 0..self.n_first + self.n_counted {
            let steps = if nth < self.n_first { &mut first } else { &mut counted };
            if is_rollout && nth.is_multiple_of(DECISIONS_PER_CHANGE) {
                steps.push(Step::Change(Box::new(source.next_change()?)));
            }
            let pod = serde_json::from_value(source.next_pod())?;
            steps.push(Step::Schedule(world.parse_pod(&pod)?));
        }
        let steps = first.into_iter();
        let mut run = Box::new(PodRun { name: self.name, world, scheduler, steps });
        run.run()?;
        run.steps = counted.into_iter();
        Ok(Prepared(Remaining::Pods(run)))
    }
}

impl Prepared {
    /// The decisions that are counted.
    pub fn run(&mut self) -> Result<()> {
        match &mut self.0 {
            Remaining::Pods(run) => run.run(),
            Remaining::Preemption(cluster, pods) => pods.try_for_each(|_| cluster.preempt()),
        }
    }
}

impl PodRun {
    fn run(&mut self) -> Result<()> {
        for step in self.steps.by_ref() {
            let pod = match step {
                Step::Change(change) => {
                    change.apply(&mut self.world);
                    continue;
                }
                Step::Schedule(pod) => pod,
            };
            match self.scheduler.schedule_pod(&mut self.world, &pod) {
                Decision::Selected { row, .. } => {
                    self.world.add_pod(row, Arc::new(pod));
                }
                _ => bail!("{}: pod {} has no node", self.name, pod.name),
            }
        }
        Ok(())
    }
}
