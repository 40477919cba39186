//! Creates the service account `default` and the ConfigMap `kube-root-ca.crt` in every namespace.
//!
//! | | |
//! | --- | --- |
//! | writes | ServiceAccounts and ConfigMaps |
//! | upstream | `pkg/controller/serviceaccount`, `pkg/controller/certificates/rootcacertpublisher`, 1.36 |
//! | deviations | none known |

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::kind::{Key, Kind};
use crate::meta::is_terminating;
use crate::result_builder::ReconcileResultBuilder;

const ACCOUNT: &str = "default";
const CERTIFICATE: &str = "kube-root-ca.crt";
const NOTE: (&str, &str) = (
    "kubernetes.io/description",
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.",
);

/// The service account controller and root CA publisher.
#[derive(Debug, Default)]
pub(crate) struct ServiceAccountController {
    /// The CA certificate of the API server in PEM, if known.
    pub root_ca: Option<String>,
}

impl Controller for ServiceAccountController {
    fn name(&self) -> &'static str {
        "serviceaccount-controller"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::Namespace, Kind::ServiceAccount, Kind::ConfigMap]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, _cache: &Cache) -> Vec<Key> {
        let Some(object) = change.new_or_old() else { return Vec::new() };
        let key = object.key();
        let name = match (key.kind, &*key.name) {
            (Kind::Namespace, _) => key.name,
            (Kind::ServiceAccount, ACCOUNT) | (Kind::ConfigMap, CERTIFICATE) => key.namespace,
            _ => return Vec::new(),
        };
        vec![Key::new(Kind::Namespace, "", name)]
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        let found = cache.get::<Namespace>("", &key.name);
        if found.is_none_or(|one| is_terminating(&one.metadata)) {
            return ReconcileResult::none();
        }
        let mut writes = ReconcileResultBuilder::new(self.name(), now);
        let meta = |name: &str| ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(key.name.to_string()),
            ..ObjectMeta::default()
        };
        if cache.get::<ServiceAccount>(&key.name, ACCOUNT).is_none() {
            writes.create(&ServiceAccount { metadata: meta(ACCOUNT), ..ServiceAccount::default() });
        }
        if let Some(root_ca) = &self.root_ca {
            let data = BTreeMap::from([("ca.crt".to_owned(), root_ca.clone())]);
            match cache.get::<ConfigMap>(&key.name, CERTIFICATE) {
                Some(found) if found.data.as_ref() == Some(&data) => {}
                Some(found) => writes.update(&ConfigMap { data: Some(data), ..(**found).clone() }),
                None => {
                    let mut metadata = meta(CERTIFICATE);
                    metadata.annotations =
                        Some(BTreeMap::from([(NOTE.0.to_owned(), NOTE.1.to_owned())]));
                    writes.create(&ConfigMap {
                        metadata,
                        data: Some(data),
                        ..ConfigMap::default()
                    });
                }
            }
        }
        writes.build()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::test_kubelet::bench;

    #[test]
    fn deleted_service_accounts_and_root_cas_are_created_again() {
        let mut bench =
            bench(vec![Box::new(ServiceAccountController { root_ca: Some("PEM".into()) })]);
        bench.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}));
        bench.run_until_idle();
        assert!(bench.get::<ServiceAccount>("x", ACCOUNT).is_some());
        let delete = |kind, name: &str| crate::ControllerRequest::Delete {
            key: Key::new(kind, "x", name),
            options: Default::default(),
        };
        bench.send_as_client(&delete(Kind::ServiceAccount, ACCOUNT));
        bench.send_as_client(&delete(Kind::ConfigMap, CERTIFICATE));
        bench.run_until_idle();
        assert!(bench.get::<ServiceAccount>("x", ACCOUNT).is_some());
        let patch = crate::Patch::Merge(json!({"data": {"ca.crt": "other"}}));
        bench.send_as_client(&crate::ControllerRequest::patch(
            Key::new(Kind::ConfigMap, "x", CERTIFICATE),
            patch,
        ));
        bench.run_until_idle();
        let map: ConfigMap = bench.get("x", CERTIFICATE).unwrap();
        assert_eq!(map.data.unwrap()["ca.crt"], "PEM");
    }
}
