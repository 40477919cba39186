//! The storage of the cluster: a simulated CSI driver and its StorageClass.

use loadmaster_controllers::csi::CsiDriver;
use serde_json::{Value, json};

use super::api_client::{InProcessApiClient, RequestError};
use super::manifests::Manifest;

/// The StorageClass of the simulated driver.
const CLASS: &str = "standard";
const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

/// Creates the driver and its class, unless the manifests contain objects of these names. The class is the default unless the manifests contain
/// a default class.
pub(super) fn create(
    api: &mut InProcessApiClient,
    driver: &CsiDriver,
    manifests: &[Manifest],
) -> Result<(), RequestError> {
    let is_given = |object: &Value| {
        let name = |it: &Value| (it["kind"].clone(), it["metadata"]["name"].clone());
        manifests.iter().any(|it| name(&it.object) == name(object))
    };
    for object in objects(driver, manifests).iter().filter(|object| !is_given(object)) {
        match api.create(object) {
            Err(error) if !error.already_exists() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn objects(driver: &CsiDriver, manifests: &[Manifest]) -> [Value; 2] {
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
