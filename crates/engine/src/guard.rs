//! Guarded calls of plugins: a panic of a plugin fails only the attempt of one pod, and a sample of the calls is timed.
//!
//! Most extension points are wrapped when a [`Profile`](crate::Profile) is built ([`guarded_points`]), so that callers need no guard of
//! their own. Filter and Score, which are called per node, and the incremental forms are called directly, in loops: [`catch_plugin_panic`]
//! wraps the loop, and [`set_current_plugin`], which costs one store, says which plugin runs.
//!
//! Panics and durations are recorded per thread and returned by [`record_plugin_calls`], which the engine puts around all its work. A panic
//! unwinds only through the plugin's own code, or through a scope whose owner drops what it was computing.

pub mod guarded_points;

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use loadmaster_framework::{ClusterEvent, Code, Failure};
use loadmaster_stdx::catch_panic;
pub use loadmaster_stdx::catch_panic::silence_caught_panics;

use crate::queue::EnqueueCause;

/// An extension point, or another place where a plugin is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExtensionPoint {
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
    NormalizeScore,
    Reserve,
    Unreserve,
    Permit,
    PreBindPreFlight,
    PreBind,
    Bind,
    PostBind,
    /// Events of pods, nodes and objects that the plugin watches, and values that are published to it.
    ObjectEvents,
    /// The incremental form of Filter and Score.
    Prepare,
    /// Details for `explain`.
    Explain,
    /// Keys and amounts of sums of pods.
    PodSums,
}

impl ExtensionPoint {
    /// The value of the metric label `extension_point`: upstream's name where upstream has one.
    pub fn name(self) -> &'static str {
        match self {
            ExtensionPoint::PreEnqueue => "PreEnqueue",
            ExtensionPoint::QueueSort => "QueueSort",
            ExtensionPoint::QueueingHint => "QueueingHint",
            ExtensionPoint::PreFilter => "PreFilter",
            ExtensionPoint::AddPod => "PreFilterExtensionAddPod",
            ExtensionPoint::RemovePod => "PreFilterExtensionRemovePod",
            ExtensionPoint::Filter => "Filter",
            ExtensionPoint::PostFilter => "PostFilter",
            ExtensionPoint::PreScore => "PreScore",
            ExtensionPoint::Score => "Score",
            ExtensionPoint::NormalizeScore => "ScoreExtensionNormalize",
            ExtensionPoint::Reserve => "Reserve",
            ExtensionPoint::Unreserve => "Unreserve",
            ExtensionPoint::Permit => "Permit",
            ExtensionPoint::PreBindPreFlight => "PreBindPreFlight",
            ExtensionPoint::PreBind => "PreBind",
            ExtensionPoint::Bind => "Bind",
            ExtensionPoint::PostBind => "PostBind",
            ExtensionPoint::ObjectEvents => "ObjectEvents",
            ExtensionPoint::Prepare => "Prepare",
            ExtensionPoint::Explain => "Explain",
            ExtensionPoint::PodSums => "PodSums",
        }
    }

    /// Whether the plugin may change its state there, so that a panic may leave the state inconsistent.
    pub fn may_corrupt_state(self) -> bool {
        matches!(
            self,
            ExtensionPoint::PreFilter
                | ExtensionPoint::PostFilter
                | ExtensionPoint::PreScore
                | ExtensionPoint::Reserve
                | ExtensionPoint::Unreserve
                | ExtensionPoint::Permit
                | ExtensionPoint::PreBind
                | ExtensionPoint::Bind
                | ExtensionPoint::PostBind
                | ExtensionPoint::ObjectEvents
        )
    }

    /// What happens instead of the plugin's result when it panics, for log lines.
    pub fn fallback_description(self) -> &'static str {
        match self {
            ExtensionPoint::PreEnqueue => "the pod stays gated until an event or the next flush",
            ExtensionPoint::QueueSort => "pods are popped in order of arrival",
            ExtensionPoint::QueueingHint => "the pod is requeued",
            ExtensionPoint::Unreserve | ExtensionPoint::PostBind | ExtensionPoint::ObjectEvents => {
                "the other plugins are still called"
            }
            ExtensionPoint::Explain => "its details are left out",
            ExtensionPoint::PodSums => "the pod does not count in the plugin's sums",
            _ => "the attempt fails",
        }
    }
}

/// A plugin of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginRef {
    pub profile: Arc<str>,
    pub name: &'static str,
}

/// A panic of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginPanic {
    pub plugin: PluginRef,
    pub extension_point: ExtensionPoint,
    pub message: String,
    /// File, line and column; `None` unless [`silence_caught_panics`] was called.
    pub location: Option<Box<str>>,
    /// Number of equal panics in a row: a Filter plugin is called for many nodes.
    pub times: u64,
}

impl PluginPanic {
    /// The error of the attempt.
    pub fn failure(&self) -> Failure {
        let PluginPanic { plugin, extension_point, message, .. } = self;
        Failure::new(format!(
            "plugin {:?} panicked in {}: {message}",
            plugin.name,
            extension_point.name()
        ))
    }
}

/// The duration of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginExecutionDuration {
    pub plugin: PluginRef,
    pub extension_point: ExtensionPoint,
    pub code: Code,
    pub nanos: u64,
    /// For hints: the event.
    pub event: Option<Box<str>>,
}

/// Panics and durations of plugin calls.
#[derive(Debug, Default)]
pub struct RecordedCalls {
    pub panics: Vec<PluginPanic>,
    /// At most [`N_EXECUTIONS_MAX`].
    pub executions: Vec<PluginExecutionDuration>,
}

/// Filters and hints may be called many thousand times in one call to the engine: further durations are dropped.
const N_EXECUTIONS_MAX: usize = 256;

/// Returns nanoseconds since an arbitrary start.
pub type StopwatchFn = fn() -> u64;

/// The running plugin, by its index in the profile.
#[derive(Clone, Copy, Debug)]
struct CurrentPlugin {
    plugin: u32,
    extension_point: ExtensionPoint,
}

/// The plugin name in a [`PluginRef`] when all plugins of an extension point are timed together.
pub const ALL_PLUGINS: &str = "";

/// No plugin is running.
const NO_PLUGIN: CurrentPlugin =
    CurrentPlugin { plugin: u32::MAX, extension_point: ExtensionPoint::Prepare };

thread_local! {
    static CURRENT_PLUGIN: Cell<CurrentPlugin> = const { Cell::new(NO_PLUGIN) };
    static STOPWATCH: Cell<Option<StopwatchFn>> = const { Cell::new(None) };
    static RECORDED_CALLS: RefCell<Option<RecordedCalls>> = const { RefCell::new(None) };
}

/// Runs work and records panics of plugins; with a stopwatch, also durations of their calls.
pub(crate) fn record_plugin_calls<R>(
    stopwatch: Option<StopwatchFn>,
    work: impl FnOnce() -> R,
) -> (R, RecordedCalls) {
    RECORDED_CALLS.with_borrow_mut(|recorded| *recorded = Some(RecordedCalls::default()));
    STOPWATCH.set(stopwatch);
    let done = work();
    STOPWATCH.set(None);
    (done, RECORDED_CALLS.with_borrow_mut(Option::take).unwrap_or_default())
}

/// Number of panics recorded so far.
pub(crate) fn n_panics() -> u64 {
    RECORDED_CALLS.with_borrow(|recorded| {
        let panics = recorded.iter().flat_map(|recorded| &recorded.panics);
        panics.map(|panic| panic.times).sum()
    })
}

/// The stopwatch, if calls are being timed.
pub(crate) fn stopwatch() -> Option<StopwatchFn> {
    STOPWATCH.get()
}

/// Records the duration of a call that began at `began` by the stopwatch.
pub(crate) fn record_execution(
    plugin: impl FnOnce() -> PluginRef,
    extension_point: ExtensionPoint,
    code: Code,
    began: u64,
) {
    push_execution(began, |nanos| PluginExecutionDuration {
        plugin: plugin(),
        extension_point,
        code,
        nanos,
        event: None,
    });
}

/// Records the duration of a hint.
fn record_hint_execution(plugin: &PluginRef, event: &ClusterEvent, code: Code, began: u64) {
    let event = Some(EnqueueCause::Event(event.clone()).to_string().into());
    push_execution(began, |nanos| PluginExecutionDuration {
        plugin: plugin.clone(),
        extension_point: ExtensionPoint::QueueingHint,
        code,
        nanos,
        event,
    });
}

fn push_execution(began: u64, call: impl FnOnce(u64) -> PluginExecutionDuration) {
    let Some(stopwatch) = stopwatch() else { return };
    let nanos = stopwatch().saturating_sub(began);
    RECORDED_CALLS.with_borrow_mut(|recorded| {
        if let Some(recorded) =
            recorded.as_mut().filter(|recorded| recorded.executions.len() < N_EXECUTIONS_MAX)
        {
            recorded.executions.push(call(nanos));
        }
    });
}

/// Sets the running plugin of the current [`catch_plugin_panic`] scope.
#[inline]
pub(crate) fn set_current_plugin(plugin: usize, extension_point: ExtensionPoint) {
    CURRENT_PLUGIN.set(CurrentPlugin { plugin: plugin as u32, extension_point });
}

/// A panic in a [`catch_plugin_panic`] scope.
pub(crate) struct CaughtPanic {
    current: CurrentPlugin,
    panic: catch_panic::CaughtPanic,
}

impl CaughtPanic {
    /// Index in the profile of the plugin that was running.
    pub fn plugin_idx(&self) -> usize {
        self.current.plugin as usize
    }

    /// Records it as a panic of this plugin.
    pub fn record_as(self, plugin: PluginRef) -> Failure {
        record_panic(plugin, self.current.extension_point, self.panic)
    }
}

/// Runs code that calls plugins directly, after [`set_current_plugin`]. On a panic the caller must drop everything that the code was changing.
pub(crate) fn catch_plugin_panic<R>(work: impl FnOnce() -> R) -> Result<R, CaughtPanic> {
    let outer = CURRENT_PLUGIN.replace(NO_PLUGIN);
    let done = catch_panic::catch_panic(work);
    let current = CURRENT_PLUGIN.replace(outer);
    done.map_err(|panic| CaughtPanic { current, panic })
}

impl PluginRef {
    /// Runs one guarded call of this plugin.
    pub(crate) fn call<R>(
        &self,
        extension_point: ExtensionPoint,
        work: impl FnOnce() -> R,
    ) -> Result<R, Failure> {
        catch_plugin_panic(work)
            .map_err(|caught| record_panic(self.clone(), extension_point, caught.panic))
    }
}

fn record_panic(
    plugin: PluginRef,
    extension_point: ExtensionPoint,
    caught: catch_panic::CaughtPanic,
) -> Failure {
    let catch_panic::CaughtPanic { message, location } = caught;
    let panic = PluginPanic { plugin, extension_point, message, location, times: 1 };
    let failure = panic.failure();
    RECORDED_CALLS.with_borrow_mut(|recorded| {
        let Some(recorded) = recorded else { return };
        match recorded.panics.last_mut() {
            Some(last) if PluginPanic { times: 1, ..last.clone() } == panic => last.times += 1,
            _ => recorded.panics.push(panic),
        }
    });
    failure
}
