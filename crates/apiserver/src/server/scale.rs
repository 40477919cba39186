//! The subresource `scale` of workloads.

use http::Response;
use serde_json::{Value, json};

use super::body::Body;
use super::create::Expected;
use super::field_manager::{Forms, Write};
use super::patch::Patch;
use super::server_side_apply::Apply;
use super::{ApiResponse, ApiServer, ResourceRequest, UpdateOutcome, rfc3339_seconds};
use crate::managed_fields::{FieldManager, ResetFields, ScaleManagedFields, set_managed_fields};
use crate::object::{metadata_text, parsed};
use crate::request::FieldValidation;
use crate::schema::{Kind, Subresource};
use crate::selector::selector_text;
use crate::status::{ApiError, Cause};

/// A change of a Scale.
enum Change {
    To { scale: Value, manager: String },
    By { patch: Patch, manager: String },
    Applied(Apply),
}

impl Change {
    fn read(
        server: &ApiServer,
        call: &ResourceRequest<'_>,
        verb: &str,
        expected: Expected<'_>,
    ) -> Result<Change, ApiError> {
        if verb == "update" {
            let manager = call.manager("UpdateOptions")?;
            let scale = server.read_body(call, expected)?.0;
            call.check_identity(&scale)?;
            return Ok(Change::To { scale, manager });
        }
        Ok(match Patch::read(call)? {
            Patch::Apply(apply) => Change::Applied(apply),
            patch => Change::By { patch, manager: call.manager("PatchOptions")? },
        })
    }
}

impl ApiServer {
    pub(super) fn scale(
        &self,
        call: &ResourceRequest<'_>,
        verb: &str,
    ) -> Result<Response<Body>, ApiError> {
        let sub = call.kind.subresource("scale").ok_or_else(ApiError::no_such_resource)?;
        let expected = Expected::of_subresource(sub);
        let key = (call.target.namespace.as_str(), call.target.name.as_str());
        let scale = if verb == "get" {
            scale_of(call.kind, &parsed(&*self.get_object(call.kind, key.0, key.1)?)?)
        } else {
            let change = Change::read(self, call, verb, expected)?;
            let rewritten = self.retry_update(call.kind, key, call.query.dry_run()?, |old| {
                self.scaled(call, sub, &change, old)
            })?;
            match rewritten {
                UpdateOutcome::Stored(object) => scale_of(call.kind, &parsed(&object)?),
                UpdateOutcome::Dry(value) => scale_of(call.kind, &value),
            }
        };
        Ok(ApiResponse::typed_value(200, sub.type_id, &scale, call.form).into_response())
    }

    /// A workload with its scale changed.
    fn scaled(
        &self,
        call: &ResourceRequest<'_>,
        sub: &Subresource,
        change: &Change,
        old: &Value,
    ) -> Result<Value, ApiError> {
        let expected = Expected::of_subresource(sub);
        let api_version = call.kind.api_version();
        let custom = call.kind.custom().and_then(|it| it.scale.clone());
        let path =
            custom.as_ref().map_or(".spec.replicas".to_owned(), |it| it.replicas.to_string());
        let replicas: Vec<&str> = path.split('.').filter(|name| !name.is_empty()).collect();
        let owners = ScaleManagedFields { api_version: &api_version, replicas: &replicas };
        let mut live = scale_of(call.kind, old);
        set_managed_fields(&mut live, owners.to_scale(old));
        let forms = Forms::of_subresource(sub);
        let scale_version = crate::schema::api_version(sub.group, sub.version);
        let books = FieldManager {
            versions: &forms,
            api_version: &scale_version,
            kind: sub.kind,
            subresource: sub.name,
            reset: ResetFields::Nothing,
            now: rfc3339_seconds(self.now()),
        };
        let typed = |value| self.typed(value, expected, FieldValidation::of(call.query)?);
        let (wanted, manager) = match change {
            Change::To { scale, manager } => (scale.clone(), Some(manager)),
            Change::By { patch, manager } => {
                (typed(patch.change(call, expected, &live)?)?.0, Some(manager))
            }
            Change::Applied(apply) => {
                let scale = books.apply(&live, &apply.config, &apply.manager, apply.force)?;
                (typed(scale)?.0, None)
            }
        };
        let list = match manager {
            Some(manager) => books.update(&live, &wanted, manager).unwrap_or_default(),
            None => wanted["metadata"]["managedFields"].clone(),
        };
        check_scale(call.kind, old, &wanted)?;
        let replicas = wanted["spec"]["replicas"].as_i64().unwrap_or(0);
        let mut new = old.clone();
        match &custom {
            Some(scale) => scale.replicas.set(&mut new, replicas.into()),
            None => new["spec"]["replicas"] = replicas.into(),
        }
        set_managed_fields(&mut new, owners.to_workload(old, &list));
        let revision = metadata_text(&wanted, "resourceVersion");
        if !revision.is_empty() {
            new["metadata"]["resourceVersion"] = revision.into();
        }
        let write = Write { kind: call.kind, subresource: "", manager: None };
        self.updated(write, old, new)
    }
}

/// Rejects a Scale with another object's name, or with negative replicas.
fn check_scale(kind: &Kind, workload: &Value, scale: &Value) -> Result<(), ApiError> {
    let (name, uid, found) = (
        metadata_text(workload, "name"),
        metadata_text(scale, "uid"),
        metadata_text(workload, "uid"),
    );
    if !uid.is_empty() && uid != found {
        let why =
            format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {found}");
        return Err(ApiError::conflict(kind, "scale", name, &why));
    }
    let replicas = &scale["spec"]["replicas"];
    // Of a custom object it is said where it has that number.
    if kind.custom.is_none() && replicas.as_i64().unwrap_or(0) < 0 {
        let cause = Cause::invalid("spec.replicas", replicas, "must be greater than or equal to 0");
        return Err(ApiError::invalid_named("autoscaling", "Scale", name, &[cause]));
    }
    Ok(())
}

fn scale_of(kind: &Kind, workload: &Value) -> Value {
    let custom = kind.custom();
    let scale = custom.as_ref().and_then(|it| it.scale.as_ref());
    let number = |value: Option<&Value>| value.and_then(Value::as_i64).unwrap_or(0);
    let (wanted, current, selector) = match scale {
        Some(scale) => (
            number(scale.replicas.first_value(workload)),
            number(scale.current.first_value(workload)),
            scale.selector.as_ref().map(|it| it.text(workload)).unwrap_or_default(),
        ),
        None => (
            number(workload["spec"].get("replicas")),
            number(workload["status"].get("replicas")),
            selector_text(&workload["spec"]["selector"]),
        ),
    };
    let mut metadata = json!({});
    for name in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if !workload["metadata"][name].is_null() {
            metadata[name] = workload["metadata"][name].clone();
        }
    }
    let mut status = json!({"replicas": current});
    if !selector.is_empty() {
        status["selector"] = selector.into();
    }
    let mut spec = json!({});
    if wanted != 0 {
        spec["replicas"] = wanted.into();
    }
    json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec,
        "status": status})
}
