//! What must hold when everything has settled.

use std::sync::Arc;

use loadmaster_api::Pod;
use loadmaster_engine::evaluate::{Evaluation, per_node};
use loadmaster_engine::{Engine, Profile};
use loadmaster_framework::{NodeRow, PluginStates, PodInfo, World};
use loadmaster_plugins::default_preemption;

use super::SimulatedSchedulerConfig;
use super::gangs;
use super::invariants::{CheckResult, check_same_world, nominated_pods};
use super::quotas::Quotas;
use super::reference_model::{self, ReferenceModel};
use super::volumes::claim_names;
use crate::fake_api_server::{FakeApiServer, is_pod_terminal};
use loadmaster_engine::world_loader::passes_pre_enqueue;

/// Numbers of pods that are pending at the end.
#[derive(Default)]
pub(super) struct PendingPods {
    pub all: u64,
    /// A node is feasible, but not within their quota.
    pub over_quota: u64,
}

/// All sides of a simulation in which nothing is in flight.
#[derive(Clone, Copy)]
pub(super) struct Settled<'a> {
    pub setup: &'a SimulatedSchedulerConfig,
    pub model: &'a ReferenceModel,
    pub api_server: &'a FakeApiServer,
    pub engine: &'a Engine,
    /// No pod stays unschedulable for longer than the flush.
    pub flushes: bool,
}

/// The objects of the API server, in a world that is built from scratch.
struct SettledCluster {
    world: World,
    states: PluginStates,
    quotas: Quotas,
}

impl Settled<'_> {
    /// The engine's world equals that of the API server, and no pending pod is feasible anywhere, unless its quota or its group prevents it.
    pub fn check(self) -> Result<PendingPods, String> {
        let mut left = PendingPods::default();
        for profile in self.profiles() {
            let mut cluster = self.cluster(profile)?;
            for pod in pending_pods(profile, self.api_server) {
                left.all += 1;
                left.over_quota += u64::from(self.check_pending_pod(&mut cluster, profile, pod)?);
            }
        }
        Ok(left)
    }

    /// The timeouts and backoffs of gangs have passed: none is partly bound that could be bound, such as after a failed bind.
    pub fn check_partly_bound_gangs(self) -> CheckResult {
        for profile in self.profiles() {
            let mut cluster = self.cluster(profile)?;
            let pending = pending_pods(profile, self.api_server);
            for pod in pending.filter(|pod| gangs::is_partly_bound(self.api_server, pod)) {
                self.check_pending_pod(&mut cluster, profile, pod)
                    .map_err(|why| format!("a gang is partly bound: {why}"))?;
            }
        }
        Ok(())
    }

    fn profiles(&self) -> impl Iterator<Item = &Profile> {
        self.model.configuration.profiles.iter().map(|it| &*it.checked)
    }

    fn cluster(self, profile: &Profile) -> Result<SettledCluster, String> {
        let Settled { setup, model, api_server, engine, .. } = self;
        let assigned =
            api_server.pods().filter(|pod| !pod.spec.node_name.is_empty() && !is_pod_terminal(pod));
        let assigned = assigned.map(|pod| (pod, pod.spec.node_name.clone()));
        let waiting = engine.world().waiting_pods().iter().filter_map(|waiting| {
            let pod = api_server.pod(&waiting.pod.full_name())?;
            Some((pod, waiting.pod.node_name.clone()))
        });
        let mut world = reference_model::build_world(
            &setup.gates,
            api_server.nodes(),
            api_server.disruption_budgets(),
            assigned.chain(waiting),
        );
        check_same_world(engine.world(), &world)?;
        model.plugins.check_settled(profile, api_server, engine)?;
        let states = match &setup.out_of_tree {
            None => model.plugins.add_server_objects(profile, api_server, &mut world),
            Some(_) => {
                let pending = pending_pods(profile, api_server);
                let plugins = &model.plugins;
                plugins.out_of_tree.add_to(profile, &plugins.objects, engine, pending, &mut world)
            }
        };
        if setup.out_of_tree.is_some() {
            let is_gated =
                |world: &World, info: &PodInfo| !passes_pre_enqueue(profile, world, &states, info);
            self.add_nominated_pods(profile, is_gated, &mut world);
        }
        // Without DefaultPreemption nothing takes back the nomination of a pod that fits on no node, as upstream.
        let preempts = |profile: &Profile| {
            profile.post_filter.iter().any(|plugin| plugin.name == default_preemption::NAME)
        };
        let is_reloaded = model.configuration.reloaded.is_some();
        if is_reloaded && !self.profiles().all(preempts) {
            for profile in self.profiles() {
                self.add_nominated_pods(profile, |_, _| true, &mut world);
            }
            return Ok(SettledCluster { world, states, quotas: self.quotas() });
        }
        // A member that waits at Permit is nominated to its node. Where that could not be taken back in its status, the flush does it.
        if model.plugins.has_gangs && !self.flushes {
            self.add_nominated_pods(profile, |_, _| true, &mut world);
        }
        Ok(SettledCluster { world, states, quotas: self.quotas() })
    }

    /// Adds nominated pods that are not tried again, such as those that PreEnqueue gates: they keep other pods off their nodes, as in
    /// kube-scheduler.
    fn add_nominated_pods(
        self,
        profile: &Profile,
        is_wanted: impl Fn(&World, &PodInfo) -> bool,
        world: &mut World,
    ) {
        for (uid, node) in nominated_pods(self.engine) {
            let mut pending = pending_pods(profile, self.api_server);
            let pod = pending.find(|pod| pod.metadata.uid == uid);
            let Some(Ok(info)) = pod.map(|pod| world.parse_pod(pod)) else { continue };
            if is_wanted(world, &info) {
                world.add_nominated_pod(node, Arc::new(info));
            }
        }
    }

    /// The quotas, used by the pods of the API server.
    fn quotas(self) -> Quotas {
        let Settled { model, api_server, engine, .. } = self;
        if !model.plugins.has_quotas {
            return Quotas::default();
        }
        let placed =
            api_server.pods().filter(|pod| !pod.spec.node_name.is_empty() && !is_pod_terminal(pod));
        let nominated = nominated_pods(engine);
        let nominated = nominated.iter().filter(|(_, node)| api_server.node(node).is_some());
        let nominated =
            nominated.filter_map(|(uid, _)| api_server.pods().find(|pod| pod.metadata.uid == *uid));
        Quotas::new(&model.plugins.objects, placed, nominated)
    }

    /// Whether only quotas keep a pending pod off the nodes. Nothing else may, if it is feasible.
    fn check_pending_pod(
        self,
        cluster: &mut SettledCluster,
        profile: &Profile,
        pod: &Pod,
    ) -> Result<bool, String> {
        let Settled { model, api_server, .. } = self;
        let SettledCluster { world, states, quotas } = cluster;
        let Ok(info) = world.parse_pod(pod) else { return Ok(false) };
        let found = per_node::evaluate_per_node(profile, world, &mut states.clone(), &info);
        if !found.is_feasible() {
            return Ok(false);
        }
        if quotas.exceeded(pod).is_some() {
            return Ok(true);
        }
        let is_member = model.plugins.has_gangs
            && gangs::may_be_pending(profile, api_server, (world, states), quotas, pod);
        if is_member || self.is_excused(profile, pod, &info, (world, states)) {
            return Ok(false);
        }
        Err(self.describe(pod, &found, world))
    }

    fn is_excused(
        self,
        profile: &Profile,
        pod: &Pod,
        info: &PodInfo,
        seen: (&World, &PluginStates),
    ) -> bool {
        let Settled { setup, model, engine, flushes, .. } = self;
        // As upstream, nothing tells pods that the claims that they share with an unreserved pod are free again.
        let volumes = model.plugins.volumes.as_ref().filter(|_| !flushes);
        if volumes.is_some_and(|it| it.has_unreserved) && claim_names(pod).next().is_some() {
            return true;
        }
        let plugins = &model.plugins.out_of_tree;
        setup.out_of_tree.is_some() && plugins.may_be_pending(profile, engine, seen, info)
    }

    /// A pod that should have been bound.
    fn describe(self, pod: &Pod, found: &Evaluation, world: &World) -> String {
        let engine = self.engine;
        let (name, uid) = (pod.full_name(), &pod.metadata.uid);
        let place = engine.queue().get(uid).map(|(_, place)| place);
        let nodes = found.best_nodes().into_iter().map(|row| describe_node(engine, world, row));
        let nodes = nodes.collect::<Vec<String>>().join(", ");
        let mut summaries = engine.pending_pod_summaries();
        let last = summaries.find(|summary| summary.pod.uid == *uid);
        let last = last.map(|summary| summary.reason).unwrap_or_default();
        format!(
            "pod {name} is feasible, but was not bound; in the queue: {place:?}; feasible nodes: {nodes}; last attempt: {last}"
        )
    }

    /// Every pending pod has the condition PodScheduled, except pods that an out-of-tree PreEnqueue plugin gates.
    pub fn check_pod_scheduled_conditions(self) -> CheckResult {
        let Settled { setup, api_server, engine, .. } = self;
        let mut pending = self.profiles().flat_map(|profile| pending_pods(profile, api_server));
        let is_gated = |pod: &Pod| {
            let queued = engine.queue().get(&pod.metadata.uid);
            setup.out_of_tree.is_some() && queued.is_some_and(|(it, _)| it.gating.is_some())
        };
        let is_received =
            |pod: &Pod| pod.status.conditions.iter().any(|it| it.kind == "PodScheduled");
        match pending.find(|pod| !is_received(pod) && !is_gated(pod)) {
            None => Ok(()),
            Some(pod) => {
                let name = pod.full_name();
                Err(format!("pod {name} is unschedulable, but has no condition PodScheduled"))
            }
        }
    }
}

/// A node with the pods that the engine nominated to it.
fn describe_node(engine: &Engine, world: &World, row: NodeRow) -> String {
    let Some(node) = world.node(row) else { return String::new() };
    let pods = engine.world().nominated_pods_for_node(node.name()).iter();
    let pods: Vec<String> = pods.map(|pod| pod.full_name()).collect();
    format!("{}, nominated pods {pods:?}", node.name())
}

/// Pods of a profile that could be bound.
fn pending_pods<'a>(
    profile: &'a Profile,
    api_server: &'a FakeApiServer,
) -> impl Iterator<Item = &'a Pod> {
    api_server.pods().filter(|pod| {
        pod.spec.node_name.is_empty()
            && !is_pod_terminal(pod)
            && pod.metadata.deletion_timestamp.is_none()
            && pod.spec.scheduling_gates.is_empty()
            && reference_model::has_scheduler_name(pod, &profile.scheduler_name)
    })
}
