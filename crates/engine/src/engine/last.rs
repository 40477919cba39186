//! Why a pod's last attempt failed, as long as the pod has no node: what was known then, not what would be found now.
//!
//! A record is small whatever the cluster's size: nodes that were turned down for one reason are a number and a few names, and pods of
//! one template that failed in the same world share them, as they share the diagnosis.

use std::borrow::Cow;
use std::sync::Arc;

use loadmaster_api::{Str, Timestamp};
use loadmaster_framework::{PodInfo, Row, World};

use super::effect::Outcome;
use super::failure::Failed;
use super::nominations::Nomination;
use super::progress::{LastAttempt, TurnedDown};
use crate::diagnosis::narrowed_reason;
use crate::evaluate::{Evaluation, Rejected, Verdict};
use crate::explain::{self, NARROWED, Status};

/// Reasons that are kept of an attempt; nodes with further ones are only counted.
const N_REASONS_MAX: usize = 16;
/// Names that are kept of the nodes with one reason, and of an attempt's victims.
const N_NAMES_MAX: usize = 3;
/// Bytes that are kept of a message.
const MESSAGE_LEN_MAX: usize = 4096;

/// Nodes by the reason why they were turned down, most nodes first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reasons {
    by_reason: Vec<TurnedDown>,
    /// Nodes with reasons that are not kept.
    n_others: usize,
}

/// What an attempt knew when it failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Evidence {
    /// `None` when no node was asked about, or only one.
    reasons: Option<Arc<Reasons>>,
    /// Pods that are evicted for this one: the first few names, and how many there are.
    victims: Vec<String>,
    n_victims: usize,
}

/// A failed attempt.
pub(crate) struct Last {
    at: Timestamp,
    attempt: u32,
    outcome: Outcome,
    message: Box<str>,
    nominated_node: Str,
    evidence: Evidence,
}

impl Reasons {
    /// Of an evaluation without a feasible node.
    pub fn of(world: &World, evaluation: &Evaluation) -> Reasons {
        if let Some(rejected) = &evaluation.pre_filter {
            let mut everywhere = Group::new(Some(rejected));
            world.nodes().rows().for_each(|row| everywhere.add(row));
            return Reasons { by_reason: vec![everywhere.shown(world, evaluation)], n_others: 0 };
        }
        let mut groups: Vec<Group<'_>> = Vec::new();
        let mut n_others = 0;
        for node in &evaluation.nodes {
            let rejected = match &node.verdict {
                Verdict::Feasible => continue,
                Verdict::Narrowed => None,
                Verdict::Rejected(rejected) => Some(rejected),
            };
            match groups.iter().position(|group| group.rejected == rejected) {
                Some(at) => groups[at].add(node.row),
                None if groups.len() == N_REASONS_MAX => n_others += 1,
                None => {
                    let mut group = Group::new(rejected);
                    group.add(node.row);
                    groups.push(group);
                }
            }
        }
        groups.sort_by_key(|group| std::cmp::Reverse(group.n_nodes));
        let by_reason = groups.iter().map(|group| group.shown(world, evaluation)).collect();
        Reasons { by_reason, n_others }
    }
}

/// Nodes with one reason; without one, PreFilter left them out.
struct Group<'a> {
    rejected: Option<&'a Rejected>,
    n_nodes: usize,
    examples: Vec<Row>,
}

impl<'a> Group<'a> {
    fn new(rejected: Option<&'a Rejected>) -> Group<'a> {
        Group { rejected, n_nodes: 0, examples: Vec::new() }
    }

    fn add(&mut self, row: Row) {
        self.n_nodes += 1;
        if self.examples.len() < N_NAMES_MAX {
            self.examples.push(row);
        }
    }

    fn shown(&self, world: &World, evaluation: &Evaluation) -> TurnedDown {
        let why = self.rejected.map_or_else(
            || Status {
                code: Cow::Borrowed(NARROWED),
                plugin: None,
                reasons: vec![narrowed_reason(evaluation)],
            },
            explain::status,
        );
        let names = self.examples.iter().filter_map(|row| world.node(*row));
        TurnedDown {
            why,
            n_nodes: self.n_nodes,
            examples: names.map(|node| node.name().to_owned()).collect(),
        }
    }
}

impl Evidence {
    pub fn of(reasons: &Arc<Reasons>) -> Evidence {
        Evidence { reasons: Some(reasons.clone()), ..Evidence::default() }
    }

    /// Room is being made by evicting these.
    pub fn set_victims(&mut self, victims: &[Arc<PodInfo>]) {
        self.n_victims = victims.len();
        self.victims = victims.iter().take(N_NAMES_MAX).map(|victim| victim.full_name()).collect();
    }
}

impl Last {
    /// What was said of it.
    pub(super) fn message(&self) -> &str {
        &self.message
    }

    pub(super) fn new(
        at: Timestamp,
        attempt: u32,
        failed: &Failed,
        nomination: &Nomination,
    ) -> Last {
        let end = failed.message.floor_char_boundary(MESSAGE_LEN_MAX);
        Last {
            at,
            attempt,
            outcome: failed.outcome,
            message: failed.message[..end].into(),
            nominated_node: nomination.for_status().unwrap_or_default(),
            evidence: failed.evidence.clone(),
        }
    }

    #[cfg(test)]
    pub(super) fn reasons(&self) -> Option<Arc<Reasons>> {
        self.evidence.reasons.clone()
    }

    pub(super) fn shown(&self) -> LastAttempt {
        let Evidence { reasons, victims, n_victims } = &self.evidence;
        let reasons = reasons.as_deref().cloned().unwrap_or_default();
        LastAttempt {
            time: self.at.to_string(),
            attempt: self.attempt,
            result: self.outcome.name().into(),
            message: self.message.to_string(),
            turned_down: reasons.by_reason,
            n_other_nodes: reasons.n_others,
            nominated_node: self.nominated_node.to_string(),
            victims: victims.clone(),
            n_victims: *n_victims,
        }
    }
}
