//! The search for the cheapest victims that make one node feasible.
//!
//! Removing one more pod always makes a set of victims more expensive ([`CandidateCost`]). It usually makes the node no less feasible, too;
//! pods for which this is not certain (the preemptor's affinity is to them, or a constraint counts them in another domain) are the
//! pods that *may be needed*. So the search is over
//!
//! 1. all sets of pods that may be needed, fewer and less important ones first;
//! 2. for each, all sets of the other pods, as branch and bound: with all pods removed about which nothing is decided yet, the preemptor
//!    fits. Pods without which it does not fit are victims in any case. Of the others each one in turn, in the order in which
//!    DefaultPreemption reprieves pods, first stays, if the preemptor still fits, and then is a victim.
//!
//! Sets that are at least as expensive as the best one so far are not tried. Of pods that have the same effect, and no
//! PodDisruptionBudget, the least important ones are the victims.

use std::sync::Arc;

use loadmaster_framework::preemption::{
    CandidateCost, DisruptionBudgets, NO_VICTIMS, NodeDryRun, Victims, compare_pod_importance,
};
use loadmaster_framework::template::TemplateId;
use loadmaster_framework::{Failure, NodeRow, PodInfo, Rejection};
use loadmaster_stdx::SortCompactly as _;

/// A pod that may be evicted.
pub(super) struct PotentialVictim {
    pub pod: Arc<PodInfo>,
    /// The node may be infeasible without it.
    pub may_be_needed: bool,
    /// What it has in common with pods whose eviction has the same effect, if anything is known.
    pub same_effect: Option<SameEffect>,
}

/// Evictions of pods for which this is equal have the same effect on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SameEffect {
    pub template: TemplateId,
    /// The pods' node, if it matters.
    pub row: Option<NodeRow>,
    /// For each term and constraint by which they are related, whether their node is in the same domain; `None` if it is in none.
    pub shares_domain: Box<[Option<bool>]>,
}

/// A search on one node.
pub(super) struct VictimSearch<'s, 'a> {
    run: &'s mut NodeDryRun<'a>,
    /// Those that select a potential victim.
    budgets: DisruptionBudgets,
    /// Pods that may be needed, the most important first.
    needed: Vec<PotentialVictim>,
    /// The others, in the order in which they are reprieved.
    others: Vec<PotentialVictim>,
    n_steps_left: usize,
    best: Option<(CandidateCost, Victims)>,
    /// Why the preemptor does not fit without all the other pods.
    rejection: Option<Rejection>,
}

impl<'s, 'a> VictimSearch<'s, 'a> {
    /// A search among these pods that ends after so many steps.
    pub fn new(
        run: &'s mut NodeDryRun<'a>,
        mut potential: Vec<PotentialVictim>,
        budgets: &DisruptionBudgets,
        n_steps: usize,
    ) -> Self {
        potential.sort_compactly_by(|a, b| compare_pod_importance(&a.pod, &b.pod));
        let pods: Vec<Arc<PodInfo>> = potential.iter().map(|it| it.pod.clone()).collect();
        let budgets = budgets.of_pods(&pods);
        // Which pods of a budget are evicted decides whether the eviction of others violates it.
        for victim in potential.iter_mut().filter(|victim| budgets.select(&victim.pod)) {
            victim.same_effect = None;
        }
        let violates = budgets.violations(&pods);
        let mut potential: Vec<(bool, PotentialVictim)> =
            violates.into_iter().zip(potential).collect();
        potential.sort_compactly_by_key(|(violates, _)| !violates);
        let (mut needed, others): (Vec<_>, Vec<_>) =
            potential.into_iter().map(|(_, victim)| victim).partition(|it| it.may_be_needed);
        needed.sort_compactly_by(|a, b| compare_pod_importance(&a.pod, &b.pod));
        VictimSearch {
            run,
            budgets,
            needed,
            others,
            n_steps_left: n_steps,
            best: None,
            rejection: None,
        }
    }

    /// The victims, or why there are none; and the number of steps that were not used.
    pub fn run(mut self) -> (Result<Victims, Rejection>, usize) {
        let found = self.victims();
        (found, self.n_steps_left)
    }

    fn victims(&mut self) -> Result<Victims, Rejection> {
        if self.needed.is_empty() && self.others.is_empty() {
            return Err(Rejection::unresolvable(NO_VICTIMS));
        }
        let (needed, others) = (std::mem::take(&mut self.needed), std::mem::take(&mut self.others));
        self.try_needed(&needed, &others, &mut Vec::new())?;
        match self.best.take() {
            Some((_, victims)) if !victims.pods.is_empty() => Ok(victims),
            Some(_) => {
                let name = self.run.node().map_or("", |node| node.name());
                let text = format!("expected at least one victim pod for node {name:?}");
                Err(Failure::new(text).into())
            }
            None => {
                Err(self.rejection.take().unwrap_or_else(|| Rejection::unresolvable(NO_VICTIMS)))
            }
        }
    }

    /// Tries all sets of the pods that may be needed, of which the more important ones are decided.
    fn try_needed<'p>(
        &mut self,
        undecided: &'p [PotentialVictim],
        others: &'p [PotentialVictim],
        victims: &mut Vec<&'p PotentialVictim>,
    ) -> Result<(), Failure> {
        if self.n_steps_left == 0 || self.cost_if_better(victims).is_none() {
            return Ok(());
        }
        let Some((first, rest)) = undecided.split_first() else {
            return self.try_others(others, victims);
        };
        self.try_needed(rest, others, victims)?;
        victims.push(first);
        self.try_needed(rest, others, victims)?;
        victims.pop();
        Ok(())
    }

    /// Tries all sets of the other pods together with these victims.
    fn try_others<'p>(
        &mut self,
        others: &'p [PotentialVictim],
        needed: &[&'p PotentialVictim],
    ) -> Result<(), Failure> {
        self.run.undo();
        for victim in needed.iter().copied().chain(others) {
            self.remove(victim)?;
        }
        if let Err(rejection) = self.fits() {
            self.rejection.get_or_insert(rejection);
            return Ok(());
        }
        let mut victims = needed.to_vec();
        let mut undecided = Vec::new();
        for other in others {
            match self.fits_with(other)? {
                true => undecided.push(other),
                false => victims.push(other),
            }
            self.remove(other)?;
        }
        self.decide(&undecided, &mut victims)
    }

    /// Decides about the first of the undecided pods, which are all removed, as the victims are; the preemptor fits.
    fn decide<'p>(
        &mut self,
        undecided: &[&'p PotentialVictim],
        victims: &mut Vec<&'p PotentialVictim>,
    ) -> Result<(), Failure> {
        let Some(cost) = self.cost_if_better(victims) else { return Ok(()) };
        let Some((first, rest)) = undecided.split_first() else {
            self.best = Some((cost, self.sorted(victims)));
            return Ok(());
        };
        if self.n_steps_left == 0 {
            let all: Vec<&PotentialVictim> = victims.iter().chain(undecided).copied().collect();
            if let Some(cost) = self.cost_if_better(&all) {
                self.best = Some((cost, self.sorted(&all)));
            }
            return Ok(());
        }
        let is_like_a_victim = first.same_effect.is_some()
            && victims.iter().any(|victim| victim.same_effect == first.same_effect);
        if !is_like_a_victim {
            if self.fits_with(first)? {
                self.decide(rest, victims)?;
            }
            self.remove(first)?;
        }
        victims.push(first);
        self.decide(rest, victims)?;
        victims.pop();
        Ok(())
    }

    /// The cost of these victims, if it is less than that of the best ones so far.
    fn cost_if_better(&self, victims: &[&PotentialVictim]) -> Option<CandidateCost> {
        let cost = CandidateCost::new(&self.sorted(victims));
        self.best.as_ref().is_none_or(|(least, _)| cost < *least).then_some(cost)
    }

    fn sorted(&self, victims: &[&PotentialVictim]) -> Victims {
        let mut pods: Vec<Arc<PodInfo>> = victims.iter().map(|victim| victim.pod.clone()).collect();
        pods.sort_compactly_by(|a, b| compare_pod_importance(a, b));
        let violates = self.budgets.violations(&pods);
        Victims { n_pdb_violations: violates.into_iter().filter(|it| *it).count(), pods }
    }

    fn remove(&mut self, victim: &PotentialVictim) -> Result<(), Failure> {
        self.count_step();
        self.run.remove_pod(&victim.pod)
    }

    /// Adds a removed pod again; whether the preemptor fits with it.
    fn fits_with(&mut self, victim: &PotentialVictim) -> Result<bool, Failure> {
        self.count_step();
        self.run.add_pod(&victim.pod)?;
        Ok(self.fits().is_ok())
    }

    fn fits(&mut self) -> Result<(), Rejection> {
        self.count_step();
        self.run.preemptor_fits()
    }

    fn count_step(&mut self) {
        self.n_steps_left = self.n_steps_left.saturating_sub(1);
    }
}
