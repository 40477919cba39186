//! What a controller is: a function from what is seen to what is to be written, called whenever something it depends on may have changed.
//!
//! A controller is level-triggered: [`Controller::reconcile`] looks at the cache as it is now and asks for whatever is missing; it does not
//! learn what happened. It owns no clock and does no I/O. It needs no expectations: the [runner](crate::runner) does not reconcile a key
//! again before all answers to the key's last requests have come *and* the cache shows what they did. So a controller that sees two of three
//! pods may always ask for one more.
//!
//! A panic costs it this call: the runner tells of it and asks again about the same key or change, later each time. What a controller
//! remembers must bear that a call ended anywhere.

use std::time::Duration;

use jiff::Timestamp;

use crate::cache::Cache;
use crate::kind::{Key, Kind, Object, Typed};
use crate::request::{Answer, Request};

/// A controller.
pub trait Controller: Send {
    /// Its name, for logs.
    fn name(&self) -> &'static str;

    /// The kinds it reads. Others are not in the cache, unless another controller reads them. It is not called before all of them have been listed.
    fn watches(&self) -> &'static [Kind];

    /// Whether it also reads all kinds that the server [serves](Cache::served), but Events. One that cannot be listed does not keep it waiting.
    fn watches_all(&self) -> bool {
        false
    }

    /// Which keys may have to be reconciled because of a change. A key may be of any kind, even of an object that is gone. The cache
    /// shows the change already.
    fn concerns(&self, change: &Change<'_>, cache: &Cache) -> Vec<Key>;

    /// Keys to reconcile at the start even if there is no object that concerns them.
    fn at_start(&self) -> Vec<Key> {
        Vec::new()
    }

    /// What is to be done about a key now.
    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> Outcome;

    /// Hears what became of a request, before the key is reconciled again. Only needed by who tells about failures: whatever fails
    /// is reconciled again by itself, later each time.
    fn answered(&mut self, key: &Key, request: &Request, answer: &Answer, now: Timestamp) {
        let _ = (key, request, answer, now);
    }
}

/// A change of one object.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// As it was; None for a new object.
    pub old: Option<&'a Object>,
    /// As it is; None for an object that is gone.
    pub new: Option<&'a Object>,
}

impl<'a> Change<'a> {
    /// The object as it is, else as it was.
    pub fn object(&self) -> Option<&'a Object> {
        self.new.or(self.old)
    }

    /// The object as it is, else as it was, if it is of a type.
    pub fn of<K: Typed>(&self) -> Option<&'a K> {
        K::of(self.object()?).map(|object| &**object)
    }

    /// As it was, if it is of a type.
    pub fn old<K: Typed>(&self) -> Option<&'a K> {
        K::of(self.old?).map(|object| &**object)
    }

    /// As it is, if it is of a type.
    #[expect(clippy::new_ret_no_self, reason = "the opposite of old")]
    pub fn new<K: Typed>(&self) -> Option<&'a K> {
        K::of(self.new?).map(|object| &**object)
    }
}

/// What is to be done about a key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Sent at the same time, in no order: what must come after goes into the next outcome.
    pub requests: Vec<Request>,
    /// Reconcile again after so long, even if nothing changes. Each outcome replaces what the last one said.
    pub again: Option<Duration>,
}

impl Outcome {
    /// Nothing.
    pub fn none() -> Outcome {
        Outcome::default()
    }

    /// Nothing now.
    pub fn later(again: Duration) -> Outcome {
        Outcome { requests: Vec::new(), again: Some(again) }
    }

    /// One request.
    pub fn one(request: Request) -> Outcome {
        Outcome::all(vec![request])
    }

    /// Some requests.
    pub fn all(requests: Vec<Request>) -> Outcome {
        Outcome { requests, again: None }
    }
}
