//! The sums of a counter by topology domain.

use std::collections::BTreeMap;

use super::sums::Sums;
use crate::label_columns::{LabelKeyId, LabelValueId};

/// The sums of one counter for one topology key.
#[derive(Clone, Debug)]
pub struct TopologyDomains {
    key: LabelKeyId,
    sums: Sums,
    /// `None` if the minimum is not tracked. Boxed, because most counters do not track it, and a decision reads some that are in no cache.
    existing: Option<Box<ExistingDomains>>,
    total: i64,
    /// Number of sums that are not 0.
    n_not_zero: usize,
}

/// The domains with an eligible node.
#[derive(Clone, Debug, Default)]
struct ExistingDomains {
    /// Eligible nodes by domain: a domain exists while it has one.
    nodes: Vec<u32>,
    /// Number of them by sum.
    histogram: BTreeMap<i64, u32>,
    n_domains: u32,
}

impl TopologyDomains {
    pub(super) fn new(key: LabelKeyId, wants_min: bool) -> Self {
        let existing = wants_min.then(Box::default);
        TopologyDomains { key, sums: Sums::default(), existing, total: 0, n_not_zero: 0 }
    }

    /// The topology key.
    pub fn key(&self) -> LabelKeyId {
        self.key
    }

    /// The sum of a domain; 0 if nothing was counted or the node does not have the key.
    pub fn domain_sum(&self, domain: LabelValueId) -> i64 {
        self.sums.get(domain.0 as usize)
    }

    /// Whether an eligible node has this value; `None` if the spec does not [track the minimum](TopologyCounterSpec::tracks_min).
    pub fn domain_exists(&self, domain: LabelValueId) -> Option<bool> {
        self.existing.as_ref().map(|existing| existing.contains(domain.0 as usize))
    }

    /// Number of domains: different values of eligible nodes; `None` if the spec does not track the minimum.
    pub fn n_domains(&self) -> Option<u32> {
        self.existing.as_ref().map(|existing| existing.n_domains)
    }

    /// The minimum over existing domains; `None` if there are none, or if the spec does not track it.
    pub fn min_domain_sum(&self) -> Option<i64> {
        self.existing.as_ref()?.histogram.first_key_value().map(|(sum, _)| *sum)
    }

    /// The sum over all domains.
    pub fn total(&self) -> i64 {
        self.total
    }

    /// Whether all sums are 0.
    pub(super) fn is_zero(&self) -> bool {
        self.n_not_zero == 0
    }

    /// Whether it needs to know in which domains nodes are.
    pub(super) fn tracks_nodes(&self) -> bool {
        self.existing.is_some()
    }

    #[inline]
    pub(super) fn add(&mut self, domain: LabelValueId, amount: i64) {
        let at = domain.0 as usize;
        let before = self.sums.add(at, amount);
        let after = before + amount;
        self.total += amount;
        match (before, after) {
            (0, 0) => {}
            (0, _) => self.n_not_zero += 1,
            (_, 0) => self.n_not_zero -= 1,
            _ => {}
        }
        if let Some(existing) = self.existing.as_mut().filter(|it| it.contains(at)) {
            existing.leave_histogram(before);
            existing.enter_histogram(after);
        }
    }

    pub(super) fn add_node(&mut self, domain: LabelValueId) {
        let Some(existing) = &mut self.existing else { return };
        let at = domain.0 as usize;
        if existing.nodes.len() <= at {
            existing.nodes.resize(at + 1, 0);
        }
        existing.nodes[at] += 1;
        if existing.nodes[at] == 1 {
            existing.n_domains += 1;
            existing.enter_histogram(self.sums.get(at));
        }
    }

    pub(super) fn remove_node(&mut self, domain: LabelValueId) {
        let Some(existing) = &mut self.existing else { return };
        let at = domain.0 as usize;
        let Some(nodes) = existing.nodes.get_mut(at) else { return };
        *nodes -= 1;
        if *nodes == 0 {
            existing.n_domains -= 1;
            existing.leave_histogram(self.sums.get(at));
        }
    }
}

impl ExistingDomains {
    fn contains(&self, domain: usize) -> bool {
        self.nodes.get(domain).is_some_and(|nodes| *nodes > 0)
    }

    fn enter_histogram(&mut self, sum: i64) {
        *self.histogram.entry(sum).or_insert(0) += 1;
    }

    fn leave_histogram(&mut self, sum: i64) {
        if let Some(n) = self.histogram.get_mut(&sum) {
            *n -= 1;
            if *n == 0 {
                self.histogram.remove(&sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_their_total_are_exact() {
        let (byte, narrow) = (i64::from(i8::MAX), i64::from(i16::MAX));
        let mut domains = TopologyDomains::new(LabelKeyId(0), false);
        let (near, far) = (LabelValueId(0), LabelValueId(7));
        for (domain, amount, want) in [
            (far, byte, byte),
            (near, -3, -3),
            (far, 1, byte + 1),
            (far, narrow - byte - 1, narrow),
            (far, 1, narrow + 1),
            (far, -2, narrow - 1),
            (near, 3 - (1 << 40), -(1 << 40)),
        ] {
            domains.add(domain, amount);
            assert_eq!(domains.domain_sum(domain), want);
        }
        assert_eq!(domains.domain_sum(LabelValueId(3)), 0);
        assert!(!domains.is_zero());
        assert_eq!(domains.total(), narrow - 1 - (1 << 40));
        domains.add(near, 1 << 40);
        domains.add(far, 1 - narrow);
        assert!(domains.is_zero());
    }

    #[test]
    fn the_minimum_is_that_of_domains_with_nodes() {
        let mut domains = TopologyDomains::new(LabelKeyId(0), true);
        let ids = [0, 1, 2].map(LabelValueId);
        domains.add(ids[0], 1);
        ids.iter().skip(1).for_each(|id| domains.add_node(*id));
        domains.add(ids[1], 4);
        assert_eq!((domains.min_domain_sum(), domains.n_domains()), (Some(0), Some(2)));
        domains.remove_node(ids[2]);
        assert_eq!((domains.min_domain_sum(), domains.n_domains()), (Some(4), Some(1)));
        assert_eq!(ids.map(|id| domains.domain_exists(id)), [false, true, false].map(Some));
    }
}
