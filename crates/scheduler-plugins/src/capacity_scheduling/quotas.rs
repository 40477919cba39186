//! All ElasticQuotas, and what the pods of their namespaces use.

use loadmaster_api::Str;
use loadmaster_framework::{
    NamespaceSums, NamespaceTotal, ObjectSlot, PodInfo, PodSum, Resources, World,
};

use super::quota::{ElasticQuota, amounts_text, excess};

#[derive(Clone)]
pub(super) struct ElasticQuotas {
    pub objects: ObjectSlot<ElasticQuota>,
    /// The requests of assigned pods by namespace, and of all namespaces with a quota, with the sum of their minimums.
    pub sums: NamespaceSums,
}

/// What a pod and the nominated pods that count beside it request.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The pod's namespace.
    pub namespace: Str,
    /// With nominated pods of its namespace that are at least as important.
    pub in_namespace: Resources,
    /// Also with nominated pods of namespaces that use no more than their minimum.
    pub in_all: Resources,
}

impl Wanted {
    /// Without nominated pods.
    pub fn only(namespace: &Str, requests: &Resources) -> Wanted {
        let namespace = namespace.clone();
        Wanted { namespace, in_namespace: requests.clone(), in_all: requests.clone() }
    }
}

/// A limit that a pod would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exceeded {
    /// The maximum of the pod's quota.
    Max,
    /// The sum of all minimums.
    TotalMin,
}

impl ElasticQuotas {
    /// The name of a namespace's quota, and the quota: the first one by name.
    pub fn of_namespace<'w>(
        &self,
        world: &'w World,
        namespace: &Str,
    ) -> Option<(&'w str, &'w ElasticQuota)> {
        let quotas = world.watched_objects().lister(&self.objects);
        let (info, quota) = quotas.in_namespace(namespace).next()?;
        Some((info.name.as_str(), quota))
    }

    /// The names of a namespace's other quotas, which have no effect.
    pub fn others_of_namespace<'w>(
        &self,
        world: &'w World,
        namespace: &Str,
    ) -> impl Iterator<Item = &'w str> + use<'w> {
        let quotas = world.watched_objects().lister(&self.objects);
        quotas.in_namespace(namespace).skip(1).map(|(info, _)| info.name.as_str())
    }

    /// What the assigned pods of a namespace request.
    pub fn used<'w>(&self, world: &'w World, namespace: &Str) -> &'w Resources {
        let PodSum { amounts, .. } = world.pod_sum(self.sums.by_namespace(), namespace);
        amounts
    }

    /// The namespaces with a quota, in order, with their quotas.
    fn all<'w>(
        &self,
        world: &'w World,
    ) -> impl Iterator<Item = (&'w Str, &'w ElasticQuota)> + use<'w> {
        let mut last: Option<&Str> = None;
        let quotas = world.watched_objects().lister(&self.objects);
        // By namespace and name.
        quotas.iter().filter_map(move |(info, quota)| {
            let is_first = last.replace(&info.namespace) != Some(&info.namespace);
            is_first.then_some((&info.namespace, quota))
        })
    }

    /// What the pod wants, together with nominated pods other than itself.
    pub fn wanted(&self, world: &World, incoming: &PodInfo) -> Wanted {
        let own_namespace = &incoming.template.namespace;
        let mut wanted = Wanted::only(own_namespace, &incoming.requests().resources);
        if self.of_namespace(world, own_namespace).is_none() {
            return wanted;
        }
        let nodes = world.nominated_nodes().filter(|node| world.nodes().row(node).is_some());
        for pod in nodes.flat_map(|node| world.nominated_pods_for_node(node)) {
            let namespace = &pod.template.namespace;
            if pod.uid == incoming.uid || self.of_namespace(world, namespace).is_none() {
                continue;
            }
            let requests = &pod.requests().resources;
            if namespace != own_namespace {
                if !self.uses_more_than_min(world, namespace) {
                    wanted.in_all.add_or_subtract(requests, 1);
                }
            } else if pod.template.priority() >= incoming.template.priority() {
                wanted.in_namespace.add_or_subtract(requests, 1);
                wanted.in_all.add_or_subtract(requests, 1);
            }
        }
        wanted
    }

    /// Whether a namespace with a quota uses more than its minimum: it borrows.
    pub fn uses_more_than_min(&self, world: &World, namespace: &Str) -> bool {
        let Some((_, quota)) = self.of_namespace(world, namespace) else { return false };
        let used = self.used(world, namespace);
        quota.min.is_exceeded(used, &Resources::default())
    }

    /// The pods in namespaces with a quota that are being evicted: they still count, but their quota will be free soon.
    fn leaving<'w>(&self, world: &'w World) -> impl Iterator<Item = &'w PodInfo> {
        let victims = world.ongoing_preemptions().victims();
        let pods = victims.filter_map(|uid| world.assigned_pod(uid)).map(|pod| &**pod);
        pods.filter(|pod| self.of_namespace(world, &pod.template.namespace).is_some())
    }

    /// Whether a namespace with a quota will use more than its minimum when the pods that are being evicted are gone.
    pub fn lends_more(&self, world: &World, namespace: &Str) -> bool {
        let Some((_, quota)) = self.of_namespace(world, namespace) else { return false };
        let mut used = self.used(world, namespace).clone();
        for pod in self.leaving(world).filter(|pod| pod.template.namespace == *namespace) {
            used.add_or_subtract(&pod.requests().resources, -1);
        }
        quota.min.is_exceeded(&used, &Resources::default())
    }

    /// The limit that the pod would exceed when the pods that are being evicted are gone.
    pub fn exceeded_after_evictions(&self, world: &World, wanted: &Wanted) -> Option<Exceeded> {
        let mut then = wanted.clone();
        for pod in self.leaving(world) {
            let requests = &pod.requests().resources;
            then.in_all.add_or_subtract(requests, -1);
            if pod.template.namespace == wanted.namespace {
                then.in_namespace.add_or_subtract(requests, -1);
            }
        }
        // Only resources that the pod requests count against the maximum.
        then.in_namespace.scalars.retain(|(name, _)| wanted.in_namespace.scalar(name).is_some());
        self.exceeded(world, &wanted.namespace, &then)
    }

    /// Whether a namespace with a quota would use more than its minimum with this request.
    pub fn exceeds_min(&self, world: &World, namespace: &Str, request: &Resources) -> bool {
        let Some((_, quota)) = self.of_namespace(world, namespace) else { return false };
        quota.min.is_exceeded(request, self.used(world, namespace))
    }

    /// The limit that the pod would exceed; none in a namespace without a quota.
    pub fn exceeded(&self, world: &World, namespace: &Str, wanted: &Wanted) -> Option<Exceeded> {
        let (_, quota) = self.of_namespace(world, namespace)?;
        if quota.max.is_exceeded(&wanted.in_namespace, self.used(world, namespace)) {
            return Some(Exceeded::Max);
        }
        let exceeds = |total: &Resources, mins: &Resources| {
            excess(mins, 0, total, &Resources::default()).next().is_some()
        };
        self.with_totals(world, wanted, exceeds).then_some(Exceeded::TotalMin)
    }

    /// How much is missing below the limit that the pod would exceed.
    pub fn shortage(&self, world: &World, namespace: &Str, wanted: &Wanted) -> Option<String> {
        let (_, quota) = self.of_namespace(world, namespace)?;
        match self.exceeded(world, namespace, wanted)? {
            Exceeded::Max => {
                let used = self.used(world, namespace);
                let missing = amounts_text(quota.max.excess(&wanted.in_namespace, used));
                Some(format!("{missing} above max"))
            }
            Exceeded::TotalMin => {
                let missing = self.with_totals(world, wanted, |total, mins| {
                    amounts_text(excess(mins, 0, total, &Resources::default()))
                });
                Some(format!("{missing} above the sum of all min"))
            }
        }
    }

    /// What all namespaces with a quota would use together with the pod, and the sum of their minimums. Nothing of a resource is
    /// guaranteed that no minimum lists.
    fn with_totals<R>(
        &self,
        world: &World,
        wanted: &Wanted,
        work: impl FnOnce(&Resources, &Resources) -> R,
    ) -> R {
        let NamespaceTotal { pods, object_amounts: mins } = world.namespace_total(&self.sums);
        let mut total = wanted.in_all.clone();
        total.add_or_subtract(&pods.amounts, 1);
        work(&total, mins)
    }

    /// The namespaces that use more than their minimum, with what they have borrowed: `red (cpu 2000m)`.
    pub fn borrowers(&self, world: &World) -> Vec<String> {
        let nothing = Resources::default();
        let borrower = |(namespace, quota): (&Str, &ElasticQuota)| {
            let used = self.used(world, namespace);
            let mut borrowed = quota.min.excess(used, &nothing).peekable();
            borrowed.peek()?;
            Some(format!("{namespace} ({})", amounts_text(borrowed)))
        };
        self.all(world).filter_map(borrower).collect()
    }
}
