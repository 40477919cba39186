//! Caching of OpenAPI documents: the index has the hash of each, and a document requested with its hash never
//! changes.

#[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http::{Request, header};
use jiff::fmt::rfc2822::DateTimePrinter;
use jiff::{SignedDuration, Timestamp};
use loadmaster_stdx::Map;

use super::document;
use crate::schema::Kind;
use crate::server::ApiResponse;

const JSON: &str = "application/json";
const YEAR: SignedDuration = SignedDuration::from_hours(365 * 24);

/// Of the built-in kinds by group and version: the same in every server of this program.
#[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
static BUILT_IN: Mutex<Option<Map<(&str, &str), String>>> = Mutex::new(None);

/// The hash of the document of these kinds, of one group and version.
pub fn document_hash(own: &[&Kind]) -> String {
    named(own).0
}

/// The same, and the document, where it had to be written to know that.
fn named(own: &[&Kind]) -> (String, Option<String>) {
    let written = || {
        let text = document(own).to_string();
        (hash_of(&text), Some(text))
    };
    let Some(first) = own.first().filter(|_| own.iter().all(|it| it.custom.is_none())) else {
        return written();
    };
    let known = || BUILT_IN.lock().unwrap_or_else(PoisonError::into_inner);
    let name = (first.group, first.version);
    if let Some(hash) = known().get_or_insert_default().get(&name) {
        return (hash.clone(), None);
    }
    let (hash, text) = written();
    known().get_or_insert_default().insert(name, hash.clone());
    (hash, text)
}

fn hash_of(document: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, document.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02X}")).collect()
}

/// The document, or that the client has it, or where it is now.
pub fn document_response(own: &[&Kind], request: &Request<Bytes>, now: Timestamp) -> ApiResponse {
    let query = request.uri().query().unwrap_or_default();
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    let asked = pairs.find_map(|(name, value)| (name == "hash").then_some(value));
    let (hash, text) = named(own);
    let tag = format!("\"{hash}\"");
    let wants = request.headers().get(header::IF_NONE_MATCH).and_then(|it| it.to_str().ok());
    let has = wants.is_some_and(|tags| tags.split(',').any(|it| it.trim() == tag));
    let answer = match &asked {
        Some(asked) if !asked.is_empty() && *asked != hash => {
            let path = request.uri().path();
            let moved = ApiResponse::text(301, "Moved Permanently\n");
            return moved.with_header(header::LOCATION, &format!("{path}?hash={hash}"));
        }
        _ if has => ApiResponse::from_bytes(304, JSON, ""),
        _ => ApiResponse::from_bytes(200, JSON, text.unwrap_or_else(|| document(own).to_string())),
    };
    let answer = answer.with_header(header::ETAG, &tag).with_header(header::VARY, "Accept");
    let expires = now
        .checked_add(YEAR)
        .ok()
        .and_then(|it| DateTimePrinter::new().timestamp_to_rfc9110_string(&it).ok());
    match (asked, expires) {
        (Some(_), Some(expires)) => answer
            .with_header(header::CACHE_CONTROL, "public, immutable")
            .with_header(header::EXPIRES, &expires),
        _ => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Kinds;
    use crate::store::{Store, StoreLimits};

    #[test]
    fn unchanged_documents_are_cached() {
        let kinds = Kinds::new(&mut Store::new(StoreLimits::default()), &[]);
        let own: Vec<&Kind> = kinds.iter().filter(|it| it.group == "policy").collect();
        let hash = document_hash(&own);
        let check = |query: &str, has: Option<&str>, code: u16, cached: bool| {
            let mut request = Request::get(format!("/openapi/v3/apis/policy/v1{query}"));
            if let Some(has) = has {
                request = request.header(header::IF_NONE_MATCH, has);
            }
            let request = request.body(Bytes::new()).expect("a request");
            let response = document_response(&own, &request, Timestamp::UNIX_EPOCH).into_response();
            assert_eq!(response.status().as_u16(), code, "{query} {has:?}");
            let expires = response.headers().get(header::EXPIRES).and_then(|it| it.to_str().ok());
            let want = cached.then_some("Fri, 01 Jan 1971 00:00:00 GMT");
            assert_eq!(expires, want, "{query} {has:?}");
            response
        };
        check("", None, 200, false);
        check(&format!("?hash={hash}"), None, 200, true);
        check("", Some(&format!("\"{hash}\"")), 304, false);
        check("", Some("\"other\""), 200, false);
        let moved = check("?hash=ABC", None, 301, false);
        let place = moved.headers().get(header::LOCATION).and_then(|it| it.to_str().ok());
        assert_eq!(place, Some(format!("/openapi/v3/apis/policy/v1?hash={hash}").as_str()));
    }
}
