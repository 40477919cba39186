//! Kinds that are never stored: TokenReview, the access reviews, and Binding.

use std::collections::BTreeMap;

use http::Response;
use loadmaster_stdx::CollectByInsertion as _;
use serde_json::{Value, json};

use super::body::Body;
use super::create::Expected;
use super::{ApiResponse, ApiServer, ResourceRequest};
use crate::authentication::User;
use crate::authorization::{
    AuthorizationAttributes, AuthorizationDecision, AuthorizationMode, RequestTarget,
    ResourceAttributes,
};
use crate::object::{list_entries, metadata_text};
use crate::status::{ApiError, Cause};

const GROUP: &str = "authorization.k8s.io";

impl ApiServer {
    pub(super) fn review(&self, call: &ResourceRequest<'_>) -> Result<Response<Body>, ApiError> {
        if call.kind.resource == "bindings" {
            return self.bind(call);
        }
        let (mut review, warnings) = self.read_body(call, Expected::of(call.kind))?;
        review["status"] = match call.kind.resource {
            "tokenreviews" => self.token_review(&review)?,
            "selfsubjectreviews" => json!({"userInfo": call.user.user_info()}),
            "selfsubjectrulesreviews" => self.rules_review(call.user, &review)?,
            "selfsubjectaccessreviews" => {
                check_spec(call, &review)?;
                self.access_review(call.user, &review["spec"])
            }
            "subjectaccessreviews" | "localsubjectaccessreviews" => {
                check_spec(call, &review)?;
                self.access_review(&user_of(&review["spec"]), &review["spec"])
            }
            _ => return Err(ApiError::no_such_resource()),
        };
        let answer = ApiResponse::typed_value(201, call.kind.type_id, &review, call.form);
        Ok(answer.with_warnings(warnings).into_response())
    }

    fn access_review(&self, user: &User, spec: &Value) -> Value {
        let of = |object: &'static str, field: &'static str| {
            spec[object][field].as_str().unwrap_or_default()
        };
        let resource = |field| of("resourceAttributes", field);
        let is_resource = spec["resourceAttributes"].is_object();
        let (verb, what) = if is_resource {
            let what = RequestTarget::Resource(ResourceAttributes {
                group: resource("group"),
                resource: resource("resource"),
                subresource: resource("subresource"),
                namespace: resource("namespace"),
                name: resource("name"),
            });
            (resource("verb"), what)
        } else {
            let path = of("nonResourceAttributes", "path");
            (of("nonResourceAttributes", "verb"), RequestTarget::Path(path))
        };
        let decision = self.decide(&AuthorizationAttributes { user, verb, what });
        let mut status = json!({"allowed": decision.is_allowed()});
        let (AuthorizationDecision::Allowed { reason } | AuthorizationDecision::Refused { reason }) =
            decision;
        if !reason.is_empty() {
            status["reason"] = reason.into();
        }
        status
    }

    fn rules_review(&self, user: &User, review: &Value) -> Result<Value, ApiError> {
        let namespace = review["spec"]["namespace"].as_str().unwrap_or_default();
        if namespace.is_empty() {
            return Err(ApiError::bad_request("no namespace on request"));
        }
        let (rules, error) = self.rules_of(user, namespace);
        let select = |is_path: bool| -> Vec<Value> {
            let fits = rules.iter().filter(|rule| {
                let list = if is_path { &rule.non_resource_urls } else { &rule.resources };
                !list.is_empty()
            });
            fits.map(|rule| rule.to_review_json(is_path)).collect()
        };
        let mut status = json!({
            "resourceRules": select(false),
            "nonResourceRules": select(true),
            "incomplete": false,
        });
        if let (Some(error), AuthorizationMode::Rbac) = (error, self.shared.setup.mode) {
            status["evaluationError"] = error.into();
        }
        Ok(status)
    }
}

/// The user of a SubjectAccessReview.
fn user_of(spec: &Value) -> User {
    let texts = |list: &Value| -> Vec<String> {
        list_entries(list).iter().filter_map(|it| it.as_str().map(str::to_owned)).collect()
    };
    let text = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
    let extra: BTreeMap<String, Vec<String>> = spec["extra"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, values)| (key.clone(), texts(values)))
        .collect_by_insertion();
    User { name: text("user"), uid: text("uid"), groups: texts(&spec["groups"]), extra }
}

/// As upstream's messages show it.
fn internal(path: &Value) -> Value {
    let text = |field: &str| path[field].as_str().unwrap_or_default();
    json!({"Path": text("path"), "Verb": text("verb")})
}

fn check_spec(call: &ResourceRequest<'_>, review: &Value) -> Result<(), ApiError> {
    let spec = &review["spec"];
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let mut causes = Vec::new();
    let mut complain = |field: &str, value: &Value, why: &str| {
        causes.push(Cause::invalid(field, value, why));
    };
    if resource.is_object() && path.is_object() {
        let why = "cannot be specified in combination with resourceAttributes";
        complain("spec.nonResourceAttributes", &internal(path), why);
    }
    if !resource.is_object() && !path.is_object() {
        let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        complain("spec.resourceAttributes", &Value::Null, why);
    }
    if call.kind.resource != "selfsubjectaccessreviews" {
        let user = spec["user"].as_str().unwrap_or_default();
        if user.is_empty() && list_entries(&spec["groups"]).is_empty() {
            complain("spec.user", &user.into(), "at least one of user or group must be specified");
        }
    }
    if call.kind.resource == "localsubjectaccessreviews" {
        let own = &resource["namespace"];
        if resource.is_object() && own.as_str().unwrap_or_default() != call.target.namespace {
            let why = "must match metadata.namespace";
            complain("spec.resourceAttributes.namespace", own, why);
        }
        if path.is_object() {
            let why = "disallowed on this kind of request";
            complain("spec.nonResourceAttributes", &internal(path), why);
        }
        let given = metadata_text(review, "namespace");
        if !given.is_empty() && given != call.target.namespace {
            return Err(ApiError::other_namespace());
        }
    }
    if causes.is_empty() {
        return Ok(());
    }
    // Upstream has lost the kind by the time it complains.
    Err(ApiError::invalid_named(GROUP, "", "", &causes))
}
