//! `/statusz` and `/flagz`: as text for people, as `config.k8s.io` objects for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use loadmaster_stdx::CollectByInsertion as _;
use serde::Serialize;

use super::reply::{HttpReply, status};
use crate::flags::{COMMAND_NAME, Versions};

/// The requested format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ZpageFormat {
    Text,
    Object { version: &'static str, is_yaml: bool },
}

const CURRENT: &str = "v1beta1";
const DEPRECATED: &str = "v1alpha1";

/// The first supported format of the Accept header; text if there is none.
fn accepted_format(headers: &HeaderMap, kind: &str) -> Option<ZpageFormat> {
    let accept = headers.get_all(http::header::ACCEPT).iter();
    let accept: Vec<&str> = accept.filter_map(|value| value.to_str().ok()).collect();
    let accept = accept.join(",");
    if accept.trim().is_empty() {
        return Some(ZpageFormat::Text);
    }
    accept.split(',').find_map(|range| format_of_media_range(range, kind))
}

fn format_of_media_range(range: &str, kind: &str) -> Option<ZpageFormat> {
    let mut parts = range.split(';').map(str::trim);
    let media = parts.next()?.to_ascii_lowercase();
    let params: BTreeMap<&str, &str> =
        parts.filter_map(|part| part.split_once('=')).collect_by_insertion();
    let is_yaml = match media.as_str() {
        "*/*" | "text/*" | "text/plain" if !params.contains_key("as") => {
            return Some(ZpageFormat::Text);
        }
        "application/json" => false,
        "application/yaml" => true,
        _ => return None,
    };
    let param = |name: &str| params.get(name).copied();
    let version = [CURRENT, DEPRECATED].into_iter().find(|version| param("v") == Some(version))?;
    let is_ours = param("g") == Some("config.k8s.io") && param("as") == Some(kind);
    is_ours.then_some(ZpageFormat::Object { version, is_yaml })
}

fn not_acceptable() -> HttpReply {
    status(
        StatusCode::NOT_ACCEPTABLE,
        "NotAcceptable",
        "only the following media types are accepted: application/json, application/yaml, text/plain",
    )
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Object<T> {
    kind: &'static str,
    api_version: String,
    metadata: Metadata,
    #[serde(flatten)]
    content: T,
}

#[derive(Serialize)]
struct Metadata {
    name: &'static str,
}

fn object<T: Serialize>(kind: &'static str, version: &str, is_yaml: bool, content: T) -> HttpReply {
    let api_version = format!("config.k8s.io/{version}");
    let object = Object { kind, api_version, metadata: Metadata { name: COMMAND_NAME }, content };
    let body = if is_yaml {
        let sorted = serde_json::to_value(&object).ok();
        sorted.and_then(|sorted| serde_saphyr::to_string(&sorted).ok())
    } else {
        serde_json::to_string_pretty(&object).ok()
    };
    let subtype = if is_yaml { "yaml" } else { "json" };
    let content_type = format!("application/{subtype};g=config.k8s.io;v={version};as={kind}");
    let mut reply = HttpReply::new(StatusCode::OK, "application/json", body.unwrap_or_default());
    if let Ok(value) = HeaderValue::from_str(&content_type) {
        reply.headers = vec![(http::header::CONTENT_TYPE, value)];
    }
    if version == CURRENT {
        return reply;
    }
    let page = kind.to_lowercase();
    let warning = format!(
        "299 - \"This version of the {page} endpoint is deprecated. Please use a newer version.\""
    );
    match HeaderValue::from_str(&warning) {
        Ok(warning) => reply.with_header(HeaderName::from_static("warning"), warning),
        Err(_) => reply,
    }
}

fn header_text(page: &str) -> String {
    format!(
        "\n{COMMAND_NAME} {page}\nWarning: This endpoint is not meant to be machine parseable, has no formatting \
         compatibility guarantees and is for debugging purposes only.\n"
    )
}

/// The constant part of `/statusz`.
#[derive(Clone, Debug)]
pub(super) struct Statusz {
    pub started: Timestamp,
    pub binary_version: String,
    pub versions: Versions,
}

/// The paths that `/statusz` lists, as upstream.
const PATHS: [&str; 6] = ["/configz", "/flagz", "/healthz", "/livez", "/metrics", "/readyz"];
/// Shown in place of upstream's Go version.
const TOOLCHAIN: &str = concat!("rust", env!("CARGO_PKG_RUST_VERSION"));

impl Statusz {
    /// `lines` follow those of upstream, in the form for people.
    pub fn handle(&self, headers: &HeaderMap, now: Timestamp, lines: &str) -> HttpReply {
        let up = now.duration_since(self.started).as_secs().max(0);
        match accepted_format(headers, "Statusz") {
            None => not_acceptable(),
            Some(ZpageFormat::Text) => {
                let started = self.started.to_zoned(TimeZone::UTC);
                let mut text = header_text("statusz");
                // Writing to a string cannot fail.
                let _ = write!(
                    text,
                    "\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nGo version: {TOOLCHAIN}\nBinary version: {}\n\
                     Emulation version: {}\nPaths: {}\n{lines}",
                    started.strftime("%a %b %e %H:%M:%S %Z %Y"),
                    up / 3600,
                    up / 60 % 60,
                    up % 60,
                    self.binary_version,
                    self.versions.emulated,
                    PATHS.join(" "),
                );
                HttpReply::text(StatusCode::OK, text).without_nosniff()
            }
            Some(ZpageFormat::Object { version, is_yaml }) => {
                #[derive(Serialize)]
                #[serde(rename_all = "camelCase")]
                struct Content<'a> {
                    start_time: String,
                    uptime_seconds: i64,
                    go_version: &'a str,
                    binary_version: &'a str,
                    emulation_version: String,
                    paths: [&'static str; 6],
                }
                let content = Content {
                    start_time: self.started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
                    uptime_seconds: up,
                    go_version: TOOLCHAIN,
                    binary_version: &self.binary_version,
                    emulation_version: self.versions.emulated.to_string(),
                    paths: PATHS,
                };
                object("Statusz", version, is_yaml, content)
            }
        }
    }
}

/// The response of `/flagz`.
pub(super) fn flagz(flags: &[(String, String)], headers: &HeaderMap) -> HttpReply {
    match accepted_format(headers, "Flagz") {
        None => not_acceptable(),
        Some(ZpageFormat::Text) => {
            let mut text = header_text("flagz");
            for (name, value) in flags {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{name}={value}");
            }
            HttpReply::text(StatusCode::OK, text).without_nosniff()
        }
        Some(ZpageFormat::Object { version, is_yaml }) => {
            #[derive(Serialize)]
            struct Content<'a> {
                flags: BTreeMap<&'a str, &'a str>,
            }
            let flags = flags
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()))
                .collect_by_insertion();
            object("Flagz", version, is_yaml, Content { flags })
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn accept(value: &str) -> HeaderMap {
        let value = HeaderValue::from_str(value).unwrap();
        HeaderMap::from_iter((!value.is_empty()).then_some((http::header::ACCEPT, value)))
    }

    #[track_caller]
    fn check(value: &str, want: &Expect) {
        let started: Timestamp = "2026-11-01T12:17:23Z".parse().unwrap();
        let statusz =
            Statusz { started, binary_version: "1.36.3".to_owned(), versions: Versions::default() };
        let now = started + jiff::SignedDuration::from_secs(2 * 3600 + 65);
        let reply = statusz.handle(&accept(value), now, "");
        let body = reply.body_text().replace(TOOLCHAIN, "TOOLCHAIN");
        want.assert_eq(&format!("{} {:?}\n{body}", reply.status, reply.headers[0].1));
    }

    #[test]
    fn statusz() {
        let text = expect![[r#"
            200 OK "text/plain; charset=utf-8"

            kube-scheduler statusz
            Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.

            Started: Sun Nov  1 12:17:23 UTC 2026
            Up: 2 hr 01 min 05 sec
            Go version: TOOLCHAIN
            Binary version: 1.36.3
            Emulation version: 1.36
            Paths: /configz /flagz /healthz /livez /metrics /readyz
        "#]];
        check("", &text);
        check("*/*", &text);
        check("text/html, text/plain;q=0.5", &text);
        check(
            "application/json;as=Statusz;v=v1beta1;g=config.k8s.io",
            &expect![[r#"
                200 OK "application/json;g=config.k8s.io;v=v1beta1;as=Statusz"
                {
                  "kind": "Statusz",
                  "apiVersion": "config.k8s.io/v1beta1",
                  "metadata": {
                    "name": "kube-scheduler"
                  },
                  "startTime": "2026-11-01T12:17:23Z",
                  "uptimeSeconds": 7265,
                  "goVersion": "TOOLCHAIN",
                  "binaryVersion": "1.36.3",
                  "emulationVersion": "1.36",
                  "paths": [
                    "/configz",
                    "/flagz",
                    "/healthz",
                    "/livez",
                    "/metrics",
                    "/readyz"
                  ]
                }"#]],
        );
        check(
            "application/json",
            &expect![[r#"
            406 Not Acceptable "application/json"
            {
              "kind": "Status",
              "apiVersion": "v1",
              "metadata": {},
              "status": "Failure",
              "message": "only the following media types are accepted: application/json, application/yaml, text/plain",
              "reason": "NotAcceptable",
              "code": 406
            }"#]],
        );
    }

    #[test]
    fn flagz_as_object() {
        let flags = [("a".to_owned(), "1".to_owned()), ("b".to_owned(), String::new())];
        let headers = accept("application/yaml;as=Flagz;v=v1alpha1;g=config.k8s.io");
        let reply = flagz(&flags, &headers);
        assert!(reply.headers.iter().any(|(name, _)| name == "warning"));
        expect![[r#"
            apiVersion: config.k8s.io/v1alpha1
            flags:
              a: "1"
              b: ""
            kind: Flagz
            metadata:
              name: kube-scheduler
        "#]]
        .assert_eq(&reply.body_text());
    }
}
