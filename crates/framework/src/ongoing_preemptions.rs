//! The preemptions whose victims are being evicted.

use std::collections::BTreeSet;

use loadmaster_stdx::Map;

/// Preemptions whose victims are being evicted, by uid of the preemptor. While it has an entry, the preemptor is gated
/// (upstream's asynchronous preemption, KEP-4832).
///
/// The engine [starts](OngoingPreemptions::start) an entry with the first eviction, sets [the last
/// victim](OngoingPreemptions::set_last_victim), whose deletion makes the preemptor schedulable, and
/// [ends](OngoingPreemptions::end) the entry when the last request has completed or any has failed.
#[derive(Clone, Debug, Default)]
pub struct OngoingPreemptions {
    /// By preemptor: the last victim, when it is being evicted.
    pub(crate) last_victims: Map<Box<str>, Option<Box<str>>>,
    victims: BTreeSet<Box<str>>,
}

impl OngoingPreemptions {
    /// The first eviction for this preemptor starts.
    pub fn start(&mut self, preemptor: &str) {
        self.last_victims.insert(preemptor.into(), None);
    }

    /// All victims but this one are evicted.
    pub fn set_last_victim(&mut self, preemptor: &str, victim: &str) {
        if let Some(last) = self.last_victims.get_mut(preemptor) {
            *last = Some(victim.into());
        }
    }

    /// The last eviction completed, or one failed.
    pub fn end(&mut self, preemptor: &str) {
        self.last_victims.remove(preemptor);
    }

    /// A pod was chosen as a victim.
    pub fn add_victim(&mut self, uid: &str) {
        self.victims.insert(uid.into());
    }

    /// A victim is gone, or will not be evicted.
    pub fn remove_victim(&mut self, uid: &str) {
        self.victims.remove(uid);
    }

    /// Uids of the pods that were chosen as victims and are not deleted yet: their resources will be free soon, for their preemptors.
    pub fn victims(&self) -> impl Iterator<Item = &str> {
        self.victims.iter().map(|uid| &**uid)
    }

    /// Whether a pod was chosen as a victim.
    pub fn is_victim(&self, uid: &str) -> bool {
        self.victims.contains(uid)
    }
}
