//! Validates pods and pod templates.

use loadmaster_api::Quantity;
use loadmaster_stdx::Set;
use serde_json::{Map, Value};

use super::{NOT_NEGATIVE, labels, names, not_negative};
use crate::object::list_entries;
use crate::status::Cause;

/// The mutable fields of a pod's spec.
const MAY_CHANGE: &str = "pod updates may not change fields other than \
    `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
    `spec.tolerations` (only additions to existing tolerations),\
    `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Validates the spec of a pod or of a template.
pub(super) fn spec(spec: &Value, path: &str, causes: &mut Vec<Cause>) {
    let volumes = volumes(spec, path, causes);
    let mut names: Set<&str> = Set::default();
    if list_entries(&spec["containers"]).is_empty() {
        causes.push(Cause::required(format!("{path}.containers"), ""));
    }
    for list in ["initContainers", "containers"] {
        for (at, it) in list_entries(&spec[list]).iter().enumerate() {
            let path = format!("{path}.{list}[{at}]");
            let name = it["name"].as_str().unwrap_or_default();
            container(it, &path, &volumes, causes);
            if !names.insert(name) && !name.is_empty() {
                causes.push(Cause::duplicate(format!("{path}.name"), &name.into()));
            }
        }
    }
    let one_of = |field: &str, supported: &[&str], causes: &mut Vec<Cause>| {
        if !supported.iter().any(|it| spec[field] == *it) {
            let path = format!("{path}.{field}");
            causes.push(Cause::not_supported(path, &spec[field], supported));
        }
    };
    one_of("restartPolicy", &["Always", "OnFailure", "Never"], causes);
    one_of("dnsPolicy", &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"], causes);
    not_negative(
        &spec["terminationGracePeriodSeconds"],
        format!("{path}.terminationGracePeriodSeconds"),
        causes,
    );
    labels(&spec["nodeSelector"], &format!("{path}.nodeSelector"), causes);
    super::affinity::affinity(&spec["affinity"], &format!("{path}.affinity"), causes);
    for (at, it) in list_entries(&spec["tolerations"]).iter().enumerate() {
        toleration(it, &format!("{path}.tolerations[{at}]"), causes);
    }
    for (at, it) in list_entries(&spec["topologySpreadConstraints"]).iter().enumerate() {
        spread(it, &format!("{path}.topologySpreadConstraints[{at}]"), causes);
    }
}

/// Checks the volumes and returns their names.
fn volumes<'a>(spec: &'a Value, path: &str, causes: &mut Vec<Cause>) -> Set<&'a str> {
    let mut names = Set::default();
    for (at, volume) in list_entries(&spec["volumes"]).iter().enumerate() {
        let path = format!("{path}.volumes[{at}].name");
        let name = volume["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            causes.push(Cause::required(path, ""));
        } else if names.contains(name) {
            causes.push(Cause::duplicate(path, &name.into()));
        } else {
            for complaint in names::label_name(name) {
                causes.push(Cause::invalid(path.clone(), &name.into(), &complaint));
            }
        }
        names.insert(name);
    }
    names
}

fn container(it: &Value, path: &str, volumes: &Set<&str>, causes: &mut Vec<Cause>) {
    let name = it["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        causes.push(Cause::required(format!("{path}.name"), ""));
    } else {
        for complaint in names::label_name(name) {
            causes.push(Cause::invalid(format!("{path}.name"), &name.into(), &complaint));
        }
    }
    if it["image"].as_str().is_none_or(str::is_empty) {
        causes.push(Cause::required(format!("{path}.image"), ""));
    }
    for (at, it) in list_entries(&it["ports"]).iter().enumerate() {
        port(&it["containerPort"], &format!("{path}.ports[{at}].containerPort"), causes);
        if it["hostPort"].as_i64().unwrap_or(0) != 0 {
            port(&it["hostPort"], &format!("{path}.ports[{at}].hostPort"), causes);
        }
    }
    for (at, mount) in list_entries(&it["volumeMounts"]).iter().enumerate() {
        let path = format!("{path}.volumeMounts[{at}]");
        match mount["name"].as_str().unwrap_or_default() {
            "" => causes.push(Cause::required(format!("{path}.name"), "")),
            name if !volumes.contains(name) => {
                causes.push(Cause::not_found(format!("{path}.name"), &name.into()));
            }
            _ => {}
        }
        if mount["mountPath"].as_str().is_none_or(str::is_empty) {
            causes.push(Cause::required(format!("{path}.mountPath"), ""));
        }
    }
    let policies = &["Always", "IfNotPresent", "Never"];
    if !policies.iter().any(|policy| it["imagePullPolicy"] == *policy) {
        let path = format!("{path}.imagePullPolicy");
        causes.push(Cause::not_supported(path, &it["imagePullPolicy"], policies));
    }
    resources(&it["resources"], &format!("{path}.resources"), causes);
}

/// A port's number.
pub(super) fn port(value: &Value, path: &str, causes: &mut Vec<Cause>) {
    if !value.as_i64().is_some_and(|port| (1..=65_535).contains(&port)) {
        let value = if value.is_null() { &Value::from(0) } else { value };
        causes.push(Cause::invalid(path, value, "must be between 1 and 65535, inclusive"));
    }
}

fn resources(resources: &Value, path: &str, causes: &mut Vec<Cause>) {
    let list = |field: &str| resources[field].as_object().cloned().unwrap_or_default();
    let (limits, requests) = (list("limits"), list("requests"));
    for (field, list) in [("limits", &limits), ("requests", &requests)] {
        for (name, text) in list {
            let negative = amount(list, name).is_some_and(|it| it < zero());
            if negative {
                let path = format!("{path}.{field}[{name}]");
                causes.push(Cause::invalid(path, text, NOT_NEGATIVE));
            }
        }
    }
    for (name, text) in &requests {
        let (Some(request), Some(limit)) = (amount(&requests, name), amount(&limits, name)) else {
            continue;
        };
        if request > limit {
            let detail = format!("must be less than or equal to {name} limit of {limit}");
            causes.push(Cause::invalid(format!("{path}.requests"), text, &detail));
        }
    }
}

fn amount(list: &Map<String, Value>, name: &str) -> Option<Quantity> {
    Quantity::parse(list.get(name)?.as_str()?).ok()
}

fn zero() -> Quantity {
    Quantity::default()
}

fn toleration(it: &Value, path: &str, causes: &mut Vec<Cause>) {
    let text = |field: &str| it[field].as_str().unwrap_or_default();
    let (key, operator, effect) = (text("key"), text("operator"), text("effect"));
    if key.is_empty() && operator != "Exists" {
        let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        causes.push(Cause::invalid(format!("{path}.operator"), &operator.into(), detail));
    }
    if !key.is_empty() {
        for complaint in loadmaster_api::selector::label_key_errors(key) {
            causes.push(Cause::invalid(format!("{path}.key"), &key.into(), &complaint));
        }
    }
    if !it["tolerationSeconds"].is_null() && effect != "NoExecute" {
        let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        causes.push(Cause::invalid(format!("{path}.effect"), &effect.into(), detail));
    }
    match operator {
        "" | "Equal" => {}
        "Exists" if text("value").is_empty() => {}
        "Exists" => {
            let detail = "value must be empty when `operator` is 'Exists'";
            causes.push(Cause::invalid(format!("{path}.operator"), &text("value").into(), detail));
        }
        _ => causes.push(Cause::not_supported(
            format!("{path}.operator"),
            &operator.into(),
            &["Equal", "Exists"],
        )),
    }
    if !effect.is_empty() && !super::EFFECTS.contains(&effect) {
        causes.push(Cause::not_supported(format!("{path}.effect"), &effect.into(), super::EFFECTS));
    }
}

fn spread(it: &Value, path: &str, causes: &mut Vec<Cause>) {
    if it["maxSkew"].as_i64().unwrap_or(0) <= 0 {
        causes.push(Cause::invalid(
            format!("{path}.maxSkew"),
            &it["maxSkew"].as_i64().unwrap_or(0).into(),
            "must be greater than zero",
        ));
    }
    if it["topologyKey"].as_str().is_none_or(str::is_empty) {
        causes.push(Cause::required(format!("{path}.topologyKey"), "can not be empty"));
    }
    super::affinity::selector(&it["labelSelector"], &format!("{path}.labelSelector"), causes);
    let actions = &["DoNotSchedule", "ScheduleAnyway"];
    if !actions.iter().any(|action| it["whenUnsatisfiable"] == *action) {
        let path = format!("{path}.whenUnsatisfiable");
        causes.push(Cause::not_supported(path, &it["whenUnsatisfiable"], actions));
    }
}

/// Validates an update of a pod.
pub(super) fn update(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let (old, new) = (&old["spec"], &new["spec"]);
    let gates = |spec: &Value| list_entries(&spec["schedulingGates"]).to_vec();
    if gates(new).iter().any(|gate| !gates(old).contains(gate)) {
        let detail = "only deletion is allowed, but found new scheduling gate(s)";
        causes.push(Cause::forbidden("spec.schedulingGates", detail));
    }
    let tolerations = |spec: &Value| list_entries(&spec["tolerations"]).to_vec();
    if tolerations(old).iter().any(|it| !tolerations(new).contains(it)) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        causes.push(Cause::forbidden("spec.tolerations", detail));
    }
    let is_gated = !gates(old).is_empty();
    if fixed_part(old, is_gated) != fixed_part(new, is_gated) {
        causes.push(Cause::forbidden("spec", MAY_CHANGE));
    }
}

/// A spec without its mutable fields.
fn fixed_part(spec: &Value, is_gated: bool) -> Value {
    let mut fixed = spec.clone();
    for list in ["containers", "initContainers"] {
        for container in fixed.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            container["image"] = Value::Null;
        }
    }
    let Value::Object(members) = &mut fixed else { return fixed };
    for field in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        members.remove(field);
    }
    if members.get("terminationGracePeriodSeconds").and_then(Value::as_i64) <= Some(1) {
        members.remove("terminationGracePeriodSeconds");
    }
    if is_gated {
        // The node selector and affinity of a gated pod may become stricter.
        members.remove("nodeSelector");
        members.remove("affinity");
    }
    fixed
}
