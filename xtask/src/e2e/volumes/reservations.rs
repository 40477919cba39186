//! Finds volumes and claims that are reserved for something that does not exist.

use anyhow::Result;
use serde_json::Value;

use super::cluster::{CLAIMS, PODS, VOLUMES};
use crate::e2e::api_client::ApiClient;
use crate::e2e::special_pods::{STEP_TIMEOUT, wait_until};

const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// Waits until nothing is reserved without need, and returns what is left after a timeout.
pub async fn faults(api: &ApiClient) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let waited = wait_until("all reservations to end", STEP_TIMEOUT, async || {
        let volumes = api.list(VOLUMES).await?;
        let claims = api.list(CLAIMS).await?;
        let pods = api.list(PODS).await?;
        found = volumes.iter().filter_map(|it| volume_fault(it, &claims)).collect();
        found.extend(claims.iter().filter_map(|it| claim_fault(it, &pods)));
        Ok(found.is_empty())
    })
    .await;
    match waited {
        Err(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

/// A volume must be free, released and retained, or that of the claim that it names.
fn volume_fault(volume: &Value, claims: &[Value]) -> Option<String> {
    let (name, reference) = (&volume["metadata"]["name"], &volume["spec"]["claimRef"]);
    if reference.is_null() {
        return None;
    }
    let claim = claims.iter().find(|claim| claim["metadata"]["uid"] == reference["uid"]);
    let Some(claim) = claim else {
        let is_retained = volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
            && volume["status"]["phase"] == "Released";
        return (!is_retained).then(|| {
            format!("volume {name} is reserved for a claim {} that was deleted", reference["name"])
        });
    };
    let own = &claim["spec"]["volumeName"];
    (own != name).then(|| {
        format!("volume {name} is reserved for {}, whose volume is {own}", reference["name"])
    })
}

/// A claim without a volume may have a selected node only while a pod waits for it.
fn claim_fault(claim: &Value, pods: &[Value]) -> Option<String> {
    let name = &claim["metadata"]["name"];
    let node = claim["metadata"]["annotations"][SELECTED_NODE].as_str()?;
    let is_bound = claim["spec"]["volumeName"].as_str().is_some_and(|volume| !volume.is_empty());
    let uses_it = |pod: &&Value| {
        let mut volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
        volumes.any(|volume| volume["persistentVolumeClaim"]["claimName"] == *name)
    };
    let is_used = || pods.iter().any(|pod| uses_it(&pod));
    (!is_bound && !is_used())
        .then(|| format!("claim {name} has no volume and no pod, but the selected node {node:?}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn volumes_of_other_and_deleted_claims_are_reported() {
        let claims = [json!({"metadata": {"name": "c", "uid": "1"}, "spec": {"volumeName": "v"}})];
        let check = |spec: Value, phase: &str, is_fault: bool| {
            let volume =
                json!({"metadata": {"name": "v"}, "spec": spec, "status": {"phase": phase}});
            assert_eq!(volume_fault(&volume, &claims).is_some(), is_fault, "{volume}");
        };
        let of = |uid: &str, policy: &str| json!({"claimRef": {"name": "c", "uid": uid}, "persistentVolumeReclaimPolicy": policy});
        check(json!({}), "Available", false);
        check(of("1", "Retain"), "Bound", false);
        check(of("2", "Retain"), "Released", false);
        check(of("2", "Retain"), "Available", true);
        check(of("2", "Delete"), "Released", true);
        let other = json!({"metadata": {"name": "w"}, "spec": of("1", "Retain")});
        assert!(volume_fault(&other, &claims).is_some());
    }

    #[test]
    fn selected_nodes_without_a_pod_are_reported() {
        let pods =
            [json!({"spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "used"}}]}})];
        let check = |name: &str, node: Value, volume: &str, is_fault: bool| {
            let claim = json!({"metadata": {"name": name, "annotations": {SELECTED_NODE: node}},
                "spec": {"volumeName": volume}});
            assert_eq!(claim_fault(&claim, &pods).is_some(), is_fault, "{claim}");
        };
        check("used", json!("n"), "", false);
        check("unused", json!("n"), "", true);
        check("unused", json!("n"), "v", false);
        check("unused", json!(null), "", false);
    }
}
