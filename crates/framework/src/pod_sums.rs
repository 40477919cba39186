//! Sums over assigned pods by a key of a plugin's own, such as a namespace, a quota or a group.
//!
//! A plugin declares them when it is built ([`crate::ExtensionPoints::sum_pods`]) and reads them from the world
//! ([`crate::Cx::pod_sum`]), which keeps them up to date: a pod counts from the moment it is assumed until it is deleted or has
//! finished, also while its node is not known. Dry runs and trials change the sums and undo that, so that a Filter that reads a
//! sum is right in preemption without further work.
//!
//! Quotas of namespaces also need the sum over all namespaces that have a quota. [`crate::ExtensionPoints::sum_pods_by_namespace`] keeps
//! it, whenever the objects and the pods come ([`crate::Cx::namespace_total`]).
//!
//! A sum may change with every assumed pod. The incremental form of such a plugin therefore compares sums in
//! [`PluginEvaluator::accepts_pod`](crate::PluginEvaluator::accepts_pod) if the result is the same on all nodes, otherwise in
//! [`PluginEvaluator::filter_class`](crate::PluginEvaluator::filter_class): both are called in every decision.

use std::any::Any;
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_stdx::Map;

use crate::api_calls::ObjectRef;
use crate::pod_info::PodInfo;
use crate::resources::Resources;
use crate::watched_objects::{ObjectSlot, ObjectStore};

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

/// Sums by namespace that a plugin declared, with their total over the namespaces that have an object of a kind.
#[derive(Clone)]
pub struct NamespaceSums(PodSums<Str>);

impl NamespaceSums {
    /// The sums of all namespaces.
    pub fn by_namespace(&self) -> &PodSums<Str> {
        &self.0
    }
}

/// The sums over all namespaces that have an object of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceTotal {
    /// The assigned pods in these namespaces.
    pub pods: PodSum,
    /// The amounts of the objects, of which the first by name counts in each namespace.
    pub object_amounts: Resources,
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
    /// Whether both are the same declaration of the same plugin instance.
    pub fn is_same(&self, other: &PodSumsDef) -> bool {
        Arc::ptr_eq(&self.id, &other.id)
    }

    /// Sums `amounts` of all pods with equal keys; pods without a key do not count. Both must be pure functions of the pod.
    pub(crate) fn new<K: Eq + Hash + Send + Sync + 'static>(
        key: impl Fn(&PodInfo) -> Option<K> + Send + Sync + 'static,
        amounts: impl Fn(&PodInfo) -> Resources + Send + Sync + 'static,
    ) -> (PodSums<K>, PodSumsDef) {
        let id = Arc::new(());
        let slot = PodSums { id: id.clone(), key: PhantomData };
        let contribution = move |pod: &PodInfo| Some((key(pod)?, amounts(pod)));
        let contribution: Contribution<K> = Arc::new(contribution);
        let new = Arc::new(move || Box::new(Sums::new(contribution.clone())) as Box<dyn AnySums>);
        (slot, PodSumsDef { id, new, guard: None })
    }

    /// Sums the requests of all pods by namespace, and over the namespaces that have an object: the pods, and `amounts` of the objects.
    pub(crate) fn by_namespace<T: 'static>(
        objects: &ObjectSlot<T>,
        amounts: impl Fn(&T) -> Resources + Send + Sync + 'static,
    ) -> (NamespaceSums, PodSumsDef) {
        let id = Arc::new(());
        let slot = NamespaceSums(PodSums { id: id.clone(), key: PhantomData });
        let contribution: Contribution<Str> = Arc::new(|pod: &PodInfo| {
            Some((pod.template.namespace.clone(), pod.requests().resources.clone()))
        });
        let (objects, amounts) = (objects.clone(), Arc::new(amounts));
        let new = Arc::new(move || {
            let pods = Sums::new(contribution.clone());
            let (objects, amounts) = (objects.clone(), amounts.clone());
            let (with_object, total) = (Map::default(), NamespaceTotal::default());
            Box::new(SumsByNamespace { pods, objects, amounts, with_object, total })
                as Box<dyn AnySums>
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
    /// The sums by key, of type `Sums<K>`.
    fn sums(&self) -> &dyn Any;
    /// Counts the objects that are already there.
    fn add_objects(&mut self, _: &ObjectStore, _: Option<&CallGuard>) {}
    /// An object of a kind that plugins watch was changed in the store.
    fn on_object_change(&mut self, _: &ObjectRef, _: &ObjectStore, _: Option<&CallGuard>) {}
    /// The total over namespaces.
    fn total(&self) -> Option<&NamespaceTotal> {
        None
    }
}

struct Sums<K> {
    contribution: Contribution<K>,
    by_key: Map<K, PodSum>,
}

impl<K: Eq + Hash> Sums<K> {
    fn new(contribution: Contribution<K>) -> Sums<K> {
        Sums { contribution, by_key: Map::default() }
    }

    /// What a pod adds, and to which sum.
    fn contribution(&self, pod: &PodInfo, guard: Option<&CallGuard>) -> Option<(K, Resources)> {
        guarded(guard, || (self.contribution)(pod)).flatten()
    }

    fn add_or_subtract(&mut self, key: K, amounts: &Resources, sign: i64) {
        let Some(sum) = self.by_key.get_mut(&key) else {
            self.by_key.insert(key, PodSum::of_pod(amounts, sign));
            return;
        };
        sum.add_or_subtract(amounts, sign);
        if sum.pods == 0 {
            self.by_key.remove(&key);
        }
    }
}

/// The result of a plugin's function; `None` if it panics.
fn guarded<R>(guard: Option<&CallGuard>, work: impl Fn() -> R) -> Option<R> {
    let mut result = None;
    let mut call = || result = Some(work());
    match guard {
        Some(guard) => guard(&mut call),
        None => call(),
    }
    result
}

impl<K: Eq + Hash + Send + Sync + 'static> AnySums for Sums<K> {
    fn count(&mut self, pod: &PodInfo, sign: i64, guard: Option<&CallGuard>) {
        if let Some((key, amounts)) = self.contribution(pod, guard) {
            self.add_or_subtract(key, &amounts, sign);
        }
    }

    fn sums(&self) -> &dyn Any {
        self
    }
}

/// Sums by namespace, and over all namespaces that have an object.
struct SumsByNamespace<T> {
    pods: Sums<Str>,
    objects: ObjectSlot<T>,
    amounts: Arc<dyn Fn(&T) -> Resources + Send + Sync>,
    /// The namespaces that have an object, with the amounts of the one that counts.
    with_object: Map<Str, Resources>,
    total: NamespaceTotal,
}

impl<T: 'static> SumsByNamespace<T> {
    fn recount(&mut self, namespace: &Str, objects: &ObjectStore, guard: Option<&CallGuard>) {
        let first = objects.lister(&self.objects).in_namespace(namespace).next();
        let amounts = &self.amounts;
        let new = first.map(|(_, object)| guarded(guard, || amounts(object)).unwrap_or_default());
        let NamespaceTotal { pods, object_amounts } = &mut self.total;
        let mut count_pods = |sign: i64| {
            if let Some(sum) = self.pods.by_key.get(namespace) {
                pods.pods += sign * sum.pods;
                pods.amounts.add_or_subtract(&sum.amounts, sign);
            }
        };
        let old = self.with_object.remove(namespace);
        match (&old, &new) {
            (None, Some(_)) => count_pods(1),
            (Some(_), None) => count_pods(-1),
            _ => {}
        }
        if let Some(amounts) = old {
            object_amounts.add_or_subtract(&amounts, -1);
        }
        if let Some(amounts) = new {
            object_amounts.add_or_subtract(&amounts, 1);
            self.with_object.insert(namespace.clone(), amounts);
        }
    }
}

impl<T: 'static> AnySums for SumsByNamespace<T> {
    fn count(&mut self, pod: &PodInfo, sign: i64, guard: Option<&CallGuard>) {
        let Some((namespace, amounts)) = self.pods.contribution(pod, guard) else { return };
        if self.with_object.contains_key(&namespace) {
            self.total.pods.add_or_subtract(&amounts, sign);
        }
        self.pods.add_or_subtract(namespace, &amounts, sign);
    }

    fn sums(&self) -> &dyn Any {
        &self.pods
    }

    fn add_objects(&mut self, objects: &ObjectStore, guard: Option<&CallGuard>) {
        let mut last = None;
        for (info, _) in objects.lister(&self.objects).iter() {
            // By namespace and name.
            if last.replace(&info.namespace) != Some(&info.namespace) {
                self.recount(&info.namespace, objects, guard);
            }
        }
    }

    fn on_object_change(
        &mut self,
        object: &ObjectRef,
        objects: &ObjectStore,
        guard: Option<&CallGuard>,
    ) {
        if self.objects.kind().matches(object) {
            self.recount(&object.namespace, objects, guard);
        }
    }

    fn total(&self) -> Option<&NamespaceTotal> {
        Some(&self.total)
    }
}

/// All sums of a world.
#[derive(Default)]
pub(crate) struct AllPodSums {
    all: Vec<(PodSumsDef, Box<dyn AnySums>)>,
    /// The sum of no pods.
    zero: PodSum,
    zero_total: NamespaceTotal,
}

impl AllPodSums {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Starts to sum; `assigned` are the pods that are already assigned, `objects` the objects that plugins watch.
    pub fn add<'p>(
        &mut self,
        def: &PodSumsDef,
        assigned: impl Iterator<Item = &'p Arc<PodInfo>>,
        objects: &ObjectStore,
    ) {
        if self.all.iter().any(|(known, _)| known.is_same(def)) {
            return;
        }
        let mut sums = (def.new)();
        for pod in assigned {
            sums.count(pod, 1, def.guard.as_ref());
        }
        sums.add_objects(objects, def.guard.as_ref());
        self.all.push((def.clone(), sums));
    }

    /// Drops sums.
    pub fn remove(&mut self, def: &PodSumsDef) {
        self.all.retain(|(known, _)| !known.is_same(def));
    }

    /// An object of a kind that plugins watch was changed in the store.
    pub fn on_object_change(&mut self, object: &ObjectRef, objects: &ObjectStore) {
        for (def, sums) in &mut self.all {
            sums.on_object_change(object, objects, def.guard.as_ref());
        }
    }

    /// Adds (`sign` 1) or subtracts (`sign` -1) a pod.
    pub fn count(&mut self, pod: &PodInfo, sign: i64) {
        for (def, sums) in &mut self.all {
            sums.count(pod, sign, def.guard.as_ref());
        }
    }

    /// The sum of the pods with this key.
    pub fn get<K: Eq + Hash + 'static>(&self, sums: &PodSums<K>, key: &K) -> &PodSum {
        let known = self.find(&sums.id).and_then(|it| it.sums().downcast_ref::<Sums<K>>());
        known.and_then(|sums| sums.by_key.get(key)).unwrap_or(&self.zero)
    }

    /// The total over the namespaces that have an object.
    pub fn total(&self, sums: &NamespaceSums) -> &NamespaceTotal {
        self.find(&sums.0.id).and_then(AnySums::total).unwrap_or(&self.zero_total)
    }

    fn find(&self, id: &Arc<()>) -> Option<&dyn AnySums> {
        self.all.iter().find(|(def, _)| Arc::ptr_eq(&def.id, id)).map(|(_, sums)| &**sums)
    }
}

#[cfg(test)]
mod tests;
