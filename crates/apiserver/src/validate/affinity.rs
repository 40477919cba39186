//! Validates a pod's affinity (upstream's `validateAffinity`).

use serde_json::Value;

use super::{Cause, labels, list_entries};

const OF_PODS: [&str; 2] = ["podAffinity", "podAntiAffinity"];
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(super) fn affinity(affinity: &Value, path: &str, causes: &mut Vec<Cause>) {
    let nodes = &affinity["nodeAffinity"];
    let required = &nodes[REQUIRED];
    if required.is_object() {
        let path = format!("{path}.nodeAffinity.{REQUIRED}.nodeSelectorTerms");
        let terms = list_entries(&required["nodeSelectorTerms"]);
        if terms.is_empty() {
            causes.push(Cause::required(&path, "must have at least one node selector term"));
        }
        for (at, it) in terms.iter().enumerate() {
            node_term(it, &format!("{path}[{at}]"), causes);
        }
    }
    for (at, it) in list_entries(&nodes[PREFERRED]).iter().enumerate() {
        let path = format!("{path}.nodeAffinity.{PREFERRED}[{at}]");
        weight(it, &path, causes);
        node_term(&it["preference"], &format!("{path}.preference"), causes);
    }
    for kind in OF_PODS {
        for (at, it) in list_entries(&affinity[kind][REQUIRED]).iter().enumerate() {
            pod_term(it, &format!("{path}.{kind}.{REQUIRED}[{at}]"), causes);
        }
        for (at, it) in list_entries(&affinity[kind][PREFERRED]).iter().enumerate() {
            let path = format!("{path}.{kind}.{PREFERRED}[{at}]");
            weight(it, &path, causes);
            pod_term(&it["podAffinityTerm"], &format!("{path}.podAffinityTerm"), causes);
        }
    }
}

fn weight(it: &Value, path: &str, causes: &mut Vec<Cause>) {
    let weight = it["weight"].as_i64().unwrap_or(0);
    if !(1..=100).contains(&weight) {
        let path = format!("{path}.weight");
        causes.push(Cause::invalid(path, &weight.into(), "must be in the range 1-100"));
    }
}

fn node_term(term: &Value, path: &str, causes: &mut Vec<Cause>) {
    for (at, it) in list_entries(&term["matchExpressions"]).iter().enumerate() {
        let path = format!("{path}.matchExpressions[{at}]");
        let values = list_entries(&it["values"]);
        if matches!(it["operator"].as_str(), Some("Gt" | "Lt")) {
            if values.len() != 1 {
                let detail = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                causes.push(Cause::required(format!("{path}.values"), detail));
            }
            key_and_values(it, &path, causes);
        } else {
            requirement(it, &path, causes);
        }
    }
    for (at, it) in list_entries(&term["matchFields"]).iter().enumerate() {
        let path = format!("{path}.matchFields[{at}]");
        match it["operator"].as_str().unwrap_or_default() {
            "In" | "NotIn" if list_entries(&it["values"]).len() == 1 => {}
            "In" | "NotIn" => {
                let detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                causes.push(Cause::required(format!("{path}.values"), detail));
            }
            operator => unknown(operator, &path, causes),
        }
        if it["key"] != "metadata.name" {
            let key = it["key"].as_str().unwrap_or_default().into();
            let path = format!("{path}.key");
            causes.push(Cause::invalid(path, &key, "not a valid field selector key"));
        }
    }
}

fn pod_term(term: &Value, path: &str, causes: &mut Vec<Cause>) {
    for name in ["labelSelector", "namespaceSelector"] {
        selector(&term[name], &format!("{path}.{name}"), causes);
    }
    let topology_key = term["topologyKey"].as_str().unwrap_or_default();
    if topology_key.is_empty() {
        causes.push(Cause::required(format!("{path}.topologyKey"), "can not be empty"));
    }
    for complaint in loadmaster_api::selector::label_key_errors(topology_key) {
        let path = format!("{path}.topologyKey");
        causes.push(Cause::invalid(path, &topology_key.into(), &complaint));
    }
}

/// Validates a label selector (upstream's `ValidateLabelSelector`).
pub(super) fn selector(selector: &Value, path: &str, causes: &mut Vec<Cause>) {
    labels(&selector["matchLabels"], &format!("{path}.matchLabels"), causes);
    for (at, it) in list_entries(&selector["matchExpressions"]).iter().enumerate() {
        requirement(it, &format!("{path}.matchExpressions[{at}]"), causes);
    }
}

fn requirement(it: &Value, path: &str, causes: &mut Vec<Cause>) {
    let has_values = !list_entries(&it["values"]).is_empty();
    let values = format!("{path}.values");
    match it["operator"].as_str().unwrap_or_default() {
        "In" | "NotIn" if has_values => {}
        "In" | "NotIn" => {
            let detail = "must be specified when `operator` is 'In' or 'NotIn'";
            causes.push(Cause::required(values, detail));
        }
        "Exists" | "DoesNotExist" if !has_values => {}
        "Exists" | "DoesNotExist" => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            causes.push(Cause::forbidden(values, detail));
        }
        operator => unknown(operator, path, causes),
    }
    key_and_values(it, path, causes);
}

fn unknown(operator: &str, path: &str, causes: &mut Vec<Cause>) {
    let path = format!("{path}.operator");
    causes.push(Cause::invalid(path, &operator.into(), "not a valid selector operator"));
}

fn key_and_values(it: &Value, path: &str, causes: &mut Vec<Cause>) {
    let key = it["key"].as_str().unwrap_or_default();
    for complaint in loadmaster_api::selector::label_key_errors(key) {
        causes.push(Cause::invalid(format!("{path}.key"), &key.into(), &complaint));
    }
    for (at, value) in list_entries(&it["values"]).iter().enumerate() {
        let text = value.as_str().unwrap_or_default();
        for complaint in loadmaster_api::selector::label_value_errors(text) {
            causes.push(Cause::invalid(format!("{path}.values[{at}]"), value, &complaint));
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(value: &Value, want: &Expect) {
        let mut causes = Vec::new();
        affinity(value, "spec.affinity", &mut causes);
        let lines = causes.iter().map(|it| format!("{}: {}\n", it.field, it.message));
        want.assert_eq(&lines.collect::<String>());
    }

    #[test]
    fn of_nodes() {
        let is_fine = json!({"key": "a", "operator": "Gt", "values": ["1"]});
        check(
            &json!({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [
                {"matchExpressions": [is_fine, {"key": "a", "operator": "Lt"}, {"key": "-", "operator": "In"}]},
                {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}, {"key": "a", "operator": "in", "values": ["b c"]}]},
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}, {"key": "x", "operator": "Exists"},
                    {"key": "metadata.name", "operator": "NotIn", "values": ["a", "b"]}]},
            ]}, PREFERRED: [{"weight": 0, "preference": {}}, {"weight": 100, "preference": {}}]}}),
            &expect![[r#"
                spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[1].values: Required value: must be specified single value when `operator` is 'Lt' or 'Gt'
                spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[2].values: Required value: must be specified when `operator` is 'In' or 'NotIn'
                spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[2].key: Invalid value: "-": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
                spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[1].matchExpressions[0].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'
                spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[1].matchExpressions[1].operator: Invalid value: "in": not a valid selector operator
                spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[1].matchExpressions[1].values[0]: Invalid value: "b c": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')
                spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[2].matchFields[1].operator: Invalid value: "Exists": not a valid selector operator
                spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[2].matchFields[1].key: Invalid value: "x": not a valid field selector key
                spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[2].matchFields[2].values: Required value: must be only one value when `operator` is 'In' or 'NotIn' for node field selector
                spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 0: must be in the range 1-100
            "#]],
        );
        check(
            &json!({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}),
            &expect![[r#"
            spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value: must have at least one node selector term
        "#]],
        );
    }

    #[test]
    fn of_pods() {
        let term = |operator: &str, key: &str| {
            json!({"topologyKey": key, "labelSelector": {"matchLabels": {"a": "b"},
                "matchExpressions": [{"key": "a", "operator": operator, "values": ["b"]}]}})
        };
        check(
            &json!({
                "podAffinity": {REQUIRED: [term("In", "zone"), term("Likes", "zone"), term("In", "")]},
                "podAntiAffinity": {PREFERRED: [{"weight": 101, "podAffinityTerm": term("Exists", "a b")}]},
            }),
            &expect![[r#"
                spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[1].labelSelector.matchExpressions[0].operator: Invalid value: "Likes": not a valid selector operator
                spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[2].topologyKey: Required value: can not be empty
                spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[2].topologyKey: Invalid value: "": name part must be non-empty
                spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[2].topologyKey: Invalid value: "": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
                spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 101: must be in the range 1-100
                spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.labelSelector.matchExpressions[0].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'
                spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.topologyKey: Invalid value: "a b": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
            "#]],
        );
    }
}
