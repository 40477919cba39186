//! What a pod uses: what its containers ask for together, while it has not ended.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{
    DEVICE_CLASS, ONE, ResourceAmounts, Scope, add_resource_amounts, entries, is_extended_request,
    parse_resource_amounts, raise_amounts_to_at_least, text,
};
use crate::resource_names::is_extended_resource_name;

/// Names of a quota that are about pods, beside huge pages and extended resources.
const NAMES: &[&str] = &[
    "pods",
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];

/// What each container must say where a quota counts it (upstream's `validationSet`, "a mistake", which is not repeated for
/// others).
const NEEDED: &[&str] =
    &["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

const HUGE_PAGES: &str = "hugepages-";

/// Whether a name of a quota is about pods, but `count/pods`.
pub(super) fn is_about(name: &str) -> bool {
    let resource = name.strip_prefix("requests.").unwrap_or(name);
    NAMES.contains(&name) || resource.starts_with(HUGE_PAGES) || is_extended_request(name)
}

/// The usage of a pod. Only the object counts for a terminated pod, or one whose grace period has passed.
pub(super) fn usage(pod: &Value, now: Timestamp) -> ResourceAmounts {
    let mut used = ResourceAmounts::from([("count/pods".to_owned(), ONE)]);
    if has_ended(pod, now) {
        return used;
    }
    used.insert("pods".to_owned(), ONE);
    for (name, amount) in total(pod, "requests") {
        let request = format!("requests.{name}");
        if is_basic(&name) || name.starts_with(HUGE_PAGES) {
            used.insert(request, amount);
            used.insert(name, amount);
        } else if is_extended_resource_name(&name) || name.starts_with(DEVICE_CLASS) {
            used.insert(request, amount);
        }
    }
    let limits = total(pod, "limits").into_iter().filter(|(name, _)| is_basic(name));
    used.extend(limits.map(|(name, amount)| (format!("limits.{name}"), amount)));
    used
}

fn is_basic(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage")
}

fn has_ended(pod: &Value, now: Timestamp) -> bool {
    if matches!(text(&pod["status"]["phase"]), "Succeeded" | "Failed") {
        return true;
    }
    let metadata = &pod["metadata"];
    let marked: Option<Timestamp> = text(&metadata["deletionTimestamp"]).parse().ok();
    let grace = metadata["deletionGracePeriodSeconds"].as_i64();
    let gone = marked.zip(grace).map(|(marked, grace)| {
        marked.checked_add(SignedDuration::from_secs(grace)).unwrap_or(Timestamp::MAX)
    });
    gone.is_some_and(|gone| now > gone)
}

/// The requests of a pod as a whole, by the names of the resources.
pub fn pod_requests(pod: &Value) -> ResourceAmounts {
    total(pod, "requests")
}

/// Requests or limits of a pod as a whole.
fn total(pod: &Value, field: &str) -> ResourceAmounts {
    let spec = &pod["spec"];
    let mut total = sum_over_containers(pod, |container, runs_on| {
        if runs_on {
            effective(pod, container, field)
        } else {
            parse_resource_amounts(&container["resources"][field])
        }
    });
    total.extend(
        parse_resource_amounts(&spec["resources"][field])
            .into_iter()
            .filter(|(name, _)| is_pod_level(name)),
    );
    let mut overhead = parse_resource_amounts(&spec["overhead"]);
    if field == "limits" {
        overhead.retain(|name, _| total.contains_key(name));
    }
    add_resource_amounts(&mut total, &overhead);
    total
}

/// What a pod can ask for as a whole (upstream's `IsSupportedPodLevelResource`).
fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with(HUGE_PAGES)
}

/// The total of a pod's containers: those that run at the same time, or the peak of the init containers. `of` returns
/// the amounts of one container; its second argument is whether the container keeps running once it has started.
pub fn sum_over_containers(
    pod: &Value,
    of: impl Fn(&Value, bool) -> ResourceAmounts,
) -> ResourceAmounts {
    let mut total = ResourceAmounts::new();
    for container in entries(&pod["spec"]["containers"]) {
        add_resource_amounts(&mut total, &of(container, true));
    }
    // Sidecars started so far run beside every later init container.
    let (mut sidecars, mut peak) = (ResourceAmounts::new(), ResourceAmounts::new());
    for container in entries(&pod["spec"]["initContainers"]) {
        if container["restartPolicy"] == "Always" {
            let own = of(container, true);
            add_resource_amounts(&mut total, &own);
            add_resource_amounts(&mut sidecars, &own);
            raise_amounts_to_at_least(&mut peak, &sidecars);
        } else {
            let mut own = of(container, false);
            add_resource_amounts(&mut own, &sidecars);
            raise_amounts_to_at_least(&mut peak, &own);
        }
    }
    raise_amounts_to_at_least(&mut total, &peak);
    total
}

/// The maximum of a container's desired, actual and allocated resources during a resize. An infeasible resize does
/// not count.
fn effective(pod: &Value, container: &Value, field: &str) -> ResourceAmounts {
    let own = parse_resource_amounts(&container["resources"][field]);
    let lists = ["initContainerStatuses", "containerStatuses"].map(|list| &pod["status"][list]);
    let mut statuses = lists.into_iter().flat_map(entries);
    let status = statuses.find(|it| it["name"] == container["name"]);
    let Some(status) = status.filter(|it| !it["resources"].is_null()) else { return own };
    let mut conditions = entries(&pod["status"]["conditions"]).iter();
    let pending = conditions.find(|it| it["type"] == "PodResizePending");
    let is_infeasible = pending.is_some_and(|it| it["reason"] == "Infeasible");
    let mut most = if is_infeasible { ResourceAmounts::new() } else { own };
    raise_amounts_to_at_least(&mut most, &parse_resource_amounts(&status["resources"][field]));
    if field == "requests" {
        raise_amounts_to_at_least(
            &mut most,
            &parse_resource_amounts(&status["allocatedResources"]),
        );
    }
    most
}

/// The resources of a quota that a pod's containers must specify and do not, in upstream's words.
pub fn missing_quota_resources<'a>(
    pod: &Value,
    names: impl Iterator<Item = &'a str>,
) -> Option<String> {
    let own = &pod["spec"]["resources"];
    let says =
        |field: &str| parse_resource_amounts(&own[field]).keys().any(|name| is_pod_level(name));
    if says("requests") || says("limits") {
        return None;
    }
    let lists = ["containers", "initContainers"].map(|list| &pod["spec"][list]);
    let containers: Vec<&Value> = lists.into_iter().flat_map(entries).collect();
    let needed: BTreeSet<&str> = names.filter(|name| NEEDED.contains(name)).collect();
    let complaints = needed.into_iter().filter_map(|name| {
        let (field, resource) = match name.split_once('.') {
            Some((field, resource)) => (field, resource),
            None => ("requests", name),
        };
        let lacks = |it: &&&Value| it["resources"][field].get(resource).is_none();
        let lacking: BTreeSet<&str> =
            containers.iter().filter(lacks).map(|it| text(&it["name"])).collect();
        let lacking: Vec<&str> = lacking.into_iter().collect();
        (!lacking.is_empty()).then(|| format!("{name} for: {}", lacking.join(",")))
    });
    let complaints: Vec<String> = complaints.collect();
    (!complaints.is_empty()).then(|| format!("must specify {}", complaints.join("; ")))
}

/// Whether a pod meets a condition of a quota.
pub(super) fn is_in(scope: &Scope<'_>, pod: &Value) -> bool {
    let spec = &pod["spec"];
    let has_deadline = || spec["activeDeadlineSeconds"].as_i64().is_some_and(|it| it >= 0);
    let is_best_effort = || pod["status"]["qosClass"] == "BestEffort";
    match scope.name {
        "Terminating" => has_deadline(),
        "NotTerminating" => !has_deadline(),
        "BestEffort" => is_best_effort(),
        "NotBestEffort" => !is_best_effort(),
        "PriorityClass" => {
            let name = text(&spec["priorityClassName"]);
            scope.is_met_by(Some(name).filter(|name| !name.is_empty()))
        }
        "CrossNamespacePodAffinity" => looks_elsewhere(&spec["affinity"]),
        _ => false,
    }
}

/// Whether a pod wants to be near or far from pods of other namespaces.
fn looks_elsewhere(affinity: &Value) -> bool {
    let is_elsewhere = |term: &Value| {
        !entries(&term["namespaces"]).is_empty() || !term["namespaceSelector"].is_null()
    };
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let list = |name: &str| entries(&affinity[kind][name]).iter();
        list("requiredDuringSchedulingIgnoredDuringExecution").any(is_elsewhere)
            || list("preferredDuringSchedulingIgnoredDuringExecution")
                .any(|it| is_elsewhere(&it["podAffinityTerm"]))
    })
}
