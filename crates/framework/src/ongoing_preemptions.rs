//! The preemptions whose victims are being evicted.

use loadmaster_stdx::Map;

/// Preemptions whose victims are being evicted, by uid of the preemptor. While it has an entry, the preemptor is gated
/// (upstream's asynchronous preemption, KEP-4832).
///
/// The engine [starts](OngoingPreemptions::start) an entry with the first eviction, sets [the last
/// victim](OngoingPreemptions::set_last_victim), whose deletion makes the preemptor schedulable, and
/// [ends](OngoingPreemptions::end) the entry when the last request has completed or any has failed.
#[derive(Clone, Debug, Default)]
pub struct OngoingPreemptions(pub(crate) Map<Box<str>, Option<Box<str>>>);

impl OngoingPreemptions {
    /// The first eviction for this preemptor starts.
    pub fn start(&mut self, preemptor: &str) {
        self.0.insert(preemptor.into(), None);
    }

    /// All victims but this one are evicted.
    pub fn set_last_victim(&mut self, preemptor: &str, victim: &str) {
        if let Some(last) = self.0.get_mut(preemptor) {
            *last = Some(victim.into());
        }
    }

    /// The last eviction completed, or one failed.
    pub fn end(&mut self, preemptor: &str) {
        self.0.remove(preemptor);
    }
}
