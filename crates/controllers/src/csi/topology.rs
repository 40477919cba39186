//! Topology segments: the labels of the nodes from which a volume is accessible.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume,
    VolumeNodeAffinity,
};
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, StorageClass};
use loadmaster_stdx::CollectByInsertion as _;

use crate::cache::Cache;
use crate::meta::label_value;

/// Keys and values of node labels; empty for all nodes.
pub(super) type Segment = BTreeMap<String, String>;

/// A segment as messages show it.
pub(super) fn shown(segment: &Segment) -> String {
    let labels: Vec<String> = segment.iter().map(|(key, value)| format!("{key}={value}")).collect();
    labels.join(",")
}

/// The segments of the nodes on which a driver is registered.
pub(super) fn segments(driver: &str, cache: &Cache) -> BTreeSet<Segment> {
    let nodes = cache.store::<CSINode>().iter().filter_map(|csi_node| {
        let keys = topology_keys(registration(csi_node, driver)?);
        let name = csi_node.metadata.name.as_deref().unwrap_or_default();
        labels(cache.get::<Node>("", name)?, keys)
    });
    nodes.collect()
}

/// The segment of a node for volumes of a class: by the topology keys of the driver on that node; where it is not registered, by those of the
/// class's `allowedTopologies`.
pub(super) fn segment_of_node(
    node: &Node,
    class: &StorageClass,
    cache: &Cache,
) -> Result<Segment, String> {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let csi_node = cache.get::<CSINode>("", name);
    let keys: Vec<String> = match csi_node.and_then(|it| registration(it, &class.provisioner)) {
        Some(driver) => topology_keys(driver).to_vec(),
        None => {
            let terms = class.allowed_topologies.iter().flatten();
            let all = terms.flat_map(|term| term.match_label_expressions.iter().flatten());
            all.map(|one| one.key.clone()).collect::<BTreeSet<String>>().into_iter().collect()
        }
    };
    let segment = labels(node, &keys).ok_or_else(|| {
        let shown = keys.join(", ");
        format!("error generating accessibility requirements: node {name:?} lacks a label of the topology keys [{shown}]")
    })?;
    if !allows(class, &segment) {
        let shown = shown(&segment);
        return Err(format!(
            "error generating accessibility requirements: topology {shown} of the selected node {name:?} is not in the allowed topologies of the class"
        ));
    }
    Ok(segment)
}

/// Whether the `allowedTopologies` of a class contain a segment.
pub(super) fn allows(class: &StorageClass, segment: &Segment) -> bool {
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    terms.is_empty()
        || terms.iter().any(|term| {
            let mut expressions = term.match_label_expressions.iter().flatten();
            expressions.all(|one| segment.get(&one.key).is_some_and(|it| one.values.contains(it)))
        })
}

/// The segments that the `allowedTopologies` of a class name; one that contains all nodes if there are none.
pub(super) fn allowed_segments(class: &StorageClass) -> BTreeSet<Segment> {
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    if terms.is_empty() {
        return BTreeSet::from([Segment::new()]);
    }
    let of_term =
        |expressions: &[k8s_openapi::api::core::v1::TopologySelectorLabelRequirement]| {
            expressions.iter().fold(vec![Segment::new()], |known, one| {
                let with = |segment: &Segment, value: &String| {
                    let mut segment = segment.clone();
                    segment.insert(one.key.clone(), value.clone());
                    segment
                };
                known
                    .iter()
                    .flat_map(|it| one.values.iter().map(move |value| with(it, value)))
                    .collect()
            })
        };
    let terms = terms.iter().map(|term| term.match_label_expressions.as_deref());
    terms.flat_map(|expressions| of_term(expressions.unwrap_or_default())).collect()
}

/// The node affinity of a volume in a segment.
pub(super) fn node_affinity(segment: &Segment) -> Option<VolumeNodeAffinity> {
    let requirement = |(key, value): (&String, &String)| NodeSelectorRequirement {
        key: key.clone(),
        operator: "In".to_owned(),
        values: Some(vec![value.clone()]),
    };
    let term = NodeSelectorTerm {
        match_expressions: Some(segment.iter().map(requirement).collect()),
        match_fields: None,
    };
    let required = NodeSelector { node_selector_terms: vec![term] };
    (!segment.is_empty()).then_some(VolumeNodeAffinity { required: Some(required) })
}

/// The segment of a volume with the affinity of [`node_affinity`].
pub(super) fn segment_of_volume(volume: &PersistentVolume) -> Segment {
    let affinity =
        volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref()?.required.as_ref());
    let first = affinity.and_then(|it| it.node_selector_terms.first());
    let expressions = first.and_then(|term| term.match_expressions.as_deref()).unwrap_or_default();
    let label = |one: &NodeSelectorRequirement| {
        Some((one.key.clone(), one.values.as_ref()?.first()?.clone()))
    };
    expressions.iter().filter_map(label).collect_by_insertion()
}

fn registration<'a>(csi_node: &'a CSINode, driver: &str) -> Option<&'a CSINodeDriver> {
    csi_node.spec.drivers.iter().find(|one| one.name == driver)
}

fn topology_keys(driver: &CSINodeDriver) -> &[String] {
    driver.topology_keys.as_deref().unwrap_or_default()
}

/// The labels of a node with these keys; None if one is missing.
fn labels(node: &Node, keys: &[String]) -> Option<Segment> {
    keys.iter()
        .map(|key| Some((key.clone(), label_value(&node.metadata, key)?.to_owned())))
        .collect()
}
