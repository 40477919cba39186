//! Executes what the engine asks of the API server: binds first, all else after.
//!
//! Each job is a value with the asker's number on it, and so is what became of it. A bind whose outcome is unknown (the connection
//! was lost, the server gave up in the middle) is resolved by reading the pod, never by guessing: [`Bind`] decides, and owns
//! no clock. `clientConnection.qps` and `burst` are honoured in one bucket for all jobs, and the waits are counted.

mod bind;
mod dispatch;
mod request;

use loadmaster_framework::request::ApiRequest;
use serde_json::Value;

pub use bind::{Answer, Bind, Intent, Step};
pub use dispatch::{Calls, CallsStats, Full, Limits};

/// Something to be done.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Comes back with the outcome.
    pub id: u64,
    /// What is to be done. A Create of `pods/NAME/binding` is a bind.
    pub request: ApiRequest,
}

/// What became of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// The job's number.
    pub id: u64,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a job.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// Done. The object that was answered; null for binds, and where the answer has no body.
    Done(Value),
    /// The server has refused, and nothing has changed.
    Refused {
        /// The HTTP status.
        status: u16,
        /// In one word, such as `Conflict`; may be empty.
        reason: String,
        /// For people.
        message: String,
    },
    /// A bind came too late: the pod is on another node.
    BoundElsewhere {
        /// That node.
        node: String,
    },
    /// The server has not seen it.
    NotSent {
        /// Why.
        message: String,
    },
    /// It may have been done or not, and cannot be found out. Never said of a bind unless reading the pod is refused.
    Unknown {
        /// Why.
        message: String,
    },
}
