//! Events that are deferred while an attempt waits for an extender: everything that would change the world that the attempt sees.
//!
//! | event | meanwhile |
//! | --- | --- |
//! | objects that are added, updated or deleted; values that services publish; another configuration | deferred, in order |
//! | replies for PreBind, Bind, status patches, evictions; Permit decisions; activations | handled at once |
//! | a binding cycle that fails | ends later, in order: its pod is forgotten then |
//! | a reply, object or deadline for a PostFilter plugin of another pod | deferred, in order |
//!
//! This delays no other pod: no attempt begins before the suspended one ends.

use std::collections::VecDeque;

use super::Engine;
use super::attempt_failure::AttemptFailure;
use super::call_owner::CallOwner;
use super::effect::Effects;
use super::event::EngineEvent;
use crate::time::Now;

/// With so many deferred events [`Engine::accepts_object_events`] returns `false`.
const N_DEFERRED_MAX: usize = 16 << 10;

/// Deferred events, in order.
#[derive(Default)]
pub(super) struct DeferredEvents(VecDeque<Deferred>);

enum Deferred {
    Event(EngineEvent),
    BindingFailed { uid: Box<str>, serial: u64, failed: AttemptFailure },
}

impl Deferred {
    fn publishes_to(&self, wanted: &str) -> bool {
        matches!(self, Deferred::Event(EngineEvent::Published { plugin, .. }) if **plugin == *wanted)
    }
}

impl DeferredEvents {
    pub fn push(&mut self, event: EngineEvent) {
        if let EngineEvent::Published { plugin, .. } = &event {
            // Services are not throttled as watches are, and only their last value counts.
            self.0.retain(|later| !later.publishes_to(plugin));
        }
        self.0.push_back(Deferred::Event(event));
    }
}

impl Engine {
    /// Whether the caller should pass object events now. While this is `false` the caller should hold them back; events that are passed anyway
    /// are still deferred, not lost. It is `true` again when the suspended attempt resumes, at the latest after the extender's timeout.
    pub fn accepts_object_events(&self) -> bool {
        self.deferred.0.len() < N_DEFERRED_MAX
    }

    /// Whether an attempt waits for an extender.
    pub fn has_suspended_attempt(&self) -> bool {
        self.suspended.is_some()
    }

    pub(super) fn must_defer(&self, event: &EngineEvent) -> bool {
        self.has_suspended_attempt()
            && match event {
                EngineEvent::Upsert(_)
                | EngineEvent::Delete(_)
                | EngineEvent::ObjectChanged { .. }
                | EngineEvent::Synced { .. }
                | EngineEvent::Published { .. }
                | EngineEvent::Reconfigured(_) => true,
                EngineEvent::Replied { call, .. } => {
                    self.calls.get(call).is_some_and(|owner| self.is_deferred(owner))
                }
                EngineEvent::ExtenderReplied { .. }
                | EngineEvent::Permit { .. }
                | EngineEvent::Activate(_) => false,
            }
    }

    /// Whether its reply or wait must be deferred.
    pub(super) fn is_deferred(&self, owner: &CallOwner) -> bool {
        self.has_suspended_attempt() && matches!(owner, CallOwner::PostFilter { .. })
    }

    pub(super) fn defer_binding_error(&mut self, uid: &str, failed: AttemptFailure) {
        let Some(binding) = self.binding_mut(uid).filter(|binding| !binding.is_failing) else {
            return;
        };
        binding.is_failing = true;
        let serial = binding.serial;
        self.deferred.0.push_back(Deferred::BindingFailed { uid: uid.into(), serial, failed });
    }

    /// Handles the deferred events, until another attempt is suspended.
    pub(super) fn handle_deferred(&mut self, now: Now, effects: &mut Effects) {
        while !self.has_suspended_attempt()
            && let Some(later) = self.deferred.0.pop_front()
        {
            match later {
                Deferred::Event(event) => {
                    self.handling_since = matches!(
                        event,
                        EngineEvent::Upsert(_)
                            | EngineEvent::Delete(_)
                            | EngineEvent::ObjectChanged { .. }
                    )
                    .then(self.options.stopwatch);
                    self.handle_event(now, event, effects);
                    self.handling_since = None;
                }
                Deferred::BindingFailed { uid, serial, failed } => {
                    let Some(binding) = self.binding_mut(&uid).filter(|it| it.serial == serial)
                    else {
                        continue;
                    };
                    binding.is_failing = false;
                    self.handle_binding_error(now, &uid, failed, effects);
                }
            }
        }
    }
}
