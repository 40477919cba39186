//! The verb watch: a stream of changes that ends when the client disconnects, the timeout is over, or the client is
//! too slow.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use serde_json::{Value, json};
use tokio::sync::watch::Receiver;
use tokio::time::Instant;

use super::body::{Body, NextPart, Parts};
use super::list::{prefix, revision_of};
use super::response::partial;
use super::watch_frame_cache::FrameKey;
use super::{ApiServer, ResourceRequest};
use crate::request::{Encoding, ResponseFormat, ResponseView};
use crate::schema::Kind;
use crate::selector::parse_filter;
use crate::status::{ApiError, Cause};
use crate::store::{ChangeKind, Cursor, Filter, ListOptions, Object, RevisionError, WatchEvent};
use crate::{event_conversion, protobuf, table};

/// How often an idle watch with bookmarks gets one, as in upstream's watch cache.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// The default timeout of a watch: half an hour up to an hour at random, as upstream.
const LASTS: Duration = Duration::from_secs(45 * 60);

/// Longer than any server runs.
const LASTS_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How many changes are read at a time.
const N_CHANGES: usize = 500;

/// Marks the bookmark that ends the initial events.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

impl ApiServer {
    pub(super) fn watch(&self, call: &ResourceRequest<'_>) -> Result<Response<Body>, ApiError> {
        let table = call.kind.table.ok_or_else(ApiError::no_such_resource)?;
        let mut filter = parse_filter(call.kind, call.query)?;
        if !call.target.name.is_empty() {
            let test = crate::store::FieldRequirement {
                field: crate::store::FilterField::Name,
                equals: true,
                value: call.target.name.as_str().into(),
            };
            filter.fields.push(test);
        }
        let start = Start::of(call)?;
        let bookmarks = call.query.is_true("allowWatchBookmarks");
        let lasts = call.query.number::<i64>("timeoutSeconds")?.filter(|seconds| *seconds > 0);
        let lasts =
            lasts.map(|seconds| Duration::from_secs(seconds.cast_unsigned()).min(LASTS_MAX));
        let receiver = self.shared.change_notifier.subscribe(table);
        let (cursor, initial) = self.start_watch(call, table, filter, start)?;
        let now = Instant::now();
        let watching = Watching {
            server: self.clone(),
            kind: call.kind.clone(),
            form: call.form,
            include: table::Include::of(call.query)?,
            cursor,
            initial: initial.into_iter(),
            ends_initial: matches!(start, Start::Initial { .. }),
            is_over: false,
            sent_columns: false,
            bookmark_at: bookmarks.then_some(now + BOOKMARK_EVERY),
            ends_at: now + lasts.unwrap_or(LASTS),
            change_receiver: receiver,
        };
        let content_type = match call.form.encoding {
            Encoding::Json => "application/json",
            Encoding::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        };
        let mut response = Response::new(Body::parts(Box::new(watching)));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        Ok(response)
    }

    /// A cursor, and the objects to show before its changes.
    fn start_watch(
        &self,
        call: &ResourceRequest<'_>,
        table: crate::store::TableId,
        filter: Filter,
        start: Start,
    ) -> Result<(Cursor, Vec<Arc<Object>>), ApiError> {
        let prefix = prefix(call);
        let state = self.state();
        let (after, initial) = match start {
            Start::After(revision) => (revision, Vec::new()),
            Start::FromNow => (state.store.revision(), Vec::new()),
            Start::Now { at_least } | Start::Initial { at_least } => {
                if at_least > state.store.revision() {
                    let newest = state.store.revision();
                    return Err(ApiError::too_large_revision(at_least, newest));
                }
                let span = ListOptions { prefix: &prefix, ..ListOptions::default() };
                let page = state.store.list(table, &span, &filter);
                let page = page.map_err(|error| ApiError::internal(&error.to_string()))?;
                (page.revision, page.objects)
            }
        };
        let cursor = state.store.watch(table, after, &prefix, filter);
        let cursor = cursor.map_err(|unreadable| match unreadable {
            RevisionError::Future { asked, newest } => ApiError::too_large_revision(asked, newest),
            RevisionError::Compacted { asked, compacted } => too_old(asked, compacted),
        })?;
        Ok((cursor, initial))
    }
}

fn too_old(asked: u64, compacted: u64) -> ApiError {
    ApiError::expired(format!("too old resource version: {asked} ({compacted})"))
}

/// Where a watch begins.
#[derive(Clone, Copy, Debug)]
enum Start {
    /// Changes after a revision.
    After(u64),
    /// Changes to come.
    FromNow,
    /// What is there, as additions, then changes.
    Now { at_least: u64 },
    /// The same, with a bookmark between the two.
    Initial { at_least: u64 },
}

impl Start {
    fn of(call: &ResourceRequest<'_>) -> Result<Start, ApiError> {
        let revision = call.query.get("resourceVersion").map(revision_of).transpose();
        // Upstream's watch cache parses it, and its errors are not classified.
        let unclassified = |error: ApiError| {
            ApiError::unclassified(error.message.trim_start_matches("invalid resource version: "))
        };
        let revision = revision.map_err(unclassified)?;
        let wants_initial = call.query.get("sendInitialEvents");
        let given_match = call.query.get("resourceVersionMatch");
        if wants_initial.is_none() && given_match.is_some() {
            let why =
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            return Err(ApiError::invalid_options(&Cause::forbidden("resourceVersionMatch", why)));
        }
        match wants_initial {
            Some(_) if given_match != Some("NotOlderThan") => {
                let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
                Err(ApiError::invalid_options(&Cause::forbidden("resourceVersionMatch", why)))
            }
            Some("true" | "1") if call.query.is_true("allowWatchBookmarks") => {
                Ok(Start::Initial { at_least: revision.unwrap_or(0) })
            }
            Some("true" | "1") => Ok(Start::Now { at_least: revision.unwrap_or(0) }),
            _ => Ok(match revision.unwrap_or(0) {
                0 if wants_initial.is_some() => Start::FromNow,
                0 => Start::Now { at_least: 0 },
                revision => Start::After(revision),
            }),
        }
    }
}

/// A watch that is being read.
struct Watching {
    server: ApiServer,
    kind: Kind,
    form: ResponseFormat,
    include: table::Include,
    cursor: Cursor,
    initial: std::vec::IntoIter<Arc<Object>>,
    /// A bookmark is due when `initial` is empty.
    ends_initial: bool,
    is_over: bool,
    sent_columns: bool,
    bookmark_at: Option<Instant>,
    ends_at: Instant,
    change_receiver: Receiver<u64>,
}

const PART_BYTES: usize = 64 * 1024;

impl Parts for Watching {
    fn next(mut self: Box<Self>) -> NextPart {
        Box::pin(async move {
            let bytes = self.part().await?;
            Some((bytes, self as Box<dyn Parts>))
        })
    }
}

impl Watching {
    /// The next events; none when the watch is over.
    async fn part(&mut self) -> Option<Bytes> {
        loop {
            if self.is_over {
                return None;
            }
            if let Some(bytes) = self.initial_part() {
                return Some(bytes);
            }
            self.change_receiver.mark_unchanged();
            let (deliveries, is_behind) = {
                let state = self.server.state();
                let visible = self.server.visible(&state.store);
                let deliveries = self.cursor.read(&state.store, visible, N_CHANGES);
                (deliveries, self.cursor.revision() < visible)
            };
            match deliveries {
                // There may be no notification of changes that exist already and were not read yet.
                Ok(deliveries) if deliveries.is_empty() && is_behind => {
                    tokio::task::yield_now().await;
                    continue;
                }
                Ok(deliveries) if deliveries.is_empty() => {}
                Ok(deliveries) => return Some(self.frames(&deliveries)),
                Err(RevisionError::Compacted { asked, compacted }) => {
                    self.is_over = true;
                    return Some(self.error(&too_old(asked, compacted)));
                }
                Err(RevisionError::Future { .. }) => return None,
            }
            let wake_at = self.bookmark_at.map_or(self.ends_at, |at| at.min(self.ends_at));
            match tokio::time::timeout_at(wake_at, self.change_receiver.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return None,
                Err(_) if wake_at >= self.ends_at => return None,
                Err(_) => {
                    self.bookmark_at = Some(wake_at + BOOKMARK_EVERY);
                    return Some(self.bookmark(false));
                }
            }
        }
    }

    /// A part of what was there at the start.
    fn initial_part(&mut self) -> Option<Bytes> {
        let mut part = Vec::new();
        while part.len() < PART_BYTES {
            let Some(object) = self.initial.next() else { break };
            let revision = object.revision();
            let delivery = WatchEvent { kind: ChangeKind::Added, object, revision };
            self.frame(&delivery, &mut part);
        }
        if self.initial.len() == 0 && self.ends_initial {
            self.ends_initial = false;
            part.extend_from_slice(&self.bookmark(true));
        }
        (!part.is_empty()).then(|| part.into())
    }

    fn frames(&mut self, deliveries: &[WatchEvent]) -> Bytes {
        let mut part = Vec::new();
        for delivery in deliveries {
            self.frame(delivery, &mut part);
        }
        part.into()
    }

    fn frame(&mut self, delivery: &WatchEvent, part: &mut Vec<u8>) {
        let kind = event_type(delivery.kind);
        let json = || delivery.object.json_at(delivery.revision);
        let value = || loadmaster_stdx::json::from_slice(&json()).unwrap_or(Value::Null);
        if self.form.view == ResponseView::Whole
            && !event_conversion::has_other_storage_version(&self.kind)
        {
            let make = || match self.form.encoding {
                Encoding::Json => {
                    let start = format!("{{\"type\":\"{kind}\",\"object\":");
                    [start.as_bytes(), &json(), b"}\n"].concat()
                }
                Encoding::Protobuf => self.encoded(kind, &value()),
            };
            let key = FrameKey::new(delivery.revision, kind, self.form.encoding, &self.kind);
            part.extend_from_slice(&self.server.shared.frames.get_or_encode(key, make));
            return;
        }
        let value = value();
        let value = event_conversion::to_request_version(&self.kind, value);
        let value = match self.form.view {
            ResponseView::Whole => value,
            ResponseView::Metadata => partial(&value),
            ResponseView::Table => {
                let row = table::row(&self.kind, &value, self.server.now(), self.include);
                let list = json!({"resourceVersion": delivery.revision.to_string()});
                let with_columns = !std::mem::replace(&mut self.sent_columns, true);
                table::table(&self.kind, &list, &[row], with_columns)
            }
        };
        part.extend_from_slice(&self.encoded(kind, &value));
    }

    /// An event with any object of this watch's view.
    fn encoded(&self, kind: &str, value: &Value) -> Vec<u8> {
        let id = match (self.form.view, value["kind"].as_str()) {
            (_, Some("Status")) => crate::schema::schema().find("meta/v1.Status"),
            (ResponseView::Metadata, _) => {
                crate::schema::schema().find("meta/v1.PartialObjectMetadata")
            }
            _ => Some(self.kind.type_id),
        };
        match (self.form.encoding, id) {
            (Encoding::Protobuf, Some(id)) => {
                protobuf::watch_frame(kind, &protobuf::encode_object(id, value))
            }
            _ => format!("{{\"type\":\"{kind}\",\"object\":{value}}}\n").into_bytes(),
        }
    }

    fn bookmark(&self, ends_initial: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": self.cursor.revision().to_string()});
        if ends_initial {
            metadata["annotations"] = json!({INITIAL_EVENTS_END: "true"});
        }
        let value = match self.form.view {
            ResponseView::Whole => {
                json!({"kind": self.kind.kind, "apiVersion": self.kind.api_version(),
                "metadata": metadata})
            }
            ResponseView::Metadata => partial(&json!({"metadata": metadata})),
            ResponseView::Table => table::table(&self.kind, &metadata, &[], false),
        };
        self.encoded("BOOKMARK", &value).into()
    }

    fn error(&self, error: &ApiError) -> Bytes {
        self.encoded("ERROR", &error.to_status()).into()
    }
}

/// The last event of a watch whose revision is too old (410), for this content type.
pub(crate) fn expired_frame(content_type: Option<&HeaderValue>) -> Bytes {
    let status = too_old(1, 1).to_status();
    let is_protobuf = content_type
        .and_then(|it| it.to_str().ok())
        .is_some_and(|it| it.starts_with(protobuf::MEDIA_TYPE));
    match (is_protobuf, crate::schema::schema().find("meta/v1.Status")) {
        (true, Some(id)) => {
            protobuf::watch_frame("ERROR", &protobuf::encode_object(id, &status)).into()
        }
        _ => format!("{{\"type\":\"ERROR\",\"object\":{status}}}\n").into(),
    }
}

fn event_type(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Added => "ADDED",
        ChangeKind::Modified => "MODIFIED",
        ChangeKind::Deleted => "DELETED",
    }
}
