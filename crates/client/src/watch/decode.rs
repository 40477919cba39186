//! From bytes to objects and events, in protobuf and in JSON.

use loadmaster_api::proto::{self, Envelope, Frames, Items, Object, Other, ProtoError, WatchEvent};
use loadmaster_api::{Encoding, Extra, Needs, Node, ObjectMeta, Pod, Raw};
use loadmaster_stdx::Chain;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::{Item, Read};
use crate::answer::json_status;
use crate::kinds::Kind;

/// No object may be larger: etcd's limit is 1.5 MiB, and protobuf and JSON differ by less than the rest.
const EVENT_BYTES_MAX: usize = 32 << 20;

/// What is kept of an object beside its lean type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keep {
    /// Its bytes.
    pub raw: bool,
    /// Parts of pods and nodes.
    pub needs: Needs,
}

impl Keep {
    fn of_message(self, object: Object, bytes: &[u8]) -> Result<(Object, Option<Raw>), ProtoError> {
        let extra = |parts| Extra::of_message(bytes, parts);
        let object = match object {
            Object::Pod(pod) if !self.needs.pods.is_empty() => {
                Object::Pod(Box::new(Pod { extra: extra(self.needs.pods)?, ..*pod }))
            }
            Object::Node(node) if !self.needs.nodes.is_empty() => {
                Object::Node(Box::new(Node { extra: extra(self.needs.nodes)?, ..*node }))
            }
            other => other,
        };
        Ok((object, self.raw.then(|| Raw::new(Encoding::Protobuf, bytes))))
    }
}

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

/// What is read of any object.
#[derive(Deserialize)]
struct Named {
    metadata: ObjectMeta,
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
        keep: Keep,
    ) -> Box<dyn Iterator<Item = Result<Item, String>> + Send + '_> {
        match self {
            Page::Protobuf(items) => {
                Box::new(items.decode().zip(items.messages()).map(move |(item, message)| {
                    let (object, resource_version) = item.map_err(|error| told(&error))?;
                    let (object, raw) =
                        keep.of_message(object, message).map_err(|error| told(&error))?;
                    let resource_version = resource_version.to_owned();
                    Ok(Item { object: Read { object, raw }, resource_version })
                }))
            }
            Page::Json(page) => {
                let items = page.items.as_deref().unwrap_or_default();
                Box::new(items.iter().map(move |raw| {
                    let resource_version = head(raw)?.metadata.resource_version;
                    Ok(Item { object: json_object(kind, raw.get(), keep)?, resource_version })
                }))
            }
        }
    }
}

/// Cuts a watch into events.
pub(super) struct Events {
    kind: Kind,
    is_protobuf: bool,
    keep: Keep,
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
    pub(super) fn new(kind: Kind, is_protobuf: bool, keep: Keep) -> Events {
        let (frames, lines) = (Frames::new(EVENT_BYTES_MAX), Lines::default());
        Events { kind, is_protobuf, keep, frames, lines }
    }

    /// Takes the next piece. Take all events before the next one.
    pub(super) fn push(&mut self, piece: &[u8]) {
        if self.is_protobuf {
            self.frames.push(piece);
        } else {
            self.lines.push(piece);
        }
    }

    pub(super) fn next(&mut self) -> Result<Option<WatchEvent<Read>>, String> {
        if self.is_protobuf {
            let frame = self.frames.next().map_err(|error| told(&error))?;
            let keep = self.keep;
            let event =
                |frame| proto::decode_event_with(frame, |envelope| proto_object(envelope, keep));
            return frame.map(event).transpose().map_err(|error| told(&error));
        }
        match self.lines.next()? {
            Some(line) => json_event(self.kind, line, self.keep).map(Some),
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

fn json_event(kind: Kind, line: &[u8], keep: Keep) -> Result<WatchEvent<Read>, String> {
    let JsonEvent { r#type, object: raw } =
        serde_json::from_slice(line).map_err(|error| told(&error))?;
    if r#type == "ERROR" {
        let status = json_status(raw.get().as_bytes());
        return status.map(WatchEvent::Error).ok_or_else(|| "an error without a Status".to_owned());
    }
    let Head { metadata } = head(raw)?;
    let resource_version = metadata.resource_version;
    let object = || json_object(kind, raw.get(), keep);
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

fn proto_object(envelope: &[u8], keep: Keep) -> Result<Read, ProtoError> {
    let object = proto::decode(envelope)?;
    if keep == Keep::default() {
        return Ok(Read { object, raw: None });
    }
    let (object, raw) = keep.of_message(object, Envelope::open(envelope)?.raw)?;
    Ok(Read { object, raw })
}

fn json_object(kind: Kind, text: &str, keep: Keep) -> Result<Read, String> {
    fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
        serde_json::from_str(text).map_err(|error| told(&error))
    }
    let extra = |text: &str, parts| {
        Extra::read(Encoding::Json, text.as_bytes(), parts).map_err(|error| told(&error))
    };
    let object = match kind {
        Kind::Pod => {
            let extra = extra(text, keep.needs.pods)?;
            Object::Pod(Box::new(Pod { extra, ..read(text)? }))
        }
        Kind::Node => {
            let extra = extra(text, keep.needs.nodes)?;
            Object::Node(Box::new(Node { extra, ..read(text)? }))
        }
        Kind::Namespace => Object::Namespace(read(text)?),
        Kind::Service => Object::Service(read(text)?),
        Kind::ReplicationController => Object::ReplicationController(read(text)?),
        Kind::ReplicaSet => Object::ReplicaSet(Box::new(read(text)?)),
        Kind::StatefulSet => Object::StatefulSet(Box::new(read(text)?)),
        Kind::PodDisruptionBudget => Object::PodDisruptionBudget(read(text)?),
        Kind::PriorityClass => Object::PriorityClass(read(text)?),
        Kind::Other(_) => {
            let Named { metadata } = read(text)?;
            Object::Other(Box::new(Other { metadata, value: read(text)? }))
        }
    };
    let raw = keep.raw.then(|| Raw::new(Encoding::Json, text.as_bytes()));
    Ok(Read { object, raw })
}

fn told(error: &(dyn std::error::Error + 'static)) -> String {
    Chain(error).to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use loadmaster_api::Parts;

    use super::*;

    const ANNOTATIONS: Parts = Parts { annotations: true, object: false };
    const NO_PARTS: Parts = Parts { annotations: false, object: false };
    const ALL: Keep = Keep { raw: true, needs: Needs { pods: NO_PARTS, nodes: ANNOTATIONS } };

    fn annotation() -> Arc<Extra> {
        let annotations = [("k".into(), "v".into())].into();
        Arc::new(Extra { annotations, ..Extra::default() })
    }

    fn events(pieces: &[&str]) -> Result<Vec<String>, String> {
        let mut events = Events::new(Kind::Node, false, Keep { raw: true, ..Keep::default() });
        let mut all = Vec::new();
        for piece in pieces {
            events.push(piece.as_bytes());
            while let Some(event) = events.next()? {
                all.push(match event {
                    WatchEvent::Added { object, resource_version } => {
                        let node = object.raw.unwrap().decode::<loadmaster_api::Node>().unwrap();
                        assert_eq!(object.object, Object::Node(Box::new(node.clone())));
                        format!("+{}@{resource_version}", node.metadata.name)
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
    fn an_object_of_any_kind_is_read_as_it_is() {
        let foos = Kind::other("example.com", "v1", "foos", false);
        let text =
            r#"{"kind":"Foo","metadata":{"name":"a","namespace":"n","uid":"u"},"spec":{"size":7}}"#;
        let object = json_object(foos, text, Keep::default()).unwrap().object;
        let metadata = object.metadata().unwrap();
        assert_eq!((&*metadata.name, &*metadata.namespace, &*metadata.uid), ("a", "n", "u"));
        let Object::Other(other) = object else { panic!("{object:?}") };
        assert_eq!(other.value, serde_json::from_str::<serde_json::Value>(text).unwrap());
        assert!(json_object(foos, r#"{"spec":{}}"#, Keep::default()).is_err());
    }

    #[test]
    fn what_plugins_need_of_nodes_is_kept_of_nodes_alone() {
        let text = r#"{"metadata":{"name":"a","annotations":{"k":"v"}}}"#;
        let extra = |kind, keep| match json_object(kind, text, keep).unwrap().object {
            Object::Node(node) => node.extra,
            Object::Pod(pod) => pod.extra,
            other => panic!("{other:?}"),
        };
        assert_eq!(extra(Kind::Node, ALL), Some(annotation()));
        assert_eq!(extra(Kind::Node, Keep::default()), None);
        assert_eq!(extra(Kind::Pod, ALL), None);
    }

    #[test]
    fn pages_in_json() {
        let text = r#"{"kind":"NodeList","metadata":{"resourceVersion":"5","continue":"c"},
            "items":[{"metadata":{"name":"a","resourceVersion":"3"}},{"metadata":{"name":7}}]}"#;
        let page = Page::open(false, text.as_bytes()).unwrap();
        assert_eq!((page.resource_version(), page.continue_token()), ("5", "c"));
        let items: Vec<_> = page.items(Kind::Node, ALL).collect();
        let first = items[0].as_ref().unwrap();
        assert_eq!(first.resource_version, "3");
        let raw = first.object.raw.as_ref().unwrap();
        assert_eq!(&*raw.bytes, br#"{"metadata":{"name":"a","resourceVersion":"3"}}"#);
        assert!(items[1].is_err());
        let empty = Page::open(false, br#"{"metadata":{},"items":null}"#).unwrap();
        assert_eq!(empty.items(Kind::Node, ALL).count(), 0);
        assert!(Page::open(true, b"{}").is_err());
    }

    /// A field of a protobuf message that holds bytes.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
    }

    fn envelope(kind: &str, raw: &[u8]) -> Vec<u8> {
        let type_meta = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
        [b"k8s\0".as_slice(), &field(1, &type_meta), &field(2, raw)].concat()
    }

    #[test]
    fn bytes_in_protobuf_are_kept_without_their_envelope() {
        // ObjectMeta (1) with name (1), resourceVersion (6) and annotations (12), which are pairs (1, 2).
        let pair = [field(1, b"k"), field(2, b"v")].concat();
        let node = field(1, &[field(1, b"a"), field(6, b"7"), field(12, &pair)].concat());
        let check = |keep: Keep, read: &Read| {
            let want = Raw::new(Encoding::Protobuf, &node);
            assert_eq!(read.raw, keep.raw.then_some(want));
            let Object::Node(node) = &read.object else { panic!() };
            assert_eq!(&*node.metadata.name, "a");
            assert_eq!(node.extra, keep.needs.nodes.annotations.then(annotation));
        };
        for keep in [Keep::default(), ALL] {
            let list = envelope("NodeList", &field(2, &node));
            let page = Page::open(true, &list).unwrap();
            check(keep, &page.items(Kind::Node, keep).next().unwrap().unwrap().object);
            let mut events = Events::new(Kind::Node, true, keep);
            let object = field(1, &envelope("Node", &node));
            let event = [field(1, b"ADDED"), field(2, &object)].concat();
            events.push(&(event.len() as u32).to_be_bytes());
            events.push(&event);
            let Ok(Some(WatchEvent::Added { object, .. })) = events.next() else { panic!() };
            check(keep, &object);
        }
    }
}
