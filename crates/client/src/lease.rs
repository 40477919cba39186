//! Which of several replicas may bind: a Lease object, held and renewed.
//!
//! [`Election`] decides what to do and when; it does no I/O and owns no clock. [`hold`] does it.
//!
//! The algorithm is client-go's: a candidate takes a lease over when it has seen the same record for longer than the record's duration
//! by its own clock (the times in the record are for people); every write names the version it replaces; a leader renews
//! every retry period and gives up when it has not managed to for the renew deadline. Three things differ:
//!
//! - A leader also stops shortly before its lease could be taken over, counted from when its last successful renewal was *sent*. client-go
//!   counts from when the answer came, so that slow answers can make two leaders.
//! - A leader that reads another holder in the record stops at once.
//! - A candidate looks every second at a lease that somebody holds, so that it notices sooner that it was given back or ran out.

mod driver;
mod election;
mod record;

#[cfg(test)]
mod tests;

pub use driver::{Held, LeaseOptions, Standing, hold};
pub use election::{Ask, Election, Now, Timing, Told};
pub use record::Record;
pub(crate) use record::micro_time;

/// What has changed about who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseNews {
    /// We lead.
    Leading,
    /// We do not lead any more. Whatever only a leader may do must stop at once.
    Lost,
    /// Somebody else leads, or we do; the identity.
    NewLeader(String),
}
