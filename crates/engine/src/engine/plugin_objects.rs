//! Objects of the kinds that plugins watch, and values that services publish to plugins.

use std::time::Duration;

use loadmaster_api::ExtraFieldsByKind;
use loadmaster_framework::api_calls::ObjectRef;
use loadmaster_framework::extension_points::SerialCx;
use loadmaster_framework::plugin_args::FieldError;
use loadmaster_framework::{
    ActionType, ClusterEvent, CycleState, Gvr, ObjectChange, WatchRequirement,
};
use serde_json::Value;

use super::Engine;
use super::effect::{Effect, Effects, Observation};
use crate::guard::ExtensionPoint;
use crate::queue::ProfileIdx;
use crate::queue::{ClusterEventOccurrence, OwnedEventObject as QueueObject};
use crate::time::{MonoTime, Now};

/// A value that a service published, and when it expires.
pub(super) struct Publication {
    pub plugin: Box<str>,
    pub until: MonoTime,
}

impl Engine {
    /// The kinds that plugins watch. The owner of the engine watches them and reports [`EngineEvent::ObjectChanged`](super::EngineEvent::ObjectChanged)
    /// and [`EngineEvent::Synced`](super::EngineEvent::Synced).
    pub fn watched_kinds(&self) -> impl Iterator<Item = (&Gvr, WatchRequirement)> {
        self.world.watched_objects().watched_kinds()
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
        for profile_scheduler in &mut self.profiles {
            let profile = profile_scheduler.profile.clone();
            let watching =
                profile.plugins.iter().filter(|it| it.watched_kinds.contains(&change.kind));
            for plugin in watching {
                let Some(point) = &plugin.object_event_handler else { continue };
                let (cycle, states) =
                    (&mut CycleState::default(), profile_scheduler.scheduler.plugin_states_mut());
                let cx = SerialCx { world: &self.world, cycle, states };
                // A panic is recorded, and the other plugins are still called.
                let _ = profile
                    .plugin_ref(plugin.name)
                    .call(ExtensionPoint::ObjectEvents, || point.on_object_change(cx, change));
            }
        }
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
        let message = match self.pass_to_plugins(plugin, Some(value)) {
            Ok(0) => format!("no plugin {plugin:?} accepts published values"),
            Ok(_) => {
                self.publications.retain(|known| *known.plugin != *plugin);
                let until = now.mono.after(ttl);
                self.publications.push(Publication { plugin: plugin.into(), until });
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
    fn pass_to_plugins(
        &mut self,
        plugin: &str,
        value: Option<&Value>,
    ) -> Result<usize, FieldError> {
        let mut receivers = Vec::new();
        for (at, profile_scheduler) in self.profiles.iter_mut().enumerate() {
            let profile = profile_scheduler.profile.clone();
            let named = profile.plugins.iter().enumerate().filter(|(_, it)| it.name == plugin);
            for (index, known) in named {
                let Some(receiver) = &known.publish_handler else { continue };
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
