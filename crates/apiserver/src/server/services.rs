//! Allocation of cluster IPs and node ports to services. What is allocated is derived from the services themselves,
//! so that nothing can leak; writes of services are serialized.

mod allocator;
mod ip_families;

use std::net::Ipv4Addr;
use std::sync::MutexGuard;

use serde_json::{Value, json};

pub(super) use self::allocator::ServiceAllocator;
use super::{ApiServer, State};
use crate::object::{list_entries, members_mut, metadata_text};
use crate::schema::Kind;
use crate::status::{ApiError, Cause};
use crate::validate::service::needs_health_check;

impl ApiServer {
    /// Serializes writes of services: between allocation and write, no other request may take the same address or
    /// port.
    pub(super) fn lock_services(&self, kind: &Kind) -> Option<MutexGuard<'_, ()>> {
        let lock = kind.is("", "services").then(|| self.shared.services.lock());
        lock.map(|it| it.unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Allocates what a service needs; `old` is the service before.
    pub(super) fn allocate(
        &self,
        kind: &Kind,
        old: Option<&Value>,
        service: &mut Value,
    ) -> Result<(), ApiError> {
        let name = metadata_text(service, "name").to_owned();
        let spec = &mut service["spec"];
        if let Some(old) = old {
            keep_allocated(&old["spec"], spec);
        }
        normalize(old.map(|it| &it["spec"]), spec);
        let invalid = |causes: Vec<Cause>| ApiError::invalid(kind, &name, &causes);
        ip_families::settle(old.map(|it| &it["spec"]), spec).map_err(invalid)?;
        let table = kind.table.ok_or_else(ApiError::no_such_resource)?;
        let mut state = self.state();
        let State { store, taken, .. } = &mut *state;
        taken.update(store, table);
        let mut claim = Claim { taken, ports: Vec::new() };
        let old = old.map_or(&Value::Null, |it| &it["spec"]);
        claim.address(old, spec, &name).map_err(|it| it.of(kind, &name))?;
        claim.node_ports(old, spec).map_err(|it| it.of(kind, &name))?;
        claim.health_check_port(old, spec).map_err(|it| it.of(kind, &name))?;
        if !old.is_null() {
            drop_what_is_no_use(old, spec);
        }
        Ok(())
    }
}

/// Why an address or port cannot be allocated.
enum Problem {
    Invalid(Cause),
    Internal(String),
    Unclassified(String),
}

impl Problem {
    fn of(self, kind: &Kind, name: &str) -> ApiError {
        match self {
            Problem::Invalid(cause) => ApiError::invalid(kind, name, &[cause]),
            Problem::Internal(text) => ApiError::internal(&text),
            Problem::Unclassified(text) => ApiError::unclassified(&text),
        }
    }
}

/// The addresses and ports of one service, over those of all services.
struct Claim<'a> {
    taken: &'a ServiceAllocator,
    ports: Vec<u16>,
}

impl Claim<'_> {
    fn address(&mut self, old: &Value, spec: &mut Value, name: &str) -> Result<(), Problem> {
        let has_one = !old.is_null() && old["type"] != "ExternalName";
        if has_one || spec["type"] == "ExternalName" || spec["clusterIPs"][0] == "None" {
            return Ok(());
        }
        let address = match spec["clusterIPs"][0].as_str() {
            Some(given) => {
                let cannot = |why: String| {
                    let why = format!("failed to allocate IP {given}: {why}");
                    Problem::Invalid(Cause::invalid("spec.clusterIPs", &spec["clusterIPs"], &why))
                };
                let address: Ipv4Addr =
                    given.parse().map_err(|_| cannot("it is no address".to_owned()))?;
                self.taken.check_address(address).map_err(cannot)?;
                address
            }
            None => self.taken.next_address().ok_or_else(|| {
                let text = "failed to allocate a serviceIP for Service";
                Problem::Internal(format!("{text} {name:?}: range is full"))
            })?,
        };
        spec["clusterIP"] = address.to_string().into();
        spec["clusterIPs"] = json!([address.to_string()]);
        Ok(())
    }

    fn node_ports(&mut self, old: &Value, spec: &mut Value) -> Result<(), Problem> {
        let gives = match spec["type"].as_str() {
            Some("NodePort") => true,
            Some("LoadBalancer") => spec["allocateLoadBalancerNodePorts"] == true,
            _ => return Ok(()),
        };
        if list_entries(&spec["ports"]).is_empty() {
            return Ok(());
        }
        let had: Vec<i64> = if has_node_ports(old) {
            list_entries(&old["ports"]).iter().filter_map(node_port).collect()
        } else {
            Vec::new()
        };
        let is_new = old.is_null();
        let mut ports = spec["ports"].take();
        let wanted: Vec<Value> = list_entries(&ports).to_vec();
        let mut by_port: Vec<(Value, i64)> = Vec::new();
        let mut done: Vec<(Value, i64)> = Vec::new();
        for (at, port) in ports.as_array_mut().into_iter().flatten().enumerate() {
            let given = node_port(port);
            if given.is_none() && !gives {
                continue;
            }
            // Of a new service, two protocols on one port share a node port.
            let same = |it: &&(Value, i64)| it.0 == port["port"];
            let shared = by_port.iter().find(same).map(|it| it.1).filter(|_| is_new);
            let of_other = || wanted.iter().find(|it| it["port"] == port["port"] && is_given(it));
            let given =
                given.or(shared).or_else(|| of_other().filter(|_| is_new).and_then(node_port));
            let number = match given {
                Some(number) => {
                    let is_ours = shared == Some(number)
                        || had.contains(&number)
                        || !is_new && done.iter().any(|it| it.1 == number);
                    if !is_ours {
                        self.port(number).map_err(|why| {
                            let path = format!("spec.ports[{at}].nodePort");
                            Problem::Invalid(Cause::invalid(path, &number.into(), &why))
                        })?;
                    }
                    number
                }
                None => self.next_port().ok_or_else(|| {
                    Problem::Internal("failed to allocate a nodePort: range is full".to_owned())
                })?,
            };
            port["nodePort"] = number.into();
            by_port.push((port["port"].clone(), number));
            let protocol = port["protocol"].clone();
            if !is_new && done.contains(&(protocol.clone(), number)) {
                let protocol = protocol.as_str().unwrap_or_default();
                return Err(Problem::Unclassified(format!(
                    "duplicate nodePort: {{{protocol} {number}}}"
                )));
            }
            done.push((protocol, number));
        }
        spec["ports"] = ports;
        Ok(())
    }

    /// The health check node port of a service with `externalTrafficPolicy: Local`.
    fn health_check_port(&mut self, old: &Value, spec: &mut Value) -> Result<(), Problem> {
        if !needs_health_check(spec) || needs_health_check(old) {
            return Ok(());
        }
        let cannot = |text: String| Problem::Internal(format!("failed to allocate {text}"));
        let number = match spec["healthCheckNodePort"].as_i64().filter(|it| *it != 0) {
            Some(number) => {
                let describe =
                    |why| cannot(format!("requested HealthCheck NodePort {number}: {why}"));
                self.port(number).map_err(describe)?;
                number
            }
            None => self
                .next_port()
                .ok_or_else(|| cannot("a HealthCheck NodePort 0: range is full".to_owned()))?,
        };
        spec["healthCheckNodePort"] = number.into();
        Ok(())
    }

    fn port(&mut self, number: i64) -> Result<(), String> {
        let port = self.taken.check_port(number, &self.ports)?;
        self.ports.push(port);
        Ok(())
    }

    fn next_port(&mut self) -> Option<i64> {
        let port = self.taken.next_port(&self.ports)?;
        self.ports.push(port);
        Some(port.into())
    }
}

fn node_port(port: &Value) -> Option<i64> {
    port["nodePort"].as_i64().filter(|it| *it != 0)
}

fn is_given(port: &Value) -> bool {
    node_port(port).is_some()
}

fn has_node_ports(spec: &Value) -> bool {
    matches!(spec["type"].as_str(), Some("NodePort" | "LoadBalancer"))
}

fn is_unset(value: &Value) -> bool {
    value.is_null() || value == "" || value.as_array().is_some_and(Vec::is_empty)
}

/// Keeps allocated values that an update leaves out (upstream's `patchAllocatedValues`).
fn keep_allocated(old: &Value, spec: &mut Value) {
    if old["type"] != "ExternalName" && spec["type"] != "ExternalName" {
        for field in ["clusterIP", "clusterIPs"] {
            if is_unset(&spec[field]) && !is_unset(&old[field]) {
                spec[field] = old[field].clone();
            }
        }
    }
    if has_node_ports(old) && has_node_ports(spec) {
        let before = list_entries(&old["ports"]);
        let numbers = |ports: &[Value]| ports.iter().filter_map(node_port).collect::<Vec<_>>();
        let said = numbers(list_entries(&spec["ports"]));
        let used: Vec<i64> = numbers(before).into_iter().filter(|it| said.contains(it)).collect();
        for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
            let known = before.iter().rev().find(|it| it["name"] == port["name"]);
            let known = known.and_then(node_port).filter(|it| !used.contains(it));
            if let (None, Some(known)) = (node_port(port), known) {
                port["nodePort"] = known.into();
            }
        }
    }
    if needs_health_check(old)
        && needs_health_check(spec)
        && spec["healthCheckNodePort"].as_i64().unwrap_or(0) == 0
    {
        spec["healthCheckNodePort"] = old["healthCheckNodePort"].clone();
    }
}

/// The address and the list of addresses say the same, for clients that know only one of them (`normalizeClusterIPs`).
fn normalize(old: Option<&Value>, spec: &mut Value) {
    let single = spec["clusterIP"].clone();
    let has_none = is_unset(&spec["clusterIPs"]);
    let Some(old) = old else {
        if !is_unset(&single) && has_none {
            spec["clusterIPs"] = json!([single]);
        }
        return;
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if text(&old["clusterIP"]) == text(&single) {
        if has_none && !is_unset(&old["clusterIPs"]) {
            spec["clusterIPs"] = old["clusterIPs"].clone();
        }
    } else if list_entries(&old["clusterIPs"]) == list_entries(&spec["clusterIPs"]) {
        if is_unset(&single) {
            members_mut(spec).remove("clusterIPs");
        } else {
            spec["clusterIPs"] = json!([single]);
        }
    }
}

/// Drops fields that the service's new type does not have, unless the update changes them, too, which validation
/// rejects (`dropTypeDependentFields`).
fn drop_what_is_no_use(old: &Value, spec: &mut Value) {
    let is_same = |spec: &Value, field: &str| spec[field] == old[field];
    let mut dropped_fields: Vec<&str> = Vec::new();
    if old["type"] != "ExternalName" && spec["type"] == "ExternalName" {
        dropped_fields
            .extend(["ipFamilies", "ipFamilyPolicy"].iter().filter(|it| is_same(spec, it)));
        if ["clusterIP", "clusterIPs"].iter().all(|it| is_same(spec, it)) {
            dropped_fields.extend(["clusterIP", "clusterIPs"]);
        }
    }
    if needs_health_check(old) && !needs_health_check(spec) && is_same(spec, "healthCheckNodePort")
    {
        dropped_fields.push("healthCheckNodePort");
    }
    if old["type"] == "LoadBalancer" && spec["type"] != "LoadBalancer" {
        let fields = ["allocateLoadBalancerNodePorts", "loadBalancerClass"];
        dropped_fields.extend(fields.iter().filter(|it| is_same(spec, it)));
    }
    let is_external = crate::validate::service::is_external;
    if is_external(old) && !is_external(spec) && is_same(spec, "externalTrafficPolicy") {
        dropped_fields.push("externalTrafficPolicy");
    }
    if has_node_ports(old) && !has_node_ports(spec) {
        let before: Vec<i64> = list_entries(&old["ports"]).iter().filter_map(node_port).collect();
        let mut said = list_entries(&spec["ports"]).iter().filter_map(node_port);
        if said.all(|it| before.contains(&it)) {
            for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
                members_mut(port).remove("nodePort");
            }
        }
    }
    for field in dropped_fields {
        members_mut(spec).remove(field);
    }
}
