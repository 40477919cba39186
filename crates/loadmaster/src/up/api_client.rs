//! A client of the embedded API server, without connections.

use std::collections::BTreeMap;

use http::{Method, Request};
use http_body_util::BodyExt as _;
use loadmaster_apiserver::ApiServer;
use loadmaster_apiserver::authentication::User;
use loadmaster_stdx::did_you_mean;
use serde_json::Value;
use tokio::runtime::Handle;

/// A rejected request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestError {
    /// The HTTP status code.
    pub code: u16,
    /// The message of the Status.
    pub message: String,
    /// Invalid fields and their messages.
    pub causes: Vec<(String, String)>,
}

impl RequestError {
    /// Whether the object already exists, from an earlier run with the same data folder.
    pub fn already_exists(&self) -> bool {
        self.code == 409
    }
}

/// The resource of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resource {
    pub plural: String,
    pub is_namespaced: bool,
}

/// The API server, called as an administrator.
pub(super) struct InProcessApiClient {
    server: ApiServer,
    runtime: Handle,
    /// Resources by group-version and kind, from discovery.
    resources: BTreeMap<(String, String), Resource>,
}

impl InProcessApiClient {
    pub fn new(server: ApiServer, runtime: Handle) -> InProcessApiClient {
        InProcessApiClient { server, runtime, resources: BTreeMap::new() }
    }

    /// Sends a request; returns the response body.
    pub fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<Value, RequestError> {
        let mut request = Request::builder().method(method).uri(path);
        request =
            request.header("user-agent", "loadmaster-up").header("accept", "application/json");
        let mut bytes = Vec::new();
        if let Some((content_type, value)) = body {
            request = request.header("content-type", content_type);
            bytes = value.to_string().into_bytes();
        }
        let request = request.body(bytes.into()).map_err(|error| invalid_response(path, &error))?;
        let response = self.server.handle(&User::admin(), &request);
        let status = response.status();
        let Ok(body) = self.runtime.block_on(response.into_body().collect());
        let answer: Value = loadmaster_stdx::json::from_slice(&body.to_bytes())
            .map_err(|error| invalid_response(path, &error))?;
        if status.is_success() { Ok(answer) } else { Err(decode_error(status.as_u16(), &answer)) }
    }

    /// Creates an object in its namespace, or in `default`.
    pub fn create(&mut self, object: &Value) -> Result<Value, RequestError> {
        let path = self.path_of(object)?;
        let path = format!("{path}?fieldValidation=Strict");
        self.call(Method::POST, &path, Some(("application/json", object)))
    }

    /// Applies an object to the one of this name, as a merge patch: fields that it does not have stay.
    pub fn merge(&mut self, object: &Value) -> Result<Value, RequestError> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("{}/{name}?fieldValidation=Strict", self.path_of(object)?);
        self.merge_patch(&path, object)
    }

    /// Applies a merge patch to an object.
    pub fn merge_patch(&self, path: &str, patch: &Value) -> Result<Value, RequestError> {
        self.call(Method::PATCH, path, Some(("application/merge-patch+json", patch)))
    }

    /// The path of an object's collection.
    fn path_of(&mut self, object: &Value) -> Result<String, RequestError> {
        let text = |at: &Value| at.as_str().unwrap_or_default().to_owned();
        let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let resource = self.resource(&api_version, &kind)?;
        let root = if api_version.contains('/') { "/apis/" } else { "/api/" };
        let plural = &resource.plural;
        if !resource.is_namespaced {
            return Ok(format!("{root}{api_version}/{plural}"));
        }
        let namespace = match object["metadata"]["namespace"].as_str() {
            None | Some("") => "default",
            Some(namespace) => namespace,
        };
        Ok(format!("{root}{api_version}/namespaces/{namespace}/{plural}"))
    }

    /// The kinds of a version that are known so far.
    fn kinds_of(&self, api_version: &str) -> impl Iterator<Item = &str> {
        let keys = self.resources.keys().filter(move |(version, _)| version == api_version);
        keys.map(|(_, kind)| kind.as_str())
    }

    /// The resource of a kind, from discovery; unknown kinds are looked up again.
    pub fn resource(&mut self, api_version: &str, kind: &str) -> Result<Resource, RequestError> {
        let key = (api_version.to_owned(), kind.to_owned());
        if let Some(resource) = self.resources.get(&key) {
            return Ok(resource.clone());
        }
        let root = if api_version.contains('/') { "/apis/" } else { "/api/" };
        let list =
            self.call(Method::GET, &format!("{root}{api_version}"), None).unwrap_or_default();
        for it in list["resources"].as_array().into_iter().flatten() {
            let (Some(plural), Some(its_kind)) = (it["name"].as_str(), it["kind"].as_str()) else {
                continue;
            };
            // Names with a slash are subresources.
            if !plural.contains('/') {
                let is_namespaced = it["namespaced"].as_bool().unwrap_or_default();
                let resource = Resource { plural: plural.to_owned(), is_namespaced };
                self.resources.insert((api_version.to_owned(), its_kind.to_owned()), resource);
            }
        }
        self.resources.get(&key).cloned().ok_or_else(|| RequestError {
            code: 404,
            message: format!(
                "the server does not serve kind {kind:?} in version {api_version:?}{}",
                did_you_mean(kind, self.kinds_of(api_version))
            ),
            causes: Vec::new(),
        })
    }
}

fn invalid_response(path: &str, error: &dyn std::error::Error) -> RequestError {
    RequestError { code: 500, message: format!("{path}: {error}"), causes: Vec::new() }
}

/// Decodes a `Status`.
fn decode_error(code: u16, status: &Value) -> RequestError {
    let causes = status["details"]["causes"].as_array().into_iter().flatten().filter_map(|cause| {
        Some((cause["field"].as_str()?.to_owned(), cause["message"].as_str()?.to_owned()))
    });
    let message = status["message"].as_str().unwrap_or("unknown error").to_owned();
    RequestError { code, message, causes: causes.collect() }
}
