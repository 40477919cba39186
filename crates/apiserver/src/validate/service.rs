//! Validates services.

use std::net::{IpAddr, Ipv6Addr};

use loadmaster_stdx::Set;
use serde_json::Value;

use super::names;
use crate::object::list_entries;
use crate::status::Cause;

const NO_IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const ONLY_BALANCED: &str = "may only be used when `type` is 'LoadBalancer'";
const FAMILIES: &[&str] = &["IPv4", "IPv6"];
const POLICIES: &[&str] = &["PreferDualStack", "RequireDualStack", "SingleStack"];
const TYPES: &[&str] = &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];

/// As upstream's `MaxClientIPServiceAffinitySeconds`.
const AFFINITY_SECONDS_MAX: i64 = 86_400;

/// Validates the spec of a service; `old` is null for a new one.
pub(super) fn spec(spec: &Value, old: &Value, causes: &mut Vec<Cause>) {
    let kind = spec["type"].as_str().unwrap_or_default();
    if list_entries(&spec["ports"]).is_empty() && !is_headless(spec) && kind != "ExternalName" {
        causes.push(Cause::required("spec.ports", ""));
    }
    match kind {
        "LoadBalancer" | "NodePort" if is_headless(spec) => {
            let why = format!("may not be set to 'None' for {kind} services");
            causes.push(Cause::invalid("spec.clusterIPs[0]", &"None".into(), &why));
        }
        "ExternalName" => external_name(spec, causes),
        _ => {}
    }
    ports(spec, causes);
    super::labels(&spec["selector"], "spec.selector", causes);
    affinity(spec, causes);
    causes.extend(cluster_ips(spec, old));
    one_of(spec, "type", TYPES, causes);
    port_numbers(spec, causes);
    if kind != "LoadBalancer" {
        for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if !spec[field].is_null() {
                causes.push(Cause::forbidden(format!("spec.{field}"), ONLY_BALANCED));
            }
        }
    }
    external_traffic(spec, causes);
    if kind != "ExternalName" || !spec["internalTrafficPolicy"].is_null() {
        one_of(spec, "internalTrafficPolicy", &["Cluster", "Local"], causes);
    }
}

/// Validates the immutable fields.
pub(super) fn update(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let is_either = |name: &str| old["type"] == name || new["type"] == name;
    if !is_either("ExternalName") {
        let is_changed = |field: &str| {
            let (old, new) = (list_entries(&old[field]), list_entries(&new[field]));
            let n_same = old.len().min(new.len()).min(1);
            old[..n_same] != new[..n_same] || new.is_empty() != old.is_empty()
        };
        if is_changed("clusterIPs") && !(is_headless(old) && is_headless(new)) {
            let why = if list_entries(&new["clusterIPs"]).is_empty() {
                "primary clusterIP can not be unset"
            } else {
                "may not change once set"
            };
            causes.push(Cause::invalid("spec.clusterIPs[0]", &new["clusterIPs"], why));
        }
        if is_changed("ipFamilies") && !is_headless(old) && !is_headless(new) {
            let why = "may not change once set";
            causes.push(Cause::invalid("spec.ipFamilies[0]", &new["ipFamilies"], why));
        }
    }
    let is_balanced = old["type"] == "LoadBalancer" && new["type"] == "LoadBalancer";
    if is_balanced && old["loadBalancerClass"] != new["loadBalancerClass"] {
        let class = &new["loadBalancerClass"];
        causes.push(Cause::invalid("spec.loadBalancerClass", class, "may not change once set"));
    }
    if needs_health_check(old)
        && needs_health_check(new)
        && old["healthCheckNodePort"] != new["healthCheckNodePort"]
    {
        causes.push(Cause::forbidden("spec.healthCheckNodePort", "field is immutable"));
    }
}

/// Whether a service is headless (`clusterIP: None`).
pub(crate) fn is_headless(spec: &Value) -> bool {
    spec["clusterIPs"][0] == "None" && list_entries(&spec["clusterIPs"]).len() == 1
}

/// Whether the service has a health check node port.
pub(crate) fn needs_health_check(spec: &Value) -> bool {
    spec["type"] == "LoadBalancer" && spec["externalTrafficPolicy"] == "Local"
}

/// Whether it can be reached from outside.
pub(crate) fn is_external(spec: &Value) -> bool {
    match spec["type"].as_str() {
        Some("LoadBalancer" | "NodePort") => true,
        Some("ClusterIP") => !list_entries(&spec["externalIPs"]).is_empty(),
        _ => false,
    }
}

/// Validates cluster IPs, IP families and the family policy together.
pub(crate) fn cluster_ips(spec: &Value, old: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    if spec["type"] == "ExternalName" {
        return causes;
    }
    let (all, listed) = (&spec["clusterIPs"], list_entries(&spec["clusterIPs"]));
    let single = spec["clusterIP"].as_str().unwrap_or_default();
    if single.is_empty() && !listed.is_empty() {
        let why = "must be empty when `clusterIP` is not specified";
        causes.push(Cause::invalid("spec.clusterIPs", all, why));
    } else if !single.is_empty() && listed.is_empty() {
        causes.push(Cause::required("spec.clusterIPs", ""));
    } else if !single.is_empty() && listed[0] != single {
        let why = "first value must match `clusterIP`";
        causes.push(Cause::invalid("spec.clusterIPs", all, why));
    }
    let families = list_entries(&spec["ipFamilies"]);
    for (at, family) in families.iter().enumerate() {
        let path = || format!("spec.ipFamilies[{at}]");
        if !FAMILIES.iter().any(|it| family == *it) {
            causes.push(Cause::not_supported(path(), family, FAMILIES));
        }
        if families[..at].contains(family) {
            causes.push(Cause::duplicate(path(), family));
        }
    }
    let policy = &spec["ipFamilyPolicy"];
    if !policy.is_null() && !POLICIES.iter().any(|it| policy == *it) {
        causes.push(Cause::not_supported("spec.ipFamilyPolicy", policy, POLICIES));
    }
    let mut is_readable = true;
    for (at, ip) in listed.iter().enumerate() {
        if at == 0 && ip == "None" {
            if listed.len() > 1 {
                let why = "'None' must be the first and only value";
                causes.push(Cause::invalid("spec.clusterIPs", all, why));
                is_readable = false;
            }
        } else if !list_entries(&old["clusterIPs"]).contains(ip)
            && let Some(why) = ip_complaint(ip.as_str().unwrap_or_default())
        {
            causes.push(Cause::invalid(format!("spec.clusterIPs[{at}]"), ip, why));
            is_readable = false;
        }
    }
    if listed.len() > 2 {
        causes.push(Cause::invalid("spec.clusterIPs", all, "may only hold up to 2 values"));
    }
    if !is_readable {
        return causes;
    }
    let of: Vec<&str> = listed.iter().map(family_of).collect();
    if of.len() > 1 && (of.len() > 2 || of[0] == of[1]) {
        let why = "may specify no more than one IP for each IP family";
        causes.push(Cause::invalid("spec.clusterIPs", all, why));
    }
    if !is_headless(spec) {
        for (at, (ip, family)) in listed.iter().zip(families).enumerate() {
            if family != of[at] {
                let family = family.as_str().unwrap_or_default();
                let why = format!("expected an {family} value as indicated by `ipFamilies[{at}]`");
                causes.push(Cause::invalid(format!("spec.clusterIPs[{at}]"), ip, &why));
            }
        }
    }
    causes
}

/// `IPv4` or `IPv6`.
pub(crate) fn family_of(ip: &Value) -> &'static str {
    if ip.as_str().is_some_and(|it| it.parse::<Ipv6Addr>().is_ok()) { "IPv6" } else { "IPv4" }
}

fn ip_complaint(ip: &str) -> Option<&'static str> {
    match ip.parse::<IpAddr>() {
        Ok(IpAddr::V6(it)) if it.to_ipv4_mapped().is_some() => {
            Some("must not be an IPv4-mapped IPv6 address")
        }
        Ok(_) => None,
        Err(_) => {
            let without_zeros = |part: &str| {
                let rest = part.trim_start_matches('0');
                if rest.is_empty() && !part.is_empty() { "0".to_owned() } else { rest.to_owned() }
            };
            let plain: Vec<String> = ip.split('.').map(without_zeros).collect();
            let is_padded = plain.join(".").parse::<IpAddr>().is_ok();
            Some(if is_padded { "must not have leading 0s" } else { NO_IP })
        }
    }
}

fn external_name(spec: &Value, causes: &mut Vec<Cause>) {
    let why = "may not be set for ExternalName services";
    for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        let value = &spec[field];
        if !value.is_null() && value.as_array().is_none_or(|it| !it.is_empty()) {
            causes.push(Cause::forbidden(format!("spec.{field}"), why));
        }
    }
    let name = spec["externalName"].as_str().unwrap_or_default();
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() {
        causes.push(Cause::required("spec.externalName", ""));
        return;
    }
    for complaint in names::subdomain(name) {
        causes.push(Cause::invalid("spec.externalName", &name.into(), &complaint));
    }
}

fn ports(spec: &Value, causes: &mut Vec<Cause>) {
    let ports = list_entries(&spec["ports"]);
    let mut names: Set<&str> = Set::default();
    for (at, port) in ports.iter().enumerate() {
        let path = format!("spec.ports[{at}]");
        let name = port["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            if ports.len() > 1 {
                causes.push(Cause::required(format!("{path}.name"), ""));
            }
        } else {
            for complaint in names::label_name(name) {
                causes.push(Cause::invalid(format!("{path}.name"), &name.into(), &complaint));
            }
            if !names.insert(name) {
                causes.push(Cause::duplicate(format!("{path}.name"), &name.into()));
            }
        }
        super::pod::port(&port["port"], &format!("{path}.port"), causes);
        let protocols = &["SCTP", "TCP", "UDP"];
        if !protocols.iter().any(|it| port["protocol"] == *it) {
            let path = format!("{path}.protocol");
            causes.push(Cause::not_supported(path, &port["protocol"], protocols));
        }
        if port["targetPort"].is_number() {
            super::pod::port(&port["targetPort"], &format!("{path}.targetPort"), causes);
        }
    }
}

/// Ports that occur twice, or node ports where there are none.
fn port_numbers(spec: &Value, causes: &mut Vec<Cause>) {
    let ports = list_entries(&spec["ports"]);
    let given = |port: &Value| port["nodePort"].as_i64().is_some_and(|it| it != 0);
    if spec["type"] == "ClusterIP" {
        for at in (0..ports.len()).filter(|at| given(&ports[*at])) {
            let path = format!("spec.ports[{at}].nodePort");
            causes.push(Cause::forbidden(path, "may not be used when `type` is 'ClusterIP'"));
        }
    }
    let is_same =
        |a: &Value, b: &Value, field: &str| a["protocol"] == b["protocol"] && a[field] == b[field];
    for (at, port) in ports.iter().enumerate().filter(|(_, it)| given(it)) {
        if ports[..at].iter().any(|it| is_same(it, port, "nodePort")) {
            let path = format!("spec.ports[{at}].nodePort");
            causes.push(Cause::duplicate(path, &port["nodePort"]));
        }
    }
    for (at, port) in ports.iter().enumerate() {
        if ports[..at].iter().any(|it| is_same(it, port, "port")) {
            let mut cause = Cause::duplicate(format!("spec.ports[{at}]"), port);
            // As upstream's internal type is printed.
            cause.message = format!(
                r#"Duplicate value: {{"Name":"","Protocol":{},"AppProtocol":null,"Port":{},"TargetPort":0,"NodePort":0}}"#,
                port["protocol"], port["port"]
            );
            causes.push(cause);
        }
    }
}

fn affinity(spec: &Value, causes: &mut Vec<Cause>) {
    one_of(spec, "sessionAffinity", &["ClientIP", "None"], causes);
    if spec["sessionAffinity"] == "ClientIP" {
        let seconds = &spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"];
        if !seconds.as_i64().is_some_and(|it| (1..=AFFINITY_SECONDS_MAX).contains(&it)) {
            let path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
            let why = format!("must be greater than 0 and less than {AFFINITY_SECONDS_MAX}");
            causes.push(Cause::invalid(path, seconds, &why));
        }
    }
}

fn external_traffic(spec: &Value, causes: &mut Vec<Cause>) {
    let policy = &spec["externalTrafficPolicy"];
    if is_external(spec) {
        one_of(spec, "externalTrafficPolicy", &["Cluster", "Local"], causes);
    } else if !policy.is_null() {
        let why = "may only be set for externally-accessible services";
        causes.push(Cause::invalid("spec.externalTrafficPolicy", policy, why));
    }
    let port = &spec["healthCheckNodePort"];
    if needs_health_check(spec) {
        super::pod::port(port, "spec.healthCheckNodePort", causes);
    } else if port.as_i64().is_some_and(|it| it != 0) {
        let why =
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        causes.push(Cause::invalid("spec.healthCheckNodePort", port, why));
    }
}

/// A field that has to be there and be one of these.
fn one_of(spec: &Value, field: &str, known: &[&str], causes: &mut Vec<Cause>) {
    let path = || format!("spec.{field}");
    match spec[field].as_str().unwrap_or_default() {
        "" => causes.push(Cause::required(path(), "")),
        value if !known.contains(&value) => {
            causes.push(Cause::not_supported(path(), &value.into(), known));
        }
        _ => {}
    }
}
