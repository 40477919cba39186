//! Calls the event handlers of a profile's plugins: for pods, nodes, and the objects that they watch.

use std::sync::Arc;

use loadmaster_framework::extension_points::SerialCx;
use loadmaster_framework::{
    CycleState, NodeChange, ObjectChange, PluginStates, PodChange, PodInfo, World,
};

use crate::guard::ExtensionPoint;
use crate::profile::{Profile, ProfilePlugin};

/// The plugins of a profile whose handlers are called.
#[derive(Clone, Copy)]
pub(crate) struct Receivers<'a> {
    pub profile: &'a Profile,
    /// Only the plugin with this name.
    pub only: Option<&'a str>,
    /// Not these plugins.
    pub except: &'a [&'static str],
}

impl<'a> Receivers<'a> {
    /// All plugins of a profile.
    pub fn all(profile: &'a Profile) -> Self {
        Receivers::all_except(profile, &[])
    }

    /// All plugins of a profile but these.
    pub fn all_except(profile: &'a Profile, except: &'a [&'static str]) -> Self {
        Receivers { profile, only: None, except }
    }

    /// One plugin of a profile.
    pub fn only(profile: &'a Profile, plugin: &'a str) -> Self {
        Receivers { profile, only: Some(plugin), except: &[] }
    }

    pub fn on_pod_change(&self, world: &World, states: &mut PluginStates, change: &PodChange) {
        self.call(
            |plugin| plugin.pod_event_handler.as_deref(),
            world,
            states,
            |point, cx| point.on_pod_change(cx, change),
        );
    }

    pub fn on_node_change(&self, world: &World, states: &mut PluginStates, change: &NodeChange) {
        self.call(
            |plugin| plugin.node_event_handler.as_deref(),
            world,
            states,
            |point, cx| point.on_node_change(cx, change),
        );
    }

    pub fn on_object_change(
        &self,
        world: &World,
        states: &mut PluginStates,
        change: &ObjectChange,
    ) {
        self.call(
            |plugin| {
                let watches = plugin.watched_kinds.contains(&change.kind);
                plugin.object_event_handler.as_deref().filter(|_| watches)
            },
            world,
            states,
            |point, cx| point.on_object_change(cx, change),
        );
    }

    fn call<H: ?Sized>(
        &self,
        handler: impl Fn(&ProfilePlugin) -> Option<&H>,
        world: &World,
        states: &mut PluginStates,
        work: impl Fn(&H, SerialCx<'_>),
    ) {
        let is_receiver =
            |name: &str| self.only.is_none_or(|only| only == name) && !self.except.contains(&name);
        for plugin in self.profile.plugins.iter().filter(|plugin| is_receiver(plugin.name)) {
            let Some(point) = handler(plugin) else { continue };
            let cx = SerialCx { world, cycle: &mut CycleState::default(), states };
            // A panic is recorded, and the other plugins are still called.
            let _ = self
                .profile
                .plugin_ref(plugin.name)
                .call(ExtensionPoint::ObjectEvents, || work(point, cx));
        }
    }

    /// Reports everything as added: all nodes, these pods, and all watched objects.
    fn report_all<'p>(
        &self,
        world: &World,
        states: &mut PluginStates,
        pods: impl Iterator<Item = &'p Arc<PodInfo>>,
    ) {
        for node in world.nodes().rows().filter_map(|row| world.nodes().node(row)) {
            let change = NodeChange { old: None, new: Some(node.clone()) };
            self.on_node_change(world, states, &change);
        }
        for pod in pods {
            self.on_pod_change(world, states, &PodChange { old: None, new: Some(pod.clone()) });
        }
        for (kind, object) in world.watched_objects().iter() {
            let (kind, new) = (kind.clone(), Some(object.clone()));
            self.on_object_change(world, states, &ObjectChange { kind, old: None, new });
        }
    }
}

/// The states of a profile's plugins after their event handlers were told of everything in the world, and of these pods, which are
/// all pending and assigned ones.
pub fn states_from_world<'p>(
    profile: &Profile,
    world: &World,
    pods: impl Iterator<Item = &'p Arc<PodInfo>>,
) -> PluginStates {
    let mut states = profile.states.clone();
    Receivers::all(profile).report_all(world, &mut states, pods);
    states
}

/// Reports everything to one plugin again, whose state was reset.
pub(crate) fn report_all_again<'p>(
    profile: &Profile,
    plugin: &str,
    world: &World,
    states: &mut PluginStates,
    pods: impl Iterator<Item = &'p Arc<PodInfo>>,
) {
    Receivers::only(profile, plugin).report_all(world, states, pods);
}
