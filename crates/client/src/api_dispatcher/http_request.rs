//! Converts an `ApiRequest` to an HTTP request.

use bytes::Bytes;
use http::Method;
use loadmaster_framework::api_calls::{ApiRequest, Verb};

use crate::api_client::{JSON_MEDIA_TYPE, Request};
use crate::status::percent_encode;

/// The HTTP request.
pub(super) fn to_http_request(request: &ApiRequest) -> Request {
    let (method, content_type) = match request.verb {
        Verb::Get => (Method::GET, JSON_MEDIA_TYPE),
        Verb::Create => (Method::POST, JSON_MEDIA_TYPE),
        Verb::Update => (Method::PUT, JSON_MEDIA_TYPE),
        Verb::JsonPatch => (Method::PATCH, "application/json-patch+json"),
        Verb::MergePatch => (Method::PATCH, "application/merge-patch+json"),
        Verb::StrategicMergePatch => (Method::PATCH, "application/strategic-merge-patch+json"),
        Verb::Delete => (Method::DELETE, JSON_MEDIA_TYPE),
    };
    // A JSON value can always be written.
    let body = request.body.as_ref().map(|body| Bytes::from(body.to_string())).unwrap_or_default();
    Request { method, body, content_type, ..Request::get(path(request)) }
}

/// The path of the request.
pub(super) fn path(request: &ApiRequest) -> String {
    let mut path = match &*request.group {
        "" => format!("/api/{}", request.version),
        group => format!("/apis/{group}/{}", request.version),
    };
    let mut part = |text: &str| {
        path.push('/');
        percent_encode(text, &mut path);
    };
    if !request.namespace.is_empty() {
        part("namespaces");
        part(&request.namespace);
    }
    part(&request.resource);
    // An object is created in its collection; its name is in the body.
    let in_collection = request.verb == Verb::Create && request.subresource.is_empty();
    if !request.name.is_empty() && !in_collection {
        part(&request.name);
    }
    if !request.subresource.is_empty() {
        part(&request.subresource);
    }
    path
}

/// Whether executing the request twice has the same effect as executing it once.
pub(super) fn is_idempotent(verb: Verb) -> bool {
    match verb {
        Verb::Get | Verb::MergePatch | Verb::StrategicMergePatch | Verb::Delete => true,
        Verb::Create | Verb::Update | Verb::JsonPatch => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_paths() {
        #[track_caller]
        fn check(verb: Verb, place: [&str; 6], want: &str) {
            let [group, version, resource, namespace, name, subresource] = place.map(Into::into);
            let body = None;
            let request =
                ApiRequest { verb, group, version, resource, namespace, name, subresource, body };
            let sent = to_http_request(&request);
            assert_eq!(format!("{} {} {}", sent.method, sent.path, sent.content_type), want);
        }
        check(
            Verb::Create,
            ["", "v1", "pods", "shop", "web", "binding"],
            "POST /api/v1/namespaces/shop/pods/web/binding application/json",
        );
        check(
            Verb::StrategicMergePatch,
            ["", "v1", "pods", "shop", "web", "status"],
            "PATCH /api/v1/namespaces/shop/pods/web/status application/strategic-merge-patch+json",
        );
        check(
            Verb::Delete,
            ["", "v1", "nodes", "", "a/b", ""],
            "DELETE /api/v1/nodes/a%2Fb application/json",
        );
        check(
            Verb::Create,
            ["resource.k8s.io", "v1", "resourceclaims", "n", "c", ""],
            "POST /apis/resource.k8s.io/v1/namespaces/n/resourceclaims application/json",
        );
    }
}
