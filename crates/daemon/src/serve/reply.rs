//! HTTP responses before they are sent.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};
use http_body_util::Full;
use serde_json::json;

/// An HTTP response.
#[derive(Clone, Debug)]
pub struct HttpReply {
    /// Its status.
    pub status: StatusCode,
    /// Its headers, `content-type` included.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Its body.
    pub body: Bytes,
}

const TEXT: &str = "text/plain; charset=utf-8";

impl HttpReply {
    /// With a body of this content type.
    pub fn new(
        status: StatusCode,
        content_type: &'static str,
        body: impl Into<Bytes>,
    ) -> HttpReply {
        let content_type = HeaderValue::from_static(content_type);
        HttpReply { status, headers: vec![(CONTENT_TYPE, content_type)], body: body.into() }
    }

    /// Without a body.
    pub fn empty(status: StatusCode) -> HttpReply {
        HttpReply { status, headers: Vec::new(), body: Bytes::new() }
    }

    /// Replaces the content type.
    #[must_use]
    pub fn with_content_type(mut self, content_type: &'static str) -> HttpReply {
        self.headers.retain(|(name, _)| name != CONTENT_TYPE);
        self.with_header(CONTENT_TYPE, HeaderValue::from_static(content_type))
    }

    /// Plain text with `X-Content-Type-Options: nosniff`.
    pub fn text(status: StatusCode, body: impl Into<Bytes>) -> HttpReply {
        let reply = HttpReply::new(status, TEXT, body);
        reply.with_header(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> HttpReply {
        self.headers.push((name, value));
        self
    }

    /// Without `X-Content-Type-Options`, as upstream for a single health check.
    #[must_use]
    pub(super) fn without_nosniff(mut self) -> HttpReply {
        self.headers.retain(|(name, _)| name != X_CONTENT_TYPE_OPTIONS);
        self
    }

    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(self.body));
        *response.status_mut() = self.status;
        response.headers_mut().extend(self.headers);
        response
    }

    #[cfg(test)]
    pub(super) fn body_text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A line of text that describes an error.
pub(super) fn text_line(status: StatusCode, line: String) -> HttpReply {
    HttpReply::text(status, line + "\n")
}

/// Status 404.
pub(super) fn not_found() -> HttpReply {
    text_line(StatusCode::NOT_FOUND, "404 page not found".to_owned())
}

/// A `Status` object, as in error responses of the API server.
pub(super) fn status(status: StatusCode, reason: &str, message: &str) -> HttpReply {
    #[derive(serde::Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Status<'a> {
        kind: &'static str,
        api_version: &'static str,
        metadata: serde_json::Value,
        status: &'static str,
        message: &'a str,
        reason: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        details: Option<serde_json::Value>,
        code: u16,
    }
    let body = Status {
        kind: "Status",
        api_version: "v1",
        metadata: json!({}),
        status: "Failure",
        message,
        reason,
        details: (status == StatusCode::FORBIDDEN).then(|| json!({})),
        code: status.as_u16(),
    };
    let body = serde_json::to_vec_pretty(&body).unwrap_or_default();
    HttpReply::new(status, "application/json", body)
}
