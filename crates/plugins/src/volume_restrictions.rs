//! VolumeRestrictions: pods whose disks must not be mounted twice do not share a node, and a claim with the access mode
//! ReadWriteOncePod has one user in the whole cluster.
//!
//! | | |
//! | --- | --- |
//! | extension points | PreFilter, Filter, Sign |
//! | woken by | pod in the same namespace with such a disk or claim deleted, node added, claim of the pod added |
//! | upstream | `plugins/volumerestrictions`, 1.36 |
//! | deviations | also works in a profile that disables its PreFilter; upstream returns an error there |
//! | cost | O(disks of the pod · disks on the node) per node, no allocation |

use std::sync::Arc;

use loadmaster_api::disk_source::DiskSource;
use loadmaster_api::{PersistentVolumeClaim, SharedPodSpec, Str};
use loadmaster_framework::cluster_event::QueueingHintArgs;
use loadmaster_framework::extension_points::{SignFragment, UnsignablePod};
use loadmaster_framework::incremental::{ResultDependencies, RowDependency};
use loadmaster_framework::{
    ActionType, ClusterEvent, Code, Cx, CycleState, CycleStateSlot, Detail, EvaluatorCx,
    EventObject, EventResource, Explain, ExtensionPoints, Failure, Filter, Incremental, NodeInfo,
    NodeRow, ObjectSlot, PluginDef, PluginError, PluginEvaluator, PodInfo, PodTemplate, PreFilter,
    PreFilterResult, PrepareCx, PrepareResult, QueueingHint, Rejection, SerialCx, Sign, World,
};
use serde_json::Value;

use crate::DeclaredReasons;
use crate::explain_text::facts_detail;
use crate::volumes::{self, NotFound, StorageKind, named_claims, names_claim};

pub const NAME: &str = "VolumeRestrictions";

const REASON_DISK: &str = "node(s) had no available disk";
const REASON_CLAIM: &str = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod";

/// The reasons with which this plugin rejects pods and nodes.
pub(crate) const REASONS: DeclaredReasons = &[
    (Code::Unschedulable, REASON_DISK),
    (Code::Unschedulable, REASON_CLAIM),
    (Code::UnschedulableAndUnresolvable, "persistentvolumeclaim \""),
];

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

const READ_WRITE_ONCE_POD: &str = "ReadWriteOncePod";

struct VolumeRestrictions {
    claims: ObjectSlot<PersistentVolumeClaim>,
    state: CycleStateSlot<ExclusiveClaims>,
}

/// The pod's claims with the access mode ReadWriteOncePod.
#[derive(Clone, Default)]
struct ExclusiveClaims {
    names: Vec<Str>,
    /// How many of them are in use. As upstream's, the number follows the pods that a dry run adds and removes by the names of their
    /// claims alone.
    n_conflicts: i64,
}

fn build(points: &mut ExtensionPoints, _args: &Value) -> Result<(), PluginError> {
    let claims = StorageKind::PersistentVolumeClaim.watch_in_keys(points);
    let plugin = Arc::new(VolumeRestrictions { claims, state: points.cycle_state_slot() });
    points.pre_filter = Some(plugin.clone());
    points.filter = Some(plugin.clone());
    points.sign = Some(plugin.clone());
    points.explain = Some(plugin.clone());
    points.incremental = Some(plugin);
    points.register_event(
        ClusterEvent::new(EventResource::Pod, ActionType::DELETE),
        Some(Arc::new(after_pod_deleted)),
    );
    points.register_event(ClusterEvent::new(EventResource::Node, ActionType::ADD), None);
    points.register_event(
        ClusterEvent::new(EventResource::PersistentVolumeClaim, ActionType::ADD),
        Some(Arc::new(after_claim_added)),
    );
    Ok(())
}

impl VolumeRestrictions {
    /// The pod's exclusive claims, and how many of them are in use.
    ///
    /// # Errors
    ///
    /// The name of the first claim that does not exist.
    fn exclusive_claims(&self, world: &World, pod: &PodInfo) -> Result<ExclusiveClaims, Str> {
        let lister = world.watched_objects().lister(&self.claims);
        let mut exclusive = ExclusiveClaims::default();
        for name in named_claims(&pod.template) {
            let claim = lister.get(&pod.template.namespace, name).ok_or_else(|| name.clone())?;
            let is_exclusive =
                claim.spec.access_modes.iter().any(|mode| *mode == READ_WRITE_ONCE_POD);
            if is_exclusive && !exclusive.names.contains(name) {
                exclusive.n_conflicts += i64::from(is_used(world, &pod.template.namespace, name));
                exclusive.names.push(name.clone());
            }
        }
        Ok(exclusive)
    }
}

/// Whether an assigned pod names the claim. Its own ephemeral volumes do not count, as upstream.
fn is_used(world: &World, namespace: &str, claim: &str) -> bool {
    world.claim_users(namespace, claim).iter().any(|user| !user.is_ephemeral)
}

/// The disks of the pod that may conflict with those of other pods.
fn disks(pod: &PodTemplate) -> impl Iterator<Item = &DiskSource> + Clone {
    pod.spec.volumes.iter().filter_map(|volume| volume.disk.as_deref()).filter(|disk| {
        matches!(
            disk,
            DiskSource::GcePersistentDisk(_)
                | DiskSource::AwsElasticBlockStore(_)
                | DiskSource::Iscsi(_)
                | DiskSource::Rbd(_)
        )
    })
}

/// Whether two pods on one node cannot use these disks.
fn is_conflict(one: &DiskSource, other: &DiskSource) -> bool {
    match (one, other) {
        (DiskSource::GcePersistentDisk(one), DiskSource::GcePersistentDisk(other)) => {
            one.pd_name == other.pd_name && !(one.read_only && other.read_only)
        }
        (DiskSource::AwsElasticBlockStore(one), DiskSource::AwsElasticBlockStore(other)) => {
            one.volume_id == other.volume_id
        }
        (DiskSource::Iscsi(one), DiskSource::Iscsi(other)) => {
            one.iqn == other.iqn && !(one.read_only && other.read_only)
        }
        (DiskSource::Rbd(one), DiskSource::Rbd(other)) => {
            one.pool == other.pool
                && one.image == other.image
                && !(one.read_only && other.read_only)
                && one.monitors.iter().any(|monitor| other.monitors.contains(monitor))
        }
        _ => false,
    }
}

/// Whether one of these disks conflicts with one of the pod.
fn conflicts_with<'d>(pod: &PodInfo, wanted: impl Iterator<Item = &'d DiskSource> + Clone) -> bool {
    disks(&pod.template).any(|used| wanted.clone().any(|wanted| is_conflict(wanted, used)))
}

impl PreFilter for VolumeRestrictions {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        let exclusive = self.exclusive_claims(cx.world, pod).map_err(|name| not_found(&name))?;
        if disks(&pod.template).next().is_none() && exclusive.n_conflicts == 0 {
            return Ok(PreFilterResult::Skip);
        }
        cx.cycle.set(self.state, exclusive);
        Ok(PreFilterResult::All)
    }

    fn add_pod(
        &self,
        cycle: &mut CycleState,
        _world: &World,
        _pod: &PodInfo,
        other: &Arc<PodInfo>,
        _node: NodeInfo<'_>,
    ) -> Result<(), Failure> {
        self.count_pod(cycle, other, 1);
        Ok(())
    }

    fn remove_pod(
        &self,
        cycle: &mut CycleState,
        _world: &World,
        _pod: &PodInfo,
        other: &Arc<PodInfo>,
        _node: NodeInfo<'_>,
    ) -> Result<(), Failure> {
        self.count_pod(cycle, other, -1);
        Ok(())
    }
}

impl VolumeRestrictions {
    /// Counts the conflicts with a pod that a dry run adds or removes.
    fn count_pod(&self, cycle: &mut CycleState, other: &PodInfo, sign: i64) {
        let Some(exclusive) = cycle.get_mut(self.state) else { return };
        let names = &exclusive.names;
        let shared = named_claims(&other.template).filter(|name| names.contains(name)).count();
        exclusive.n_conflicts += sign * shared as i64;
    }
}

fn not_found(claim: &str) -> Rejection {
    let error = NotFound { resource: "persistentvolumeclaim", name: claim };
    Rejection::unresolvable(error.to_string())
}

impl Filter for VolumeRestrictions {
    fn filter(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let mut pods = node.pods();
        if pods.any(|other| conflicts_with(other, disks(&pod.template))) {
            return Err(Rejection::unschedulable(REASON_DISK));
        }
        let n_conflicts = match cx.cycle.get(self.state) {
            Some(exclusive) => exclusive.n_conflicts,
            None => {
                let exclusive = self.exclusive_claims(cx.world, pod);
                exclusive.map_err(|name| not_found(&name))?.n_conflicts
            }
        };
        if n_conflicts > 0 { Err(Rejection::unschedulable(REASON_CLAIM)) } else { Ok(()) }
    }
}

impl Explain for VolumeRestrictions {
    /// The pods that use the pod's claims with the access mode ReadWriteOncePod.
    fn pod_details(&self, cx: Cx<'_>, pod: &PodInfo) -> Vec<Detail> {
        let exclusive = self.exclusive_claims(cx.world, pod).unwrap_or_default();
        let namespace = &pod.template.namespace;
        let facts =
            exclusive.names.iter().flat_map(|claim| claim_users(cx.world, namespace, claim));
        facts_detail("usedClaims", facts)
    }

    /// The pods that use the pod's disks.
    fn node_details(&self, _cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Vec<Detail> {
        let facts = pod.template.spec.volumes.iter().filter_map(|volume| {
            let disk = volume.disk.as_deref();
            let user = node.pods().find(|other| conflicts_with(other, disk.into_iter()))?;
            let (volume, namespace, name) = (&volume.name, &user.template.namespace, &user.name);
            Some(format!("the disk of volume {volume} is used by pod {namespace}/{name}"))
        });
        facts_detail("usedDisks", facts)
    }
}

/// For each assigned pod that names the claim, that it uses it.
fn claim_users(world: &World, namespace: &Str, claim: &Str) -> Vec<String> {
    let users = world.claim_users(namespace, claim).iter();
    let mut rows: Vec<NodeRow> = users.map(|user| user.row).collect();
    rows.sort_unstable();
    rows.dedup();
    let mut facts = Vec::new();
    for node in rows.into_iter().filter_map(|row| world.node(row)) {
        let is_user = |pod: &PodInfo| {
            pod.template.namespace == *namespace
                && named_claims(&pod.template).any(|name| name == claim)
        };
        let users = node.pods().filter(|pod| is_user(pod)).map(|pod| &pod.name);
        facts.extend(users.map(|user| {
            format!("{claim} (ReadWriteOncePod) is used by pod {user} on node {}", node.name())
        }));
    }
    facts
}

fn after_pod_deleted(hint_args: &QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> {
    let (pod, deleted) = (hint_args.pod, hint_args.old_pod()?);
    let shares_claim = || {
        named_claims(&pod.template)
            .any(|name| named_claims(&deleted.template).any(|other| other == name))
    };
    let is_related = deleted.template.namespace == pod.template.namespace
        && (conflicts_with(deleted, disks(&pod.template)) || shares_claim());
    Ok(QueueingHint::queue_if(is_related))
}

fn after_claim_added(hint_args: &QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> {
    let added = hint_args.new.and_then(EventObject::watched_object::<PersistentVolumeClaim>);
    let added = added.ok_or_else(|| Failure::new("expected a claim after the event"))?;
    Ok(QueueingHint::queue_if(names_claim(&hint_args.pod.template, added)))
}

impl Sign for VolumeRestrictions {
    fn sign(&self, pod: &PodInfo) -> Result<Vec<SignFragment>, UnsignablePod> {
        Ok(vec![volumes::volumes_fragment(pod)])
    }
}

/// What of a pod's volumes decides which nodes this plugin rejects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RestrictionKey {
    /// A claim of this name does not exist.
    MissingClaim(Str),
    Volumes {
        /// The disks that conflict.
        disks: Box<[DiskSource]>,
        /// An exclusive claim is in use: the pod fits nowhere.
        is_claim_used: bool,
    },
}

impl Incremental for VolumeRestrictions {
    type Key = RestrictionKey;

    fn key(&self, cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<Self::Key> {
        Some(match self.exclusive_claims(cx.world, pod) {
            Err(name) => RestrictionKey::MissingClaim(name),
            Ok(exclusive) => RestrictionKey::Volumes {
                disks: disks(&pod.template).cloned().collect(),
                is_claim_used: exclusive.n_conflicts > 0,
            },
        })
    }

    fn key_is_of_spec(&self, spec: &SharedPodSpec) -> bool {
        spec.volumes.is_empty()
    }

    fn key_reads_resources(&self) -> bool {
        false
    }

    fn prepare(&self, _cx: &mut PrepareCx<'_>, key: &Self::Key) -> PrepareResult {
        match key {
            RestrictionKey::MissingClaim(name) => PrepareResult::Rejected(not_found(name)),
            RestrictionKey::Volumes { disks, is_claim_used: false } if disks.is_empty() => {
                PrepareResult::Skip
            }
            RestrictionKey::Volumes { disks, is_claim_used } => {
                let (disks, is_claim_used) = (disks.clone(), *is_claim_used);
                PrepareResult::Evaluator(Box::new(RestrictionEvaluator { disks, is_claim_used }))
            }
        }
    }
}

struct RestrictionEvaluator {
    disks: Box<[DiskSource]>,
    is_claim_used: bool,
}

impl PluginEvaluator for RestrictionEvaluator {
    fn dependencies(&self) -> ResultDependencies {
        ResultDependencies { filter: Some(RowDependency::Pods), ..ResultDependencies::default() }
    }

    fn filter_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> bool {
        let mut pods = cx.nodes().pods(row).iter();
        !self.is_claim_used && !pods.any(|other| conflicts_with(other, self.disks.iter()))
    }
}

#[cfg(test)]
mod tests;
