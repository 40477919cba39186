//! IP families of services, of which this cluster has IPv4 only (upstream's `initIPFamilyFields`).

use serde_json::{Value, json};

use super::is_unset;
use crate::object::list_entries;
use crate::status::Cause;
use crate::validate::service::{cluster_ips, family_of, is_headless};

const POLICY: &str = "spec.ipFamilyPolicy";
const FAMILY: &str = "IPv4";

/// Fills in the families of a service and their policy.
pub(super) fn settle(old: Option<&Value>, spec: &mut Value) -> Result<(), Vec<Cause>> {
    if spec["type"] == "ExternalName" || old.is_some_and(|old| stays_dual(old, spec)) {
        return Ok(());
    }
    let is_free = spec["clusterIP"] == "None" && has_no_selector(spec);
    if spec["ipFamilyPolicy"].is_null() {
        let before = old.map_or(&Value::Null, |it| &it["ipFamilyPolicy"]);
        spec["ipFamilyPolicy"] = match before {
            Value::String(_) => before.clone(),
            _ if is_free => "RequireDualStack".into(),
            _ => "SingleStack".into(),
        };
    }
    checked(cluster_ips(spec, old.unwrap_or(&Value::Null)))?;
    checked(amended(old, spec))?;
    if is_free {
        set_default(spec);
        if list_entries(&spec["ipFamilies"]).len() < 2 && spec["ipFamilyPolicy"] != "SingleStack" {
            let other = if spec["ipFamilies"][0] == FAMILY { "IPv6" } else { FAMILY };
            spec["ipFamilies"] = json!([spec["ipFamilies"][0], other]);
        }
        return Ok(());
    }
    let mut causes = Vec::new();
    if spec["ipFamilyPolicy"] == "RequireDualStack" {
        let why = "this cluster is not configured for dual-stack services";
        causes.push(Cause::invalid(POLICY, &spec["ipFamilyPolicy"], why));
    }
    for (at, family) in list_entries(&spec["ipFamilies"]).iter().enumerate() {
        if family != FAMILY {
            let path = format!("spec.ipFamilies[{at}]");
            causes.push(Cause::invalid(path, family, "not configured on this cluster"));
        }
    }
    checked(causes)?;
    set_default(spec);
    Ok(())
}

fn checked(causes: Vec<Cause>) -> Result<(), Vec<Cause>> {
    if causes.is_empty() { Ok(()) } else { Err(causes) }
}

fn has_no_selector(spec: &Value) -> bool {
    spec["selector"].as_object().is_none_or(serde_json::Map::is_empty)
}

fn set_default(spec: &mut Value) {
    if is_unset(&spec["ipFamilies"]) {
        spec["ipFamilies"] = json!([FAMILY]);
    }
}

/// Whether a service that would like two families stays as it is.
fn stays_dual(old: &Value, spec: &Value) -> bool {
    let fields = ["type", "ipFamilyPolicy", "clusterIPs", "ipFamilies"];
    spec["ipFamilyPolicy"] == "PreferDualStack" && fields.iter().all(|it| old[it] == spec[it])
}

/// Makes lists agree with the policy and families with addresses, as far as it is clear what is meant.
fn amended(old: Option<&Value>, spec: &mut Value) -> Vec<Cause> {
    const LISTS: [(&str, &str, &str); 2] = [
        ("clusterIPs", "secondary cluster IP", "multiple cluster IPs"),
        ("ipFamilies", "secondary IP family", "multiple IP families"),
    ];
    let mut causes = Vec::new();
    let is_single = spec["ipFamilyPolicy"] == "SingleStack";
    for (field, second, several) in LISTS {
        let (n, n_before) =
            (list_entries(&spec[field]).len(), old.map_or(0, |it| list_entries(&it[field]).len()));
        if is_single && n > 1 && old.is_some_and(|old| old[field] == spec[field]) {
            spec[field] = json!([spec[field][0]]);
        } else if is_single && n == 2 {
            let why = format!(
                "must be 'RequireDualStack' or 'PreferDualStack' when {several} are specified"
            );
            causes.push(Cause::invalid(POLICY, &spec["ipFamilyPolicy"], &why));
        } else if !is_single && n > 0 && n < n_before {
            let why = format!("must be 'SingleStack' to release the {second}");
            causes.push(Cause::invalid(POLICY, &spec["ipFamilyPolicy"], &why));
        }
    }
    if is_headless(spec) {
        return causes;
    }
    let addresses = list_entries(&spec["clusterIPs"]).to_vec();
    let mut families = list_entries(&spec["ipFamilies"]).to_vec();
    for (at, address) in addresses.iter().enumerate().skip(families.len()) {
        let family = family_of(address);
        if family == FAMILY {
            families.push(family.into());
        } else {
            let path = format!("spec.clusterIPs[{at}]");
            let why = format!("{family} is not configured on this cluster");
            causes.push(Cause::invalid(path, &spec["clusterIPs"], &why));
        }
    }
    if !families.is_empty() {
        spec["ipFamilies"] = families.into();
    }
    causes
}
