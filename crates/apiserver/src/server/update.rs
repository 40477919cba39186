//! Replacing objects whole.

use http::Response;
use serde_json::Value;

use super::body::Body;
use super::create::Expected;
use super::managed::{Write, keep_times};
use super::{Answer, ApiServer, Call, Rewritten};
use crate::custom::definition;
use crate::object::{meta, parsed};
use crate::status::ApiError;
use crate::{admit, defaults, event, validate};

impl ApiServer {
    pub(super) fn update(&self, call: &Call<'_>) -> Result<Response<Body>, ApiError> {
        let (kind, target) = (call.kind, call.target);
        let manager = call.manager("UpdateOptions")?;
        let (value, mut warnings) = self.read_body(call, Expected::of(kind))?;
        let value = event::stored(kind, value);
        let name = meta(&value, "name");
        if !name.is_empty() && name != target.name {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                target.name
            )));
        }
        let needs_revision = kind.custom.is_some() || definition::is(kind);
        if needs_revision && meta(&value, "resourceVersion").is_empty() {
            return Err(ApiError::no_revision(kind, &target.name));
        }
        let namespace = meta(&value, "namespace");
        if !namespace.is_empty() && namespace != target.namespace {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        let key = (target.namespace.as_str(), target.name.as_str());
        let mut told = Vec::new();
        let write = Write { kind, subresource: &target.subresource, manager: Some(&manager) };
        let rewritten = self.rewrite(kind, key, call.query.dry_run()?, |old| {
            if definition::is(kind) {
                told = definition::format_warnings(Some(old), &value);
            }
            let new = self.updated(write, old, value.clone())?;
            self.check_escalation(call, Some(old), &new)?;
            Ok(new)
        })?;
        warnings.extend(told);
        self.rewritten_answer(call, rewritten, warnings)
    }

    /// The state after an update through a (sub)resource, checked. The new value must be typed.
    pub(super) fn updated(
        &self,
        write: Write<'_>,
        old: &Value,
        mut new: Value,
    ) -> Result<Value, ApiError> {
        let Write { kind, subresource, .. } = write;
        let name = meta(old, "name");
        let revision = meta(&new, "resourceVersion");
        if !revision.is_empty() && revision.parse::<u64>().is_err() {
            let why = format!("strconv.ParseUint: parsing {revision:?}: invalid syntax");
            return Err(ApiError::unclassified(&why));
        }
        if !revision.is_empty() && revision != meta(old, "resourceVersion") {
            return Err(ApiError::modified(kind, name));
        }
        let uid = meta(&new, "uid");
        if !uid.is_empty() && uid != meta(old, "uid") {
            let why = format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                meta(old, "uid")
            );
            return Err(ApiError::conflict(kind, "", name, &why));
        }
        defaults::apply(kind, &mut new);
        self.enter(write, Some(old), &mut new);
        ApiServer::readmit(kind, subresource, old, &mut new);
        admit::prepare_update(kind, subresource, old, &mut new);
        let causes = validate::update(kind, subresource, old, &new);
        if !causes.is_empty() {
            return Err(ApiError::invalid(kind, name, &causes));
        }
        if subresource == "resize" || kind.is("", "persistentvolumeclaims") {
            self.check_limits(kind, &new)?;
        }
        keep_times(old, &mut new);
        Ok(new)
    }

    pub(super) fn rewritten_answer(
        &self,
        call: &Call<'_>,
        rewritten: Rewritten,
        warnings: Vec<String>,
    ) -> Result<Response<Body>, ApiError> {
        let answer = match rewritten {
            Rewritten::Stored(object) => {
                let shown = event::shown(call.kind, parsed(&object)?);
                Answer::viewed(200, call.kind, &shown, call.form, self.now())
            }
            Rewritten::Dry(value) => {
                let shown = event::shown(call.kind, value);
                Answer::viewed(200, call.kind, &shown, call.form, self.now())
            }
        };
        Ok(answer.with_warnings(warnings).into_response())
    }
}
