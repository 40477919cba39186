//! What the test plugins did, in the order in which they did it. The reference model is updated from this record, and checks it.
//!
//! The engine of a run is called on one thread, so that a record per thread is a record per run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use loadmaster_api::Str;

/// One thing that a test plugin did or saw.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PluginCall {
    /// PreFilter ran, and the plugin saw these objects and this published value.
    Saw { pools: BTreeMap<Str, Vec<Str>>, closed: Option<Vec<Str>> },
    /// Reserve ran: the pod is assumed.
    Reserved { uid: Box<str>, node: Str },
    /// Unreserve ran: the pod is no longer assumed.
    Unreserved { uid: Box<str> },
    /// PostBind ran: the pod is bound.
    Bound { uid: Box<str> },
    /// Permit made the pod wait.
    Held { uid: Box<str>, timeout: Duration },
    /// The Permit plugin allowed a waiting pod while it ran for another pod.
    Allowed { uid: Box<str> },
    /// PreBind waits for this attachment.
    Waits { uid: Box<str>, attachment: Str, timeout: Duration },
    /// PreBind was called again after it had waited.
    Resumed { uid: Box<str> },
}

thread_local! {
    static CALLS: RefCell<Vec<PluginCall>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn record(call: PluginCall) {
    CALLS.with_borrow_mut(|calls| calls.push(call));
}

/// Takes what was recorded since the last call.
pub(super) fn take_recorded() -> Vec<PluginCall> {
    CALLS.take()
}
