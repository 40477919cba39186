//! Administrators of ElasticQuotas, and the namespaces of pods.

use loadmaster_api::Str;
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use super::kind;
use crate::fake_api_server::FakeApiServer;

const NAMESPACES: [&str; 3] = ["default", "team-a", "team-b"];

pub(in crate::simulate) struct QuotaWorkload {
    rng: Rng,
    deletions: bool,
    changes: bool,
}

impl QuotaWorkload {
    /// Creates the first quotas.
    pub fn new(mut rng: Rng, api_server: &mut FakeApiServer) -> QuotaWorkload {
        let [deletions, changes] = [0, 0].map(|_| !rng.one_in(3));
        let mut workload = QuotaWorkload { rng, deletions, changes };
        for namespace in NAMESPACES {
            if !workload.rng.one_in(6) {
                workload.put(api_server, namespace, "quota");
            }
        }
        workload
    }

    /// Puts the pods of a template into one of the namespaces.
    pub fn set_namespace(&mut self, manifest: &mut Value) {
        manifest["metadata"]["namespace"] = (*self.rng.pick(&NAMESPACES)).into();
    }

    fn put(&mut self, api_server: &mut FakeApiServer, namespace: &str, name: &str) {
        let min = self.rng.range(0, 8);
        let max = min + self.rng.range(0, 8);
        let list =
            |cpus: i64| json!({"cpu": cpus.to_string(), "memory": format!("{}Gi", cpus * 4)});
        let mut spec = json!({"min": list(min), "max": list(max)});
        if self.rng.one_in(5) {
            spec["max"] = Value::Null;
        }
        let metadata = json!({"namespace": namespace, "name": name});
        let full_name = Str::new(&format!("{namespace}/{name}"));
        let object = json!({
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "ElasticQuota",
            "metadata": metadata,
            "spec": spec,
        });
        api_server.upsert_custom_object(kind().clone(), &full_name, object);
    }

    /// Does one random operation, or none.
    pub fn random_operation(&mut self, api_server: &mut FakeApiServer) {
        let namespace = *self.rng.pick(&NAMESPACES);
        match self.rng.below(40) {
            0 | 1 if self.changes => self.put(api_server, namespace, "quota"),
            // A second one in the namespace: the first one by name counts.
            2 if self.changes && self.rng.one_in(3) => {
                let name = *self.rng.pick(&["a", "z"]);
                self.put(api_server, namespace, name);
            }
            3 if self.deletions => {
                let names = api_server.custom_objects(kind()).map(|(name, _)| name.clone());
                let names: Vec<Str> = names.collect();
                if !names.is_empty() {
                    api_server.delete_custom_object(kind().clone(), self.rng.pick(&names));
                }
            }
            4 => {
                let name = Str::new(&format!("{namespace}/quota"));
                if let Some(mut quota) = api_server.custom_object(kind(), &name).cloned() {
                    let used = self.rng.range(0, 9).to_string();
                    quota["status"] = json!({"used": {"cpu": used}});
                    api_server.upsert_custom_object(kind().clone(), &name, quota);
                }
            }
            _ => {}
        }
    }
}
