//! Calls extenders for the engine, with whole objects from a store of JSON bytes. Calls that a scheduling cycle waits for run on the
//! engine's thread, which sleeps meanwhile; bind calls, of which many run concurrently with scheduling, run on another runtime.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::proto::Object;
use loadmaster_api::{Encoding, RawObject};
use loadmaster_client::Kind;
use loadmaster_client::extender::{ExtenderClient, ExtenderError};
use loadmaster_client::reflector::ReflectorEvent;
use loadmaster_config::v1;
use loadmaster_engine::EngineEvent;
use loadmaster_engine::engine::{CallId, ExtenderCall};
use loadmaster_extender::objects::strip_managed_fields;
use loadmaster_extender::request::RequestObjects;
use loadmaster_extender::{
    Extender, ExtenderOperation, ExtenderRequest, ExtenderResponse, Extenders, Verb,
};
use loadmaster_stdx::Map;
use serde_json::value::RawValue;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::metrics::Metrics;

/// The reply of an extender, for the engine.
pub(super) struct ExtenderReply {
    call: CallId,
    result: Result<ExtenderResponse, String>,
}

impl From<ExtenderReply> for EngineEvent {
    fn from(reply: ExtenderReply) -> EngineEvent {
        EngineEvent::ExtenderReplied { call: reply.call, reply: reply.result }
    }
}

/// Calls the configured extenders.
pub(super) struct ExtenderCaller {
    /// By the number of their configuration: pods in flight are finished by the extenders of the one under which they began.
    by_configuration: BTreeMap<u64, ConnectedExtenders>,
    store: ObjectStore,
    /// Unbounded, because the engine limits the calls: one scheduling cycle at a time, and the bind window.
    replies: UnboundedSender<ExtenderReply>,
    metrics: Arc<Metrics>,
    /// The runtime of bind calls.
    bind_runtime: Handle,
}

/// The extenders of a configuration.
pub(super) struct ConnectedExtenders {
    extenders: Arc<Extenders>,
    /// In the order of `extenders`.
    clients: Vec<ExtenderClients>,
}

impl ConnectedExtenders {
    /// Reads certificates; does not connect yet.
    ///
    /// # Errors
    ///
    /// When the certificates of one cannot be read.
    pub fn new(config: &[v1::Extender]) -> Result<ConnectedExtenders, ExtenderError> {
        let extenders = Extenders::new(config);
        let client = |of: &Extender| ExtenderClient::new(&config[of.config_index]).map(Arc::new);
        let clients: Result<Vec<ExtenderClients>, ExtenderError> = extenders
            .iter()
            .map(|it| Ok(ExtenderClients { scheduling: client(it)?, binding: client(it)? }))
            .collect();
        Ok(ConnectedExtenders { extenders: Arc::new(extenders), clients: clients? })
    }
}

/// The HTTP clients of one extender. Connections belong to the runtime in which they were opened.
struct ExtenderClients {
    scheduling: Arc<ExtenderClient>,
    binding: Arc<ExtenderClient>,
}

/// Whole objects, as far as an extender needs them.
#[derive(Default)]
struct ObjectStore {
    stores_pods: bool,
    stores_assigned_pods: bool,
    stores_nodes: bool,
    /// By uid.
    pods: Map<Box<str>, Arc<RawValue>>,
    /// By name.
    nodes: Map<Box<str>, Arc<RawValue>>,
}

impl ExtenderCaller {
    /// Reads certificates; does not connect yet.
    pub fn new(
        config: &[v1::Extender],
        metrics: Arc<Metrics>,
        bind_runtime: Handle,
    ) -> Result<(ExtenderCaller, UnboundedReceiver<ExtenderReply>), ExtenderError> {
        let connected = ConnectedExtenders::new(config)?;
        let (replies, reply_receiver) = unbounded_channel();
        let store = ObjectStore::for_extenders(&connected.extenders);
        let by_configuration = BTreeMap::from([(0, connected)]);
        Ok((
            ExtenderCaller { by_configuration, store, replies, metrics, bind_runtime },
            reply_receiver,
        ))
    }

    /// Why these extenders cannot be called by this process; `None` if they can.
    pub fn obstacle(&self, connected: &ConnectedExtenders) -> Option<String> {
        let needed = ObjectStore::for_extenders(&connected.extenders);
        let is_stored = self.store.stores_pods >= needed.stores_pods
            && self.store.stores_assigned_pods >= needed.stores_assigned_pods
            && self.store.stores_nodes >= needed.stores_nodes;
        (!is_stored).then(|| {
            "extenders: one is sent pods or nodes as whole objects, which this process does not store"
                .to_owned()
        })
    }

    /// Adds the extenders of another configuration.
    pub fn add_configuration(&mut self, number: u64, connected: ConnectedExtenders) {
        self.by_configuration.insert(number, connected);
    }

    /// Drops the extenders of all configurations before this one.
    pub fn drop_configurations_before(&mut self, earliest: u64) {
        self.by_configuration.retain(|number, _| *number >= earliest);
    }

    /// Stores an object before the engine handles its event.
    pub fn handle_watch_event(&mut self, event: &ReflectorEvent) {
        match event {
            ReflectorEvent::Upsert { object, raw: Some(raw), .. } => self.store.upsert(object, raw),
            ReflectorEvent::Delete { kind: Kind::Pod, uid, .. } => {
                drop(self.store.pods.remove(uid))
            }
            ReflectorEvent::Delete { kind: Kind::Node, name, .. } => {
                drop(self.store.nodes.remove(name))
            }
            _ => {}
        }
    }

    /// Starts the call; its reply is sent to the engine. `engine_runtime` is the runtime of the engine's thread.
    pub fn call(&self, call: ExtenderCall, engine_runtime: &Runtime) {
        let ExtenderCall { id, configuration, request } = call;
        let index = request.extender;
        let connected = self.by_configuration.get(&configuration);
        let Some((extender, clients)) =
            connected.and_then(|known| known.extenders.get(index).zip(known.clients.get(index)))
        else {
            let result = Err(format!("there is no extender {index}"));
            let _ = self.replies.send(ExtenderReply { call: id, result });
            return;
        };
        let (client, runtime) = match request.operation {
            ExtenderOperation::Bind(_) => (clients.binding.clone(), &self.bind_runtime),
            _ => (clients.scheduling.clone(), engine_runtime.handle()),
        };
        let extender = extender.clone();
        let objects = self.store.objects(&request, &extender);
        let (replies, metrics) = (self.replies.clone(), self.metrics.clone());
        runtime.spawn(async move {
            let verb = request.operation.verb();
            let url = extender.url(verb);
            let began = tokio::time::Instant::now();
            let result = match objects {
                Ok(objects) => {
                    let body = request.body(&extender, &objects.borrow());
                    let action = extender.verb(verb);
                    let result = client.call(action, &url, body, extender.timeout).await;
                    let by_name = extender.node_cache_capable;
                    result.and_then(|body| {
                        ExtenderResponse::decode(&request.operation, by_name, &body)
                            .map_err(|error| error.to_string())
                    })
                }
                Err(why) => Err(why),
            };
            let seconds = began.elapsed().as_secs_f64();
            let name = &extender.name;
            metrics.loadmaster.extender_called(name, verb.name(), result.is_ok(), seconds);
            if let Err(error) = &result {
                let pod = format!("{}/{}", request.namespace, request.name);
                tracing::warn!(extender = name, verb = verb.name(), pod, "{error}");
            }
            let _ = replies.send(ExtenderReply { call: id, result });
        });
    }
}

/// The objects for one call.
#[derive(Default)]
struct CallObjects {
    pod: Option<Arc<RawValue>>,
    nodes: Vec<Arc<RawValue>>,
    victims: BTreeMap<String, Arc<RawValue>>,
}

impl CallObjects {
    fn borrow(&self) -> RequestObjects<'_> {
        RequestObjects {
            pod: self.pod.as_deref(),
            nodes: self.nodes.iter().map(|node| &**node).collect(),
            victims: self.victims.iter().map(|(uid, pod)| (uid.as_str(), &**pod)).collect(),
        }
    }
}

impl ObjectStore {
    fn for_extenders(extenders: &Extenders) -> ObjectStore {
        let sends_nodes = |it: &Extender| {
            !it.node_cache_capable && (it.supports(Verb::Filter) || it.supports(Verb::Prioritize))
        };
        let sends_victims = |it: &Extender| !it.node_cache_capable && it.supports(Verb::Preempt);
        ObjectStore {
            stores_pods: !extenders.is_empty(),
            stores_assigned_pods: extenders.iter().any(sends_victims),
            stores_nodes: extenders.iter().any(sends_nodes),
            ..ObjectStore::default()
        }
    }

    fn upsert(&mut self, object: &Object, raw: &RawObject) {
        let (map, key) = match object {
            Object::Pod(pod) if self.stores_pods => {
                let uid: Box<str> = pod.metadata.uid.as_ref().into();
                if !pod.spec.node_name.is_empty() && !self.stores_assigned_pods {
                    self.pods.remove(&uid);
                    return;
                }
                (&mut self.pods, uid)
            }
            Object::Node(node) if self.stores_nodes => (&mut self.nodes, node.name().into()),
            _ => return,
        };
        match (raw.encoding, strip_managed_fields(&raw.bytes)) {
            (Encoding::Json, Ok(json)) => drop(map.insert(key, Arc::from(json))),
            // The watches are in JSON here; invalid JSON was not decoded either.
            _ => drop(map.remove(&key)),
        }
    }

    /// Omits nodes that have been deleted meanwhile. An error if the pod has been deleted.
    fn objects(
        &self,
        request: &ExtenderRequest,
        extender: &Extender,
    ) -> Result<CallObjects, String> {
        let mut objects = CallObjects::default();
        let sends_objects = !extender.node_cache_capable;
        match &request.operation {
            ExtenderOperation::Bind(_) => return Ok(objects),
            ExtenderOperation::Filter(nodes) | ExtenderOperation::Prioritize(nodes)
                if sends_objects =>
            {
                objects.nodes =
                    nodes.iter().filter_map(|node| self.nodes.get(&**node)).cloned().collect();
            }
            ExtenderOperation::Preempt(victims) if sends_objects => {
                let pods = victims.values().flat_map(|victims| &victims.pods);
                let known = pods.filter_map(|pod| {
                    Some((pod.uid.clone(), self.pods.get(pod.uid.as_str())?.clone()))
                });
                objects.victims = known.collect();
            }
            _ => {}
        }
        objects.pod = self.pods.get(&request.uid).cloned();
        match objects.pod {
            Some(_) => Ok(objects),
            None => Err(format!("pod {}/{} was deleted", request.namespace, request.name)),
        }
    }
}
