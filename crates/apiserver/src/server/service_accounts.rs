//! Service accounts of pods: the default account and the mounted token (upstream's admission plugin ServiceAccount).

use serde_json::{Value, json};

use super::ApiServer;
use crate::object::{list_entries, metadata_text, parsed};
use crate::schema::Kind;
use crate::status::ApiError;

/// Where the token is mounted in containers.
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME: &str = "kube-api-access";

/// Lifetime of the token that the kubelet requests, in seconds.
const TOKEN_SECONDS: i64 = 3607;

impl ApiServer {
    pub(super) fn set_service_account(&self, kind: &Kind, pod: &mut Value) -> Result<(), ApiError> {
        let is_mirror = pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_string();
        let spec = &mut pod["spec"];
        if spec["serviceAccountName"].as_str().is_none_or(str::is_empty) && !is_mirror {
            spec["serviceAccountName"] = "default".into();
            spec["serviceAccount"] = "default".into();
        }
        if !self.shared.setup.admission.service_account || is_mirror {
            return Ok(());
        }
        let namespace = metadata_text(pod, "namespace").to_owned();
        let name = pod["spec"]["serviceAccountName"].as_str().unwrap_or_default().to_owned();
        let accounts = self.own_kind("", "serviceaccounts")?;
        let account = self.get_object(accounts, &namespace, &name).map_err(|_| {
            let why = format!(
                "error looking up service account {namespace}/{name}: serviceaccount {name:?} not found"
            );
            ApiError::forbidden(kind, metadata_text(pod, "name"), &why)
        })?;
        let account = parsed(&account)?;
        let wants_token = pod["spec"]["automountServiceAccountToken"]
            .as_bool()
            .or(account["automountServiceAccountToken"].as_bool());
        if wants_token.unwrap_or(true) {
            let suffix = super::create::suffix(&mut self.state().rng);
            mount_token(&mut pod["spec"], &suffix);
        }
        let secrets = &account["imagePullSecrets"];
        if list_entries(&pod["spec"]["imagePullSecrets"]).is_empty()
            && !list_entries(secrets).is_empty()
        {
            pod["spec"]["imagePullSecrets"] = secrets.clone();
        }
        Ok(())
    }
}

/// Mounts the token volume in all containers that have no other mount at its path.
fn mount_token(spec: &mut Value, suffix: &str) {
    let known = list_entries(&spec["volumes"]).iter().find_map(|volume| {
        volume["name"].as_str().filter(|name| name.starts_with(&format!("{VOLUME}-")))
    });
    let has_volume = known.is_some();
    let name = known.map_or_else(|| format!("{VOLUME}-{suffix}"), str::to_owned);
    let mut is_needed = false;
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let mounts = &mut container["volumeMounts"];
            if list_entries(mounts).iter().any(|it| it["mountPath"] == MOUNT_PATH) {
                continue;
            }
            push(mounts, json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH}));
            is_needed = true;
        }
    }
    if is_needed && !has_volume {
        let volume = json!({"name": name, "projected": {"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt",
                "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace",
                "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
        ]}});
        push(&mut spec["volumes"], volume);
    }
}

fn push(list: &mut Value, entry: Value) {
    match list {
        Value::Array(list) => list.push(entry),
        _ => *list = json!([entry]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_mounted_unless_its_path_is_used() {
        let mut spec = json!({"containers": [
            {"name": "a"}, {"name": "b", "volumeMounts": [{"name": "v", "mountPath": MOUNT_PATH}]}]});
        mount_token(&mut spec, "x");
        assert_eq!(
            spec["containers"][0]["volumeMounts"],
            json!([
            {"name": "kube-api-access-x", "readOnly": true, "mountPath": MOUNT_PATH}])
        );
        assert_eq!(list_entries(&spec["containers"][1]["volumeMounts"]).len(), 1);
        assert_eq!(spec["volumes"][0]["name"], "kube-api-access-x");
        let once = spec.clone();
        mount_token(&mut spec, "y");
        assert_eq!(spec, once);
    }
}
