//! Printer columns of less common kinds.

use serde_json::Value;

use super::Column;
use super::columns::{
    AGE, NAME, count, joined, number, or_empty, or_none, selector_of, text, wide,
};
use crate::event_conversion;
use crate::object::list_entries;
use crate::selector::selector_text;

/// Columns by group and resource.
pub(super) static TABLE: &[(&str, &str, &[Column])] = &[
    ("apiextensions.k8s.io", "customresourcedefinitions", CREATED_AT),
    ("rbac.authorization.k8s.io", "roles", CREATED_AT),
    ("rbac.authorization.k8s.io", "clusterroles", CREATED_AT),
    ("rbac.authorization.k8s.io", "rolebindings", BINDING),
    ("rbac.authorization.k8s.io", "clusterrolebindings", BINDING),
    (
        "",
        "resourcequotas",
        &[
            NAME,
            text("Request", |it, _| quota(it, false).into()),
            text("Limit", |it, _| quota(it, true).into()),
            AGE,
        ],
    ),
    ("", "limitranges", &[NAME, text("Created At", |it, _| created_at(it))]),
    (
        "",
        "podtemplates",
        &[
            NAME,
            text("Containers", |it, _| template_containers(it, "name").into()),
            text("Images", |it, _| template_containers(it, "image").into()),
            text("Pod Labels", |it, _| {
                or_none(&selector_text(&it["template"]["metadata"]["labels"]).into())
            }),
        ],
    ),
    (
        "networking.k8s.io",
        "ingresses",
        &[
            NAME,
            text("Class", |it, _| or_none(&it["spec"]["ingressClassName"])),
            text("Hosts", |it, _| hosts(it).into()),
            text("Address", |it, _| addresses(it).into()),
            text("Ports", |it, _| {
                if list_entries(&it["spec"]["tls"]).is_empty() {
                    "80".into()
                } else {
                    "80, 443".into()
                }
            }),
            AGE,
        ],
    ),
    (
        "networking.k8s.io",
        "networkpolicies",
        &[NAME, text("Pod-Selector", |it, _| selector_of(&it["spec"]["podSelector"])), AGE],
    ),
    (
        "discovery.k8s.io",
        "endpointslices",
        &[
            NAME,
            text("AddressType", |it, _| it["addressType"].clone()),
            text("Ports", |it, _| slice_ports(it).into()),
            text("Endpoints", |it, _| slice_addresses(it).into()),
            AGE,
        ],
    ),
    (
        "autoscaling",
        "horizontalpodautoscalers",
        &[
            NAME,
            text("Reference", |it, _| {
                let target = &it["spec"]["scaleTargetRef"];
                let part = |field: &str| target[field].as_str().unwrap_or_default().to_owned();
                format!("{}/{}", part("kind"), part("name")).into()
            }),
            text("Targets", |it, _| targets(it).into()),
            text("MinPods", |it, _| match it["spec"]["minReplicas"].as_i64() {
                Some(n) => n.to_string().into(),
                None => "<unset>".into(),
            }),
            text("MaxPods", |it, _| count(&it["spec"]["maxReplicas"])),
            text("Replicas", |it, _| count(&it["status"]["currentReplicas"])),
            AGE,
        ],
    ),
    (
        "node.k8s.io",
        "runtimeclasses",
        &[NAME, text("Handler", |it, _| or_empty(&it["handler"])), AGE],
    ),
    (
        "storage.k8s.io",
        "csinodes",
        &[NAME, number("Drivers", |it, _| list_entries(&it["spec"]["drivers"]).len().into()), AGE],
    ),
    (
        "storage.k8s.io",
        "volumeattributesclasses",
        &[NAME, text("DriverName", |it, _| or_empty(&it["driverName"])), AGE],
    ),
    (
        "resource.k8s.io",
        "resourceclaims",
        &[NAME, text("State", |it, _| claim_state(it).into()), AGE],
    ),
    (
        "resource.k8s.io",
        "resourceslices",
        &[
            NAME,
            text("Node", |it, _| or_empty(&it["spec"]["nodeName"])),
            text("Driver", |it, _| or_empty(&it["spec"]["driver"])),
            text("Pool", |it, _| or_empty(&it["spec"]["pool"]["name"])),
            AGE,
        ],
    ),
    (
        "apps",
        "controllerrevisions",
        &[
            NAME,
            text("Controller", |it, _| controller(it).into()),
            text("Revision", |it, _| count(&it["revision"])),
            AGE,
        ],
    ),
];

const CREATED_AT: &[Column] = &[NAME, text("Created At", |it, _| created_at(it))];

const BINDING: &[Column] = &[
    NAME,
    text("Role", |it, _| {
        let part = |field: &str| it["roleRef"][field].as_str().unwrap_or_default().to_owned();
        format!("{}/{}", part("kind"), part("name")).into()
    }),
    AGE,
    wide("Users", |it, _| subjects(it, "User").into()),
    wide("Groups", |it, _| subjects(it, "Group").into()),
    wide("ServiceAccounts", |it, _| subjects(it, "ServiceAccount").into()),
];

fn created_at(it: &Value) -> Value {
    or_empty(&it["metadata"]["creationTimestamp"])
}

fn subjects(binding: &Value, kind: &str) -> String {
    let name = |it: &Value| match it["namespace"].as_str() {
        Some(namespace) if kind == "ServiceAccount" => {
            format!("{namespace}/{}", text_of(it, "name"))
        }
        _ => text_of(it, "name").to_owned(),
    };
    let all = list_entries(&binding["subjects"]).iter().filter(|it| it["kind"] == kind).map(name);
    all.collect::<Vec<_>>().join(", ")
}

fn text_of<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// Usage and hard limits of a ResourceQuota, of limits or of other resources.
fn quota(quota: &Value, of_limits: bool) -> String {
    let hard = quota["status"]["hard"].as_object();
    let amount = |value: &Value| value.as_str().unwrap_or("0").to_owned();
    let parts =
        hard.into_iter().flatten().filter(|(name, _)| name.starts_with("limits.") == of_limits);
    let part = |(name, hard): (&String, &Value)| {
        format!("{name}: {}/{}", amount(&quota["status"]["used"][name]), amount(hard))
    };
    parts.map(part).collect::<Vec<_>>().join(", ")
}

fn template_containers(template: &Value, field: &str) -> String {
    let containers = list_entries(&template["template"]["spec"]["containers"]);
    joined(containers.iter().map(|it| text_of(it, field)))
}

/// At most three hosts, and how many more there are.
fn hosts(ingress: &Value) -> String {
    let hosts: Vec<&str> = list_entries(&ingress["spec"]["rules"])
        .iter()
        .map(|it| text_of(it, "host"))
        .filter(|host| !host.is_empty())
        .collect();
    match hosts.len() {
        0 => "*".to_owned(),
        1..=3 => hosts.join(","),
        n => format!("{} + {} more...", hosts[..3].join(","), n - 3),
    }
}

fn addresses(ingress: &Value) -> String {
    let points = list_entries(&ingress["status"]["loadBalancer"]["ingress"]);
    joined(points.iter().map(|it| match text_of(it, "ip") {
        "" => text_of(it, "hostname"),
        ip => ip,
    }))
}

/// Current and target values of an autoscaler's metrics, at most two.
fn targets(autoscaler: &Value) -> String {
    let autoscaler = &event_conversion::autoscaler_v2(autoscaler);
    let metrics = list_entries(&autoscaler["spec"]["metrics"]);
    let found = list_entries(&autoscaler["status"]["currentMetrics"]);
    let shown: Vec<String> = metrics
        .iter()
        .enumerate()
        .map(|(nth, metric)| target(metric, found.get(nth).unwrap_or(&Value::Null)))
        .collect();
    match shown.as_slice() {
        [] => "<none>".to_owned(),
        [first, second, more @ ..] if !more.is_empty() => {
            format!("{first}, {second} + {} more...", more.len())
        }
        all => all.join(", "),
    }
}

fn target(metric: &Value, found: &Value) -> String {
    let field = match text_of(metric, "type") {
        "External" => "external",
        "Pods" => "pods",
        "Object" => "object",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => return "<unknown type>".to_owned(),
    };
    let (wanted, current) = (&metric[field]["target"], &found[field]["current"]);
    let measured = |name: &str| current[name].as_str().unwrap_or("<unknown>").to_owned();
    let of = |name: &str| wanted[name].as_str().unwrap_or("0").to_owned();
    let is_average = wanted["averageValue"].is_string();
    match field {
        "resource" | "containerResource" => {
            let percent = |it: &Value, otherwise: &str| {
                it["averageUtilization"].as_i64().map_or(otherwise.to_owned(), |n| format!("{n}%"))
            };
            let what = text_of(&metric[field], "name");
            match is_average {
                true => format!("{what}: {}/{}", measured("averageValue"), of("averageValue")),
                false => format!(
                    "{what}: {}/{}",
                    percent(current, "<unknown>"),
                    percent(wanted, "<auto>")
                ),
            }
        }
        "pods" => format!("{}/{}", measured("averageValue"), of("averageValue")),
        _ if is_average => format!("{}/{} (avg)", measured("averageValue"), of("averageValue")),
        _ => format!("{}/{}", measured("value"), of("value")),
    }
}

fn claim_state(claim: &Value) -> String {
    let mut states = Vec::new();
    if !claim["metadata"]["deletionTimestamp"].is_null() {
        states.push("deleted");
    }
    if claim["status"]["allocation"].is_null() {
        if states.is_empty() {
            states.push("pending");
        }
    } else {
        states.push("allocated");
        let users = list_entries(&claim["status"]["reservedFor"]);
        if !users.is_empty() {
            states.push("reserved");
        }
    }
    states.join(",")
}

fn slice_ports(slice: &Value) -> String {
    let ports = list_entries(&slice["ports"]).iter();
    let port = |it: &Value| match (it["port"].as_i64(), it["name"].as_str()) {
        (Some(number), _) => number.to_string(),
        (None, name) => name.unwrap_or("*").to_owned(),
    };
    first_three(&ports.map(port).collect::<Vec<_>>())
}

fn slice_addresses(slice: &Value) -> String {
    let endpoints = list_entries(&slice["endpoints"]).iter();
    let addresses = endpoints.flat_map(|it| list_entries(&it["addresses"]));
    let addresses = addresses.map(|it| it.as_str().unwrap_or_default().to_owned());
    first_three(&addresses.collect::<Vec<_>>())
}

fn first_three(all: &[String]) -> String {
    match all {
        [] => "<unset>".to_owned(),
        [a, b, c, more @ ..] if !more.is_empty() => format!("{a},{b},{c} + {} more...", more.len()),
        all => all.join(","),
    }
}

fn controller(it: &Value) -> String {
    let owners = list_entries(&it["metadata"]["ownerReferences"]);
    let Some(owner) = owners.iter().find(|it| it["controller"] == true) else {
        return "<none>".to_owned();
    };
    let group = text_of(owner, "apiVersion").split_once('/').map_or("", |(group, _)| group);
    let kind = text_of(owner, "kind").to_lowercase();
    let dot = if group.is_empty() { "" } else { "." };
    format!("{kind}{dot}{group}/{}", text_of(owner, "name"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ports_and_addresses_of_a_slice() {
        for (ports, addresses, want) in [
            (json!(null), json!([]), "<unset> <unset>"),
            (json!([{"port": 80}, {"name": "x"}, {}]), json!(["a", "b", "c"]), "80,x,* a,b,c"),
            (json!([{"port": 1}]), json!(["a", "b", "c", "d", "e"]), "1 a,b,c + 2 more..."),
        ] {
            let endpoints: Vec<Value> =
                list_entries(&addresses).iter().map(|it| json!({"addresses": [it]})).collect();
            let slice = json!({"ports": ports, "endpoints": endpoints});
            assert_eq!(format!("{} {}", slice_ports(&slice), slice_addresses(&slice)), want);
        }
    }

    #[test]
    fn targets_of_an_autoscaler() {
        let resource = |target: Value| json!({"type": "Resource", "resource": {"name": "cpu", "target": target}});
        let percent = resource(json!({"averageUtilization": 80}));
        let found =
            json!({"type": "Resource", "resource": {"current": {"averageUtilization": 42}}});
        let queue = json!({"type": "External", "external": {"target": {"averageValue": "5"}}});
        let pods = json!({"type": "Pods", "pods": {"target": {"averageValue": "1k"}}});
        for (metrics, current, want) in [
            (json!([]), json!([]), "<none>"),
            (json!([percent]), json!(null), "cpu: <unknown>/80%"),
            (json!([percent]), json!([found]), "cpu: 42%/80%"),
            (json!([resource(json!({}))]), json!([]), "cpu: <unknown>/<auto>"),
            (json!([queue, pods]), json!([]), "<unknown>/5 (avg), <unknown>/1k"),
            (
                json!([percent, pods, queue, queue]),
                json!([found]),
                "cpu: 42%/80%, <unknown>/1k + 2 more...",
            ),
        ] {
            let it = json!({"spec": {"metrics": metrics}, "status": {"currentMetrics": current}});
            assert_eq!(targets(&it), want);
        }
    }
}
