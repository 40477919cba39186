//! Out-of-tree plugins in a simulation: what happens around them, and the world and the states with which their decisions are checked.
//!
//! A run has the plugins' profile with two more plugins: one reports what is reserved, and one waits in PreBind. Objects of the watched kinds come, change and go, and
//! services publish values, as functions of the author say. What a plugin keeps in its state only its author knows: a decision is
//! checked with the engine's states, in a world that is built from scratch. After the faults each pod must be bound if PreEnqueue admits
//! it and PreFilter and Filter accept a node for it; pods that wait at Permit, or that were rejected after a node was chosen, are
//! checked by the author's function alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::{Node, Pod, Str};
use loadmaster_engine::engine::EngineEvent;
use loadmaster_engine::{Engine, MonoTime, Profile};
use loadmaster_framework::extension_points::SerialCx;
use loadmaster_framework::{CycleState, Gvr, PluginStates, PodInfo, Registry, World};
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use super::SimulatedSchedulerConfig;
use super::holding_plugin;
use super::invariants::CheckResult;
use super::simulated_profiles::simulated_profile;
use super::watched_objects::WatchedObjects;
use crate::fake_api_server::{FakeApiServer, WatchedKind};
use loadmaster_engine::world_loader::{DefaultProfileError, passes_pre_enqueue};

/// Changes the manifest of a pod template, of which a run makes many pods.
pub type PodTemplateChange = dyn Fn(&mut Rng, &mut Value) + Send + Sync;

/// Makes an object of a watched kind, or none. An object of the same name is replaced.
pub type ObjectSource = dyn Fn(&mut Rng, ClusterView<'_>) -> Option<Value> + Send + Sync;

/// Makes a value that a service publishes.
pub type ValueSource = dyn Fn(&mut Rng, ClusterView<'_>) -> Value + Send + Sync;

/// Checks the objects after everything has settled; `Err` says what is wrong.
pub type FinalCheck = dyn Fn(ClusterView<'_>) -> Result<(), String> + Send + Sync;

/// What happens around out-of-tree plugins. Empty by default.
#[derive(Default)]
pub struct OutOfTreeWorkload {
    /// Called for each pod template.
    pub pod_template: Option<Box<PodTemplateChange>>,
    /// The kinds whose objects come, change and go.
    pub objects: Vec<(Gvr, Box<ObjectSource>)>,
    /// The plugins that receive values.
    pub values: Vec<(String, Box<ValueSource>)>,
    /// Whether pods have claims.
    pub volumes: bool,
    /// Called when everything has settled.
    pub final_check: Option<Box<FinalCheck>>,
}

/// The nodes and pods of the simulated cluster, as the API server has them.
#[derive(Clone, Copy)]
pub struct ClusterView<'a>(&'a FakeApiServer);

impl<'a> ClusterView<'a> {
    /// All nodes, by name.
    pub fn nodes(&self) -> impl Iterator<Item = &'a Arc<Node>> + use<'a> {
        self.0.nodes()
    }

    /// All pods, by namespace and name, those that have ended included.
    pub fn pods(&self) -> impl Iterator<Item = &'a Pod> + use<'a> {
        self.0.pods()
    }

    /// The objects of a kind by name, or `namespace/name`.
    pub fn objects(&self, kind: &Gvr) -> impl Iterator<Item = (&'a Str, &'a Value)> + use<'a> {
        self.0.custom_objects(&WatchedKind::Other(kind.clone()))
    }
}

impl SimulatedSchedulerConfig {
    /// A profile with out-of-tree plugins, as in a KubeSchedulerConfiguration, without other test plugins.
    ///
    /// # Errors
    ///
    /// If the profile is invalid.
    pub fn with_out_of_tree_plugins(
        registry: &Registry,
        mut profile: Value,
        workload: OutOfTreeWorkload,
    ) -> Result<SimulatedSchedulerConfig, DefaultProfileError> {
        let registry = registry.clone().with(holding_plugin::HOLDING);
        let enabled = &mut profile["plugins"]["multiPoint"]["enabled"];
        let others = enabled.as_array().cloned().unwrap_or_default();
        let holding = json!({"name": holding_plugin::NAME});
        *enabled = [holding].into_iter().chain(others).collect();
        let (profile, gates) = simulated_profile(&registry, profile, json!([]))?;
        Ok(SimulatedSchedulerConfig {
            profile: Arc::new(profile),
            panicking: None,
            with_extenders: Vec::new(),
            with_test_plugins: Vec::new(),
            volume_runs: u64::from(workload.volumes),
            gang_runs: 0,
            quota_runs: 0,
            reload_runs: 0,
            registry,
            with_scheduler_plugins: None,
            out_of_tree: Some(Arc::new(workload)),
            gates,
        })
    }
}

/// The kinds that the plugins of a profile watch.
pub(super) fn watched_kinds(profile: &Profile) -> Vec<WatchedKind> {
    let test_kinds = WatchedKind::ALL.map(|kind| kind.object_ref(&Str::default()));
    let kinds = profile.watches.iter().map(|watch| watch.kind.clone());
    let mut kinds: Vec<Gvr> =
        kinds.filter(|kind| !test_kinds.iter().any(|known| kind.matches(known))).collect();
    kinds.sort();
    kinds.dedup();
    WatchedKind::ALL.into_iter().chain(kinds.into_iter().map(WatchedKind::Other)).collect()
}

/// The users, controllers and services around the plugins of a run.
pub(super) struct OutOfTreeRun {
    workload: Arc<OutOfTreeWorkload>,
    rng: Rng,
}

impl OutOfTreeRun {
    /// Creates the first objects.
    pub fn new(
        workload: Arc<OutOfTreeWorkload>,
        rng: Rng,
        api_server: &mut FakeApiServer,
    ) -> OutOfTreeRun {
        let mut run = OutOfTreeRun { workload, rng };
        for at in 0..run.workload.objects.len() {
            for _ in 0..run.rng.below(8) {
                run.upsert_object(at, api_server);
            }
        }
        run
    }

    /// Changes an object, or none.
    pub fn random_operation(&mut self, api_server: &mut FakeApiServer) {
        for at in 0..self.workload.objects.len() {
            match self.rng.below(24) {
                0..=3 => self.upsert_object(at, api_server),
                4 => self.delete_object(at, api_server),
                _ => {}
            }
        }
    }

    fn upsert_object(&mut self, at: usize, api_server: &mut FakeApiServer) {
        let (kind, source) = &self.workload.objects[at];
        let Some(object) = source(&mut self.rng, ClusterView(api_server)) else { return };
        let field = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
        let name = match field("namespace") {
            "" => Str::new(field("name")),
            namespace => Str::new(&format!("{namespace}/{}", field("name"))),
        };
        api_server.upsert_custom_object(WatchedKind::Other(kind.clone()), &name, object);
    }

    fn delete_object(&mut self, at: usize, api_server: &mut FakeApiServer) {
        let kind = WatchedKind::Other(self.workload.objects[at].0.clone());
        let names = api_server.custom_objects(&kind).map(|(name, _)| name.clone());
        let names: Vec<Str> = names.collect();
        if !names.is_empty() {
            api_server.delete_custom_object(kind, self.rng.pick(&names));
        }
    }

    /// The values that services publish now.
    pub fn publications(&mut self, api_server: &FakeApiServer) -> Vec<EngineEvent> {
        let ttl = Duration::from_secs(*self.rng.pick(&[1, 10, 60, 120]));
        self.publish(api_server, 10, ttl)
    }

    /// The values that stay when the faults have ended; the others expire.
    pub fn last_publications(&mut self, api_server: &FakeApiServer) -> Vec<EngineEvent> {
        self.publish(api_server, 2, Duration::from_secs(24 * 3600))
    }

    fn publish(
        &mut self,
        api_server: &FakeApiServer,
        one_in: u64,
        ttl: Duration,
    ) -> Vec<EngineEvent> {
        let mut events = Vec::new();
        for (plugin, source) in &self.workload.values {
            if self.rng.one_in(one_in) {
                let value = source(&mut self.rng, ClusterView(api_server));
                let plugin = plugin.as_str().into();
                events.push(EngineEvent::Published { plugin, value, ttl });
            }
        }
        events
    }

    /// The author's check of the end.
    pub fn check_settled(&self, api_server: &FakeApiServer) -> CheckResult {
        let check = self.workload.final_check.as_ref();
        check.map_or(Ok(()), |check| check(ClusterView(api_server)))
    }
}

/// What the engine was told about published values, and which pods were reserved.
#[derive(Default)]
pub(super) struct OutOfTreeModel {
    /// By plugin, with the time at which the value expires.
    values: BTreeMap<Box<str>, (Value, MonoTime)>,
    /// Pods for which a node was chosen in the current attempt.
    reserved: BTreeSet<Box<str>>,
    /// Pods that were rejected after a node had been chosen, in the last attempt.
    rejected_after_reserve: BTreeSet<Box<str>>,
}

impl OutOfTreeModel {
    /// A node was chosen for a pod.
    pub fn handle_reserved(&mut self, uid: &str) {
        self.reserved.insert(uid.into());
    }

    /// An attempt failed.
    pub fn handle_failed_attempt(&mut self, uid: &str) {
        match self.reserved.take(uid) {
            Some(uid) => drop(self.rejected_after_reserve.insert(uid)),
            None => drop(self.rejected_after_reserve.remove(uid)),
        }
    }

    /// A service published a value.
    pub fn publish(&mut self, plugin: &str, value: &Value, until: MonoTime) {
        self.values.insert(plugin.into(), (value.clone(), until));
    }

    /// The engine handled its timeouts.
    pub fn expire_published(&mut self, now: MonoTime) {
        self.values.retain(|_, (_, until)| *until > now);
    }

    /// Adds watched objects, pending pods and waiting pods to a world that was built from scratch. Returns the states of the engine with the
    /// published values of this model.
    pub fn add_to<'p>(
        &self,
        profile: &Profile,
        objects: &WatchedObjects,
        engine: &Engine,
        pending: impl Iterator<Item = &'p Pod>,
        world: &mut World,
    ) -> PluginStates {
        world.set_now(engine.world().now());
        profile.watches.iter().for_each(|watch| {
            world.watch_objects(watch);
            world.set_synced(&watch.kind.group, &watch.kind.resource, true);
        });
        objects.add_to(world, |_| true);
        profile.pod_indexes.iter().for_each(|key| world.index_pods(key));
        profile.pod_sums.iter().for_each(|sums| world.sum_pods(sums));
        for pod in pending {
            if let Ok(info) = world.parse_pod(pod) {
                world.upsert_pending_pod(&Arc::new(info));
            }
        }
        *world.waiting_pods_mut() = engine.world().waiting_pods().clone();
        let mut states = engine.plugin_states(0).cloned().unwrap_or_default();
        for plugin in &profile.plugins {
            let Some(handler) = &plugin.publish_handler else { continue };
            let value = self.values.get(plugin.name).map(|(value, _)| value);
            // A value that cannot be decoded is ignored, as by the engine.
            let _ = handler(&mut states, value);
        }
        states
    }

    /// Whether a pod that is feasible may be pending after everything has settled: PreEnqueue gates it, it waits at Permit, or it was
    /// rejected after a node was chosen for it.
    pub fn may_be_pending(
        &self,
        profile: &Profile,
        engine: &Engine,
        (world, states): (&World, &PluginStates),
        pod: &PodInfo,
    ) -> bool {
        !passes_pre_enqueue(profile, world, states, pod)
            || engine.world().waiting_pods().get(&pod.uid).is_some()
            || self.rejected_after_reserve.contains(&pod.uid)
    }
}

/// Takes back the reservation of a pod.
pub(super) fn unreserve(
    profile: &Profile,
    world: &World,
    states: &mut PluginStates,
    pod: &PodInfo,
    node: &Str,
) {
    let pod = Arc::new(PodInfo { node_name: node.clone(), ..pod.clone() });
    for member in &profile.reserve {
        let cycle = &mut CycleState::default();
        member.point.unreserve(SerialCx { world, cycle, states }, &pod, node);
    }
}
