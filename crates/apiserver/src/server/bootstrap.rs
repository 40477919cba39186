//! What a new cluster has: its namespaces, service accounts, system priority classes, the service of the API server, and
//! upstream's roles.

use serde_json::{Value, json};

use super::ApiServer;
use super::create::Expected;
use super::managed::Write;
use crate::object::key_of;
use crate::request::FieldValidation;
use crate::status::ApiError;

/// Where in-cluster clients find the API server, the first address of upstream's default service range.
const SERVICE_ADDRESS: &str = "10.96.0.1";

const NAMESPACES: &[&str] = &["kube-system", "default", "kube-public", "kube-node-lease"];

impl ApiServer {
    pub(super) fn bootstrap(&self) -> Result<(), ApiError> {
        self.furnish()?;
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
            self.make("scheduling.k8s.io", "priorityclasses", "", class)?;
        }
        // Since when uses of tokens that are secrets would be noted; a controller asks. There are none here.
        let since = self.now().strftime("%Y-%m-%d").to_string();
        let name = "kube-apiserver-legacy-service-account-token-tracking";
        let tracking = json!({"metadata": {"name": name}, "data": {"since": since}});
        self.make("", "configmaps", "kube-system", tracking)?;
        for made in crate::authorize::bootstrap() {
            self.make(crate::authorize::GROUP, made.resource, made.namespace, made.value)?;
        }
        self.aggregate_roles()
    }

    /// Makes what is there as long as the server is, however often it is deleted: its namespaces and its service.
    pub(super) fn furnish(&self) -> Result<(), ApiError> {
        for name in NAMESPACES {
            if !self.is_there("namespaces", "", name)? {
                self.make("", "namespaces", "", json!({"metadata": {"name": name}}))?;
                let account = json!({"metadata": {"name": "default"}});
                self.make("", "serviceaccounts", name, account)?;
            }
        }
        if self.is_there("services", "default", "kubernetes")? {
            return Ok(());
        }
        let service = json!({
            "metadata": {"name": "kubernetes",
                "labels": {"component": "apiserver", "provider": "kubernetes"}},
            "spec": {"clusterIP": SERVICE_ADDRESS, "ipFamilyPolicy": "SingleStack",
                "ports": [{"name": "https", "port": 443, "targetPort": 6443}]},
        });
        self.make("", "services", "default", service)
    }

    fn is_there(&self, resource: &str, namespace: &str, name: &str) -> Result<bool, ApiError> {
        let kind = self.own_kind("", resource)?;
        let table = kind.table.ok_or_else(ApiError::no_such_resource)?;
        Ok(self.state().store.get(table, &key_of(kind, namespace, name)).is_some())
    }

    /// Publishes the authority of client certificates, for schedulers and controllers that serve pages themselves.
    ///
    /// # Errors
    ///
    /// When it cannot be stored, which is a bug.
    pub fn publish_authority(&self, pem: &str) -> Result<(), ApiError> {
        let name = "extension-apiserver-authentication";
        let map = json!({"metadata": {"name": name}, "data": {"client-ca-file": pem}});
        self.make("", "configmaps", "kube-system", map)?;
        // It may have been there from an earlier life.
        let kind = self.own_kind("", "configmaps")?;
        let written = self.rewrite(kind, ("kube-system", name), false, |old| {
            let mut new = old.clone();
            new["data"]["client-ca-file"] = pem.into();
            Ok(new)
        });
        written.map(drop)
    }

    fn make(
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
            // A server that goes on from a folder has it already.
            Err(error) if error.reason == "AlreadyExists" => Ok(()),
            made => made.map(drop),
        }
    }
}
