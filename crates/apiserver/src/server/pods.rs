//! Subresources of pods: binding and eviction.

use http::Response;
use serde_json::{Value, json};

use super::body::Body;
use super::create::Expected;
use super::delete::Deletion;
use super::{ApiResponse, ApiServer, ResourceRequest, rfc3339_seconds};
use crate::object::{list_entries, members_mut, meta_mut, metadata_text, parsed};
use crate::schema::schema;
use crate::status::{ApiError, created_status};
use crate::store::{Filter, ListOptions};

/// Labels that a pod takes over from its node when it is bound (upstream's PodTopologyLabels admission).
const TOPOLOGY_LABELS: &[&str] = &["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

/// After how many seconds to retry if the controller has not processed the PodDisruptionBudget yet.
const UNPROCESSED_SECONDS: u64 = 10;

/// The most disrupted pods in a PodDisruptionBudget's status, as upstream's `MaxDisruptedPodSize`.
const N_DISRUPTED_MAX: usize = 2000;

/// The message for an eviction that a PodDisruptionBudget forbids.
const WOULD_VIOLATE: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

impl ApiServer {
    /// `POST pods/NAME/binding`, and `POST bindings`, which names the pod in its body.
    pub(super) fn bind(&self, call: &ResourceRequest<'_>) -> Result<Response<Body>, ApiError> {
        let pods = self.own_kind("", "pods")?;
        let id = schema().find("core/v1.Binding").ok_or_else(ApiError::no_such_resource)?;
        let expected =
            Expected { group: "", version: "v1", kind: "Binding", type_id: id, custom: None };
        let (binding, warnings) = self.read_body(call, expected)?;
        let name = metadata_text(&binding, "name");
        self.check_namespace(call.kind, &call.target.namespace, name)?;
        if !call.target.name.is_empty() && name != call.target.name {
            return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
        }
        let namespace = metadata_text(&binding, "namespace");
        if !namespace.is_empty() && namespace != call.target.namespace {
            return Err(ApiError::other_namespace());
        }
        let target = &binding["target"];
        let text = |field: &str| target[field].as_str().unwrap_or_default();
        let node = text("name");
        if !matches!(text("kind"), "" | "Node") {
            return Err(ApiError::unclassified(&format!(
                "target.kind: Unsupported value: {:?}: supported values: \"<empty>\", \"Node\"",
                text("kind")
            )));
        }
        if node.is_empty() {
            return Err(ApiError::unclassified("target.name: Required value"));
        }
        let labels = self.topology_labels(node)?;
        let now = rfc3339_seconds(self.now());
        let key = (call.target.namespace.as_str(), name);
        let dry_run = call.query.dry_run()?;
        self.retry_update(pods, key, dry_run, |old| {
            let conflict = |why: &str| ApiError::conflict(pods, "binding", name, why);
            check_identity(old, &binding).map_err(|why| conflict(&why))?;
            if let Some(why) = cannot_bind(old) {
                return Err(conflict(&why));
            }
            Ok(bound(old, node, &binding, &labels, &now))
        })?;
        Ok(ApiResponse::status(201, &created_status(), call.form)
            .with_warnings(warnings)
            .into_response())
    }

    pub(super) fn topology_labels(&self, node: &str) -> Result<Vec<(String, Value)>, ApiError> {
        let nodes = self.own_kind("", "nodes")?;
        // A pod may be bound to a node that is not there.
        let Ok(node) = self.get_object(nodes, "", node) else { return Ok(Vec::new()) };
        let label = |name: &&str| {
            let value = node.labels().get(name)?;
            Some(((*name).to_owned(), Value::from(value.as_str())))
        };
        Ok(TOPOLOGY_LABELS.iter().filter_map(label).collect())
    }

    /// `POST pods/NAME/eviction`: a deletion that disruption budgets may forbid.
    pub(super) fn evict(&self, call: &ResourceRequest<'_>) -> Result<Response<Body>, ApiError> {
        let id = schema().find("policy/v1.Eviction").ok_or_else(ApiError::no_such_resource)?;
        let expected = Expected {
            group: "policy",
            version: "v1",
            kind: "Eviction",
            type_id: id,
            custom: None,
        };
        let (eviction, _) = self.read_body(call, expected)?;
        let (namespace, name) = (call.target.namespace.as_str(), call.target.name.as_str());
        self.check_namespace(call.kind, namespace, name)?;
        if metadata_text(&eviction, "name") != name {
            return Err(ApiError::bad_request(
                "name in URL does not match name in Eviction object",
            ));
        }
        let pod = parsed(&*self.get_object(call.kind, namespace, name)?)?;
        let deletion = Deletion::read(call, &eviction["deleteOptions"])?;
        if !needs_no_budget(&pod) {
            self.spend_budget(namespace, &pod, deletion.dry_run)?;
        }
        self.delete_object(call.kind, namespace, name, &deletion)?;
        Ok(ApiResponse::status(201, &created_status(), call.form).into_response())
    }

    /// Uses one allowed disruption of the pod's PodDisruptionBudget.
    fn spend_budget(&self, namespace: &str, pod: &Value, dry_run: bool) -> Result<(), ApiError> {
        let budgets = self.own_kind("policy", "poddisruptionbudgets")?;
        let table = budgets.table.ok_or_else(ApiError::no_such_resource)?;
        let prefix = format!("{namespace}/");
        let span = ListOptions { prefix: &prefix, ..ListOptions::default() };
        let page = self.state().store.list(table, &span, &Filter::everything());
        let page = page.map_err(|error| ApiError::internal(&error.to_string()))?;
        let labels = crate::object::labels(pod);
        let mut over = Vec::new();
        for object in &page.objects {
            let budget = parsed(object)?;
            if crate::selector::label_selector_matches(&budget["spec"]["selector"], &labels) {
                over.push(budget);
            }
        }
        let [budget] = over.as_slice() else {
            let message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            return if over.is_empty() { Ok(()) } else { Err(ApiError::internal(message)) };
        };
        let is_ready = list_entries(&pod["status"]["conditions"])
            .iter()
            .any(|it| it["type"] == "Ready" && it["status"] == "True");
        let always = budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow";
        let healthy = |field: &str| budget["status"][field].as_i64().unwrap_or(0);
        let is_spare =
            healthy("currentHealthy") >= healthy("desiredHealthy") && healthy("desiredHealthy") > 0;
        if !is_ready && (always || is_spare) {
            return Ok(());
        }
        let name = metadata_text(budget, "name");
        let at = rfc3339_seconds(self.now());
        self.retry_update(budgets, (namespace, name), dry_run, |old| {
            record_disruption(old, name, metadata_text(pod, "name"), &at)
        })?;
        Ok(())
    }
}

/// Checks the uid and resourceVersion of a binding against the pod.
fn check_identity(pod: &Value, binding: &Value) -> Result<(), String> {
    for (label, field) in [("UID", "uid"), ("ResourceVersion", "resourceVersion")] {
        let (wanted, found) = (metadata_text(binding, field), metadata_text(pod, field));
        if !wanted.is_empty() && wanted != found {
            return Err(format!(
                "Precondition failed: {label} in precondition: {wanted}, {label} in object meta: {found}"
            ));
        }
    }
    Ok(())
}

/// Why a pod cannot be bound.
fn cannot_bind(pod: &Value) -> Option<String> {
    let name = metadata_text(pod, "name");
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        Some(format!("pod {name} is being deleted, cannot be assigned to a host"))
    } else if !node.is_empty() {
        Some(format!("pod {name} is already assigned to node {node:?}"))
    } else if !list_entries(&pod["spec"]["schedulingGates"]).is_empty() {
        Some(format!("pod {name} has non-empty .spec.schedulingGates"))
    } else {
        None
    }
}

fn bound(old: &Value, node: &str, binding: &Value, labels: &[(String, Value)], now: &str) -> Value {
    let mut pod = old.clone();
    pod["spec"]["nodeName"] = node.into();
    let given = |field: &str| binding["metadata"][field].as_object().cloned().unwrap_or_default();
    let mut all_labels = given("labels");
    all_labels.extend(labels.iter().cloned());
    for (field, more) in [("annotations", given("annotations")), ("labels", all_labels)] {
        if !more.is_empty() {
            let known = meta_mut(&mut pod).entry(field).or_insert_with(|| json!({}));
            members_mut(known).extend(more);
        }
    }
    let status = members_mut(&mut pod["status"]);
    status.remove("nominatedNodeName");
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    set_condition(conditions, json!({"type": "PodScheduled", "status": "True"}), now);
    pod
}

/// Puts a condition in place of the one of its type.
fn set_condition(conditions: &mut Value, mut condition: Value, now: &str) {
    let Value::Array(list) = conditions else { return };
    condition["lastProbeTime"] = Value::Null;
    condition["lastTransitionTime"] = now.into();
    match list.iter_mut().find(|it| it["type"] == condition["type"]) {
        Some(known) => {
            if known["status"] == condition["status"] {
                condition["lastTransitionTime"] = known["lastTransitionTime"].clone();
            }
            *known = condition;
        }
        None => list.push(condition),
    }
}

/// Whether a pod can be evicted without a PodDisruptionBudget: it is terminated, being deleted, or not running yet.
fn needs_no_budget(pod: &Value) -> bool {
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    matches!(phase, "Succeeded" | "Failed" | "Pending")
        || !pod["metadata"]["deletionTimestamp"].is_null()
}

fn record_disruption(budget: &Value, name: &str, pod: &str, at: &str) -> Result<Value, ApiError> {
    let number = |field: &str| budget["status"][field].as_i64().unwrap_or(0);
    let too_many =
        |detail: String| ApiError::too_many_requests(WOULD_VIOLATE, "DisruptionBudget", detail);
    if number("observedGeneration") < budget["metadata"]["generation"].as_i64().unwrap_or(0) {
        let why = format!("The disruption budget {name} is still being processed by the server.");
        return Err(too_many(why).after(UNPROCESSED_SECONDS));
    }
    let forbid =
        |why: &str| Err(ApiError::forbidden_resource("policy", "poddisruptionbudget", name, why));
    let allowed = number("disruptionsAllowed");
    if allowed < 0 {
        return forbid("pdb disruptions allowed is negative");
    }
    if budget["status"]["disruptedPods"].as_object().is_some_and(|it| it.len() > N_DISRUPTED_MAX) {
        return forbid(
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        );
    }
    if allowed == 0 {
        return Err(too_many(disruption_block_reason(&budget["status"], name)));
    }
    let mut new = budget.clone();
    new["status"]["disruptionsAllowed"] = (allowed - 1).into();
    if allowed == 1 {
        let conditions = members_mut(&mut new["status"]).entry("conditions");
        let conditions = conditions.or_insert_with(|| json!([]));
        none_allowed(conditions, number("observedGeneration"), at);
    }
    let disrupted =
        members_mut(&mut new["status"]).entry("disruptedPods").or_insert_with(|| json!({}));
    members_mut(disrupted).insert(pod.to_owned(), at.into());
    Ok(new)
}

/// Why a budget allows no disruption.
fn disruption_block_reason(status: &Value, name: &str) -> String {
    let number = |field: &str| status[field].as_i64().unwrap_or(0);
    let text = |it: &Value, field: &str| it[field].as_str().unwrap_or_default().to_owned();
    let refused = list_entries(&status["conditions"])
        .iter()
        .find(|it| it["type"] == "DisruptionAllowed")
        .filter(|it| it["status"] == "False" && !text(it, "message").is_empty());
    let begin = format!("The disruption budget {name}");
    match refused.map(|it| (text(it, "reason"), text(it, "message"))) {
        Some((reason, message)) if reason == "SyncFailed" => format!(
            "{begin} does not allow evicting pods currently because it failed sync: {message}"
        ),
        _ if number("currentHealthy") <= number("desiredHealthy") => format!(
            "{begin} needs {} healthy pods and has {} currently",
            number("desiredHealthy"),
            number("currentHealthy")
        ),
        Some((reason, message)) => {
            format!("{begin} does not allow evicting pods currently ({reason}): {message}")
        }
        None => format!("{begin} does not allow evicting pods currently"),
    }
}

/// Records in the conditions that no disruption is left.
fn none_allowed(conditions: &mut Value, generation: i64, at: &str) {
    let Value::Array(list) = conditions else { return };
    let known = list.iter().position(|it| it["type"] == "DisruptionAllowed");
    let mut condition = json!({"type": "DisruptionAllowed", "status": "False",
        "observedGeneration": generation, "lastTransitionTime": at,
        "reason": "InsufficientPods", "message": ""});
    match known {
        Some(nth) => {
            if list[nth]["status"] == "False" {
                condition["lastTransitionTime"] = list[nth]["lastTransitionTime"].clone();
            }
            list[nth] = condition;
        }
        None => list.push(condition),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_says_why_it_allows_no_eviction() {
        let condition = |reason: &str| json!([{"type": "DisruptionAllowed", "status": "False", "reason": reason, "message": "m"}]);
        for (status, want) in [
            (
                json!({"desiredHealthy": 2, "currentHealthy": 1}),
                "needs 2 healthy pods and has 1 currently",
            ),
            (
                json!({"conditions": condition("SyncFailed")}),
                "does not allow evicting pods currently because it failed sync: m",
            ),
            (
                json!({"desiredHealthy": 1, "currentHealthy": 2, "conditions": condition("R")}),
                "does not allow evicting pods currently (R): m",
            ),
            (
                json!({"desiredHealthy": 1, "currentHealthy": 2}),
                "does not allow evicting pods currently",
            ),
        ] {
            assert_eq!(
                disruption_block_reason(&status, "b"),
                format!("The disruption budget b {want}")
            );
        }
    }

    #[test]
    fn the_last_disruption_sets_the_condition() {
        let take = |status: Value| {
            let budget = json!({"metadata": {"generation": 2}, "status": status});
            record_disruption(&budget, "b", "p", "now")
        };
        let status = |allowed: i64| json!({"observedGeneration": 2, "disruptionsAllowed": allowed});
        let two = take(status(2)).unwrap();
        assert_eq!(two["status"]["disruptedPods"], json!({"p": "now"}));
        assert_eq!(two["status"]["conditions"], Value::Null);
        let one = take(status(1)).unwrap();
        assert_eq!(one["status"]["conditions"][0]["reason"], "InsufficientPods");
        assert_eq!(take(status(0)).unwrap_err().details["retryAfterSeconds"], Value::Null);
        assert_eq!(take(status(-1)).unwrap_err().code, 403);
        let unseen = take(json!({"observedGeneration": 1})).unwrap_err();
        assert_eq!(unseen.details["retryAfterSeconds"], 10);
    }
}
