//! Whether an event is worth another attempt at a rejected pod, and how soon (upstream's `isPodWorthRequeuing`).

use loadmaster_framework::event::HintQuestion;
use loadmaster_framework::{ClusterEvent, EventObject, Hint, HintFn, PodInfo, World};
use smallvec::SmallVec;

use super::Plugins;
use super::event::Object;
use super::waiting::Group;

/// What to do with a rejected pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Strategy {
    /// Nothing: it waits on.
    Skip,
    /// Try it once its backoff is over.
    AfterBackoff,
    /// Try it now.
    Immediately,
}

/// An event as one group of pods hears it.
pub(super) struct Listeners<'a> {
    /// What is certain without asking.
    floor: Strategy,
    /// Whom to ask; a yes from a plugin that answered Pending skips the backoff.
    pending: SmallVec<[&'a HintFn; 2]>,
    unschedulable: SmallVec<[&'a HintFn; 4]>,
    /// The event is about this pod only.
    only: Option<&'a str>,
    event: &'a ClusterEvent,
    old: Option<EventObject<'a>>,
    new: Option<EventObject<'a>>,
    world: &'a World,
}

impl<'a> Listeners<'a> {
    /// Who listens to the event on behalf of the group's pods.
    pub fn new(
        plugins: &'a dyn Plugins,
        group: &Group,
        event: &'a ClusterEvent,
        old: Option<&'a Object>,
        new: Option<&'a Object>,
    ) -> Listeners<'a> {
        let mut listeners = Listeners {
            floor: Strategy::Skip,
            pending: SmallVec::new(),
            unschedulable: SmallVec::new(),
            only: None,
            event,
            old: old.map(Object::as_event_object),
            new: new.map(Object::as_event_object),
            world: plugins.world(),
        };
        if group.unschedulable.is_empty() && group.pending.is_empty() {
            listeners.floor = Strategy::AfterBackoff;
        } else if event.is_wildcard() {
            // A plugin that activates a pod speaks of that pod alone.
            match new {
                None => listeners.floor = Strategy::AfterBackoff,
                Some(Object::Pod(pod)) => {
                    listeners.floor = Strategy::AfterBackoff;
                    listeners.only = Some(&pod.uid);
                }
                Some(_) => {}
            }
        } else {
            listeners.add(plugins, group, event);
        }
        listeners
    }

    fn add(&mut self, plugins: &'a dyn Plugins, group: &Group, event: &ClusterEvent) {
        let pending = group.pending.iter().map(|plugin| (plugin, Strategy::Immediately));
        let others = group.unschedulable.iter().filter(|plugin| !group.pending.contains(*plugin));
        for (plugin, yes) in pending.chain(others.map(|plugin| (plugin, Strategy::AfterBackoff))) {
            let Some(registered) = plugins.events(group.seat, plugin) else {
                self.floor = self.floor.max(yes);
                continue;
            };
            for known in registered.iter().filter(|known| known.event.matches(event)) {
                match &known.hint {
                    None => self.floor = self.floor.max(yes),
                    Some(hint) if yes == Strategy::Immediately => self.pending.push(hint),
                    Some(hint) => self.unschedulable.push(hint),
                }
            }
        }
    }

    /// Whether the event means nothing to any pod of the group.
    pub fn is_empty(&self) -> bool {
        self.floor == Strategy::Skip && self.pending.is_empty() && self.unschedulable.is_empty()
    }

    /// What the event means for a pod of the group.
    pub fn strategy(&self, pod: &PodInfo) -> Strategy {
        if self.only.is_some_and(|uid| *uid != *pod.uid) {
            return Strategy::Skip;
        }
        let Listeners { event, old, new, world, .. } = *self;
        let question = HintQuestion { pod, event, old, new, world };
        // A hint that fails must not leave a pod waiting for ever.
        let yes = |hint: &&HintFn| !matches!(hint(&question), Ok(Hint::Skip));
        if self.floor == Strategy::Immediately || self.pending.iter().any(yes) {
            Strategy::Immediately
        } else if self.floor == Strategy::AfterBackoff || self.unschedulable.iter().any(yes) {
            Strategy::AfterBackoff
        } else {
            Strategy::Skip
        }
    }
}

/// Whether a gated pod of the group is looked at: its gating plugin must have registered such events.
pub(super) fn may_ungate(plugins: &dyn Plugins, group: &Group, event: &ClusterEvent) -> bool {
    let Some(gating) = group.gating else { return true };
    match plugins.events(group.seat, gating) {
        Some(registered) => registered.iter().any(|known| known.event.matches(event)),
        None => !event.is_wildcard(),
    }
}
