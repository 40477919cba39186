//! What would make an unschedulable pod fit: the smallest sets of one or two changes, found by trying them.
//!
//! Every candidate is applied, to a copy of the pod, in a trial of the world, or as a node that is removed again, and then PreFilter and
//! Filter are called as in a scheduling cycle. So the result depends on no rule of a plugin, and holds for plugins of any author.
//!
//! A change has a *size*, from 1 on: by how much a request is lowered, how many pods of a controller are removed; other changes have
//! size 1. One rule is assumed: a pod that fits also fits if its request of one resource is lowered more. Nothing is assumed about
//! removed pods, which may be the ones that the pod has affinity to: every number is tried.
//!
//! If single changes make the pod fit, they are all proposed, each with the smallest size. Else pairs are, each with the smallest size of
//! its first change that is enough with some size of its second, and then the smallest size of the second. The work is bounded:
//! [`Counterfactual::is_cut`] says that not everything was tried.

mod apply;
mod candidates;
mod change;

use serde::{Deserialize, Serialize};

use crate::world_loader::SchedulingInput;
use apply::Trials;
use candidates::{Candidate, Candidates};

pub use change::Change;

/// How many nodes are evaluated for each of: single changes, single changes of other workloads, pairs, pairs with other workloads.
const NODE_EVALUATIONS_MAX: usize = 1_000_000;

/// The changes that would make a pod fit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counterfactual {
    /// Sets of equally many changes, one or two. Empty if no such set was found.
    pub proposals: Vec<Proposal>,
    /// Whether the search ended before everything was tried, so that smaller sets or more of them may exist.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
}

/// Changes that together make the pod fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    pub changes: Vec<Change>,
    /// A node on which the pod fits then.
    pub node: String,
}

/// Searches for the smallest sets of changes after which the pod of `input` fits on some node. The pod must fit on none.
///
/// The world is as before afterwards, but its change log is not: nodes are added and removed.
pub fn search(input: &mut SchedulingInput<'_>) -> Counterfactual {
    let Candidates { own, others, is_cut } = candidates::of(input);
    let mut search = Search { trials: Trials::new(input), result: Counterfactual::default() };
    search.result.is_cut = is_cut;
    search.stage(own.iter().map(|one| [Some(one), None]));
    search.stage(others.iter().map(|one| [Some(one), None]));
    if search.result.proposals.is_empty() {
        search.stage(pairs(&own, &own[..0]));
        search.stage(
            pairs(&own, &others)
                .chain(pairs(&others, &[]))
                .filter(|pair| pair.iter().flatten().any(|one| one.is_of_others())),
        );
    }
    search.result
}

/// Pairs of different candidates: two of the first list, or one of each.
fn pairs<'a>(
    first: &'a [Candidate],
    second: &'a [Candidate],
) -> impl Iterator<Item = [Option<&'a Candidate>; 2]> {
    first.iter().enumerate().flat_map(move |(at, one)| {
        first[at + 1..].iter().chain(second).map(move |other| [Some(one), Some(other)])
    })
}

struct Search<'s, 'p> {
    trials: Trials<'s, 'p>,
    result: Counterfactual,
}

/// There are no evaluations left.
struct Cut;

impl Search<'_, '_> {
    /// Adds a proposal for each of these sets that can make the pod fit.
    fn stage<'c>(&mut self, sets: impl Iterator<Item = [Option<&'c Candidate>; 2]>) {
        self.trials.n_left = NODE_EVALUATIONS_MAX;
        for set in sets {
            let sizes = match set {
                [Some(one), None] => self.smallest(one, None).map(|found| found.map(|it| [it, 0])),
                [Some(one), Some(other)] => self.smallest_pair(one, other),
                [None, _] => Ok(None),
            };
            match sizes {
                Ok(None) => {}
                Ok(Some(sizes)) => {
                    let sized = set.into_iter().flatten().zip(sizes);
                    let changes: Vec<Change> = sized.map(|(one, size)| one.change(size)).collect();
                    if let Ok(Some(node)) = self.trials.feasible_node(&changes, true) {
                        self.result.proposals.push(Proposal { changes, node });
                    }
                }
                Err(Cut) => {
                    self.result.is_cut = true;
                    return;
                }
            }
        }
    }

    fn fits(&mut self, changes: &[Change]) -> Result<bool, Cut> {
        Ok(self.trials.feasible_node(changes, false)?.is_some())
    }

    /// The smallest size with which a change makes the pod fit, together with another one.
    fn smallest(
        &mut self,
        candidate: &Candidate,
        with: Option<&Change>,
    ) -> Result<Option<u64>, Cut> {
        let mut fits = |size: u64| {
            let changes: Vec<Change> =
                [candidate.change(size)].into_iter().chain(with.cloned()).collect();
            self.fits(&changes)
        };
        if !candidate.is_monotone() {
            for size in 1..=candidate.size_max() {
                if fits(size)? {
                    return Ok(Some(size));
                }
            }
            return Ok(None);
        }
        let (mut too_small, mut enough) = (0, candidate.size_max());
        if !fits(enough)? {
            return Ok(None);
        }
        while enough - too_small > 1 {
            let middle = too_small + (enough - too_small) / 2;
            match fits(middle)? {
                true => enough = middle,
                false => too_small = middle,
            }
        }
        Ok(Some(enough))
    }

    /// The smallest size of the first change with which some size of the second is enough, and the smallest such size of the second.
    fn smallest_pair(
        &mut self,
        first: &Candidate,
        second: &Candidate,
    ) -> Result<Option<[u64; 2]>, Cut> {
        if !first.is_monotone() {
            for size in 1..=first.size_max() {
                if let Some(found) = self.smallest(second, Some(&first.change(size)))? {
                    return Ok(Some([size, found]));
                }
            }
            return Ok(None);
        }
        // A monotone second change is tried with its largest size only.
        let least = if second.is_monotone() { second.size_max() } else { 1 };
        let mut best: Option<[u64; 2]> = None;
        for size in least..=second.size_max() {
            if let Some(found) = self.smallest(first, Some(&second.change(size)))?
                && best.is_none_or(|[known, _]| found < known)
            {
                best = Some([found, size]);
            }
        }
        let Some([size, found]) = best else { return Ok(None) };
        if !second.is_monotone() {
            return Ok(Some([size, found]));
        }
        let found = self.smallest(second, Some(&first.change(size)))?;
        Ok(found.map(|found| [size, found]))
    }
}
