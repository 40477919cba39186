//! Usage of objects in a ResourceQuota, and which quotas match them. Shared by the API server's admission and the resource quota
//! controller, so that they cannot disagree. No I/O.
//!
//! | | |
//! | --- | --- |
//! | upstream | `pkg/quota/v1/evaluator/core`, 1.36 |
//! | deviations | devices of ResourceClaims count by their class only, not as the extended resource that the class stands for |

mod pod;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;
use loadmaster_stdx::CollectByInsertion as _;
use serde_json::Value;

pub use self::pod::{missing_quota_resources, pod_requests, sum_over_containers};
use crate::Quantity;
use crate::resource_names::is_native_resource_name;

/// Amounts by resource name.
pub type ResourceAmounts = BTreeMap<String, Quantity>;

/// Parses a resource list, such as `spec.hard`. Invalid quantities are left out.
pub fn parse_resource_amounts(list: &Value) -> ResourceAmounts {
    let members = list.as_object().into_iter().flatten();
    let amount = |value: &Value| Quantity::parse(value.as_str()?).ok();
    members.filter_map(|(name, value)| Some((name.clone(), amount(value)?))).collect_by_insertion()
}

/// Adds amounts.
pub fn add_resource_amounts(total: &mut ResourceAmounts, more: &ResourceAmounts) {
    for (name, amount) in more {
        match total.get_mut(name) {
            Some(known) => *known += *amount,
            None => drop(total.insert(name.clone(), *amount)),
        }
    }
}

/// Raises each amount to at least the other one.
pub fn raise_amounts_to_at_least(total: &mut ResourceAmounts, least: &ResourceAmounts) {
    for (name, amount) in least {
        let known = total.entry(name.clone()).or_insert(*amount);
        *known = (*known).max(*amount);
    }
}

/// Objects of one resource, by its names in discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QuotaResource<'a> {
    /// Empty for core.
    pub group: &'a str,
    /// Such as `pods`.
    pub resource: &'a str,
}

/// Behind the name of a storage class, before what is counted of it.
const OF_STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";
/// Behind the name of a device class.
const OF_DEVICE_CLASS: &str = ".deviceclass.resource.k8s.io/devices";
/// In the name of an extended resource that stands for a device class.
const DEVICE_CLASS: &str = "deviceclass.resource.kubernetes.io/";
/// The most devices that one request can be given (upstream's `AllocationResultsMaxSize`).
const N_DEVICES_MAX: i64 = 32;

/// Resources whose objects also count under their own names (upstream's `legacyObjectCountAliases`).
const NAMED: &[&str] = &["configmaps", "resourcequotas", "replicationcontrollers", "secrets"];

impl QuotaResource<'_> {
    /// Whether quotas count such objects at all.
    pub fn is_counted(self) -> bool {
        !matches!((self.group, self.resource), ("" | "events.k8s.io", "events"))
    }

    /// Whether a name in a quota is about such objects.
    pub fn matches_quota_name(self, name: &str) -> bool {
        if let Some(counted) = name.strip_prefix("count/") {
            let group = counted.strip_prefix(self.resource);
            let group = group.map(|it| if it.is_empty() { Some("") } else { it.strip_prefix('.') });
            return group.flatten() == Some(self.group) && self.is_counted();
        }
        match (self.group, self.resource) {
            ("", "pods") => pod::is_about(name),
            ("", "services") => {
                matches!(name, "services" | "services.nodeports" | "services.loadbalancers")
            }
            ("", "persistentvolumeclaims") => {
                let of_class =
                    name.find(OF_STORAGE_CLASS).map(|at| &name[at + OF_STORAGE_CLASS.len()..]);
                matches!(of_class.unwrap_or(name), "persistentvolumeclaims" | "requests.storage")
            }
            ("resource.k8s.io", "resourceclaims") => name.ends_with(OF_DEVICE_CLASS),
            ("", resource) => name == resource && NAMED.contains(&resource),
            _ => false,
        }
    }

    /// What an object uses, by all names under which that counts.
    pub fn usage(self, object: &Value, now: Timestamp) -> ResourceAmounts {
        match (self.group, self.resource) {
            ("", "pods") => pod::usage(object, now),
            ("", "services") => self.service(object),
            ("", "persistentvolumeclaims") => self.volume_claim(object),
            ("resource.k8s.io", "resourceclaims") => self.resource_claim(object),
            ("", resource) if NAMED.contains(&resource) => {
                self.one().into_iter().chain([(resource.to_owned(), ONE)]).collect()
            }
            _ => self.one(),
        }
    }

    /// Whether the scopes of a quota take an object in. `spec` is the quota's.
    pub fn is_in_scope(self, spec: &Value, object: &Value) -> bool {
        let named = entries(&spec["scopes"]).iter().filter_map(Value::as_str);
        let named = named.map(|name| Scope { name, operator: "Exists", values: &[] });
        let selected = entries(&spec["scopeSelector"]["matchExpressions"]).iter().map(|it| Scope {
            name: text(&it["scopeName"]),
            operator: text(&it["operator"]),
            values: entries(&it["values"]),
        });
        named.chain(selected).all(|scope| match (self.group, self.resource) {
            ("", "pods") => pod::is_in(&scope, object),
            ("", "persistentvolumeclaims") => is_volume_claim_in(&scope, object),
            _ => false,
        })
    }

    /// One object, as such.
    fn one(self) -> ResourceAmounts {
        let dot = if self.group.is_empty() { "" } else { "." };
        ResourceAmounts::from([(format!("count/{}{dot}{}", self.resource, self.group), ONE)])
    }

    fn service(self, service: &Value) -> ResourceAmounts {
        let spec = &service["spec"];
        let ports = entries(&spec["ports"]);
        let gives_all = spec["allocateLoadBalancerNodePorts"] != false;
        let with_number = |it: &&Value| it["nodePort"].as_i64().is_some_and(|number| number != 0);
        // Numbers are given later: what is meant to have one counts.
        let (n_ports, n_balancers) = match text(&spec["type"]) {
            "NodePort" => (ports.len(), 0),
            "LoadBalancer" if gives_all => (ports.len(), 1),
            "LoadBalancer" => (ports.iter().filter(with_number).count(), 1),
            _ => (0, 0),
        };
        let mut used = self.one();
        used.insert("services".to_owned(), ONE);
        used.insert("services.nodeports".to_owned(), whole(n_ports as i64));
        used.insert("services.loadbalancers".to_owned(), whole(n_balancers));
        used
    }

    fn volume_claim(self, claim: &Value) -> ResourceAmounts {
        let class = match &claim["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"]
        {
            Value::String(class) => class.as_str(),
            _ => text(&claim["spec"]["storageClassName"]),
        };
        let amount =
            |list: &Value| parse_resource_amounts(list).get("storage").map(|it| it.rounded_up());
        let wanted = amount(&claim["spec"]["resources"]["requests"]);
        // A claim that grew, and is to be smaller again, has what it grew to.
        let storage = wanted.map(|wanted| match amount(&claim["status"]["allocatedResources"]) {
            Some(allocated) => wanted.max(allocated),
            None => wanted,
        });
        let mut used = self.one();
        let counts = [("persistentvolumeclaims", Some(ONE)), ("requests.storage", storage)];
        for (name, amount) in counts {
            let Some(amount) = amount else { continue };
            used.insert(name.to_owned(), amount);
            if !class.is_empty() {
                used.insert(format!("{class}{OF_STORAGE_CLASS}{name}"), amount);
            }
        }
        used
    }

    fn resource_claim(self, claim: &Value) -> ResourceAmounts {
        let devices = |request: &Value| {
            let number = match text(&request["allocationMode"]) {
                "ExactCount" => request["count"].as_i64().unwrap_or(0),
                "All" => N_DEVICES_MAX,
                _ => 0,
            };
            let name = format!("{}{OF_DEVICE_CLASS}", text(&request["deviceClassName"]));
            ResourceAmounts::from([(name, whole(number))])
        };
        let mut used = self.one();
        for request in entries(&claim["spec"]["devices"]["requests"]) {
            // Of several that would do, the most of each class.
            let mut most = ResourceAmounts::new();
            for choice in entries(&request["firstAvailable"]) {
                raise_amounts_to_at_least(&mut most, &devices(choice));
            }
            if !request["exactly"].is_null() {
                most = devices(&request["exactly"]);
            }
            add_resource_amounts(&mut used, &most);
        }
        used
    }
}

/// One thing.
const ONE: Quantity = whole(1);

const fn whole(number: i64) -> Quantity {
    Quantity::from_value(number)
}

/// A condition of a quota on what it counts.
struct Scope<'a> {
    name: &'a str,
    operator: &'a str,
    values: &'a [Value],
}

impl Scope<'_> {
    /// Whether a value satisfies it, be it that there is none.
    fn is_met_by(&self, value: Option<&str>) -> bool {
        let is_listed = value.is_some_and(|value| self.values.iter().any(|it| it == value));
        match self.operator {
            "In" => is_listed,
            "NotIn" => !is_listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    }
}

/// A claim is in the classes that it wants, has, and is about to get.
fn is_volume_claim_in(scope: &Scope<'_>, claim: &Value) -> bool {
    if scope.name != "VolumeAttributesClass" {
        return false;
    }
    let (spec, status) = (&claim["spec"], &claim["status"]);
    let classes = [
        &spec["volumeAttributesClassName"],
        &status["currentVolumeAttributesClassName"],
        &status["modifyVolumeStatus"]["targetVolumeAttributesClassName"],
    ];
    let mut named = classes.into_iter().map(text).filter(|name| !name.is_empty()).peekable();
    match named.peek() {
        None => scope.is_met_by(None),
        Some(_) => named.any(|name| scope.is_met_by(Some(name))),
    }
}

/// Whether a name stands for an extended resource of pods, or one that stands for a device class.
fn is_extended_request(name: &str) -> bool {
    let Some(resource) = name.strip_prefix("requests.") else { return false };
    !is_native_resource_name(name) || resource.starts_with(DEVICE_CLASS)
}

fn entries(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
