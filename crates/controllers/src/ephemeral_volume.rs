//! Creates the claims of generic ephemeral volumes.
//!
//! | | |
//! | --- | --- |
//! | writes | PersistentVolumeClaims, Events |
//! | upstream | `pkg/controller/volume/ephemeral`, 1.36 |
//! | deviations | none |

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::kind::{Key, Kind};
use crate::meta::{controller_reference, is_controlled_by, is_terminating};
use crate::result_builder::ReconcileResultBuilder;
use crate::storage_objects::{claim_name, volumes_of};
use crate::workload::controller_key;

/// The controller of ephemeral volumes.
#[derive(Debug, Default)]
pub(crate) struct EphemeralVolumeController {
    /// The last warning about each pod.
    warnings: BTreeMap<Key, String>,
}

impl Controller for EphemeralVolumeController {
    fn name(&self) -> &'static str {
        "ephemeral-volume-controller"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::Pod, Kind::PersistentVolumeClaim]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, _: &Cache) -> Vec<Key> {
        let Some(object) = change.new_or_old() else { return Vec::new() };
        if let Some(pod) = object.typed::<Pod>() {
            let has_ephemeral = volumes_of(pod).any(|volume| volume.ephemeral.is_some());
            return has_ephemeral.then(|| object.key()).into_iter().collect();
        }
        let is_deleted = change.new.is_none();
        let pod = controller_key(object.metadata(), Kind::Pod).filter(|_| is_deleted);
        pod.into_iter().collect()
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        let mut writes = ReconcileResultBuilder::new(self.name(), now);
        let pod = cache.get::<Pod>(&key.namespace, &key.name);
        let Some(pod) = pod.filter(|pod| !is_terminating(&pod.metadata)) else {
            self.warnings.remove(key);
            return ReconcileResult::none();
        };
        for volume in volumes_of(pod) {
            let Some(template) =
                volume.ephemeral.as_ref().and_then(|it| it.volume_claim_template.as_ref())
            else {
                continue;
            };
            let name = claim_name(pod, volume).unwrap_or_default();
            let Some(claim) = cache.get::<PersistentVolumeClaim>(&key.namespace, &name) else {
                let of_template = template.metadata.clone().unwrap_or_default();
                writes.create(&PersistentVolumeClaim {
                    metadata: ObjectMeta {
                        name: Some(name),
                        namespace: Some(key.namespace.to_string()),
                        annotations: of_template.annotations,
                        labels: of_template.labels,
                        owner_references: Some(vec![controller_reference(&**pod)]),
                        ..ObjectMeta::default()
                    },
                    spec: Some(template.spec.clone()),
                    status: None,
                });
                continue;
            };
            if !is_controlled_by(&claim.metadata, pod.metadata.uid.as_deref().unwrap_or_default()) {
                let (namespace, pod_name) = (&key.namespace, &key.name);
                let text = format!(
                    "ephemeral volume {}: PVC {namespace}/{name} was not created for pod {namespace}/{pod_name} (pod is not owner)",
                    volume.name
                );
                if self.warnings.get(key) != Some(&text) {
                    writes.warning(&**pod, "FailedBinding", text.clone());
                    self.warnings.insert(key.clone(), text);
                }
                break;
            }
        }
        writes.build()
    }
}
