//! API errors as `Status` objects, with kube-apiserver's codes, reasons, details and messages.

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::schema::Kind;

/// An API error, which becomes a `Status` object.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The HTTP code.
    pub code: u16,
    /// The machine-readable reason, such as `NotFound`.
    pub reason: &'static str,
    /// The message for users.
    pub message: String,
    /// `status.details`, or null.
    pub details: Value,
}

/// A validation error of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Such as `FieldValueRequired`.
    pub reason: &'static str,
    /// Such as `Required value`.
    pub message: String,
    /// Such as `spec.containers[0].name`.
    pub field: String,
}

impl Cause {
    /// A field that must be set. `detail` may be empty.
    pub fn required(field: impl Into<String>, detail: &str) -> Cause {
        Cause::new("FieldValueRequired", "Required value".to_owned(), field, detail)
    }

    /// A field with an invalid value.
    pub fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Cause {
        let message = format!("Invalid value: {}", go_value_text(value));
        Cause::new("FieldValueInvalid", message, field, detail)
    }

    /// A value of a wrong type.
    pub fn type_invalid(field: impl Into<String>, value: &Value, detail: &str) -> Cause {
        let message = format!("Invalid value: {}", go_value_text(value));
        Cause::new("FieldValueTypeInvalid", message, field, detail)
    }

    /// An invalid value that is not shown.
    pub fn invalid_without_value(field: impl Into<String>, detail: &str) -> Cause {
        Cause::new("FieldValueInvalid", "Invalid value".to_owned(), field, detail)
    }

    /// More entries than allowed.
    pub fn too_many(field: impl Into<String>, n: i64, max: i64) -> Cause {
        let items = if max == 1 { "item" } else { "items" };
        let detail = format!("must have at most {max} {items}");
        Cause::new("FieldValueTooMany", format!("Too many: {n}"), field, &detail)
    }

    /// A field that must not be set or changed.
    pub fn forbidden(field: impl Into<String>, detail: &str) -> Cause {
        Cause::new("FieldValueForbidden", "Forbidden".to_owned(), field, detail)
    }

    /// A value that occurs twice where it may not.
    pub fn duplicate(field: impl Into<String>, value: &Value) -> Cause {
        let message = format!("Duplicate value: {}", go_value_text(value));
        Cause::new("FieldValueDuplicate", message, field, "")
    }

    /// An unsupported value; the supported ones are listed in the given order.
    pub fn not_supported(field: impl Into<String>, value: &Value, supported: &[&str]) -> Cause {
        let names: Vec<String> = supported.iter().map(|name| format!("{name:?}")).collect();
        let message = format!("Unsupported value: {}", go_value_text(value));
        let detail = format!("supported values: {}", names.join(", "));
        Cause::new("FieldValueNotSupported", message, field, &detail)
    }

    /// A value that is too long.
    pub fn too_long(field: impl Into<String>, bytes_max: usize) -> Cause {
        let bytes = if bytes_max == 1 { "byte" } else { "bytes" };
        let detail = format!("may not be more than {bytes_max} {bytes}");
        Cause::new("FieldValueTooLong", "Too long".to_owned(), field, &detail)
    }

    /// A reference to something that does not exist.
    pub fn not_found(field: impl Into<String>, value: &Value) -> Cause {
        let message = format!("Not found: {}", go_value_text(value));
        Cause::new("FieldValueNotFound", message, field, "")
    }

    fn new(reason: &'static str, what: String, field: impl Into<String>, detail: &str) -> Cause {
        let message = if detail.is_empty() { what } else { format!("{what}: {detail}") };
        Cause { reason, message, field: field.into() }
    }

    fn text(&self) -> String {
        format!("{}: {}", self.field, self.message)
    }
}

/// As Go prints a value in a validation error: lists and maps as JSON that is safe within HTML.
pub fn go_value_text(value: &Value) -> String {
    let text = value.to_string();
    match value {
        Value::Array(_) | Value::Object(_) => {
            text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
        }
        _ => text,
    }
}

/// Several errors as upstream joins them.
fn aggregate(causes: &[Cause]) -> String {
    let mut texts: Vec<String> = Vec::new();
    for cause in causes {
        if !texts.contains(&cause.text()) {
            texts.push(cause.text());
        }
    }
    if texts.len() == 1 { texts.remove(0) } else { format!("[{}]", texts.join(", ")) }
}

fn details(kind: &Kind, name: &str) -> Value {
    let mut details = json!({"kind": kind.resource});
    if !name.is_empty() {
        details["name"] = name.into();
    }
    if !kind.group.is_empty() {
        details["group"] = kind.group.into();
    }
    details
}

impl ApiError {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { code, reason, message: message.into(), details: Value::Null }
    }

    fn with(mut self, details: Value) -> ApiError {
        self.details = details;
        self
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> ApiError {
        ApiError::new(400, "BadRequest", message)
    }

    /// 400, the object's namespace differs from the request's.
    pub fn other_namespace() -> ApiError {
        ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )
    }

    /// 400, as upstream's for the log of a container that is not running.
    pub fn containers_do_not_run(kind: &Kind, name: &str, subresource: &str) -> ApiError {
        ApiError::bad_request(format!(
            "{subresource} of {} {name:?} is not available: the containers of simulated pods do not run",
            kind.singular
        ))
    }

    /// 401.
    pub fn unauthorized() -> ApiError {
        ApiError::new(401, "Unauthorized", "Unauthorized")
    }

    /// 403 for an object.
    pub fn forbidden(kind: &Kind, name: &str, why: &str) -> ApiError {
        let message = match name {
            "" => format!("{} is forbidden: {why}", kind.group_resource()),
            _ => format!("{} {name:?} is forbidden: {why}", kind.group_resource()),
        };
        ApiError::new(403, "Forbidden", message).with(details(kind, name))
    }

    /// 403 for a resource that may not be served; all but `why` may be empty.
    pub fn forbidden_resource(group: &str, resource: &str, name: &str, why: &str) -> ApiError {
        let dot = if group.is_empty() { "" } else { "." };
        let message = match (resource, name) {
            ("", _) => format!("forbidden: {why}"),
            (_, "") => format!("{resource}{dot}{group} is forbidden: {why}"),
            _ => format!("{resource}{dot}{group} {name:?} is forbidden: {why}"),
        };
        let mut details = json!({});
        for (field, text) in [("name", name), ("group", group), ("kind", resource)] {
            if !text.is_empty() {
                details[field] = text.into();
            }
        }
        ApiError::new(403, "Forbidden", message).with(details)
    }

    /// 404 for an object.
    pub fn not_found(kind: &Kind, name: &str) -> ApiError {
        let message = format!("{} {name:?} not found", kind.group_resource());
        ApiError::new(404, "NotFound", message).with(details(kind, name))
    }

    /// 404 for a path within a known group.
    pub fn no_such_resource() -> ApiError {
        let message = "the server could not find the requested resource";
        ApiError::new(404, "NotFound", message).with(json!({}))
    }

    /// 405.
    pub fn method_not_allowed() -> ApiError {
        let message = "the server does not allow this method on the requested resource";
        ApiError::new(405, "MethodNotAllowed", message).with(json!({}))
    }

    /// 406.
    pub fn not_acceptable(accepted: &str) -> ApiError {
        let message = format!("only the following media types are accepted: {accepted}");
        ApiError::new(406, "NotAcceptable", message)
    }

    /// 409, the name is taken.
    pub fn already_exists(kind: &Kind, name: &str) -> ApiError {
        let message = format!("{} {name:?} already exists", kind.group_resource());
        ApiError::new(409, "AlreadyExists", message).with(details(kind, name))
    }

    /// 409, because of `why`; `subresource` may be empty.
    pub fn conflict(kind: &Kind, subresource: &str, name: &str, why: &str) -> ApiError {
        let slash = if subresource.is_empty() { "" } else { "/" };
        let resource = match kind.group {
            "" => format!("{}{slash}{subresource}", kind.resource),
            group => format!("{}{slash}{subresource}.{group}", kind.resource),
        };
        let message = format!("Operation cannot be fulfilled on {resource} {name:?}: {why}");
        let mut details = details(kind, name);
        details["kind"] = format!("{}{slash}{subresource}", kind.resource).into();
        ApiError::new(409, "Conflict", message).with(details)
    }

    /// 409, the object has changed since it was read.
    pub fn modified(kind: &Kind, name: &str) -> ApiError {
        ApiError::conflict(
            kind,
            "",
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 409 for a kind that is not stored.
    pub fn conflict_named(group: &str, kind: &str, name: &str, why: &str) -> ApiError {
        let dot = if group.is_empty() { "" } else { "." };
        let message =
            format!("Operation cannot be fulfilled on {kind}{dot}{group} {name:?}: {why}");
        let details = json!({"name": name, "group": group, "kind": kind});
        ApiError::new(409, "Conflict", message).with(details)
    }

    /// 409, other managers own the applied fields.
    pub fn apply_conflict(
        message: &str,
        conflicts: impl Iterator<Item = (String, String)>,
    ) -> ApiError {
        let causes: Value = conflicts
            .map(|(field, owner)| {
                json!({"reason": "FieldManagerConflict", "field": field,
                    "message": format!("conflict with {owner}")})
            })
            .collect();
        ApiError::new(409, "Conflict", message).with(json!({"causes": causes}))
    }

    /// 409, a precondition of a deletion failed; named by kind, not resource.
    pub fn precondition(kind: &Kind, name: &str, why: &str) -> ApiError {
        let shown = match kind.group {
            "" => kind.kind.to_string(),
            group => format!("{}.{group}", kind.kind),
        };
        let message = format!("Operation cannot be fulfilled on {shown} {name:?}: {why}");
        let mut details = details(kind, name);
        details["kind"] = kind.kind.to_string().into();
        ApiError::new(409, "Conflict", message).with(details)
    }

    /// 410 for a list or watch at a compacted revision.
    pub fn expired(message: impl Into<String>) -> ApiError {
        ApiError::new(410, "Expired", message)
    }

    /// 413.
    pub fn too_large(bytes_max: usize) -> ApiError {
        let message = format!("Request entity too large: limit is {bytes_max}");
        ApiError::new(413, "RequestEntityTooLarge", message)
    }

    /// 415.
    pub fn unsupported_media_type(accepted: &str) -> ApiError {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {accepted}"
        );
        ApiError::new(415, "UnsupportedMediaType", message)
    }

    /// 415 for an unknown patch type.
    pub fn unknown_patch_type() -> ApiError {
        let message = "415: Unsupported Media Type";
        ApiError::new(415, "UnsupportedMediaType", message).with(json!({}))
    }

    /// 422; `causes` is not empty.
    pub fn invalid(kind: &Kind, name: &str, causes: &[Cause]) -> ApiError {
        ApiError::invalid_named(kind.group, kind.kind, name, causes)
    }

    /// 422 because an update does not say which version it is about.
    pub fn missing_resource_version(kind: &Kind, name: &str) -> ApiError {
        let detail = "must be specified for an update";
        let cause = Cause::invalid("metadata.resourceVersion", &0.into(), detail);
        ApiError::invalid_named(kind.group, kind.resource, name, &[cause])
    }

    /// 422 for a kind that may not be stored; `causes` is not empty.
    pub fn invalid_named(group: &str, kind: &str, name: &str, causes: &[Cause]) -> ApiError {
        let dot = if group.is_empty() { "" } else { "." };
        let message = format!("{kind}{dot}{group} {name:?} is invalid: {}", aggregate(causes));
        let mut details = json!({});
        for (field, text) in [("kind", kind), ("name", name), ("group", group)] {
            if !text.is_empty() {
                details[field] = text.into();
            }
        }
        details["causes"] = causes
            .iter()
            .map(|it| json!({"reason": it.reason, "message": it.message, "field": it.field}))
            .collect();
        ApiError::new(422, "Invalid", message).with(details)
    }

    /// 422 for a patch that cannot be applied.
    pub fn unprocessable(message: impl Into<String>) -> ApiError {
        ApiError::new(422, "Invalid", message)
    }

    /// 429 with a cause for programs.
    pub fn too_many_requests(message: &str, cause: &str, detail: String) -> ApiError {
        let details = json!({"causes": [{"reason": cause, "message": detail}]});
        ApiError::new(429, "TooManyRequests", message).with(details)
    }

    /// With the number of seconds after which to retry.
    pub fn after(mut self, seconds: u64) -> ApiError {
        self.details["retryAfterSeconds"] = seconds.into();
        self
    }

    /// An injected error.
    pub fn fault(code: u16, reason: &'static str, retry_after_seconds: Option<u64>) -> ApiError {
        let error = ApiError::new(code, reason, "injected fault");
        match retry_after_seconds {
            Some(seconds) => error.with(json!({"retryAfterSeconds": seconds})),
            None => error,
        }
    }

    /// 500.
    pub fn internal(message: &str) -> ApiError {
        let error =
            ApiError::new(500, "InternalError", format!("Internal error occurred: {message}"));
        error.with(json!({"causes": [{"message": message}]}))
    }

    /// 500, for a request that panicked in the audit log.
    pub fn panicked(what: &str) -> ApiError {
        ApiError::new(500, "InternalError", format!("APIServer panic'd: {what}"))
    }

    /// 422 for parameters of a list or watch.
    pub fn invalid_options(cause: &Cause) -> ApiError {
        ApiError::invalid_options_of("ListOptions", cause)
    }

    /// 422 for parameters of a request.
    pub fn invalid_options_of(options: &str, cause: &Cause) -> ApiError {
        let message = format!("{options}.meta.k8s.io \"\" is invalid: {}", cause.text());
        ApiError::new(422, "Invalid", message).with(json!({
            "group": "meta.k8s.io",
            "kind": options,
            "causes": [{"reason": cause.reason, "message": cause.message, "field": cause.field}],
        }))
    }

    /// 422 for a patch whose result is not an object of the kind.
    pub fn invalid_patch(why: &str) -> ApiError {
        let cause = Cause::invalid("patch", &Value::Null, why);
        let message = format!(" \"\" is invalid: {}", cause.text());
        ApiError::new(422, "Invalid", message).with(json!({
            "causes": [{"reason": cause.reason, "message": cause.message, "field": cause.field}],
        }))
    }

    /// 422 for parameters of a write, such as `PatchOptions`; `causes` is not empty.
    pub fn invalid_write_options(kind: &'static str, causes: &[Cause]) -> ApiError {
        let message = format!("{kind}.meta.k8s.io \"\" is invalid: {}", aggregate(causes));
        let causes: Value = causes
            .iter()
            .map(|it| json!({"reason": it.reason, "message": it.message, "field": it.field}))
            .collect();
        let details = json!({"group": "meta.k8s.io", "kind": kind, "causes": causes});
        ApiError::new(422, "Invalid", message).with(details)
    }

    /// 500 for an error that upstream does not classify.
    pub fn unclassified(message: &str) -> ApiError {
        ApiError::new(500, "", message)
    }

    /// 504, for a revision in the future.
    pub fn too_large_revision(asked: u64, newest: u64) -> ApiError {
        let message = format!("Too large resource version: {asked}, current: {newest}");
        let cause =
            json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        ApiError::new(504, "Timeout", message)
            .with(json!({"causes": [cause], "retryAfterSeconds": 1}))
    }

    /// The `Status` object.
    pub fn to_status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }
}

/// The `Status` of something created that is not shown.
pub fn created_status() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
}

/// The `Status` of something deleted.
pub fn deleted_status(details: Value) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": details})
}

/// A `Status` as text, with its members in upstream's order for readability.
pub fn status_json_text(status: &Value) -> String {
    const ORDER: &[&str] =
        &["kind", "apiVersion", "metadata", "status", "message", "reason", "details", "code"];
    let text = serde_json::to_string(&Ordered(status, ORDER));
    // A value with text for keys can be written.
    text.unwrap_or_default() + "\n"
}

/// An object, or a list of them, with these members in this order.
struct Ordered<'a>(&'a Value, &'static [&'static str]);

impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Ordered(value, order) = *self;
        let below = |name: &str| match name {
            "details" => &["name", "group", "kind", "uid", "causes", "retryAfterSeconds"][..],
            "causes" => &["reason", "message", "field"],
            _ => &[],
        };
        match value {
            Value::Object(members) if !order.is_empty() => serializer.collect_map(
                order
                    .iter()
                    .filter_map(|name| Some((name, Ordered(members.get(*name)?, below(name))))),
            ),
            Value::Array(all) => serializer.collect_seq(all.iter().map(|it| Ordered(it, order))),
            _ => value.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_has_upstreams_field_order() {
        let status = json!({"apiVersion": "v1", "code": 409, "kind": "Status", "metadata": {},
            "details": {"causes": [{"field": "f", "message": "m", "reason": "r"}], "kind": "pods",
                "name": "p"},
            "message": "no", "reason": "Conflict", "status": "Failure"});
        assert_eq!(
            status_json_text(&status),
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"no","reason":"Conflict","details":{"name":"p","kind":"pods","causes":[{"reason":"r","message":"m","field":"f"}]},"code":409}
"#
        );
    }
}
