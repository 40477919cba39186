//! Calls into plugins: one that panics costs one pod one attempt, and some of the calls are timed.
//!
//! Most points are wrapped when a [`Profile`] is built ([`points`]), so that whoever calls a plugin need not think of it. Filter and
//! Score, which are asked node by node, and the incremental forms are called as they are, in loops: [`section`] goes around the
//! loop and [`turn`], which is one store, says whose turn it is.
//!
//! What happens is noted for the thread and handed to whoever [listens](listen): the engine, around all that it does. A plugin's
//! panic unwinds through its own code alone, or through a section whose owner throws away what it was working on.

pub mod points;

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use loadmaster_framework::{ClusterEvent, Code, Failure};
use loadmaster_stdx::caught;
pub use loadmaster_stdx::caught::quiet_caught_panics;

use crate::profile::Profile;
use crate::queue::Cause;

/// Where a plugin is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Site {
    PreEnqueue,
    QueueSort,
    QueueingHint,
    PreFilter,
    AddPod,
    RemovePod,
    Filter,
    PostFilter,
    PreScore,
    Score,
    Normalize,
    Reserve,
    Unreserve,
    Permit,
    PreFlight,
    PreBind,
    Bind,
    PostBind,
    /// News of objects that the plugin watches, and of what is published to it.
    ObjectEvents,
    /// The incremental form: what is kept for pods alike.
    Prepare,
}

impl Site {
    /// As upstream's metrics name the point; what upstream has no name for has ours.
    pub fn name(self) -> &'static str {
        match self {
            Site::PreEnqueue => "PreEnqueue",
            Site::QueueSort => "QueueSort",
            Site::QueueingHint => "QueueingHint",
            Site::PreFilter => "PreFilter",
            Site::AddPod => "PreFilterExtensionAddPod",
            Site::RemovePod => "PreFilterExtensionRemovePod",
            Site::Filter => "Filter",
            Site::PostFilter => "PostFilter",
            Site::PreScore => "PreScore",
            Site::Score => "Score",
            Site::Normalize => "ScoreExtensionNormalize",
            Site::Reserve => "Reserve",
            Site::Unreserve => "Unreserve",
            Site::Permit => "Permit",
            Site::PreFlight => "PreBindPreFlight",
            Site::PreBind => "PreBind",
            Site::Bind => "Bind",
            Site::PostBind => "PostBind",
            Site::ObjectEvents => "ObjectEvents",
            Site::Prepare => "Prepare",
        }
    }

    /// Whether the plugin may change its state there, so that a panic may leave half a change.
    pub fn may_tear(self) -> bool {
        matches!(
            self,
            Site::PreFilter
                | Site::PostFilter
                | Site::PreScore
                | Site::Reserve
                | Site::Unreserve
                | Site::Permit
                | Site::PreBind
                | Site::Bind
                | Site::PostBind
                | Site::ObjectEvents
        )
    }

    /// What is done instead of what the plugin would have said, where that is not a failed attempt.
    pub fn instead(self) -> &'static str {
        match self {
            Site::PreEnqueue => "the pod is held until an event or the next flush",
            Site::QueueSort => "the pod that came first goes first",
            Site::QueueingHint => "the pod is tried again",
            Site::Unreserve | Site::PostBind | Site::ObjectEvents => {
                "the others are called all the same"
            }
            _ => "the attempt fails",
        }
    }
}

/// A plugin of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    pub profile: Arc<str>,
    pub plugin: &'static str,
}

/// A plugin panicked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panic {
    pub who: Who,
    pub site: Site,
    pub message: String,
    /// File, line and column, where [`quiet_caught_panics`] was called.
    pub place: Option<Box<str>>,
    /// How often, one right after the other: a Filter is asked about many nodes.
    pub times: u64,
}

impl Panic {
    /// What the pod is told.
    pub fn failure(&self) -> Failure {
        let Panic { who, site, message, .. } = self;
        Failure::new(format!("plugin {:?} panicked in {}: {message}", who.plugin, site.name()))
    }
}

/// A call that was timed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timed {
    pub who: Who,
    pub site: Site,
    pub code: Code,
    pub nanos: u64,
    /// What a hint was asked about.
    pub event: Option<Box<str>>,
}

/// What was seen while somebody listened.
#[derive(Debug, Default)]
pub struct Notes {
    pub panics: Vec<Panic>,
    /// The first [`CALLS_MAX`].
    pub calls: Vec<Timed>,
}

/// Filters and hints may be asked many thousand times in one call to the engine: no more than these are kept.
const CALLS_MAX: usize = 256;

/// Shows nanoseconds.
pub type Stopwatch = fn() -> u64;

/// Whose turn it is: index in the profile.
#[derive(Clone, Copy, Debug)]
struct Turn {
    plugin: u32,
    site: Site,
}

/// Stands for all plugins of a point where they are timed together.
pub const ALL: &str = "";

/// Nobody in particular.
const NOBODY: Turn = Turn { plugin: u32::MAX, site: Site::Prepare };

thread_local! {
    static RUNNING: Cell<Turn> = const { Cell::new(NOBODY) };
    static WATCH: Cell<Option<Stopwatch>> = const { Cell::new(None) };
    static NOTES: RefCell<Option<Notes>> = const { RefCell::new(None) };
}

/// Does something and notes what plugins do meanwhile; with a stopwatch their calls are timed.
pub(crate) fn listen<R>(watch: Option<Stopwatch>, work: impl FnOnce() -> R) -> (R, Notes) {
    NOTES.with_borrow_mut(|notes| *notes = Some(Notes::default()));
    WATCH.set(watch);
    let done = work();
    WATCH.set(None);
    (done, NOTES.with_borrow_mut(Option::take).unwrap_or_default())
}

/// How many panics were noted while somebody listens.
pub(crate) fn n_panics() -> u64 {
    NOTES.with_borrow(|notes| {
        let panics = notes.iter().flat_map(|notes| &notes.panics);
        panics.map(|panic| panic.times).sum()
    })
}

/// The stopwatch, if calls are timed now.
pub(crate) fn stopwatch() -> Option<Stopwatch> {
    WATCH.get()
}

/// Notes a call that began when the stopwatch showed `began`.
pub(crate) fn timed(who: impl FnOnce() -> Who, site: Site, code: Code, began: u64) {
    note_call(began, |nanos| Timed { who: who(), site, code, nanos, event: None });
}

/// The same of a hint.
fn timed_hint(who: &Who, event: &ClusterEvent, code: Code, began: u64) {
    let event = Some(Cause::Event(event.clone()).to_string().into());
    note_call(began, |nanos| Timed {
        who: who.clone(),
        site: Site::QueueingHint,
        code,
        nanos,
        event,
    });
}

fn note_call(began: u64, call: impl FnOnce(u64) -> Timed) {
    let Some(watch) = stopwatch() else { return };
    let nanos = watch().saturating_sub(began);
    NOTES.with_borrow_mut(|notes| {
        if let Some(notes) = notes.as_mut().filter(|notes| notes.calls.len() < CALLS_MAX) {
            notes.calls.push(call(nanos));
        }
    });
}

/// It is this plugin's turn in the section at hand.
#[inline]
pub(crate) fn turn(plugin: usize, site: Site) {
    RUNNING.set(Turn { plugin: plugin as u32, site });
}

/// Somebody panicked in a section.
pub(crate) struct Caught {
    turn: Turn,
    panic: caught::Caught,
}

impl Caught {
    /// Notes it. The name is that of the plugin whose turn it was last.
    pub fn note(self, profile: &Profile) -> (Option<&'static str>, Failure) {
        let plugin = profile.plugins.get(self.turn.plugin as usize).map(|plugin| plugin.name);
        let profile = profile.scheduler_name.as_str().into();
        let who = Who { profile, plugin: plugin.unwrap_or("(none)") };
        (plugin, note(who, self.turn.site, self.panic))
    }
}

/// Runs code that calls plugins in [turns](turn). What it was changing must be thrown away if it panics.
pub(crate) fn section<R>(work: impl FnOnce() -> R) -> Result<R, Caught> {
    let outer = RUNNING.replace(NOBODY);
    let done = caught::catch(work);
    let turn = RUNNING.replace(outer);
    done.map_err(|panic| Caught { turn, panic })
}

impl Who {
    /// Runs one call into this plugin.
    pub(crate) fn call<R>(&self, site: Site, work: impl FnOnce() -> R) -> Result<R, Failure> {
        section(work).map_err(|caught| note(self.clone(), site, caught.panic))
    }
}

fn note(who: Who, site: Site, caught: caught::Caught) -> Failure {
    let caught::Caught { message, place } = caught;
    let panic = Panic { who, site, message, place, times: 1 };
    let failure = panic.failure();
    NOTES.with_borrow_mut(|notes| {
        let Some(notes) = notes else { return };
        match notes.panics.last_mut() {
            Some(last) if Panic { times: 1, ..last.clone() } == panic => last.times += 1,
            _ => notes.panics.push(panic),
        }
    });
    failure
}
