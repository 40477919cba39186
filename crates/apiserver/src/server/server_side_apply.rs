//! Server-side apply: merges the fields that a manager applies into an object, which is created if it does not exist.

use std::borrow::Cow;

use http::Response;
use serde_json::Value;

use super::body::Body;
use super::create::{Expected, reading, yaml};
use super::field_manager::{Write, field_manager, live, manager_causes};
use super::patch::check_uid;
use super::{ApiServer, ResourceRequest};
use crate::event_conversion;
use crate::managed_fields::VersionedTypes as _;
use crate::request::FieldValidation;
use crate::schema::json_type_name;
use crate::status::{ApiError, Cause};

/// The media type of an apply patch.
pub(super) const MEDIA_TYPE: &str = "application/apply-patch+yaml";

/// An apply request.
pub(super) struct Apply {
    pub config: Value,
    pub manager: String,
    /// Takes over fields that other managers own.
    pub force: bool,
}

impl Apply {
    pub fn read(call: &ResourceRequest<'_>) -> Result<Apply, ApiError> {
        let manager = call.query.get("fieldManager").unwrap_or_default();
        let mut causes = manager_causes(manager);
        if manager.is_empty() {
            causes.push(Cause::required("fieldManager", "is required for apply patch"));
        }
        if !causes.is_empty() {
            return Err(ApiError::invalid_write_options("PatchOptions", &causes));
        }
        let config = yaml(call.body).map_err(|error| {
            ApiError::bad_request(format!("error decoding YAML: {}", error.message))
        })?;
        if !config.is_object() {
            return Err(ApiError::bad_request(format!(
                "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
                json_type_name(&config)
            )));
        }
        Ok(Apply { config, manager: manager.to_owned(), force: call.query.is_true("force") })
    }
}

impl ApiServer {
    pub(super) fn apply(
        &self,
        call: &ResourceRequest<'_>,
        apply: &Apply,
    ) -> Result<Response<Body>, ApiError> {
        let (kind, target) = (call.kind, call.target);
        let key = (target.namespace.as_str(), target.name.as_str());
        let dry_run = call.query.dry_run()?;
        FieldValidation::of(call.query)?;
        let write = Write { kind, subresource: &target.subresource, manager: None };
        loop {
            let missing = match self.get_object(kind, key.0, key.1) {
                Ok(_) => None,
                Err(error) if error.code == 404 => Some(error),
                Err(error) => return Err(error),
            };
            let Some(missing) = missing else {
                let rewritten = self.retry_update_with_quota(kind, key, dry_run, |old| {
                    let value = self.applied(call, apply, Some(old))?;
                    let new = self.updated(write, old, value)?;
                    self.check_escalation(call, Some(old), &new)?;
                    self.check_signer(call, old, &new)?;
                    self.counted(write, old, new)
                });
                match rewritten {
                    // It was deleted meanwhile.
                    Err(error) if error.code == 404 => continue,
                    other => return self.rewritten_answer(call, other?, Vec::new()),
                }
            };
            if !target.subresource.is_empty() {
                return Err(missing);
            }
            let value = self.applied(call, apply, None)?;
            match self.create_as_named(call, write, value, dry_run) {
                Err(error) if error.reason == "AlreadyExists" => {}
                made => return Ok(self.created_answer(call, made?, Vec::new())),
            }
        }
    }

    /// The state after an apply, decoded and with its managed fields.
    fn applied(
        &self,
        call: &ResourceRequest<'_>,
        apply: &Apply,
        old: Option<&Value>,
    ) -> Result<Value, ApiError> {
        let kind = call.kind;
        let forms = self.forms(kind);
        let api_version = kind.api_version();
        let books = field_manager(&forms, kind, &api_version, &call.target.subresource, self.now());
        let live = match old {
            Some(old) => live(kind, old),
            None => Cow::Owned(forms.nothing(&api_version)),
        };
        let value = books.apply(&live, &apply.config, &apply.manager, apply.force)?;
        let value = reading(value, Expected::of(kind)).map_err(|problem| {
            let (object, form) = (books.described(&apply.config), books.group_version_kind_text());
            ApiError::unclassified(&format!(
                "failed to convert new object ({object}) to proper version: unable to convert unstructured object to {form}: {problem}"
            ))
        })?;
        call.check_identity(&value.value)?;
        check_uid(kind, &live, &value.value)?;
        Ok(event_conversion::to_storage_version(kind, value.value))
    }
}
