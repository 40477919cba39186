//! VolumeZone: a pod fits only in the zones and regions that the labels of its bound PersistentVolumes name.
//!
//! | | |
//! | --- | --- |
//! | extension points | PreFilter, Filter, Sign |
//! | woken by | StorageClass added, node added or its labels changed, claim of the pod added or updated, volume added or its zones changed |
//! | upstream | `plugins/volumezone`, 1.36 |
//! | deviations | none |
//! | cost | O(zone labels of the volumes) per node, no allocation |

use std::collections::BTreeSet;
use std::sync::Arc;

use loadmaster_api::{
    Labels, PersistentVolume, PersistentVolumeClaim, SharedPodSpec, StorageClass, Str,
};
use loadmaster_framework::cluster_event::QueueingHintArgs;
use loadmaster_framework::extension_points::{SignFragment, UnsignablePod};
use loadmaster_framework::incremental::{ResultDependencies, RowDependency};
use loadmaster_framework::{
    ActionType, ClusterEvent, Code, Cx, CycleStateSlot, Detail, EvaluatorCx, EventObject,
    EventResource, Explain, ExtensionPoints, Failure, Filter, Incremental, NodeInfo, NodeRow,
    ObjectSlot, PluginDef, PluginError, PluginEvaluator, PodInfo, PreFilter, PreFilterResult,
    PrepareCx, PrepareResult, QueueingHint, Rejection, SerialCx, Sign, World,
};
use serde_json::Value;

use crate::DeclaredReasons;
use crate::explain_text::{facts_detail, shown_labels, shown_values};
use crate::volumes::{
    self, NotFound, WAIT_FOR_FIRST_CONSUMER, binding_mode_not_set, named_claims, names_claim,
};

pub const NAME: &str = "VolumeZone";

const REASON: &str = "node(s) had no available volume zone";
const REASON_NO_CLAIM_NAME: &str = "PersistentVolumeClaim had no name";
const REASON_NO_CLASS: &str = "PersistentVolumeClaim had no pv name and storageClass name";
const REASON_NO_VOLUME: &str = "PersistentVolume had no name";

/// The reasons with which this plugin rejects nodes. Those of its PreFilter have the same causes as rejections of plugins that are
/// called before it.
pub(crate) const REASONS: DeclaredReasons = &[(Code::UnschedulableAndUnresolvable, REASON)];

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";

/// The labels that are compared, in upstream's order.
const TOPOLOGY_LABELS: [&str; 4] = [BETA_ZONE, BETA_REGION, ZONE, REGION];

struct VolumeZone {
    claims: ObjectSlot<PersistentVolumeClaim>,
    volumes: ObjectSlot<PersistentVolume>,
    classes: ObjectSlot<StorageClass>,
    state: CycleStateSlot<Arc<[VolumeTopology]>>,
}

/// A label of a volume: a node needs one of the values.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct VolumeTopology {
    key: &'static str,
    values: BTreeSet<Str>,
}

fn build(points: &mut ExtensionPoints, _args: &Value) -> Result<(), PluginError> {
    let (claims, volumes, classes) = volumes::watch_volumes(points);
    let plugin =
        Arc::new(VolumeZone { claims, volumes, classes, state: points.cycle_state_slot() });
    points.pre_filter = Some(plugin.clone());
    points.filter = Some(plugin.clone());
    points.sign = Some(plugin.clone());
    points.explain = Some(plugin.clone());
    points.incremental = Some(plugin);
    points.register_event(
        ClusterEvent::new(EventResource::StorageClass, ActionType::ADD),
        Some(Arc::new(after_class_added)),
    );
    let node_actions = ActionType::ADD | ActionType::UPDATE_NODE_LABEL;
    points.register_event(ClusterEvent::new(EventResource::Node, node_actions), None);
    let added_or_updated = ActionType::ADD | ActionType::UPDATE;
    points.register_event(
        ClusterEvent::new(EventResource::PersistentVolumeClaim, added_or_updated),
        Some(Arc::new(after_claim_change)),
    );
    points.register_event(
        ClusterEvent::new(EventResource::PersistentVolume, added_or_updated),
        Some(Arc::new(after_volume_change)),
    );
    Ok(())
}

/// The zone and region labels of a volume. A label with several zones separates them by `__`; one that cannot be read is ignored.
fn topologies(labels: &Labels) -> impl Iterator<Item = VolumeTopology> {
    TOPOLOGY_LABELS.into_iter().filter_map(|key| {
        let values = labels.get(key)?.split("__").map(str::trim);
        let is_readable = values.clone().all(|value| !value.is_empty());
        is_readable.then(|| VolumeTopology { key, values: values.map(Str::new).collect() })
    })
}

/// Whether a node with these labels is in all of the zones and regions.
fn matches(labels: &Labels, topologies: &[VolumeTopology]) -> bool {
    // In a cluster of one zone nodes may have no such label.
    let is_anywhere = !TOPOLOGY_LABELS.iter().any(|key| labels.contains_key(key));
    is_anywhere
        || topologies.iter().all(|wanted| {
            let value = labels.get(wanted.key).or_else(|| match wanted.key {
                BETA_ZONE => labels.get(ZONE),
                BETA_REGION => labels.get(REGION),
                _ => None,
            });
            value.is_some_and(|value| wanted.values.contains(value))
        })
}

impl VolumeZone {
    /// The labels of all bound volumes of the pod.
    ///
    /// # Errors
    ///
    /// Why they cannot be known, as upstream says it.
    fn pod_topologies(&self, world: &World, pod: &PodInfo) -> Result<Vec<VolumeTopology>, String> {
        let objects = world.watched_objects();
        let claims = objects.lister(&self.claims);
        let not_found = |resource, name: &str| NotFound { resource, name }.to_string();
        let mut all = Vec::new();
        for name in named_claims(&pod.template) {
            if name.is_empty() {
                return Err(REASON_NO_CLAIM_NAME.to_owned());
            }
            let claim = claims
                .get(&pod.template.namespace, name)
                .ok_or_else(|| not_found("persistentvolumeclaim", name))?;
            let volume = &claim.spec.volume_name;
            if volume.is_empty() {
                self.check_unbound(world, claim)?;
                continue;
            }
            let volume = objects
                .lister(&self.volumes)
                .get("", volume)
                .ok_or_else(|| not_found("persistentvolume", volume))?;
            all.extend(topologies(&volume.metadata.labels));
        }
        Ok(all)
    }

    /// An unbound claim must wait for its first consumer.
    fn check_unbound(&self, world: &World, claim: &PersistentVolumeClaim) -> Result<(), String> {
        let name = claim.class();
        if name.is_empty() {
            return Err(REASON_NO_CLASS.to_owned());
        }
        let class =
            world.watched_objects().lister(&self.classes).get("", name).ok_or_else(|| {
                NotFound { resource: "storageclass.storage.k8s.io", name }.to_string()
            })?;
        match &class.volume_binding_mode {
            None => Err(binding_mode_not_set(name)),
            Some(mode) if *mode == WAIT_FOR_FIRST_CONSUMER => Ok(()),
            Some(_) => Err(REASON_NO_VOLUME.to_owned()),
        }
    }
}

impl PreFilter for VolumeZone {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        let topologies = self.pod_topologies(cx.world, pod).map_err(Rejection::unresolvable)?;
        if topologies.is_empty() {
            return Ok(PreFilterResult::Skip);
        }
        cx.cycle.set(self.state, topologies.into());
        Ok(PreFilterResult::All)
    }
}

impl Filter for VolumeZone {
    fn filter(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let is_match = match cx.cycle.get(self.state) {
            Some(topologies) => matches(node.labels(), topologies),
            None => {
                let topologies = self.pod_topologies(cx.world, pod);
                matches(node.labels(), &topologies.map_err(Rejection::unresolvable)?)
            }
        };
        if is_match { Ok(()) } else { Err(Rejection::unresolvable(REASON)) }
    }
}

impl Explain for VolumeZone {
    /// The volumes in other zones or regions.
    fn node_details(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Vec<Detail> {
        let (claims, volumes) = (cx.objects(&self.claims), cx.objects(&self.volumes));
        let facts = named_claims(&pod.template).filter_map(|name| {
            let claim = claims.get(&pod.template.namespace, name)?;
            let volume = volumes.get("", &claim.spec.volume_name)?;
            let topologies: Vec<VolumeTopology> = topologies(&volume.metadata.labels).collect();
            if matches(node.labels(), &topologies) {
                return None;
            }
            let zones = topologies.iter().map(|it| shown_values(it.key, "in", it.values.iter()));
            let zones = zones.collect::<Vec<_>>().join(" and ");
            let has = shown_labels(node.labels(), topologies.iter().map(|it| it.key));
            let volume = &volume.metadata.name;
            Some(format!("volume {volume} of claim {name} is in {zones}, the node has {has}"))
        });
        facts_detail("zones", facts)
    }
}

fn after_class_added(hint_args: &QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> {
    let class = hint_args.new.and_then(EventObject::watched_object::<StorageClass>);
    let class = class.ok_or_else(|| Failure::new("expected a class after the event"))?;
    let mode = class.volume_binding_mode.as_deref();
    let waits = mode == Some(WAIT_FOR_FIRST_CONSUMER);
    Ok(QueueingHint::queue_if(waits))
}

fn after_claim_change(hint_args: &QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> {
    let claim = hint_args.new.and_then(EventObject::watched_object::<PersistentVolumeClaim>);
    let claim = claim.ok_or_else(|| Failure::new("expected a claim after the event"))?;
    Ok(QueueingHint::queue_if(names_claim(&hint_args.pod.template, claim)))
}

fn after_volume_change(hint_args: &QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> {
    let volume = |object: Option<EventObject<'_>>| {
        let volume = object.and_then(EventObject::watched_object::<PersistentVolume>);
        volume.map(|volume| topologies(&volume.metadata.labels).collect::<Vec<_>>())
    };
    let new = volume(hint_args.new);
    let new = new.ok_or_else(|| Failure::new("expected a volume after the event"))?;
    let is_same = volume(hint_args.old).is_some_and(|old| old == new);
    Ok(if is_same { QueueingHint::Skip } else { QueueingHint::Queue })
}

impl Sign for VolumeZone {
    fn sign(&self, pod: &PodInfo) -> Result<Vec<SignFragment>, UnsignablePod> {
        Ok(vec![volumes::volumes_fragment(pod)])
    }
}

impl Incremental for VolumeZone {
    /// The labels of the pod's volumes, or why they are not known.
    type Key = Result<Box<[VolumeTopology]>, String>;

    fn key(&self, cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<Self::Key> {
        Some(self.pod_topologies(cx.world, pod).map(|mut all| {
            all.sort_unstable();
            all.dedup();
            all.into()
        }))
    }

    fn key_is_of_spec(&self, spec: &SharedPodSpec) -> bool {
        spec.volumes.is_empty()
    }

    fn key_reads_resources(&self) -> bool {
        false
    }

    fn prepare(&self, _cx: &mut PrepareCx<'_>, key: &Self::Key) -> PrepareResult {
        match key {
            Err(why) => PrepareResult::Rejected(Rejection::unresolvable(why.clone())),
            Ok(topologies) if topologies.is_empty() => PrepareResult::Skip,
            Ok(topologies) => {
                PrepareResult::Evaluator(Box::new(ZoneEvaluator { topologies: topologies.clone() }))
            }
        }
    }
}

struct ZoneEvaluator {
    topologies: Box<[VolumeTopology]>,
}

impl PluginEvaluator for ZoneEvaluator {
    fn dependencies(&self) -> ResultDependencies {
        ResultDependencies { filter: Some(RowDependency::Node), ..ResultDependencies::default() }
    }

    fn filter_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> bool {
        let labels = cx.nodes().node(row).map(|node| &node.metadata.labels);
        labels.is_some_and(|labels| matches(labels, &self.topologies))
    }
}

#[cfg(test)]
mod tests;
