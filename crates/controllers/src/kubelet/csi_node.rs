//! Registers a simulated CSI driver on the simulated nodes.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::ManagedNodes;
use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::csi::CsiDriver;
use crate::kind::{Key, Kind, Object};
use crate::meta::{is_terminating, label_value};
use crate::request::ControllerRequest;

/// Creates the CSINodes of simulated nodes, and adds the driver to those that exist. A driver that is already registered is not changed.
#[derive(Debug)]
pub struct CsiNodeController {
    driver: CsiDriver,
    managed: ManagedNodes,
}

impl CsiNodeController {
    /// Registers this driver on the managed nodes.
    pub fn new(driver: CsiDriver, managed: ManagedNodes) -> CsiNodeController {
        CsiNodeController { driver, managed }
    }

    fn registration(&self, node: &Node, name: &str) -> CSINodeDriver {
        let CsiDriver { topology_key: key, n_volumes_max, .. } = &self.driver;
        CSINodeDriver {
            name: self.driver.name.clone(),
            node_id: name.to_owned(),
            topology_keys: label_value(&node.metadata, key).map(|_| vec![key.clone()]),
            allocatable: Some(VolumeNodeResources { count: Some(*n_volumes_max) }),
        }
    }
}

impl Controller for CsiNodeController {
    fn name(&self) -> &'static str {
        "kubelet-csi-nodes"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::Node, Kind::CSINode]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, _: &Cache) -> Vec<Key> {
        // A changed node has its CSINode already.
        let is_new = change.old.is_none() || change.new.is_none();
        let key = |object: &Object| Key::new(Kind::CSINode, "", object.key().name);
        change.new_or_old().filter(|_| is_new).map(key).into_iter().collect()
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, _: Timestamp) -> ReconcileResult {
        let node = cache
            .get::<Node>("", &key.name)
            .filter(|node| self.managed.contains(node) && !is_terminating(&node.metadata));
        let Some(node) = node else { return ReconcileResult::none() };
        let driver = self.registration(node, &key.name);
        let Some(known) = cache.get::<CSINode>("", &key.name) else {
            let owner = OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: key.name.to_string(),
                uid: node.metadata.uid.clone().unwrap_or_default(),
                ..OwnerReference::default()
            };
            let metadata = ObjectMeta {
                name: Some(key.name.to_string()),
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            };
            let created = CSINode { metadata, spec: CSINodeSpec { drivers: vec![driver] } };
            return ReconcileResult::with_request(ControllerRequest::create(created));
        };
        if known.spec.drivers.iter().any(|one| one.name == driver.name) {
            return ReconcileResult::none();
        }
        let mut changed = CSINode::clone(known);
        changed.spec.drivers.push(driver);
        ReconcileResult::with_request(ControllerRequest::update(changed))
    }
}
