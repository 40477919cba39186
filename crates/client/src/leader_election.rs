//! Leader election: one of several replicas holds a Lease and renews it.
//!
//! [`Election`] decides what to do and when; it does no I/O and owns no clock. [`start_leader_election`] starts the task that
//! executes
//! its decisions.
//!
//! The algorithm is client-go's: a candidate acquires a lease when it has observed the same record for longer than the record's
//! duration
//! by its own clock (the times in the record are not compared with it); every write carries the resourceVersion that it replaces;
//! a leader renews every retry period and stops leading when it has failed to renew until the renew deadline. Three differences:
//!
//! - A leader also stops shortly before another replica could acquire its lease, counted from when its last successful renewal was
//!   *sent*. client-go counts from when the response arrived, so that slow responses can lead to two leaders.
//! - A leader that reads another holder in the record stops at once.
//! - A candidate reads a lease held by another replica every second, so that it notices sooner that it was released or has expired.

mod election;
mod elector;
mod record;

#[cfg(test)]
mod tests;

pub use election::{ClockReading, Election, ElectionAction, LeaderElectionTiming, LeaseReply};
pub use elector::{LeaderElectionOptions, LeaderElector, LeadershipStatus, start_leader_election};
pub use record::LeaderElectionRecord;
pub(crate) use record::format_micro_time;

/// A change of the leader (client-go's `LeaderCallbacks`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaderElectionEvent {
    /// This replica has become the leader.
    StartedLeading,
    /// This replica is no longer the leader. Everything that only the leader may do must stop at once.
    StoppedLeading,
    /// Another leader was observed, or this replica has become the leader; its identity.
    NewLeader(String),
}
