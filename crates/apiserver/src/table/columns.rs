//! The printer columns of each kind. A kind without an entry here has name and age.

use jiff::Timestamp;
use serde_json::Value;

use super::{Column, human_duration, other_kinds, pod, since};
use crate::object::{list_entries, metadata_text};
use crate::schema::Kind;
use crate::selector::selector_text;

type Cell = fn(&Value, Timestamp) -> Value;

pub(super) const fn text(name: &'static str, cell: Cell) -> Column {
    Column { name, kind: "string", is_wide: false, cell }
}

pub(super) const fn number(name: &'static str, cell: Cell) -> Column {
    Column { name, kind: "integer", is_wide: false, cell }
}

pub(super) const fn wide(name: &'static str, cell: Cell) -> Column {
    Column { name, kind: "string", is_wide: true, cell }
}

pub(super) const NAME: Column = text("Name", |it, _| metadata_text(it, "name").into());
pub(super) const AGE: Column =
    text("Age", |it, now| since(&it["metadata"]["creationTimestamp"], now).into());
const CONTAINERS: Column = wide("Containers", |it, _| containers(it, "name"));
const IMAGES: Column = wide("Images", |it, _| containers(it, "image"));
const SELECTOR: Column = wide("Selector", |it, _| selector(it));

/// The columns of a kind.
pub(super) fn of(kind: &Kind) -> &'static [Column] {
    let row = TABLE
        .iter()
        .chain(other_kinds::TABLE)
        .find(|(group, resource, _)| kind.is(group, resource));
    row.map_or(&[NAME, AGE], |(_, _, columns)| columns)
}

static TABLE: &[(&str, &str, &[Column])] = &[
    (
        "",
        "pods",
        &[
            NAME,
            text("Ready", |it, now| pod::summary(it, now).ready.into()),
            text("Status", |it, now| pod::summary(it, now).status.into()),
            text("Restarts", |it, now| pod::summary(it, now).restarts.into()),
            AGE,
            wide("IP", |it, _| or_none(&it["status"]["podIPs"][0]["ip"])),
            wide("Node", |it, _| or_none(&it["spec"]["nodeName"])),
            wide("Nominated Node", |it, _| or_none(&it["status"]["nominatedNodeName"])),
            wide("Readiness Gates", |it, _| readiness_gates(it)),
        ],
    ),
    (
        "",
        "nodes",
        &[
            NAME,
            text("Status", |it, _| node_status(it).into()),
            text("Roles", |it, _| node_roles(it).into()),
            AGE,
            text("Version", |it, _| or_empty(&it["status"]["nodeInfo"]["kubeletVersion"])),
            wide("Internal-IP", |it, _| node_address(it, "InternalIP")),
            wide("External-IP", |it, _| node_address(it, "ExternalIP")),
            wide("OS-Image", |it, _| or_unknown(&it["status"]["nodeInfo"]["osImage"])),
            wide("Kernel-Version", |it, _| kernel(&it["status"]["nodeInfo"])),
            wide("Container-Runtime", |it, _| {
                or_unknown(&it["status"]["nodeInfo"]["containerRuntimeVersion"])
            }),
        ],
    ),
    ("", "namespaces", &[NAME, text("Status", |it, _| or_empty(&it["status"]["phase"])), AGE]),
    ("", "events", EVENT),
    ("events.k8s.io", "events", EVENT),
    (
        "",
        "services",
        &[
            NAME,
            text("Type", |it, _| or_empty(&it["spec"]["type"])),
            text("Cluster-IP", |it, _| or_none(&it["spec"]["clusterIPs"][0])),
            text("External-IP", |it, _| external_address(it).into()),
            text("Port(s)", |it, _| or_none(&service_ports(it).into())),
            AGE,
            wide("Selector", |it, _| or_none(&selector_text(&it["spec"]["selector"]).into())),
        ],
    ),
    (
        "",
        "configmaps",
        &[
            NAME,
            text("Data", |it, _| (n_members(&it["data"]) + n_members(&it["binaryData"])).into()),
            AGE,
        ],
    ),
    (
        "",
        "secrets",
        &[
            NAME,
            text("Type", |it, _| or_empty(&it["type"])),
            text("Data", |it, _| n_members(&it["data"]).into()),
            AGE,
        ],
    ),
    (
        "",
        "persistentvolumes",
        &[
            NAME,
            text("Capacity", |it, _| or_empty(&it["spec"]["capacity"]["storage"])),
            text("Access Modes", |it, _| access_modes(&it["spec"]["accessModes"]).into()),
            text("Reclaim Policy", |it, _| or_empty(&it["spec"]["persistentVolumeReclaimPolicy"])),
            text("Status", |it, _| status_or_terminating(it)),
            text("Claim", |it, _| claim(&it["spec"]["claimRef"]).into()),
            text("StorageClass", |it, _| or_empty(&it["spec"]["storageClassName"])),
            text("VolumeAttributesClass", |it, _| {
                or_unset(&it["spec"]["volumeAttributesClassName"])
            }),
            text("Reason", |it, _| or_empty(&it["status"]["reason"])),
            AGE,
            wide("VolumeMode", |it, _| or_unset(&it["spec"]["volumeMode"])),
        ],
    ),
    (
        "",
        "persistentvolumeclaims",
        &[
            NAME,
            text("Status", |it, _| status_or_terminating(it)),
            text("Volume", |it, _| or_empty(&it["spec"]["volumeName"])),
            text("Capacity", |it, _| or_empty(&it["status"]["capacity"]["storage"])),
            text("Access Modes", |it, _| access_modes(&it["status"]["accessModes"]).into()),
            text("StorageClass", |it, _| or_empty(&it["spec"]["storageClassName"])),
            text("VolumeAttributesClass", |it, _| {
                or_unset(&it["spec"]["volumeAttributesClassName"])
            }),
            AGE,
            wide("VolumeMode", |it, _| or_unset(&it["spec"]["volumeMode"])),
        ],
    ),
    ("", "replicationcontrollers", REPLICAS),
    ("apps", "replicasets", REPLICAS),
    (
        "apps",
        "deployments",
        &[
            NAME,
            text("Ready", |it, _| of_wanted(it, "readyReplicas").into()),
            number("Up-to-date", |it, _| count(&it["status"]["updatedReplicas"])),
            number("Available", |it, _| count(&it["status"]["availableReplicas"])),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
    ),
    (
        "apps",
        "statefulsets",
        &[
            NAME,
            text("Ready", |it, _| of_wanted(it, "readyReplicas").into()),
            AGE,
            CONTAINERS,
            IMAGES,
        ],
    ),
    (
        "apps",
        "daemonsets",
        &[
            NAME,
            number("Desired", |it, _| count(&it["status"]["desiredNumberScheduled"])),
            number("Current", |it, _| count(&it["status"]["currentNumberScheduled"])),
            number("Ready", |it, _| count(&it["status"]["numberReady"])),
            number("Up-to-date", |it, _| count(&it["status"]["updatedNumberScheduled"])),
            number("Available", |it, _| count(&it["status"]["numberAvailable"])),
            text("Node Selector", |it, _| {
                or_none(&selector_text(&it["spec"]["template"]["spec"]["nodeSelector"]).into())
            }),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
    ),
    (
        "batch",
        "jobs",
        &[
            NAME,
            text("Status", |it, _| job_status(it).into()),
            text("Completions", |it, _| completions(it).into()),
            text("Duration", |it, now| job_duration(it, now).into()),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
    ),
    (
        "batch",
        "cronjobs",
        &[
            NAME,
            text("Schedule", |it, _| or_empty(&it["spec"]["schedule"])),
            text("Timezone", |it, _| or_none(&it["spec"]["timeZone"])),
            Column {
                name: "Suspend",
                kind: "boolean",
                is_wide: false,
                cell: |it, _| {
                    if it["spec"]["suspend"] == true { "True".into() } else { "False".into() }
                },
            },
            number("Active", |it, _| list_entries(&it["status"]["active"]).len().into()),
            text("Last Schedule", |it, now| match &it["status"]["lastScheduleTime"] {
                Value::Null => "<none>".into(),
                time => since(time, now).into(),
            }),
            AGE,
            wide("Containers", |it, _| containers(&it["spec"]["jobTemplate"], "name")),
            wide("Images", |it, _| containers(&it["spec"]["jobTemplate"], "image")),
            wide("Selector", |it, _| selector(&it["spec"]["jobTemplate"])),
        ],
    ),
    (
        "policy",
        "poddisruptionbudgets",
        &[
            NAME,
            text("Min Available", |it, _| plain_or(&it["spec"]["minAvailable"], "N/A")),
            text("Max Unavailable", |it, _| plain_or(&it["spec"]["maxUnavailable"], "N/A")),
            number("Allowed Disruptions", |it, _| count(&it["status"]["disruptionsAllowed"])),
            AGE,
        ],
    ),
    (
        "scheduling.k8s.io",
        "priorityclasses",
        &[
            NAME,
            number("Value", |it, _| count(&it["value"])),
            Column {
                name: "Global-Default",
                kind: "boolean",
                is_wide: false,
                cell: |it, _| (it["globalDefault"] == true).into(),
            },
            AGE,
            text("PreemptionPolicy", |it, _| or_empty(&it["preemptionPolicy"])),
        ],
    ),
    (
        "storage.k8s.io",
        "storageclasses",
        &[
            text("Name", |it, _| storage_class_name(it).into()),
            text("Provisioner", |it, _| or_empty(&it["provisioner"])),
            text("ReclaimPolicy", |it, _| or_empty(&it["reclaimPolicy"])),
            text("VolumeBindingMode", |it, _| or_empty(&it["volumeBindingMode"])),
            text("AllowVolumeExpansion", |it, _| (it["allowVolumeExpansion"] == true).into()),
            AGE,
        ],
    ),
    (
        "coordination.k8s.io",
        "leases",
        &[NAME, text("Holder", |it, _| or_empty(&it["spec"]["holderIdentity"])), AGE],
    ),
];

const EVENT: &[Column] = &[
    text("Last Seen", |it, now| event_times(it, now).1.into()),
    text("Type", |it, _| or_empty(&it["type"])),
    text("Reason", |it, _| or_empty(&it["reason"])),
    text("Object", |it, _| event_object(it).into()),
    wide("Subobject", |it, _| or_empty(&it["involvedObject"]["fieldPath"])),
    wide("Source", |it, _| event_source(it).into()),
    text("Message", |it, _| it["message"].as_str().unwrap_or_default().trim().into()),
    wide("First Seen", |it, now| event_times(it, now).0.into()),
    wide("Count", |it, _| {
        let series = it["series"]["count"].as_i64();
        series.or(it["count"].as_i64()).filter(|n| *n != 0).unwrap_or(1).into()
    }),
    wide("Name", |it, _| metadata_text(it, "name").into()),
];

const REPLICAS: &[Column] = &[
    NAME,
    number("Desired", |it, _| count(&it["spec"]["replicas"])),
    number("Current", |it, _| count(&it["status"]["replicas"])),
    number("Ready", |it, _| count(&it["status"]["readyReplicas"])),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

fn or_else(value: &Value, other: &str) -> Value {
    match value.as_str() {
        Some(text) if !text.is_empty() => text.into(),
        _ => other.into(),
    }
}

pub(super) fn or_empty(value: &Value) -> Value {
    or_else(value, "")
}

pub(super) fn or_none(value: &Value) -> Value {
    or_else(value, "<none>")
}

fn or_unknown(value: &Value) -> Value {
    or_else(value, "<unknown>")
}

fn or_unset(value: &Value) -> Value {
    or_else(value, "<unset>")
}

/// A number or a text as it is.
fn plain_or(value: &Value, other: &str) -> Value {
    match value {
        Value::Null => other.into(),
        Value::String(text) => text.clone().into(),
        value => value.to_string().into(),
    }
}

pub(super) fn count(value: &Value) -> Value {
    value.as_i64().unwrap_or(0).into()
}

fn n_members(value: &Value) -> usize {
    value.as_object().map_or(0, serde_json::Map::len)
}

pub(super) fn joined<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    parts.collect::<Vec<_>>().join(",")
}

fn containers(it: &Value, field: &str) -> Value {
    let containers = list_entries(&it["spec"]["template"]["spec"]["containers"]);
    joined(containers.iter().map(|it| it[field].as_str().unwrap_or_default())).into()
}

fn selector(it: &Value) -> Value {
    selector_of(&it["spec"]["selector"])
}

/// A selector as text.
pub(super) fn selector_of(selector: &Value) -> Value {
    or_none(&selector_text(selector).into())
}

fn of_wanted(it: &Value, field: &str) -> String {
    let number = |value: &Value| value.as_i64().unwrap_or(0);
    format!("{}/{}", number(&it["status"][field]), number(&it["spec"]["replicas"]))
}

fn readiness_gates(pod: &Value) -> Value {
    let gates = list_entries(&pod["spec"]["readinessGates"]);
    if gates.is_empty() {
        return "<none>".into();
    }
    let is_true = |gate: &&Value| {
        list_entries(&pod["status"]["conditions"])
            .iter()
            .any(|it| it["type"] == gate["conditionType"] && it["status"] == "True")
    };
    format!("{}/{}", gates.iter().filter(is_true).count(), gates.len()).into()
}

fn node_status(node: &Value) -> String {
    let ready = list_entries(&node["status"]["conditions"]).iter().find(|it| it["type"] == "Ready");
    let mut status = match ready.map(|it| it["status"] == "True") {
        Some(true) => "Ready",
        Some(false) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if node["spec"]["unschedulable"] == true {
        status.push_str(",SchedulingDisabled");
    }
    status
}

fn node_roles(node: &Value) -> String {
    let labels = node["metadata"]["labels"].as_object();
    let mut roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => (!role.is_empty()).then_some(role),
            None if key == "kubernetes.io/role" => value.as_str().filter(|role| !role.is_empty()),
            None => None,
        })
        .collect();
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") }
}

fn node_address(node: &Value, kind: &str) -> Value {
    let addresses = list_entries(&node["status"]["addresses"]);
    or_none(
        addresses.iter().find(|it| it["type"] == kind).map_or(&Value::Null, |it| &it["address"]),
    )
}

fn kernel(info: &Value) -> Value {
    let version = or_unknown(&info["kernelVersion"]);
    match (version.as_str(), info["architecture"].as_str()) {
        (Some(version), Some(architecture)) if !architecture.is_empty() => {
            format!("{version} ({architecture})").into()
        }
        _ => version,
    }
}

fn service_ports(service: &Value) -> String {
    let port = |it: &Value| {
        let (port, protocol) = (&it["port"], it["protocol"].as_str().unwrap_or_default());
        match it["nodePort"].as_i64().unwrap_or(0) {
            0 => format!("{port}/{protocol}"),
            node_port => format!("{port}:{node_port}/{protocol}"),
        }
    };
    list_entries(&service["spec"]["ports"]).iter().map(port).collect::<Vec<_>>().join(",")
}

fn external_address(service: &Value) -> String {
    let spec = &service["spec"];
    let given = joined(list_entries(&spec["externalIPs"]).iter().filter_map(Value::as_str));
    let balancers = list_entries(&service["status"]["loadBalancer"]["ingress"]);
    let balancer = |it: &'_ Value| {
        it["ip"].as_str().or(it["hostname"].as_str()).unwrap_or_default().to_owned()
    };
    match spec["type"].as_str().unwrap_or_default() {
        "ExternalName" => spec["externalName"].as_str().unwrap_or_default().to_owned(),
        "LoadBalancer" => {
            let mut all: Vec<String> = balancers.iter().map(balancer).collect();
            all.extend((!given.is_empty()).then_some(given));
            if all.is_empty() { "<pending>".to_owned() } else { all.join(",") }
        }
        _ if given.is_empty() => "<none>".to_owned(),
        _ => given,
    }
}

fn access_modes(modes: &Value) -> String {
    let short = |mode: &Value| match mode.as_str().unwrap_or_default() {
        "ReadWriteOnce" => "RWO",
        "ReadOnlyMany" => "ROX",
        "ReadWriteMany" => "RWX",
        "ReadWriteOncePod" => "RWOP",
        _ => "",
    };
    joined(list_entries(modes).iter().map(short).filter(|it| !it.is_empty()))
}

fn claim(claim: &Value) -> String {
    match (claim["namespace"].as_str(), claim["name"].as_str()) {
        (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
        _ => String::new(),
    }
}

fn status_or_terminating(it: &Value) -> Value {
    if it["metadata"]["deletionTimestamp"].is_null() {
        or_empty(&it["status"]["phase"])
    } else {
        "Terminating".into()
    }
}

fn storage_class_name(class: &Value) -> String {
    let is_default = [
        "storageclass.kubernetes.io/is-default-class",
        "storageclass.beta.kubernetes.io/is-default-class",
    ]
    .iter()
    .any(|key| class["metadata"]["annotations"][key] == "true");
    let suffix = if is_default { " (default)" } else { "" };
    format!("{}{suffix}", metadata_text(class, "name"))
}

fn job_status(job: &Value) -> &'static str {
    let has = |kind: &str| {
        list_entries(&job["status"]["conditions"])
            .iter()
            .any(|it| it["type"] == kind && it["status"] == "True")
    };
    if has("Complete") {
        "Complete"
    } else if has("Failed") {
        "Failed"
    } else if !job["metadata"]["deletionTimestamp"].is_null() {
        "Terminating"
    } else if has("Suspended") {
        "Suspended"
    } else if has("FailureTarget") {
        "FailureTarget"
    } else if has("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn completions(job: &Value) -> String {
    let done = job["status"]["succeeded"].as_i64().unwrap_or(0);
    match (job["spec"]["completions"].as_i64(), job["spec"]["parallelism"].as_i64().unwrap_or(0)) {
        (Some(wanted), _) => format!("{done}/{wanted}"),
        (None, parallelism) if parallelism > 1 => format!("{done}/1 of {parallelism}"),
        (None, _) => format!("{done}/1"),
    }
}

fn job_duration(job: &Value, now: Timestamp) -> String {
    let time =
        |field: &str| job["status"][field].as_str().and_then(|it| it.parse::<Timestamp>().ok());
    match (time("startTime"), time("completionTime")) {
        (None, _) => String::new(),
        (Some(start), end) => human_duration(end.unwrap_or(now).as_second() - start.as_second()),
    }
}

fn event_object(event: &Value) -> String {
    let object = &event["involvedObject"];
    let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
    match object["name"].as_str() {
        Some(name) if !name.is_empty() => format!("{kind}/{name}"),
        _ => kind,
    }
}

fn event_source(event: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let first = |a: &Value, b: &Value| if text(a).is_empty() { text(b) } else { text(a) };
    let component = first(&event["source"]["component"], &event["reportingComponent"]);
    let instance = first(&event["source"]["host"], &event["reportingInstance"]);
    if instance.is_empty() { component } else { format!("{component}, {instance}") }
}

/// When an Event was first and last seen.
fn event_times(event: &Value, now: Timestamp) -> (String, String) {
    let first = match &event["firstTimestamp"] {
        Value::Null => since(&event["eventTime"], now),
        time => since(time, now),
    };
    let last = match (&event["series"]["lastObservedTime"], &event["lastTimestamp"]) {
        (Value::Null, Value::Null) => first.clone(),
        (Value::Null, time) | (time, _) => since(time, now),
    };
    (first, last)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_of_empty_objects_do_not_panic() {
        let now = Timestamp::UNIX_EPOCH;
        for (_, _, columns) in TABLE.iter().chain(other_kinds::TABLE) {
            for column in *columns {
                let cell = (column.cell)(&json!({}), now);
                assert!(!cell.is_array() && !cell.is_object(), "{}", column.name);
            }
        }
    }
}
