//! What plugins are told: changes of pods, nodes and the objects that they watch, and values that services publish.

use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::{ExtraFieldsByKind, Node};
use loadmaster_framework::api_calls::ObjectRef;
use loadmaster_framework::plugin_args::FieldError;
use loadmaster_framework::plugin_metrics::PluginMetric;
use loadmaster_framework::{
    ActionType, ClusterEvent, Gvr, NodeChange, ObjectChange, PluginStates, PodChange, PodInfo,
    PolicyRule, WatchRequirement,
};
use serde_json::Value;

use super::effect::{Effect, Effects, Observation};
use super::{Engine, ProfileScheduler};
use crate::guard::{ExtensionPoint, PluginRef};
use crate::plugin_events::report_all_again;
use crate::profile::ProfilePlugin;
use crate::queue::ProfileIdx;
use crate::queue::{ClusterEventOccurrence, OwnedEventObject as QueueObject};
use crate::time::{MonoTime, Now};

/// A value that a service published, and when it expires.
pub(super) struct Publication {
    pub plugin: Box<str>,
    /// For plugins that another configuration adds.
    pub value: Value,
    pub until: MonoTime,
}

impl Engine {
    /// The kinds that plugins watch. The owner of the engine watches them and reports [`EngineEvent::ObjectChanged`](super::EngineEvent::ObjectChanged)
    /// and [`EngineEvent::Synced`](super::EngineEvent::Synced).
    pub fn watched_kinds(&self) -> impl Iterator<Item = (&Gvr, WatchRequirement)> {
        self.world.watched_objects().watched_kinds()
    }

    /// The states of the plugins of a profile; `None` if there is no profile of this index.
    pub fn plugin_states(&self, profile: usize) -> Option<&PluginStates> {
        Some(self.profiles.active().nth(profile)?.scheduler.plugin_states())
    }

    /// The metrics that plugins declare, with the plugin's name; one per profile.
    pub fn plugin_metrics(&self) -> impl Iterator<Item = (&'static str, &PluginMetric)> {
        let plugins = self.profiles.active().flat_map(|it| &it.profile.plugins);
        plugins.flat_map(|plugin| plugin.metrics.iter().map(|metric| (plugin.name, metric)))
    }

    /// The permissions that plugins require for themselves and their services, with the plugin's name. Profiles with the same plugin may
    /// require the same.
    pub fn policy_rules(&self) -> impl Iterator<Item = (&'static str, &PolicyRule)> {
        let plugins = self.profiles.active().flat_map(|it| &it.profile.plugins);
        plugins.flat_map(|plugin| plugin.policy_rules.iter().map(|rule| (plugin.name, rule)))
    }

    /// Fields of pods and nodes that plugins need beyond those that the scheduler reads. The decoder fills them in ([`ExtraFields::read`]). Fields
    /// that no plugin needs are dropped.
    ///
    /// [`ExtraFields::read`]: loadmaster_api::ExtraFields::read
    pub fn extra_fields(&self) -> ExtraFieldsByKind {
        self.needs
    }

    /// Updates the world first, then the plugins, then the queue.
    pub(super) fn handle_object_change(
        &mut self,
        now: Now,
        object: &ObjectRef,
        value: Option<&Value>,
        effects: &mut Effects,
    ) {
        let changed = self.world.update_watched_object(object, value);
        if let Some(message) = changed.decode_error {
            effects.push(Effect::Observe(Observation::InternalError { message }));
        }
        let Some(change) = changed.change else { return };
        self.notify_plugins(&change);
        let action = match (&change.old, &change.new) {
            (None, _) => ActionType::ADD,
            (_, None) => ActionType::DELETE,
            _ => ActionType::UPDATE,
        };
        let event = ClusterEvent::new(change.kind.event_resource(), action);
        let (old, new) = (change.old.map(QueueObject::Other), change.new.map(QueueObject::Other));
        self.on_cluster_event(now, ClusterEventOccurrence::new(event, old, new));
    }

    fn notify_plugins(&mut self, change: &ObjectChange) {
        for it in self.profiles.iter_mut() {
            let (receivers, states) = it.receivers();
            receivers.on_object_change(&self.world, states, change);
        }
    }

    /// Tells the plugins that a pod changed: as the API server had it, and as it has it now.
    pub(super) fn notify_pod_change(
        &mut self,
        old: Option<Arc<PodInfo>>,
        new: Option<&Arc<PodInfo>>,
    ) {
        let change = PodChange { old, new: new.cloned() };
        for it in self.profiles.iter_mut() {
            let (receivers, states) = it.receivers();
            receivers.on_pod_change(&self.world, states, &change);
        }
    }

    /// Tells the plugins that a node changed.
    pub(super) fn notify_node_change(&mut self, old: Option<&Arc<Node>>, new: Option<&Arc<Node>>) {
        let change = NodeChange { old: old.cloned(), new: new.cloned() };
        for it in self.profiles.iter_mut() {
            let (receivers, states) = it.receivers();
            receivers.on_node_change(&self.world, states, &change);
        }
    }

    /// Reports everything to a plugin whose state was reset.
    pub(super) fn report_all_again(&mut self, plugin: &PluginRef) {
        let pods = self.pods_of_plugins();
        for ProfileScheduler { profile, scheduler, .. } in self.profiles.iter_mut().filter(|it| {
            *it.profile.scheduler_name == *plugin.profile && !it.has_moved(plugin.name)
        }) {
            let states = scheduler.plugin_states_mut();
            report_all_again(profile, plugin.name, &self.world, states, pods.iter());
        }
    }

    /// All pods that plugins are told of, as the API server has them: an assumed pod is pending.
    pub(super) fn pods_of_plugins(&self) -> Vec<Arc<PodInfo>> {
        let mut pods: Vec<Arc<PodInfo>> = self.pending_pods().into_iter().cloned().collect();
        let assigned = self.world.node_infos().flat_map(|node| node.pods());
        let assigned = assigned.chain(self.orphaned_pods.iter());
        pods.extend(assigned.filter(|pod| !self.pending.contains_key(&pod.uid)).cloned());
        pods
    }

    /// A service published a value. All plugins with that name receive it, one per profile.
    pub(super) fn handle_published(
        &mut self,
        now: Now,
        plugin: &str,
        value: &Value,
        ttl: Duration,
        effects: &mut Effects,
    ) {
        // A plugin of an earlier configuration, under which pods finish, does not count: it accepts a value only together with a running one.
        let is_it = |it: &ProfilePlugin| it.name == plugin && it.publish_handler.is_some();
        let is_accepted = self.profiles.active().any(|it| it.profile.plugins.iter().any(is_it));
        let passed = if is_accepted { self.pass_to_plugins(plugin, Some(value)) } else { Ok(0) };
        let message = match passed {
            Ok(0) => format!("no plugin {plugin:?} accepts published values"),
            Ok(_) => {
                self.publications.retain(|known| *known.plugin != *plugin);
                let until = now.mono.after(ttl);
                self.publications.push(Publication {
                    plugin: plugin.into(),
                    value: value.clone(),
                    until,
                });
                return self.on_cluster_event(
                    now,
                    ClusterEventOccurrence::new(
                        ClusterEvent::published_to_plugin(plugin),
                        None,
                        None,
                    ),
                );
            }
            Err(error) => format!("ignored a value published to plugin {plugin:?}: {error}"),
        };
        effects.push(Effect::Observe(Observation::InternalError { message }));
    }

    /// Drops expired values, but not in the middle of an attempt.
    pub(super) fn expire_published(&mut self, now: Now) {
        if self.has_suspended_attempt() {
            return;
        }
        let is_due = |known: &mut Publication| known.until <= now.mono;
        let due: Vec<Publication> = self.publications.extract_if(.., is_due).collect();
        for Publication { plugin, .. } in due {
            // Dropping a value decodes nothing, so it cannot fail.
            let _ = self.pass_to_plugins(&plugin, None);
            self.on_cluster_event(
                now,
                ClusterEventOccurrence::new(ClusterEvent::published_to_plugin(&plugin), None, None),
            );
        }
    }

    pub(super) fn publication_deadline(&self) -> Option<MonoTime> {
        let ends = self.publications.iter().map(|known| known.until);
        ends.min().filter(|_| !self.has_suspended_attempt())
    }

    /// Passes a value to its plugins, or drops it. Returns the number of plugins.
    pub(super) fn pass_to_plugins(
        &mut self,
        plugin: &str,
        value: Option<&Value>,
    ) -> Result<usize, FieldError> {
        let mut receivers = Vec::new();
        for at in self.profiles.indices() {
            let profile_scheduler = &mut self.profiles[at];
            let profile = profile_scheduler.profile.clone();
            let named = profile.plugins.iter().enumerate().filter(|(_, it)| it.name == plugin);
            for (index, known) in named {
                let Some(receiver) = &known.publish_handler else { continue };
                if profile_scheduler.has_moved(known.name) {
                    continue;
                }
                let states = profile_scheduler.scheduler.plugin_states_mut();
                let plugin_ref = profile.plugin_ref(known.name);
                let received =
                    plugin_ref.call(ExtensionPoint::ObjectEvents, || receiver(states, value));
                received.unwrap_or_else(|failure| {
                    Err(FieldError { path: String::new(), text: failure.to_string() })
                })?;
                receivers.push((ProfileIdx(at as u32), index));
            }
        }
        for (profile_idx, index) in &receivers {
            self.forget_plugin(*profile_idx, *index);
        }
        Ok(receivers.len())
    }
}
