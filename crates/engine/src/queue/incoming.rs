//! How many pods were added to which queue, and why: the source of `scheduler_queue_incoming_pods_total`.

use super::event::EnqueueCause;

/// The queues as that metric names them; gated pods are added to the unschedulable one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IncomingQueue {
    Active,
    Backoff,
    Unschedulable,
}

impl IncomingQueue {
    /// The value of the metric's label `queue`.
    pub fn name(self) -> &'static str {
        match self {
            IncomingQueue::Active => "active",
            IncomingQueue::Backoff => "backoff",
            IncomingQueue::Unschedulable => "unschedulable",
        }
    }
}

/// The number of pods that were added to a queue for one cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncomingPods {
    pub queue: IncomingQueue,
    pub cause: EnqueueCause,
    pub n: u64,
}

/// Counts since the last call of `take`. There are few different entries at a time, so a list is searched.
#[derive(Debug, Default)]
pub(super) struct Incoming(Vec<IncomingPods>);

impl Incoming {
    pub fn count(&mut self, queue: IncomingQueue, cause: &EnqueueCause) {
        let same = |known: &&mut IncomingPods| known.queue == queue && known.cause == *cause;
        match self.0.iter_mut().find(same) {
            Some(known) => known.n += 1,
            None => self.0.push(IncomingPods { queue, cause: cause.clone(), n: 1 }),
        }
    }

    pub fn take(&mut self) -> Vec<IncomingPods> {
        std::mem::take(&mut self.0)
    }
}
