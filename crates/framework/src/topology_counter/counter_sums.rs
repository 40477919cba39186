//! What a plugin keeps of a counter to read its sums for one of its topology keys.

use super::{TopologyCounterId, TopologyCounters, TopologyDomains};
use crate::label_columns::LabelValueId;

/// The sums of a counter for one topology key.
#[derive(Clone, Copy, Debug)]
pub struct CounterSums {
    /// The counter, which must be in use.
    pub counter: TopologyCounterId,
    /// Position of the key in the counter ([`super::TopologyCounter::domains`]).
    pub nth: usize,
}

impl CounterSums {
    /// The sums by domain; `None` if the counter has fewer keys.
    #[inline]
    pub fn domains(self, counters: &TopologyCounters) -> Option<&TopologyDomains> {
        counters.get(self.counter).domains().get(self.nth)
    }

    /// The sum of a domain; 0 if nothing was counted or the node does not have the key.
    #[inline]
    pub fn domain_sum(self, counters: &TopologyCounters, domain: LabelValueId) -> i64 {
        self.domains(counters).map_or(0, |domains| domains.domain_sum(domain))
    }
}
