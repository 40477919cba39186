//! Rolling updates of DaemonSets, by `maxUnavailable` or `maxSurge`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod};

use super::nodes::{self, NodeEligibility};
use super::{DaemonSetSync, Plan};
use crate::meta::is_terminating;
use crate::workload::scaled_value;

/// The pods of a node that should stay: at most one new and one old.
enum Pair<'p> {
    /// The new one and the old one.
    Of(Option<&'p Pod>, Option<&'p Pod>),
    /// More than that: to be cleaned up first.
    Crowd,
}

impl<'a> DaemonSetSync<'a> {
    pub(super) fn is_rolling(&self) -> bool {
        let strategy = self.spec.update_strategy.as_ref();
        strategy.and_then(|one| one.type_.as_deref()) != Some("OnDelete")
    }

    /// How many nodes of `wanted` may have a second pod.
    pub(super) fn surge(&self, wanted: i32) -> i32 {
        let strategy = self.spec.update_strategy.as_ref().filter(|_| self.is_rolling());
        let rolling = strategy.and_then(|one| one.rolling_update.as_ref());
        scaled_value(rolling.and_then(|one| one.max_surge.as_ref()), wanted, true)
    }

    fn unavailable(&self, wanted: i32) -> i32 {
        let strategy = self.spec.update_strategy.as_ref();
        let rolling = strategy.and_then(|one| one.rolling_update.as_ref());
        scaled_value(rolling.and_then(|one| one.max_unavailable.as_ref()), wanted, true)
    }

    fn pair<'p>(&self, pods: &[&'p Pod]) -> Pair<'p> {
        let alive = pods.iter().copied().filter(|pod| !is_terminating(&pod.metadata));
        let (new, old): (Vec<_>, Vec<_>) = alive.partition(|pod| self.is_new(pod));
        match (new.as_slice(), old.as_slice()) {
            ([], []) => Pair::Of(None, None),
            ([new], []) => Pair::Of(Some(new), None),
            ([], [old]) => Pair::Of(None, Some(old)),
            ([new], [old]) => Pair::Of(Some(new), Some(old)),
            _ => Pair::Crowd,
        }
    }

    /// One step of a rolling update.
    pub(super) fn rolling_update<'p>(&self, on: &BTreeMap<&'p str, Vec<&'p Pod>>) -> Plan<'p>
    where
        'a: 'p,
    {
        let mut all: BTreeMap<&'p str, &[&'p Pod]> =
            on.iter().map(|(name, pods)| (*name, pods.as_slice())).collect();
        let runs =
            |node: &&&'a Node| nodes::node_eligibility(&self.needs, node) == NodeEligibility::Run;
        let mut wanted = 0;
        for node in self.nodes.iter().filter(runs) {
            wanted += 1;
            all.entry(node.metadata.name.as_deref().unwrap_or_default()).or_default();
        }
        let surge = self.surge(wanted);
        let unavailable = self.unavailable(wanted);
        if surge == 0 {
            // Neither cannot be meant: nothing would ever move.
            let unavailable = if wanted > 0 { unavailable.max(1) } else { unavailable };
            return Plan { make: Vec::new(), delete: self.replace(&all, unavailable) };
        }
        self.surge_over(&all, surge, wanted)
    }

    /// Old pods to be deleted so that at most `limit` nodes are without an available pod.
    fn replace<'p>(&self, all: &BTreeMap<&'p str, &[&'p Pod]>, limit: i32) -> Vec<&'p Pod> {
        let (mut missing, mut at_once, mut later) = (0, Vec::new(), Vec::new());
        for pods in all.values() {
            match self.pair(pods) {
                Pair::Of(Some(new), None) => missing += i32::from(!self.is_available(new)),
                Pair::Of(None, Some(old)) if !self.is_available(old) => {
                    at_once.push(old);
                    missing += 1;
                }
                Pair::Of(None, Some(old)) => later.push(old),
                Pair::Of(None, None) | Pair::Of(Some(_), Some(_)) | Pair::Crowd => missing += 1,
            }
        }
        let left = usize::try_from(limit - missing).unwrap_or(0);
        at_once.extend(later.into_iter().take(left));
        at_once
    }

    /// New pods beside old ones, on at most `surge` nodes at a time; old ones go once theirs is available.
    fn surge_over<'p>(
        &self,
        all: &BTreeMap<&'p str, &[&'p Pod]>,
        surge: i32,
        wanted: i32,
    ) -> Plan<'p> {
        let mut plan = Plan::default();
        let (mut later, mut unwanted) = (Vec::new(), Vec::new());
        let (mut surging, mut available) = (0, 0);
        for (name, pods) in all {
            let Pair::Of(new, old) = self.pair(pods) else {
                surging += 1;
                continue;
            };
            available += i32::from(old.or(new).is_some_and(|pod| self.is_available(pod)));
            match (new, old) {
                (_, None) => {}
                (None, Some(old)) => match (self.runs_on(name), self.is_available(old)) {
                    (false, false) => plan.delete.push(old),
                    (false, true) => unwanted.push(old),
                    (true, false) => plan.make.push(*name),
                    (true, true) => later.push(*name),
                },
                (Some(new), Some(old)) if self.is_available(new) => plan.delete.push(old),
                (Some(_), Some(_)) => surging += 1,
            }
        }
        // A pod on a node that should not run one is deleted when enough others are available.
        let excess = usize::try_from(available - wanted).unwrap_or(0);
        plan.delete.extend(unwanted.into_iter().take(excess));
        let left = usize::try_from(surge - surging).unwrap_or(0);
        plan.make.extend(later.into_iter().take(left));
        plan
    }

    fn runs_on(&self, name: &str) -> bool {
        let node = self.nodes.iter().find(|node| node.metadata.name.as_deref() == Some(name));
        node.is_some_and(|node| nodes::node_eligibility(&self.needs, node) == NodeEligibility::Run)
    }
}
