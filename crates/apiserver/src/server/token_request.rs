//! TokenRequest (`POST serviceaccounts/NAME/token`), and the OpenID discovery documents with which others verify
//! these tokens.

use http::Response;
use serde_json::{Value, json};

use super::body::Body;
use super::create::Expected;
use super::{ApiResponse, ApiServer, ResourceRequest, rfc3339_seconds, uid};
use crate::authentication::{BoundObjects, Claims, ObjectRef, TOKEN_ISSUER};
use crate::object::{list_entries, metadata_text, parsed};
use crate::status::{ApiError, Cause};

const GROUP: &str = "authentication.k8s.io";

/// What a client that says nothing gets.
const SECONDS: i64 = 3600;

/// The shortest and the longest lifetime that can be requested.
const SECONDS_MIN: i64 = 600;
const SECONDS_MAX: i64 = 1 << 32;

impl ApiServer {
    pub(super) fn token(&self, call: &ResourceRequest<'_>) -> Result<Response<Body>, ApiError> {
        let sub = call.kind.subresource("token").ok_or_else(ApiError::no_such_resource)?;
        let expected = Expected {
            group: sub.group,
            version: sub.version,
            kind: sub.kind,
            type_id: sub.type_id,
            custom: None,
        };
        let (mut request, warnings) = self.read_body(call, expected)?;
        let (namespace, name) = (call.target.namespace.as_str(), call.target.name.as_str());
        self.check_namespace(call.kind, namespace, name)?;
        for (field, wanted) in [("name", name), ("namespace", namespace)] {
            let given = metadata_text(&request, field);
            if !given.is_empty() && given != wanted {
                let detail = format!("must match the service account {field} if specified");
                let cause = Cause::invalid(format!("metadata.{field}"), &given.into(), &detail);
                return Err(ApiError::invalid_named(GROUP, "TokenRequest", name, &[cause]));
            }
        }
        let account = parsed(&*self.get_object(call.kind, namespace, name)?)?;
        check_uid(&request, &account, name)?;
        let spec = &mut request["spec"];
        if spec["expirationSeconds"].is_null() {
            spec["expirationSeconds"] = SECONDS.into();
        }
        if list_entries(&spec["audiences"]).is_empty() {
            spec["audiences"] = json!([TOKEN_ISSUER]);
        }
        let seconds = spec["expirationSeconds"].as_i64().unwrap_or(SECONDS);
        check_seconds(seconds)?;
        let mut bound = BoundObjects {
            namespace: namespace.to_owned(),
            node: None,
            pod: None,
            secret: None,
            serviceaccount: reference(&account),
        };
        self.bind_token(&request["spec"]["boundObjectRef"], &mut bound)?;
        let now = self.now();
        let expires = now + jiff::SignedDuration::from_secs(seconds);
        let audiences = list_entries(&request["spec"]["audiences"]).iter();
        let claims = Claims {
            audiences: audiences.filter_map(|it| it.as_str().map(str::to_owned)).collect(),
            expires: expires.as_second(),
            issued: now.as_second(),
            issuer: TOKEN_ISSUER.to_owned(),
            id: uid(&mut self.state().rng),
            not_before: now.as_second(),
            subject: format!("system:serviceaccount:{namespace}:{name}"),
            kubernetes: bound,
        };
        let token = self.shared.key.sign(&claims);
        let token = token
            .map_err(|error| ApiError::internal(&format!("failed to generate token: {error}")))?;
        request["metadata"] = json!({"name": name, "namespace": namespace,
            "uid": metadata_text(&account, "uid"), "creationTimestamp": rfc3339_seconds(now)});
        request["status"] =
            json!({"token": token, "expirationTimestamp": rfc3339_seconds(expires)});
        let answer = ApiResponse::typed_value(201, sub.type_id, &request, call.form);
        Ok(answer.with_warnings(warnings).into_response())
    }

    /// Adds the object with which the token ends.
    fn bind_token(&self, wanted: &Value, bound: &mut BoundObjects) -> Result<(), ApiError> {
        if wanted.is_null() {
            return Ok(());
        }
        let text = |field: &str| wanted[field].as_str().unwrap_or_default();
        let (resource, namespace) = match (text("apiVersion"), text("kind")) {
            ("v1", "Pod") => ("pods", bound.namespace.as_str()),
            ("v1", "Secret") => ("secrets", bound.namespace.as_str()),
            ("v1", "Node") => ("nodes", ""),
            (version, kind) => {
                let version =
                    if version.contains('/') { version.to_owned() } else { format!("/{version}") };
                let message = format!("cannot bind token to object of type {version}, Kind={kind}");
                return Err(ApiError::bad_request(message));
            }
        };
        let kind = self.own_kind("", resource)?;
        let object = parsed(&*self.get_object(kind, namespace, text("name"))?)?;
        let (found, given) = (metadata_text(&object, "uid"), text("uid"));
        if !given.is_empty() && given != found {
            let why = format!(
                "the UID in the bound object reference ({given}) does not match the UID in record. The object might have been deleted and then recreated"
            );
            return Err(ApiError::conflict_named("", text("kind"), text("name"), &why));
        }
        let it = Some(reference(&object));
        match resource {
            "pods" => {
                let account = &bound.serviceaccount.name;
                if object["spec"]["serviceAccountName"] != **account {
                    return Err(ApiError::bad_request(format!(
                        "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
                    )));
                }
                if let Some(node) = object["spec"]["nodeName"].as_str().filter(|it| !it.is_empty())
                {
                    bound.node = Some(self.node_reference(node));
                }
                bound.pod = it;
            }
            "secrets" => bound.secret = it,
            _ => bound.node = it,
        }
        Ok(())
    }

    /// The node of a pod, which need not be there.
    fn node_reference(&self, name: &str) -> ObjectRef {
        let kind = self.own_kind("", "nodes");
        let found = kind.and_then(|kind| parsed(&*self.get_object(kind, "", name)?));
        found.map_or_else(
            |_| ObjectRef { name: name.to_owned(), uid: String::new() },
            |node| reference(&node),
        )
    }

    /// `/.well-known/openid-configuration` and the keys it points to, for those who check tokens themselves.
    pub(super) fn issuer_discovery(&self, path: &str) -> Option<ApiResponse> {
        match path {
            "/.well-known/openid-configuration" => Some(ApiResponse::json(&json!({
                "issuer": TOKEN_ISSUER,
                "jwks_uri": format!("{TOKEN_ISSUER}/openid/v1/jwks"),
                "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["ES256"],
            }))),
            "/openid/v1/jwks" => Some(ApiResponse::from_bytes(
                200,
                "application/jwk-set+json",
                self.shared.key.public_jwks().to_string(),
            )),
            _ => None,
        }
    }
}

fn reference(object: &Value) -> ObjectRef {
    ObjectRef {
        name: metadata_text(object, "name").to_owned(),
        uid: metadata_text(object, "uid").to_owned(),
    }
}

fn check_uid(request: &Value, account: &Value, name: &str) -> Result<(), ApiError> {
    let (given, found) = (metadata_text(request, "uid"), metadata_text(account, "uid"));
    if given.is_empty() || given == found {
        return Ok(());
    }
    let why = format!(
        "the UID in the token request ({given}) does not match the UID of the service account ({found})"
    );
    Err(ApiError::conflict_named(GROUP, "TokenRequest", name, &why))
}

fn check_seconds(seconds: i64) -> Result<(), ApiError> {
    let detail = if seconds < SECONDS_MIN {
        "may not specify a duration less than 10 minutes"
    } else if seconds > SECONDS_MAX {
        "may not specify a duration larger than 2^32 seconds"
    } else {
        return Ok(());
    };
    let cause = Cause::invalid("spec.expirationSeconds", &seconds.into(), detail);
    Err(ApiError::invalid_named(GROUP, "TokenRequest", "", &[cause]))
}
