//! Changing objects by patches: JSON patch, merge patch, strategic merge patch.

use http::Response;
use serde_json::Value;

use super::body::Body;
use super::create::Expected;
use super::{ApiServer, Call};
use crate::request::{FieldValidation, content_type};
use crate::schema::schema;
use crate::status::ApiError;
use crate::{event, strategic};

const ACCEPTED: &str = "application/json-patch+json, application/merge-patch+json, \
    application/strategic-merge-patch+json";

/// How to merge custom objects strategically is not known.
const ACCEPTED_CUSTOM: &str = "application/json-patch+json, application/merge-patch+json, \
    application/apply-patch+yaml";

/// The most operations of a JSON patch, as upstream's limit.
const N_OPERATIONS_MAX: usize = 10_000;

/// A patch, read.
enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Value),
}

impl Patch {
    fn read(call: &Call<'_>) -> Result<Patch, ApiError> {
        let bad = |error: serde_json::Error| {
            ApiError::bad_request(format!("error decoding patch: {error}"))
        };
        match content_type(call.headers) {
            "application/json-patch+json" => {
                let patch: json_patch::Patch = serde_json::from_slice(call.body).map_err(bad)?;
                if patch.0.len() > N_OPERATIONS_MAX {
                    return Err(ApiError::too_large(N_OPERATIONS_MAX));
                }
                Ok(Patch::Json(patch))
            }
            "application/merge-patch+json" => {
                Ok(Patch::Merge(serde_json::from_slice(call.body).map_err(bad)?))
            }
            "application/strategic-merge-patch+json" if call.kind.custom.is_none() => {
                Ok(Patch::Strategic(serde_json::from_slice(call.body).map_err(bad)?))
            }
            _ if call.kind.custom.is_some() => {
                Err(ApiError::unsupported_media_type(ACCEPTED_CUSTOM))
            }
            _ => Err(ApiError::unsupported_media_type(ACCEPTED)),
        }
    }

    fn apply(
        &self,
        call: &Call<'_>,
        expected: Expected<'_>,
        old: &Value,
    ) -> Result<Value, ApiError> {
        let mut value = old.clone();
        match self {
            Patch::Json(patch) => json_patch::patch(&mut value, patch).map_err(|_| {
                ApiError::unprocessable(
                    "the server rejected our request due to an error in our request",
                )
            })?,
            Patch::Merge(patch) => {
                if !patch.is_object() {
                    return Err(ApiError::bad_request("error decoding patch: not an object"));
                }
                json_patch::merge(&mut value, patch);
            }
            Patch::Strategic(patch) => {
                value = strategic::apply(schema(), expected.type_id, value, patch)
                    .map_err(|problem| ApiError::bad_request(problem.to_string()))?;
            }
        }
        let name = &value["metadata"]["name"];
        if name.as_str().is_some_and(|name| name != call.target.name) {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({}) does not match the name on the URL ({})",
                name.as_str().unwrap_or_default(),
                call.target.name
            )));
        }
        Ok(value)
    }
}

impl ApiServer {
    pub(super) fn patch(&self, call: &Call<'_>) -> Result<Response<Body>, ApiError> {
        let patch = Patch::read(call)?;
        let expected = Expected::of(call.kind);
        let validation = FieldValidation::of(call.query)?;
        let key = (call.target.namespace.as_str(), call.target.name.as_str());
        let mut warnings = Vec::new();
        let rewritten = self.rewrite(call.kind, key, call.query.dry_run()?, |old| {
            let shown = event::shown(call.kind, old.clone());
            let value = patch.apply(call, expected, &shown)?;
            let (value, told) = self.typed(value, expected, validation)?;
            warnings = told;
            let value = event::stored(call.kind, value);
            let new = self.updated(call.kind, &call.target.subresource, old, value)?;
            self.check_escalation(call, Some(old), &new)?;
            Ok(new)
        })?;
        self.rewritten_answer(call, rewritten, warnings)
    }

    /// Applies a patch to a value that is not stored, such as a scale.
    pub(super) fn patched(
        &self,
        call: &Call<'_>,
        expected: Expected<'_>,
        old: &Value,
    ) -> Result<Value, ApiError> {
        let value = Patch::read(call)?.apply(call, expected, old)?;
        Ok(self.typed(value, expected, FieldValidation::of(call.query)?)?.0)
    }
}
