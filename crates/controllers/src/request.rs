//! What controllers ask of the API server beyond what they watch, as values; and how these look on the wire.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use crate::kind::{Key, Kind, Object, Typed};

/// A write, or a question that the cache cannot answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Asks for an object as it is on the server. That there is none is an answer, too.
    Get(Key),
    /// Asks how many objects of a kind there are in a namespace.
    Count {
        /// The kind.
        kind: Kind,
        /// The namespace.
        namespace: String,
    },
    /// Makes an object; its `generateName` is honoured.
    Create(Object),
    /// Replaces an object; refused if its resourceVersion is no longer the current one.
    Update {
        /// As it shall be.
        object: Object,
        /// Empty for the object itself; else `status`, `finalize`, ...
        subresource: &'static str,
    },
    /// Changes parts of an object.
    Patch {
        /// Which object.
        key: Key,
        /// Empty for the object itself; else `status`, ...
        subresource: &'static str,
        /// The parts.
        patch: Patch,
    },
    /// Deletes an object. That it is gone already is as good.
    Delete {
        /// Which object.
        key: Key,
        /// How.
        options: DeleteOptions,
    },
    /// Deletes all objects of a kind in a namespace.
    DeleteCollection {
        /// The kind.
        kind: Kind,
        /// The namespace.
        namespace: String,
    },
    /// Asks for a pod to be deleted as its disruption budgets allow.
    Evict {
        /// The pod.
        key: Key,
        /// How.
        options: DeleteOptions,
    },
}

/// A change of parts of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Patch {
    /// RFC 7386.
    Merge(Value),
    /// Kubernetes' strategic merge: lists with merge keys are merged.
    Strategic(Value),
    /// RFC 6902.
    Json(Value),
}

/// How an object is deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Only the object with this uid.
    pub uid: Option<String>,
    /// Only in this version.
    pub resource_version: Option<String>,
    /// In place of the object's own.
    pub grace_period_seconds: Option<i64>,
    /// `Orphan`, `Background` or `Foreground`.
    pub propagation: Option<&'static str>,
}

/// What the server answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Done. The object as it is now, where the answer says it.
    Done(Option<Object>),
    /// So many.
    Counted(u64),
    /// Not done.
    Refused {
        /// The HTTP status.
        status: u16,
        /// In one word, such as `Conflict`; may be empty.
        reason: String,
        /// For people.
        message: String,
        /// How long the server wants to be left alone.
        retry_after: Option<Duration>,
    },
    /// There was no answer: it may have been done or not.
    Lost {
        /// Why.
        message: String,
    },
}

impl Request {
    /// Makes an object.
    pub fn create(object: impl Into<Object>) -> Request {
        Request::Create(object.into())
    }

    /// Replaces an object.
    pub fn update(object: impl Into<Object>) -> Request {
        Request::Update { object: object.into(), subresource: "" }
    }

    /// Replaces an object's status.
    pub fn update_status(object: impl Into<Object>) -> Request {
        Request::Update { object: object.into(), subresource: "status" }
    }

    /// Changes parts of an object.
    pub fn patch(key: Key, patch: Patch) -> Request {
        Request::Patch { key, subresource: "", patch }
    }

    /// Changes parts of an object's status.
    pub fn patch_status(key: Key, patch: Patch) -> Request {
        Request::Patch { key, subresource: "status", patch }
    }

    /// Deletes this object and no other of its name.
    pub fn delete<K: Typed>(object: &K) -> Request {
        let uid = object.metadata().uid.clone();
        Request::Delete {
            key: Key::of(object),
            options: DeleteOptions { uid, ..Default::default() },
        }
    }

    /// The kind of the object it is about.
    pub fn kind(&self) -> Kind {
        match self {
            Request::Create(object) | Request::Update { object, .. } => object.kind(),
            Request::Get(key)
            | Request::Patch { key, .. }
            | Request::Delete { key, .. }
            | Request::Evict { key, .. } => key.kind,
            Request::Count { kind, .. } | Request::DeleteCollection { kind, .. } => *kind,
        }
    }

    /// Whether nobody waits for what becomes of it: Events are told, not kept.
    pub(crate) fn is_event(&self) -> bool {
        matches!(self, Request::Create(Object::Event(_)))
    }

    /// As HTTP.
    ///
    /// # Errors
    ///
    /// When an object has no JSON form.
    pub fn encode(&self) -> Result<Encoded, serde_json::Error> {
        let with = |method, path, content_type, body: &Value| {
            Ok(Encoded { method, path, content_type, body: serde_json::to_vec(body)? })
        };
        let read =
            |path| Ok(Encoded { method: Method::GET, path, content_type: JSON, body: Vec::new() });
        match self {
            Request::Get(key) => read(path(key, "")),
            Request::Count { kind, namespace } => read(format!("{}?limit=1", kind.path(namespace))),
            Request::Create(object) => {
                let path = object.kind().path(&object.key().namespace);
                with(Method::POST, path, JSON, &object.to_json()?)
            }
            Request::Update { object, subresource } => {
                let path = path(&object.key(), subresource);
                with(Method::PUT, path, JSON, &object.to_json()?)
            }
            Request::Patch { key, subresource, patch } => {
                let (content_type, body) = match patch {
                    Patch::Merge(body) => ("application/merge-patch+json", body),
                    Patch::Strategic(body) => ("application/strategic-merge-patch+json", body),
                    Patch::Json(body) => ("application/json-patch+json", body),
                };
                with(Method::PATCH, path(key, subresource), content_type, body)
            }
            Request::Delete { key, options } => {
                with(Method::DELETE, path(key, ""), JSON, &options.to_json())
            }
            Request::DeleteCollection { kind, namespace } => with(
                Method::DELETE,
                kind.path(namespace),
                JSON,
                &DeleteOptions::default().to_json(),
            ),
            Request::Evict { key, options } => {
                let body = json!({"apiVersion": "policy/v1", "kind": "Eviction",
                    "metadata": {"namespace": &*key.namespace, "name": &*key.name},
                    "deleteOptions": options.to_json()});
                with(Method::POST, path(key, "eviction"), JSON, &body)
            }
        }
    }

    /// Reads the body of an answer that is a success. What is not an object of the kind (a Status, a list) says no more
    /// than that it was done.
    pub fn done(&self, body: &[u8]) -> Answer {
        let kind = self.kind();
        let value = serde_json::from_slice::<Value>(body).unwrap_or_default();
        if let Request::Count { .. } = self {
            let Some(items) = value["items"].as_array() else {
                return Answer::Lost { message: "the answer is no list".to_owned() };
            };
            let more = value["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
            return Answer::Counted(items.len() as u64 + more);
        }
        let is_object =
            value["kind"] == kind.info().kind && value["apiVersion"] == kind.info().api_version;
        match is_object.then(|| Object::from_json(kind, value).ok()).flatten() {
            // That there is no object is another answer.
            None if matches!(self, Request::Get(_)) => {
                Answer::Lost { message: format!("the answer is no {}", kind.info().kind) }
            }
            object => Answer::Done(object),
        }
    }
}

const JSON: &str = "application/json";

fn path(key: &Key, subresource: &str) -> String {
    let slash = if subresource.is_empty() { "" } else { "/" };
    format!("{}/{}{slash}{subresource}", key.kind.path(&key.namespace), key.name)
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

/// A request in HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The method.
    pub method: Method,
    /// From `/api` or `/apis` on.
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
    fn on_the_wire() {
        #[track_caller]
        fn check(request: &Request, want: &str) {
            let Encoded { method, path, content_type, body } = request.encode().unwrap();
            let kind = content_type.trim_start_matches("application/");
            assert_eq!(
                format!("{method} {path} {kind} {}", String::from_utf8(body).unwrap()),
                want
            );
        }
        let json = json!({"metadata": {"namespace": "a", "name": "b", "uid": "u"}});
        let pod: Pod = serde_json::from_value(json).unwrap();
        let key = Key::of(&pod);
        let text =
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b","namespace":"a","uid":"u"}}"#;
        check(
            &Request::create(pod.clone()),
            &format!("POST /api/v1/namespaces/a/pods json {text}"),
        );
        check(
            &Request::update(pod.clone()),
            &format!("PUT /api/v1/namespaces/a/pods/b json {text}"),
        );
        check(
            &Request::patch_status(key.clone(), Patch::Merge(json!({"status": null}))),
            r#"PATCH /api/v1/namespaces/a/pods/b/status merge-patch+json {"status":null}"#,
        );
        check(
            &Request::delete(&pod),
            r#"DELETE /api/v1/namespaces/a/pods/b json {"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"u"}}"#,
        );
        let options = DeleteOptions {
            grace_period_seconds: Some(0),
            propagation: Some("Orphan"),
            ..Default::default()
        };
        check(
            &Request::Evict { key, options },
            r#"POST /api/v1/namespaces/a/pods/b/eviction json {"apiVersion":"policy/v1","deleteOptions":{"apiVersion":"v1","gracePeriodSeconds":0,"kind":"DeleteOptions","propagationPolicy":"Orphan"},"kind":"Eviction","metadata":{"name":"b","namespace":"a"}}"#,
        );
        check(
            &Request::Count { kind: Kind::Lease, namespace: "a".into() },
            "GET /apis/coordination.k8s.io/v1/namespaces/a/leases?limit=1 json ",
        );
        check(&Request::Get(Key::of(&pod)), "GET /api/v1/namespaces/a/pods/b json ");
        check(
            &Request::DeleteCollection { kind: Kind::ConfigMap, namespace: "a".into() },
            r#"DELETE /api/v1/namespaces/a/configmaps json {"apiVersion":"v1","kind":"DeleteOptions"}"#,
        );
        assert_eq!(
            Request::create(pod.clone()).done(text.as_bytes()),
            Answer::Done(Some(pod.clone().into()))
        );
        let count = |body: &str| {
            let count = Request::Count { kind: Kind::Pod, namespace: "a".into() };
            count.done(body.as_bytes())
        };
        assert_eq!(count(r#"{"items":[]}"#), Answer::Counted(0));
        assert_eq!(
            count(r#"{"metadata":{"remainingItemCount":6},"items":[{}]}"#),
            Answer::Counted(7)
        );
        assert!(matches!(count(r#"{"items":null}"#), Answer::Lost { .. }));
        assert!(matches!(Request::Get(Key::of(&pod)).done(b"{}"), Answer::Lost { .. }));
        assert_eq!(
            Request::delete(&pod).done(br#"{"apiVersion":"v1","kind":"Status"}"#),
            Answer::Done(None)
        );
    }
}
