//! From bytes to objects and events, in protobuf and in JSON.

use loadmaster_api::proto::{self, Frames, Items, Object, WatchEvent};
use loadmaster_stdx::Chain;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::Item;
use crate::answer::json_status;
use crate::kinds::Kind;

/// No object may be larger: etcd's limit is 1.5 MiB, and protobuf and JSON differ by less than the rest.
const EVENT_BYTES_MAX: usize = 32 << 20;

/// A page that has been opened but not decoded.
pub(crate) enum Page<'a> {
    Protobuf(Items<'a>),
    Json(JsonPage<'a>),
}

#[derive(Deserialize)]
pub(crate) struct JsonPage<'a> {
    #[serde(default)]
    metadata: ListMetadata,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListMetadata {
    resource_version: String,
    r#continue: String,
}

/// The metadata that an object in JSON is not decoded with.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Head {
    metadata: HeadMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct HeadMetadata {
    resource_version: String,
    annotations: Option<Annotations>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Annotations {
    #[serde(rename = "k8s.io/initial-events-end")]
    initial_events_end: String,
}

#[derive(Deserialize)]
struct JsonEvent<'a> {
    r#type: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

impl<'a> Page<'a> {
    pub(crate) fn open(is_protobuf: bool, body: &'a [u8]) -> Result<Page<'a>, String> {
        if is_protobuf {
            return Items::open(body).map(Page::Protobuf).map_err(|error| told(&error));
        }
        serde_json::from_slice(body).map(Page::Json).map_err(|error| told(&error))
    }

    pub(crate) fn resource_version(&self) -> &str {
        match self {
            Page::Protobuf(items) => items.resource_version(),
            Page::Json(page) => &page.metadata.resource_version,
        }
    }

    pub(crate) fn continue_token(&self) -> &str {
        match self {
            Page::Protobuf(items) => items.continue_token(),
            Page::Json(page) => &page.metadata.r#continue,
        }
    }

    /// The objects, decoded when they are taken.
    pub(crate) fn items(
        &self,
        kind: Kind,
    ) -> Box<dyn Iterator<Item = Result<Item, String>> + Send + '_> {
        match self {
            Page::Protobuf(items) => Box::new(items.decode().map(|item| {
                let (object, resource_version) = item.map_err(|error| told(&error))?;
                Ok(Item { object, resource_version: resource_version.to_owned() })
            })),
            Page::Json(page) => {
                let items = page.items.as_deref().unwrap_or_default();
                Box::new(items.iter().map(move |raw| {
                    let resource_version = head(raw)?.metadata.resource_version;
                    Ok(Item { object: json_object(kind, raw.get())?, resource_version })
                }))
            }
        }
    }
}

/// Cuts a watch into events.
pub(super) struct Events {
    kind: Kind,
    is_protobuf: bool,
    frames: Frames,
    lines: Lines,
}

/// A stream of lines, each an event in JSON.
#[derive(Default)]
struct Lines {
    buffer: Vec<u8>,
    start: usize,
    /// So far there is no end of a line.
    searched: usize,
}

impl Events {
    pub(super) fn new(kind: Kind, is_protobuf: bool) -> Events {
        let (frames, lines) = (Frames::new(EVENT_BYTES_MAX), Lines::default());
        Events { kind, is_protobuf, frames, lines }
    }

    /// Takes the next piece. Take all events before the next one.
    pub(super) fn push(&mut self, piece: &[u8]) {
        if self.is_protobuf {
            self.frames.push(piece);
        } else {
            self.lines.push(piece);
        }
    }

    pub(super) fn next(&mut self) -> Result<Option<WatchEvent<Object>>, String> {
        if self.is_protobuf {
            let frame = self.frames.next().map_err(|error| told(&error))?;
            return frame.map(proto::decode_any_event).transpose().map_err(|error| told(&error));
        }
        match self.lines.next()? {
            Some(line) => json_event(self.kind, line).map(Some),
            None => Ok(None),
        }
    }
}

impl Lines {
    fn push(&mut self, piece: &[u8]) {
        self.buffer.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        self.buffer.extend_from_slice(piece);
    }

    fn next(&mut self) -> Result<Option<&[u8]>, String> {
        let Some(at) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.buffer.len();
            if self.searched - self.start > EVENT_BYTES_MAX {
                return Err(format!("an event of more than {EVENT_BYTES_MAX} bytes"));
            }
            return Ok(None);
        };
        let line = self.start..self.searched + at;
        self.start = line.end + 1;
        self.searched = self.start;
        Ok(Some(&self.buffer[line]))
    }
}

fn json_event(kind: Kind, line: &[u8]) -> Result<WatchEvent<Object>, String> {
    let JsonEvent { r#type, object: raw } =
        serde_json::from_slice(line).map_err(|error| told(&error))?;
    if r#type == "ERROR" {
        let status = json_status(raw.get().as_bytes());
        return status.map(WatchEvent::Error).ok_or_else(|| "an error without a Status".to_owned());
    }
    let Head { metadata } = head(raw)?;
    let resource_version = metadata.resource_version;
    let object = || json_object(kind, raw.get());
    Ok(match &*r#type {
        "ADDED" => WatchEvent::Added { object: object()?, resource_version },
        "MODIFIED" => WatchEvent::Modified { object: object()?, resource_version },
        "DELETED" => WatchEvent::Deleted { object: object()?, resource_version },
        "BOOKMARK" => {
            let annotations = metadata.annotations.unwrap_or_default();
            let ends_initial_events = annotations.initial_events_end == "true";
            WatchEvent::Bookmark { resource_version, ends_initial_events }
        }
        other => return Err(format!("unknown watch event {other:?}")),
    })
}

fn head(raw: &RawValue) -> Result<Head, String> {
    serde_json::from_str(raw.get()).map_err(|error| told(&error))
}

fn json_object(kind: Kind, text: &str) -> Result<Object, String> {
    fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
        serde_json::from_str(text).map_err(|error| told(&error))
    }
    Ok(match kind {
        Kind::Pod => Object::Pod(Box::new(read(text)?)),
        Kind::Node => Object::Node(Box::new(read(text)?)),
        Kind::Namespace => Object::Namespace(read(text)?),
        Kind::Service => Object::Service(read(text)?),
        Kind::ReplicationController => Object::ReplicationController(read(text)?),
        Kind::ReplicaSet => Object::ReplicaSet(Box::new(read(text)?)),
        Kind::StatefulSet => Object::StatefulSet(Box::new(read(text)?)),
        Kind::PodDisruptionBudget => Object::PodDisruptionBudget(read(text)?),
        Kind::PriorityClass => Object::PriorityClass(read(text)?),
    })
}

fn told(error: &(dyn std::error::Error + 'static)) -> String {
    Chain(error).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(pieces: &[&str]) -> Result<Vec<String>, String> {
        let mut events = Events::new(Kind::Node, false);
        let mut all = Vec::new();
        for piece in pieces {
            events.push(piece.as_bytes());
            while let Some(event) = events.next()? {
                all.push(match event {
                    WatchEvent::Added { object, resource_version } => {
                        format!("+{}@{resource_version}", object.metadata().unwrap().name)
                    }
                    other => format!("{other:?}"),
                });
            }
        }
        Ok(all)
    }

    #[test]
    fn events_in_json_come_in_pieces_of_any_size() {
        let stream = concat!(
            r#"{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"7"}}}"#,
            "\n",
            r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
            "\n",
            r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"old"}}"#,
            "\n",
        );
        let want = events(&[stream]).unwrap();
        assert_eq!(want[0], "+a@7");
        assert_eq!(want[1], r#"Bookmark { resource_version: "9", ends_initial_events: true }"#);
        assert!(want[2].contains("410"), "{want:?}");
        for size in 1..40 {
            let pieces: Vec<&str> =
                stream.as_bytes().chunks(size).map(|p| std::str::from_utf8(p).unwrap()).collect();
            assert_eq!(events(&pieces).unwrap(), want);
        }
        for bad in ["x\n", "{\"type\":\"ODD\",\"object\":{}}\n", "{\"type\":\"ADDED\"}\n"] {
            assert!(events(&[bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn pages_in_json() {
        let text = r#"{"kind":"NodeList","metadata":{"resourceVersion":"5","continue":"c"},
            "items":[{"metadata":{"name":"a","resourceVersion":"3"}},{"metadata":{"name":7}}]}"#;
        let page = Page::open(false, text.as_bytes()).unwrap();
        assert_eq!((page.resource_version(), page.continue_token()), ("5", "c"));
        let items: Vec<_> = page.items(Kind::Node).collect();
        assert_eq!(items[0].as_ref().unwrap().resource_version, "3");
        assert!(items[1].is_err());
        let empty = Page::open(false, br#"{"metadata":{},"items":null}"#).unwrap();
        assert_eq!(empty.items(Kind::Node).count(), 0);
        assert!(Page::open(true, b"{}").is_err());
    }
}
