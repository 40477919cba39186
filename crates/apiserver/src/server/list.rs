//! The verbs get and list.

use std::sync::Arc;

use base64::Engine as _;
use bytes::Bytes;
use http::{HeaderValue, Response, header};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::body::{Body, NextPart, Parts};
use super::response::{ApiResponse, metadata_answer, partial};
use super::{ApiServer, ResourceRequest};
use crate::object::parsed;
use crate::request::{Encoding, ResponseView};
use crate::schema::{Kind, schema};
use crate::selector::parse_filter;
use crate::status::{ApiError, Cause};
use crate::store::{ListOptions, Object, Page, RevisionError};
use crate::{event_conversion, protobuf, table};

impl ApiServer {
    pub(super) fn get(&self, call: &ResourceRequest<'_>) -> Result<Response<Body>, ApiError> {
        let target = call.target;
        let object = self.get_object(call.kind, &target.namespace, &target.name)?;
        Ok(ApiResponse::stored_object(200, call.kind, &object, call.form, self.now())?
            .into_response())
    }

    pub(super) fn list(&self, call: &ResourceRequest<'_>) -> Result<Response<Body>, ApiError> {
        let page = self.page(call)?;
        let mut metadata = json!({"resourceVersion": page.revision.to_string()});
        if let Some(next) = &page.next {
            metadata["continue"] = continue_token(page.revision, next).into();
            let is_filtered =
                call.query.get("labelSelector").or(call.query.get("fieldSelector")).is_some();
            if !is_filtered {
                metadata["remainingItemCount"] = page.n_remaining.into();
            }
        }
        match (call.form.view, call.form.encoding) {
            (ResponseView::Table, _) => {
                let include = table::Include::of(call.query)?;
                let empty = table::table(call.kind, &metadata, &[], true).to_string();
                let render = Render::Row { include, now: self.now() };
                Ok(json_list(call.kind, &empty, render, page.objects))
            }
            (ResponseView::Metadata, Encoding::Json) => {
                let empty = format!(
                    "{{\"kind\":\"PartialObjectMetadataList\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":{metadata},\"items\":[]}}"
                );
                Ok(json_list(call.kind, &empty, Render::Metadata, page.objects))
            }
            (ResponseView::Metadata, Encoding::Protobuf) => {
                let items = values(call.kind, &page.objects)
                    .map(|value| value.map(|value| partial(&value)))
                    .collect::<Result<Vec<Value>, ApiError>>()?;
                let list = json!({"kind": "PartialObjectMetadataList",
                    "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items});
                Ok(metadata_answer(200, &list, call.form).into_response())
            }
            (ResponseView::Whole, Encoding::Protobuf) => {
                let bytes = protobuf_list(call.kind, &metadata, &page.objects)?;
                Ok(ApiResponse::from_bytes(200, protobuf::MEDIA_TYPE, bytes).into_response())
            }
            (ResponseView::Whole, Encoding::Json) => {
                let (kind, version) = (call.kind.list_kind(), call.kind.api_version());
                let empty = format!(
                    "{{\"kind\":\"{kind}\",\"apiVersion\":\"{version}\",\"metadata\":{metadata},\"items\":[]}}"
                );
                Ok(json_list(call.kind, &empty, Render::Whole, page.objects))
            }
        }
    }

    /// The objects that a request selects.
    fn page(&self, call: &ResourceRequest<'_>) -> Result<Page, ApiError> {
        let table = call.kind.table.ok_or_else(ApiError::no_such_resource)?;
        let filter = parse_filter(call.kind, call.query)?;
        // A negative one is none, as upstream reads it.
        let limit = call.query.number::<i64>("limit")?.unwrap_or(0);
        let limit = usize::try_from(limit).unwrap_or(0);
        let token = call.query.get("continue").map(read_token).transpose()?;
        let revision = call.query.get("resourceVersion").unwrap_or("0");
        if token.is_some() && revision != "0" {
            return Err(ApiError::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let (wanted, after) = match &token {
            Some((revision, after)) => (Wanted::Exactly(*revision), Some(after.as_str())),
            None => (wanted_revision(call, limit)?, None),
        };
        let at = match wanted {
            Wanted::Exactly(revision) => Some(revision),
            Wanted::AtLeast(_) => None,
        };
        let prefix = prefix(call);
        let span = ListOptions { prefix: &prefix, after, limit, at };
        let page = self.state().store.list(table, &span, &filter);
        let page = page.map_err(|unreadable| match unreadable {
            RevisionError::Future { asked, newest } => ApiError::too_large_revision(asked, newest),
            RevisionError::Compacted { .. } if token.is_some() => ApiError::expired(
                "The provided continue parameter is too old to display a consistent list result. \
                 You must start a new list without the continue parameter.",
            ),
            RevisionError::Compacted { asked, compacted } => {
                ApiError::expired(format!("too old resource version: {asked} ({compacted})"))
            }
        })?;
        match wanted {
            Wanted::AtLeast(asked) if asked > page.revision => {
                Err(ApiError::too_large_revision(asked, page.revision))
            }
            _ => Ok(page),
        }
    }
}

/// The key prefix of the objects in a request's scope.
pub(super) fn prefix(call: &ResourceRequest<'_>) -> String {
    match call.target.namespace.as_str() {
        "" => String::new(),
        namespace => format!("{namespace}/"),
    }
}

/// The revision that a list must show.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    /// The newest, which must be at least this revision.
    AtLeast(u64),
    Exactly(u64),
}

fn wanted_revision(call: &ResourceRequest<'_>, limit: usize) -> Result<Wanted, ApiError> {
    let revision = call.query.get("resourceVersion").map(revision_of).transpose()?;
    match (call.query.get("resourceVersionMatch"), revision) {
        (Some("Exact" | "NotOlderThan"), None) => Err(forbidden_match(
            "resourceVersionMatch is forbidden unless resourceVersion is provided",
        )),
        (Some("Exact"), Some(0)) => Err(forbidden_match(
            "resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"",
        )),
        (Some("Exact"), Some(revision)) => Ok(Wanted::Exactly(revision)),
        // An old rule: a limit and a revision without a match mean exactly.
        (None, Some(revision)) if limit > 0 && revision > 0 => Ok(Wanted::Exactly(revision)),
        (None | Some("NotOlderThan"), revision) => Ok(Wanted::AtLeast(revision.unwrap_or(0))),
        (Some(other), _) => Err(ApiError::invalid_options(&Cause::not_supported(
            "resourceVersionMatch",
            &other.into(),
            &["Exact", "NotOlderThan", ""],
        ))),
    }
}

fn forbidden_match(why: &str) -> ApiError {
    ApiError::invalid_options(&Cause::forbidden("resourceVersionMatch", why))
}

/// A revision as clients write it.
pub(super) fn revision_of(text: &str) -> Result<u64, ApiError> {
    text.parse().map_err(|_| {
        ApiError::bad_request(format!(
            "invalid resource version: resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
        ))
    })
}

const BASE64: base64::engine::GeneralPurpose = base64::engine::general_purpose::URL_SAFE_NO_PAD;

fn continue_token(revision: u64, after: &str) -> String {
    let token = json!({"v": "meta.k8s.io/v1", "rv": revision, "start": format!("{after}\0")});
    BASE64.encode(token.to_string())
}

fn read_token(token: &str) -> Result<(u64, String), ApiError> {
    let bytes = BASE64.decode(token).ok();
    let value: Option<Value> =
        bytes.and_then(|bytes| loadmaster_stdx::json::from_slice(&bytes).ok());
    let parts = value.as_ref().and_then(|value| {
        let start = value["start"].as_str()?.strip_suffix('\0')?;
        Some((value["rv"].as_u64()?, start.to_owned()))
    });
    parts.ok_or_else(|| ApiError::bad_request("invalid continue token: continue key is not valid: illegal base64 data at input byte 0"))
}

fn values<'a>(
    kind: &'a Kind,
    objects: &'a [Arc<Object>],
) -> impl Iterator<Item = Result<Value, ApiError>> {
    objects.iter().map(|object| Ok(event_conversion::to_request_version(kind, parsed(object)?)))
}

fn protobuf_list(
    kind: &Kind,
    metadata: &Value,
    objects: &[Arc<Object>],
) -> Result<Vec<u8>, ApiError> {
    let list = format!("{}List", kind.kind);
    let id = schema().find_kind(kind.group, kind.version, &list);
    let id = id.ok_or_else(|| ApiError::internal(&format!("{list} has no type")))?;
    // Every list is its metadata (1) and its items (2).
    let mut raw = protobuf::encode_message(schema(), id, &json!({"metadata": metadata}));
    for value in values(kind, objects) {
        let item = protobuf::encode_message(schema(), kind.type_id, &value?);
        protobuf::append_item(&item, &mut raw);
    }
    Ok(protobuf::encode_envelope(&kind.api_version(), &list, &raw))
}

/// What a list shows of an object.
#[derive(Clone, Copy)]
enum Render {
    Whole,
    Metadata,
    Row { include: table::Include, now: Timestamp },
}

impl Render {
    fn render(self, kind: &Kind, object: &Object) -> Bytes {
        if matches!(self, Render::Whole) && !event_conversion::has_other_storage_version(kind) {
            return within_list(kind, object.json());
        }
        let Ok(value) = parsed(object) else { return object.json() };
        let value = event_conversion::to_request_version(kind, value);
        let shown = match self {
            Render::Whole => value,
            Render::Metadata => partial(&value),
            Render::Row { include, now } => table::row(kind, &value, now, include),
        };
        shown.to_string().into()
    }
}

/// In a list only custom objects say what they are: the list says it of all others. It stands at their beginning.
fn within_list(kind: &Kind, json: Bytes) -> Bytes {
    let said = format!("{{\"kind\":{:?},\"apiVersion\":{:?},", kind.kind, kind.api_version());
    match json.strip_prefix(said.as_bytes()) {
        Some(rest) if kind.custom().is_none() => [b"{", rest].concat().into(),
        _ => json,
    }
}

/// A list; `empty` is how it would be without entries, which come in its last pair of brackets.
fn json_list(
    kind: &Kind,
    empty: &str,
    render: Render,
    objects: Vec<Arc<Object>>,
) -> Response<Body> {
    let (head, tail) = empty.split_at(empty.rfind(']').unwrap_or(empty.len()));
    let parts = JsonList {
        head: Some(head.to_owned()),
        tail: tail.to_owned(),
        kind: kind.clone(),
        render,
        objects: objects.into_iter(),
        is_done: false,
    };
    let mut response = Response::new(Body::parts(Box::new(parts)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

/// A list that is encoded while it is sent, so that a large one is never in memory twice.
struct JsonList {
    /// What comes before the entries, until it is sent.
    head: Option<String>,
    tail: String,
    kind: Kind,
    render: Render,
    objects: std::vec::IntoIter<Arc<Object>>,
    is_done: bool,
}

const PART_BYTES: usize = 64 * 1024;

impl Parts for JsonList {
    fn next(mut self: Box<Self>) -> NextPart {
        Box::pin(std::future::ready(self.part().map(|bytes| (bytes, self as Box<dyn Parts>))))
    }
}

impl JsonList {
    fn part(&mut self) -> Option<Bytes> {
        if self.is_done {
            return None;
        }
        let mut part = Vec::with_capacity(PART_BYTES + 8 * 1024);
        let mut needs_comma = self.head.is_none();
        part.extend_from_slice(self.head.take().unwrap_or_default().as_bytes());
        while part.len() < PART_BYTES {
            let Some(object) = self.objects.next() else {
                part.extend_from_slice(self.tail.as_bytes());
                self.is_done = true;
                break;
            };
            if needs_comma {
                part.push(b',');
            }
            needs_comma = true;
            part.extend_from_slice(&self.render.render(&self.kind, &object));
        }
        Some(part.into())
    }
}
