//! The network between the API server and the engine, and what goes wrong in it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use loadmaster_engine::engine::{ApiError, Call, Event, Name, Object, Reply};
use loadmaster_engine::{Mono, Now};
use loadmaster_stdx::Rng;

use crate::truth::{KINDS, Kind, News, Truth};

/// Which faults a run has; each is drawn by the seed, so that each meets the others and each is met alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    /// News are late by up to so much, in milliseconds.
    news_delay_ms: i64,
    /// Many news come at once.
    batches: bool,
    /// The same object is told again.
    duplicates: bool,
    /// Watches break, and what happened until the next list is never told.
    broken_watches: bool,
    /// Calls take up to so long, each way.
    call_delay_ms: i64,
    refusals: bool,
    /// Patches and deletions that are done although the answer is an error.
    lost_answers: bool,
    pub leader_losses: bool,
    /// The engine stands still for minutes.
    pub stalls: bool,
}

impl Faults {
    pub fn draw(rng: &mut Rng) -> Faults {
        let half = |rng: &mut Rng| rng.one_in(2);
        Faults {
            news_delay_ms: *rng.pick(&[0, 20, 500, 5_000]),
            batches: half(rng),
            duplicates: half(rng),
            broken_watches: half(rng),
            call_delay_ms: *rng.pick(&[0, 10, 300, 3_000, 20_000]),
            refusals: half(rng),
            lost_answers: half(rng),
            leader_losses: rng.one_in(3),
            stalls: rng.one_in(4),
        }
    }

    /// A network as it should be.
    fn none() -> Faults {
        Faults {
            news_delay_ms: 0,
            batches: false,
            duplicates: false,
            broken_watches: false,
            call_delay_ms: 0,
            refusals: false,
            lost_answers: false,
            leader_losses: false,
            stalls: false,
        }
    }
}

/// The watch of one kind. What it tells stays in order; watches know nothing of each other.
#[derive(Default)]
struct Watch {
    coming: VecDeque<(Mono, News)>,
    /// What it has told, so that a list can tell what is gone.
    known: BTreeMap<Box<str>, Name>,
    /// It is broken, and lists again then.
    lists_at: Option<Mono>,
}

/// A call on its way.
struct Flight {
    /// Which engine made it.
    term: u64,
    call: Call,
    fate: Fate,
    /// When it arrives, and then when its answer does.
    due: Mono,
    answer: Option<Reply>,
}

enum Fate {
    Done,
    /// It is not carried out.
    Refused(ApiError),
    /// It is carried out, but the answer is lost.
    Unseen,
}

/// What reaches the engine.
pub(super) enum Delivery {
    News(Event),
    /// For the engine of this term.
    Answer {
        term: u64,
        call: Call,
        reply: Reply,
    },
    /// Something arrived at the API server.
    Nothing,
}

pub(super) struct Network {
    rng: Rng,
    pub faults: Faults,
    watches: [Watch; 3],
    flights: Vec<Flight>,
    pub n_relists: u64,
    pub n_refused: u64,
}

impl Network {
    pub fn new(mut rng: Rng) -> Network {
        Network {
            faults: Faults::draw(&mut rng),
            rng,
            watches: Default::default(),
            flights: Vec::new(),
            n_relists: 0,
            n_refused: 0,
        }
    }

    /// From now on nothing goes wrong. What is under way arrives.
    pub fn heal(&mut self, now: Mono) {
        self.faults = Faults::none();
        for watch in &mut self.watches {
            watch.lists_at = watch.lists_at.map(|_| now);
            watch.coming.iter_mut().for_each(|(due, _)| *due = (*due).min(now));
        }
    }

    /// A new engine knows nothing: all is listed.
    pub fn start_over(&mut self, now: Mono) {
        for watch in &mut self.watches {
            *watch = Watch { lists_at: Some(now), ..Watch::default() };
        }
    }

    /// The API server has news.
    pub fn spread(&mut self, now: Mono, all: Vec<News>) {
        for news in all {
            let delay = self.delay(self.faults.news_delay_ms);
            let is_late = self.faults.batches && self.rng.one_in(20);
            let delay = if is_late { delay * 4 + Duration::from_secs(1) } else { delay };
            let breaks = self.faults.broken_watches && self.rng.one_in(40);
            let pause = self.delay(5_000);
            let watch = &mut self.watches[news.kind as usize];
            if watch.lists_at.is_some() {
                continue;
            }
            if breaks {
                watch.coming.clear();
                watch.lists_at = Some(now.after(pause));
                continue;
            }
            let before = watch.coming.back().map_or(now, |(due, _)| *due);
            watch.coming.push_back((now.after(delay).max(before), news));
        }
    }

    /// The engine calls.
    pub fn send(&mut self, now: Mono, term: u64, call: Call) {
        let fate = self.fate(&call);
        let due = now.after(self.delay(self.faults.call_delay_ms));
        self.flights.push(Flight { term, call, fate, due, answer: None });
    }

    /// A bind that may have been carried out unseen is resolved by reading the pod before it is answered, so that the answer of a
    /// bind is true in the end. Others are answered by what came back.
    fn fate(&mut self, call: &Call) -> Fate {
        if self.faults.refusals && self.rng.one_in(8) {
            let (code, message) = *self.rng.pick(&[
                (0, "connection refused"),
                (409, "the object has been modified"),
                (429, "too many requests"),
                (500, "etcdserver: request timed out"),
            ]);
            self.n_refused += 1;
            return Fate::Refused(ApiError { code, message: message.to_owned() });
        }
        let is_bind = call.request.subresource == "binding";
        if !is_bind && self.faults.lost_answers && self.rng.one_in(8) {
            self.n_refused += 1;
            return Fate::Unseen;
        }
        Fate::Done
    }

    /// When something arrives next.
    pub fn due(&self) -> Option<Mono> {
        let news = self.watches.iter().flat_map(|watch| {
            watch.lists_at.into_iter().chain(watch.coming.front().map(|(due, _)| *due))
        });
        news.chain(self.flights.iter().map(|flight| flight.due)).min()
    }

    /// Whether calls are under way, of any engine.
    pub fn has_calls(&self) -> bool {
        !self.flights.is_empty()
    }

    /// One of the things that are due, in no order but that of each watch. `None` when nothing is.
    pub fn deliver(&mut self, now: Now, truth: &mut Truth, out: &mut Vec<Delivery>) -> bool {
        for kind in KINDS {
            if self.watches[kind as usize].lists_at.is_some_and(|due| due <= now.mono) {
                self.list(now.mono, kind, truth);
            }
        }
        let watches = self.watches.iter().enumerate();
        let watches = watches
            .filter(|(_, watch)| watch.coming.front().is_some_and(|(due, _)| *due <= now.mono));
        let watches: Vec<usize> = watches.map(|(at, _)| at).collect();
        let flights = self.flights.iter().enumerate();
        let flights = flights.filter(|(_, flight)| flight.due <= now.mono);
        let flights: Vec<usize> = flights.map(|(at, _)| at).collect();
        let n_due = watches.len() + flights.len();
        if n_due == 0 {
            return false;
        }
        let at = self.rng.below(n_due as u64) as usize;
        match watches.get(at) {
            Some(watch) => self.tell(*watch, out),
            None => out.push(self.arrive(now, flights[at - watches.len()], truth)),
        }
        true
    }

    fn tell(&mut self, watch: usize, out: &mut Vec<Delivery>) {
        let again = self.faults.duplicates && self.rng.one_in(6);
        let watch = &mut self.watches[watch];
        let Some((_, news)) = watch.coming.pop_front() else { return };
        match &news.event {
            Event::Set(object) => drop(watch.known.insert(news.key, name_of(object))),
            _ => drop(watch.known.remove(&news.key)),
        }
        if again {
            out.push(Delivery::News(news.event.clone()));
        }
        out.push(Delivery::News(news.event));
    }

    /// A watch that broke lists: all that is there, and what is there no more.
    fn list(&mut self, now: Mono, kind: Kind, truth: &Truth) {
        self.n_relists += 1;
        let gone_first = self.rng.one_in(2);
        let watch = &mut self.watches[kind as usize];
        watch.lists_at = None;
        let listed = truth.list(kind);
        let is_there = |key: &str| listed.iter().any(|news| *news.key == *key);
        let gone = watch.known.iter().filter(|(key, _)| !is_there(key));
        let gone = gone.map(|(key, name)| News {
            kind,
            key: key.clone(),
            event: Event::Gone(name.clone()),
        });
        let gone: Vec<News> = gone.collect();
        let all = if gone_first { [gone, listed] } else { [listed, gone] };
        watch.coming = all.into_iter().flatten().map(|news| (now, news)).collect();
    }

    /// A call arrives at the API server, or its answer at whoever called.
    fn arrive(&mut self, now: Now, at: usize, truth: &mut Truth) -> Delivery {
        let back = now.mono.after(self.delay(self.faults.call_delay_ms));
        let flight = &mut self.flights[at];
        if let Some(reply) = flight.answer.take() {
            let Flight { term, call, .. } = self.flights.swap_remove(at);
            return Delivery::Answer { term, call, reply };
        }
        flight.answer = Some(match &flight.fate {
            Fate::Done => truth.call(&flight.call.request, now.wall),
            Fate::Refused(error) => Err(error.clone()),
            Fate::Unseen => {
                let _ = truth.call(&flight.call.request, now.wall);
                Err(ApiError { code: 0, message: "connection reset by peer".to_owned() })
            }
        });
        flight.due = back;
        Delivery::Nothing
    }

    fn delay(&mut self, ms_max: i64) -> Duration {
        Duration::from_millis(self.rng.range(0, ms_max) as u64)
    }
}

fn name_of(object: &Object) -> Name {
    match object {
        Object::Node(node) => Name::Node(node.metadata.name.as_ref().into()),
        Object::Pod(pod) => Name::Pod(pod.metadata.uid.clone()),
        Object::PodDisruptionBudget(it) => {
            Name::PodDisruptionBudget(it.metadata.namespace.clone(), (&*it.metadata.name).into())
        }
        // Other kinds are not watched here.
        other => Name::PriorityClass(format!("{other:?}").into()),
    }
}
