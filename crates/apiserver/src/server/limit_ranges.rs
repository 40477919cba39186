//! Admission plugin LimitRanger: default requests and limits of containers, and the minimum and maximum of
//! containers, pods and PersistentVolumeClaims.

use std::collections::BTreeSet;

use loadmaster_api::Quantity;
use loadmaster_api::quota::{ResourceAmounts, parse_resource_amounts, sum_over_containers};
use serde_json::{Map, Value, json};

use super::ApiServer;
use crate::object::{list_entries, members_mut, meta_mut, metadata_text, parsed};
use crate::schema::Kind;
use crate::status::ApiError;
use crate::store::{Filter, ListOptions};

/// The annotation that lists the defaults that were set.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// Compared in thousandths up to here, in whole units beyond.
const MILLI_MAX: i64 = i64::MAX / 1000;

impl ApiServer {
    /// Sets the default requests and limits of a pod's containers.
    pub(super) fn set_limits(&self, kind: &Kind, value: &mut Value) -> Result<(), ApiError> {
        if !self.shared.setup.admission.limit_ranger || !kind.is("", "pods") {
            return Ok(());
        }
        for range in self.limit_ranges(metadata_text(value, "namespace"))? {
            fill_in(&range, value);
        }
        Ok(())
    }

    /// Rejects a pod or PersistentVolumeClaim outside the limits of its namespace.
    pub(super) fn check_limits(&self, kind: &Kind, value: &Value) -> Result<(), ApiError> {
        let is_limited = kind.is("", "pods") || kind.is("", "persistentvolumeclaims");
        if !self.shared.setup.admission.limit_ranger || !is_limited {
            return Ok(());
        }
        for range in self.limit_ranges(metadata_text(value, "namespace"))? {
            let complaints = complaints(&range, kind, value);
            if let Some(why) = crate::authorization::join_errors(&complaints) {
                return Err(ApiError::forbidden(kind, metadata_text(value, "name"), &why));
            }
        }
        Ok(())
    }

    fn limit_ranges(&self, namespace: &str) -> Result<Vec<Value>, ApiError> {
        let kind = self.own_kind("", "limitranges")?;
        let table = kind.table.ok_or_else(ApiError::no_such_resource)?;
        let prefix = format!("{namespace}/");
        let span = ListOptions { prefix: &prefix, ..ListOptions::default() };
        let page = self.state().store.list(table, &span, &Filter::everything());
        let page = page.map_err(|error| ApiError::internal(&error.to_string()))?;
        page.objects.iter().map(|object| parsed(object)).collect()
    }
}

/// Sets the defaults of a LimitRange on a container.
fn fill_in(range: &Value, pod: &mut Value) {
    let (mut requests, mut limits) = (Map::new(), Map::new());
    for item in items(range, "Container") {
        let members = |field: &str| item[field].as_object().cloned().unwrap_or_default();
        requests.extend(members("defaultRequest"));
        limits.extend(members("default"));
    }
    let mut notes = Vec::new();
    for (list, title) in [("containers", "container"), ("initContainers", "init container")] {
        let containers = pod["spec"].get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            for (field, defaults, what) in
                [("requests", &requests, "request"), ("limits", &limits, "limit")]
            {
                let set = set_absent(container, field, defaults);
                if !set.is_empty() {
                    notes.push(format!("{} {what} for {title} {name}", set.join(", ")));
                }
            }
        }
    }
    if !notes.is_empty() {
        let known = meta_mut(pod).entry("annotations").or_insert_with(|| json!({}));
        let text = format!("LimitRanger plugin set: {}", notes.join("; "));
        members_mut(known).insert(ANNOTATION.to_owned(), text.into());
    }
}

/// Which were set, sorted.
fn set_absent(container: &mut Value, field: &str, defaults: &Map<String, Value>) -> Vec<String> {
    if defaults.is_empty() {
        return Vec::new();
    }
    let known = members_mut(&mut container["resources"][field]);
    let absent = defaults.iter().filter(|(name, _)| !known.contains_key(*name));
    let absent: Vec<(String, Value)> =
        absent.map(|(name, amount)| (name.clone(), amount.clone())).collect();
    let mut names: Vec<String> = absent.iter().map(|(name, _)| name.clone()).collect();
    known.extend(absent);
    names.sort();
    names
}

fn items<'a>(range: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    list_entries(&range["spec"]["limits"]).iter().filter(move |it| it["type"] == kind)
}

/// The violations of a LimitRange by an object, without duplicates.
fn complaints(range: &Value, kind: &Kind, value: &Value) -> Vec<String> {
    let mut all = Vec::new();
    for item in list_entries(&range["spec"]["limits"]) {
        let title = item["type"].as_str().unwrap_or_default();
        match (kind.resource, title) {
            ("pods", "Container") => {
                for list in ["containers", "initContainers"] {
                    for container in list_entries(&value["spec"][list]) {
                        let amounts =
                            |field: &str| parse_resource_amounts(&container["resources"][field]);
                        Check {
                            item,
                            title,
                            requests: amounts("requests"),
                            limits: amounts("limits"),
                        }
                        .all(&mut all);
                    }
                }
            }
            ("pods", "Pod") => {
                let (requests, limits) = (sum(value, "requests"), sum(value, "limits"));
                Check { item, title, requests, limits }.all(&mut all);
            }
            ("persistentvolumeclaims", "PersistentVolumeClaim") => {
                let requests = parse_resource_amounts(&value["spec"]["resources"]["requests"]);
                let check = Check { item, title, requests, limits: ResourceAmounts::new() };
                check.least(&mut all);
                check.most_requested(&mut all);
            }
            _ => {}
        }
    }
    let mut seen = BTreeSet::new();
    all.retain(|text| seen.insert(text.clone()));
    all
}

/// The requests or limits of a pod: the sum of its containers, or the maximum of its init containers if that is more.
fn sum(pod: &Value, field: &str) -> ResourceAmounts {
    let mut total = sum_over_containers(pod, |container, _| {
        parse_resource_amounts(&container["resources"][field])
    });
    for (name, amount) in parse_resource_amounts(&pod["spec"]["resources"][field]) {
        if matches!(name.as_str(), "cpu" | "memory") {
            total.insert(name, amount);
        }
    }
    total
}

/// Checks one item of a LimitRange against requests and limits.
struct Check<'a> {
    item: &'a Value,
    title: &'a str,
    requests: ResourceAmounts,
    limits: ResourceAmounts,
}

impl Check<'_> {
    fn all(&self, complaints: &mut Vec<String>) {
        self.least(complaints);
        self.most(complaints);
        self.ratio(complaints);
    }

    /// Each bound of a list, with what is requested and limited.
    fn bounds(&self, list: &str) -> Vec<(String, Quantity, Option<Quantity>, Option<Quantity>)> {
        let bounds = parse_resource_amounts(&self.item[list]).into_iter();
        bounds
            .map(|(name, bound)| {
                let (request, limit) = (self.requests.get(&name), self.limits.get(&name));
                (name.clone(), bound, request.copied(), limit.copied())
            })
            .collect()
    }

    fn least(&self, complaints: &mut Vec<String>) {
        for (name, bound, request, limit) in self.bounds("min") {
            let head = format!("minimum {name} usage per {} is {bound}", self.title);
            match (request, limit) {
                (None, _) => complaints.push(format!("{head}.  No request is specified")),
                (Some(request), _) if is_less(request, bound) => {
                    complaints.push(format!("{head}, but request is {request}"));
                }
                (_, Some(limit)) if is_less(limit, bound) => {
                    complaints.push(format!("{head}, but limit is {limit}"));
                }
                _ => {}
            }
        }
    }

    fn most(&self, complaints: &mut Vec<String>) {
        for (name, bound, request, limit) in self.bounds("max") {
            let head = format!("maximum {name} usage per {} is {bound}", self.title);
            match (request, limit) {
                (_, None) => complaints.push(format!("{head}.  No limit is specified")),
                (_, Some(limit)) if is_less(bound, limit) => {
                    complaints.push(format!("{head}, but limit is {limit}"));
                }
                (Some(request), _) if is_less(bound, request) => {
                    complaints.push(format!("{head}, but request is {request}"));
                }
                _ => {}
            }
        }
    }

    /// The most of what has requests only.
    fn most_requested(&self, complaints: &mut Vec<String>) {
        for (name, bound, request, _) in self.bounds("max") {
            let head = format!("maximum {name} usage per {} is {bound}", self.title);
            match request {
                None => complaints.push(format!("{head}.  No request is specified")),
                Some(request) if is_less(bound, request) => {
                    complaints.push(format!("{head}, but request is {request}"));
                }
                Some(_) => {}
            }
        }
    }

    fn ratio(&self, complaints: &mut Vec<String>) {
        for (name, bound, request, limit) in self.bounds("maxLimitRequestRatio") {
            let head = format!("{name} max limit to request ratio per {} is {bound}", self.title);
            let Some(request) = request.filter(|it| !it.is_zero()) else {
                let why = "but no request is specified or request is 0";
                complaints.push(format!("{head}, {why}"));
                continue;
            };
            let Some(limit) = limit.filter(|it| !it.is_zero()) else {
                let why = "but no limit is specified or limit is 0";
                complaints.push(format!("{head}, {why}"));
                continue;
            };
            let ratio = comparable(limit, request);
            let ratio = ratio.0 as f64 / ratio.1 as f64;
            let most = if bound.value() <= MILLI_MAX {
                bound.milli_value() as f64 / 1000.0
            } else {
                bound.value() as f64
            };
            if ratio > most {
                complaints.push(format!("{head}, but provided ratio is {ratio:.6}"));
            }
        }
    }
}

/// Two amounts in the same unit.
fn comparable(a: Quantity, b: Quantity) -> (i64, i64) {
    if a.value() <= MILLI_MAX && b.value() <= MILLI_MAX {
        (a.milli_value(), b.milli_value())
    } else {
        (a.value(), b.value())
    }
}

fn is_less(a: Quantity, b: Quantity) -> bool {
    let (a, b) = comparable(a, b);
    a < b
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(resources: Value) -> Value {
        json!({"spec": {"containers": [{"name": "c", "resources": resources}]}})
    }

    #[track_caller]
    fn check(item: Value, pod: &Value, want: &[&str]) {
        let range = json!({"spec": {"limits": [item]}});
        let mut store = crate::store::Store::new(crate::store::StoreLimits::default());
        let kinds = crate::schema::Kinds::new(&mut store, &[]);
        let kind = kinds.find_stable("", "pods").expect("pods");
        assert_eq!(complaints(&range, kind, pod), want);
    }

    #[test]
    fn minimum_and_maximum() {
        let item = json!({"type": "Container", "min": {"cpu": "100m"}, "max": {"memory": "1Gi"}});
        let asks = |cpu: &str, memory: &str| {
            pod(json!({"requests": {"cpu": cpu}, "limits": {"memory": memory}}))
        };
        check(item.clone(), &asks("100m", "1Gi"), &[]);
        check(
            item.clone(),
            &asks("50m", "2Gi"),
            &[
                "minimum cpu usage per Container is 100m, but request is 50m",
                "maximum memory usage per Container is 1Gi, but limit is 2Gi",
            ],
        );
        check(
            item,
            &pod(json!({})),
            &[
                "minimum cpu usage per Container is 100m.  No request is specified",
                "maximum memory usage per Container is 1Gi.  No limit is specified",
            ],
        );
    }

    #[test]
    fn ratios() {
        let item = json!({"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}});
        let asks = |request: &str, limit: &str| {
            pod(json!({"requests": {"cpu": request}, "limits": {"cpu": limit}}))
        };
        check(item.clone(), &asks("1", "2"), &[]);
        check(
            item.clone(),
            &asks("1", "3"),
            &["cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000"],
        );
        check(
            item,
            &asks("0", "3"),
            &[
                "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
            ],
        );
    }

    #[test]
    fn a_pod_counts_as_a_whole() {
        let pod = json!({"spec": {
            "containers": [
                {"name": "a", "resources": {"requests": {"cpu": "1"}}},
                {"name": "b", "resources": {"requests": {"cpu": "500m"}}},
            ],
            "initContainers": [
                {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
                {"name": "i", "resources": {"requests": {"cpu": "2"}}},
            ],
        }});
        check(json!({"type": "Pod", "min": {"cpu": "3"}}), &pod, &[]);
        check(
            json!({"type": "Pod", "min": {"cpu": "3001m"}}),
            &pod,
            &["minimum cpu usage per Pod is 3001m, but request is 3"],
        );
    }

    #[test]
    fn defaults() {
        let range = json!({"spec": {"limits": [{"type": "Container",
            "default": {"cpu": "1", "memory": "1Gi"}, "defaultRequest": {"cpu": "500m"}}]}});
        let mut pod = pod(json!({"limits": {"cpu": "2"}}));
        fill_in(&range, &mut pod);
        assert_eq!(
            pod["spec"]["containers"][0]["resources"],
            json!({
            "limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "500m"}})
        );
        assert_eq!(
            pod["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: cpu request for container c; memory limit for container c"
        );
    }
}
