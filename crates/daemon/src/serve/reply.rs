//! Answers before they are sent.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};
use http_body_util::Full;
use serde_json::json;

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Its status.
    pub status: StatusCode,
    /// Its headers, `content-type` included.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Its body.
    pub body: Bytes,
}

const TEXT: &str = "text/plain; charset=utf-8";

impl Reply {
    /// With a body of this type.
    pub fn new(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Reply {
        let content_type = HeaderValue::from_static(content_type);
        Reply { status, headers: vec![(CONTENT_TYPE, content_type)], body: body.into() }
    }

    /// Without a body.
    pub fn empty(status: StatusCode) -> Reply {
        Reply { status, headers: Vec::new(), body: Bytes::new() }
    }

    /// With this type instead of its own.
    #[must_use]
    pub fn with_type(mut self, content_type: &'static str) -> Reply {
        self.headers.retain(|(name, _)| name != CONTENT_TYPE);
        self.with(CONTENT_TYPE, HeaderValue::from_static(content_type))
    }

    /// Plain text that browsers must not take for anything else.
    pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Reply {
        let reply = Reply::new(status, TEXT, body);
        reply.with(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
    }

    /// With one more header.
    #[must_use]
    pub fn with(mut self, name: HeaderName, value: HeaderValue) -> Reply {
        self.headers.push((name, value));
        self
    }

    /// As upstream answers for a single health check: without the header against sniffing.
    #[must_use]
    pub(super) fn sniffed(mut self) -> Reply {
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

/// One line of text about a failure.
pub(super) fn plain(status: StatusCode, line: String) -> Reply {
    Reply::text(status, line + "\n")
}

/// Nothing is served here.
pub(super) fn not_found() -> Reply {
    plain(StatusCode::NOT_FOUND, "404 page not found".to_owned())
}

/// A `Status` object, as the API server words failures.
pub(super) fn status(status: StatusCode, reason: &str, message: &str) -> Reply {
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
    Reply::new(status, "application/json", body)
}
