//! Repeats the calls of a recording and compares their effects.

use std::sync::Arc;
use std::time::Duration;

use loadmaster_framework::api_calls::Verb;

use super::describe;
use super::message::RecordedEffects;
use super::reader::{EngineCall, RecordingEnd, RecordingEntry};
use crate::engine::{CycleResult, Effect, Effects, Engine, EngineConfiguration, EngineEvent};
use crate::time::Now;

/// Replays a recording on an engine.
pub struct Replay {
    engine: Engine,
    effects: Effects,
    /// The last call, until its effects have been compared.
    open: Option<PendingComparison>,
    report: ReplayReport,
    build: BuildConfiguration,
}

/// Builds a configuration that was recorded as YAML.
pub type BuildConfiguration = Box<dyn Fn(&str) -> Result<EngineConfiguration, String>>;

struct PendingComparison {
    entry: u64,
    now: Now,
    call: &'static str,
    cycled: Option<CycleResult>,
}

/// Counts of what was replayed so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayReport {
    /// Entries: calls, and effects of calls.
    pub n_entries: u64,
    /// Objects that were added, updated or deleted.
    pub n_objects: u64,
    /// Scheduling attempts.
    pub n_attempts: u64,
    /// Bind requests.
    pub n_binds: u64,
    /// Effects that were compared.
    pub n_effects: u64,
    /// The times of the first and the last call.
    pub first: Option<Now>,
    pub last: Option<Now>,
}

impl ReplayReport {
    /// The time from the first call to the last.
    pub fn duration(&self) -> Duration {
        match (self.first, self.last) {
            (Some(first), Some(last)) => last.mono.since(first.mono),
            _ => Duration::ZERO,
        }
    }
}

/// The first effect that differs from the recording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {entry}: {call}: recorded {recorded}, now {replayed}")]
pub struct ReplayDifference {
    /// Number of the entry of the call, from 1.
    pub entry: u64,
    /// When the call was made.
    pub now: Now,
    /// The call.
    pub call: &'static str,
    /// The pod, as `namespace/name`, if known.
    pub pod: Option<String>,
    /// The recorded effect, as text.
    pub recorded: String,
    /// The replayed effect, as text.
    pub replayed: String,
}

/// A bind request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindRequest<'a> {
    pub namespace: &'a str,
    pub pod: &'a str,
    pub uid: &'a str,
    pub node: &'a str,
}

/// The bind request of an effect, if it is one.
pub fn bind_request_of_effect(effect: &Effect) -> Option<BindRequest<'_>> {
    let Effect::Call(call) = effect else { return None };
    let it = &call.request;
    let is_bind =
        it.verb == Verb::Create && &*it.resource == "pods" && &*it.subresource == "binding";
    let text = |path: &str| {
        it.body.as_ref().and_then(|body| body.pointer(path)).and_then(|it| it.as_str())
    };
    is_bind.then(|| BindRequest {
        namespace: &it.namespace,
        pod: &it.name,
        uid: text("/metadata/uid").unwrap_or_default(),
        node: text("/target/name").unwrap_or_default(),
    })
}

impl Replay {
    /// Replays on an engine that was created with the settings of the recording's header, and has not been called. `build` builds the
    /// configurations that replaced these settings.
    pub fn new(engine: Engine, build: BuildConfiguration) -> Replay {
        let report = ReplayReport::default();
        Replay { engine, effects: Effects::new(), open: None, report, build }
    }

    /// The engine in its current state.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Counts of what was replayed so far.
    pub fn report(&self) -> ReplayReport {
        self.report
    }

    /// Replays the next entry. `show` gets every effect that equals the recorded one, with its time.
    ///
    /// # Errors
    ///
    /// At the first difference. Entries after it must not be replayed.
    pub fn replay_entry(
        &mut self,
        entry: RecordingEntry,
        show: &mut dyn FnMut(Now, &Effect),
    ) -> Result<(), Box<ReplayDifference>> {
        self.report.n_entries += 1;
        match entry {
            RecordingEntry::Call { now, call } => {
                self.compare(&RecordedEffects::default(), show)?;
                self.call(now, call)
            }
            RecordingEntry::Effects(left) => self.compare(&left, show),
            RecordingEntry::End(_) => self.compare(&RecordedEffects::default(), show),
        }
    }

    /// Ends the replay.
    ///
    /// # Errors
    ///
    /// When the last call has effects that were not recorded, unless the end of the recording is missing.
    pub fn finish(mut self, tail: RecordingEnd) -> Result<ReplayReport, Box<ReplayDifference>> {
        if let RecordingEnd::Complete(_) = tail {
            self.compare(&RecordedEffects::default(), &mut |_, _| ())?;
        }
        Ok(self.report)
    }

    fn call(&mut self, now: Now, call: EngineCall) -> Result<(), Box<ReplayDifference>> {
        self.report.first = self.report.first.or(Some(now));
        self.report.last = Some(now);
        let name = describe_call(&call);
        let cycled = match call {
            EngineCall::Apply(event) => {
                let is_object = matches!(event, EngineEvent::Upsert(_) | EngineEvent::Delete(_));
                self.report.n_objects += u64::from(is_object);
                self.engine.apply_event(now, event, &mut self.effects);
                None
            }
            EngineCall::HandleTimeouts => {
                self.engine.handle_timeouts(now, &mut self.effects);
                None
            }
            EngineCall::Reconfigure(yaml) => {
                let built = (self.build)(&yaml).map_err(|error| {
                    Box::new(ReplayDifference {
                        entry: self.report.n_entries,
                        now,
                        call: name,
                        pod: None,
                        recorded: "a valid configuration".to_owned(),
                        replayed: error,
                    })
                })?;
                let event = EngineEvent::Reconfigured(Arc::new(built));
                self.engine.apply_event(now, event, &mut self.effects);
                None
            }
            EngineCall::Cycle => Some(self.engine.cycle(now, &mut self.effects)),
        };
        self.report.n_attempts += u64::from(cycled == Some(CycleResult::Ran));
        self.open =
            Some(PendingComparison { entry: self.report.n_entries, now, call: name, cycled });
        Ok(())
    }

    /// Compares the effects of the last call with the recorded ones, once per call.
    fn compare(
        &mut self,
        recorded: &RecordedEffects,
        show: &mut dyn FnMut(Now, &Effect),
    ) -> Result<(), Box<ReplayDifference>> {
        let Some(open) = self.open.take() else {
            return if *recorded == RecordedEffects::default() {
                Ok(())
            } else {
                Err(self.unexpected_effects(recorded))
            };
        };
        let replayed = RecordedEffects::of(&self.effects, open.cycled);
        if replayed != *recorded {
            return Err(Box::new(difference(&open, recorded, &replayed)));
        }
        self.report.n_effects += recorded.effects.len() as u64;
        for effect in self.effects.drain(..) {
            self.report.n_binds += u64::from(bind_request_of_effect(&effect).is_some());
            show(open.now, &effect);
        }
        Ok(())
    }

    /// The difference for effects that were recorded without a call.
    fn unexpected_effects(&self, recorded: &RecordedEffects) -> Box<ReplayDifference> {
        let now = self
            .report
            .last
            .unwrap_or(Now { mono: crate::time::MonoTime(0), wall: loadmaster_api::Timestamp(0) });
        let entry = self.report.n_entries;
        let open = PendingComparison { entry, now, call: "no call", cycled: None };
        Box::new(difference(&open, recorded, &RecordedEffects::default()))
    }
}

fn describe_call(call: &EngineCall) -> &'static str {
    match call {
        EngineCall::Cycle => "scheduling cycle",
        EngineCall::HandleTimeouts => "timeouts",
        EngineCall::Apply(EngineEvent::Upsert(_)) => "an object was added or updated",
        EngineCall::Apply(EngineEvent::Delete(_)) => "an object was deleted",
        EngineCall::Apply(EngineEvent::Replied { .. }) => "the API server replied",
        EngineCall::Apply(EngineEvent::ExtenderReplied { .. }) => "an extender replied",
        EngineCall::Apply(EngineEvent::ObjectChanged { .. }) => "an object of a plugin changed",
        EngineCall::Apply(EngineEvent::Synced { .. }) => "the objects of a plugin were listed",
        EngineCall::Apply(EngineEvent::Published { .. }) => "a service published a value",
        EngineCall::Apply(EngineEvent::Permit { .. }) => "a waiting pod was allowed or rejected",
        EngineCall::Apply(EngineEvent::Activate(_)) => "pods were activated",
        EngineCall::Apply(EngineEvent::Reconfigured(_)) | EngineCall::Reconfigure(_) => {
            "another configuration"
        }
    }
}

fn difference(
    open: &PendingComparison,
    recorded: &RecordedEffects,
    replayed: &RecordedEffects,
) -> ReplayDifference {
    let (mut old, mut new) = (recorded.effects.iter(), replayed.effects.iter());
    let (recorded, replayed, pod) = loop {
        let (was, is) = (old.next(), new.next());
        if was.is_none() && is.is_none() {
            break (describe::cycled(recorded.cycled), describe::cycled(replayed.cycled), None);
        }
        if was != is {
            let pod = was.or(is).and_then(describe::subject);
            let words = |it: Option<_>| it.map_or_else(|| "nothing".to_owned(), describe::effect);
            break (words(was), words(is), pod);
        }
    };
    // An attempt's outcome does not contain the pod; other effects of the call do.
    let mut all = old.chain(new);
    let pod = pod.or_else(|| all.find_map(describe::subject));
    ReplayDifference { entry: open.entry, now: open.now, call: open.call, pod, recorded, replayed }
}
