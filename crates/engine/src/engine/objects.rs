//! What only plugins know: objects of the kinds they watch, and what services publish to them.

use std::time::Duration;

use loadmaster_api::Needs;
use loadmaster_framework::args::FieldError;
use loadmaster_framework::points::SerialCx;
use loadmaster_framework::request::ObjectRef;
use loadmaster_framework::{Action, ClusterEvent, CycleState, Gvr, ObjectChange, Presence};
use serde_json::Value;

use super::Engine;
use super::effect::{Effect, Effects, Observation};
use crate::guard::Site;
use crate::queue::{Happened, Object as Subject};
use crate::time::{Mono, Now};

/// Something that a service published, and when it is too old.
pub(super) struct Publication {
    pub plugin: Box<str>,
    pub until: Mono,
}

impl Engine {
    /// The kinds that plugins watch, for whoever asks the API server; news of them are [`Event::Changed`](super::Event::Changed)
    /// and [`Event::Listed`](super::Event::Listed).
    pub fn watched(&self) -> impl Iterator<Item = (&Gvr, Presence)> {
        self.world.objects().kinds()
    }

    /// What plugins need of pods and nodes beyond what the scheduler reads: whoever reads them fills it in ([`Extra::read`]). What
    /// nobody needs is left out here.
    ///
    /// [`Extra::read`]: loadmaster_api::Extra::read
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// The world first, then the plugins, then the queue.
    pub(super) fn object_changed(
        &mut self,
        now: Now,
        object: &ObjectRef,
        value: Option<&Value>,
        effects: &mut Effects,
    ) {
        let changed = self.world.change_object(object, value);
        if let Some(what) = changed.trouble {
            effects.push(Effect::Observe(Observation::Trouble { what }));
        }
        let Some(change) = changed.change else { return };
        self.tell_plugins(&change);
        let action = match (&change.old, &change.new) {
            (None, _) => Action::ADD,
            (_, None) => Action::DELETE,
            _ => Action::UPDATE,
        };
        let event = ClusterEvent::new(change.kind.event_resource(), action);
        let (old, new) = (change.old.map(Subject::Other), change.new.map(Subject::Other));
        self.happened(now, Happened::new(event, old, new));
    }

    fn tell_plugins(&mut self, change: &ObjectChange) {
        for seat in &mut self.seats {
            let profile = seat.profile.clone();
            let watching = profile.plugins.iter().filter(|it| it.watched.contains(&change.kind));
            for plugin in watching {
                let Some(point) = &plugin.object_events else { continue };
                let (cycle, states) = (&mut CycleState::default(), seat.scheduler.states_mut());
                let cx = SerialCx { world: &self.world, cycle, states };
                // A panic is noted, and the others are told all the same.
                let _ = profile
                    .who(plugin.name)
                    .call(Site::ObjectEvents, || point.object_changed(cx, change));
            }
        }
    }

    /// A service published something. All plugins of that name get it, one a profile.
    pub(super) fn published(
        &mut self,
        now: Now,
        plugin: &str,
        value: &Value,
        good_for: Duration,
        effects: &mut Effects,
    ) {
        let what = match self.receive(plugin, Some(value)) {
            Ok(0) => format!("no plugin {plugin:?} takes what is published to it"),
            Ok(_) => {
                self.publications.retain(|known| *known.plugin != *plugin);
                let until = now.mono.after(good_for);
                self.publications.push(Publication { plugin: plugin.into(), until });
                return self
                    .happened(now, Happened::new(ClusterEvent::published(plugin), None, None));
            }
            Err(error) => format!("what was published to plugin {plugin:?} is left out: {error}"),
        };
        effects.push(Effect::Observe(Observation::Trouble { what }));
    }

    /// Forgets what is too old, but not in the middle of an attempt.
    pub(super) fn forget_published(&mut self, now: Now) {
        if self.is_suspended() {
            return;
        }
        let is_due = |known: &mut Publication| known.until <= now.mono;
        let due: Vec<Publication> = self.publications.extract_if(.., is_due).collect();
        for Publication { plugin, .. } in due {
            // Forgetting decodes nothing, so that nothing can be wrong with it.
            let _ = self.receive(&plugin, None);
            self.happened(now, Happened::new(ClusterEvent::published(&plugin), None, None));
        }
    }

    pub(super) fn publication_deadline(&self) -> Option<Mono> {
        let ends = self.publications.iter().map(|known| known.until);
        ends.min().filter(|_| !self.is_suspended())
    }

    /// How many plugins got it.
    fn receive(&mut self, plugin: &str, value: Option<&Value>) -> Result<usize, FieldError> {
        let mut n_receivers = 0;
        for seat in &mut self.seats {
            let profile = seat.profile.clone();
            let named = profile.plugins.iter().filter(|known| known.name == plugin);
            for known in named {
                let Some(receiver) = &known.receiver else { continue };
                let states = seat.scheduler.states_mut();
                let who = profile.who(known.name);
                let received = who.call(Site::ObjectEvents, || receiver(states, value));
                received.unwrap_or_else(|failure| {
                    Err(FieldError { path: String::new(), text: failure.to_string() })
                })?;
                n_receivers += 1;
            }
        }
        Ok(n_receivers)
    }
}
