//! The engine's thread: gives it news, lets it schedule, carries out what it wants.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::Raw;
use loadmaster_client::Kind;
use loadmaster_client::calls::{Calls, Finished, Job};
use loadmaster_client::recorder::Recorder;
use loadmaster_client::watch::{Change, Unavailable};
use loadmaster_engine::engine::Cycled;
use loadmaster_engine::{Effect, Effects, Engine, Event, Now};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{Receiver, UnboundedReceiver};
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::extend::{Calling, Extended};
use super::missing::Missing;
use super::record::Recording;
use super::service::Wish;
use super::{clock, news, observe};
use crate::metrics::Metrics;
use crate::serve::Condition;

/// What others ask of the engine's thread.
pub(super) enum Command {
    /// Begin to schedule, or stop.
    Lead(bool),
    /// A question. It should be short: nothing is decided meanwhile.
    Ask(Box<dyn FnOnce(&Engine) + Send>),
    /// News from a service.
    Wish(Box<Wish>),
    /// End.
    Stop,
}

/// News taken, and cycles run, before the other is done again: neither starves.
const NEWS_AT_ONCE: usize = 2048;
const CYCLES_AT_ONCE: usize = 64;

/// How often states are shown in metrics.
const STATE_PERIOD_NANOS: u64 = 250_000_000;

/// The longest sleep, so that metrics stay current.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// The engine and its surroundings.
pub(super) struct Shell {
    pub engine: Engine,
    pub recording: Option<Recording>,
    pub news: Receiver<Change>,
    pub finished: Receiver<Finished>,
    pub commands: UnboundedReceiver<Command>,
    pub calls: Arc<Calls>,
    pub calling: Calling,
    pub extended: UnboundedReceiver<Extended>,
    pub recorder: Arc<Recorder>,
    pub metrics: Arc<Metrics>,
    pub synced: Condition,
    /// What cannot be read.
    pub missing: Missing,
    /// All that is followed.
    pub kinds: Vec<Kind>,
    /// Shows services who leads.
    pub leading: watch::Sender<bool>,
}

/// What came while the thread slept.
enum Woken {
    News(Option<Change>),
    Finished(Option<Finished>),
    Extended(Option<Extended>),
    Command(Option<Command>),
    Time,
}

/// How far the thread is.
struct Progress {
    is_leading: bool,
    is_over: bool,
    /// Kinds whose first list is not there yet.
    missing: Vec<Kind>,
    effects: Effects,
    /// Calls that found no room.
    backlog: VecDeque<Job>,
    state_shown_at: u64,
    /// Wrong decisions that have been told.
    n_disagreements: usize,
    /// In which this thread sleeps. Questions to extenders are asked in it: while one is under way the engine has nothing to do but wait,
    /// and no other thread has to be woken for it.
    here: Runtime,
}

impl Shell {
    /// Runs until it is told to stop.
    pub fn run(mut self) {
        let here = match Builder::new_current_thread().enable_all().build() {
            Ok(here) => here,
            Err(error) => return tracing::error!(%error, "The engine cannot begin"),
        };
        let mut at = Progress {
            is_leading: false,
            is_over: false,
            missing: self.kinds.clone(),
            effects: Effects::new(),
            backlog: VecDeque::new(),
            state_shown_at: 0,
            n_disagreements: 0,
            here,
        };
        while !at.is_over {
            let n_taken = self.take_what_is_there(&mut at);
            let now = clock::now();
            if self.engine.deadline().is_some_and(|deadline| deadline <= now.mono) {
                self.wake(now, &mut at);
            }
            let has_run = self.schedule(now, &mut at);
            self.carry_out(&mut at);
            self.show_state(now, &mut at);
            if n_taken == 0 && !has_run {
                self.sleep(&mut at);
            }
        }
    }

    fn take_what_is_there(&mut self, at: &mut Progress) -> usize {
        let mut n_taken = 0;
        // Also where news never end, questions go on.
        if at.here.metrics().num_alive_tasks() > 0 {
            at.here.block_on(yield_now());
        }
        while let Ok(command) = self.commands.try_recv() {
            self.obey(command, at);
            n_taken += 1;
        }
        // Answers first: they make room in the bind window.
        while let Ok(finished) = self.finished.try_recv() {
            self.apply(news::replied(finished), None, at);
            n_taken += 1;
        }
        while let Ok(extended) = self.extended.try_recv() {
            self.apply(extended.into(), None, at);
            n_taken += 1;
        }
        for _ in 0..NEWS_AT_ONCE {
            if !self.engine.hears_objects() {
                break;
            }
            let Ok(change) = self.news.try_recv() else { break };
            self.hear(change, at);
            n_taken += 1;
        }
        n_taken
    }

    /// Cycles, if it is ours to schedule and the picture of the cluster is whole.
    fn schedule(&mut self, now: Now, at: &mut Progress) -> bool {
        if !at.is_leading || !at.missing.is_empty() {
            return false;
        }
        for nth in 0..CYCLES_AT_ONCE {
            if self.cycle(now, at) != Cycled::Ran {
                return nth > 0;
            }
        }
        true
    }

    fn apply(&mut self, event: Event, raw: Option<&Raw>, at: &mut Progress) {
        let (now, before) = (clock::now(), at.effects.len());
        if let Some(recording) = &mut self.recording {
            recording.apply(now, &event, raw);
        }
        self.engine.apply(now, event, &mut at.effects);
        if let Some(recording) = &mut self.recording {
            recording.left(now, &at.effects[before..], None);
        }
    }

    fn cycle(&mut self, now: Now, at: &mut Progress) -> Cycled {
        let before = at.effects.len();
        if let Some(recording) = &mut self.recording {
            recording.cycle(now);
        }
        let cycled = self.engine.cycle(now, &mut at.effects);
        if let Some(recording) = &mut self.recording {
            recording.left(now, &at.effects[before..], Some(cycled));
        }
        cycled
    }

    fn wake(&mut self, now: Now, at: &mut Progress) {
        let before = at.effects.len();
        if let Some(recording) = &mut self.recording {
            recording.wake(now);
        }
        self.engine.wake(now, &mut at.effects);
        if let Some(recording) = &mut self.recording {
            recording.left(now, &at.effects[before..], None);
        }
    }

    fn obey(&mut self, command: Command, at: &mut Progress) {
        match command {
            Command::Lead(is_leading) => {
                at.is_leading = is_leading;
                self.leading.send_replace(is_leading);
            }
            Command::Wish(wish) => self.apply(wish.event, None, at),
            Command::Ask(question) => question(&self.engine),
            Command::Stop => at.is_over = true,
        }
    }

    fn hear(&mut self, change: Change, at: &mut Progress) {
        self.calling.hear(&change);
        let mut bytes = None;
        let event: Option<Event> = match change {
            Change::Set { kind, object, raw } => {
                bytes = raw;
                news::set(kind, object)
            }
            Change::Gone { kind, namespace, name, uid } => news::gone(kind, namespace, &name, uid),
            Change::Synced(kind) => {
                self.is_there(kind, at);
                news::listed(kind, true)
            }
            Change::Unavailable { kind, why } => {
                self.is_missing(kind, &why, at);
                let is_absent = !matches!(why, Unavailable::Failing { .. });
                if is_absent { news::listed(kind, false) } else { None }
            }
            Change::Available(kind) => {
                tracing::info!(resource = kind.resource().resource, "Can be read again");
                self.missing.remove(kind);
                None
            }
            _ => None,
        };
        if let Some(event) = event {
            self.apply(event, bytes.as_ref(), at);
        }
    }

    fn is_there(&mut self, kind: Kind, at: &mut Progress) {
        self.missing.remove(kind);
        self.count_as_there(kind, at);
    }

    fn count_as_there(&self, kind: Kind, at: &mut Progress) {
        let n_missing = at.missing.len();
        at.missing.retain(|missing| *missing != kind);
        if at.missing.is_empty() && n_missing > 0 {
            tracing::info!("Caches are synced");
            self.synced.succeed();
        }
    }

    /// Without some kinds decisions are only less informed; without others none is made.
    fn is_missing(&mut self, kind: Kind, why: &Unavailable, at: &mut Progress) {
        let holds_up = at.missing.contains(&kind);
        let text = self.missing.add(kind, why, holds_up);
        if kind.resource().required {
            if holds_up {
                self.synced.fail(text);
            }
        } else if !matches!(why, Unavailable::Failing { .. }) {
            self.count_as_there(kind, at);
        }
    }

    fn carry_out(&mut self, at: &mut Progress) {
        while let Some(job) = at.backlog.pop_front() {
            if let Err(full) = self.calls.submit(job) {
                at.backlog.push_front(*full.0);
                break;
            }
        }
        for effect in at.effects.drain(..) {
            match effect {
                Effect::Call(call) => {
                    let job = Job { id: call.id.0, request: call.request };
                    if at.backlog.is_empty() {
                        if let Err(full) = self.calls.submit(job) {
                            at.backlog.push_back(*full.0);
                        }
                    } else {
                        at.backlog.push_back(job);
                    }
                }
                Effect::Extend(extend) => self.calling.ask(extend, &at.here),
                Effect::Tell(tell) => self.recorder.record(observe::notice(tell)),
                Effect::Observe(seen) => observe::observe(&self.engine, &self.metrics, &seen),
            }
        }
    }

    fn show_state(&mut self, now: Now, at: &mut Progress) {
        if now.mono.0 >= at.state_shown_at + STATE_PERIOD_NANOS {
            at.state_shown_at = now.mono.0;
            observe::state(&mut self.engine, &self.metrics);
            for what in self.engine.disagreements().skip(at.n_disagreements) {
                tracing::error!(
                    what,
                    "A decision differs from asking every plugin about every node; this is a bug"
                );
                self.metrics.own.wrong_decisions(1);
                at.n_disagreements += 1;
            }
        }
    }

    /// Until something comes, or something is due.
    fn sleep(&mut self, at: &mut Progress) {
        let now = clock::now();
        if let Some(recording) = &mut self.recording {
            recording.rest(now);
        }
        let due = self.engine.deadline().map(|deadline| deadline.since(now.mono));
        let mut longest = due.unwrap_or(SLEEP_MAX).min(SLEEP_MAX);
        if !at.backlog.is_empty() {
            longest = longest.min(Duration::from_millis(10));
        }
        let hears_objects = self.engine.hears_objects();
        let woken = at.here.block_on(async {
            tokio::select! {
                biased;
                command = self.commands.recv() => Woken::Command(command),
                finished = self.finished.recv() => Woken::Finished(finished),
                extended = self.extended.recv() => Woken::Extended(extended),
                change = self.news.recv(), if hears_objects => Woken::News(change),
                () = sleep(longest) => Woken::Time,
            }
        });
        match woken {
            Woken::Command(Some(command)) => self.obey(command, at),
            Woken::Finished(Some(finished)) => {
                self.apply(news::replied(finished), None, at);
            }
            Woken::Extended(Some(extended)) => {
                self.apply(extended.into(), None, at);
            }
            Woken::News(Some(change)) => self.hear(change, at),
            Woken::Time => {}
            // Whoever told us things is gone, and so is our purpose.
            Woken::Command(None)
            | Woken::Finished(None)
            | Woken::Extended(None)
            | Woken::News(None) => at.is_over = true,
        }
    }
}
