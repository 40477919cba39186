//! The reference model of the test plugins: what they should see, and the pods that they hold or wait for.

use std::collections::{BTreeMap, BTreeSet};

use loadmaster_api::{Node, Pod, Str};
use loadmaster_engine::engine::EngineEvent;
use loadmaster_engine::{Engine, MonoTime, Profile, states_from_world};
use loadmaster_framework::api_calls::ObjectRef;
use loadmaster_framework::extension_points::SerialCx;
use loadmaster_framework::{CycleState, PluginStates, World};
use serde_json::Value;

use super::invariants::CheckResult;
use super::out_of_tree::OutOfTreeModel;
use super::plugin_calls::{self, PluginCall};
use super::volumes::{VolumeKind, VolumeModel};
use super::watched_objects::WatchedObjects;
use super::watching_plugin::{self, ClosedNodes, NodePool};
use crate::fake_api_server::{FakeApiServer, WatchedKind};

/// PreBind of a pod waits.
struct AttachmentWait {
    attachment: Str,
    until: MonoTime,
    /// Distinguishes the waits of a pod.
    serial: u64,
}

#[derive(Default)]
pub(super) struct PluginModel {
    pub objects: WatchedObjects,
    /// The value that the service published last, and when it expires.
    published: Option<(Value, MonoTime)>,
    /// Nodes of reserved pods, by uid.
    reserved: BTreeMap<Box<str>, Str>,
    /// When Permit rejects the pods that it holds, by uid.
    held: BTreeMap<Box<str>, MonoTime>,
    waits: BTreeMap<Box<str>, AttachmentWait>,
    /// Pods that out-of-tree plugins hold at Permit.
    pub waiting: BTreeSet<Box<str>>,
    pub out_of_tree: OutOfTreeModel,
    /// In runs with claims.
    pub volumes: Option<VolumeModel>,
    pub has_gangs: bool,
    pub has_quotas: bool,
    /// Kinds, by group and resource, of which the first list is not complete: as the daemon, the simulation schedules no pod before.
    pub awaited_kinds: BTreeSet<(Str, Str)>,
    n_waits: u64,
}

impl PluginModel {
    /// The model of plugins that see exactly what the server has.
    fn of_server(&self, api_server: &FakeApiServer) -> PluginModel {
        PluginModel {
            objects: WatchedObjects::of_server(api_server),
            published: self.published.clone(),
            ..PluginModel::default()
        }
    }

    /// The engine received an event.
    pub fn handle_event(&mut self, event: &EngineEvent) {
        if let EngineEvent::ObjectChanged { object, value } = event {
            self.objects.update(object, value.as_ref());
        }
    }

    /// A service published a value. One that cannot be decoded is ignored.
    pub fn publish(&mut self, value: &Value, until: MonoTime) {
        if closed_nodes(value).is_some() {
            self.published = Some((value.clone(), until));
        }
    }

    /// The engine handled its timeouts.
    pub fn expire_published(&mut self, now: MonoTime) {
        self.published.take_if(|(_, until)| *until <= now);
        self.out_of_tree.expire_published(now);
    }

    /// Adds the objects and the published value to a world that was built from scratch; returns the states of the plugins. Only pods with
    /// claims need the objects around volumes.
    pub fn add_to(&self, profile: &Profile, has_claims: bool, world: &mut World) -> PluginStates {
        profile.watches.iter().for_each(|watch| world.watch_objects(watch));
        self.objects.add_to(world, |object| has_claims || VolumeKind::of(object).is_none());
        let mut states = match has_claims {
            false => profile.states.clone(),
            true => {
                profile.pod_indexes.iter().for_each(|key| world.index_pods(key));
                profile.pod_sums.iter().for_each(|sums| world.sum_pods(sums));
                states_from_world(profile, world, [].iter())
            }
        };
        let receivers = profile.plugins.iter().filter(|it| it.name == watching_plugin::NAME);
        for handler in receivers.filter_map(|plugin| plugin.publish_handler.as_ref()) {
            if let Some((value, _)) = &self.published {
                // It was decoded before.
                let _ = handler(&mut states, Some(value));
            }
        }
        states
    }

    /// A plugin was called.
    pub fn handle_call(&mut self, now: MonoTime, call: PluginCall) -> CheckResult {
        match call {
            PluginCall::Saw { pools, closed } => return self.check_seen(&pools, closed.as_deref()),
            PluginCall::Reserved { uid, node } => drop(self.reserved.insert(uid, node)),
            PluginCall::Unreserved { uid } => {
                if let Some(volumes) = &mut self.volumes {
                    volumes.unreserve(&uid);
                }
                self.reserved.remove(&uid);
                self.held.remove(&uid);
                self.waits.remove(&uid);
            }
            PluginCall::Bound { .. } => {}
            PluginCall::Held { uid, timeout } => drop(self.held.insert(uid, now.after(timeout))),
            PluginCall::Allowed { uid } => self.allow(&uid),
            PluginCall::Waits { uid, attachment, timeout } => {
                self.n_waits += 1;
                let (until, serial) = (now.after(timeout), self.n_waits);
                self.waits.insert(uid, AttachmentWait { attachment, until, serial });
            }
            PluginCall::Resumed { uid } => drop(self.waits.remove(&uid)),
        }
        Ok(())
    }

    /// A pod that waits at Permit is allowed.
    pub fn allow(&mut self, uid: &str) {
        self.held.remove(uid);
    }

    /// Uids of the pods that wait at Permit.
    pub fn held_pods(&self) -> impl Iterator<Item = &str> {
        self.held.keys().map(|uid| &**uid)
    }

    pub fn is_held(&self, uid: &str) -> bool {
        self.held.contains_key(uid) || self.waiting.contains(uid)
    }

    fn check_seen(&self, pools: &BTreeMap<Str, Vec<Str>>, closed: Option<&[Str]>) -> CheckResult {
        let wanted = decoded_pools(self.objects.named(&WatchedKind::NodePool));
        if *pools != wanted {
            return Err(format!("the plugin saw the pools {pools:?}, expected {wanted:?}"));
        }
        let wanted = self.published.as_ref().and_then(|(value, _)| closed_nodes(value));
        if closed != wanted.as_deref() {
            return Err(format!("the plugin saw closed nodes {closed:?}, expected {wanted:?}"));
        }
        Ok(())
    }

    /// A pod is bound only to the node on which it is reserved, not while Permit holds it, and when its claims are bound.
    pub fn check_bind(&mut self, uid: &str, name: &Str, node: Option<&Node>) -> CheckResult {
        if self.is_held(uid) {
            return Err(format!("pod {uid} is bound to {name} while Permit holds it"));
        }
        match self.reserved.get(uid) {
            Some(reserved) if reserved == name => {}
            other => {
                return Err(format!("pod {uid} is bound to {name}, but reserved on {other:?}"));
            }
        }
        self.volumes.as_mut().map_or(Ok(()), |volumes| volumes.check_bind(uid, node))
    }

    /// The waits that a change of this object ends.
    pub fn waits_on(&self, event: &EngineEvent) -> Vec<(Box<str>, u64)> {
        let EngineEvent::ObjectChanged { object, .. } = event else { return Vec::new() };
        let is_on = |wait: &AttachmentWait| {
            is_of_kind(object, WatchedKind::Attachment) && wait.attachment == object.name
        };
        let waits = self.waits.iter().filter(|(_, wait)| is_on(wait));
        waits.map(|(uid, wait)| (uid.clone(), wait.serial)).collect()
    }

    /// PreBind was called again for each of these waits.
    pub fn check_resumed(&self, waits: &[(Box<str>, u64)]) -> CheckResult {
        let is_left =
            |uid: &str, serial: u64| self.waits.get(uid).is_some_and(|it| it.serial == serial);
        match waits.iter().find(|(uid, serial)| is_left(uid, *serial)) {
            None => Ok(()),
            Some((uid, _)) => {
                Err(format!("pod {uid}: its attachment changed, but PreBind was not resumed"))
            }
        }
    }

    /// No pod waits for longer than its timeout, and the engine knows the same waiting pods.
    pub fn check_waits(&self, now: MonoTime, engine: &Engine) -> CheckResult {
        if let Some((uid, until)) = self.held.iter().find(|(_, until)| **until <= now) {
            let late = now.since(*until);
            return Err(format!("pod {uid} waits at Permit {late:?} longer than its timeout"));
        }
        if let Some((uid, wait)) = self.waits.iter().find(|(_, wait)| wait.until <= now) {
            let late = now.since(wait.until);
            return Err(format!("pod {uid} waits in PreBind {late:?} longer than its timeout"));
        }
        let waiting = engine.world().waiting_pods();
        let known: Vec<&str> = waiting.iter().map(|waiting| &*waiting.pod.uid).collect();
        let held: BTreeSet<&str> =
            self.held_pods().chain(self.waiting.iter().map(|uid| &**uid)).collect();
        if !known.iter().eq(&held) {
            return Err(format!("the engine has the waiting pods {known:?}, expected {held:?}"));
        }
        Ok(())
    }

    /// When everything has settled no pod waits, and the plugin sees the objects of the server.
    pub fn check_settled(
        &self,
        profile: &Profile,
        api_server: &FakeApiServer,
        engine: &Engine,
    ) -> CheckResult {
        if let Some(uid) = self.held.keys().chain(self.waits.keys()).next() {
            return Err(format!("after everything has settled pod {uid} waits"));
        }
        plugin_calls::take_recorded();
        let Some(pod) = engine
            .pending_pods()
            .first()
            .copied()
            .or_else(|| engine.world().node_infos().flat_map(|node| node.pods()).next())
        else {
            return Ok(());
        };
        // The plugins record in PreFilter what they see.
        let (cycle, states) = (&mut CycleState::default(), &mut profile.states.clone());
        for member in &profile.pre_filter {
            let cx = SerialCx { world: engine.world(), cycle, states };
            let _ = member.point.pre_filter(cx, pod);
        }
        let of_server = self.of_server(api_server);
        for call in plugin_calls::take_recorded() {
            if let PluginCall::Saw { pools, .. } = call {
                let closed =
                    of_server.published.as_ref().and_then(|(value, _)| closed_nodes(value));
                of_server.check_seen(&pools, closed.as_deref())?;
            }
        }
        Ok(())
    }

    /// The states of the plugins in a world that was built from the objects of the server.
    pub fn add_server_objects(
        &self,
        profile: &Profile,
        api_server: &FakeApiServer,
        world: &mut World,
    ) -> PluginStates {
        self.of_server(api_server).add_to(profile, self.volumes.is_some(), world)
    }
}

fn is_of_kind(object: &ObjectRef, kind: WatchedKind) -> bool {
    (object.group.as_str(), object.resource.as_str()) == kind.group_resource()
}

/// The objects that decode; plugins do not see the others.
fn decoded_pools<'a>(pools: impl Iterator<Item = (&'a Str, &'a Value)>) -> BTreeMap<Str, Vec<Str>> {
    let decoded = pools.filter_map(|(name, value)| {
        let pool: NodePool = serde_json::from_value(value.clone()).ok()?;
        Some((name.clone(), pool.accepts))
    });
    decoded.collect()
}

fn closed_nodes(value: &Value) -> Option<Vec<Str>> {
    serde_json::from_value::<ClosedNodes>(value.clone()).ok().map(|value| value.closed)
}

/// Whether a pod has an attachment with this name.
pub(super) fn has_attachment(pod: &Pod, attachment: &Str) -> bool {
    super::holding_plugin::attachment_name(&pod.metadata.uid) == *attachment
}
