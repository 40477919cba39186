//! The API server, asked without sockets.

use std::collections::BTreeMap;

use http::{Method, Request};
use http_body_util::BodyExt as _;
use loadmaster_apiserver::ApiServer;
use loadmaster_apiserver::auth::User;
use serde_json::Value;
use tokio::runtime::Handle;

/// A refused request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The HTTP code.
    pub code: u16,
    /// For people.
    pub message: String,
    /// Fields that are not as they should be, and what is wrong with them.
    pub causes: Vec<(String, String)>,
}

impl Refusal {
    /// An object of this name is there, from a run before this one that had the same data folder.
    pub fn is_there_already(&self) -> bool {
        self.code == 409
    }
}

/// Where objects of a kind are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resource {
    pub plural: String,
    pub is_namespaced: bool,
}

/// The API server as an administrator sees it.
pub(super) struct Api {
    server: ApiServer,
    runtime: Handle,
    /// By group-version and kind, as discovery told.
    resources: BTreeMap<(String, String), Resource>,
}

impl Api {
    pub fn new(server: ApiServer, runtime: Handle) -> Api {
        Api { server, runtime, resources: BTreeMap::new() }
    }

    /// Sends a request; what it is answered.
    pub fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<Value, Refusal> {
        let mut request = Request::builder().method(method).uri(path);
        request =
            request.header("user-agent", "loadmaster-up").header("accept", "application/json");
        let mut bytes = Vec::new();
        if let Some((content_type, value)) = body {
            request = request.header("content-type", content_type);
            bytes = value.to_string().into_bytes();
        }
        let request = request.body(bytes.into()).map_err(|error| broken(path, &error))?;
        let response = self.server.handle(&User::admin(), &request);
        let status = response.status();
        let Ok(body) = self.runtime.block_on(response.into_body().collect());
        let answer: Value =
            serde_json::from_slice(&body.to_bytes()).map_err(|error| broken(path, &error))?;
        if status.is_success() { Ok(answer) } else { Err(refusal(status.as_u16(), &answer)) }
    }

    /// Creates an object in its namespace, or in `default`.
    pub fn create(&mut self, object: &Value) -> Result<Value, Refusal> {
        let path = self.path_of(object)?;
        let path = format!("{path}?fieldValidation=Strict");
        self.call(Method::POST, &path, Some(("application/json", object)))
    }

    /// Changes some fields of an object.
    pub fn merge(&self, path: &str, patch: &Value) -> Result<Value, Refusal> {
        self.call(Method::PATCH, path, Some(("application/merge-patch+json", patch)))
    }

    /// The collection an object belongs into.
    fn path_of(&mut self, object: &Value) -> Result<String, Refusal> {
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

    /// What discovery says of a kind; asked again for kinds that are new.
    pub fn resource(&mut self, api_version: &str, kind: &str) -> Result<Resource, Refusal> {
        let key = (api_version.to_owned(), kind.to_owned());
        if let Some(known) = self.resources.get(&key) {
            return Ok(known.clone());
        }
        let root = if api_version.contains('/') { "/apis/" } else { "/api/" };
        let list =
            self.call(Method::GET, &format!("{root}{api_version}"), None).unwrap_or_default();
        for it in list["resources"].as_array().into_iter().flatten() {
            let (Some(plural), Some(its_kind)) = (it["name"].as_str(), it["kind"].as_str()) else {
                continue;
            };
            // The others are subresources.
            if !plural.contains('/') {
                let is_namespaced = it["namespaced"].as_bool().unwrap_or_default();
                let resource = Resource { plural: plural.to_owned(), is_namespaced };
                self.resources.insert((api_version.to_owned(), its_kind.to_owned()), resource);
            }
        }
        self.resources.get(&key).cloned().ok_or_else(|| Refusal {
            code: 404,
            message: format!("no kind {kind:?} in version {api_version:?} is served"),
            causes: Vec::new(),
        })
    }
}

fn broken(path: &str, error: &dyn std::error::Error) -> Refusal {
    Refusal { code: 500, message: format!("{path}: {error}"), causes: Vec::new() }
}

/// Reads a `Status`.
fn refusal(code: u16, status: &Value) -> Refusal {
    let causes = status["details"]["causes"].as_array().into_iter().flatten().filter_map(|cause| {
        Some((cause["field"].as_str()?.to_owned(), cause["message"].as_str()?.to_owned()))
    });
    let message = status["message"].as_str().unwrap_or("without a reason").to_owned();
    Refusal { code, message, causes: causes.collect() }
}
