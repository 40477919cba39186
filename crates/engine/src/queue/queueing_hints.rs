//! Whether an event is worth another attempt at a rejected pod, and how soon (upstream's `isPodWorthRequeuing`).

use loadmaster_framework::cluster_event::QueueingHintArgs;
use loadmaster_framework::{
    ClusterEvent, EventObject, PluginStates, PodInfo, QueueingHint, QueueingHintFn, World,
};
use smallvec::SmallVec;

use super::QueuePlugins;
use super::event::OwnedEventObject;
use super::unschedulable_pods::RejecterGroup;

/// Where to move a rejected pod (upstream's `queueingStrategy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum QueueingStrategy {
    /// Leave it in unschedulablePods.
    Skip,
    /// Move it to backoffQ, or to activeQ if its backoff is completed.
    AfterBackoff,
    /// Move it to activeQ.
    Immediately,
}

/// The hints that an event triggers for one group of pods.
pub(super) struct EventHints<'a> {
    /// The strategy that is certain without calling hints.
    floor: QueueingStrategy,
    /// Hints of plugins that returned Pending: `Queue` skips the backoff.
    pending: SmallVec<[&'a QueueingHintFn; 2]>,
    unschedulable: SmallVec<[&'a QueueingHintFn; 4]>,
    /// A rejecter wants the event for pods of every priority.
    pub ignores_priority: bool,
    /// The event concerns only this pod.
    only: Option<&'a str>,
    event: &'a ClusterEvent,
    old: Option<EventObject<'a>>,
    new: Option<EventObject<'a>>,
    world: &'a World,
    states: &'a PluginStates,
}

impl<'a> EventHints<'a> {
    /// Collects the hints of the group's rejecters for the event.
    pub fn new(
        plugins: &'a dyn QueuePlugins,
        group: &RejecterGroup,
        event: &'a ClusterEvent,
        old: Option<&'a OwnedEventObject>,
        new: Option<&'a OwnedEventObject>,
    ) -> EventHints<'a> {
        let mut hints = EventHints {
            floor: QueueingStrategy::Skip,
            pending: SmallVec::new(),
            unschedulable: SmallVec::new(),
            ignores_priority: false,
            only: None,
            event,
            old: old.map(OwnedEventObject::as_event_object),
            new: new.map(OwnedEventObject::as_event_object),
            world: plugins.world(),
            states: plugins.states(group.profile_idx),
        };
        if group.unschedulable.is_empty() && group.pending.is_empty() {
            hints.floor = QueueingStrategy::AfterBackoff;
        } else if event.is_wildcard() {
            // An activation concerns only the activated pod.
            match new {
                None => hints.floor = QueueingStrategy::AfterBackoff,
                Some(OwnedEventObject::Pod(pod)) => {
                    hints.floor = QueueingStrategy::AfterBackoff;
                    hints.only = Some(&pod.uid);
                }
                Some(_) => {}
            }
        } else {
            hints.add(plugins, group, event);
        }
        hints
    }

    fn add(&mut self, plugins: &'a dyn QueuePlugins, group: &RejecterGroup, event: &ClusterEvent) {
        let pending = group.pending.iter().map(|plugin| (plugin, QueueingStrategy::Immediately));
        let others = group.unschedulable.iter().filter(|plugin| !group.pending.contains(*plugin));
        for (plugin, yes) in
            pending.chain(others.map(|plugin| (plugin, QueueingStrategy::AfterBackoff)))
        {
            let Some(registered) = plugins.events(group.profile_idx, plugin) else {
                self.floor = self.floor.max(yes);
                continue;
            };
            for known in registered.iter().filter(|known| known.event.matches(event)) {
                self.ignores_priority |= known.ignores_priority;
                match &known.hint {
                    None => self.floor = self.floor.max(yes),
                    Some(hint) if yes == QueueingStrategy::Immediately => self.pending.push(hint),
                    Some(hint) => self.unschedulable.push(hint),
                }
            }
        }
    }

    /// Whether the event requeues no pod of the group.
    pub fn is_empty(&self) -> bool {
        self.floor == QueueingStrategy::Skip
            && self.pending.is_empty()
            && self.unschedulable.is_empty()
    }

    /// Calls the hints for a pod of the group.
    pub fn queueing_strategy(&self, pod: &PodInfo) -> QueueingStrategy {
        if self.only.is_some_and(|uid| *uid != *pod.uid) {
            return QueueingStrategy::Skip;
        }
        let EventHints { event, old, new, world, states, .. } = *self;
        let question = QueueingHintArgs { pod, event, old, new, world, states };
        // After an error of a hint the pod is requeued, so that it does not wait for ever.
        let yes = |hint: &&QueueingHintFn| !matches!(hint(&question), Ok(QueueingHint::Skip));
        if self.floor == QueueingStrategy::Immediately || self.pending.iter().any(yes) {
            QueueingStrategy::Immediately
        } else if self.floor == QueueingStrategy::AfterBackoff || self.unschedulable.iter().any(yes)
        {
            QueueingStrategy::AfterBackoff
        } else {
            QueueingStrategy::Skip
        }
    }
}

/// Whether the event may ungate the group's pods: their gating plugin must have registered such events.
pub(super) fn may_ungate(
    plugins: &dyn QueuePlugins,
    group: &RejecterGroup,
    event: &ClusterEvent,
) -> bool {
    let Some(gating) = group.gating else { return true };
    match plugins.events(group.profile_idx, gating) {
        Some(registered) => registered.iter().any(|known| known.event.matches(event)),
        None => !event.is_wildcard(),
    }
}
