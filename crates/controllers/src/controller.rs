//! The trait [`Controller`]: a function from the cache to API requests, called whenever something that it depends on may have changed.
//!
//! A controller is level-triggered: [`Controller::reconcile`] compares the current cache with the desired state and returns the missing
//! requests; it does not see the events. It owns no clock and does no I/O. It needs no expectations: the [runner](crate::runner) does not reconcile a key
//! again before all responses to the key's last requests have arrived *and* the cache shows their effect. So a controller that sees two of three
//! pods may always create one more.
//!
//! If a call panics, the runner logs it and retries the same key or change with exponential backoff. The state of a controller
//! must stay valid when a call ends anywhere.

use std::time::Duration;

use jiff::Timestamp;

use crate::cache::Cache;
use crate::kind::{Key, Kind, Object, Typed};
use crate::request::{ControllerRequest, ControllerResponse};

/// A controller.
pub trait Controller: Send {
    /// Its name, for logs.
    fn name(&self) -> &'static str;

    /// The kinds that it reads. Other kinds are in the cache only if another controller reads them. It is not called before all of them have been listed.
    fn watches(&self) -> &'static [Kind];

    /// Whether it also reads all kinds that the server [serves](Cache::served_kinds), except Events. It does not wait for kinds that cannot be listed.
    fn watches_all_kinds(&self) -> bool {
        false
    }

    /// The keys to enqueue because of a change. A key may be of any kind, also of a deleted object. The cache
    /// already contains the change.
    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, cache: &Cache) -> Vec<Key>;

    /// Keys to reconcile at the start, also if no object exists for them.
    fn initial_keys(&self) -> Vec<Key> {
        Vec::new()
    }

    /// Reconciles a key: returns the requests to send now.
    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult;

    /// Called with the response to each request, before the key is reconciled again. Only needed for reporting failures: failed requests
    /// are retried by the runner with exponential backoff.
    fn on_response(
        &mut self,
        key: &Key,
        request: &ControllerRequest,
        response: &ControllerResponse,
        now: Timestamp,
    ) {
        let _ = (key, request, response, now);
    }
}

/// A change of one object.
#[derive(Clone, Copy, Debug)]
pub struct ObjectChange<'a> {
    /// The old object; None for an added one.
    pub old: Option<&'a Object>,
    /// The new object; None for a deleted one.
    pub new: Option<&'a Object>,
}

impl<'a> ObjectChange<'a> {
    /// The new object, else the old one.
    pub fn new_or_old(&self) -> Option<&'a Object> {
        self.new.or(self.old)
    }

    /// The new object, else the old one, if it is of this type.
    pub fn new_or_old_typed<K: Typed>(&self) -> Option<&'a K> {
        K::of(self.new_or_old()?).map(|object| &**object)
    }

    /// The old object, if it is of this type.
    pub fn old<K: Typed>(&self) -> Option<&'a K> {
        K::of(self.old?).map(|object| &**object)
    }

    /// The new object, if it is of this type.
    #[expect(clippy::new_ret_no_self, reason = "the opposite of old")]
    pub fn new<K: Typed>(&self) -> Option<&'a K> {
        K::of(self.new?).map(|object| &**object)
    }
}

/// The result of reconciling a key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReconcileResult {
    /// Sent concurrently, in no particular order: a request that must come later belongs in the next result.
    pub requests: Vec<ControllerRequest>,
    /// Reconcile again after this time, even if nothing changes. Each result replaces the previous one.
    pub requeue_after: Option<Duration>,
}

impl ReconcileResult {
    /// Nothing.
    pub fn none() -> ReconcileResult {
        ReconcileResult::default()
    }

    /// No requests; reconcile again after this time.
    pub fn requeue_after(again: Duration) -> ReconcileResult {
        ReconcileResult { requests: Vec::new(), requeue_after: Some(again) }
    }

    /// One request.
    pub fn with_request(request: ControllerRequest) -> ReconcileResult {
        ReconcileResult::with_requests(vec![request])
    }

    /// Some requests.
    pub fn with_requests(requests: Vec<ControllerRequest>) -> ReconcileResult {
        ReconcileResult { requests, requeue_after: None }
    }
}
