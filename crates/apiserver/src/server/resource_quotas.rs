//! Admission plugin ResourceQuota: new or growing objects may not use more than the quota of their namespace. The
//! usage is updated together with the write, so that of two concurrent requests only one gets the last of a quota.
//!
//! The quota's `status` has the hard limits and the usage. A controller copies the limits, and recomputes the usage
//! after deletions.

use std::sync::Arc;

use jiff::Timestamp;
use loadmaster_api::Quantity;
use loadmaster_api::quota::{
    QuotaResource, ResourceAmounts, add_resource_amounts, missing_quota_resources,
    parse_resource_amounts,
};
use serde_json::{Value, json};

use super::ApiServer;
use super::field_manager::Write;
use crate::object::{draft, metadata_text, parsed};
use crate::status::ApiError;
use crate::store::{Draft, Filter, ListOptions, Object, Precondition, TableId, WriteConflict};

/// A quota and its new status after a write.
pub(super) struct QuotaUpdate {
    table: TableId,
    before: Arc<Object>,
    after: Draft,
}

impl ApiServer {
    /// The quotas whose usage a write increases. `old` is the object before; none if it is new.
    ///
    /// # Errors
    ///
    /// 403 for a write that would exceed a quota.
    pub(super) fn quota_updates(
        &self,
        write: Write<'_>,
        old: Option<&Value>,
        new: &Value,
    ) -> Result<Vec<QuotaUpdate>, ApiError> {
        let Write { kind, subresource, .. } = write;
        let counted = QuotaResource { group: kind.group, resource: kind.resource };
        let is_counted = kind.is_namespaced && counted.is_counted();
        if !self.shared.setup.admission.resource_quota
            || !is_counted
            || old.is_some_and(|old| !can_use_more(counted, subresource, old, new))
        {
            return Ok(Vec::new());
        }
        let quotas = self.own_kind("", "resourcequotas")?;
        let table = quotas.table.ok_or_else(ApiError::no_such_resource)?;
        let prefix = format!("{}/", metadata_text(new, "namespace"));
        let span = ListOptions { prefix: &prefix, ..ListOptions::default() };
        let page = self.state().store.list(table, &span, &Filter::everything());
        let page = page.map_err(|error| ApiError::internal(&error.to_string()))?;
        let change = Change { counted, subresource, old, new, now: self.now() };
        let mut quota_updates = Vec::new();
        for before in page.objects {
            let quota = parsed(&before)?;
            let used = change
                .used_after(&quota)
                .map_err(|why| ApiError::forbidden(kind, metadata_text(new, "name"), &why))?;
            let Some(used) = used else { continue };
            let mut after = quota.clone();
            after["status"]["used"] = json!(used);
            let write =
                Write { kind: quotas, subresource: "status", manager: Some("kube-apiserver") };
            self.enter(write, Some(&quota), &mut after);
            quota_updates.push(QuotaUpdate { table, before, after: draft(quotas, &after)? });
        }
        Ok(quota_updates)
    }

    /// A changed object, with the quota updates.
    pub(super) fn counted(
        &self,
        write: Write<'_>,
        old: &Value,
        new: Value,
    ) -> Result<(Value, Vec<QuotaUpdate>), ApiError> {
        let quota_updates = self.quota_updates(write, Some(old), &new)?;
        Ok((new, quota_updates))
    }

    /// Writes an object and updates quotas, all or nothing.
    ///
    /// # Errors
    ///
    /// When `expect` is not met, or a quota has changed since it was read.
    pub(super) fn put_with_quota(
        &self,
        table: TableId,
        expect: Precondition,
        draft: Draft,
        quota_updates: Vec<QuotaUpdate>,
    ) -> Result<Arc<Object>, WriteConflict> {
        let mut state = self.state();
        let store = &mut state.store;
        let is_same = |it: &QuotaUpdate| {
            let found = store.get(it.table, it.before.key());
            found.is_some_and(|found| found.revision() == it.before.revision())
        };
        if !quota_updates.iter().all(is_same) {
            return Err(WriteConflict::Changed);
        }
        let object = store.put(table, expect, draft)?;
        let mut changed = vec![(table, object.revision())];
        // They are unchanged since they were read, so that no write fails halfway.
        for QuotaUpdate { table, before, after } in quota_updates {
            let quota = store.put(table, Precondition::Revision(before.revision()), after)?;
            changed.push((table, quota.revision()));
        }
        drop(state);
        changed.into_iter().for_each(|(table, revision)| self.on_write(table, revision));
        Ok(object)
    }
}

/// Whether a change can increase an object's usage; others are not evaluated (`Handles` of upstream's evaluators).
fn can_use_more(counted: QuotaResource<'_>, subresource: &str, old: &Value, new: &Value) -> bool {
    let has_deadline = |pod: &Value| pod["spec"]["activeDeadlineSeconds"].is_i64();
    match (counted.group, counted.resource, subresource) {
        ("", "pods", "") => has_deadline(old) != has_deadline(new),
        ("", "pods", "resize") => true,
        ("", "services", "") => true,
        ("", "persistentvolumeclaims", "" | "status") => true,
        ("resource.k8s.io", "resourceclaims", "") => true,
        _ => false,
    }
}

/// A write, as quotas evaluate it.
struct Change<'a> {
    counted: QuotaResource<'a>,
    subresource: &'a str,
    old: Option<&'a Value>,
    new: &'a Value,
    now: Timestamp,
}

impl Change<'_> {
    /// The usage of a quota after the write; none if it does not change. The error is why the quota is exceeded.
    fn used_after(&self, quota: &Value) -> Result<Option<ResourceAmounts>, String> {
        let (name, status) = (metadata_text(quota, "name"), &quota["status"]);
        let (hard, used) =
            (parse_resource_amounts(&status["hard"]), parse_resource_amounts(&status["used"]));
        let is_in_scope = |it: &Value| self.counted.is_in_scope(&quota["spec"], it);
        let names: Vec<&str> = hard
            .keys()
            .map(String::as_str)
            .filter(|name| self.counted.matches_quota_name(name))
            .collect();
        if names.is_empty() || !is_in_scope(self.new) {
            return Ok(None);
        }
        if (self.counted.group, self.counted.resource) == ("", "pods")
            && let Some(why) = missing_quota_resources(self.new, names.iter().copied())
        {
            return Err(format!("failed quota: {name}: {why}"));
        }
        if names.iter().any(|name| !used.contains_key(*name)) {
            let names = names.join(",");
            return Err(format!("status unknown for quota: {name}, resources: {names}"));
        }
        let mut more = self.usage(self.new);
        let negative: Vec<&str> = more
            .iter()
            .filter(|(_, amount)| **amount < Quantity::ZERO)
            .map(|(name, _)| name.as_str())
            .collect();
        if !negative.is_empty() {
            let names = negative.join(",");
            return Err(format!("quota usage is negative for resource(s): {names}"));
        }
        if let Some(old) = self.old.filter(|old| is_in_scope(old)) {
            for (name, before) in self.usage(old) {
                more.entry(name).and_modify(|amount| *amount = *amount - before);
            }
        }
        more.retain(|name, amount| *amount > Quantity::ZERO && hard.contains_key(name));
        if more.is_empty() {
            return Ok(None);
        }
        let mut after = used.clone();
        add_resource_amounts(&mut after, &more);
        let exceeded: Vec<&str> = more
            .keys()
            .filter(|name| after.get(*name) > hard.get(*name))
            .map(String::as_str)
            .collect();
        // A status only reports existing usage.
        if self.subresource != "status" && !exceeded.is_empty() {
            let [requested, used, limited] =
                [&more, &used, &hard].map(|amounts| printed(amounts, &exceeded));
            return Err(format!(
                "exceeded quota: {name}, requested: {requested}, used: {used}, limited: {limited}"
            ));
        }
        Ok(Some(after))
    }

    fn usage(&self, object: &Value) -> ResourceAmounts {
        self.counted.usage(object, self.now)
    }
}

/// Some amounts, as upstream prints them.
fn printed(amounts: &ResourceAmounts, names: &[&str]) -> String {
    let shown = names.iter().filter_map(|name| Some(format!("{name}={}", amounts.get(*name)?)));
    shown.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PODS: QuotaResource<'_> = QuotaResource { group: "", resource: "pods" };
    const CLAIMS: QuotaResource<'_> =
        QuotaResource { group: "", resource: "persistentvolumeclaims" };

    /// The usage of a quota after a write, or why the write is rejected.
    #[track_caller]
    fn check(change: &Change<'_>, (spec, hard, used): (Value, Value, Value), want: &str) {
        let quota = json!({"metadata": {"name": "q"}, "spec": spec, "status": {"hard": hard, "used": used}});
        let found = match change.used_after(&quota) {
            Ok(None) => "as it is".to_owned(),
            Ok(Some(used)) => {
                let names: Vec<&str> = used.keys().map(String::as_str).collect();
                printed(&used, &names)
            }
            Err(why) => why,
        };
        assert_eq!(found, want);
    }

    fn creation<'a>(counted: QuotaResource<'a>, new: &'a Value) -> Change<'a> {
        Change { counted, subresource: "", old: None, new, now: Timestamp::UNIX_EPOCH }
    }

    fn pod(requests: Value) -> Value {
        json!({"spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}})
    }

    #[test]
    fn a_new_object() {
        let pod = pod(json!({"cpu": "500m", "memory": "1Gi", "example.com/gpu": "1"}));
        let check = |hard: Value, used: Value, want: &str| {
            check(&creation(PODS, &pod), (json!({}), hard, used), want);
        };
        check(json!({"pods": "2"}), json!({"pods": "1"}), "pods=2");
        check(
            json!({"cpu": "1", "requests.memory": "1Gi", "requests.example.com/gpu": "1", "services": "1"}),
            json!({"cpu": "500m", "requests.memory": "0", "requests.example.com/gpu": "0", "services": "1"}),
            "cpu=1,requests.example.com/gpu=1,requests.memory=1Gi,services=1",
        );
        check(
            json!({"pods": "1", "requests.cpu": "700m", "count/pods": "9"}),
            json!({"pods": "1", "requests.cpu": "201m", "count/pods": "1"}),
            "exceeded quota: q, requested: pods=1,requests.cpu=500m, used: pods=1,requests.cpu=201m, limited: pods=1,requests.cpu=700m",
        );
        check(
            json!({"limits.cpu": "1", "limits.memory": "1Gi"}),
            json!({"limits.cpu": "0", "limits.memory": "0"}),
            "failed quota: q: must specify limits.cpu for: c; limits.memory for: c",
        );
        check(
            json!({"pods": "1", "cpu": "1", "services": "1"}),
            json!({"cpu": "0"}),
            "status unknown for quota: q, resources: cpu,pods",
        );
        check(json!({"services": "0", "count/deployments.apps": "0"}), json!({}), "as it is");
        check(json!({}), json!({}), "as it is");
        // A quota below the current usage keeps existing objects and rejects more.
        check(
            json!({"pods": "1", "cpu": "9"}),
            json!({"pods": "3", "cpu": "3"}),
            "exceeded quota: q, requested: pods=1, used: pods=3, limited: pods=1",
        );
    }

    #[test]
    fn only_what_is_in_scope() {
        let pod = pod(json!({}));
        let scoped = |scope: &str, want: &str| {
            let full = json!({"pods": "0"});
            check(&creation(PODS, &pod), (json!({"scopes": [scope]}), full.clone(), full), want);
        };
        scoped("Terminating", "as it is");
        scoped(
            "NotTerminating",
            "exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0",
        );
    }

    #[test]
    fn a_change() {
        let claim = |size: &str, class: &str| json!({"spec": {"volumeAttributesClassName": class, "resources": {"requests": {"storage": size}}}});
        let check = |subresource: &str, old: Value, new: Value, spec: Value, want: &str| {
            let change = Change { subresource, old: Some(&old), ..creation(CLAIMS, &new) };
            let hard = json!({"requests.storage": "3Gi", "persistentvolumeclaims": "1"});
            let used = json!({"requests.storage": "2Gi", "persistentvolumeclaims": "1"});
            check(&change, (spec, hard, used), want);
        };
        let all = || json!({});
        check("", claim("1Gi", ""), claim("1Gi", ""), all(), "as it is");
        check("", claim("2Gi", ""), claim("1Gi", ""), all(), "as it is");
        check(
            "",
            claim("1Gi", ""),
            claim("2Gi", ""),
            all(),
            "persistentvolumeclaims=1,requests.storage=3Gi",
        );
        check(
            "",
            claim("1Gi", ""),
            claim("3Gi", ""),
            all(),
            "exceeded quota: q, requested: requests.storage=2Gi, used: requests.storage=2Gi, limited: requests.storage=3Gi",
        );
        check(
            "status",
            claim("1Gi", ""),
            claim("3Gi", ""),
            all(),
            "persistentvolumeclaims=1,requests.storage=4Gi",
        );
        // An object that enters a scope counts as if it were new.
        let gold = json!({"scopeSelector": {"matchExpressions": [
            {"scopeName": "VolumeAttributesClass", "operator": "In", "values": ["gold"]}]}});
        check("", claim("1Gi", "gold"), claim("1Gi", ""), gold.clone(), "as it is");
        check(
            "",
            claim("1Gi", ""),
            claim("1Gi", "gold"),
            gold,
            "exceeded quota: q, requested: persistentvolumeclaims=1, used: persistentvolumeclaims=1, limited: persistentvolumeclaims=1",
        );
    }

    #[test]
    fn negative_usage() {
        let claim = json!({"spec": {"resources": {"requests": {"storage": "-1"}}}});
        check(
            &creation(CLAIMS, &claim),
            (json!({}), json!({"requests.storage": "1"}), json!({"requests.storage": "0"})),
            "quota usage is negative for resource(s): requests.storage",
        );
    }
}
