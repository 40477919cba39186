//! A cluster in memory: nodes, pods, the controllers that make pods, kubelets that only pretend, and the engine deciding pod after pod.
//!
//! It is pure: time is a number that [`Cluster::advance`] moves to the next thing due, chance comes from a seed, and equal inputs give
//! equal runs. Whoever owns it paces it. Time stands still while pods are decided, so that a slow machine decides the same.
//!
//! ```text
//! manifests ──► controllers ──► PreEnqueue ──► activeQ ──► engine ──► kubelets ──► Running ──► Succeeded
//!                   ▲                            ▲           │                                    │
//!                   │                            └─ backoff ─┴─ turned down, until an event        │
//!                   └────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Of a profile these extension points run here: PreEnqueue, QueueSort, PreFilter, Filter, PreScore, Score. The cluster itself binds.

mod admission;
mod controller;
mod cycle;
mod load;
mod look;
mod names;
mod queue;
pub mod sample;
mod why;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use loadmaster_api::{Node, Pod, PriorityClass, Str, Timestamp};
use loadmaster_engine::queue::node_update_events;
use loadmaster_engine::{Profile, Scheduler};
use loadmaster_framework::template::TemplateId;
use loadmaster_framework::world::World;
use loadmaster_framework::{
    Action, EventObject, EventResource, FeatureGates, PodInfo, TemplateError, cluster as objects,
};
use loadmaster_stdx::{Map, Rng};

use admission::Admission;
pub use admission::UnknownClass;
pub use controller::{Kind, RUN_SECONDS, Workload};
use controller::{Owner, OwnerId};
pub use look::{NodeLoad, Pending, Share, Zone};
use queue::{ActiveQ, Waiting};
pub use why::Why;

/// Milliseconds since the cluster began.
pub type Millis = u64;

/// A pod's number, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodId(u64);

/// A pod cannot be taken in.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A selector in it does not parse.
    #[error("{kind} {name}")]
    Template {
        kind: Kind,
        name: String,
        #[source]
        source: TemplateError,
    },
    /// Its priority class does not exist.
    #[error("{kind} {name}")]
    Admission {
        kind: Kind,
        name: String,
        #[source]
        source: UnknownClass,
    },
    /// It runs on a node that does not exist.
    #[error("pod {pod}: node {node:?} does not exist")]
    NoNode { pod: String, node: String },
}

impl Error {
    /// The same about the object that wants the pods.
    fn named(self, owner: &str) -> Error {
        match self {
            Error::Template { kind, source, .. } => {
                Error::Template { kind, name: owner.to_owned(), source }
            }
            other => other,
        }
    }
}

/// How a cluster runs.
#[derive(Clone, Debug)]
pub struct Options {
    pub seed: u64,
    /// Hold one decision in so many against asking every plugin about every node; 0 for none.
    pub check_every: u64,
    /// Wait after the first failed attempt, doubled by each further one up to the second number.
    pub backoff_ms: (Millis, Millis),
    /// What a stopwatch shows, in nanoseconds: goes into [`Tally`] and nowhere else.
    pub ticks: fn() -> u64,
}

/// Numbers of a cluster so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Pods there are, by what they are doing; what succeeded or was deleted is gone and counted on its own.
    pub gated: usize,
    pub active: usize,
    pub backoff: usize,
    pub unschedulable: usize,
    pub starting: usize,
    pub running: usize,
    pub succeeded: usize,
    pub deleted: usize,
    pub decisions: u64,
    pub placed: u64,
    /// Time spent deciding, and finding out why a pod was turned down.
    pub decide_ns: u64,
    pub diagnose_ns: u64,
}

/// What a pod is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Held by PreEnqueue.
    Gated,
    /// Ready to be decided.
    Active,
    /// Waiting out a penalty.
    Backoff,
    /// Waiting for an event.
    Unschedulable,
    /// On a node, containers not running yet.
    Starting,
    Running,
}

/// One decision, for those who look on.
#[derive(Clone, Debug)]
pub struct Recent {
    pub at_ms: Millis,
    pub pod: Arc<PodInfo>,
    pub outcome: Outcome,
}

/// What was decided.
#[derive(Clone, Debug)]
pub enum Outcome {
    Placed { node: Str, total: i64, n_ties: u64 },
    TurnedDown(Arc<Why>),
}

/// How many decisions are remembered for those who look on.
const RECENT_MAX: usize = 64;

/// How many errors are kept.
const ERRORS_MAX: usize = 20;

struct Record {
    pod: Arc<PodInfo>,
    state: State,
    /// The profile that decides it; `None` when no profile has its schedulerName.
    seat: Option<usize>,
    owner: Option<OwnerId>,
    attempts: u32,
    /// When the last attempt ended.
    tried_ms: Millis,
    why: Option<Arc<Why>>,
}

/// A profile with whoever decides by it.
struct Seat {
    profile: Arc<Profile>,
    scheduler: Scheduler,
}

/// Something that is due at some time.
enum Timer {
    Started(PodId),
    Succeeded(PodId),
    BackedOff(PodId),
    Change(Box<Change>),
}

/// Something that somebody does to the cluster.
#[derive(Clone, Debug)]
pub enum Change {
    CreatePod(Box<Pod>),
    CreateWorkload(Box<Workload>),
    /// Sets how many pods a workload should have.
    Scale {
        kind: Kind,
        namespace: Str,
        name: Str,
        replicas: u32,
    },
    SetNode(Box<Node>),
    /// Removes a node; its pods are gone with it.
    RemoveNode(Str),
}

/// The cluster.
pub struct Cluster {
    options: Options,
    world: World,
    seats: Vec<Seat>,
    now_ms: Millis,
    pods: Map<PodId, Record>,
    by_uid: Map<Box<str>, PodId>,
    n_pods_made: u64,
    active: ActiveQ,
    waiting: Waiting,
    /// Pods that were turned down, are gated or wait out a penalty, by age.
    pending: BTreeSet<PodId>,
    admission: Admission,
    owners: Vec<Owner>,
    /// Slots of Jobs that are done.
    free_owners: Vec<OwnerId>,
    n_owners_made: u64,
    owner_by_name: BTreeMap<(Kind, Str, Str), OwnerId>,
    timers: BTreeMap<(Millis, u64), Timer>,
    n_timers: u64,
    tally: Tally,
    recent: VecDeque<Recent>,
    /// The last diagnosis, which holds for equal pods while nothing changed.
    diagnosed: Option<(TemplateId, u64, Arc<Why>)>,
    errors: Vec<Error>,
}

impl Cluster {
    /// An empty cluster with these profiles.
    pub fn new(profiles: Vec<Arc<Profile>>, gates: FeatureGates, options: Options) -> Cluster {
        let ties = Rng::new(options.seed).split("ties");
        let seat = |profile: Arc<Profile>| {
            let mut scheduler =
                Scheduler::new(profile.clone(), ties.split(&profile.scheduler_name));
            scheduler.check_every(options.check_every);
            Seat { profile, scheduler }
        };
        Cluster {
            seats: profiles.into_iter().map(seat).collect(),
            options,
            world: World::new(gates),
            now_ms: 0,
            pods: Map::default(),
            by_uid: Map::default(),
            n_pods_made: 0,
            active: ActiveQ::default(),
            waiting: Waiting::default(),
            pending: BTreeSet::new(),
            admission: Admission::default(),
            owners: Vec::new(),
            free_owners: Vec::new(),
            n_owners_made: 0,
            owner_by_name: BTreeMap::new(),
            timers: BTreeMap::new(),
            n_timers: 0,
            tally: Tally::default(),
            recent: VecDeque::with_capacity(RECENT_MAX),
            diagnosed: None,
            errors: Vec::new(),
        }
    }

    /// Adds or replaces a priority class, for pods that come later.
    pub fn set_priority_class(&mut self, class: PriorityClass) {
        self.admission.set_class(class);
    }

    /// Changes what plugins read beside nodes and pods: namespaces, services, controllers.
    pub fn change_objects(&mut self, change: impl FnOnce(&mut objects::Cluster)) {
        self.world.change_cluster(change);
    }

    /// Adds a node or changes it.
    pub fn set_node(&mut self, node: Node) {
        let old = self
            .world
            .nodes()
            .row(node.name())
            .and_then(|row| self.world.nodes().node(row).cloned());
        let node = Arc::new(node);
        self.world.set_node(node.clone());
        let new = Some(EventObject::Node(&node));
        let Some(old) = old else {
            return self.happened(EventResource::Node, Action::ADD, None, new);
        };
        for event in node_update_events(&old, &node) {
            self.happened(EventResource::Node, event.action, Some(EventObject::Node(&old)), new);
        }
    }

    /// Removes a node. Its pods are gone; their controllers make new ones.
    pub fn remove_node(&mut self, name: &str) {
        let Some(row) = self.world.nodes().row(name) else { return };
        let Some(node) = self.world.nodes().node(row).cloned() else { return };
        let uids: Vec<Box<str>> =
            self.world.nodes().pods(row).iter().map(|pod| pod.uid.clone()).collect();
        let ids: Vec<PodId> = uids.iter().filter_map(|uid| self.by_uid.get(uid).copied()).collect();
        self.world.remove_node(name);
        self.happened(EventResource::Node, Action::DELETE, Some(EventObject::Node(&node)), None);
        for id in ids {
            self.delete_pod(id);
        }
    }

    /// Adds a pod: one that names a node runs there, any other enters the queue.
    pub fn create_pod(&mut self, mut pod: Pod) -> Result<(), Error> {
        let name = pod.full_name();
        let owner = self.owner_of(&pod);
        self.admission.admit(&mut pod).map_err(|source| Error::Admission {
            kind: Kind::Pod,
            name: name.clone(),
            source,
        })?;
        let info = self.world.parse(&pod);
        let info = info.map_err(|source| Error::Template { kind: Kind::Pod, name, source })?;
        let id = self.enter(info, owner)?;
        if let Some(owner) = owner {
            self.adopt(owner, id, &pod.metadata.name);
        }
        Ok(())
    }

    /// Does something at a later time.
    pub fn at(&mut self, at_ms: Millis, change: Change) {
        self.set_timer(at_ms, Timer::Change(Box::new(change)));
    }

    /// Does something now.
    pub fn apply(&mut self, change: Change) -> Result<(), Error> {
        match change {
            Change::CreatePod(pod) => self.create_pod(*pod),
            Change::CreateWorkload(workload) => self.create_workload(*workload),
            Change::Scale { kind, namespace, name, replicas } => {
                self.scale(kind, &namespace, &name, replicas);
                Ok(())
            }
            Change::SetNode(node) => {
                self.set_node(*node);
                Ok(())
            }
            Change::RemoveNode(name) => {
                self.remove_node(&name);
                Ok(())
            }
        }
    }

    /// Decides the first pod of the queue; `false` when nobody is ready.
    pub fn decide_next(&mut self) -> bool {
        while let Some(id) = self.active.pop() {
            if self.pods.get(&id).is_some_and(|record| record.state == State::Active) {
                self.attempt(id);
                return true;
            }
        }
        false
    }

    /// When the next thing is due.
    pub fn due_ms(&self) -> Option<Millis> {
        self.timers.keys().next().map(|(at, _)| *at)
    }

    /// Moves time and does what is due until then. What goes wrong with later changes is kept in [`Cluster::errors`].
    pub fn advance(&mut self, to_ms: Millis) {
        self.now_ms = self.now_ms.max(to_ms);
        while let Some(entry) = self.timers.first_entry().filter(|entry| entry.key().0 <= to_ms) {
            match entry.remove() {
                Timer::Started(id) if self.state(id) == Some(State::Starting) => {
                    self.set_state(id, State::Running)
                }
                Timer::Succeeded(id) => self.succeed(id),
                Timer::BackedOff(id) if self.state(id) == Some(State::Backoff) => self.enqueue(id),
                Timer::Change(change) => {
                    if let Err(error) = self.apply(*change) {
                        self.note(error);
                    }
                }
                Timer::Started(_) | Timer::BackedOff(_) => {}
            }
        }
    }

    /// Keeps what went wrong, the first times it does.
    fn note(&mut self, error: Error) {
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(error);
        }
    }

    fn state(&self, id: PodId) -> Option<State> {
        self.pods.get(&id).map(|record| record.state)
    }

    fn set_timer(&mut self, at_ms: Millis, timer: Timer) {
        self.n_timers += 1;
        self.timers.insert((at_ms.max(self.now_ms), self.n_timers), timer);
    }

    fn timestamp(&self) -> Timestamp {
        Timestamp(i64::try_from(self.now_ms).unwrap_or(i64::MAX).saturating_mul(1_000_000))
    }

    /// A stream of chance for one pod and purpose, whatever else happens.
    fn chance(&self, purpose: &str, pod: &PodInfo) -> Rng {
        Rng::new(self.options.seed).split(purpose).split(&pod.uid)
    }

    fn enter(&mut self, mut pod: PodInfo, owner: Option<OwnerId>) -> Result<PodId, Error> {
        pod.created.get_or_insert(self.timestamp());
        let assigned = (!pod.node_name.is_empty()).then(|| self.world.nodes().row(&pod.node_name));
        if let Some(None) = assigned {
            return Err(Error::NoNode { pod: pod.full_name(), node: pod.node_name.to_string() });
        }
        let pod = Arc::new(pod);
        self.n_pods_made += 1;
        let id = PodId(self.n_pods_made);
        let wanted = pod.template.scheduler_name();
        let seat = self.seats.iter().position(|seat| seat.profile.scheduler_name == wanted);
        let record = Record {
            pod: pod.clone(),
            state: State::Active,
            seat,
            owner,
            attempts: 0,
            tried_ms: 0,
            why: None,
        };
        self.by_uid.insert(pod.uid.clone(), id);
        self.pods.insert(id, record);
        self.tally.active += 1;
        match assigned.flatten() {
            Some(row) => {
                self.set_state(id, State::Running);
                self.run_on(id, row, pod, 0);
            }
            None => self.enqueue(id),
        }
        Ok(id)
    }

    fn succeed(&mut self, id: PodId) {
        if self.pods.contains_key(&id) {
            self.tally.succeeded += 1;
            self.remove(id, true);
        }
    }

    fn delete_pod(&mut self, id: PodId) {
        if self.pods.contains_key(&id) {
            self.tally.deleted += 1;
            self.remove(id, false);
        }
    }

    fn remove(&mut self, id: PodId, succeeded: bool) {
        let Some(record) = self.pods.remove(&id) else { return };
        *self.tally.of(record.state) -= 1;
        self.by_uid.remove(&record.pod.uid);
        self.pending.remove(&id);
        if let Some(why) = &record.why {
            self.waiting.remove(&why.by, id);
        }
        self.world.remove_pod(&record.pod.uid);
        if !record.pod.node_name.is_empty() {
            let old = Some(EventObject::Pod(&record.pod));
            self.happened(EventResource::AssignedPod, Action::DELETE, old, None);
        }
        if let Some(owner) = record.owner {
            self.lost(owner, id, succeeded);
        }
    }

    fn set_state(&mut self, id: PodId, state: State) {
        let Some(record) = self.pods.get_mut(&id) else { return };
        *self.tally.of(record.state) -= 1;
        record.state = state;
        *self.tally.of(state) += 1;
        if !matches!(state, State::Gated | State::Unschedulable | State::Backoff) {
            self.pending.remove(&id);
        }
    }
}

impl Tally {
    fn of(&mut self, state: State) -> &mut usize {
        match state {
            State::Gated => &mut self.gated,
            State::Active => &mut self.active,
            State::Backoff => &mut self.backoff,
            State::Unschedulable => &mut self.unschedulable,
            State::Starting => &mut self.starting,
            State::Running => &mut self.running,
        }
    }

    /// Pods that are not on a node.
    pub fn pending(&self) -> usize {
        self.gated + self.active + self.backoff + self.unschedulable
    }
}
