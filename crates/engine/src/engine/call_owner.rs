//! Who waits for a reply, an object or a deadline.

/// Who made a call, or waits for an object or a deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallOwner {
    PreBind {
        uid: Box<str>,
        serial: u64,
        member: usize,
    },
    Bind {
        uid: Box<str>,
        serial: u64,
        member: usize,
    },
    PostFilter {
        uid: Box<str>,
        serial: u64,
    },
    /// The suspended attempt.
    ExtenderCycle,
    /// The extender that binds.
    ExtenderBind {
        uid: Box<str>,
        serial: u64,
    },
    Status {
        uid: Box<str>,
    },
    Evict {
        preemptor: Box<str>,
        victim: Box<str>,
        step: EvictionStep,
    },
}

/// The step of the eviction of one victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictionStep {
    Condition,
    Deletion,
}
