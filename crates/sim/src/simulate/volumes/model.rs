//! What the engine must do with claims, by the objects that it received.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use loadmaster_api::{Node, Pod, Str};
use loadmaster_engine::engine::EngineEvent;
use loadmaster_framework::api_calls::ObjectRef;
use loadmaster_stdx::CollectByInsertion as _;
use serde_json::Value;

use super::{VolumeKind, claim_names, claim_ref, full_name, is_accessible, is_bound, text, uid};
use crate::simulate::invariants::CheckResult;
use crate::simulate::reference_model::ReferenceModel;
use crate::simulate::watched_objects::WatchedObjects;

/// What the reference model knows of claims.
#[derive(Default)]
pub(in crate::simulate) struct VolumeModel {
    /// Claims that PreBind binds, of the pods that are reserved and not bound yet.
    delayed: BTreeMap<Box<str>, DelayedClaims>,
    /// The volume of every claim that was ever seen bound, by the uid of the claim.
    bound: BTreeMap<String, String>,
    /// The uid of the newest claim of each name.
    newest: BTreeMap<String, String>,
    /// Every volume that was ever seen.
    volumes: BTreeMap<String, Value>,
    /// By volume: the claim to which PreBind binds it.
    writes: BTreeMap<Str, Box<str>>,
    /// Claims of which a pod was unreserved while another one was reserved: as upstream, what is assumed for both is then free again.
    released: BTreeSet<String>,
    /// Pods that were unreserved in this step.
    unreserved: Vec<Box<str>>,
    /// A pod with claims was unreserved: what was assumed of its claims is free again, without an event.
    pub has_unreserved: bool,
}

struct DelayedClaims {
    pod: String,
    node: Str,
    /// The node as it was when the pod was reserved.
    reserved_node: Option<Arc<Node>>,
    /// Uids and names.
    claims: BTreeMap<String, String>,
}

impl VolumeModel {
    /// The engine received an event, which it may handle later.
    pub fn receive_event(&mut self, event: &EngineEvent) {
        if let EngineEvent::ObjectChanged { object, value: Some(value) } = event {
            self.handle_object(object, value);
        }
    }

    fn handle_object(&mut self, object: &ObjectRef, value: &Value) {
        if VolumeKind::of(object) == Some(VolumeKind::Claim) {
            self.newest.insert(full_name(value), uid(value).to_owned());
        }
        match VolumeKind::of(object) {
            Some(VolumeKind::Claim) if is_bound(value) => {
                let volume = text(value, "/spec/volumeName").to_owned();
                // It was bound to another volume than the one that PreBind chose, which is free again.
                let claim = uid(value);
                self.writes.retain(|written, of| **of != *claim || **written == *volume);
                self.bound.insert(uid(value).to_owned(), volume);
            }
            Some(VolumeKind::Volume) => {
                // A controller has released it.
                let is_for = |claim: &str| claim_ref(value).is_some_and(|(_, uid)| uid == claim);
                self.writes.retain(|volume, claim| *volume != object.name || is_for(claim));
                self.volumes.insert(object.name.to_string(), value.clone());
            }
            _ => {}
        }
    }

    /// VolumeBinding begins anew with another configuration, as when the scheduler restarts: what is assumed for reserved pods is free again.
    pub fn forget_assumed(&mut self) {
        let claims = self.delayed.values().flat_map(|it| it.claims.keys());
        self.released.extend(claims.cloned().collect::<Vec<_>>());
        self.has_unreserved |= !self.delayed.is_empty();
    }

    /// A pod was reserved on the node, which has this name.
    pub fn reserve(
        &mut self,
        objects: &WatchedObjects,
        pod: &Pod,
        node: &Str,
        reserved_node: Option<Arc<Node>>,
    ) {
        let claims = claim_names(pod).filter_map(|name| {
            let claim = objects.get(VolumeKind::Claim.watched(), &name)?;
            (!is_bound(claim)).then(|| (uid(claim).to_owned(), name))
        });
        let claims: BTreeMap<String, String> = claims.collect_by_insertion();
        if !claims.is_empty() {
            let (pod_name, node) = (pod.full_name(), node.clone());
            let delayed = DelayedClaims { pod: pod_name, node, reserved_node, claims };
            self.unreserved.retain(|uid| *uid != pod.metadata.uid);
            self.delayed.insert(pod.metadata.uid.clone(), delayed);
        }
    }

    /// A pod was unreserved. In the same step it may still have made a request, if another plugin failed after that.
    pub fn unreserve(&mut self, uid: &str) {
        self.has_unreserved |= self.delayed.contains_key(uid);
        self.unreserved.push(uid.into());
    }

    /// The requests of a step were checked.
    pub fn end_step(&mut self) {
        for uid in std::mem::take(&mut self.unreserved) {
            self.end(&uid);
        }
    }

    /// A pod is no longer reserved: the writes for its claims are over.
    fn end(&mut self, uid: &str) {
        let Some(ended) = self.delayed.remove(uid) else { return };
        for claim in ended.claims.into_keys() {
            self.writes.retain(|_, written| **written != *claim);
            if self.has_reserved_pod(&claim) {
                self.released.insert(claim);
            }
        }
    }

    /// Whether PreBind binds the claim for a reserved pod.
    fn has_reserved_pod(&self, claim: &str) -> bool {
        self.delayed.values().any(|it| it.claims.contains_key(claim))
    }

    /// PreBind binds a volume of this version: a reserved pod has its claim, and no other claim or volume is bound at the same time.
    pub fn check_volume_update(&mut self, volume: &Str, claim: &str, of: &str) -> CheckResult {
        if !self.has_reserved_pod(claim) {
            return Err(format!("volume {volume} is bound to claim {claim} for no reserved pod"));
        }
        // The API server will reject it, because the volume has changed since.
        let known = self.volumes.get(volume.as_str());
        if known.is_some_and(|it| text(it, "/metadata/resourceVersion") != of) {
            return Ok(());
        }
        let other_claim = self.writes.insert(volume.clone(), claim.into());
        let is_released = |claim: &str| self.released.contains(claim);
        if is_released(claim) || other_claim.as_deref().is_some_and(is_released) {
            return Ok(());
        }
        if let Some(other) = other_claim.filter(|other| **other != *claim) {
            return Err(format!("volume {volume} is bound to the claims {other} and {claim}"));
        }
        let mut others =
            self.writes.iter().filter(|(other, of)| ***of == *claim && *other != volume);
        match others.next() {
            None => Ok(()),
            Some((other, _)) => {
                Err(format!("claim {claim} is bound to the volumes {other} and {volume}"))
            }
        }
    }

    /// PreBind selects a node for a claim: a pod that has the claim is reserved there.
    pub fn check_claim_update(&self, claim: &str, node: &str) -> CheckResult {
        let mut reserved = self.delayed.values();
        if reserved.any(|it| it.claims.contains_key(claim) && it.node == node) {
            return Ok(());
        }
        Err(format!("node {node} is selected for claim {claim}, but no pod is reserved there"))
    }

    /// A pod is bound only if PreBind has waited until its claims were bound to volumes to which the node has access, or had access when the
    /// pod was reserved: the node may have changed after PreBind. As upstream, a claim of the same name may have replaced the one that was
    /// there when the pod was reserved: it is the claim of the pod then.
    pub fn check_bind(&mut self, uid: &str, node: Option<&Node>) -> CheckResult {
        let Some(delayed) = self.delayed.get(uid) else { return Ok(()) };
        let pod = &delayed.pod;
        for (claim, name) in &delayed.claims {
            let newest = || self.bound.get(self.newest.get(name)?);
            let Some(volume) = self.bound.get(claim).or_else(newest) else {
                return Err(format!("pod {pod} is bound, but its claim {name} is not"));
            };
            let (Some(node), Some(object)) = (node, self.volumes.get(volume)) else { continue };
            let has_access = |node: &Node| {
                is_accessible(object, |key| node.metadata.labels.get(key).map(ToString::to_string))
            };
            if !has_access(node) && !delayed.reserved_node.as_deref().is_some_and(has_access) {
                let node = node.name();
                return Err(format!("pod {pod} is bound to {node}, which cannot access {volume}"));
            }
        }
        self.end(uid);
        Ok(())
    }
}

/// A pod is reserved on a node only if its claims exist, nobody else uses those that have one user, and the node's limit allows its
/// volumes.
pub(in crate::simulate) fn check_reserved(
    model: &ReferenceModel,
    pod: &Pod,
    node: &Str,
) -> CheckResult {
    let (objects, name) = (&model.plugins.objects, pod.full_name());
    for claim_name in claim_names(pod) {
        let Some(claim) = objects.get(VolumeKind::Claim.watched(), &claim_name) else {
            return Err(format!("pod {name} is reserved, but its claim {claim_name} is missing"));
        };
        let modes = claim["spec"]["accessModes"].as_array();
        let is_exclusive = modes.into_iter().flatten().any(|mode| mode == "ReadWriteOncePod");
        let uses = |other: &Pod| {
            other.metadata.uid != pod.metadata.uid && claim_names(other).any(|it| it == claim_name)
        };
        // As upstream, pods on nodes that do not exist do not count.
        let mut placed = model.placed_pods().filter(|(_, node)| model.nodes.contains_key(node));
        if is_exclusive && let Some((other, _)) = placed.find(|(other, _)| uses(other)) {
            let other = other.full_name();
            return Err(format!("claim {claim_name} is used by the pods {other} and {name}"));
        }
    }
    check_limit(model, pod, node)
}

/// A volume of a driver: its handle, or the claim for which it will be provisioned.
type DriverVolume = (String, String);

/// The volumes of a pod that count against limits.
fn driver_volumes(objects: &WatchedObjects, pod: &Pod) -> BTreeSet<DriverVolume> {
    let get = |kind: VolumeKind, name: &str| objects.get(kind.watched(), name);
    let volumes = claim_names(pod).filter_map(|name| {
        let claim = get(VolumeKind::Claim, &name)?;
        match get(VolumeKind::Volume, text(claim, "/spec/volumeName")) {
            Some(volume) => driver_volume(volume),
            None => {
                let class = get(VolumeKind::Class, text(claim, "/spec/storageClassName"))?;
                Some((text(class, "/provisioner").to_owned(), name))
            }
        }
    });
    volumes.collect()
}

fn driver_volume(volume: &Value) -> Option<DriverVolume> {
    let csi = volume.pointer("/spec/csi")?;
    Some((text(csi, "/driver").to_owned(), text(csi, "/volumeHandle").to_owned()))
}

fn check_limit(model: &ReferenceModel, pod: &Pod, node: &Str) -> CheckResult {
    let objects = &model.plugins.objects;
    let Some(csi_node) = objects.get(VolumeKind::CsiNode.watched(), node) else { return Ok(()) };
    let count = csi_node.pointer("/spec/drivers/0/allocatable/count").and_then(Value::as_i64);
    let (Some(limit), driver) = (count, text(csi_node, "/spec/drivers/0/name")) else {
        return Ok(());
    };
    let placed = model.placed_pods();
    let placed = placed.filter(|(other, on)| on == node && other.metadata.uid != pod.metadata.uid);
    let mut attached: BTreeSet<DriverVolume> =
        placed.flat_map(|(pod, _)| driver_volumes(objects, pod)).collect();
    let attachments = objects.of_kind(VolumeKind::Attachment.watched());
    let of_node = attachments.filter(|it| text(it, "/spec/nodeName") == node.as_str());
    attached.extend(of_node.filter_map(|attachment| {
        let name = text(attachment, "/spec/source/persistentVolumeName");
        driver_volume(objects.get(VolumeKind::Volume.watched(), name)?)
    }));
    let mut wanted = driver_volumes(objects, pod);
    let is_new = wanted.iter().any(|volume| volume.0 == driver && !attached.contains(volume));
    wanted.append(&mut attached);
    let n = wanted.iter().filter(|volume| volume.0 == driver).count() as i64;
    if is_new && n > limit {
        let pod = pod.full_name();
        return Err(format!(
            "with pod {pod} node {node} has {n} volumes, but its limit is {limit}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::BIND_COMPLETED;
    use super::*;

    fn received(
        model: &mut VolumeModel,
        objects: &mut WatchedObjects,
        kind: VolumeKind,
        value: Value,
    ) {
        let name = full_name(&value).as_str().into();
        let object = kind.watched().object_ref(&name);
        objects.update(&object, Some(&value));
        model.receive_event(&EngineEvent::ObjectChanged { object, value: Some(value) });
    }

    fn volume(name: &str, node: &str) -> Value {
        let expression =
            json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
        let terms = json!([{"matchExpressions": [expression]}]);
        let affinity = json!({"required": {"nodeSelectorTerms": terms}});
        json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}, "spec": {"nodeAffinity": affinity}})
    }

    fn claim(volume: &str) -> Value {
        let metadata = json!({"namespace": "default", "name": "data", "uid": "data", "annotations": {BIND_COMPLETED: "yes"}});
        json!({"metadata": metadata, "spec": {"volumeName": volume}})
    }

    fn node(name: &str) -> Node {
        let labels = json!({"kubernetes.io/hostname": name});
        serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap()
    }

    /// A pod with the claim.
    fn pod() -> Pod {
        let pod = json!({
            "metadata": {"namespace": "default", "name": "p", "uid": "p"},
            "spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}], "containers": []},
        });
        serde_json::from_value(pod).unwrap()
    }

    /// The claim of a pod that was reserved on node `a` is bound to this volume; then the pod is bound to the node, as it is by then.
    #[track_caller]
    fn check(bound_to: &str, node_now: &str, want: CheckResult) {
        let (mut model, mut objects) = (VolumeModel::default(), WatchedObjects::default());
        received(&mut model, &mut objects, VolumeKind::Volume, volume("on-a", "a"));
        received(&mut model, &mut objects, VolumeKind::Volume, volume("on-b", "b"));
        let mut unbound = claim("");
        unbound["metadata"]["annotations"] = Value::Null;
        received(&mut model, &mut objects, VolumeKind::Claim, unbound);
        model.reserve(&objects, &pod(), &"a".into(), Some(Arc::new(node("a"))));
        if !bound_to.is_empty() {
            received(&mut model, &mut objects, VolumeKind::Claim, claim(bound_to));
        }
        assert_eq!(model.check_bind("p", Some(&node(node_now))), want);
    }

    #[test]
    fn a_claim_may_be_replaced_by_another_one_of_its_name() {
        let (mut model, mut objects) = (VolumeModel::default(), WatchedObjects::default());
        let mut unbound = claim("");
        unbound["metadata"]["annotations"] = Value::Null;
        received(&mut model, &mut objects, VolumeKind::Claim, unbound.clone());
        model.reserve(&objects, &pod(), &"a".into(), None);
        unbound["metadata"]["uid"] = "new".into();
        received(&mut model, &mut objects, VolumeKind::Claim, unbound);
        let early = "pod default/p is bound, but its claim default/data is not".to_owned();
        assert_eq!(model.check_bind("p", None), Err(early));
        let mut bound = claim("v");
        bound["metadata"]["uid"] = "new".into();
        received(&mut model, &mut objects, VolumeKind::Claim, bound);
        assert_eq!(model.check_bind("p", None), Ok(()));
    }

    #[test]
    fn a_pod_is_bound_where_its_volume_is() {
        check("on-a", "a", Ok(()));
        // The label of the node has changed since.
        check("on-a", "b", Ok(()));
        check("on-b", "a", Err("pod default/p is bound to a, which cannot access on-b".to_owned()));
        check("", "a", Err("pod default/p is bound, but its claim default/data is not".to_owned()));
    }
}
