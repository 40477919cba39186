//! What `explain` says about the volumes of a pod: the state of its claims, and for each node, where a volume is accessible and how much
//! capacity is left. It repeats no decision of a plugin: it shows the objects that the decision depends on.

use loadmaster_api::selector::{CompiledNodeSelector, NodeSelector, Selector};
use loadmaster_api::storage::TopologySelectorTerm;
use loadmaster_api::{
    CsiDriver, CsiStorageCapacity, Labels, PersistentVolume, PersistentVolumeClaim, Quantity,
    StorageClass,
};
use loadmaster_framework::{Cx, Detail, Explain, ExtensionPoints, NodeInfo, ObjectSlot, PodInfo};

use crate::explain_text::{facts_detail, shown_labels, shown_requirement, shown_values};
use crate::volumes::{StorageKind, WAIT_FOR_FIRST_CONSUMER};

/// The details of VolumeBinding.
pub(crate) struct VolumeDetails {
    claims: ObjectSlot<PersistentVolumeClaim>,
    volumes: ObjectSlot<PersistentVolume>,
    classes: ObjectSlot<StorageClass>,
    drivers: ObjectSlot<CsiDriver>,
    capacities: ObjectSlot<CsiStorageCapacity>,
}

impl VolumeDetails {
    /// Watches the kinds that are shown.
    pub(crate) fn new(points: &mut ExtensionPoints) -> VolumeDetails {
        VolumeDetails {
            claims: StorageKind::PersistentVolumeClaim.watch_in_keys(points),
            volumes: StorageKind::PersistentVolume.watch_in_keys(points),
            classes: StorageKind::StorageClass.watch_in_keys(points),
            drivers: StorageKind::CsiDriver.watch_in_keys(points),
            capacities: StorageKind::CsiStorageCapacity.watch_in_keys(points),
        }
    }

    fn claims<'a>(
        &'a self,
        cx: Cx<'a>,
        pod: &'a PodInfo,
    ) -> impl Iterator<Item = &'a PersistentVolumeClaim> + 'a {
        let claims = cx.objects(&self.claims);
        pod.claim_names().filter_map(move |it| claims.get(&pod.template.namespace, &it.name))
    }

    fn claim_state(&self, cx: Cx<'_>, claim: &PersistentVolumeClaim) -> String {
        let volume = &claim.spec.volume_name;
        if !volume.is_empty() {
            return match cx.objects(&self.volumes).get("", volume) {
                None => format!("names volume {volume}, which does not exist"),
                Some(_) if !claim.is_fully_bound() => format!("is being bound to volume {volume}"),
                Some(found) => match &found.spec.required_node_affinity {
                    Some(affinity) => {
                        format!("is bound to volume {volume} in {}", shown_selector(affinity))
                    }
                    None => format!("is bound to volume {volume}"),
                },
            };
        }
        let size = claim.request().unwrap_or_default();
        let class = claim.class();
        if class.is_empty() {
            return format!("is not bound: {size}, without class");
        }
        let found = cx.objects(&self.classes).get("", class);
        match found.map(|class| class.volume_binding_mode.as_deref().unwrap_or("Immediate")) {
            Some(mode) => format!("is not bound: {size} of class {class} ({mode})"),
            None => format!("is not bound: {size} of class {class}, which does not exist"),
        }
    }

    /// Why a volume of the pod is not accessible from a node.
    fn inaccessible(
        &self,
        cx: Cx<'_>,
        claim: &PersistentVolumeClaim,
        node: NodeInfo<'_>,
    ) -> Option<String> {
        let name = &claim.spec.volume_name;
        let volume = cx.objects(&self.volumes).get("", name).filter(|_| !name.is_empty())?;
        let affinity = volume.spec.required_node_affinity.as_deref()?;
        if is_accessible(volume, node) {
            return None;
        }
        let keys = affinity.node_selector_terms.iter().flat_map(|term| &term.match_expressions);
        let has = shown_labels(node.labels(), keys.map(|one| &*one.key));
        let (claim, needs) = (&claim.metadata.name, shown_selector(affinity));
        Some(format!(
            "volume {name} of claim {claim} is accessible from {needs}, the node has {has}"
        ))
    }

    /// What there is on a node for a claim that is bound when its pod is scheduled.
    fn supply(
        &self,
        cx: Cx<'_>,
        claim: &PersistentVolumeClaim,
        node: NodeInfo<'_>,
    ) -> Option<String> {
        let class = cx.objects(&self.classes).get("", claim.class())?;
        let waits = class.volume_binding_mode.as_deref() == Some(WAIT_FOR_FIRST_CONSUMER);
        if !waits || !claim.spec.volume_name.is_empty() {
            return None;
        }
        let (name, wanted) = (&claim.metadata.name, claim.request().unwrap_or_default());
        let class_name = &class.metadata.name;
        if !allows(&class.allowed_topologies, node.labels()) {
            let terms = class.allowed_topologies.iter().flat_map(|it| &it.match_label_expressions);
            let has = shown_labels(node.labels(), terms.map(|one| &*one.key));
            let allowed = shown_topologies(&class.allowed_topologies);
            return Some(format!(
                "claim {name}: class {class_name} provisions volumes for {allowed} only, the node has {has}"
            ));
        }
        if &*class.provisioner == "kubernetes.io/no-provisioner" {
            let available = |volume: &PersistentVolume| {
                let is_reserved = volume.spec.claim_ref.as_ref().is_some_and(|one| {
                    one.name != claim.metadata.name || one.namespace != claim.metadata.namespace
                });
                !is_reserved && *volume.class() == *class_name && volume.capacity() >= wanted
            };
            let volumes = cx.objects(&self.volumes);
            let all: Vec<&PersistentVolume> =
                volumes.iter().map(|(_, volume)| volume).filter(|it| available(it)).collect();
            let n_here = all.iter().filter(|volume| is_accessible(volume, node)).count();
            let n = all.len();
            return Some(format!(
                "claim {name}: {n_here} of {n} available volumes of class {class_name} with {wanted} are accessible from the node"
            ));
        }
        let driver = cx.objects(&self.drivers).get("", &class.provisioner)?;
        if !driver.spec.storage_capacity {
            return None;
        }
        let capacities = cx.objects(&self.capacities);
        let here = capacities.iter().map(|(_, capacity)| capacity).filter(|it| {
            it.storage_class_name == *class_name
                && Selector::new(it.node_topology.as_deref())
                    .is_ok_and(|selector| selector.matches(node.labels()))
        });
        let free: Option<Quantity> = here.filter_map(CsiStorageCapacity::volume_limit).max();
        let free =
            free.map_or_else(|| "no capacity is published".to_owned(), |it| format!("{it} free"));
        Some(format!("claim {name}: {free} for class {class_name} on the node, {wanted} requested"))
    }
}

impl Explain for VolumeDetails {
    fn pod_details(&self, cx: Cx<'_>, pod: &PodInfo) -> Vec<Detail> {
        let claims = cx.objects(&self.claims);
        let states = pod.claim_names().map(|used| {
            let name = used.name;
            match claims.get(&pod.template.namespace, &name) {
                Some(claim) => format!("{name} {}", self.claim_state(cx, claim)),
                None if used.is_ephemeral => format!("{name} is not created yet"),
                None => format!("{name} does not exist"),
            }
        });
        facts_detail("claims", states)
    }

    fn node_details(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Vec<Detail> {
        let claims = self.claims(cx, pod);
        let facts = claims.filter_map(|claim| {
            self.inaccessible(cx, claim, node).or_else(|| self.supply(cx, claim, node))
        });
        facts_detail("volumes", facts)
    }
}

fn is_accessible(volume: &PersistentVolume, node: NodeInfo<'_>) -> bool {
    volume.spec.required_node_affinity.as_deref().is_none_or(|affinity| {
        CompiledNodeSelector::new(affinity).matches(node.labels(), node.name()).unwrap_or(false)
    })
}

/// Whether the topologies of a class contain a node.
fn allows(topologies: &[TopologySelectorTerm], labels: &Labels) -> bool {
    topologies.is_empty()
        || topologies.iter().any(|term| {
            let mut requirements = term.match_label_expressions.iter();
            requirements.all(|one| labels.get(&one.key).is_some_and(|it| one.values.contains(it)))
        })
}

/// `topology.kubernetes.io/zone in (zone-a, zone-b)`; terms are joined by `or`.
fn shown_selector(selector: &NodeSelector) -> String {
    let terms = selector.node_selector_terms.iter().map(|term| {
        let requirements = term.match_expressions.iter().chain(&term.match_fields);
        requirements.map(shown_requirement).collect::<Vec<String>>().join(" and ")
    });
    terms.collect::<Vec<String>>().join(" or ")
}

fn shown_topologies(topologies: &[TopologySelectorTerm]) -> String {
    let terms = topologies.iter().map(|term| {
        let requirements = term.match_label_expressions.iter();
        let shown = requirements.map(|one| shown_values(&one.key, "in", one.values.iter()));
        shown.collect::<Vec<String>>().join(" and ")
    });
    terms.collect::<Vec<String>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use expect_test::{Expect, expect};
    use loadmaster_framework::testkit::{PluginTestBench, node, pod};
    use loadmaster_framework::{PluginDef, PluginError};
    use serde_json::{Value, json};

    use super::*;

    const ZONE: &str = "topology.kubernetes.io/zone";

    fn build(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
        points.explain = Some(Arc::new(VolumeDetails::new(points)));
        Ok(())
    }

    const DEF: PluginDef = PluginDef { name: "Details", build, args: None };

    fn claim(name: &str, spec: Value, bound: bool) -> Value {
        let annotations =
            if bound { json!({"pv.kubernetes.io/bind-completed": "yes"}) } else { json!({}) };
        let mut claim = json!({"metadata": {"namespace": "default", "name": name, "annotations": annotations},
            "spec": {"resources": {"requests": {"storage": "10Gi"}}}});
        claim["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        claim
    }

    fn volume(name: &str, class: &str, zones: &[&str]) -> Value {
        let expression = json!({"key": ZONE, "operator": "In", "values": zones});
        let affinity =
            json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}});
        let affinity = if zones.is_empty() { Value::Null } else { affinity };
        json!({"metadata": {"name": name}, "spec": {"capacity": {"storage": "10Gi"},
            "storageClassName": class, "nodeAffinity": affinity}})
    }

    /// The details of a pod that uses these claims, in a cluster of two zones and a node without one.
    #[track_caller]
    fn check(objects: &[(StorageKind, Value)], claims: &[&str], want: &Expect) {
        let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
        for (name, zone) in [("a", "zone-a"), ("b", "zone-b")] {
            bench.node(node(name).label(ZONE, zone)).unwrap();
        }
        bench.node(node("c")).unwrap();
        for (kind, object) in objects {
            bench.object(&kind.gvr(), object.clone()).unwrap();
        }
        let volumes = claims.iter().enumerate().map(|(at, name)| {
            json!({"name": format!("v{at}"), "persistentVolumeClaim": {"claimName": name}})
        });
        let volumes: Vec<Value> = volumes.collect();
        let lines = bench.explain(pod("p").set_field("/spec/volumes", volumes)).unwrap();
        want.assert_eq(&lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    }

    fn class(name: &str, more: Value) -> (StorageKind, Value) {
        let mut class = json!({"metadata": {"name": name}, "provisioner": "disk.example.com",
            "volumeBindingMode": "WaitForFirstConsumer"});
        class.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        (StorageKind::StorageClass, class)
    }

    #[test]
    fn a_bound_volume_names_where_it_is_accessible() {
        let volume_in = |zones: &[&str]| (StorageKind::PersistentVolume, volume("disk", "", zones));
        let bound = claim("data", json!({"volumeName": "disk"}), true);
        let bound = (StorageKind::PersistentVolumeClaim, bound);
        check(
            &[bound.clone(), volume_in(&["zone-b"])],
            &["data"],
            &expect![[r#"
            pod: claims=data is bound to volume disk in topology.kubernetes.io/zone in (zone-b)
            a: volumes=volume disk of claim data is accessible from topology.kubernetes.io/zone in (zone-b), the node has topology.kubernetes.io/zone=zone-a
            c: volumes=volume disk of claim data is accessible from topology.kubernetes.io/zone in (zone-b), the node has no topology.kubernetes.io/zone
        "#]],
        );
        check(
            &[bound.clone(), volume_in(&[])],
            &["data"],
            &expect![[r#"
            pod: claims=data is bound to volume disk
        "#]],
        );
        check(
            &[bound],
            &["data", "none"],
            &expect![[r#"
            pod: claims=data names volume disk, which does not exist; none does not exist
        "#]],
        );
        let half = claim("data", json!({"volumeName": "disk"}), false);
        let half = (StorageKind::PersistentVolumeClaim, half);
        check(
            &[half, volume_in(&["zone-a", "zone-b"])],
            &["data"],
            &expect![[r#"
            pod: claims=data is being bound to volume disk
            c: volumes=volume disk of claim data is accessible from topology.kubernetes.io/zone in (zone-a, zone-b), the node has no topology.kubernetes.io/zone
        "#]],
        );
    }

    #[test]
    fn free_capacity_of_each_node() {
        let unbound = claim("data", json!({"storageClassName": "fast"}), false);
        let unbound = (StorageKind::PersistentVolumeClaim, unbound);
        let driver = |has_capacity: bool| {
            let driver = json!({"metadata": {"name": "disk.example.com"}, "spec": {"storageCapacity": has_capacity}});
            (StorageKind::CsiDriver, driver)
        };
        let capacity = |class: &str, zone: &str, free: &str| {
            let name = format!("{class}-{zone}-{free}").to_lowercase();
            let object = json!({"metadata": {"namespace": "kube-system", "name": name}, "storageClassName": class,
                "capacity": free, "nodeTopology": {"matchLabels": {ZONE: zone}}});
            (StorageKind::CsiStorageCapacity, object)
        };
        let all = [
            unbound.clone(),
            class("fast", json!({})),
            driver(true),
            capacity("fast", "zone-a", "3Gi"),
            capacity("fast", "zone-b", "40Gi"),
            capacity("fast", "zone-b", "20Gi"),
            capacity("slow", "zone-a", "90Gi"),
        ];
        check(
            &all,
            &["data"],
            &expect![[r#"
            pod: claims=data is not bound: 10Gi of class fast (WaitForFirstConsumer)
            a: volumes=claim data: 3Gi free for class fast on the node, 10Gi requested
            b: volumes=claim data: 40Gi free for class fast on the node, 10Gi requested
            c: volumes=claim data: no capacity is published for class fast on the node, 10Gi requested
        "#]],
        );
        check(
            &[unbound.clone(), class("fast", json!({})), driver(false)],
            &["data"],
            &expect![[r#"
            pod: claims=data is not bound: 10Gi of class fast (WaitForFirstConsumer)
        "#]],
        );
        check(
            &[unbound],
            &["data"],
            &expect![[r#"
            pod: claims=data is not bound: 10Gi of class fast, which does not exist
        "#]],
        );
    }

    #[test]
    fn static_volumes_and_allowed_topologies() {
        let unbound =
            |class: Value| (StorageKind::PersistentVolumeClaim, claim("data", class, false));
        let volume = |name: &str, zone: &str| {
            (StorageKind::PersistentVolume, volume(name, "local", &[zone]))
        };
        let mut taken = volume("taken", "zone-a");
        taken.1["spec"]["claimRef"] = json!({"namespace": "default", "name": "other"});
        let no_provisioner = class("local", json!({"provisioner": "kubernetes.io/no-provisioner"}));
        let local = json!({"storageClassName": "local"});
        let all =
            [unbound(local), no_provisioner, volume("x", "zone-b"), volume("y", "zone-b"), taken];
        check(
            &all,
            &["data"],
            &expect![[r#"
            pod: claims=data is not bound: 10Gi of class local (WaitForFirstConsumer)
            a: volumes=claim data: 0 of 2 available volumes of class local with 10Gi are accessible from the node
            b: volumes=claim data: 2 of 2 available volumes of class local with 10Gi are accessible from the node
            c: volumes=claim data: 0 of 2 available volumes of class local with 10Gi are accessible from the node
        "#]],
        );
        let allowed = json!([{"matchLabelExpressions": [{"key": ZONE, "values": ["zone-b"]}]}]);
        let fast = json!({"storageClassName": "fast"});
        let all = [unbound(fast), class("fast", json!({"allowedTopologies": allowed}))];
        check(
            &all,
            &["data"],
            &expect![[r#"
            pod: claims=data is not bound: 10Gi of class fast (WaitForFirstConsumer)
            a: volumes=claim data: class fast provisions volumes for topology.kubernetes.io/zone in (zone-b) only, the node has topology.kubernetes.io/zone=zone-a
            c: volumes=claim data: class fast provisions volumes for topology.kubernetes.io/zone in (zone-b) only, the node has no topology.kubernetes.io/zone
        "#]],
        );
        check(
            &[unbound(json!({}))],
            &["data"],
            &expect![[r#"
            pod: claims=data is not bound: 10Gi, without class
        "#]],
        );
        check(&[], &[], &expect![""]);
    }
}
