//! The steps of a run.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::{Str, Timestamp};
use loadmaster_engine::engine::{
    Call, CallId, Cycled, Effect, Effects, Event, Extend, Name, Object, Observation,
    Options as EngineOptions,
};
use loadmaster_engine::{Engine, Mono, Now, Profile};
use loadmaster_extender::Question;
use loadmaster_stdx::Rng;

use super::check::{self, Checked};
use super::extenders::{self, Extenders};
use super::faults::{Delivery, Network};
use super::known::{About, Known};
use super::nervous;
use super::trace::{Log, Trace};
use super::users::Users;
use super::{Broken, Options, Report, Sabotage, Setup};
use crate::truth::{Truth, has_ended};

/// Virtual time at which a run begins.
const BEGIN: Mono = Mono(10_000_000_000);
const BEGIN_WALL: i64 = 1_700_000_000_000_000_000;

/// After the faults everything must have settled within this much virtual time: two flushes of pods that waited too long, and a
/// backoff after each.
const SETTLES_IN: Duration = Duration::from_secs(15 * 60);

/// Longer than any run.
const NEVER: Duration = Duration::from_secs(7 * 24 * 3600);

/// Time stands still for at most so many rounds.
const N_ROUNDS_MAX: u32 = 20_000;

/// What the engine says of a pod when the extender that should bind it did not answer in time.
const NO_ANSWER: &str = "no answer came from the extender";

/// Invariants that need a world built from nothing are checked every so many steps.
const COSTLY_EVERY: u32 = 8;

/// Runs a seed, faults first. The log gets every event and effect as a line.
pub fn run<'a>(setup: &'a Setup, options: Options, log: Log<'a>) -> Result<Report, Box<Broken>> {
    let mut run = Run::new(setup, options, log);
    let ended = run.with_faults().and_then(|()| run.without_faults());
    match ended {
        Ok(()) => Ok(run.report()),
        Err(what) => {
            Err(Box::new(Broken { seed: options.seed, step: run.step, at_ms: run.at_ms(), what }))
        }
    }
}

struct Run<'a> {
    setup: &'a Setup,
    options: Options,
    /// Whether pods that no event woke are tried after a while. Where they are not, an event that was missed is seen.
    flushes: bool,
    rng: Rng,
    step: u32,
    now: Now,
    /// Who decides.
    profile: Arc<Profile>,
    truth: Truth,
    users: Users,
    network: Network,
    extenders: Extenders,
    known: Known,
    /// What the engine was told while an attempt waited for an extender: for that attempt it has not happened yet.
    pinned: VecDeque<Event>,
    engine: Engine,
    /// Number of the engine: one that lost its lease hears no answers.
    term: u64,
    trace: Trace<'a>,
    report: Report,
    /// Pods that sabotage has met.
    met: BTreeSet<Box<str>>,
}

impl<'a> Run<'a> {
    fn new(setup: &'a Setup, options: Options, log: Log<'a>) -> Run<'a> {
        let rng = Rng::new(options.seed);
        let mut truth = Truth::default();
        let users = Users::new(rng.split("users"), &mut truth);
        let mut chance = rng.split("panics");
        let nervous = setup.nervous.as_ref().filter(|_| chance.one_in(3));
        let mut chance_of_extenders = rng.split("extenders");
        let extended = (nervous.is_none() && !setup.extended.is_empty())
            .then(|| chance_of_extenders.pick(&setup.extended).clone())
            .filter(|_| chance_of_extenders.one_in(3));
        // A pod whose PreEnqueue panicked, or that an extender turned down on a whim, has nothing but the flush to wait for.
        let is_odd = nervous.is_some() || extended.is_some();
        let flushes = is_odd || rng.split("flushes").one_in(2);
        let profile = extended.or(nervous.cloned()).unwrap_or_else(|| setup.profile.clone());
        nervous::upset(nervous.is_some().then_some(chance));
        let mut run = Run {
            engine: engine(&profile, setup, flushes, &mut rng.split("engine 0")),
            flushes,
            profile,
            setup,
            options,
            rng: rng.split("steps"),
            step: 0,
            now: Now { mono: BEGIN, wall: Timestamp(BEGIN_WALL) },
            truth,
            users,
            network: Network::new(rng.split("network")),
            extenders: Extenders::new(chance_of_extenders),
            pinned: VecDeque::new(),
            known: Known::default(),
            term: 0,
            trace: Trace::new(log),
            report: Report::default(),
            met: BTreeSet::new(),
        };
        run.network.start_over(BEGIN);
        run
    }

    fn report(mut self) -> Report {
        self.report.pods = self.users.n_pods();
        self.report.relists = self.network.n_relists;
        self.report.refused = self.network.n_refused;
        self.report.asked = self.extenders.n_asked;
        self.report.unanswered = self.extenders.n_failed;
        self.report.trace = self.trace.value();
        self.report
    }

    fn at_ms(&self) -> u64 {
        self.now.mono.since(BEGIN).as_millis() as u64
    }

    fn with_faults(&mut self) -> Checked {
        for step in 0..self.options.steps {
            self.step = step;
            self.pass();
            for _ in 0..self.rng.below(3) {
                self.users.act(&mut self.truth, self.now.wall);
            }
            self.users.keep_house(&mut self.truth, self.now.wall, false);
            if self.network.faults.leader_losses && self.rng.one_in(60) {
                self.lose_leader();
            }
            let most = if self.rng.one_in(3) { self.rng.below(6) } else { u64::MAX };
            self.deliver(most)?;
            self.wake()?;
            let most = if self.rng.one_in(3) { self.rng.below(4) } else { u64::MAX };
            self.cycle(most)?;
            self.check()?;
        }
        Ok(())
    }

    fn pass(&mut self) {
        let ms = match self.rng.below(30) {
            0..=19 => self.rng.range(0, 500),
            20..=28 => self.rng.range(500, 5_000),
            _ if self.network.faults.stalls => self.rng.range(10_000, 400_000),
            _ => self.rng.range(5_000, 30_000),
        };
        self.pass_until(self.now.mono.after(Duration::from_millis(ms as u64)));
    }

    fn pass_until(&mut self, then: Mono) {
        let passed = then.since(self.now.mono).as_nanos() as u64;
        self.now.mono = Mono(self.now.mono.0 + passed);
        self.now.wall = Timestamp(self.now.wall.0 + passed as i64);
    }

    /// The lease is lost: the next engine knows nothing, and what this one called for may still happen.
    fn lose_leader(&mut self) {
        self.term += 1;
        self.report.leader_losses += 1;
        self.trace.note(self.at_ms(), format_args!("leader {} begins", self.term));
        let mut chance = Rng::new(self.options.seed).split(&format!("engine {}", self.term));
        self.engine = engine(&self.profile, self.setup, self.flushes, &mut chance);
        self.known = Known::default();
        self.pinned.clear();
        self.network.start_over(self.now.mono);
    }

    /// Lets the network deliver what is due, at most so many.
    fn deliver(&mut self, most: u64) -> Checked {
        let mut out = Vec::new();
        for _ in 0..most {
            let news = self.truth.take_news();
            self.network.spread(self.now.mono, news);
            if let Some(said) = self.extenders.answer(self.now, &mut self.truth) {
                self.hear_extender(said)?;
                continue;
            }
            if !self.network.deliver(self.now, &mut self.truth, &mut out) {
                break;
            }
            for delivery in out.drain(..) {
                match delivery {
                    Delivery::News(event) => {
                        self.pinned.push_back(event.clone());
                        self.tell(event)?;
                    }
                    Delivery::Answer { term, call, reply } if term == self.term => {
                        self.known.answered(&call, &reply);
                        let is_bind = matches!(About::of(&call), About::Bind { .. });
                        self.report.bound += u64::from(is_bind && reply.is_ok());
                        self.answer(&call, reply)?;
                    }
                    Delivery::Answer { .. } | Delivery::Nothing => {}
                }
            }
        }
        let news = self.truth.take_news();
        self.network.spread(self.now.mono, news);
        match self.truth.bound_twice().first() {
            None => Ok(()),
            Some(pod) => Err(format!("pod {pod} was bound twice")),
        }
    }

    fn hear_extender(&mut self, said: extenders::Said) -> Checked {
        if said.term != self.term {
            return Ok(());
        }
        if let Some((call, reply)) = &said.bind {
            self.known.answered(call, reply);
            self.report.bound += u64::from(reply.is_ok());
        }
        self.apply(said.event)
    }

    /// Tells the engine, unless somebody holds it back.
    fn tell(&mut self, event: Event) -> Checked {
        let is_lost = match (self.options.sabotage, &event) {
            (Some(Sabotage::LostDeletion), Event::Gone(Name::Pod(uid))) => {
                self.engine.world().row_of_pod(uid).is_some()
            }
            (Some(Sabotage::LostUpdate), Event::Set(Object::Pod(pod))) => {
                let is_known = self.engine.pending_pod(&pod.metadata.uid).is_some();
                is_known && pod.spec.node_name.is_empty() && !has_ended(pod)
            }
            _ => false,
        };
        if is_lost { Ok(()) } else { self.apply(event) }
    }

    fn answer(&mut self, call: &Call, reply: loadmaster_engine::engine::Reply) -> Checked {
        let About::Bind { uid, .. } = About::of(call) else {
            return self.apply(Event::Replied { call: call.id, reply });
        };
        if self.options.sabotage == Some(Sabotage::ForgottenForget) && reply.is_err() {
            return Ok(());
        }
        let is_bound = reply.is_ok();
        self.apply(Event::Replied { call: call.id, reply })?;
        if self.options.sabotage == Some(Sabotage::StalePod)
            && is_bound
            && self.met.insert(uid.clone())
            && let Some(pod) = self.known.pods.get(&uid).cloned()
        {
            let mut pod = pod;
            pod.spec.node_name = loadmaster_api::Str::default();
            self.apply(Event::Gone(Name::Pod(uid)))?;
            self.apply(Event::Set(Object::Pod(Box::new(pod))))?;
        }
        Ok(())
    }

    fn apply(&mut self, event: Event) -> Checked {
        self.unpin();
        self.trace.event(self.at_ms(), &event);
        let mut effects = Effects::new();
        self.engine.apply(self.now, event, &mut effects);
        self.carry_out(effects, false)?;
        self.unpin();
        Ok(())
    }

    /// The bookkeeper hears what an attempt may reckon with.
    fn unpin(&mut self) {
        if !self.engine.is_suspended() {
            self.pinned.drain(..).for_each(|event| self.known.told(&event));
        }
    }

    fn wake(&mut self) -> Checked {
        let is_due = self.engine.deadline().is_some_and(|due| due <= self.now.mono);
        if !is_due {
            return Ok(());
        }
        let mut effects = Effects::new();
        self.engine.wake(self.now, &mut effects);
        self.carry_out(effects, false)?;
        self.unpin();
        Ok(())
    }

    /// Lets the engine try pods, at most so many.
    fn cycle(&mut self, most: u64) -> Checked {
        for _ in 0..most.min(u64::from(N_ROUNDS_MAX)) {
            let mut effects = Effects::new();
            let cycled = self.engine.cycle(self.now, &mut effects);
            self.carry_out(effects, true)?;
            if cycled != Cycled::Ran {
                return Ok(());
            }
            self.report.attempts += 1;
        }
        match most {
            u64::MAX => Err("the engine tries pods for ever without time passing".to_owned()),
            _ => Ok(()),
        }
    }

    fn carry_out(&mut self, effects: Effects, in_cycle: bool) -> Checked {
        for effect in effects {
            self.trace.effect(self.at_ms(), &effect);
            match effect {
                Effect::Call(call) => self.call(call, in_cycle)?,
                Effect::Tell(tell) if tell.reason == "Preempted" => {
                    check::preempted(&self.known, &tell)?;
                }
                // While things go wrong room may come after the flush as well.
                Effect::Observe(Observation::Bound { after_flush: true, .. })
                    if self.step == self.options.steps && self.profile.extenders.is_empty() =>
                {
                    self.report.bound_after_flush += 1;
                }
                Effect::Observe(Observation::Panicked(panic)) => self.report.panics += panic.times,
                Effect::Extend(extend) => self.ask(extend)?,
                Effect::Tell(tell) if tell.note == NO_ANSWER => {
                    self.known.gave_up(&tell.regarding.uid);
                }
                Effect::Tell(_) | Effect::Observe(_) => {}
            }
        }
        Ok(())
    }

    fn ask(&mut self, extend: Extend) -> Checked {
        if let Question::Bind(node) = &extend.ask.question {
            self.bind(extend.id, &extend.ask.uid, node.clone())?;
        }
        self.extenders.ask(self.now.mono, self.term, extend);
        Ok(())
    }

    fn bind(&mut self, call: CallId, uid: &str, node: Str) -> Checked {
        self.report.binds += 1;
        check::bind(self.setup, &self.known, &self.engine, uid, &node)?;
        self.known.binds(call, uid, node);
        Ok(())
    }

    fn call(&mut self, call: Call, in_cycle: bool) -> Checked {
        match About::of(&call) {
            About::Bind { uid, node } => self.bind(call.id, &uid, node)?,
            About::Condition { uid } => {
                if in_cycle {
                    check::victim(&self.known, &self.engine, &uid)?;
                }
                self.known.victims.insert(uid);
            }
            About::Deletion { uid } => {
                self.report.evictions += 1;
                if !self.known.victims.contains(&uid) {
                    return Err(format!("pod {uid} is deleted, but was not chosen as a victim"));
                }
            }
            About::Status => {}
        }
        self.network.send(self.now.mono, self.term, call);
        Ok(())
    }

    fn check(&self) -> Checked {
        if self.engine.is_suspended() {
            // The engine has yet to hear what the bookkeeper was told.
            return self.agrees();
        }
        check::queue(self.setup, &self.known, &self.engine)?;
        check::promises(self.setup, &self.known, &self.engine)?;
        self.agrees()?;
        if self.step.is_multiple_of(COSTLY_EVERY) {
            let counted = self.known.world(&self.setup.gates, "");
            check::same_world(self.engine.world(), &counted)?;
        }
        Ok(())
    }

    fn agrees(&self) -> Checked {
        match self.engine.disagreements().next() {
            Some(difference) => Err(format!("a fast decision was wrong: {difference}")),
            None => Ok(()),
        }
    }

    /// The network heals, nobody asks for anything any more, and time passes until all has settled.
    fn without_faults(&mut self) -> Checked {
        self.step = self.options.steps;
        self.trace.note(self.at_ms(), format_args!("no more faults"));
        self.network.heal(self.now.mono);
        self.extenders.heal(self.now.mono);
        nervous::upset(None);
        self.users.settle(&mut self.truth);
        let end = self.now.mono.after(SETTLES_IN);
        let mut n_rounds = 0;
        while self.now.mono <= end {
            let before = self.now.mono;
            self.users.keep_house(&mut self.truth, self.now.wall, true);
            self.deliver(u64::MAX)?;
            self.wake()?;
            self.cycle(u64::MAX)?;
            let answers = self.network.due().into_iter().chain(self.extenders.due());
            let due = answers.chain(self.engine.deadline()).min();
            let is_kept = Users::is_house_kept(&self.truth);
            let next = if is_kept { due.unwrap_or(end.after(SETTLES_IN)) } else { before };
            self.pass_until(next.max(before));
            n_rounds = if self.now.mono == before { n_rounds + 1 } else { 0 };
            if n_rounds > N_ROUNDS_MAX {
                return Err("time stands still: something is always due".to_owned());
            }
        }
        self.check()?;
        if self.network.has_calls() {
            return Err("calls are under way when all should have settled".to_owned());
        }
        check::at_rest(&self.engine)?;
        self.report.left = check::settled(self.setup, &self.truth, &self.engine)?;
        // A status that could not be written is written after the next attempt.
        if self.flushes { check::told(self.setup, &self.truth) } else { Ok(()) }
    }
}

fn engine(profile: &Arc<Profile>, setup: &Setup, flushes: bool, chance: &mut Rng) -> Engine {
    let options = EngineOptions {
        seed: chance.next_u64(),
        bind_window: *chance.pick(&[1, 3, 20, 500]),
        max_in_unschedulable: if flushes { Duration::from_secs(300) } else { NEVER },
        check_every: 1,
        ..EngineOptions::default()
    };
    Engine::new(vec![Arc::clone(profile)], setup.gates.clone(), options)
}
