//! Parsing of requests: path, query parameters, and the representation of the response.

use http::{HeaderMap, Method, header};
use loadmaster_stdx::Map;

use crate::protobuf;
use crate::status::{ApiError, Cause};

/// A path below `/api` or `/apis` that names a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestPath {
    pub group: String,
    pub version: String,
    pub resource: String,
    /// Empty when none is named.
    pub namespace: String,
    /// Empty for a collection.
    pub name: String,
    /// Empty for the object itself. What follows `proxy` is not part of it: a path on the server behind it.
    pub subresource: String,
}

impl RequestPath {
    /// Parses a resource path; none for discovery and other paths.
    pub fn parse(path: &str) -> Option<RequestPath> {
        let mut parts = path.split('/').skip(1).map(decoded);
        let mut target = RequestPath::default();
        match &*parts.next()? {
            "api" => {}
            "apis" => target.group = parts.next()?,
            _ => return None,
        }
        target.version = parts.next()?;
        let rest: Vec<String> = parts.collect();
        let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
        // A namespace's own subresources look like resources within it.
        let rest = match *rest.as_slice() {
            ["namespaces", _, "status" | "finalize"] => &rest[..],
            ["namespaces", namespace, _, ..] => {
                target.namespace = namespace.to_owned();
                &rest[2..]
            }
            _ => &rest[..],
        };
        let (resource, rest) = rest.split_first()?;
        let has_own_path = rest.get(1) == Some(&"proxy");
        if resource.is_empty() || rest.len() > 2 && !has_own_path {
            return None;
        }
        target.resource = (*resource).to_owned();
        target.name = rest.first().copied().unwrap_or_default().to_owned();
        target.subresource = rest.get(1).copied().unwrap_or_default().to_owned();
        Some(target)
    }

    /// The name of the object. In the path of a proxy it may have a port behind it, and a scheme in front.
    pub fn object_name(&self) -> &str {
        match *self.name.split(':').collect::<Vec<_>>().as_slice() {
            [name, _] | [_, name, _] if self.subresource == "proxy" => name,
            _ => &self.name,
        }
    }
}

fn decoded(part: &str) -> String {
    // A plus stands for itself in a path.
    let escaped = format!("x={}", part.replace('+', "%2B"));
    let pair = form_urlencoded::parse(escaped.as_bytes()).next();
    pair.map_or_else(String::new, |(_, value)| value.into_owned())
}

/// The query parameters; of repeated ones all values.
#[derive(Clone, Debug, Default)]
pub struct Query(Map<String, Vec<String>>);

impl Query {
    /// Reads a query string.
    pub fn parse(text: &str) -> Query {
        let mut all: Map<String, Vec<String>> = Map::default();
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            all.entry(name.into_owned()).or_default().push(value.into_owned());
        }
        Query(all)
    }

    /// The first value, if it is not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        let value = self.0.get(name)?.first()?;
        (!value.is_empty()).then_some(value)
    }

    /// All values.
    pub fn all(&self, name: &str) -> &[String] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// A boolean parameter: present and not `false` or `0`, as upstream reads it.
    pub fn is_true(&self, name: &str) -> bool {
        match self.0.get(name).and_then(|values| values.first()) {
            None => false,
            Some(value) => !matches!(value.as_str(), "false" | "0"),
        }
    }

    /// A number.
    ///
    /// # Errors
    ///
    /// When it is none.
    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, ApiError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| {
            ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))
        })
    }

    /// Rejects invalid values of `dryRun` and `fieldValidation`.
    ///
    /// # Errors
    ///
    /// 422 in the name of the verb's options.
    pub fn check_options(&self, verb: &str) -> Result<(), ApiError> {
        let options = match verb {
            "create" => "CreateOptions",
            "update" => "UpdateOptions",
            "patch" => "PatchOptions",
            "delete" | "deletecollection" => "DeleteOptions",
            _ => return Ok(()),
        };
        let refuse = |cause| Err(ApiError::invalid_options_of(options, &cause));
        let dry_runs = self.all("dryRun");
        if dry_runs.iter().any(|it| !matches!(it.as_str(), "" | "All")) {
            return refuse(Cause::not_supported("dryRun", &dry_runs.into(), &["All"]));
        }
        match self.get("fieldValidation") {
            None | Some("Ignore" | "Warn" | "Strict") => Ok(()),
            Some(other) => refuse(Cause::not_supported(
                "fieldValidation",
                &other.into(),
                &["", "Ignore", "Strict", "Warn"],
            )),
        }
    }

    /// Whether the request is a dry run.
    ///
    /// # Errors
    ///
    /// When `dryRun` is anything but `All`.
    pub fn dry_run(&self) -> Result<bool, ApiError> {
        match self.all("dryRun").iter().find(|value| *value != "All") {
            Some(other) if !other.is_empty() => Err(ApiError::bad_request(format!(
                "dryRun: Unsupported value: [{other:?}]: supported values: \"All\""
            ))),
            _ => Ok(self.get("dryRun").is_some()),
        }
    }
}

/// How unknown and duplicate fields are treated (`fieldValidation`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

impl FieldValidation {
    /// # Errors
    ///
    /// When the parameter is none of the three.
    pub fn of(query: &Query) -> Result<FieldValidation, ApiError> {
        match query.get("fieldValidation") {
            Some("Ignore") => Ok(FieldValidation::Ignore),
            None | Some("Warn") => Ok(FieldValidation::Warn),
            Some("Strict") => Ok(FieldValidation::Strict),
            Some(other) => Err(ApiError::bad_request(format!(
                "fieldValidation: Unsupported value: {other:?}: supported values: \"\", \"Ignore\", \"Strict\", \"Warn\""
            ))),
        }
    }
}

/// The encoding of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    Json,
    Protobuf,
}

/// What a response shows of objects: whole objects, a table, or metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseView {
    Whole,
    /// `as=Table`
    Table,
    /// `as=PartialObjectMetadata` or its list
    Metadata,
}

/// Encoding and view of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseFormat {
    pub encoding: Encoding,
    pub view: ResponseView,
}

/// What upstream lists when nothing fits.
const ACCEPTED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

impl ResponseFormat {
    /// The first supported representation in `Accept`; custom objects have no protobuf form.
    ///
    /// # Errors
    ///
    /// When none can.
    pub fn negotiate(headers: &HeaderMap, is_typed: bool) -> Result<ResponseFormat, ApiError> {
        let accept = headers.get(header::ACCEPT).and_then(|it| it.to_str().ok()).unwrap_or("");
        if accept.is_empty() {
            return Ok(ResponseFormat { encoding: Encoding::Json, view: ResponseView::Whole });
        }
        accept
            .split(',')
            .filter_map(ResponseFormat::of_clause)
            .find(|it| {
                is_typed || it.encoding == Encoding::Json || it.view == ResponseView::Metadata
            })
            .ok_or_else(|| ApiError::not_acceptable(ACCEPTED))
    }

    fn of_clause(clause: &str) -> Option<ResponseFormat> {
        let mut parts = clause.split(';').map(str::trim);
        let encoding = match parts.next()? {
            "application/json" | "application/*" | "*/*" => Encoding::Json,
            protobuf::MEDIA_TYPE => Encoding::Protobuf,
            _ => return None,
        };
        let mut view = ResponseView::Whole;
        for part in parts {
            match part.split_once('=')? {
                ("as", "Table") => view = ResponseView::Table,
                ("as", "PartialObjectMetadata" | "PartialObjectMetadataList") => {
                    view = ResponseView::Metadata;
                }
                ("g", group) if group != "meta.k8s.io" => return None,
                ("v", version) if version != "v1" => return None,
                ("as", _) => return None,
                _ => {}
            }
        }
        // Tables have no protobuf form of their own.
        (view != ResponseView::Table || encoding == Encoding::Json)
            .then_some(ResponseFormat { encoding, view })
    }
}

/// The media type of a body, without parameters.
pub fn content_type(headers: &HeaderMap) -> &str {
    let value = headers.get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok()).unwrap_or("");
    value.split(';').next().unwrap_or("").trim()
}

/// The verb of a request on resources, as authorization and audit name it.
pub fn request_verb(method: &Method, target: &RequestPath, query: &Query) -> Option<&'static str> {
    Some(match *method {
        Method::GET | Method::HEAD if query.is_true("watch") && target.subresource.is_empty() => {
            "watch"
        }
        Method::GET | Method::HEAD if target.name.is_empty() => "list",
        Method::GET | Method::HEAD => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if target.name.is_empty() => "deletecollection",
        Method::DELETE => "delete",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, want: &str) {
        let got = RequestPath::parse(path).map_or_else(String::new, |it| {
            [it.group, it.version, it.resource, it.namespace, it.name, it.subresource].join("|")
        });
        assert_eq!(got, want, "{path}");
    }

    #[test]
    fn paths() {
        check("/api/v1/pods", "|v1|pods|||");
        check("/api/v1/namespaces/a/pods/b", "|v1|pods|a|b|");
        check("/api/v1/namespaces/a/pods/b/binding", "|v1|pods|a|b|binding");
        check("/api/v1/namespaces", "|v1|namespaces|||");
        check("/api/v1/namespaces/a", "|v1|namespaces||a|");
        check("/api/v1/namespaces/a/status", "|v1|namespaces||a|status");
        check("/apis/apps/v1/namespaces/a/deployments/b%3Ac", "apps|v1|deployments|a|b:c|");
        check("/api/v1/nodes/n", "|v1|nodes||n|");
        check("/api/v1", "");
        check("/apis/apps/v1", "");
        check("/version", "");
        check("/api/v1/nodes/n/status/more", "");
        check("/api/v1/nodes/n/proxy", "|v1|nodes||n|proxy");
        check("/api/v1/nodes/n/proxy/metrics/cadvisor", "|v1|nodes||n|proxy");
        check("/api/v1/namespaces/a/pods/b:80/proxy/", "|v1|pods|a|b:80|proxy");
        check("/api/v1/namespaces/a/pods/b/status/proxy", "");
    }

    #[test]
    fn names_in_paths_of_proxies() {
        for (path, want) in [
            ("/api/v1/namespaces/a/services/b/proxy/", "b"),
            ("/api/v1/namespaces/a/services/b:80/proxy/", "b"),
            ("/api/v1/namespaces/a/services/https:b:web/proxy/", "b"),
            ("/api/v1/namespaces/a/services/https:b:/proxy/", "b"),
            ("/api/v1/namespaces/a/services/1:2:3:4/proxy/", "1:2:3:4"),
            ("/api/v1/namespaces/a/services/b:80", "b:80"),
        ] {
            let target = RequestPath::parse(path).expect(path);
            assert_eq!(target.object_name(), want, "{path}");
        }
    }

    #[test]
    fn forms() {
        let form = |accept: &'static str| {
            let headers = [(header::ACCEPT, accept.parse().expect("a header"))];
            ResponseFormat::negotiate(&headers.into_iter().collect(), true)
                .ok()
                .map(|it| (it.encoding, it.view))
        };
        assert_eq!(
            form("application/json;as=Table;v=v1;g=meta.k8s.io,application/json"),
            Some((Encoding::Json, ResponseView::Table))
        );
        assert_eq!(
            form("application/vnd.kubernetes.protobuf,application/json"),
            Some((Encoding::Protobuf, ResponseView::Whole))
        );
        assert_eq!(form("application/cbor, */*"), Some((Encoding::Json, ResponseView::Whole)));
        assert_eq!(form("text/html"), None);
    }
}
