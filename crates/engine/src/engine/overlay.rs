//! What waits while an attempt waits for an extender: everything that would change the world that the attempt looks at.
//!
//! | news | meanwhile |
//! | --- | --- |
//! | objects that came, changed or went; what services publish | wait, in order |
//! | answers to PreBind, Bind, conditions, evictions; Permit's verdicts; activations | are heard at once |
//! | a binding cycle that fails | ends later, in its place in the order: its pod leaves the node then |
//! | what a PostFilter plugin of another pod waits for | waits, in order |
//!
//! Nothing is lost by it: no pod can be tried before all of this is done.

use std::collections::VecDeque;

use super::Engine;
use super::binding::Owner;
use super::effect::Effects;
use super::failure::Failed;
use super::news::Event;
use crate::time::Now;

/// When so much waits, [`Engine::hears_objects`] says no.
const OVERLAY_LEN_MAX: usize = 16 << 10;

/// What waits, in order.
#[derive(Default)]
pub(super) struct Overlay(VecDeque<Later>);

enum Later {
    Event(Event),
    BindingFailed { uid: Box<str>, serial: u64, failed: Failed },
}

impl Later {
    fn publishes_to(&self, wanted: &str) -> bool {
        matches!(self, Later::Event(Event::Published { plugin, .. }) if **plugin == *wanted)
    }
}

impl Overlay {
    pub fn push(&mut self, event: Event) {
        if let Event::Published { plugin, .. } = &event {
            // Services are not held back as watches are, and only their last word counts.
            self.0.retain(|later| !later.publishes_to(plugin));
        }
        self.0.push_back(Later::Event(event));
    }
}

impl Engine {
    /// Whether there is room for news of objects. Whoever brings them keeps them while there is not; what is brought all the
    /// same is kept here. There is room again when the attempt under way goes on, at the latest when the extender's time is over.
    pub fn hears_objects(&self) -> bool {
        self.overlay.0.len() < OVERLAY_LEN_MAX
    }

    /// Whether an attempt waits for an extender.
    pub fn is_suspended(&self) -> bool {
        self.suspended.is_some()
    }

    pub(super) fn must_wait(&self, event: &Event) -> bool {
        self.is_suspended()
            && match event {
                Event::Set(_)
                | Event::Gone(_)
                | Event::Changed { .. }
                | Event::Listed { .. }
                | Event::Published { .. } => true,
                Event::Replied { call, .. } => {
                    self.calls.get(call).is_some_and(|owner| self.is_pinned(owner))
                }
                Event::Extended { .. } | Event::Permit { .. } | Event::Activate(_) => false,
            }
    }

    /// Whether this one may not go on now.
    pub(super) fn is_pinned(&self, owner: &Owner) -> bool {
        self.is_suspended() && matches!(owner, Owner::PostFilter { .. })
    }

    pub(super) fn fail_binding_later(&mut self, uid: &str, failed: Failed) {
        let Some(binding) = self.binding_mut(uid).filter(|binding| !binding.is_failing) else {
            return;
        };
        binding.is_failing = true;
        let serial = binding.serial;
        self.overlay.0.push_back(Later::BindingFailed { uid: uid.into(), serial, failed });
    }

    /// Hears what had to wait, until another attempt waits.
    pub(super) fn catch_up(&mut self, now: Now, effects: &mut Effects) {
        while !self.is_suspended()
            && let Some(later) = self.overlay.0.pop_front()
        {
            match later {
                Later::Event(event) => {
                    self.hearing_since =
                        matches!(event, Event::Set(_) | Event::Gone(_) | Event::Changed { .. })
                            .then(self.options.ticks);
                    self.take(now, event, effects);
                    self.hearing_since = None;
                }
                Later::BindingFailed { uid, serial, failed } => {
                    let Some(binding) = self.binding_mut(&uid).filter(|it| it.serial == serial)
                    else {
                        continue;
                    };
                    binding.is_failing = false;
                    self.binding_failed(now, &uid, failed, effects);
                }
            }
        }
    }
}
