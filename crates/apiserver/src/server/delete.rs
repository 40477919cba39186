//! Deleting objects: at once, or by a deletion timestamp until finalizers and grace period are done.

use std::sync::Arc;

use http::Response;
use serde_json::{Value, json};

use super::body::Body;
use super::list::prefix;
use super::{ApiResponse, ApiServer, ResourceRequest, rfc3339_seconds};
use crate::custom_resource::definition;
use crate::object::{draft, list_entries, meta_mut, metadata_text, parsed};
use crate::request::content_type;
use crate::schema::{Kind, decode, schema};
use crate::selector::parse_filter;
use crate::status::{ApiError, Cause, deleted_status};
use crate::store::{ListOptions, Object, Precondition, WriteConflict};
use crate::strategy;
use crate::{event_conversion, protobuf};

/// The options of a deletion.
#[derive(Clone, Debug, Default)]
pub(super) struct Deletion {
    pub grace: Option<i64>,
    pub uid: Option<String>,
    pub revision: Option<String>,
    /// `Background`, `Foreground` or `Orphan`.
    pub propagation: Option<String>,
    pub dry_run: bool,
}

impl Deletion {
    fn of(call: &ResourceRequest<'_>) -> Result<Deletion, ApiError> {
        Deletion::read(call, &read_options(call)?)
    }

    /// From `DeleteOptions` and, for what they leave out, the query parameters.
    pub fn read(call: &ResourceRequest<'_>, options: &Value) -> Result<Deletion, ApiError> {
        let dry_run =
            call.query.dry_run()? || list_entries(&options["dryRun"]).iter().any(|it| it == "All");
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let given =
            call.query.get("orphanDependents").map(|_| call.query.is_true("orphanDependents"));
        let orphans = options["orphanDependents"].as_bool().or(given);
        let policy = text(&options["propagationPolicy"])
            .or_else(|| call.query.get("propagationPolicy").map(str::to_owned));
        check_propagation(policy.as_deref(), orphans)?;
        let propagation =
            policy.or(orphans.map(|it| if it { "Orphan" } else { "Background" }.to_owned()));
        Ok(Deletion {
            grace: options["gracePeriodSeconds"]
                .as_i64()
                .or(call.query.number("gracePeriodSeconds")?),
            uid: text(&options["preconditions"]["uid"]),
            revision: text(&options["preconditions"]["resourceVersion"]),
            propagation,
            dry_run,
        })
    }
}

fn check_propagation(policy: Option<&str>, orphans: Option<bool>) -> Result<(), ApiError> {
    let Some(policy) = policy else { return Ok(()) };
    let cause = if orphans.is_some() {
        let why = "orphanDependents and deletionPropagation cannot be both set";
        Cause::invalid("propagationPolicy", &policy.into(), why)
    } else if !matches!(policy, "Background" | "Foreground" | "Orphan") {
        let supported = ["Foreground", "Background", "Orphan", "nil"];
        Cause::not_supported("propagationPolicy", &policy.into(), &supported)
    } else {
        return Ok(());
    };
    Err(ApiError::invalid_options_of("DeleteOptions", &cause))
}

/// The `DeleteOptions` of a body, or null.
fn read_options(call: &ResourceRequest<'_>) -> Result<Value, ApiError> {
    if call.body.is_empty() {
        return Ok(Value::Null);
    }
    let id = schema().find("meta/v1.DeleteOptions").ok_or_else(ApiError::no_such_resource)?;
    let bad = |error: String| ApiError::bad_request(format!("decoding DeleteOptions: {error}"));
    let value = match content_type(call.headers) {
        protobuf::MEDIA_TYPE => {
            let envelope =
                protobuf::decode_envelope(call.body).map_err(|error| bad(error.to_string()))?;
            protobuf::decode_message(schema(), id, &envelope.raw)
                .map_err(|error| bad(error.to_string()))?
        }
        "application/yaml" => super::create::yaml(call.body)?,
        _ => {
            loadmaster_stdx::json::from_slice(call.body).map_err(|error| bad(error.to_string()))?
        }
    };
    Ok(decode(schema(), id, value).map_err(|problem| bad(problem.0))?.value)
}

/// Whether an object is being deleted and has no finalizers left.
pub(super) fn is_done(value: &Value) -> bool {
    let metadata = &value["metadata"];
    !metadata["deletionTimestamp"].is_null()
        && list_entries(&metadata["finalizers"]).is_empty()
        && metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && (value["kind"] != "Namespace" || list_entries(&value["spec"]["finalizers"]).is_empty())
}

/// Namespaces that cannot be deleted.
const IMMORTAL: &[&str] = &["default", "kube-system", "kube-public"];

/// Kinds whose deletion returns the last state of the object, not a `Status`.
const RETURNED: &[&str] = &[
    "pods",
    "services",
    "serviceaccounts",
    "persistentvolumes",
    "persistentvolumeclaims",
    "podtemplates",
    "resourcequotas",
    "namespaces",
    "csidrivers",
    "csinodes",
    "storageclasses",
    "volumeattachments",
    "volumeattributesclasses",
    "deviceclasses",
    "resourceclaims",
    "resourceclaimtemplates",
    "resourceslices",
];

fn is_returned(kind: &Kind) -> bool {
    kind.custom.is_none() && RETURNED.contains(&kind.resource)
}

/// The outcome of a deletion.
pub(super) enum Deleted {
    /// It was removed.
    Removed(Value),
    /// It has a deletion timestamp, and is removed after its grace period and finalizers.
    Marked(Value),
}

impl ApiServer {
    pub(super) fn delete(&self, call: &ResourceRequest<'_>) -> Result<Response<Body>, ApiError> {
        if !call.target.subresource.is_empty() {
            return Err(ApiError::method_not_allowed());
        }
        let deletion = Deletion::of(call)?;
        let target = call.target;
        if call.kind.is("", "namespaces") && IMMORTAL.contains(&target.name.as_str()) {
            let why = "this namespace may not be deleted";
            return Err(ApiError::forbidden(call.kind, &target.name, why));
        }
        let deleted = self.delete_object(call.kind, &target.namespace, &target.name, &deletion)?;
        let now = self.now();
        let answer = match deleted {
            Deleted::Removed(value) if !is_returned(call.kind) => {
                let mut details = json!({"name": target.name, "kind": call.kind.resource,
                    "uid": metadata_text(&value, "uid")});
                if !call.kind.group.is_empty() {
                    details["group"] = call.kind.group.into();
                }
                ApiResponse::status(200, &deleted_status(details), call.form)
            }
            Deleted::Removed(value) | Deleted::Marked(value) => ApiResponse::value_in_view(
                200,
                call.kind,
                &event_conversion::to_request_version(call.kind, value),
                call.form,
                now,
            ),
        };
        Ok(answer.into_response())
    }

    pub(super) fn delete_collection(
        &self,
        call: &ResourceRequest<'_>,
    ) -> Result<Response<Body>, ApiError> {
        let deletion = Deletion::of(call)?;
        let table = call.kind.table.ok_or_else(ApiError::no_such_resource)?;
        let (filter, prefix) = (parse_filter(call.kind, call.query)?, prefix(call));
        let span = ListOptions { prefix: &prefix, ..ListOptions::default() };
        let page = self.state().store.list(table, &span, &filter);
        let page = page.map_err(|error| ApiError::internal(&error.to_string()))?;
        let mut items = Vec::with_capacity(page.objects.len());
        for object in &page.objects {
            match self.delete_object(call.kind, object.namespace(), object.name(), &deletion) {
                Ok(Deleted::Removed(value) | Deleted::Marked(value)) => {
                    items.push(event_conversion::to_request_version(call.kind, value));
                }
                // Another request deleted it.
                Err(error) if error.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        let list = call.kind.list_kind();
        // Lists of custom objects have no type, and are always JSON.
        let id = schema().find_kind(call.kind.group, call.kind.version, &list);
        let id = id.or(call.kind.custom.is_some().then_some(call.kind.type_id));
        let id = id.ok_or_else(|| ApiError::internal(&format!("{list} has no type")))?;
        let value = json!({"kind": list, "apiVersion": call.kind.api_version(),
            "metadata": {"resourceVersion": page.revision.to_string()}, "items": items});
        Ok(ApiResponse::typed_value(200, id, &value, call.form).into_response())
    }

    /// Deletes an object, and retries on a conflict unless the request has a precondition on the revision.
    pub(super) fn delete_object(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        deletion: &Deletion,
    ) -> Result<Deleted, ApiError> {
        let table = kind.table.ok_or_else(ApiError::no_such_resource)?;
        loop {
            let stored = self.get_object(kind, namespace, name)?;
            let old = parsed(&stored)?;
            check_preconditions(kind, &old, deletion)?;
            let Some(new) = self.marked(kind, &old, deletion) else {
                if !deletion.dry_run {
                    // Resumes what a crash interrupted.
                    self.delete_objects_of(kind, name)?;
                }
                return Ok(Deleted::Marked(old));
            };
            let done = is_done(&new);
            if deletion.dry_run {
                return Ok(if done { Deleted::Removed(new) } else { Deleted::Marked(new) });
            }
            let written = if done {
                self.remove(kind, table, &stored, &old, deletion)?
            } else {
                self.replace(kind, table, &stored, &new, Vec::new())?
            };
            match written {
                Ok(object) if done => return Ok(Deleted::Removed(parsed(&object)?)),
                Ok(object) => {
                    self.delete_objects_of(kind, name)?;
                    return Ok(Deleted::Marked(parsed(&object)?));
                }
                Err(WriteConflict::Missing) => return Err(ApiError::not_found(kind, name)),
                Err(WriteConflict::Changed | WriteConflict::Exists) => {}
            }
        }
    }

    /// Removes an object without finalizers. Pods get a deletion timestamp first, as upstream: watchers see both.
    fn remove(
        &self,
        kind: &Kind,
        table: crate::store::TableId,
        stored: &Object,
        old: &Value,
        deletion: &Deletion,
    ) -> Result<Result<Arc<Object>, WriteConflict>, ApiError> {
        let marked = self.marked(kind, old, deletion).filter(|_| kind.is("", "pods"));
        let last = marked.map(|it| draft(kind, &it)).transpose()?;
        let mut revision = stored.revision();
        let mut state = self.state();
        if let Some(draft) = last {
            match state.store.put(table, Precondition::Revision(revision), draft) {
                Ok(object) => revision = object.revision(),
                Err(refused) => return Ok(Err(refused)),
            }
        }
        let removed = state.store.remove(table, stored.key(), revision, None);
        drop(state);
        if let Ok(object) = &removed {
            self.on_write(table, object.revision());
        }
        Ok(removed)
    }

    /// The state with a deletion timestamp and finalizers; none if this deletion changes nothing.
    fn marked(&self, kind: &Kind, old: &Value, deletion: &Deletion) -> Option<Value> {
        let metadata = &old["metadata"];
        let is_marked = !metadata["deletionTimestamp"].is_null();
        let left = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        let mut new = old.clone();
        if definition::is_custom_resource_definition(kind) {
            definition::mark_terminating(&mut new, &rfc3339_seconds(self.now()));
            return (!is_marked).then_some(new);
        }
        if is_marked && left > 0 {
            let wanted = deletion.grace.map(at_least_one).filter(|it| *it < left)?;
            self.shorten(&mut new, left, wanted);
        } else if !is_marked {
            let grace = grace_seconds(kind, old, deletion);
            let at = later(self.now(), grace);
            let metadata = meta_mut(&mut new);
            metadata.insert("deletionTimestamp".to_owned(), rfc3339_seconds(at).into());
            metadata.insert("deletionGracePeriodSeconds".to_owned(), grace.into());
            if kind.is("", "namespaces") {
                new["status"]["phase"] = "Terminating".into();
            }
            strategy::bump_generation(&mut new);
        }
        let known = list_entries(&metadata["finalizers"]);
        let finalizers = finalizers_after(kind, known, deletion);
        let same =
            finalizers.len() == known.len() && finalizers.iter().all(|it| known.contains(it));
        if is_marked && left == 0 && same && (!known.is_empty() || kind.is("", "namespaces")) {
            return None;
        }
        match (same, finalizers.is_empty()) {
            (true, _) => {}
            (false, true) => drop(meta_mut(&mut new).remove("finalizers")),
            (false, false) => {
                drop(meta_mut(&mut new).insert("finalizers".to_owned(), finalizers.into()));
            }
        }
        Some(new)
    }

    /// Shortens the grace period, but not below now.
    fn shorten(&self, new: &mut Value, left: i64, wanted: i64) {
        let now = self.now();
        let ends = new["metadata"]["deletionTimestamp"].as_str().and_then(|it| it.parse().ok());
        let ends = later(ends.unwrap_or(now), wanted.saturating_sub(left));
        // If the requested time has passed, the shortest grace period remains.
        let wanted = if ends < now { wanted.min(1) } else { wanted };
        let metadata = meta_mut(new);
        metadata.insert("deletionTimestamp".to_owned(), rfc3339_seconds(ends.max(now)).into());
        metadata.insert("deletionGracePeriodSeconds".to_owned(), wanted.into());
    }
}

/// Adds seconds to a time, with Go's wrapping.
fn later(time: jiff::Timestamp, seconds: i64) -> jiff::Timestamp {
    let span = jiff::SignedDuration::from_nanos(seconds.wrapping_mul(1_000_000_000));
    time.checked_add(span).unwrap_or(time)
}

/// A negative time means at once, as upstream reads it.
fn at_least_one(grace: i64) -> i64 {
    if grace < 0 { 1 } else { grace }
}

/// The finalizers for foreground deletion and for orphaning dependents.
const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// The finalizers of an object after a deletion: of the two about dependents, the requested one, or by default the
/// present one.
fn finalizers_after(kind: &Kind, known: &[Value], deletion: &Deletion) -> Vec<Value> {
    let is_own = |it: &&Value| *it == FOREGROUND || *it == ORPHAN;
    let there = known.iter().find(is_own).and_then(Value::as_str);
    // These kinds orphan their pods by default, for compatibility.
    let leaves_pods = kind.is("", "replicationcontrollers");
    let wanted = match deletion.propagation.as_deref() {
        // Nothing depends on an event.
        _ if matches!((kind.group, kind.resource), ("" | "events.k8s.io", "events")) => None,
        Some("Foreground") => Some(FOREGROUND),
        Some("Orphan") => Some(ORPHAN),
        Some(_) => None,
        None => there.or(leaves_pods.then_some(ORPHAN)),
    };
    let others = known.iter().filter(|it| !is_own(it)).cloned();
    others.chain(wanted.map(Value::from)).collect()
}

/// The grace period in seconds: only pods on nodes have one.
fn grace_seconds(kind: &Kind, old: &Value, deletion: &Deletion) -> i64 {
    let phase = old["status"]["phase"].as_str().unwrap_or_default();
    let is_on_node = old["spec"]["nodeName"].as_str().is_some_and(|name| !name.is_empty());
    if !kind.is("", "pods") || !is_on_node || matches!(phase, "Succeeded" | "Failed") {
        return 0;
    }
    let own = old["spec"]["terminationGracePeriodSeconds"].as_i64();
    at_least_one(deletion.grace.or(own).unwrap_or(30))
}

fn check_preconditions(kind: &Kind, old: &Value, deletion: &Deletion) -> Result<(), ApiError> {
    let checks = [
        ("UID", "uid", &deletion.uid, "deleted and then recreated"),
        ("ResourceVersion", "resourceVersion", &deletion.revision, "modified"),
    ];
    for (label, field, wanted, perhaps) in checks {
        let found = metadata_text(old, field);
        if let Some(wanted) = wanted
            && wanted != found
        {
            let why = format!(
                "the {label} in the precondition ({wanted}) does not match the {label} in record ({found}). The object might have been {perhaps}"
            );
            return Err(ApiError::precondition(kind, metadata_text(old, "name"), &why));
        }
    }
    Ok(())
}
