//! What `explain` shows: the group of a pod, and what it waits for.

use loadmaster_framework::{Cx, Detail, Explain, PodInfo};

use super::groups::{Counts, Group};
use super::{Coscheduling, MissingMembers, group_of, missing_members, n_min};
use crate::pod_group::PodGroup;

impl Explain for Coscheduling {
    fn pod_details(&self, cx: Cx<'_>, pod: &PodInfo) -> Vec<Detail> {
        let Some(key) = group_of(pod) else { return Vec::new() };
        let Some(pod_group) = self.pod_group(cx.world, &key) else {
            let waits_for = Detail::new("waitsFor", "the PodGroup");
            return vec![Detail::new("podGroup", format!("{key} (not found)")), waits_for];
        };
        let group = self.group(cx.states, &key);
        let counts = group.map(Group::counts).unwrap_or_default();
        let mut details = vec![
            Detail::new("podGroup", key.to_string()),
            Detail::new("minMember", i64::from(pod_group.spec.min_member)),
            Detail::new("pods", counts.total() as i64),
            Detail::new("podsWithNode", counts.placed as i64),
        ];
        let backoff = group.and_then(|group| group.backoff_until);
        let backoff = backoff.filter(|until| *until > cx.world.now().mono);
        let waits_for = match backoff {
            Some(until) => {
                let left = until.since(cx.world.now().mono).as_secs_f64().ceil();
                Some(format!("the backoff after a failed attempt, {left} s more"))
            }
            None => missing_pods(pod_group, counts),
        };
        details.extend(waits_for.map(|text| Detail::new("waitsFor", text)));
        details
    }
}

/// Which pods a group lacks before its pods are bound.
fn missing_pods(pod_group: &PodGroup, counts: Counts) -> Option<String> {
    let n_min = n_min(pod_group);
    let pods = |n: usize| if n == 1 { "1 more pod".to_owned() } else { format!("{n} more pods") };
    match missing_members(pod_group, counts) {
        Some(MissingMembers::NotCreated) => {
            Some(format!("{} to be created", pods(n_min - counts.total())))
        }
        Some(MissingMembers::Gated) => {
            let n_schedulable = counts.total() - counts.gated;
            Some(format!("{} without scheduling gates", pods(n_min - n_schedulable)))
        }
        None if counts.placed < n_min => {
            Some(format!("{} to get a node", pods(n_min - counts.placed)))
        }
        None => None,
    }
}
