//! What a server says when it does not give what was asked for.

use loadmaster_api::proto::{self, Object, Status};
use serde::Deserialize;

/// Percent-encoding of all but RFC 3986's unreserved characters.
pub(crate) fn escape(text: &str, out: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte))
            }
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
}

/// An error with its causes. kube's texts repeat their source, so that a cause that was told already is left out.
pub(crate) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
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

/// What an error answer says: a Status object, or whatever a proxy wrote, shortened.
pub(crate) fn message_of(text: &str) -> String {
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

/// The Status of an answer that is not a success. Proxies answer in prose: then only code and message are set.
pub fn status_of(code: u16, body: &[u8]) -> Status {
    let mut status = match proto::decode(body) {
        Ok(Object::Status(status)) => status,
        _ => json_status(body).unwrap_or_else(|| Status {
            message: message_of(&String::from_utf8_lossy(body)),
            ..Status::default()
        }),
    };
    status.code = i32::from(code);
    status
}

/// A Status in JSON; None if it is no Status.
pub(crate) fn json_status(body: &[u8]) -> Option<Status> {
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
        serde_json::from_slice(body).ok().filter(|wire: &Wire| wire.kind == "Status")?;
    let retry_after_seconds = wire.details.map_or(0, |details| details.retry_after_seconds);
    let Wire { code, reason, message, .. } = wire;
    Some(Status { code, reason, message, retry_after_seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages() {
        assert_eq!(
            message_of(r#"{"kind":"Status","message":"pods is forbidden"}"#),
            "pods is forbidden"
        );
        assert_eq!(message_of("<html>\n  Bad   Gateway</html>"), "<html> Bad Gateway</html>");
    }

    #[test]
    fn statuses() {
        let full = r#"{"kind":"Status","code":429,"reason":"TooManyRequests","message":"m","details":{"retryAfterSeconds":3}}"#;
        let want = Status {
            code: 429,
            reason: "TooManyRequests".to_owned(),
            message: "m".to_owned(),
            retry_after_seconds: 3,
        };
        assert_eq!(status_of(429, full.as_bytes()), want);
        let prose = Status { code: 502, message: "Bad Gateway".to_owned(), ..Status::default() };
        assert_eq!(status_of(502, b"Bad\nGateway"), prose);
        assert_eq!(json_status(br#"{"kind":"Pod"}"#), None);
    }
}
