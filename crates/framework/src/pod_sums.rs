//! Sums over assigned pods by a key of a plugin's own, such as a namespace, a quota or a group.
//!
//! A plugin declares them when it is built ([`crate::ExtensionPoints::sum_pods`]) and reads them from the world
//! ([`crate::Cx::pod_sum`]), which keeps them up to date: a pod counts from the moment it is assumed until it is deleted or has
//! finished, also while its node is not known. Dry runs and trials change the sums and undo that, so that a Filter that reads a
//! sum is right in preemption without further work.
//!
//! A sum may change with every assumed pod. The incremental form of such a plugin therefore compares sums in
//! [`PluginEvaluator::filter_class`](crate::PluginEvaluator::filter_class), which is called in every decision, with one class for
//! all nodes if the result is the same on all of them.

use std::any::Any;
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;

use loadmaster_stdx::Map;

use crate::pod_info::PodInfo;
use crate::resources::Resources;

/// The assigned pods with one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSum {
    /// Number of pods.
    pub pods: i64,
    /// What they request together, or another amount that the plugin sums.
    pub amounts: Resources,
}

impl PodSum {
    fn of_pod(amounts: &Resources, sign: i64) -> PodSum {
        let mut sum = PodSum::default();
        sum.add_or_subtract(amounts, sign);
        sum
    }

    fn add_or_subtract(&mut self, amounts: &Resources, sign: i64) {
        self.pods += sign;
        self.amounts.add_or_subtract(amounts, sign);
    }
}

/// Sums that a plugin declared, by keys of this type.
pub struct PodSums<K> {
    id: Arc<()>,
    key: PhantomData<fn() -> K>,
}

impl<K> Clone for PodSums<K> {
    fn clone(&self) -> Self {
        PodSums { id: self.id.clone(), key: PhantomData }
    }
}

/// Runs a plugin's function, and does whatever is necessary if it panics.
pub type CallGuard = Arc<dyn Fn(&mut dyn FnMut()) + Send + Sync>;

/// The declaration of [`PodSums`], from which each world makes its own sums.
#[derive(Clone)]
pub struct PodSumsDef {
    id: Arc<()>,
    new: Arc<dyn Fn() -> Box<dyn AnySums> + Send + Sync>,
    guard: Option<CallGuard>,
}

impl fmt::Debug for PodSumsDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodSumsDef").finish_non_exhaustive()
    }
}

impl PodSumsDef {
    /// Sums `amounts` of all pods with equal keys; pods without a key do not count. Both must be pure functions of the pod.
    pub(crate) fn new<K: Eq + Hash + Send + Sync + 'static>(
        key: impl Fn(&PodInfo) -> Option<K> + Send + Sync + 'static,
        amounts: impl Fn(&PodInfo) -> Resources + Send + Sync + 'static,
    ) -> (PodSums<K>, PodSumsDef) {
        let id = Arc::new(());
        let slot = PodSums { id: id.clone(), key: PhantomData };
        let contribution = move |pod: &PodInfo| Some((key(pod)?, amounts(pod)));
        let contribution: Contribution<K> = Arc::new(contribution);
        let new = Arc::new(move || {
            let contribution = contribution.clone();
            Box::new(Sums { contribution, by_key: Map::default() }) as Box<dyn AnySums>
        });
        (slot, PodSumsDef { id, new, guard: None })
    }

    /// The same, with the plugin's functions called by `guard`. A pod for which they panic does not count.
    #[must_use]
    pub fn guarded(self, guard: CallGuard) -> PodSumsDef {
        PodSumsDef { guard: Some(guard), ..self }
    }
}

/// What a pod adds, and to which sum.
type Contribution<K> = Arc<dyn Fn(&PodInfo) -> Option<(K, Resources)> + Send + Sync>;

/// Sums with keys of any type.
trait AnySums: Any + Send + Sync {
    /// Adds (`sign` 1) or subtracts (`sign` -1) a pod.
    fn count(&mut self, pod: &PodInfo, sign: i64, guard: Option<&CallGuard>);
    fn as_any(&self) -> &dyn Any;
}

struct Sums<K> {
    contribution: Contribution<K>,
    by_key: Map<K, PodSum>,
}

impl<K: Eq + Hash + Send + Sync + 'static> AnySums for Sums<K> {
    fn count(&mut self, pod: &PodInfo, sign: i64, guard: Option<&CallGuard>) {
        let mut contribution = None;
        let mut call = || contribution = (self.contribution)(pod);
        match guard {
            Some(guard) => guard(&mut call),
            None => call(),
        }
        let Some((key, amounts)) = contribution else { return };
        let Some(sum) = self.by_key.get_mut(&key) else {
            self.by_key.insert(key, PodSum::of_pod(&amounts, sign));
            return;
        };
        sum.add_or_subtract(&amounts, sign);
        if sum.pods == 0 {
            self.by_key.remove(&key);
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// All sums of a world.
#[derive(Default)]
pub(crate) struct AllPodSums {
    all: Vec<(PodSumsDef, Box<dyn AnySums>)>,
    /// The sum of no pods.
    zero: PodSum,
}

impl AllPodSums {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Starts to sum; `assigned` are the pods that are already assigned.
    pub fn add<'p>(&mut self, def: &PodSumsDef, assigned: impl Iterator<Item = &'p Arc<PodInfo>>) {
        if self.all.iter().any(|(known, _)| Arc::ptr_eq(&known.id, &def.id)) {
            return;
        }
        let mut sums = (def.new)();
        for pod in assigned {
            sums.count(pod, 1, def.guard.as_ref());
        }
        self.all.push((def.clone(), sums));
    }

    /// Adds (`sign` 1) or subtracts (`sign` -1) a pod.
    pub fn count(&mut self, pod: &PodInfo, sign: i64) {
        for (def, sums) in &mut self.all {
            sums.count(pod, sign, def.guard.as_ref());
        }
    }

    /// The sum of the pods with this key.
    pub fn get<K: Eq + Hash + 'static>(&self, sums: &PodSums<K>, key: &K) -> &PodSum {
        let known = self.all.iter().find(|(def, _)| Arc::ptr_eq(&def.id, &sums.id));
        let typed = known.and_then(|(_, sums)| (**sums).as_any().downcast_ref::<Sums<K>>());
        typed.and_then(|sums| sums.by_key.get(key)).unwrap_or(&self.zero)
    }
}

#[cfg(test)]
mod tests;
