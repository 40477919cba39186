//! Validation of objects, with upstream's messages: metadata of every kind; and pods, workloads, nodes, services,
//! priority classes, quotas, roles and bindings.

mod affinity;
mod event;
pub(crate) mod names;
mod pod;
mod quota;
mod rbac;
pub(crate) mod service;

use std::borrow::Cow;

use loadmaster_stdx::Set;
use serde_json::{Value, json};

use crate::authorization::RBAC_GROUP;
use crate::custom_resource::{definition, strategy, validate_definition};
use crate::object::{list_entries, metadata_text};
use crate::schema::Kind;
use crate::status::Cause;

/// Validates a new object after defaulting.
pub fn create(kind: &Kind, value: &Value) -> Vec<Cause> {
    let mut causes = metadata(kind, value);
    if let Some(custom) = kind.custom() {
        causes.extend(strategy::check_create(&custom, value));
        return causes;
    }
    let spec = &value["spec"];
    match (kind.group, kind.resource) {
        ("", "pods") => pod::spec(spec, "spec", &mut causes),
        ("", "configmaps" | "secrets") => {
            data_keys(value, &mut causes);
            data_size(kind, value, &mut causes);
        }
        ("apps", "deployments" | "replicasets" | "daemonsets") => workload(value, &mut causes),
        ("apps", "statefulsets") => {
            workload(&with_volumes_of_claim_templates(value), &mut causes);
        }
        ("apps", "controllerrevisions") => controller_revision(value, &mut causes),
        ("", "replicationcontrollers") => replication_controller(value, &mut causes),
        ("batch", "jobs") => job(spec, "spec", &mut causes),
        ("batch", "cronjobs") => cron_job(spec, &mut causes),
        ("", "nodes") => node(spec, &mut causes),
        ("", "services") => service::spec(spec, &Value::Null, &mut causes),
        ("", "resourcequotas") => quota::spec(spec, &mut causes),
        ("" | "events.k8s.io", "events") => event::create(kind, value, &mut causes),
        ("scheduling.k8s.io", "priorityclasses") => priority_class(value, &mut causes),
        ("apiextensions.k8s.io", "customresourcedefinitions") => {
            causes.extend(validate_definition::validate_definition_create(value));
        }
        (RBAC_GROUP, "roles" | "clusterroles") => {
            rbac::role(value, kind.is_namespaced, &mut causes)
        }
        (RBAC_GROUP, "rolebindings" | "clusterrolebindings") => {
            rbac::binding(value, kind.is_namespaced, &mut causes);
        }
        _ => {}
    }
    causes
}

/// Validates an update through a (sub)resource.
pub fn update(kind: &Kind, subresource: &str, old: &Value, new: &Value) -> Vec<Cause> {
    if let Some(custom) = kind.custom() {
        let mut causes = metadata(kind, new);
        finalizers(old, new, &mut causes);
        causes.extend(strategy::check_update(&custom, subresource, old, new));
        return causes;
    }
    if kind.is("", "resourcequotas") && subresource == "status" {
        let mut causes = Vec::new();
        quota::status(&new["status"], &mut causes);
        return causes;
    }
    if !matches!(subresource, "" | "ephemeralcontainers" | "resize") {
        return Vec::new();
    }
    if definition::is_custom_resource_definition(kind) {
        let mut causes = metadata(kind, new);
        finalizers(old, new, &mut causes);
        causes.extend(validate_definition::validate_definition_update(old, new));
        return causes;
    }
    if kind.is("", "services") {
        let mut causes = metadata(kind, new);
        finalizers(old, new, &mut causes);
        service::update(&old["spec"], &new["spec"], &mut causes);
        service::spec(&new["spec"], &old["spec"], &mut causes);
        return causes;
    }
    let is_event = kind.resource == "events";
    let mut causes = if is_event { metadata(kind, new) } else { create(kind, new) };
    finalizers(old, new, &mut causes);
    match (kind.group, kind.resource) {
        _ if is_event => event::update(kind, old, new, &mut causes),
        ("", "pods") if subresource.is_empty() => pod::update(old, new, &mut causes),
        ("", "resourcequotas") => quota::update(old, new, &mut causes),
        ("apps", "deployments" | "replicasets" | "daemonsets") => {
            fixed("spec.selector", old, new, &mut causes)
        }
        ("apps", "controllerrevisions") => fixed("data", old, new, &mut causes),
        ("batch", "jobs") => {
            fixed("spec.selector", old, new, &mut causes);
            fixed("spec.completionMode", old, new, &mut causes);
        }
        ("scheduling.k8s.io", "priorityclasses") => {
            if old["value"] != new["value"] {
                causes.push(Cause::forbidden("value", "may not be changed in an update."));
            } else if old["preemptionPolicy"] != new["preemptionPolicy"] {
                let policy = &new["preemptionPolicy"];
                causes.push(Cause::invalid("preemptionPolicy", policy, "field is immutable"));
            }
        }
        ("apps", "statefulsets") => stateful_set_update(old, new, &mut causes),
        (RBAC_GROUP, "rolebindings" | "clusterrolebindings") => {
            rbac::binding_update(old, new, &mut causes);
        }
        ("", "secrets" | "configmaps") if old["immutable"] == true => {
            immutable(old, new, &mut causes)
        }
        _ => {}
    }
    causes
}

/// An immutable field.
fn fixed(field: &str, old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let at =
        |value: &Value| field.split('.').fold(value.clone(), |value, name| value[name].clone());
    if at(old) != at(new) {
        causes.push(Cause::invalid(field, &at(new), "field is immutable"));
    }
}

fn immutable(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    for field in ["data", "binaryData", "stringData"] {
        if old[field] != new[field] {
            causes.push(Cause::forbidden(field, "field is immutable when `immutable` is set"));
        }
    }
    if new["immutable"] != true {
        causes.push(Cause::forbidden("immutable", "field is immutable when `immutable` is set"));
    }
}

const STATEFUL_SET_FIXED: &str = "updates to statefulset spec for fields other than 'replicas', \
    'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', \
    'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";

fn stateful_set_update(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let fixed = ["selector", "serviceName", "volumeClaimTemplates", "podManagementPolicy"];
    if fixed.iter().any(|field| old["spec"][field] != new["spec"][field]) {
        causes.push(Cause::forbidden("spec", STATEFUL_SET_FIXED));
    }
}

/// Resources whose names are labels of DNS.
const NAMED_BY_LABEL: &[&str] = &["namespaces", "services"];

/// Keys become names of files.
fn data_keys(value: &Value, causes: &mut Vec<Cause>) {
    for field in ["data", "binaryData"] {
        for key in value[field].as_object().into_iter().flatten().map(|(key, _)| key) {
            let is_allowed = |it: char| it.is_ascii_alphanumeric() || "-._".contains(it);
            let path = || format!("{field}[{key}]");
            if key.is_empty() || !key.chars().all(is_allowed) {
                let why = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
                causes.push(Cause::invalid(path(), &key.as_str().into(), why));
            } else if matches!(key.as_str(), "." | "..") || key.starts_with("..") {
                let why = if key.len() <= 2 {
                    format!("must not be '{key}'")
                } else {
                    "must not start with '..'".to_owned()
                };
                causes.push(Cause::invalid(path(), &key.as_str().into(), &why));
            }
        }
    }
}

/// As upstream's `MaxSecretSize`, which is for both.
const DATA_BYTES_MAX: usize = 1024 * 1024;

fn data_size(kind: &Kind, value: &Value, causes: &mut Vec<Cause>) {
    let is_secret = kind.resource == "secrets";
    let texts = |field: &str| -> Vec<&str> {
        let members = value[field].as_object().into_iter().flatten();
        members.filter_map(|(_, it)| it.as_str()).collect()
    };
    let padding = |it: &str| it.bytes().rev().take_while(|it| *it == b'=').count();
    let decoded = |it: &str| (it.len() / 4 * 3).saturating_sub(padding(it));
    let of_data =
        texts("data").into_iter().map(|it| if is_secret { decoded(it) } else { it.len() });
    let of_binary = texts("binaryData").into_iter().map(decoded);
    if of_data.chain(of_binary).sum::<usize>() > DATA_BYTES_MAX {
        let field = if is_secret { "data" } else { "[]" };
        causes.push(Cause::too_long(field, DATA_BYTES_MAX));
    }
}

/// No finalizer can be added to an object that is being deleted.
fn finalizers(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let (before, after) = (&old["metadata"], &new["metadata"]);
    if before["deletionTimestamp"].is_null() {
        return;
    }
    let known = list_entries(&before["finalizers"]);
    let added = list_entries(&after["finalizers"]).iter().filter(|it| !known.contains(it));
    let added: Vec<String> = added.map(ToString::to_string).collect();
    if !added.is_empty() {
        let why = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
            added.join(", ")
        );
        causes.push(Cause::forbidden("metadata.finalizers", &why));
    }
}

fn metadata(kind: &Kind, value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let name = metadata_text(value, "name");
    let complaints = if kind.group == "rbac.authorization.k8s.io" {
        names::path_segment(name)
    } else if kind.group.is_empty() && NAMED_BY_LABEL.contains(&kind.resource) {
        names::label_name(name)
    } else {
        names::subdomain(name)
    };
    for complaint in complaints {
        causes.push(Cause::invalid("metadata.name", &name.into(), &complaint));
    }
    labels(&value["metadata"]["labels"], "metadata.labels", &mut causes);
    annotations(&value["metadata"]["annotations"], &mut causes);
    for (at, owner) in list_entries(&value["metadata"]["ownerReferences"]).iter().enumerate() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner[field].as_str().is_none_or(str::is_empty) {
                let path = format!("metadata.ownerReferences[{at}].{field}");
                causes.push(Cause::invalid(path, &"".into(), "must not be empty"));
            }
        }
    }
    causes
}

fn labels(labels: &Value, path: &str, causes: &mut Vec<Cause>) {
    for (key, value) in labels.as_object().into_iter().flatten() {
        for complaint in loadmaster_api::selector::label_key_errors(key) {
            causes.push(Cause::invalid(path, &key.as_str().into(), &complaint));
        }
        for complaint in
            loadmaster_api::selector::label_value_errors(value.as_str().unwrap_or_default())
        {
            causes.push(Cause::invalid(path, value, &complaint));
        }
    }
}

/// As upstream's `TotalAnnotationSizeLimitB`.
const ANNOTATION_BYTES_MAX: usize = 256 * 1024;

fn annotations(annotations: &Value, causes: &mut Vec<Cause>) {
    let mut n_bytes = 0;
    for (key, value) in annotations.as_object().into_iter().flatten() {
        n_bytes += key.len() + value.as_str().map_or(0, str::len);
        for complaint in loadmaster_api::selector::label_key_errors(&key.to_lowercase()) {
            causes.push(Cause::invalid("metadata.annotations", &key.as_str().into(), &complaint));
        }
    }
    if n_bytes > ANNOTATION_BYTES_MAX {
        causes.push(Cause::too_long("metadata.annotations", ANNOTATION_BYTES_MAX));
    }
}

const NOT_NEGATIVE: &str = "must be greater than or equal to 0";

fn not_negative(value: &Value, path: impl Into<String>, causes: &mut Vec<Cause>) {
    if value.as_i64().is_some_and(|n| n < 0) {
        causes.push(Cause::invalid(path, value, NOT_NEGATIVE));
    }
}

/// Deployments and similar workloads: the selector must select the template, whose restart policy must be `Always`.
fn workload(value: &Value, causes: &mut Vec<Cause>) {
    let spec = &value["spec"];
    for field in ["replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"]
    {
        not_negative(&spec[field], format!("spec.{field}"), causes);
    }
    let selector = &spec["selector"];
    let is_empty = |field: &str| selector[field].as_object().is_none_or(serde_json::Map::is_empty);
    let template = &spec["template"];
    let template_labels = &template["metadata"]["labels"];
    if selector.is_null() {
        causes.push(Cause::required("spec.selector", ""));
    }
    if !selector.is_null()
        && is_empty("matchLabels")
        && list_entries(&selector["matchExpressions"]).is_empty()
    {
        let detail = "empty selector is invalid for deployment";
        causes.push(Cause::invalid("spec.selector", selector, detail));
    } else if !crate::selector::label_selector_matches(selector, &crate::object::labels(template)) {
        let shown = if template_labels.is_null() { &Value::Null } else { template_labels };
        let detail = "`selector` does not match template `labels`";
        causes.push(Cause::invalid("spec.template.metadata.labels", shown, detail));
    }
    template_spec(template, "spec.template", &["Always"], causes);
}

/// The StatefulSet as its controller completes it: for each of the `volumeClaimTemplates` the pods get a volume of that name, in place of one
/// with the same name, which containers may mount.
fn with_volumes_of_claim_templates(set: &Value) -> Cow<'_, Value> {
    let templates = list_entries(&set["spec"]["volumeClaimTemplates"]);
    if templates.is_empty() {
        return Cow::Borrowed(set);
    }
    let mut names = Set::default();
    let mut volumes = Vec::new();
    let of_templates = templates.iter().map(|it| metadata_text(it, "name"));
    for name in of_templates.filter(|name| names.insert(*name)) {
        volumes.push(json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
    }
    let others = list_entries(&set["spec"]["template"]["spec"]["volumes"]).iter();
    let is_replaced = |volume: &Value| volume["name"].as_str().is_some_and(|it| names.contains(it));
    volumes.extend(others.filter(|it| !is_replaced(it)).cloned());
    let mut completed = set.clone();
    completed["spec"]["template"]["spec"]["volumes"] = volumes.into();
    Cow::Owned(completed)
}

fn replication_controller(value: &Value, causes: &mut Vec<Cause>) {
    let spec = &value["spec"];
    not_negative(&spec["replicas"], "spec.replicas", causes);
    if spec["selector"].as_object().is_none_or(serde_json::Map::is_empty) {
        causes.push(Cause::required("spec.selector", ""));
    }
    if spec["template"].is_null() {
        causes.push(Cause::required("spec.template", ""));
    } else {
        template_spec(&spec["template"], "spec.template", &["Always"], causes);
    }
}

fn controller_revision(value: &Value, causes: &mut Vec<Cause>) {
    not_negative(&value["revision"], "revision", causes);
    match &value["data"] {
        Value::Object(_) => {}
        Value::Null => causes.push(Cause::required("data", "data is mandatory")),
        _ => causes.push(Cause::required("data", "data must be a valid JSON object")),
    }
}

fn template_spec(template: &Value, path: &str, restart: &[&str], causes: &mut Vec<Cause>) {
    labels(&template["metadata"]["labels"], &format!("{path}.metadata.labels"), causes);
    pod::spec(&template["spec"], &format!("{path}.spec"), causes);
    let policy = template["spec"]["restartPolicy"].as_str().unwrap_or_default();
    if !restart.contains(&policy) && matches!(policy, "Always" | "OnFailure" | "Never") {
        let policy = &template["spec"]["restartPolicy"];
        causes.push(Cause::not_supported(format!("{path}.spec.restartPolicy"), policy, restart));
    }
}

fn job(spec: &Value, path: &str, causes: &mut Vec<Cause>) {
    for field in [
        "parallelism",
        "completions",
        "backoffLimit",
        "activeDeadlineSeconds",
        "ttlSecondsAfterFinished",
    ] {
        not_negative(&spec[field], format!("{path}.{field}"), causes);
    }
    let template = &spec["template"];
    let template_path = format!("{path}.template");
    if template["spec"]["restartPolicy"] == "Always" {
        let at = format!("{template_path}.spec.restartPolicy");
        causes.push(Cause::required(at, "valid values: \"OnFailure\", \"Never\""));
    }
    labels(&template["metadata"]["labels"], &format!("{template_path}.metadata.labels"), causes);
    pod::spec(&template["spec"], &format!("{template_path}.spec"), causes);
}

fn cron_job(spec: &Value, causes: &mut Vec<Cause>) {
    if spec["schedule"].as_str().is_none_or(str::is_empty) {
        causes.push(Cause::required("spec.schedule", ""));
    }
    job(&spec["jobTemplate"]["spec"], "spec.jobTemplate.spec", causes);
}

const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];

fn node(spec: &Value, causes: &mut Vec<Cause>) {
    let mut seen: Set<(&Value, &Value)> = Set::default();
    for (at, taint) in list_entries(&spec["taints"]).iter().enumerate() {
        let path = format!("metadata.taints[{at}]");
        let key = taint["key"].as_str().unwrap_or_default();
        for complaint in loadmaster_api::selector::label_key_errors(key) {
            causes.push(Cause::invalid(format!("{path}.key"), &key.into(), &complaint));
        }
        let value = taint["value"].as_str().unwrap_or_default();
        for complaint in loadmaster_api::selector::label_value_errors(value) {
            causes.push(Cause::invalid(format!("{path}.value"), &value.into(), &complaint));
        }
        match taint["effect"].as_str().unwrap_or_default() {
            "" => causes.push(Cause::required(format!("{path}.effect"), "")),
            effect if !EFFECTS.contains(&effect) => {
                causes.push(Cause::not_supported(
                    format!("{path}.effect"),
                    &effect.into(),
                    EFFECTS,
                ));
            }
            _ => {}
        }
        let identity = (&taint["key"], &taint["effect"]);
        if !seen.insert(identity) {
            let mut cause = Cause::duplicate(path, taint);
            cause.message.push_str(": taints must be unique by key and effect pair");
            causes.push(cause);
        }
    }
}

/// Upstream's `HighestUserDefinablePriority`.
const USER_PRIORITY_MAX: i64 = 1_000_000_000;

fn priority_class(value: &Value, causes: &mut Vec<Cause>) {
    let name = metadata_text(value, "name");
    if name.starts_with("system-") {
        if !matches!(name, "system-node-critical" | "system-cluster-critical") {
            let detail = "priority class names with 'system-' prefix are reserved for system use only. error: unknown system priority class";
            causes.push(Cause::forbidden("metadata.name", detail));
        }
    } else if value["value"].as_i64().unwrap_or(0) > USER_PRIORITY_MAX {
        let detail =
            format!("maximum allowed value of a user defined priority is {USER_PRIORITY_MAX}");
        causes.push(Cause::forbidden("value", &detail));
    }
    let policies = &["Never", "PreemptLowerPriority"];
    let policy = &value["preemptionPolicy"];
    if !policies.iter().any(|it| policy == *it) {
        causes.push(Cause::not_supported("preemptionPolicy", policy, policies));
    }
}

#[cfg(test)]
mod tests;
