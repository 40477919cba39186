//! Tests of plugins: one plugin over a world ([`Bench`]), or a whole scheduler over a cluster in memory ([`Cluster`]).
//!
//! ```
//! use std::time::Duration;
//! use loadmaster::testkit::{Cluster, node, pod};
//!
//! # fn main() -> Result<(), loadmaster::testkit::BenchError> {
//! let mut cluster = Cluster::new([], serde_json::json!({}))?;
//! cluster.node(node("a").allocatable("cpu", "1"))?;
//! cluster.pod(pod("web").request("cpu", "1"))?;
//! cluster.pod(pod("db").request("cpu", "1").priority(-1))?;
//! cluster.settle()?;
//! assert_eq!(cluster.node_of("web"), Some("a".to_owned()));
//! assert!(cluster.why("db").is_some_and(|why| why.contains("1 Insufficient cpu")));
//!
//! cluster.delete_pod("web");
//! cluster.pass(Duration::from_secs(10))?;
//! assert_eq!(cluster.node_of("db"), Some("a".to_owned()));
//! # Ok(())
//! # }
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::{Extra, Node, Pod, Str, Timestamp};
use loadmaster_config::{Gates, check_value};
use loadmaster_engine::engine::{Effect, Effects, Engine, Event, Observation, Options};
use loadmaster_engine::{Mono, Now, Profile};
use loadmaster_framework::args;
use loadmaster_framework::request::ObjectRef;
use loadmaster_framework::{Gvr, PluginDef};
use loadmaster_sim::truth::{Kind, Truth};
use loadmaster_stdx::{Chain, Rng};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub use loadmaster_framework::testkit::{Bench, BenchError, NodeBuilder, PodBuilder, node, pod};

type Done<T = ()> = Result<T, BenchError>;

/// So many steps without time passing, and something never comes to an end.
const N_STEPS_MAX: usize = 1_000_000;

const BEGIN: Now = Now { mono: Mono(1_000_000_000), wall: Timestamp(1_700_000_000_000_000_000) };

/// A scheduler and an API server in memory. Time passes when the test says so.
///
/// News of different kinds, and answers to calls, come in an order that the seed decides: none is promised. Every decision is held
/// against asking every plugin about every node, so that a plugin whose incremental form is wrong fails the test. Pods run at once
/// when they are bound, and are gone at once when they are evicted. Of calls on the API server those on pods are carried out;
/// others are answered with 404. Of pods and nodes plugins see what they [need](loadmaster_framework::Need); whole objects as they were
/// handed in.
pub struct Cluster {
    engine: Engine,
    truth: Truth,
    now: Now,
    /// What the engine has not heard yet, by kind.
    news: BTreeMap<String, VecDeque<Event>>,
    chance: Rng,
    events: Vec<String>,
    troubles: Vec<String>,
    n_pods: u32,
}

impl Cluster {
    /// A scheduler with the in-tree plugins and these, and one profile: what a KubeSchedulerConfiguration says about a profile,
    /// such as `{"plugins": {"multiPoint": {"enabled": [{"name": "Mine"}]}}}`.
    pub fn new(plugins: impl IntoIterator<Item = PluginDef>, profile: Value) -> Done<Cluster> {
        Cluster::with_seed(plugins, profile, 0)
    }

    /// The same with another order of news, and other ties.
    pub fn with_seed(
        plugins: impl IntoIterator<Item = PluginDef>,
        profile: Value,
        seed: u64,
    ) -> Done<Cluster> {
        let registry =
            plugins.into_iter().fold(loadmaster_plugins::in_tree(), |all, it| all.with(it));
        registry.check().map_err(|error| wrong(&error))?;
        let config = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "profiles": [profile],
        });
        let gates = Gates::default();
        let checked = check_value(config, &registry, &gates).map_err(|errors| {
            let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
            BenchError(lines.join("\n"))
        })?;
        let gates = gates.framework();
        let profiles = checked.profiles.iter();
        let profiles = profiles.map(|it| Profile::new(it, &registry, &gates).map(Arc::new));
        let profiles: Result<Vec<_>, _> = profiles.collect();
        let options = Options { seed, check_every: 1, ..Options::default() };
        Ok(Cluster {
            engine: Engine::new(profiles.map_err(|error| wrong(&error))?, gates, options),
            truth: Truth::default(),
            now: BEGIN,
            news: BTreeMap::new(),
            chance: Rng::new(seed).split("news"),
            events: Vec::new(),
            troubles: Vec::new(),
            n_pods: 0,
        })
    }

    /// Adds or replaces a node.
    pub fn node(&mut self, node: impl Into<Value>) -> Done {
        let node: Value = node.into();
        let extra = Extra::of_value(&node, self.engine.needs().nodes);
        self.truth.set_node(Node { extra, ..read(&node)? });
        Ok(())
    }

    /// Removes a node. Its pods stay where they are, as in a cluster without controllers.
    pub fn remove_node(&mut self, name: &str) {
        self.truth.remove_node(&Str::new(name));
    }

    /// Creates a pod, in the namespace `default` unless it says otherwise; one that names a node runs there.
    pub fn pod(&mut self, pod: impl Into<Value>) -> Done {
        let pod: Value = pod.into();
        let extra = Extra::of_value(&pod, self.engine.needs().pods);
        let mut pod = Pod { extra, ..read(&pod)? };
        let metadata = &mut pod.metadata;
        if metadata.namespace.is_empty() {
            metadata.namespace = Str::new("default");
        }
        self.n_pods += 1;
        if metadata.uid.is_empty() {
            metadata.uid = format!("uid-{}", self.n_pods).into();
        }
        metadata.creation_timestamp.get_or_insert(self.now.wall);
        metadata.generation = metadata.generation.max(1);
        let name = pod.full_name();
        if self.truth.pod(&name).is_some() {
            return Err(BenchError(format!("there is a pod {name} already")));
        }
        self.truth.create_pod(pod);
        Ok(())
    }

    /// Deletes a pod, if it is there. `web` means `default/web`, here and below.
    pub fn delete_pod(&mut self, pod: &str) {
        self.truth.delete_pod(&full(pod), self.now.wall);
    }

    /// Adds or replaces an object of a kind that a plugin watches.
    pub fn object(&mut self, kind: &Gvr, object: Value) {
        self.listed(kind, true);
        let name = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let object_ref = object_ref(kind, &name("namespace"), &name("name"));
        self.tell(&kind.to_string(), Event::Changed { object: object_ref, value: Some(object) });
    }

    /// Removes such an object; the namespace is empty for kinds without namespaces.
    pub fn remove_object(&mut self, kind: &Gvr, namespace: &str, name: &str) {
        let object = object_ref(kind, namespace, name);
        self.tell(&kind.to_string(), Event::Changed { object, value: None });
    }

    /// The server has such a kind, perhaps without objects; or has it no more.
    pub fn listed(&mut self, kind: &Gvr, is_there: bool) {
        let (group, resource) = (kind.group.clone(), kind.resource.clone());
        self.tell(&kind.to_string(), Event::Listed { group, resource, is_there });
    }

    /// Publishes a value to a plugin, as a service does.
    pub fn publish(&mut self, plugin: &str, value: &impl Serialize, good_for: Duration) -> Done {
        let value = serde_json::to_value(value).map_err(|error| wrong(&error))?;
        self.tell("published", Event::Published { plugin: plugin.into(), value, good_for });
        Ok(())
    }

    /// Until there is nothing left to do at this moment.
    pub fn settle(&mut self) -> Done {
        for _ in 0..N_STEPS_MAX {
            if !self.step()? {
                return match self.engine.disagreements().next() {
                    Some(line) => Err(BenchError(format!("a fast decision was wrong: {line}"))),
                    None => Ok(()),
                };
            }
        }
        Err(BenchError("it never settles: something is always to be done at once".into()))
    }

    /// Lets time pass, doing everything when it is due.
    pub fn pass(&mut self, time: Duration) -> Done {
        let end = self.now.mono.after(time);
        self.settle()?;
        while let Some(due) = self.engine.deadline().filter(|due| *due <= end) {
            // Something that is due again and again at one moment must not stop time.
            self.pass_until(due.max(self.now.mono.after(Duration::from_nanos(1))));
            self.settle()?;
        }
        self.pass_until(end);
        self.settle()
    }

    /// The node that a pod is bound to.
    pub fn node_of(&self, pod: &str) -> Option<String> {
        let node = &self.truth.pod(&full(pod))?.spec.node_name;
        (!node.is_empty()).then(|| node.to_string())
    }

    /// Why a pod was not placed when it was last tried: the message of its condition PodScheduled.
    pub fn why(&self, pod: &str) -> Option<String> {
        let conditions = &self.truth.pod(&full(pod))?.status.conditions;
        let said =
            conditions.iter().find(|it| it.kind == "PodScheduled" && it.status == "False")?;
        Some(said.message.to_string())
    }

    /// Full names of the pods that Permit holds, in order.
    pub fn waiting_pods(&self) -> Vec<String> {
        let held = self.engine.world().waiting_pods().iter();
        let mut names: Vec<String> = held.map(|waiting| waiting.pod.full_name()).collect();
        names.sort_unstable();
        names
    }

    /// Events since this was asked last, such as `Scheduled web: Successfully assigned default/web to a`.
    pub fn take_events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }

    /// What the scheduler would log as going wrong, since this was asked last.
    pub fn take_troubles(&mut self) -> Vec<String> {
        std::mem::take(&mut self.troubles)
    }

    /// The scheduler, for anything else.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Whether there was anything to do.
    fn step(&mut self) -> Done<bool> {
        self.collect_news();
        if let Some(event) = self.next_news() {
            self.apply(event);
            return Ok(true);
        }
        if self.engine.deadline().is_some_and(|due| due <= self.now.mono) {
            let mut effects = Effects::new();
            self.engine.wake(self.now, &mut effects);
            self.carry_out(effects);
        }
        let mut effects = Effects::new();
        let cycled = self.engine.cycle(self.now, &mut effects);
        let is_more = !effects.is_empty() || cycled == loadmaster_engine::engine::Cycled::Ran;
        self.carry_out(effects);
        self.collect_news();
        Ok(is_more || !self.news.is_empty())
    }

    fn collect_news(&mut self) {
        // Pods end at once when they are told to.
        for name in self.truth.pods_that(|pod| pod.metadata.deletion_timestamp.is_some()) {
            self.truth.remove_pod(&name);
        }
        for news in self.truth.take_news() {
            let kind = match news.kind {
                Kind::Node => "nodes",
                Kind::Pod => "pods",
                Kind::Budget => "poddisruptionbudgets",
            };
            self.tell(kind, news.event);
        }
    }

    fn tell(&mut self, kind: &str, event: Event) {
        self.news.entry(kind.to_owned()).or_default().push_back(event);
    }

    /// Of one kind in order, of all kinds in any.
    fn next_news(&mut self) -> Option<Event> {
        if self.news.is_empty() {
            return None;
        }
        let nth = self.chance.below(self.news.len() as u64) as usize;
        let kind = self.news.keys().nth(nth)?.clone();
        let queue = self.news.get_mut(&kind)?;
        let event = queue.pop_front();
        if queue.is_empty() {
            self.news.remove(&kind);
        }
        event
    }

    fn apply(&mut self, event: Event) {
        let mut effects = Effects::new();
        self.engine.apply(self.now, event, &mut effects);
        self.carry_out(effects);
    }

    fn carry_out(&mut self, effects: Effects) {
        for effect in effects {
            match effect {
                Effect::Call(call) => {
                    let reply = self.truth.call(&call.request, self.now.wall);
                    self.tell("answers", Event::Replied { call: call.id, reply });
                }
                Effect::Extend(asked) => {
                    let answer = Err("a cluster in memory has no extenders".to_owned());
                    self.tell("answers", Event::Extended { call: asked.id, answer });
                }
                Effect::Tell(tell) => {
                    self.events
                        .push(format!("{} {}: {}", tell.reason, tell.regarding.name, tell.note));
                }
                Effect::Observe(Observation::Trouble { what }) => self.troubles.push(what),
                Effect::Observe(_) => {}
            }
        }
    }

    fn pass_until(&mut self, then: Mono) {
        let passed = then.since(self.now.mono).as_nanos() as u64;
        self.now.mono = Mono(self.now.mono.0 + passed);
        self.now.wall = Timestamp(self.now.wall.0 + passed as i64);
    }
}

fn object_ref(kind: &Gvr, namespace: &str, name: &str) -> ObjectRef {
    ObjectRef {
        group: kind.group.clone(),
        resource: kind.resource.clone(),
        namespace: namespace.into(),
        name: name.into(),
    }
}

fn full(pod: &str) -> String {
    if pod.contains('/') { pod.to_owned() } else { format!("default/{pod}") }
}

fn read<T: DeserializeOwned>(value: &Value) -> Done<T> {
    Ok(args::decode(value)?)
}

fn wrong(error: &(dyn std::error::Error + 'static)) -> BenchError {
    BenchError(Chain(error).to_string())
}
