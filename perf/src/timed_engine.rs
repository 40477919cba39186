//! An engine, the time that its calls take, and the requests that it makes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use loadmaster_api::Timestamp;
use loadmaster_config::AllFeatureGates;
use loadmaster_engine::engine::{ApiServerCall, CycleResult, EngineOptions};
use loadmaster_engine::{Effect, Effects, Engine, EngineEvent, MonoTime, Now, Profile};
use loadmaster_framework::api_calls::ApiRequest;
use loadmaster_framework::{Gvr, Registry};
use serde_json::{Value, json};

/// The requests among the effects.
///
/// # Errors
///
/// A call of an extender, which no workload here has.
pub fn requests(effects: Effects) -> Result<Vec<ApiServerCall>> {
    let mut calls = Vec::new();
    for effect in effects {
        match effect {
            Effect::Call(call) => calls.push(call),
            Effect::CallExtender(_) => bail!("there is no extender"),
            Effect::RecordEvent(_) | Effect::Observe(_) => {}
        }
    }
    Ok(calls)
}

/// The same for a workload in which no pod is unschedulable.
///
/// # Errors
///
/// A warning, or a call of an extender.
pub fn requests_without_warnings(effects: Effects) -> Result<Vec<ApiServerCall>> {
    for effect in &effects {
        if let Effect::RecordEvent(event) = effect
            && event.is_warning
        {
            bail!("{}", event.note);
        }
    }
    requests(effects)
}

/// The time of an engine's call, so long after the start.
pub fn time_of_call(since_start: Duration) -> Now {
    let nanos = since_start.as_nanos();
    Now { mono: MonoTime(nanos as u64), wall: Timestamp(nanos as i64) }
}

/// A cluster around an engine, in which each request is answered at once.
pub trait AnsweringCluster {
    /// The engine.
    fn engine(&mut self) -> &mut TimedEngine;

    /// The time of the engine's next event.
    fn next_time(&mut self) -> Now;

    /// The requests among the effects.
    ///
    /// # Errors
    ///
    /// An effect that does not belong to the workload.
    fn requests(&self, effects: Effects) -> Result<Vec<ApiServerCall>> {
        requests(effects)
    }

    /// The reply to a request, which succeeds: the object that it contains.
    fn reply(&mut self, request: &ApiRequest) -> Value {
        request.body.clone().unwrap_or_default()
    }

    /// What happens after a request.
    fn answer(&mut self, request: &ApiRequest) -> Result<()>;

    /// Lets the engine handle an event, and all that follows from it.
    fn apply(&mut self, event: EngineEvent) -> Result<()> {
        let now = self.next_time();
        let effects = self.engine().apply(now, event);
        self.execute(effects)
    }

    /// Executes the requests among the effects.
    fn execute(&mut self, effects: Effects) -> Result<()> {
        for call in self.requests(effects)? {
            let reply = Ok(self.reply(&call.request));
            self.apply(EngineEvent::Replied { call: call.id, reply })?;
            self.answer(&call.request)?;
        }
        Ok(())
    }

    /// All kinds that plugins watch are known completely.
    fn sync_watched_kinds(&mut self) -> Result<()> {
        for kind in self.engine().watched_kinds.clone() {
            let (group, resource) = (kind.group, kind.resource);
            self.apply(EngineEvent::Synced { group, resource, has_synced: true })?;
        }
        Ok(())
    }
}

/// Measures all calls of an engine with one profile.
pub struct TimedEngine {
    engine: Engine,
    /// Kinds that the plugins watch.
    pub watched_kinds: Vec<Gvr>,
    /// Time in all calls.
    pub elapsed: Duration,
}

impl TimedEngine {
    /// An engine with this profile, as in a configuration.
    pub fn new(registry: &Registry, profile: Value) -> Result<TimedEngine> {
        let profile = crate::profile_of(registry, profile, json!([]))?;
        Ok(TimedEngine::of_profile(profile, &AllFeatureGates::default()))
    }

    /// An engine with this profile and gates.
    pub fn of_profile(profile: Arc<Profile>, gates: &AllFeatureGates) -> TimedEngine {
        let watched_kinds = profile.watches.iter().map(|watch| watch.kind.clone()).collect();
        let gates = gates.framework_gates();
        let engine = Engine::new(vec![profile], gates, EngineOptions::default());
        TimedEngine { engine, watched_kinds, elapsed: Duration::ZERO }
    }

    /// When the next timer expires.
    pub fn next_timeout(&self) -> Option<MonoTime> {
        self.engine.next_timeout()
    }

    fn timed<R>(&mut self, call: impl FnOnce(&mut Engine, &mut Effects) -> R) -> (R, Effects) {
        let (mut effects, start) = (Effects::new(), Instant::now());
        let result = call(&mut self.engine, &mut effects);
        self.elapsed += start.elapsed();
        (result, effects)
    }

    /// Handles an event.
    pub fn apply(&mut self, now: Now, event: EngineEvent) -> Effects {
        self.timed(|engine, effects| engine.apply_event(now, event, effects)).1
    }

    /// Runs at most one scheduling cycle.
    pub fn cycle(&mut self, now: Now) -> (CycleResult, Effects) {
        self.timed(|engine, effects| engine.cycle(now, effects))
    }

    /// Handles expired timers.
    pub fn handle_timeouts(&mut self, now: Now) -> Effects {
        self.timed(|engine, effects| engine.handle_timeouts(now, effects)).1
    }
}
