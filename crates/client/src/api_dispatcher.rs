//! Executes the engine's API calls asynchronously, binds before all others (as upstream's `APIDispatcher`), and few patches of pods' statuses while
//! pods are being bound. The bind of a pod waits for patches of its status.
//!
//! Each call carries an id, and so does its outcome. A bind whose outcome is unknown (the connection was lost, or the server timed
//! out) is resolved by reading the pod: [`BindOperation`] decides, and owns no clock. `clientConnection.qps` and `burst` limit all
//! calls together, in one token bucket; the time that calls wait for it is counted.

mod bind;
mod call_queue;
mod dispatcher;
mod http_request;

use loadmaster_framework::api_calls::ApiRequest;
use serde_json::Value;

pub use bind::{BindOperation, BindReply, BindStep, BindTarget};
pub use call_queue::{ApiDispatcherLimits, ApiDispatcherStats, QueueFull};
pub use dispatcher::ApiDispatcher;

/// A request to the API server, with an id.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiCall {
    /// Returned with the outcome.
    pub id: u64,
    /// The request. A Create of `pods/NAME/binding` is a bind.
    pub request: ApiRequest,
}

/// A call that has finished, with its outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct FinishedCall {
    /// The id of the call.
    pub id: u64,
    /// Its outcome.
    pub outcome: ApiCallOutcome,
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ApiCallOutcome {
    /// The call succeeded: the object in the response; null for binds and for responses without a body.
    Done(Value),
    /// The server refused the request, and nothing has changed.
    Refused {
        /// The HTTP status.
        status: u16,
        /// The reason of the Status, such as `Conflict`; may be empty.
        reason: String,
        /// The message of the Status.
        message: String,
    },
    /// The pod of a bind is already bound to another node.
    BoundElsewhere {
        /// The other node.
        node: String,
    },
    /// The request was not sent to the server.
    NotSent {
        /// The error.
        message: String,
    },
    /// It is unknown whether the server executed the request. For a bind this happens only when reading the pod is refused.
    Unknown {
        /// The error.
        message: String,
    },
}
