//! Responses: objects in the representation that the client accepts.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, header};
use loadmaster_stdx::Set;
use serde_json::{Value, json};

use super::body::Body;
use crate::event_conversion;
use crate::protobuf;
use crate::request::{Encoding, ResponseFormat, ResponseView};
use crate::schema::{Kind, TypeId, schema};
use crate::status::{self, ApiError};
use crate::store::Object;
use crate::table;

/// A response whose body is known.
pub struct ApiResponse {
    code: u16,
    content_type: &'static str,
    body: Bytes,
    warnings: Vec<String>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

const JSON: &str = "application/json";

impl ApiResponse {
    /// 200 with JSON.
    pub fn json(value: &Value) -> ApiResponse {
        ApiResponse::from_bytes(200, JSON, value.to_string())
    }

    /// Plain text.
    pub fn text(code: u16, text: &'static str) -> ApiResponse {
        ApiResponse::from_bytes(code, "text/plain; charset=utf-8", text)
    }

    /// Any bytes.
    pub fn from_bytes(
        code: u16,
        content_type: &'static str,
        body: impl Into<Bytes>,
    ) -> ApiResponse {
        ApiResponse {
            code,
            content_type,
            body: body.into(),
            warnings: Vec::new(),
            headers: Vec::new(),
        }
    }

    /// An error, as a `Status`.
    pub fn error(error: &ApiError) -> ApiResponse {
        let mut answer =
            ApiResponse::from_bytes(error.code, JSON, status::status_json_text(&error.to_status()));
        // Seconds after which the client may retry.
        if let Some(seconds) = error.details["retryAfterSeconds"].as_u64() {
            answer.headers.push((header::RETRY_AFTER, seconds.into()));
        }
        answer
    }

    /// A `Status`.
    pub fn status(code: u16, status: &Value, form: ResponseFormat) -> ApiResponse {
        if form.encoding == Encoding::Protobuf
            && let Some(id) = schema().find("meta/v1.Status")
        {
            return ApiResponse::from_bytes(
                code,
                protobuf::MEDIA_TYPE,
                protobuf::encode_object(id, status),
            );
        }
        ApiResponse::from_bytes(code, JSON, status::status_json_text(status))
    }

    /// A value of a type, for kinds that are not stored.
    pub fn typed_value(code: u16, id: TypeId, value: &Value, form: ResponseFormat) -> ApiResponse {
        match form.encoding {
            Encoding::Json => ApiResponse::from_bytes(code, JSON, value.to_string()),
            Encoding::Protobuf => ApiResponse::from_bytes(
                code,
                protobuf::MEDIA_TYPE,
                protobuf::encode_object(id, value),
            ),
        }
    }

    /// A value of a stored kind, in the requested view.
    pub fn value_in_view(
        code: u16,
        kind: &Kind,
        value: &Value,
        form: ResponseFormat,
        now: jiff::Timestamp,
    ) -> ApiResponse {
        match form.view {
            ResponseView::Whole => ApiResponse::typed_value(code, kind.type_id, value, form),
            ResponseView::Table => {
                let rows = [table::row(kind, value, now, table::Include::Metadata)];
                let revision = value["metadata"]["resourceVersion"].as_str().unwrap_or_default();
                let list = json!({"resourceVersion": revision});
                ApiResponse::from_bytes(
                    code,
                    JSON,
                    table::table(kind, &list, &rows, true).to_string(),
                )
            }
            ResponseView::Metadata => metadata_answer(code, &partial(value), form),
        }
    }

    /// A stored object, in the requested view.
    ///
    /// # Errors
    ///
    /// When the stored bytes are damaged.
    pub fn stored_object(
        code: u16,
        kind: &Kind,
        object: &Object,
        form: ResponseFormat,
        now: jiff::Timestamp,
    ) -> Result<ApiResponse, ApiError> {
        if form == (ResponseFormat { encoding: Encoding::Json, view: ResponseView::Whole })
            && !event_conversion::has_other_storage_version(kind)
        {
            return Ok(ApiResponse::from_bytes(code, JSON, object.json()));
        }
        let value = event_conversion::to_request_version(kind, crate::object::parsed(object)?);
        Ok(ApiResponse::value_in_view(code, kind, &value, form, now))
    }

    /// Adds `Warning` headers.
    #[must_use]
    pub fn with_warnings(mut self, warnings: Vec<String>) -> ApiResponse {
        self.warnings = shortened(warnings);
        self
    }

    /// Adds a header, unless the text cannot be one.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: &str) -> ApiResponse {
        self.headers.extend(HeaderValue::from_str(value).ok().map(|value| (name, value)));
        self
    }

    /// The response.
    pub fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from_bytes(self.body));
        *response.status_mut() = http::StatusCode::from_u16(self.code)
            .unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        for (name, value) in self.headers {
            headers.insert(name, value);
        }
        for warning in self.warnings {
            warn(&mut response, &warning);
        }
        response
    }
}

/// The most characters of all warnings together, and of one warning if the total is larger, as upstream truncates
/// them.
const WARNINGS_MAX: usize = 4 * 1024;
const WARNING_MAX: usize = 256;

/// Removes duplicates, and truncates to what fits into the headers of a response.
fn shortened(warnings: Vec<String>) -> Vec<String> {
    let mut seen = Set::default();
    let mut all: Vec<String> = warnings.into_iter().filter(|it| seen.insert(it.clone())).collect();
    let length = |text: &String| text.chars().count();
    if all.iter().map(length).sum::<usize>() > WARNINGS_MAX {
        let mut n_written = 0;
        all.retain_mut(|text| {
            let is_included = n_written < WARNINGS_MAX;
            if let Some((end, _)) = text.char_indices().nth(WARNING_MAX) {
                text.truncate(end);
            }
            n_written += length(text);
            is_included
        });
    }
    all
}

/// Adds a `Warning` header.
pub(super) fn warn(response: &mut Response<Body>, text: &str) {
    let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
    if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()) {
        response.headers_mut().append(header::WARNING, value);
    }
}

/// `PartialObjectMetadata` of an object.
pub(crate) fn partial(value: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": value["metadata"],
    })
}

pub(super) fn metadata_answer(code: u16, value: &Value, form: ResponseFormat) -> ApiResponse {
    let name = match value["kind"].as_str() {
        Some("PartialObjectMetadataList") => "meta/v1.PartialObjectMetadataList",
        _ => "meta/v1.PartialObjectMetadata",
    };
    match (form.encoding, schema().find(name)) {
        (Encoding::Protobuf, Some(id)) => ApiResponse::typed_value(code, id, value, form),
        _ => ApiResponse::from_bytes(code, JSON, value.to_string()),
    }
}
