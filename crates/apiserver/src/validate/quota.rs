//! Validates ResourceQuotas.

use loadmaster_api::Quantity;
use loadmaster_api::resource_names::is_extended_resource_name;
use loadmaster_api::selector::label_key_errors;
use serde_json::Value;

use super::NOT_NEGATIVE;
use crate::object::list_entries;
use crate::status::Cause;

/// Names without a domain that a quota may count (upstream's `standardQuotaResources`).
const STANDARD: &[&str] = &[
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
    "services.loadbalancers",
];

/// Those of them that are whole numbers.
const WHOLE: &[&str] = &[
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

/// What pods in a scope can be limited in.
const OF_PODS: &[&str] =
    &["pods", "cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"];

/// Scopes that take no values.
const FLAGS: &[&str] =
    &["BestEffort", "NotBestEffort", "Terminating", "NotTerminating", "CrossNamespacePodAffinity"];

const OPPOSED: [[&str; 2]; 2] =
    [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]];

pub fn spec(spec: &Value, causes: &mut Vec<Cause>) {
    amounts(&spec["hard"], "spec.hard", causes);
    scopes(spec, causes);
    if !spec["scopeSelector"].is_null() {
        selector(spec, causes);
    }
}

pub fn status(status: &Value, causes: &mut Vec<Cause>) {
    amounts(&status["hard"], "status.hard", causes);
    amounts(&status["used"], "status.used", causes);
}

/// Scopes stay what they were; their order does not matter.
pub fn update(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let (before, after) = (&old["spec"]["scopes"], &new["spec"]["scopes"]);
    let has_all =
        |a: &Value, b: &Value| list_entries(b).iter().all(|it| list_entries(a).contains(it));
    if !has_all(before, after) || !has_all(after, before) {
        causes.push(Cause::invalid("spec.scopes", after, "field is immutable"));
    }
}

fn amounts(list: &Value, path: &str, causes: &mut Vec<Cause>) {
    for (name, value) in list.as_object().into_iter().flatten() {
        let path = format!("{path}[{name}]");
        name_of(name, &path, causes);
        let amount = value.as_str().and_then(|text| Quantity::parse(text).ok()).unwrap_or_default();
        if amount < Quantity::ZERO {
            causes.push(Cause::invalid(path.clone(), value, NOT_NEGATIVE));
        }
        let is_whole = WHOLE.contains(&name.as_str()) || is_extended_resource_name(name);
        if is_whole && amount.milli_value() % 1000 != 0 {
            causes.push(Cause::invalid(path, value, "must be an integer"));
        }
    }
}

fn name_of(name: &str, path: &str, causes: &mut Vec<Cause>) {
    let mut complain = |why: &str| causes.push(Cause::invalid(path, &name.into(), why));
    let complaints = label_key_errors(name);
    complaints.iter().for_each(|why| complain(why));
    if name.contains('/') || is_standard(name) {
        return;
    }
    // Storage is something, but not for a quota.
    if complaints.is_empty() && name != "storage" {
        complain("must be a standard resource type or fully qualified");
    }
    complain("must be a standard resource for quota");
}

fn is_standard(name: &str) -> bool {
    let resource = name.strip_prefix("requests.").unwrap_or(name);
    STANDARD.contains(&name) || resource.starts_with("hugepages-")
}

fn is_scope(name: &str) -> bool {
    FLAGS.contains(&name) || matches!(name, "PriorityClass" | "VolumeAttributesClass")
}

/// Whether objects in a scope can use of a resource.
fn can_limit(scope: &str, resource: &str) -> bool {
    match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => {
            matches!(resource, "persistentvolumeclaims" | "requests.storage")
        }
        scope if is_scope(scope) => OF_PODS.contains(&resource),
        _ => true,
    }
}

/// One error for each resource that does not match a scope.
fn n_mismatched(scope: &str, spec: &Value) -> usize {
    let hard = spec["hard"].as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    hard.filter(|name| is_standard(name) && !can_limit(scope, name)).count()
}

const UNSUPPORTED: &str = "unsupported scope";
const MISMATCHED: &str = "unsupported scope applied to resource";
const CONFLICTING: &str = "conflicting scopes";
const FLAG: &str = "must be 'Exist' when scope is any of ResourceQuotaScopeTerminating, \
    ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort \
    or ResourceQuotaScopeCrossNamespacePodAffinity";

fn conflicts(scopes: &[&str]) -> usize {
    OPPOSED.iter().filter(|pair| pair.iter().all(|it| scopes.contains(it))).count()
}

fn scopes(spec: &Value, causes: &mut Vec<Cause>) {
    let all = &spec["scopes"];
    let mut complain = |why: &str| causes.push(Cause::invalid("spec.scopes", all, why));
    let named: Vec<&str> = list_entries(all).iter().filter_map(Value::as_str).collect();
    for scope in &named {
        if !is_scope(scope) {
            complain(UNSUPPORTED);
        }
        (0..n_mismatched(scope, spec)).for_each(|_| complain(MISMATCHED));
    }
    (0..conflicts(&named)).for_each(|_| complain(CONFLICTING));
}

fn selector(spec: &Value, causes: &mut Vec<Cause>) {
    const PATH: &str = "spec.scopeSelector.matchExpressions";
    let expressions = list_entries(&spec["scopeSelector"]["matchExpressions"]);
    let mut named = Vec::new();
    for it in expressions {
        let (scope, operator, values) = (&it["scopeName"], &it["operator"], &it["values"]);
        let name = scope.as_str().unwrap_or_default();
        let invalid = |field: &str, value: &Value, why: &str| {
            Cause::invalid(format!("{PATH}.{field}"), value, why)
        };
        if !is_scope(name) {
            causes.push(invalid("scopeName", scope, UNSUPPORTED));
        }
        for _ in 0..n_mismatched(name, spec) {
            let mut cause = Cause::invalid(PATH, &Value::Null, MISMATCHED);
            cause.message = format!("Invalid value: {}: {MISMATCHED}", internal(expressions));
            causes.push(cause);
        }
        if FLAGS.contains(&name) && operator != "Exists" {
            causes.push(invalid("operator", operator, FLAG));
        }
        let has_values = !list_entries(values).is_empty();
        match operator.as_str().unwrap_or_default() {
            "In" | "NotIn" if !has_values => {
                let why = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                causes.push(Cause::required(format!("{PATH}.values"), why));
            }
            "Exists" | "DoesNotExist" if has_values => {
                let why = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                causes.push(invalid("values", values, why));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => causes.push(invalid("operator", operator, "not a valid selector operator")),
        }
        named.push(name);
    }
    for _ in 0..conflicts(&named) {
        causes.push(Cause::invalid(PATH, &spec["scopes"], CONFLICTING));
    }
}

/// A selector as upstream's internal type is printed.
fn internal(expressions: &[Value]) -> String {
    let one = |it: &Value| {
        let (scope, operator, values) = (&it["scopeName"], &it["operator"], &it["values"]);
        format!(r#"{{"ScopeName":{scope},"Operator":{operator},"Values":{values}}}"#)
    };
    let all: Vec<String> = expressions.iter().map(one).collect();
    format!(r#"{{"MatchExpressions":[{}]}}"#, all.join(","))
}
