//! Makes the calls of a log again and compares what they leave.

use std::time::Duration;

use loadmaster_framework::request::Verb;

use super::message::Left;
use super::reader::{Called, Entry, Tail};
use super::words;
use crate::engine::{Cycled, Effect, Effects, Engine, Event};
use crate::time::Now;

/// An engine that lives through a log.
pub struct Replay {
    engine: Engine,
    effects: Effects,
    /// The last call, while it has not been compared.
    open: Option<Open>,
    report: Report,
}

struct Open {
    entry: u64,
    now: Now,
    what: &'static str,
    cycled: Option<Cycled>,
}

/// What a log held, as far as it was replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Calls and what they left.
    pub n_entries: u64,
    /// Objects that came, changed or went.
    pub n_objects: u64,
    /// Cycles that tried a pod.
    pub n_attempts: u64,
    /// Binds that were asked for.
    pub n_binds: u64,
    /// All effects that were compared.
    pub n_effects: u64,
    /// Of the first call and of the last.
    pub first: Option<Now>,
    pub last: Option<Now>,
}

impl Report {
    /// From the first call to the last.
    pub fn spanned(&self) -> Duration {
        match (self.first, self.last) {
            (Some(first), Some(last)) => last.mono.since(first.mono),
            _ => Duration::ZERO,
        }
    }
}

/// The first effect that is not what was recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {entry}: {what}: recorded {recorded}, now {replayed}")]
pub struct Difference {
    /// Number of the call's entry, from 1.
    pub entry: u64,
    /// When the call was made.
    pub now: Now,
    /// Which call.
    pub what: &'static str,
    /// Whom it is about, as `namespace/name`, as far as that is known.
    pub pod: Option<String>,
    /// In words.
    pub recorded: String,
    /// In words.
    pub replayed: String,
}

/// A bind that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindOf<'a> {
    pub namespace: &'a str,
    pub pod: &'a str,
    pub uid: &'a str,
    pub node: &'a str,
}

/// The bind that an effect asks for, if it does.
pub fn bind_of(effect: &Effect) -> Option<BindOf<'_>> {
    let Effect::Call(call) = effect else { return None };
    let it = &call.request;
    let is_bind =
        it.verb == Verb::Create && &*it.resource == "pods" && &*it.subresource == "binding";
    let text = |path: &str| {
        it.body.as_ref().and_then(|body| body.pointer(path)).and_then(|it| it.as_str())
    };
    is_bind.then(|| BindOf {
        namespace: &it.namespace,
        pod: &it.name,
        uid: text("/metadata/uid").unwrap_or_default(),
        node: text("/target/name").unwrap_or_default(),
    })
}

impl Replay {
    /// With an engine that was built as the log's header says, and has not been called.
    pub fn new(engine: Engine) -> Replay {
        Replay { engine, effects: Effects::new(), open: None, report: Report::default() }
    }

    /// The engine as it is by now.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What was replayed so far.
    pub fn report(&self) -> Report {
        self.report
    }

    /// Takes the next entry. Effects that are as recorded are shown, with their time.
    ///
    /// # Errors
    ///
    /// At the first difference. What comes after it means nothing.
    pub fn take(
        &mut self,
        entry: Entry,
        show: &mut dyn FnMut(Now, &Effect),
    ) -> Result<(), Box<Difference>> {
        self.report.n_entries += 1;
        match entry {
            Entry::Call { now, call } => {
                self.compare(&Left::default(), show)?;
                self.call(now, call);
                Ok(())
            }
            Entry::Left(left) => self.compare(&left, show),
            Entry::End(_) => self.compare(&Left::default(), show),
        }
    }

    /// The log is over.
    ///
    /// # Errors
    ///
    /// When something is left that was not recorded, unless the log's end is missing.
    pub fn finish(mut self, tail: Tail) -> Result<Report, Box<Difference>> {
        if let Tail::Whole(_) = tail {
            self.compare(&Left::default(), &mut |_, _| ())?;
        }
        Ok(self.report)
    }

    fn call(&mut self, now: Now, call: Called) {
        self.report.first = self.report.first.or(Some(now));
        self.report.last = Some(now);
        let what = what(&call);
        let cycled = match call {
            Called::Apply(event) => {
                let is_object = matches!(event, Event::Set(_) | Event::Gone(_));
                self.report.n_objects += u64::from(is_object);
                self.engine.apply(now, event, &mut self.effects);
                None
            }
            Called::Wake => {
                self.engine.wake(now, &mut self.effects);
                None
            }
            Called::Cycle => Some(self.engine.cycle(now, &mut self.effects)),
        };
        self.report.n_attempts += u64::from(cycled == Some(Cycled::Ran));
        self.open = Some(Open { entry: self.report.n_entries, now, what, cycled });
    }

    /// What the last call left, against what was recorded; once a call.
    fn compare(
        &mut self,
        recorded: &Left,
        show: &mut dyn FnMut(Now, &Effect),
    ) -> Result<(), Box<Difference>> {
        let Some(open) = self.open.take() else {
            return if *recorded == Left::default() { Ok(()) } else { Err(self.unasked(recorded)) };
        };
        let replayed = Left::of(&self.effects, open.cycled);
        if replayed != *recorded {
            return Err(Box::new(difference(&open, recorded, &replayed)));
        }
        self.report.n_effects += recorded.effects.len() as u64;
        for effect in self.effects.drain(..) {
            self.report.n_binds += u64::from(bind_of(&effect).is_some());
            show(open.now, &effect);
        }
        Ok(())
    }

    /// Effects were recorded without a call.
    fn unasked(&self, recorded: &Left) -> Box<Difference> {
        let now = self
            .report
            .last
            .unwrap_or(Now { mono: crate::time::Mono(0), wall: loadmaster_api::Timestamp(0) });
        let entry = self.report.n_entries;
        let open = Open { entry, now, what: "no call", cycled: None };
        Box::new(difference(&open, recorded, &Left::default()))
    }
}

fn what(call: &Called) -> &'static str {
    match call {
        Called::Cycle => "a cycle",
        Called::Wake => "what was due",
        Called::Apply(Event::Set(_)) => "an object came or changed",
        Called::Apply(Event::Gone(_)) => "an object went",
        Called::Apply(Event::Replied { .. }) => "an answer came",
        Called::Apply(Event::Extended { .. }) => "an extender answered",
        Called::Apply(Event::Changed { .. }) => "an object that plugins wait for changed",
        Called::Apply(Event::Listed { .. }) => "objects that plugins watch were listed",
        Called::Apply(Event::Published { .. }) => "a service published something",
        Called::Apply(Event::Permit { .. }) => "a waiting pod was allowed or rejected",
        Called::Apply(Event::Activate(_)) => "pods were activated",
    }
}

fn difference(open: &Open, recorded: &Left, replayed: &Left) -> Difference {
    let (mut old, mut new) = (recorded.effects.iter(), replayed.effects.iter());
    let (recorded, replayed, pod) = loop {
        let (was, is) = (old.next(), new.next());
        if was.is_none() && is.is_none() {
            break (words::cycled(recorded.cycled), words::cycled(replayed.cycled), None);
        }
        if was != is {
            let pod = was.or(is).and_then(words::subject);
            let words = |it: Option<_>| it.map_or_else(|| "nothing".to_owned(), words::effect);
            break (words(was), words(is), pod);
        }
    };
    // An attempt's outcome does not say whose it is; its neighbours do.
    let mut all = old.chain(new);
    let pod = pod.or_else(|| all.find_map(words::subject));
    Difference { entry: open.entry, now: open.now, what: open.what, pod, recorded, replayed }
}
