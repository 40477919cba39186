//! Checks the final state of the cluster after a run: placements, Events and binding requests.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde_json::Value;

use super::api_client::ApiClient;
use super::workload::N_PODS_MAX_PER_NODE;

/// A pod and its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPlacement {
    pub uid: String,
    pub name: String,
    /// The label `app`, which is the group.
    pub app: String,
    /// The node; empty if the pod is pending.
    pub node: String,
}

/// The faults after a drain, one message each; empty if all is correct.
pub async fn faults(api: &ApiClient, namespace: &str, n_pods: u32) -> Result<Vec<String>> {
    let events = api.list(&format!("/api/v1/namespaces/{namespace}/events")).await?;
    let pods = pods(api, namespace).await?;
    let mut faults = check_placements(api, &pods, n_pods).await?;
    faults.extend(event_faults(&pods, &events));
    faults.extend(binding_faults(&String::from_utf8_lossy(&api.get("/metrics").await?), n_pods));
    Ok(faults)
}

/// All pods of a namespace.
pub async fn pods(api: &ApiClient, namespace: &str) -> Result<Vec<PodPlacement>> {
    let pods = api.list(&format!("/api/v1/namespaces/{namespace}/pods")).await?;
    Ok(pods.iter().map(pod_facts).collect())
}

/// The faults in the number and placement of the pods.
pub async fn check_placements(
    api: &ApiClient,
    pods: &[PodPlacement],
    n_pods: u32,
) -> Result<Vec<String>> {
    let nodes = api.list("/api/v1/nodes").await?;
    let zones = nodes.iter().map(|node| {
        let zone = &node["metadata"]["labels"]["topology.kubernetes.io/zone"];
        (text(&node["metadata"]["name"]), text(zone))
    });
    let mut faults = placement_faults(pods, &zones.collect());
    if pods.len() != n_pods as usize {
        faults.push(format!("there are {} pods, {n_pods} were created", pods.len()));
    }
    Ok(faults)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn pod_facts(pod: &Value) -> PodPlacement {
    PodPlacement {
        uid: text(&pod["metadata"]["uid"]),
        name: text(&pod["metadata"]["name"]),
        app: text(&pod["metadata"]["labels"]["app"]),
        node: text(&pod["spec"]["nodeName"]),
    }
}

/// Checks that every pod is on an existing node with capacity, and that the constraints of each group are satisfied.
fn placement_faults(pods: &[PodPlacement], zones: &BTreeMap<String, String>) -> Vec<String> {
    let mut faults = Vec::new();
    let pending: Vec<&str> =
        pods.iter().filter(|pod| pod.node.is_empty()).map(|pod| pod.name.as_str()).collect();
    if let Some(first) = pending.first() {
        faults.push(format!("{} pods are not bound, for example {first}", pending.len()));
    }
    let mut per_node: BTreeMap<&str, u32> = BTreeMap::new();
    let mut by_app: BTreeMap<&str, Vec<&PodPlacement>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !pod.node.is_empty()) {
        if !zones.contains_key(&pod.node) {
            faults.push(format!("{} is on {}, which does not exist", pod.name, pod.node));
        }
        *per_node.entry(&pod.node).or_default() += 1;
        by_app.entry(&pod.app).or_default().push(pod);
    }
    for (node, n) in per_node {
        if n > N_PODS_MAX_PER_NODE {
            faults.push(format!("{node} has {n} pods, but its capacity is {N_PODS_MAX_PER_NODE}"));
        }
    }
    for (app, pods) in by_app {
        faults.extend(group_fault(app, &pods, zones));
    }
    faults
}

/// Checks the constraints of a group, which follow from its name.
fn group_fault(
    app: &str,
    pods: &[&PodPlacement],
    zones: &BTreeMap<String, String>,
) -> Option<String> {
    let mut per_zone: BTreeMap<&str, usize> = BTreeMap::new();
    if app == "spread" {
        // A zone without pods counts as well.
        per_zone.extend(zones.values().map(|zone| (zone.as_str(), 0)));
    }
    for pod in pods {
        let zone = zones.get(&pod.node).map_or("", String::as_str);
        *per_zone.entry(zone).or_default() += 1;
    }
    let nodes: BTreeSet<&str> = pods.iter().map(|pod| pod.node.as_str()).collect();
    let counts = || per_zone.values().copied();
    let skew = counts().max()? - counts().min()?;
    if app == "spread" && skew > 1 {
        return Some(format!(
            "the zones of {app} differ by {skew} pods, 1 is allowed: {per_zone:?}"
        ));
    }
    if app.starts_with("apart-") && nodes.len() < pods.len() {
        return Some(format!("{} pods of {app} are on {} nodes", pods.len(), nodes.len()));
    }
    if app.starts_with("near-") && per_zone.len() > 1 {
        return Some(format!("{app} is in several zones: {per_zone:?}"));
    }
    None
}

/// Checks that there is exactly one Event `Scheduled` per pod.
fn event_faults(pods: &[PodPlacement], events: &[Value]) -> Vec<String> {
    let mut n_by_uid: BTreeMap<String, u64> = pods.iter().map(|pod| (pod.uid.clone(), 0)).collect();
    let mut faults = Vec::new();
    for event in events.iter().filter(|event| event["reason"] == "Scheduled") {
        // An Event that represents several has one of these fields.
        let n = [&event["count"], &event["series"]["count"]];
        let n = n.into_iter().filter_map(Value::as_u64).max().unwrap_or(1).max(1);
        match n_by_uid.get_mut(event["involvedObject"]["uid"].as_str().unwrap_or_default()) {
            Some(count) => *count += n,
            None => faults.push(format!("an Event for an unknown pod: {}", event["message"])),
        }
    }
    let n_without = n_by_uid.values().filter(|&&n| n == 0).count();
    let n_several = n_by_uid.values().filter(|&&n| n > 1).count();
    if n_without > 0 {
        faults.push(format!("{n_without} pods have no Event Scheduled"));
    }
    if n_several > 0 {
        faults.push(format!("{n_several} pods have several Events Scheduled"));
    }
    faults
}

/// Checks the API server's count of binding requests: one success per pod, no permanent rejection.
fn binding_faults(metrics: &str, n_pods: u32) -> Vec<String> {
    let mut n_by_code: BTreeMap<&str, f64> = BTreeMap::new();
    for line in metrics.lines().filter(|line| line.starts_with("apiserver_request_total{")) {
        if !line.contains(r#"subresource="binding""#) {
            continue;
        }
        let code = line.split_once(r#"code=""#).and_then(|(_, rest)| rest.split_once('"'));
        let n = line.rsplit_once(' ').and_then(|(_, n)| n.parse::<f64>().ok());
        if let (Some((code, _)), Some(n)) = (code, n) {
            *n_by_code.entry(code).or_default() += n;
        }
    }
    let n_good = n_by_code.remove("201").unwrap_or_default();
    // A busy API server rejects requests temporarily; clients retry them.
    n_by_code.remove("429");
    let mut faults = Vec::new();
    if n_good != f64::from(n_pods) {
        faults.push(format!("{n_good} binding requests succeeded for {n_pods} pods"));
    }
    faults.extend(
        n_by_code.iter().map(|(code, n)| format!("{n} binding requests got status {code}")),
    );
    faults
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pods(list: &[(&str, &str)]) -> Vec<PodPlacement> {
        let made = list.iter().enumerate().map(|(i, &(app, node))| PodPlacement {
            uid: format!("u{i}"),
            name: format!("p{i}"),
            app: app.to_owned(),
            node: node.to_owned(),
        });
        made.collect()
    }

    #[test]
    fn wrong_placements_are_reported() {
        let zones = [("a1", "a"), ("a2", "a"), ("b1", "b")];
        let zones = zones.map(|(node, zone)| (node.to_owned(), zone.to_owned())).into();
        let check = |list: &[(&str, &str)], want: &[&str]| {
            assert_eq!(placement_faults(&pods(list), &zones), want, "{list:?}");
        };
        check(&[("basic", "a1"), ("basic", "a1")], &[]);
        check(&[("basic", "a1"), ("basic", "")], &["1 pods are not bound, for example p1"]);
        check(&[("basic", "c1")], &["p0 is on c1, which does not exist"]);
        check(&[("apart-1", "a1"), ("apart-2", "a1")], &[]);
        check(&[("apart-1", "a1"), ("apart-1", "a1")], &["2 pods of apart-1 are on 1 nodes"]);
        check(&[("near-1", "a1"), ("near-1", "a2"), ("near-2", "b1")], &[]);
        let several = r#"near-1 is in several zones: {"a": 1, "b": 1}"#;
        check(&[("near-1", "a1"), ("near-1", "b1")], &[several]);
        check(&[("spread", "a1"), ("spread", "b1"), ("spread", "a2")], &[]);
        let skewed = r#"the zones of spread differ by 2 pods, 1 is allowed: {"a": 2, "b": 0}"#;
        check(&[("spread", "a1"), ("spread", "a2")], &[skewed]);
        let full = vec![("basic", "a1"); 111];
        check(&full, &["a1 has 111 pods, but its capacity is 110"]);
    }

    #[test]
    fn each_pod_has_one_event() {
        let event = |uid: &str, reason: &str, more: Value| json!({"reason": reason, "involvedObject": {"uid": uid}, "series": more, "message": "m"});
        let check = |events: &[Value], want: &[&str]| {
            let pods = pods(&[("basic", "a1"), ("basic", "a1")]);
            assert_eq!(event_faults(&pods, events), want, "{events:?}");
        };
        let (first, second) =
            (event("u0", "Scheduled", json!(null)), event("u1", "Scheduled", json!(null)));
        check(&[first.clone(), second.clone()], &[]);
        check(
            &[first.clone(), event("u1", "FailedScheduling", json!(null))],
            &["1 pods have no Event Scheduled"],
        );
        check(
            &[first.clone(), second.clone(), first.clone()],
            &["1 pods have several Events Scheduled"],
        );
        check(
            &[first.clone(), event("u1", "Scheduled", json!({"count": 2}))],
            &["1 pods have several Events Scheduled"],
        );
        check(
            &[first, second, event("x", "Scheduled", json!(null))],
            &[r#"an Event for an unknown pod: "m""#],
        );
    }

    #[test]
    fn binding_requests_are_counted() {
        let line = |code: &str, sub: &str, n: &str| {
            format!(
                "apiserver_request_total{{code=\"{code}\",component=\"apiserver\",subresource=\"{sub}\",verb=\"POST\"}} {n}\n"
            )
        };
        let check = |metrics: &str, want: &[&str]| {
            assert_eq!(binding_faults(metrics, 2_000_000), want, "{metrics}");
        };
        let good = line("201", "binding", "2e+06") + &line("201", "", "7") + &line("409", "", "1");
        check(&good, &[]);
        check(&(good.clone() + &line("429", "binding", "8")), &[]);
        check(
            &(good.clone() + &line("409", "binding", "3")),
            &["3 binding requests got status 409"],
        );
        check(&line("201", "binding", "1"), &["1 binding requests succeeded for 2000000 pods"]);
        check("", &["0 binding requests succeeded for 2000000 pods"]);
    }
}
