//! The verb patch: JSON patch, merge patch, strategic merge patch and server-side apply.

mod operations;

use http::Response;
use serde_json::Value;

use super::body::Body;
use super::create::Expected;
use super::field_manager::Write;
use super::server_side_apply::{self, Apply};
use super::{ApiServer, ResourceRequest};
use crate::object::metadata_text;
use crate::request::{FieldValidation, content_type};
use crate::schema::{Kind, schema};
use crate::status::{ApiError, Cause};
use crate::{event_conversion, strategic_merge_patch};

/// Custom objects have no strategic merge patch.
const ACCEPTED_CUSTOM: &str = "application/json-patch+json, application/merge-patch+json, \
    application/apply-patch+yaml";

/// The most operations of a JSON patch, as upstream's limit.
const N_OPERATIONS_MAX: usize = 10_000;

/// A patch, read.
pub(super) enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Value),
    Apply(Apply),
}

impl Patch {
    pub fn read(call: &ResourceRequest<'_>) -> Result<Patch, ApiError> {
        let media_type = content_type(call.headers);
        if media_type != server_side_apply::MEDIA_TYPE && call.query.get("force").is_some() {
            let cause = Cause::forbidden("force", "may not be specified for non-apply patch");
            return Err(ApiError::invalid_write_options("PatchOptions", &[cause]));
        }
        let bad = |error: serde_json::Error| {
            ApiError::bad_request(format!("error decoding patch: {error}"))
        };
        match media_type {
            server_side_apply::MEDIA_TYPE => Apply::read(call).map(Patch::Apply),
            "application/json-patch+json" => {
                let patch: json_patch::Patch =
                    loadmaster_stdx::json::from_slice(call.body).map_err(bad)?;
                if patch.0.len() > N_OPERATIONS_MAX {
                    return Err(ApiError::too_large(N_OPERATIONS_MAX));
                }
                Ok(Patch::Json(patch))
            }
            "application/merge-patch+json" => {
                Ok(Patch::Merge(loadmaster_stdx::json::from_slice(call.body).map_err(bad)?))
            }
            "application/strategic-merge-patch+json" if call.kind.custom.is_none() => {
                Ok(Patch::Strategic(loadmaster_stdx::json::from_slice(call.body).map_err(bad)?))
            }
            _ if call.kind.custom.is_some() => {
                Err(ApiError::unsupported_media_type(ACCEPTED_CUSTOM))
            }
            _ => Err(ApiError::unknown_patch_type()),
        }
    }

    /// The state after a patch that is not applied.
    pub fn change(
        &self,
        call: &ResourceRequest<'_>,
        expected: Expected<'_>,
        old: &Value,
    ) -> Result<Value, ApiError> {
        let mut value = old.clone();
        match self {
            Patch::Json(patch) => {
                operations::apply_json_patch(&mut value, patch).map_err(|_| {
                    ApiError::unprocessable(
                        "the server rejected our request due to an error in our request",
                    )
                })?
            }
            // Apply is handled elsewhere.
            Patch::Apply(_) => return Err(ApiError::unknown_patch_type()),
            Patch::Merge(patch) => {
                if !patch.is_object() {
                    return Err(ApiError::bad_request("error decoding patch: not an object"));
                }
                json_patch::merge(&mut value, patch);
            }
            Patch::Strategic(patch) => {
                value = strategic_merge_patch::apply(schema(), expected.type_id, value, patch)
                    .map_err(|problem| ApiError::invalid_patch(&problem.to_string()))?;
            }
        }
        call.check_identity(&value)?;
        Ok(value)
    }
}

impl ResourceRequest<'_> {
    /// Refuses an object with another name or namespace than the request's.
    pub(super) fn check_identity(&self, value: &Value) -> Result<(), ApiError> {
        let (name, namespace) = (metadata_text(value, "name"), metadata_text(value, "namespace"));
        if !namespace.is_empty() && namespace != self.target.namespace {
            return Err(ApiError::other_namespace());
        }
        let wanted = &self.target.name;
        if name.is_empty() {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({wanted} based on URL) was undeterminable: name must be provided"
            )));
        }
        if name != wanted {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({name}) does not match the name on the URL ({wanted})"
            )));
        }
        Ok(())
    }
}

/// Refuses a state with another uid than the object's.
pub(super) fn check_uid(kind: &Kind, old: &Value, new: &Value) -> Result<(), ApiError> {
    let (old_uid, uid) = (metadata_text(old, "uid"), metadata_text(new, "uid"));
    if old_uid.is_empty() || uid.is_empty() || uid == old_uid {
        return Ok(());
    }
    // Two of upstream's checks complain.
    let cause = || Cause::invalid("metadata.uid", &uid.into(), "field is immutable");
    Err(ApiError::invalid(kind, metadata_text(old, "name"), &[cause(), cause()]))
}

/// Reports an invalid result of a patch as an invalid patch.
fn after_patch(error: ApiError) -> ApiError {
    match error.code {
        400 => ApiError::invalid_patch(&error.message),
        _ => error,
    }
}

impl ApiServer {
    pub(super) fn patch(&self, call: &ResourceRequest<'_>) -> Result<Response<Body>, ApiError> {
        let patch = match Patch::read(call)? {
            Patch::Apply(apply) => return self.apply(call, &apply),
            patch => patch,
        };
        let manager = call.manager("PatchOptions")?;
        let expected = Expected::of(call.kind);
        let validation = FieldValidation::of(call.query)?;
        let write = Write {
            kind: call.kind,
            subresource: &call.target.subresource,
            manager: Some(&manager),
        };
        let key = (call.target.namespace.as_str(), call.target.name.as_str());
        let mut warnings = Vec::new();
        let rewritten =
            self.retry_update_with_quota(call.kind, key, call.query.dry_run()?, |old| {
                let shown = event_conversion::to_request_version(call.kind, old.clone());
                let value = patch.change(call, expected, &shown)?;
                let (value, described) =
                    self.typed(value, expected, validation).map_err(after_patch)?;
                warnings = described;
                check_uid(call.kind, &shown, &value)?;
                let new = self.updated(
                    write,
                    old,
                    event_conversion::to_storage_version(call.kind, value),
                )?;
                self.check_escalation(call, Some(old), &new)?;
                self.check_signer(call, old, &new)?;
                self.counted(write, old, new)
            })?;
        self.rewritten_answer(call, rewritten, warnings)
    }
}
