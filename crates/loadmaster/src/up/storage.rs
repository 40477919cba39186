//! The storage of the cluster: a simulated CSI driver and its StorageClass.

use loadmaster_controllers::csi::CsiDriver;
use serde_json::{Value, json};

use crate::manifest::Manifest;

/// The StorageClass of the simulated driver.
const CLASS: &str = "standard";
const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

/// The driver and its class, which is the default unless the manifests contain a default class.
pub(super) fn objects(driver: &CsiDriver, manifests: &[Manifest]) -> [Value; 2] {
    let has_default = manifests.iter().any(|it| {
        it.object["kind"] == "StorageClass"
            && it.object["metadata"]["annotations"][IS_DEFAULT] == "true"
    });
    let annotations = if has_default { json!({}) } else { json!({IS_DEFAULT: "true"}) };
    let driver_object = json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": driver.name},
        "spec": {"attachRequired": true, "podInfoOnMount": false, "storageCapacity": true},
    });
    let class = json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": CLASS, "annotations": annotations},
        "provisioner": driver.name,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
    });
    [driver_object, class]
}
