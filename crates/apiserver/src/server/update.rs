//! The verb update.

use http::Response;
use serde_json::Value;

use super::body::Body;
use super::create::Expected;
use super::field_manager::{Write, keep_times};
use super::{ApiResponse, ApiServer, ResourceRequest, UpdateOutcome};
use crate::authorization::RBAC_GROUP;
use crate::custom_resource::definition;
use crate::object::{check_depth, metadata_text, parsed};
use crate::schema::Kind;
use crate::status::ApiError;
use crate::{defaults, event_conversion, strategy, validate};

/// Kinds that an update makes when they are not there (`AllowCreateOnUpdate` of upstream's strategies).
const MADE_BY_UPDATE: &[(&str, &[&str])] = &[
    ("", &["endpoints", "events", "limitranges", "services"]),
    ("events.k8s.io", &["events"]),
    ("coordination.k8s.io", &["leases", "leasecandidates"]),
    ("node.k8s.io", &["runtimeclasses"]),
    (RBAC_GROUP, &["roles", "rolebindings", "clusterroles", "clusterrolebindings"]),
];

/// Kinds of which an update must say which version it is about (no `AllowUnconditionalUpdate` of upstream's strategies); custom
/// resources and their definitions beside.
const NEED_REVISION: &[(&str, &[&str])] = &[
    ("coordination.k8s.io", &["leases", "leasecandidates"]),
    ("node.k8s.io", &["runtimeclasses"]),
    ("policy", &["poddisruptionbudgets"]),
    ("storage.k8s.io", &["csidrivers", "csinodes", "csistoragecapacities", "volumeattachments"]),
];

fn is_among(kinds: &[(&str, &[&str])], kind: &Kind) -> bool {
    kinds
        .iter()
        .any(|(group, resources)| *group == kind.group && resources.contains(&kind.resource))
}

impl ApiServer {
    pub(super) fn update(&self, call: &ResourceRequest<'_>) -> Result<Response<Body>, ApiError> {
        let (kind, target) = (call.kind, call.target);
        let manager = call.manager("UpdateOptions")?;
        let (value, mut warnings) = self.read_body(call, Expected::of(kind))?;
        let value = event_conversion::to_storage_version(kind, value);
        call.check_identity(&value)?;
        let needs_revision = kind.custom.is_some()
            || definition::is_custom_resource_definition(kind)
            || is_among(NEED_REVISION, kind);
        let lacks_revision = needs_revision && metadata_text(&value, "resourceVersion").is_empty();
        let key = (target.namespace.as_str(), target.name.as_str());
        let mut new_warnings = Vec::new();
        let write = Write { kind, subresource: &target.subresource, manager: Some(&manager) };
        let dry_run = call.query.dry_run()?;
        loop {
            let rewritten = self.retry_update_with_quota(kind, key, dry_run, |old| {
                if lacks_revision {
                    return Err(ApiError::missing_resource_version(kind, &target.name));
                }
                if definition::is_custom_resource_definition(kind) {
                    new_warnings = definition::unrecognized_format_warnings(Some(old), &value);
                }
                let new = self.updated(write, old, value.clone())?;
                self.check_escalation(call, Some(old), &new)?;
                self.check_signer(call, old, &new)?;
                self.counted(write, old, new)
            });
            let is_missing = matches!(&rewritten, Err(error) if error.code == 404)
                && self.get_object(kind, key.0, key.1).is_err();
            if !is_missing || !is_among(MADE_BY_UPDATE, kind) || !target.subresource.is_empty() {
                warnings.extend(new_warnings);
                return self.rewritten_answer(call, rewritten?, warnings);
            }
            match self.create_as_named(call, write, value.clone(), dry_run) {
                // It was created meanwhile.
                Err(error) if error.reason == "AlreadyExists" => {}
                made => return Ok(self.created_answer(call, made?, warnings)),
            }
        }
    }

    /// The state after an update through a (sub)resource, checked. The new value must be typed.
    pub(super) fn updated(
        &self,
        write: Write<'_>,
        old: &Value,
        mut new: Value,
    ) -> Result<Value, ApiError> {
        let Write { kind, subresource, .. } = write;
        let name = metadata_text(old, "name");
        let revision = metadata_text(&new, "resourceVersion");
        if !revision.is_empty() && revision.parse::<u64>().is_err() {
            let why = format!("strconv.ParseUint: parsing {revision:?}: invalid syntax");
            return Err(ApiError::unclassified(&why));
        }
        if !revision.is_empty() && revision != metadata_text(old, "resourceVersion") {
            return Err(ApiError::modified(kind, name));
        }
        let uid = metadata_text(&new, "uid");
        if !uid.is_empty() && uid != metadata_text(old, "uid") {
            let why = format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                metadata_text(old, "uid")
            );
            return Err(ApiError::conflict(kind, "", name, &why));
        }
        defaults::apply_defaults(kind, &mut new);
        self.enter(write, Some(old), &mut new);
        self.admit_update(kind, subresource, old, &mut new)?;
        strategy::prepare_update(kind, subresource, old, &mut new);
        let causes = validate::update(kind, subresource, old, &new);
        if !causes.is_empty() {
            return Err(ApiError::invalid(kind, name, &causes));
        }
        let is_claim = kind.is("", "persistentvolumeclaims") && subresource.is_empty();
        let is_going = !old["metadata"]["deletionTimestamp"].is_null();
        if (subresource == "resize" || is_claim) && !is_going {
            self.check_limits(kind, &new)?;
        }
        keep_times(old, &mut new);
        check_depth(&new)?;
        Ok(new)
    }

    pub(super) fn rewritten_answer(
        &self,
        call: &ResourceRequest<'_>,
        rewritten: UpdateOutcome,
        warnings: Vec<String>,
    ) -> Result<Response<Body>, ApiError> {
        let answer = match rewritten {
            UpdateOutcome::Stored(object) => {
                let shown = event_conversion::to_request_version(call.kind, parsed(&object)?);
                ApiResponse::value_in_view(200, call.kind, &shown, call.form, self.now())
            }
            UpdateOutcome::Dry(value) => {
                let shown = event_conversion::to_request_version(call.kind, value);
                ApiResponse::value_in_view(200, call.kind, &shown, call.form, self.now())
            }
        };
        Ok(answer.with_warnings(warnings).into_response())
    }
}
