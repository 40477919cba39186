//! The objects of a new cluster: namespaces, service accounts, system priority classes, the service `kubernetes`, and
//! upstream's default roles.

use serde_json::{Value, json};

use super::ApiServer;
use super::create::Expected;
use super::field_manager::Write;
use crate::object::key_of;
use crate::request::FieldValidation;
use crate::status::ApiError;

/// The cluster IP of the service `kubernetes`: the first address of upstream's default service range.
const SERVICE_ADDRESS: &str = "10.96.0.1";

const NAMESPACES: &[&str] = &["kube-system", "default", "kube-public", "kube-node-lease"];

impl ApiServer {
    pub(super) fn bootstrap(&self) -> Result<(), ApiError> {
        self.ensure_system_objects()?;
        let classes = [
            (
                "system-node-critical",
                2_000_001_000,
                "Used for system critical pods that must not be moved from their current node.",
            ),
            (
                "system-cluster-critical",
                2_000_000_000,
                "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
            ),
        ];
        for (name, value, description) in classes {
            let class = json!({"metadata": {"name": name}, "value": value,
                "description": description});
            self.create_if_absent("scheduling.k8s.io", "priorityclasses", "", class)?;
        }
        // Controllers read since when the use of legacy tokens is tracked. There are no such tokens here.
        let since = self.now().strftime("%Y-%m-%d").to_string();
        let name = "kube-apiserver-legacy-service-account-token-tracking";
        let tracking = json!({"metadata": {"name": name}, "data": {"since": since}});
        self.create_if_absent("", "configmaps", "kube-system", tracking)?;
        for made in crate::authorization::bootstrap_objects() {
            self.create_if_absent(
                crate::authorization::RBAC_GROUP,
                made.resource,
                made.namespace,
                made.value,
            )?;
        }
        self.aggregate_roles()
    }

    /// Recreates the system namespaces and the service `kubernetes` if they are missing.
    pub(super) fn ensure_system_objects(&self) -> Result<(), ApiError> {
        for name in NAMESPACES {
            if !self.exists("namespaces", "", name)? {
                self.create_if_absent("", "namespaces", "", json!({"metadata": {"name": name}}))?;
                let account = json!({"metadata": {"name": "default"}});
                self.create_if_absent("", "serviceaccounts", name, account)?;
            }
        }
        if self.exists("services", "default", "kubernetes")? {
            return Ok(());
        }
        let service = json!({
            "metadata": {"name": "kubernetes",
                "labels": {"component": "apiserver", "provider": "kubernetes"}},
            "spec": {"clusterIP": SERVICE_ADDRESS, "ipFamilyPolicy": "SingleStack",
                "ports": [{"name": "https", "port": 443, "targetPort": 6443}]},
        });
        self.create_if_absent("", "services", "default", service)
    }

    fn exists(&self, resource: &str, namespace: &str, name: &str) -> Result<bool, ApiError> {
        let kind = self.own_kind("", resource)?;
        let table = kind.table.ok_or_else(ApiError::no_such_resource)?;
        Ok(self.state().store.get(table, &key_of(kind, namespace, name)).is_some())
    }

    /// Publishes the CA certificate of client certificates, for schedulers and controllers that serve HTTPS
    /// endpoints.
    ///
    /// # Errors
    ///
    /// When it cannot be stored, which is a bug.
    pub fn publish_client_ca(&self, pem: &str) -> Result<(), ApiError> {
        let name = "extension-apiserver-authentication";
        let map = json!({"metadata": {"name": name}, "data": {"client-ca-file": pem}});
        self.create_if_absent("", "configmaps", "kube-system", map)?;
        // It may exist from an earlier run of the server.
        let kind = self.own_kind("", "configmaps")?;
        let written = self.retry_update(kind, ("kube-system", name), false, |old| {
            let mut new = old.clone();
            new["data"]["client-ca-file"] = pem.into();
            Ok(new)
        });
        written.map(drop)
    }

    fn create_if_absent(
        &self,
        group: &str,
        resource: &str,
        namespace: &str,
        value: Value,
    ) -> Result<(), ApiError> {
        let kind = self.own_kind(group, resource)?;
        let (value, _) = self.typed(value, Expected::of(kind), FieldValidation::Strict)?;
        let write = Write { kind, subresource: "", manager: Some("kube-apiserver") };
        match self.create_value(write, namespace, value, false) {
            // It may exist already in a data directory.
            Err(error) if error.reason == "AlreadyExists" => Ok(()),
            made => made.map(drop),
        }
    }
}
