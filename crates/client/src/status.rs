//! Error responses of the API server as Status objects, and helpers for error texts.

use loadmaster_api::proto::{self, Object, Status};
use serde::Deserialize;

/// Appends `text` to `out` with all but RFC 3986's unreserved characters percent-encoded.
pub(crate) fn percent_encode(text: &str, out: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte))
            }
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
}

/// An error with its causes, in one line. kube's error texts repeat their source: a cause that is already in the text is left out.
pub(crate) fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// The message of an error response: that of its Status object, or the text of a proxy, shortened.
pub(crate) fn status_message(text: &str) -> String {
    #[derive(Deserialize)]
    struct Message {
        message: String,
    }
    const LEN_MAX: usize = 200;
    match serde_json::from_str::<Message>(text) {
        Ok(status) => status.message,
        Err(_) => {
            text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(LEN_MAX).collect()
        }
    }
}

/// The Status of an error response. A proxy may respond with plain text: then only code and message are set.
pub fn decode_status(code: u16, body: &[u8]) -> Status {
    let mut status = match proto::decode(body) {
        Ok(Object::Status(status)) => status,
        _ => decode_json_status(body).unwrap_or_else(|| Status {
            message: status_message(&String::from_utf8_lossy(body)),
            ..Status::default()
        }),
    };
    status.code = i32::from(code);
    status
}

/// Decodes a Status in JSON; None if the body is something else.
pub(crate) fn decode_json_status(body: &[u8]) -> Option<Status> {
    #[derive(Deserialize)]
    struct Wire {
        kind: String,
        #[serde(default)]
        code: i32,
        #[serde(default)]
        reason: String,
        #[serde(default)]
        message: String,
        details: Option<Details>,
    }
    #[derive(Deserialize)]
    struct Details {
        #[serde(default, rename = "retryAfterSeconds")]
        retry_after_seconds: i32,
    }
    let wire: Wire =
        loadmaster_stdx::json::from_slice(body).ok().filter(|wire: &Wire| wire.kind == "Status")?;
    let retry_after_seconds = wire.details.map_or(0, |details| details.retry_after_seconds);
    let Wire { code, reason, message, .. } = wire;
    Some(Status { code, reason, message, retry_after_seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_messages() {
        assert_eq!(
            status_message(r#"{"kind":"Status","message":"pods is forbidden"}"#),
            "pods is forbidden"
        );
        assert_eq!(status_message("<html>\n  Bad   Gateway</html>"), "<html> Bad Gateway</html>");
    }

    #[test]
    fn statuses_are_decoded() {
        let full = r#"{"kind":"Status","code":429,"reason":"TooManyRequests","message":"m","details":{"retryAfterSeconds":3}}"#;
        let want = Status {
            code: 429,
            reason: "TooManyRequests".to_owned(),
            message: "m".to_owned(),
            retry_after_seconds: 3,
        };
        assert_eq!(decode_status(429, full.as_bytes()), want);
        let prose = Status { code: 502, message: "Bad Gateway".to_owned(), ..Status::default() };
        assert_eq!(decode_status(502, b"Bad\nGateway"), prose);
        assert_eq!(decode_json_status(br#"{"kind":"Pod"}"#), None);
    }
}
