//! Carrying out what the engine asks of extenders: whole objects from a store of bytes, and calls. What an attempt waits for is asked
//! in the engine's thread, which sleeps meanwhile; bindings, of which many are under way while others are decided, beside it.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::proto::Object;
use loadmaster_api::{Encoding, Raw};
use loadmaster_client::Kind;
use loadmaster_client::extender::{ExtenderClient, ExtenderError};
use loadmaster_client::watch::Change;
use loadmaster_config::v1;
use loadmaster_engine::Event;
use loadmaster_engine::engine::{CallId, Extend};
use loadmaster_extender::ask::Objects;
use loadmaster_extender::objects::trimmed;
use loadmaster_extender::{Answer, Ask, Extender, Extenders, Question, Verb};
use loadmaster_stdx::Map;
use serde_json::value::RawValue;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::metrics::Metrics;

/// An extender's answer on its way to the engine.
pub(super) struct Extended {
    call: CallId,
    answer: Result<Answer, String>,
}

impl From<Extended> for Event {
    fn from(extended: Extended) -> Event {
        Event::Extended { call: extended.call, answer: extended.answer }
    }
}

/// The extenders of a scheduler.
pub(super) struct Calling {
    extenders: Arc<Extenders>,
    /// In the order of `extenders`.
    clients: Vec<Clients>,
    store: Store,
    /// Without a limit, because the engine has one: an attempt at a time, and the bind window.
    answers: UnboundedSender<Extended>,
    metrics: Arc<Metrics>,
    /// Where bindings are asked for.
    beside: Handle,
}

/// How an extender is spoken to. Connections belong to where they were made.
struct Clients {
    questions: Arc<ExtenderClient>,
    bindings: Arc<ExtenderClient>,
}

/// Whole objects, as far as some extender is sent them.
#[derive(Default)]
struct Store {
    keeps_pods: bool,
    keeps_assigned_pods: bool,
    keeps_nodes: bool,
    /// By uid.
    pods: Map<Box<str>, Arc<RawValue>>,
    /// By name.
    nodes: Map<Box<str>, Arc<RawValue>>,
}

impl Calling {
    /// Reads certificates; connects to nobody.
    pub fn new(
        config: &[v1::Extender],
        metrics: Arc<Metrics>,
        beside: Handle,
    ) -> Result<(Calling, UnboundedReceiver<Extended>), ExtenderError> {
        let extenders = Extenders::new(config);
        let client = |of: &Extender| ExtenderClient::new(&config[of.configured_at]).map(Arc::new);
        let clients: Result<Vec<Clients>, ExtenderError> = extenders
            .iter()
            .map(|it| Ok(Clients { questions: client(it)?, bindings: client(it)? }))
            .collect();
        let (answers, answers_out) = unbounded_channel();
        let store = Store::of(&extenders);
        let extenders = Arc::new(extenders);
        let clients = clients?;
        Ok((Calling { extenders, clients, store, answers, metrics, beside }, answers_out))
    }

    /// Takes over an object before the engine hears of it.
    pub fn hear(&mut self, change: &Change) {
        match change {
            Change::Set { object, raw: Some(raw), .. } => self.store.set(object, raw),
            Change::Gone { kind: Kind::Pod, uid, .. } => drop(self.store.pods.remove(uid)),
            Change::Gone { kind: Kind::Node, name, .. } => drop(self.store.nodes.remove(name)),
            _ => {}
        }
    }

    /// Asks, and sends the answer to the engine. `here` is the runtime of the engine's thread.
    pub fn ask(&self, Extend { id, ask }: Extend, here: &Runtime) {
        let place = ask.extender;
        let Some((extender, clients)) = self.extenders.get(place).zip(self.clients.get(place))
        else {
            let answer = Err(format!("there is no extender {place}"));
            let _ = self.answers.send(Extended { call: id, answer });
            return;
        };
        let (client, runtime) = match ask.question {
            Question::Bind(_) => (clients.bindings.clone(), &self.beside),
            _ => (clients.questions.clone(), here.handle()),
        };
        let extender = extender.clone();
        let objects = self.store.objects(&ask, &extender);
        let (answers, metrics) = (self.answers.clone(), self.metrics.clone());
        runtime.spawn(async move {
            let verb = ask.question.verb();
            let url = extender.url(verb);
            let began = tokio::time::Instant::now();
            let answer = match objects {
                Ok(objects) => {
                    let body = ask.body(&extender, &objects.borrow());
                    let action = extender.verb(verb);
                    let answer = client.call(action, &url, body, extender.timeout).await;
                    let by_name = extender.node_cache_capable;
                    answer.and_then(|body| {
                        Answer::read(&ask.question, by_name, &body)
                            .map_err(|error| error.to_string())
                    })
                }
                Err(why) => Err(why),
            };
            let seconds = began.elapsed().as_secs_f64();
            let name = &extender.name;
            metrics.own.extender_called(name, verb.name(), answer.is_ok(), seconds);
            if let Err(error) = &answer {
                let pod = format!("{}/{}", ask.namespace, ask.name);
                tracing::warn!(extender = name, verb = verb.name(), pod, "{error}");
            }
            let _ = answers.send(Extended { call: id, answer });
        });
    }
}

/// The objects of one question.
#[derive(Default)]
struct Taken {
    pod: Option<Arc<RawValue>>,
    nodes: Vec<Arc<RawValue>>,
    victims: BTreeMap<String, Arc<RawValue>>,
}

impl Taken {
    fn borrow(&self) -> Objects<'_> {
        Objects {
            pod: self.pod.as_deref(),
            nodes: self.nodes.iter().map(|node| &**node).collect(),
            victims: self.victims.iter().map(|(uid, pod)| (uid.as_str(), &**pod)).collect(),
        }
    }
}

impl Store {
    fn of(extenders: &Extenders) -> Store {
        let sends_nodes = |it: &Extender| {
            !it.node_cache_capable && (it.has(Verb::Filter) || it.has(Verb::Prioritize))
        };
        let sends_victims = |it: &Extender| !it.node_cache_capable && it.has(Verb::Preempt);
        Store {
            keeps_pods: !extenders.is_empty(),
            keeps_assigned_pods: extenders.iter().any(sends_victims),
            keeps_nodes: extenders.iter().any(sends_nodes),
            ..Store::default()
        }
    }

    fn set(&mut self, object: &Object, raw: &Raw) {
        let (map, key) = match object {
            Object::Pod(pod) if self.keeps_pods => {
                let uid: Box<str> = pod.metadata.uid.as_ref().into();
                if !pod.spec.node_name.is_empty() && !self.keeps_assigned_pods {
                    self.pods.remove(&uid);
                    return;
                }
                (&mut self.pods, uid)
            }
            Object::Node(node) if self.keeps_nodes => (&mut self.nodes, node.name().into()),
            _ => return,
        };
        match (raw.encoding, trimmed(&raw.bytes)) {
            (Encoding::Json, Ok(json)) => drop(map.insert(key, Arc::from(json))),
            // Watches that keep bytes are in JSON here; what is none was not decoded either.
            _ => drop(map.remove(&key)),
        }
    }

    /// Nodes that are gone meanwhile are left out; without the pod there is nothing to ask.
    fn objects(&self, ask: &Ask, extender: &Extender) -> Result<Taken, String> {
        let mut taken = Taken::default();
        let whole = !extender.node_cache_capable;
        match &ask.question {
            Question::Bind(_) => return Ok(taken),
            Question::Filter(nodes) | Question::Prioritize(nodes) if whole => {
                taken.nodes =
                    nodes.iter().filter_map(|node| self.nodes.get(&**node)).cloned().collect();
            }
            Question::Preempt(victims) if whole => {
                let pods = victims.values().flat_map(|victims| &victims.pods);
                let known = pods.filter_map(|pod| {
                    Some((pod.uid.clone(), self.pods.get(pod.uid.as_str())?.clone()))
                });
                taken.victims = known.collect();
            }
            _ => {}
        }
        taken.pod = self.pods.get(&ask.uid).cloned();
        match taken.pod {
            Some(_) => Ok(taken),
            None => Err(format!("pod {}/{} is gone", ask.namespace, ask.name)),
        }
    }
}
