//! Extenders that answer late, never, wrongly, and differently each time, by the seed of the run. Once nothing goes wrong any more
//! they agree to everything at once. One that binds may do so after nobody listens any more.

use std::time::Duration;

use loadmaster_config::{Gates, check_value};
use loadmaster_engine::engine::{Call, Event, Extend, Reply};
use loadmaster_engine::{Mono, Now, Profile};
use loadmaster_extender::messages::{
    ExtenderBindingResult, ExtenderFilterResult, ExtenderPreemptionResult, HostPriority,
};
use loadmaster_extender::{Answer, Ask, Question};
use loadmaster_framework::Registry;
use loadmaster_framework::request::{ApiRequest, Verb};
use loadmaster_stdx::Rng;
use serde::Serialize;
use serde_json::{Value, json};

use crate::load::{DefaultProfileError, profiles};
use crate::truth::Truth;

/// The default profile with one that filters, gives scores and has a say in preemption, and one that does the first two and is
/// ignorable; and with one that filters and binds.
pub fn profiles_with(registry: &Registry) -> Result<[Profile; 2], DefaultProfileError> {
    let extender = |config: Value| {
        let mut extender = json!({"urlPrefix": "http://extender", "nodeCacheCapable": true});
        for (key, value) in config.as_object().into_iter().flatten() {
            extender[key] = value.clone();
        }
        extender
    };
    let scores = json!({"filterVerb": "f", "prioritizeVerb": "p", "preemptVerb": "v", "weight": 2});
    let ignorable = json!({
        "filterVerb": "f", "prioritizeVerb": "p", "weight": 1, "ignorable": true, "httpTimeout": "1s",
    });
    let binds = json!({"filterVerb": "f", "bindVerb": "b"});
    Ok([
        profile(registry, json!([extender(scores), extender(ignorable)]))?,
        profile(registry, json!([extender(binds)]))?,
    ])
}

fn profile(registry: &Registry, extenders: Value) -> Result<Profile, DefaultProfileError> {
    let gates = Gates::default();
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "extenders": extenders,
    });
    let checked = check_value(config, registry, &gates).map_err(DefaultProfileError::Config)?;
    let mut profiles = profiles(&checked, registry, &gates.framework())?;
    Ok(profiles.swap_remove(0))
}

/// An answer on its way.
struct Flight {
    /// Which engine asked.
    term: u64,
    extend: Extend,
    due: Mono,
    fate: Fate,
}

#[derive(Clone, Copy, PartialEq)]
enum Fate {
    /// It agrees.
    Agrees,
    /// It says what comes to its mind.
    Whim,
    /// It cannot be asked, or says that it cannot answer.
    Error,
}

/// What an extender answers.
pub(super) struct Said {
    pub term: u64,
    /// For the engine.
    pub event: Event,
    /// Of a bind: as if the engine had made the call itself.
    pub bind: Option<(Call, Reply)>,
}

pub(super) struct Extenders {
    rng: Rng,
    is_well: bool,
    flights: Vec<Flight>,
    pub n_asked: u64,
    /// Questions that were answered with an error, too late or not at all.
    pub n_failed: u64,
}

impl Extenders {
    pub fn new(rng: Rng) -> Extenders {
        Extenders { rng, is_well: false, flights: Vec::new(), n_asked: 0, n_failed: 0 }
    }

    /// From now on they agree to everything.
    pub fn heal(&mut self, now: Mono) {
        self.is_well = true;
        self.flights.iter_mut().for_each(|flight| flight.due = flight.due.min(now));
    }

    /// The engine asks.
    pub fn ask(&mut self, now: Mono, term: u64, extend: Extend) {
        self.n_asked += 1;
        let rng = &mut self.rng;
        if self.is_well {
            return self.flights.push(Flight { term, extend, due: now, fate: Fate::Agrees });
        }
        if rng.one_in(12) {
            self.n_failed += 1;
            return;
        }
        // Two of three are asked within five seconds, one within one; ten more and nobody listens.
        let longest = *rng.pick(&[0, 50, 900, 4_000, 15_000]);
        let delay = Duration::from_millis(rng.range(0, longest) as u64);
        let fate = match rng.below(8) {
            0 => Fate::Error,
            1..=3 => Fate::Agrees,
            _ => Fate::Whim,
        };
        self.n_failed += u64::from(fate == Fate::Error);
        self.flights.push(Flight { term, extend, due: now.after(delay), fate });
    }

    /// When the next answer comes.
    pub fn due(&self) -> Option<Mono> {
        self.flights.iter().map(|flight| flight.due).min()
    }

    /// One of the answers that are due, in no order.
    pub fn answer(&mut self, now: Now, truth: &mut Truth) -> Option<Said> {
        let due = self.flights.iter().enumerate().filter(|(_, flight)| flight.due <= now.mono);
        let due: Vec<usize> = due.map(|(at, _)| at).collect();
        let at = *due.get(self.rng.below(due.len().max(1) as u64) as usize)?;
        let Flight { term, extend, fate, .. } = self.flights.swap_remove(at);
        let Extend { id, ask } = extend;
        let mut bind = None;
        let answer = match (&ask.question, fate) {
            (_, Fate::Error) => {
                if let Question::Bind(node) = &ask.question {
                    let refused = loadmaster_engine::engine::ApiError {
                        code: 0,
                        message: "connection refused".to_owned(),
                    };
                    let request = binding(&ask, node);
                    bind = Some((Call { id, request }, Err(refused)));
                }
                Err("Post \"http://extender\": connection refused".to_owned())
            }
            (Question::Bind(node), _) => {
                let request = binding(&ask, node);
                let reply = truth.call(&request, now.wall);
                let error = reply.as_ref().err().map(|error| error.message.clone());
                bind = Some((Call { id, request }, reply));
                let error = error.unwrap_or_default();
                Ok(Answer::Bind(ExtenderBindingResult { error }))
            }
            (question, fate) => Ok(self.think(question, fate == Fate::Whim)),
        };
        Some(Said { term, event: Event::Extended { call: id, answer }, bind })
    }

    fn think(&mut self, question: &Question, is_whim: bool) -> Answer {
        let rng = &mut self.rng;
        match question {
            Question::Filter(nodes) => {
                let mut result = ExtenderFilterResult::default();
                let mut left = Vec::new();
                for node in nodes.iter() {
                    match if is_whim { rng.below(5) } else { 0 } {
                        0..=2 => left.push(node.to_string()),
                        3 => drop(result.failed_nodes.insert(node.to_string(), "full".to_owned())),
                        _ => {
                            let failed = &mut result.failed_and_unresolvable_nodes;
                            failed.insert(node.to_string(), "no such device".to_owned());
                        }
                    }
                }
                match if is_whim { rng.below(12) } else { u64::MAX } {
                    0 => result.error = "no idea".to_owned(),
                    1 => left.push("a-node-of-another-cluster".to_owned()),
                    _ => {}
                }
                result.node_names = Some(left);
                read(question, &result).unwrap_or(Answer::Filter(result))
            }
            Question::Prioritize(nodes) => {
                let score = |rng: &mut Rng| if is_whim { rng.range(0, 10) } else { 0 };
                let scores = nodes
                    .iter()
                    .map(|node| HostPriority { host: node.to_string(), score: score(rng) });
                let scores: Vec<HostPriority> = scores.collect();
                read(question, &scores).unwrap_or(Answer::Prioritize(scores))
            }
            Question::Preempt(victims) => {
                let mut left = victims.clone();
                if is_whim {
                    left.retain(|_, _| !rng.one_in(3));
                }
                Answer::Preempt(ExtenderPreemptionResult { node_name_to_meta_victims: left })
            }
            // Answered where it is carried out.
            Question::Bind(_) => Answer::Bind(ExtenderBindingResult::default()),
        }
    }
}

/// A message as it comes out of its way over the wire.
fn read(question: &Question, message: &impl Serialize) -> Option<Answer> {
    Answer::read(question, true, &serde_json::to_vec(message).ok()?).ok()
}

/// The call that an extender makes to bind a pod, as DefaultBinder would.
pub(super) fn binding(ask: &Ask, node: &str) -> ApiRequest {
    ApiRequest {
        verb: Verb::Create,
        group: "".into(),
        version: "v1".into(),
        resource: "pods".into(),
        namespace: ask.namespace.clone(),
        name: (&*ask.name).into(),
        subresource: "binding".into(),
        body: Some(json!({
            "metadata": {"namespace": &*ask.namespace, "name": ask.name, "uid": ask.uid},
            "target": {"kind": "Node", "name": node},
        })),
    }
}
