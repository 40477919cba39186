//! The engine: news in, effects out.
//!
//! It owns all that decides: the queue, the world, the profiles, the pods on their way to a node. It is synchronous and reads no
//! clock, no random source and no socket: the time comes with every call, chance from a seed.
//!
//! ```text
//! Event ──apply──► world, pending pods ──► queue ──cycle──► scheduling cycle ──► assume ──► binding cycle ──► Effect
//!   ▲                                        ▲                   │ fails                        │ fails           │
//!   │                                        └───────────────────┴──────────────────────────────┘                 │
//!   └─────────────────────────── Event::Replied ◄── whoever talks to the API server ◄─────────────────────────────┘
//! ```
//!
//! [`Engine::apply`] takes news and never schedules. [`Engine::cycle`] runs at most one scheduling cycle. [`Engine::wake`] does
//! what is due, and [`Engine::deadline`] says when. Nothing else changes it.
//!
//! | module | |
//! | --- | --- |
//! | `news` | what comes in |
//! | `effect` | what goes out |
//! | `handlers` | objects that came, changed or went (upstream's `eventhandlers.go`) |
//! | `scheduling` | one attempt up to Permit (upstream's `schedulingCycle`) |
//! | `binding`, `bind` | Permit's wait and PreBind; Bind and PostBind (upstream's `bindingCycle`) |
//! | `post_filter`, `eviction` | making room for a pod that fits nowhere |
//! | `extending`, `overlay` | extenders that are asked within an attempt, and what waits for its end |
//! | `objects` | what only plugins know: objects they watch, values that services publish |
//! | `intervention` | what plugins ask for other pods |
//! | `failure` | what becomes of a pod that was not placed (upstream's `handleSchedulingFailure`) |
//! | `overdue` | plugins that do not come to an end |
//! | `races` | what another scheduler got first |
//! | `last`, `progress` | what is kept of a failed attempt, and told of a pod |
//! | `shadow` | judging what another scheduler did |
//! | `status` | conditions and nominations on their way to the API server, one patch a pod at a time |

mod bind;
mod binding;
pub mod effect;
mod eviction;
mod extending;
mod failure;
mod handlers;
mod intervention;
mod last;
pub mod news;
mod nominations;
mod objects;
pub mod overdue;
mod overlay;
mod post_filter;
pub mod progress;
pub mod races;
mod scheduling;
pub mod shadow;
mod status;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::{Needs, Str};
use loadmaster_framework::event::EventWithHint;
use loadmaster_framework::{
    ClusterEvent, Cx, CycleState, FeatureGates, PodInfo, QueueSort, QueuedPodInfo, World,
};
use loadmaster_stdx::{Map, Rng};

use crate::explain::{Explanation, explain};
use crate::guard::{self, Panic};
use crate::profile::Profile;
use crate::queue::{Held, IncomingPods, PluginIdx, Plugins, Queue, SeatIdx};
use crate::scheduler::Scheduler;
use crate::time::{Mono, Now};

use binding::{Assumed, Awaited, Owner};
pub use effect::{Call, CallId, Effect, Effects, Extend, ObjectName, Observation, Outcome, Tell};
use eviction::Eviction;
use extending::Suspended;
pub use news::{ApiError, Event, Name, Object, Reply, Verdict};
use objects::Publication;
pub use overdue::Overdue;
use overlay::Overlay;
use post_filter::PostFiltering;
pub use races::{LostRace, RaceKind, Winner};
pub use shadow::{Judgement, Opinion};
use status::Statuses;

/// How an engine runs.
#[derive(Clone, Debug)]
pub struct Options {
    pub seed: u64,
    pub initial_backoff: Duration,
    pub max_backoff: Duration,
    /// After this long a pod that no event woke is tried again.
    pub max_in_unschedulable: Duration,
    /// How many pods may be between Permit and the end of their binding. While so many are, no pod is tried, so that an urgent
    /// one that comes late is never behind tens of thousands that wait for the API server. Those whose PreBind is overdue
    /// do not count.
    pub bind_window: usize,
    /// Judge every pod of ours that another scheduler binds ([`Observation::Judged`]).
    pub shadow: bool,
    /// Hold one decision in so many against asking every plugin about every node; 0 for none.
    pub check_every: u64,
    /// What a stopwatch shows, in nanoseconds: goes into [`Observation`]s and nowhere else.
    pub ticks: fn() -> u64,
}

impl Default for Options {
    /// Upstream's defaults, and a bind window of 500.
    fn default() -> Self {
        Options {
            seed: 0,
            initial_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(10),
            max_in_unschedulable: Duration::from_secs(300),
            bind_window: 500,
            shadow: false,
            check_every: 0,
            ticks: || 0,
        }
    }
}

/// What [`Engine::cycle`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cycled {
    /// One pod was tried.
    Ran,
    /// No pod is ready.
    Idle,
    /// The bind window is full, or an extender is being asked; answers must come first.
    Waiting,
}

/// In one turn in so many the calls of plugins are timed, as upstream does in one cycle in ten.
const TIMED_EVERY: u64 = 10;

/// A profile with whoever decides by it.
pub(crate) struct Seat {
    pub profile: Arc<Profile>,
    pub scheduler: Scheduler,
}

/// A pod of ours that has no node yet, as the API server has it.
pub(crate) struct Pending {
    pub pod: Arc<PodInfo>,
    pub seat: SeatIdx,
    /// `metadata.generation`.
    pub generation: i64,
    /// Its `PodScheduled` condition: as the API server has it, or as the last patch wrote it.
    pub condition: Option<status::Condition>,
    /// The promised node as the last patch wrote it, until the news say so.
    pub written_nomination: Option<Str>,
    /// Its last attempt that failed.
    pub last: Option<Box<last::Last>>,
    /// Its last bind that failed.
    pub last_bind: Option<Box<races::FailedBind>>,
}

/// A scheduler without a clock, a random source or a socket.
pub struct Engine {
    options: Options,
    gates: FeatureGates,
    seats: Vec<Seat>,
    needs: Needs,
    interests: Interests,
    /// For PostFilter; each profile's ties are broken by a stream of their own.
    chance: Rng,
    world: World,
    queue: Queue,
    pending: Map<Box<str>, Pending>,
    /// Assigned pods whose node is not known (yet), by node.
    orphans: BTreeMap<Str, Vec<Arc<PodInfo>>>,
    /// Pods that this engine put on a node and that are not known to be bound, by uid.
    assumed: Map<Box<str>, Assumed>,
    /// How many of `assumed` have a place in the bind window.
    n_binding: usize,
    /// Who waits for the answer to a call.
    calls: Map<CallId, Owner>,
    /// Who waits for an object or for time to pass.
    awaited: Vec<Awaited>,
    /// Attempts that wait for a PostFilter plugin, by uid.
    post_filtering: Map<Box<str>, PostFiltering>,
    /// Evictions under way, by uid of the pod that gets the room.
    evictions: Map<Box<str>, Eviction>,
    /// The attempt that waits for an extender. Until it goes on, no other begins, and `world` stays as it is.
    suspended: Option<Box<Suspended>>,
    /// What would change `world`, until then.
    overlay: Overlay,
    statuses: Statuses,
    /// What services published and is not too old.
    publications: Vec<Publication>,
    diagnosed: Option<failure::Diagnosed>,
    n_calls: u64,
    n_bindings: u64,
    /// Where the next search that ends early begins.
    search_start: usize,
    /// How often the engine was told or asked to do something: chooses whose calls are timed.
    n_turns: u64,
    /// When the news of an object that is being heard began, on the stopwatch, and what was made of it.
    hearing_since: Option<u64>,
    handled: Vec<Observation>,
}

impl Engine {
    /// An engine that knows nothing yet. There must be at least one profile, and all have the same QueueSort plugin.
    pub fn new(profiles: Vec<Arc<Profile>>, gates: FeatureGates, options: Options) -> Engine {
        let rng = Rng::new(options.seed);
        let sort = profiles.iter().find_map(|profile| profile.queue_sort.first());
        let sort: Arc<dyn QueueSort> =
            sort.map_or_else(|| Arc::new(FirstComesFirst) as _, |member| member.point.clone());
        let queue = Queue::new(
            crate::queue::Options {
                initial_backoff: options.initial_backoff,
                max_backoff: options.max_backoff,
                max_in_unschedulable: options.max_in_unschedulable,
                pop_from_backoff: gates.pop_from_backoff_q,
            },
            sort,
        );
        let seats = profiles.into_iter().map(|profile| {
            let chance = rng.split(&profile.scheduler_name);
            let mut scheduler = Scheduler::new(profile.clone(), chance);
            scheduler.check_every(options.check_every);
            Seat { profile, scheduler }
        });
        let seats: Vec<Seat> = seats.collect();
        let mut world = World::new(gates.clone());
        let watches = seats.iter().flat_map(|seat| &seat.profile.watches);
        watches.for_each(|watch| world.watch(watch));
        Engine {
            interests: Interests::of(&seats),
            needs: seats.iter().fold(Needs::default(), |all, seat| all.or(seat.profile.needs)),
            seats,
            chance: rng.split("PostFilter"),
            world,
            queue,
            pending: Map::default(),
            orphans: BTreeMap::new(),
            assumed: Map::default(),
            n_binding: 0,
            calls: Map::default(),
            awaited: Vec::new(),
            post_filtering: Map::default(),
            evictions: Map::default(),
            suspended: None,
            overlay: Overlay::default(),
            statuses: Statuses::default(),
            publications: Vec::new(),
            diagnosed: None,
            n_calls: 0,
            n_bindings: 0,
            search_start: 0,
            n_turns: 0,
            hearing_since: None,
            handled: Vec::new(),
            gates,
            options,
        }
    }

    /// Takes news. Never schedules.
    pub fn apply(&mut self, now: Now, event: Event, effects: &mut Effects) {
        self.hearing_since =
            matches!(event, Event::Set(_) | Event::Gone(_) | Event::Changed { .. })
                .then(self.options.ticks);
        self.listening(effects, |engine, effects| {
            engine.take(now, event, effects);
            engine.hearing_since = None;
            engine.catch_up(now, effects);
            engine.intervene(now, effects);
        });
        effects.extend(self.handled.drain(..).map(Effect::Observe));
    }

    fn take(&mut self, now: Now, event: Event, effects: &mut Effects) {
        if self.must_wait(&event) {
            return self.overlay.push(event);
        }
        match event {
            Event::Set(object) => self.set(now, object, effects),
            Event::Gone(name) => self.gone(now, &name, effects),
            Event::Replied { call, reply } => self.replied(now, call, &reply, effects),
            Event::Extended { call, answer } => self.extended(now, call, answer, effects),
            Event::Changed { object, value } => {
                self.object_changed(now, &object, value.as_ref(), effects);
                self.changed(now, &object, value.as_ref(), effects);
            }
            Event::Listed { group, resource, is_there } => {
                self.world.set_there(&group, &resource, is_there);
            }
            Event::Published { plugin, value, good_for } => {
                self.published(now, &plugin, &value, good_for, effects);
            }
            Event::Permit { uid, plugin, verdict } => {
                self.permitted(now, &uid, plugin.as_deref(), &verdict, effects);
            }
            Event::Activate(uids) => self.activate(now, &uids),
        }
    }

    /// Does what is due by now: backoffs that are over, waits that took too long, published values that are too old.
    pub fn wake(&mut self, now: Now, effects: &mut Effects) {
        self.listening(effects, |engine, effects| {
            let asking = Asking::new(&engine.seats, &engine.interests, &engine.world);
            engine.queue.flush(now, &asking);
            engine.time_out(now, effects);
            engine.forget_published(now);
            engine.catch_up(now, effects);
            engine.intervene(now, effects);
        });
        effects.extend(self.handled.drain(..).map(Effect::Observe));
    }

    /// Does something in which plugins are called. One that panics is made anew; of some turns the calls are timed.
    fn listening<R>(
        &mut self,
        effects: &mut Effects,
        work: impl FnOnce(&mut Engine, &mut Effects) -> R,
    ) -> R {
        self.n_turns += 1;
        let is_timed = self.n_turns.is_multiple_of(TIMED_EVERY);
        let watch = is_timed.then_some(self.options.ticks);
        let (done, notes) = guard::listen(watch, || work(self, effects));
        for panic in notes.panics {
            self.recover(&panic);
            effects.push(Effect::Observe(Observation::Panicked(Box::new(panic))));
        }
        if !notes.calls.is_empty() {
            effects.push(Effect::Observe(Observation::Timed(notes.calls)));
        }
        done
    }

    /// What was made with the help of a plugin that panicked is made anew.
    fn recover(&mut self, panic: &Panic) {
        let is_its = |seat: &&mut Seat| *seat.profile.scheduler_name == *panic.who.profile;
        if let Some(seat) = self.seats.iter_mut().find(is_its) {
            seat.scheduler.recover(panic, &mut self.world);
        }
        self.diagnosed = None;
    }

    /// When [`Engine::wake`] has something to do next.
    pub fn deadline(&self) -> Option<Mono> {
        let waits = self.awaited.iter().filter(|awaited| !self.is_pinned(&awaited.owner));
        let waits = waits.map(|awaited| awaited.until).min();
        let others = [
            self.binding_deadline(),
            self.post_filter_overdue_at(),
            self.extender_deadline(),
            self.publication_deadline(),
        ];
        self.queue.deadline().into_iter().chain(waits).chain(others.into_iter().flatten()).min()
    }

    /// All nodes and assigned pods.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The queue.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The schedulerName of a profile.
    pub fn profile_name(&self, seat: SeatIdx) -> &str {
        &self.seat(seat).profile.scheduler_name
    }

    /// How many pods came into which queue since this was asked last.
    pub fn take_incoming(&mut self) -> Vec<IncomingPods> {
        self.queue.take_incoming()
    }

    /// How many pods are between Permit and the end of their binding, but for those whose PreBind is overdue.
    pub fn n_binding(&self) -> usize {
        self.n_binding
    }

    /// What would become of a pod without a node now, and why. `None` when there is no such pod of ours.
    pub fn explain(&self, namespace: &str, name: &str) -> Option<Explanation> {
        let is_it = |pod: &PodInfo| *pod.name == *name && pod.template.namespace == *namespace;
        #[expect(clippy::disallowed_methods, reason = "names are unique")]
        let pending = self.pending.values().find(|pending| is_it(&pending.pod))?;
        let seat = self.seat(pending.seat);
        Some(explain(&seat.profile, &self.world, seat.scheduler.states(), &pending.pod))
    }

    /// A pod of ours without a node, as the API server has it.
    pub fn pending_pod(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.pending.get(uid).map(|pending| &pending.pod)
    }

    /// All of them, ordered by uid.
    pub fn pending_pods(&self) -> Vec<&Arc<PodInfo>> {
        #[expect(clippy::disallowed_methods, reason = "sorted below")]
        let mut pods: Vec<_> = self.pending.values().map(|pending| &pending.pod).collect();
        pods.sort_unstable_by(|a, b| a.uid.cmp(&b.uid));
        pods
    }

    /// Assigned pods whose node is not known, by node.
    pub fn orphans(&self) -> impl Iterator<Item = (&Str, &[Arc<PodInfo>])> {
        self.orphans.iter().map(|(node, pods)| (node, pods.as_slice()))
    }

    /// The schedulerNames of its profiles.
    pub fn profile_names(&self) -> impl Iterator<Item = &str> {
        self.seats.iter().map(|seat| &*seat.profile.scheduler_name)
    }

    /// Number of pods that were put on a node and are not known to be bound.
    pub fn n_assumed(&self) -> usize {
        #[expect(clippy::disallowed_methods, reason = "counted")]
        self.assumed.values().filter(|assumed| !assumed.confirmed).count()
    }

    /// Uids of pods whose binding cycle is under way, ordered.
    pub fn binding_pods(&self) -> Vec<&str> {
        #[expect(clippy::disallowed_methods, reason = "sorted below")]
        let running = self.assumed.iter().filter(|(_, assumed)| assumed.binding.is_some());
        let mut uids: Vec<&str> = running.map(|(uid, _)| &**uid).collect();
        uids.sort_unstable();
        uids
    }

    /// What checks of fast decisions against slow ones found ([`Options::check_every`]).
    pub fn disagreements(&self) -> impl Iterator<Item = &String> {
        self.seats.iter().flat_map(|seat| seat.scheduler.disagreements())
    }

    fn seat_of(&self, pod: &PodInfo) -> Option<SeatIdx> {
        let name = pod.template.scheduler_name();
        let at = self.seats.iter().position(|seat| seat.profile.scheduler_name == name)?;
        Some(SeatIdx(at as u32))
    }

    fn seat(&self, seat: SeatIdx) -> &Seat {
        &self.seats[seat.0 as usize]
    }

    fn next_call(&mut self, owner: Owner) -> CallId {
        self.n_calls += 1;
        let id = CallId(self.n_calls);
        self.calls.insert(id, owner);
        id
    }
}

/// The order of a queue whose profiles have no QueueSort plugin.
struct FirstComesFirst;

impl QueueSort for FirstComesFirst {
    fn compare(&self, a: &QueuedPodInfo, b: &QueuedPodInfo) -> std::cmp::Ordering {
        a.queued.cmp(&b.queued)
    }
}

/// What the queue is told when it asks plugins.
pub(crate) struct Asking<'a> {
    seats: &'a [Seat],
    interests: &'a Interests,
    world: &'a World,
}

impl<'a> Asking<'a> {
    pub fn new(seats: &'a [Seat], interests: &'a Interests, world: &'a World) -> Self {
        Asking { seats, interests, world }
    }
}

/// What any plugin of any profile wants to be asked about.
#[derive(Default)]
pub(crate) struct Interests {
    /// Some plugin named no event, which means all of them.
    everything: bool,
    events: Vec<ClusterEvent>,
}

impl Interests {
    fn of(seats: &[Seat]) -> Interests {
        let mut interests = Interests::default();
        for plugin in seats.iter().flat_map(|seat| &seat.profile.plugins) {
            let Some(events) = &plugin.events else {
                interests.everything = true;
                continue;
            };
            for known in events {
                if !interests.events.contains(&known.event) {
                    interests.events.push(known.event.clone());
                }
            }
        }
        interests
    }
}

impl Plugins for Asking<'_> {
    fn pre_enqueue(
        &self,
        seat: SeatIdx,
        pod: &PodInfo,
        first: Option<PluginIdx>,
    ) -> Result<(), Held> {
        let seat = &self.seats[seat.0 as usize];
        let cycle = CycleState::default();
        let cx = Cx { world: self.world, cycle: &cycle, states: seat.scheduler.states() };
        let is_first = |plugin: usize| first == Some(PluginIdx(plugin as u32));
        let members = &seat.profile.pre_enqueue;
        let ordered = members
            .iter()
            .filter(|member| is_first(member.plugin))
            .chain(members.iter().filter(|member| !is_first(member.plugin)));
        for member in ordered {
            member
                .point
                .pre_enqueue(cx, pod)
                .map_err(|rejection| Held { plugin: PluginIdx(member.plugin as u32), rejection })?;
        }
        Ok(())
    }

    fn events(&self, seat: SeatIdx, plugin: PluginIdx) -> Option<&[EventWithHint]> {
        let plugin = self.seats[seat.0 as usize].profile.plugins.get(plugin.0 as usize)?;
        plugin.events.as_deref()
    }

    fn is_of_interest(&self, event: &ClusterEvent) -> bool {
        self.interests.everything || self.interests.events.iter().any(|known| known.matches(event))
    }

    fn world(&self) -> &World {
        self.world
    }
}
