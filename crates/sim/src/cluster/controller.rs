//! Controllers: Deployments, ReplicaSets, StatefulSets and Jobs keep their number of pods.
//!
//! Names, labels and owner references are as upstream's controllers form them. Pods of a StatefulSet come all at once.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use loadmaster_api::workload::PodTemplateSpec;
use loadmaster_api::{
    Deployment, Job, LabelSelector, ObjectMeta, OwnerReference, Pod, ReplicaSet, StatefulSet, Str,
};
use loadmaster_framework::PodInfo;
use loadmaster_stdx::{Map, Rng};

use super::{Cluster, Error, Millis, PodId, State, names};

/// How long a pod of a Job runs when nobody says it: drawn a pod.
const RUN_MS: (Millis, Millis) = (5_000, 30_000);

/// A label of a Job or of its pods that says how many seconds a pod runs.
pub const RUN_SECONDS: &str = "loadmaster.io/run-seconds";

/// Kinds that are pods or make them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Pod,
    Deployment,
    ReplicaSet,
    StatefulSet,
    Job,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// An object that wants pods.
#[derive(Clone, Debug)]
pub struct Workload {
    pub kind: Kind,
    pub metadata: ObjectMeta,
    /// Pods at a time: `replicas`, or a Job's `parallelism`.
    pub replicas: u32,
    /// How many pods of a Job must succeed.
    pub completions: Option<u32>,
    pub selector: Option<LabelSelector>,
    pub template: PodTemplateSpec,
    /// How long a pod of a Job runs; drawn when absent.
    pub run_ms: Option<Millis>,
}

fn count(given: Option<i32>) -> u32 {
    u32::try_from(given.unwrap_or(1)).unwrap_or(0)
}

macro_rules! from_replicas {
    ($($kind:ident),*) => {$(
        impl From<$kind> for Workload {
            fn from(object: $kind) -> Workload {
                let spec = object.spec;
                Workload {
                    kind: Kind::$kind,
                    metadata: object.metadata,
                    replicas: count(spec.replicas),
                    completions: None,
                    selector: spec.selector,
                    template: spec.template,
                    run_ms: None,
                }
            }
        }
    )*};
}
from_replicas!(Deployment, ReplicaSet, StatefulSet);

impl From<Job> for Workload {
    fn from(job: Job) -> Workload {
        let spec = job.spec;
        let replicas = count(spec.parallelism);
        let labels = [&spec.template.metadata.labels, &job.metadata.labels];
        let seconds = labels.into_iter().find_map(|labels| labels.get(RUN_SECONDS));
        let run_ms = seconds
            .and_then(|seconds| seconds.parse::<Millis>().ok())
            .map(|seconds| seconds.saturating_mul(1_000));
        Workload {
            kind: Kind::Job,
            metadata: job.metadata,
            replicas,
            // Without completions a Job is done when each of its first pods is.
            completions: Some(spec.completions.map_or(replicas, |given| count(Some(given)))),
            selector: None,
            template: spec.template,
            run_ms,
        }
    }
}

/// An owner's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnerId(pub usize);

/// A controller's object with its pods.
pub(super) struct Owner {
    kind: Kind,
    name: Str,
    replicas: u32,
    completions: u32,
    succeeded: u32,
    run_ms: Option<Millis>,
    /// A pod of it before it gets its name.
    template: Pod,
    /// The same, parsed, where all pods are equal.
    parsed: PodInfo,
    hash: u32,
    n_made: u64,
    pods: BTreeSet<PodId>,
    /// Of a StatefulSet: which pod has which number.
    ordinals: Map<PodId, u32>,
}

impl Owner {
    /// How long a pod runs; `None` for pods that stay.
    pub fn run_ms(&self, chance: impl FnOnce() -> Rng) -> Option<Millis> {
        if self.kind != Kind::Job {
            return None;
        }
        Some(self.run_ms.unwrap_or_else(|| RUN_MS.0 + chance().below(RUN_MS.1 - RUN_MS.0)))
    }

    fn n_wanted(&self) -> usize {
        let wanted = match self.kind {
            Kind::Job => self.replicas.min(self.completions.saturating_sub(self.succeeded)),
            _ => self.replicas,
        };
        wanted as usize
    }

    fn free_ordinal(&self) -> u32 {
        #[expect(clippy::disallowed_methods, reason = "collected into an ordered set")]
        let taken: BTreeSet<u32> = self.ordinals.values().copied().collect();
        (0..).find(|ordinal| !taken.contains(ordinal)).unwrap_or(u32::MAX)
    }
}

impl Cluster {
    /// Takes in a workload and makes its pods.
    pub fn create_workload(&mut self, workload: Workload) -> Result<(), Error> {
        match self.add_workload(workload)? {
            Some(owner) => self.reconcile(owner),
            None => Ok(()),
        }
    }

    /// Takes in a workload whose pods may be there already. `None` for a Deployment that has its ReplicaSet.
    pub(super) fn add_workload(&mut self, workload: Workload) -> Result<Option<OwnerId>, Error> {
        let Workload { kind, metadata, .. } = &workload;
        let key = (*kind, metadata.namespace.clone(), Str::new(&metadata.name));
        if self.owner_by_name.contains_key(&key) {
            return Ok(None);
        }
        let replicas =
            if *kind == Kind::Deployment { self.replica_set_of(workload) } else { workload };
        let parent =
            replicas.metadata.owner_references.iter().find(|owner| owner.kind == "Deployment");
        let parent = parent.map(|owner| (Kind::Deployment, key.1.clone(), owner.name.clone()));
        let own = (replicas.kind, key.1.clone(), Str::new(&replicas.metadata.name));
        let has_pods = replicas.replicas > 0;
        let owner = self.add_owner(replicas)?;
        self.owner_by_name.insert(own, owner);
        if let Some(parent) = parent
            && (has_pods || !self.owner_by_name.contains_key(&parent))
        {
            self.owner_by_name.insert(parent, owner);
        }
        Ok(Some(owner))
    }

    /// Sets how many pods a workload should have.
    pub fn scale(&mut self, kind: Kind, namespace: &Str, name: &Str, replicas: u32) {
        let key = (kind, namespace.clone(), name.clone());
        if let Some(owner) = self.owner_by_name.get(&key).copied() {
            self.owners[owner.0].replicas = replicas;
            self.reconcile_later(owner);
        }
    }

    /// The controller of a pod that came from outside.
    pub(super) fn owner_of(&self, pod: &Pod) -> Option<OwnerId> {
        let owner =
            pod.metadata.owner_references.iter().find(|owner| owner.controller == Some(true))?;
        let kind = match owner.kind.as_str() {
            "ReplicaSet" => Kind::ReplicaSet,
            "StatefulSet" => Kind::StatefulSet,
            "Job" => Kind::Job,
            _ => return None,
        };
        self.owner_by_name.get(&(kind, pod.metadata.namespace.clone(), owner.name.clone())).copied()
    }

    /// A pod that came from outside belongs to this controller.
    pub(super) fn adopt(&mut self, owner: OwnerId, id: PodId, name: &str) {
        let owner = &mut self.owners[owner.0];
        owner.pods.insert(id);
        let ordinal = name.rsplit_once('-').and_then(|(_, ordinal)| ordinal.parse().ok());
        if let Some(ordinal) = ordinal.filter(|_| owner.kind == Kind::StatefulSet) {
            owner.ordinals.insert(id, ordinal);
        }
    }

    /// An owner's pod is gone.
    pub(super) fn lost(&mut self, owner: OwnerId, id: PodId, succeeded: bool) {
        let gone = &mut self.owners[owner.0];
        gone.pods.remove(&id);
        gone.ordinals.remove(&id);
        gone.succeeded += u32::from(succeeded);
        if gone.kind == Kind::Job && gone.n_wanted() == 0 && gone.pods.is_empty() {
            let key = (Kind::Job, gone.template.metadata.namespace.clone(), gone.name.clone());
            self.owner_by_name.remove(&key);
            self.free_owners.push(owner);
            return;
        }
        self.reconcile_later(owner);
    }

    fn reconcile_later(&mut self, owner: OwnerId) {
        if let Err(error) = self.reconcile(owner) {
            self.note(error);
        }
    }

    /// Makes or deletes pods until their number is right.
    pub(super) fn reconcile(&mut self, id: OwnerId) -> Result<(), Error> {
        while self.owners[id.0].pods.len() < self.owners[id.0].n_wanted() {
            self.make_pod(id)?;
        }
        let n_surplus = self.owners[id.0].pods.len() - self.owners[id.0].n_wanted();
        for victim in self.surplus(id, n_surplus) {
            self.owners[id.0].pods.remove(&victim);
            self.owners[id.0].ordinals.remove(&victim);
            if let Some(record) = self.pods.get_mut(&victim) {
                record.owner = None;
            }
            self.delete_pod(victim);
        }
        Ok(())
    }

    /// Pods to delete first: those without a node, then those not running yet, then the youngest.
    fn surplus(&self, id: OwnerId, n: usize) -> Vec<PodId> {
        if n == 0 {
            return Vec::new();
        }
        let rank = |id: &PodId| match self.pods.get(id).map(|record| record.state) {
            Some(State::Running) => 2,
            Some(State::Starting) => 1,
            _ => 0,
        };
        let mut pods: Vec<PodId> = self.owners[id.0].pods.iter().rev().copied().collect();
        pods.sort_by_key(rank);
        pods.truncate(n);
        pods
    }

    fn make_pod(&mut self, id: OwnerId) -> Result<(), Error> {
        let owner = &mut self.owners[id.0];
        let nth = owner.n_made;
        owner.n_made += 1;
        let (info, ordinal) = if owner.kind == Kind::StatefulSet {
            let ordinal = owner.free_ordinal();
            let name = format!("{}-{ordinal}", owner.name);
            let mut pod = owner.template.clone();
            let labels = std::mem::take(&mut pod.metadata.labels);
            pod.metadata.labels = labels
                .with("statefulset.kubernetes.io/pod-name", Str::new(&name))
                .with("apps.kubernetes.io/pod-index", Str::from(ordinal.to_string()));
            pod.metadata.name = name.into();
            (self.parse(Kind::StatefulSet, &pod)?, Some(ordinal))
        } else {
            let name = format!("{}-{}", owner.name, names::suffix(owner.hash, nth));
            let uid = format!("{}/{name}", owner.parsed.template.namespace);
            (PodInfo { name: name.into(), uid: uid.into(), ..owner.parsed.clone() }, None)
        };
        let pod = self.enter(info, Some(id))?;
        let owner = &mut self.owners[id.0];
        owner.pods.insert(pod);
        owner.ordinals.extend(ordinal.map(|ordinal| (pod, ordinal)));
        Ok(())
    }

    fn add_owner(&mut self, workload: Workload) -> Result<OwnerId, Error> {
        let Workload { kind, mut metadata, replicas, completions, selector, template, run_ms } =
            workload;
        let id = self.free_owners.pop().unwrap_or(OwnerId(self.owners.len()));
        self.n_owners_made += 1;
        if metadata.uid.is_empty() {
            metadata.uid = names::uid(self.n_owners_made).into();
        }
        let name = Str::new(&metadata.name);
        let mut pod = Pod {
            metadata: template.metadata.clone(),
            spec: template.spec.clone(),
            ..Pod::default()
        };
        pod.metadata.namespace = metadata.namespace.clone();
        pod.metadata.labels = labels_of(kind, &metadata, &template);
        pod.metadata.owner_references = vec![OwnerReference {
            api_version: Str::new(if kind == Kind::Job { "batch/v1" } else { "apps/v1" }),
            kind: Str::from(kind.to_string()),
            name: name.clone(),
            uid: Str::new(&metadata.uid),
            controller: Some(true),
        }];
        let full_name = format!("{}/{name}", metadata.namespace);
        let admitted = self.admission.admit(&mut pod);
        admitted.map_err(|source| Error::Admission { kind, name: full_name.clone(), source })?;
        let parsed = self.parse(kind, &pod).map_err(|error| error.named(&full_name))?;
        self.show_owner(kind, &metadata, replicas, selector, template);
        let owner = Owner {
            kind,
            hash: names::hash(&full_name),
            name,
            replicas,
            completions: completions.unwrap_or(0),
            succeeded: 0,
            run_ms,
            template: pod,
            parsed,
            n_made: 0,
            pods: BTreeSet::new(),
            ordinals: Map::default(),
        };
        match self.owners.get_mut(id.0) {
            Some(free) => *free = owner,
            None => self.owners.push(owner),
        }
        Ok(id)
    }

    fn parse(&mut self, kind: Kind, pod: &Pod) -> Result<PodInfo, Error> {
        let name = pod.full_name();
        self.world.parse(pod).map_err(|source| Error::Template { kind, name, source })
    }

    /// Lets plugins see the object: default spread constraints look for it.
    fn show_owner(
        &mut self,
        kind: Kind,
        metadata: &ObjectMeta,
        replicas: u32,
        selector: Option<LabelSelector>,
        template: PodTemplateSpec,
    ) {
        let replicas = Some(i32::try_from(replicas).unwrap_or(i32::MAX));
        let spec = loadmaster_api::workload::ReplicasSpec { replicas, selector, template };
        let (namespace, metadata) = (metadata.namespace.clone(), metadata.clone());
        match kind {
            Kind::ReplicaSet => self.world.change_cluster(|cluster| {
                let known = cluster.replica_sets.entry(namespace).or_default();
                known.push(Arc::new(ReplicaSet { metadata, spec }));
            }),
            Kind::StatefulSet => self.world.change_cluster(|cluster| {
                let known = cluster.stateful_sets.entry(namespace).or_default();
                known.push(Arc::new(StatefulSet { metadata, spec }));
            }),
            _ => {}
        }
    }

    /// The ReplicaSet that a Deployment makes.
    fn replica_set_of(&mut self, deployment: Workload) -> Workload {
        let Workload { metadata, replicas, mut selector, mut template, .. } = deployment;
        // Upstream hashes a dump of the template; the letters differ from its, the shape does not.
        let hash = Str::from(names::encode(names::hash(&format!("{template:?}"))));
        template.metadata.labels =
            std::mem::take(&mut template.metadata.labels).with(POD_TEMPLATE_HASH, hash.clone());
        if let Some(selector) = &mut selector {
            let pairs = std::mem::take(&mut selector.match_labels);
            selector.match_labels = pairs.with(POD_TEMPLATE_HASH, hash.clone());
        }
        let owner = OwnerReference {
            api_version: Str::new("apps/v1"),
            kind: Str::new("Deployment"),
            name: Str::new(&metadata.name),
            uid: Str::new(&metadata.uid),
            controller: Some(true),
        };
        Workload {
            kind: Kind::ReplicaSet,
            metadata: ObjectMeta {
                name: format!("{}-{hash}", metadata.name).into(),
                uid: Box::default(),
                labels: template.metadata.labels.clone(),
                owner_references: vec![owner],
                ..metadata
            },
            replicas,
            completions: None,
            selector,
            template,
            run_ms: None,
        }
    }
}

const POD_TEMPLATE_HASH: &str = "pod-template-hash";

/// The labels of a controller's pods, but for those that differ from pod to pod.
fn labels_of(
    kind: Kind,
    metadata: &ObjectMeta,
    template: &PodTemplateSpec,
) -> loadmaster_api::Labels {
    let labels = template.metadata.labels.clone();
    let (name, uid) = (Str::new(&metadata.name), Str::new(&metadata.uid));
    match kind {
        Kind::Job => labels
            .with("batch.kubernetes.io/controller-uid", uid.clone())
            .with("batch.kubernetes.io/job-name", name.clone())
            .with("controller-uid", uid)
            .with("job-name", name),
        Kind::StatefulSet => {
            let hash = names::encode(names::hash(&format!("{template:?}")));
            labels.with("controller-revision-hash", Str::from(format!("{name}-{hash}")))
        }
        _ => labels,
    }
}
