//! The API requests of controllers as values, and their HTTP form.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use crate::kind::{Key, Kind, Object, Typed};

/// A write, or a read that the cache cannot serve.
#[derive(Clone, Debug, PartialEq)]
pub enum ControllerRequest {
    /// Reads an object from the server. Not found is a success without object.
    Get(Key),
    /// Counts the objects of a kind in a namespace.
    Count {
        /// The kind.
        kind: Kind,
        /// The namespace.
        namespace: String,
    },
    /// Creates an object; its `generateName` is honoured.
    Create(Object),
    /// Replaces an object; rejected with a conflict if its resourceVersion is not the current one.
    Update {
        /// The new object.
        object: Object,
        /// Empty for the object itself; else `status`, `finalize`, ...
        subresource: &'static str,
    },
    /// Patches an object.
    Patch {
        /// The object.
        key: Key,
        /// Empty for the object itself; else `status`, ...
        subresource: &'static str,
        /// The patch.
        patch: Patch,
    },
    /// Deletes an object. Not found counts as success.
    Delete {
        /// The object.
        key: Key,
        /// The delete options.
        options: DeleteOptions,
    },
    /// Deletes all objects of a kind in a namespace.
    DeleteCollection {
        /// The kind.
        kind: Kind,
        /// The namespace.
        namespace: String,
    },
    /// Evicts a pod through the Eviction API.
    Evict {
        /// The pod.
        key: Key,
        /// The delete options.
        options: DeleteOptions,
    },
}

/// A patch.
#[derive(Clone, Debug, PartialEq)]
pub enum Patch {
    /// JSON merge patch, RFC 7386.
    Merge(Value),
    /// Strategic merge patch: lists with merge keys are merged.
    Strategic(Value),
    /// JSON patch, RFC 6902.
    Json(Value),
}

/// Kubernetes' `DeleteOptions`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Precondition: the uid of the object.
    pub uid: Option<String>,
    /// Precondition: the resourceVersion of the object.
    pub resource_version: Option<String>,
    /// Overrides the grace period of the object.
    pub grace_period_seconds: Option<i64>,
    /// `Orphan`, `Background` or `Foreground`.
    pub propagation: Option<&'static str>,
}

/// The server's response to a [`ControllerRequest`].
#[derive(Clone, Debug, PartialEq)]
pub enum ControllerResponse {
    /// Success, with the object if the response contains it.
    Success(Option<Object>),
    /// The number of objects.
    Count(u64),
    /// The server rejected the request.
    Rejected {
        /// The HTTP status.
        status: u16,
        /// The reason of the Status, such as `Conflict`; may be empty.
        reason: String,
        /// The message of the Status.
        message: String,
        /// From the header `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// No response: whether the request was executed is unknown.
    NoResponse {
        /// Why.
        message: String,
    },
}

impl ControllerRequest {
    /// Creates an object.
    pub fn create(object: impl Into<Object>) -> ControllerRequest {
        ControllerRequest::Create(object.into())
    }

    /// Replaces an object.
    pub fn update(object: impl Into<Object>) -> ControllerRequest {
        ControllerRequest::Update { object: object.into(), subresource: "" }
    }

    /// Replaces an object's status.
    pub fn update_status(object: impl Into<Object>) -> ControllerRequest {
        ControllerRequest::Update { object: object.into(), subresource: "status" }
    }

    /// Patches an object.
    pub fn patch(key: Key, patch: Patch) -> ControllerRequest {
        ControllerRequest::Patch { key, subresource: "", patch }
    }

    /// Patches an object's status.
    pub fn patch_status(key: Key, patch: Patch) -> ControllerRequest {
        ControllerRequest::Patch { key, subresource: "status", patch }
    }

    /// Deletes this object, with its uid as precondition.
    pub fn delete<K: Typed>(object: &K) -> ControllerRequest {
        let uid = object.metadata().uid.clone();
        ControllerRequest::Delete {
            key: Key::from_object(object),
            options: DeleteOptions { uid, ..Default::default() },
        }
    }

    /// The kind of the object.
    pub fn kind(&self) -> Kind {
        match self {
            ControllerRequest::Create(object) | ControllerRequest::Update { object, .. } => {
                object.kind()
            }
            ControllerRequest::Get(key)
            | ControllerRequest::Patch { key, .. }
            | ControllerRequest::Delete { key, .. }
            | ControllerRequest::Evict { key, .. } => key.kind,
            ControllerRequest::Count { kind, .. }
            | ControllerRequest::DeleteCollection { kind, .. } => *kind,
        }
    }

    /// Whether it creates an Event, which is best effort.
    pub(crate) fn is_event(&self) -> bool {
        matches!(self, ControllerRequest::Create(Object::Event(_)))
    }

    /// The HTTP form of the request.
    ///
    /// # Errors
    ///
    /// When an object cannot be encoded as JSON.
    pub fn encode(&self) -> Result<HttpRequest, serde_json::Error> {
        let with = |method, path, content_type, body: &Value| {
            Ok(HttpRequest { method, path, content_type, body: serde_json::to_vec(body)? })
        };
        let read = |path| {
            Ok(HttpRequest { method: Method::GET, path, content_type: JSON, body: Vec::new() })
        };
        match self {
            ControllerRequest::Get(key) => read(path(key, "")),
            ControllerRequest::Count { kind, namespace } => {
                read(format!("{}?limit=1", kind.api_path(namespace)))
            }
            ControllerRequest::Create(object) => {
                let path = object.kind().api_path(&object.key().namespace);
                with(Method::POST, path, JSON, &object.to_json()?)
            }
            ControllerRequest::Update { object, subresource } => {
                let path = path(&object.key(), subresource);
                with(Method::PUT, path, JSON, &object.to_json()?)
            }
            ControllerRequest::Patch { key, subresource, patch } => {
                let (content_type, body) = match patch {
                    Patch::Merge(body) => ("application/merge-patch+json", body),
                    Patch::Strategic(body) => ("application/strategic-merge-patch+json", body),
                    Patch::Json(body) => ("application/json-patch+json", body),
                };
                with(Method::PATCH, path(key, subresource), content_type, body)
            }
            ControllerRequest::Delete { key, options } => {
                with(Method::DELETE, path(key, ""), JSON, &options.to_json())
            }
            ControllerRequest::DeleteCollection { kind, namespace } => with(
                Method::DELETE,
                kind.api_path(namespace),
                JSON,
                &DeleteOptions::default().to_json(),
            ),
            ControllerRequest::Evict { key, options } => {
                let body = json!({"apiVersion": "policy/v1", "kind": "Eviction",
                    "metadata": {"namespace": &*key.namespace, "name": &*key.name},
                    "deleteOptions": options.to_json()});
                with(Method::POST, path(key, "eviction"), JSON, &body)
            }
        }
    }

    /// Parses the body of a successful response. A body that is not an object of the kind (a Status, a list) is a success
    /// without object.
    pub fn parse_success_body(&self, body: &[u8]) -> ControllerResponse {
        let kind = self.kind();
        let value = loadmaster_stdx::json::from_slice::<Value>(body).unwrap_or_default();
        if let ControllerRequest::Count { .. } = self {
            let Some(items) = value["items"].as_array() else {
                return ControllerResponse::NoResponse {
                    message: "the response is not a list".to_owned(),
                };
            };
            let more = value["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
            return ControllerResponse::Count(items.len() as u64 + more);
        }
        let is_object =
            value["kind"] == kind.info().kind && value["apiVersion"] == kind.info().api_version;
        match is_object.then(|| Object::from_json(kind, value).ok()).flatten() {
            // A missing object is a 404, not a success.
            None if matches!(self, ControllerRequest::Get(_)) => ControllerResponse::NoResponse {
                message: format!("the response is not a {}", kind.info().kind),
            },
            object => ControllerResponse::Success(object),
        }
    }
}

const JSON: &str = "application/json";

fn path(key: &Key, subresource: &str) -> String {
    let slash = if subresource.is_empty() { "" } else { "/" };
    format!("{}/{}{slash}{subresource}", key.kind.api_path(&key.namespace), key.name)
}

impl DeleteOptions {
    fn to_json(&self) -> Value {
        let mut json = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
        let mut preconditions = json!({});
        if let Some(uid) = &self.uid {
            preconditions["uid"] = uid.as_str().into();
        }
        if let Some(version) = &self.resource_version {
            preconditions["resourceVersion"] = version.as_str().into();
        }
        if self.uid.is_some() || self.resource_version.is_some() {
            json["preconditions"] = preconditions;
        }
        if let Some(seconds) = self.grace_period_seconds {
            json["gracePeriodSeconds"] = seconds.into();
        }
        if let Some(propagation) = self.propagation {
            json["propagationPolicy"] = propagation.into();
        }
        json
    }
}

/// A request in its HTTP form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// The method.
    pub method: Method,
    /// Path and query, beginning with `/api` or `/apis`.
    pub path: String,
    /// Media type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    #[test]
    fn requests_in_http_form() {
        #[track_caller]
        fn check(request: &ControllerRequest, want: &str) {
            let HttpRequest { method, path, content_type, body } = request.encode().unwrap();
            let kind = content_type.trim_start_matches("application/");
            assert_eq!(
                format!("{method} {path} {kind} {}", String::from_utf8(body).unwrap()),
                want
            );
        }
        let json = json!({"metadata": {"namespace": "a", "name": "b", "uid": "u"}});
        let pod: Pod = serde_json::from_value(json).unwrap();
        let key = Key::from_object(&pod);
        let text =
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b","namespace":"a","uid":"u"}}"#;
        check(
            &ControllerRequest::create(pod.clone()),
            &format!("POST /api/v1/namespaces/a/pods json {text}"),
        );
        check(
            &ControllerRequest::update(pod.clone()),
            &format!("PUT /api/v1/namespaces/a/pods/b json {text}"),
        );
        check(
            &ControllerRequest::patch_status(key.clone(), Patch::Merge(json!({"status": null}))),
            r#"PATCH /api/v1/namespaces/a/pods/b/status merge-patch+json {"status":null}"#,
        );
        check(
            &ControllerRequest::delete(&pod),
            r#"DELETE /api/v1/namespaces/a/pods/b json {"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"u"}}"#,
        );
        let options = DeleteOptions {
            grace_period_seconds: Some(0),
            propagation: Some("Orphan"),
            ..Default::default()
        };
        check(
            &ControllerRequest::Evict { key, options },
            r#"POST /api/v1/namespaces/a/pods/b/eviction json {"apiVersion":"policy/v1","deleteOptions":{"apiVersion":"v1","gracePeriodSeconds":0,"kind":"DeleteOptions","propagationPolicy":"Orphan"},"kind":"Eviction","metadata":{"name":"b","namespace":"a"}}"#,
        );
        check(
            &ControllerRequest::Count { kind: Kind::Lease, namespace: "a".into() },
            "GET /apis/coordination.k8s.io/v1/namespaces/a/leases?limit=1 json ",
        );
        check(
            &ControllerRequest::Get(Key::from_object(&pod)),
            "GET /api/v1/namespaces/a/pods/b json ",
        );
        check(
            &ControllerRequest::DeleteCollection { kind: Kind::ConfigMap, namespace: "a".into() },
            r#"DELETE /api/v1/namespaces/a/configmaps json {"apiVersion":"v1","kind":"DeleteOptions"}"#,
        );
        assert_eq!(
            ControllerRequest::create(pod.clone()).parse_success_body(text.as_bytes()),
            ControllerResponse::Success(Some(pod.clone().into()))
        );
        let count = |body: &str| {
            let count = ControllerRequest::Count { kind: Kind::Pod, namespace: "a".into() };
            count.parse_success_body(body.as_bytes())
        };
        assert_eq!(count(r#"{"items":[]}"#), ControllerResponse::Count(0));
        assert_eq!(
            count(r#"{"metadata":{"remainingItemCount":6},"items":[{}]}"#),
            ControllerResponse::Count(7)
        );
        assert!(matches!(count(r#"{"items":null}"#), ControllerResponse::NoResponse { .. }));
        assert!(matches!(
            ControllerRequest::Get(Key::from_object(&pod)).parse_success_body(b"{}"),
            ControllerResponse::NoResponse { .. }
        ));
        assert_eq!(
            ControllerRequest::delete(&pod)
                .parse_success_body(br#"{"apiVersion":"v1","kind":"Status"}"#),
            ControllerResponse::Success(None)
        );
    }
}
