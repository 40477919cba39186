//! Decodes lists and watch streams, in protobuf and in JSON.

use loadmaster_api::proto::{
    self, Envelope, ListItems, Object, OtherObject, ProtoError, ProtoKind, WatchEvent, WatchFrames,
};
use loadmaster_api::{Encoding, ExtraFields, ExtraFieldsByKind, Node, ObjectMeta, Pod, RawObject};
use loadmaster_stdx::ErrorChain;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::{DecodedObject, VersionedObject};
use crate::kinds::Kind;
use crate::status::decode_json_status;

/// Size limit of a watch event: etcd limits objects to 1.5 MiB in protobuf, and JSON is at most some times larger.
const EVENT_BYTES_MAX: usize = 32 << 20;

/// What is decoded of an object in addition to its lean type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DecodeOptions {
    /// Its bytes.
    pub raw: bool,
    /// Additional parts of pods and nodes.
    pub needs: ExtraFieldsByKind,
}

impl DecodeOptions {
    fn extract(
        self,
        object: Object,
        bytes: &[u8],
    ) -> Result<(Object, Option<RawObject>), ProtoError> {
        let extra = |parts| ExtraFields::from_message(bytes, parts);
        let object = match object {
            Object::Pod(pod) if !self.needs.pods.is_empty() => {
                Object::Pod(Box::new(Pod { extra: extra(self.needs.pods)?, ..*pod }))
            }
            Object::Node(node) if !self.needs.nodes.is_empty() => {
                Object::Node(Box::new(Node { extra: extra(self.needs.nodes)?, ..*node }))
            }
            other => other,
        };
        Ok((object, self.raw.then(|| RawObject::new(Encoding::Protobuf, bytes))))
    }
}

/// A page of a list whose items have not been decoded yet.
pub(crate) enum ListPage<'a> {
    Protobuf(ListItems<'a>),
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

/// Metadata in JSON that the object types do not have.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectHead {
    metadata: ObjectHeadMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ObjectHeadMetadata {
    resource_version: String,
    annotations: Option<Annotations>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Annotations {
    #[serde(rename = "k8s.io/initial-events-end")]
    initial_events_end: String,
}

/// The fields that every object has.
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

impl<'a> ListPage<'a> {
    pub(crate) fn parse(is_protobuf: bool, body: &'a [u8]) -> Result<ListPage<'a>, String> {
        if is_protobuf {
            return ListItems::open(body)
                .map(ListPage::Protobuf)
                .map_err(|error| error_text(&error));
        }
        loadmaster_stdx::json::from_slice(body)
            .map(ListPage::Json)
            .map_err(|error| error_text(&error))
    }

    pub(crate) fn resource_version(&self) -> &str {
        match self {
            ListPage::Protobuf(items) => items.resource_version(),
            ListPage::Json(page) => &page.metadata.resource_version,
        }
    }

    pub(crate) fn continue_token(&self) -> &str {
        match self {
            ListPage::Protobuf(items) => items.continue_token(),
            ListPage::Json(page) => &page.metadata.r#continue,
        }
    }

    /// The objects, decoded lazily.
    pub(crate) fn items(
        &self,
        kind: Kind,
        options: DecodeOptions,
    ) -> Box<dyn Iterator<Item = Result<VersionedObject, String>> + Send + '_> {
        match self {
            ListPage::Protobuf(items) => {
                Box::new(items.decode().zip(items.messages()).map(move |(item, message)| {
                    let (object, resource_version) = item.map_err(|error| error_text(&error))?;
                    let (object, raw) =
                        options.extract(object, message).map_err(|error| error_text(&error))?;
                    let resource_version = resource_version.to_owned();
                    Ok(VersionedObject { object: DecodedObject { object, raw }, resource_version })
                }))
            }
            ListPage::Json(page) => {
                let items = page.items.as_deref().unwrap_or_default();
                Box::new(items.iter().map(move |raw| {
                    let resource_version = head(raw)?.metadata.resource_version;
                    Ok(VersionedObject {
                        object: json_object(kind, raw.get(), options)?,
                        resource_version,
                    })
                }))
            }
        }
    }
}

/// Splits a watch stream into events and decodes them.
pub(super) struct WatchDecoder {
    kind: Kind,
    is_protobuf: bool,
    options: DecodeOptions,
    frames: WatchFrames,
    lines: LineDecoder,
}

/// Splits a stream into lines, each an event in JSON.
#[derive(Default)]
struct LineDecoder {
    buffer: Vec<u8>,
    start: usize,
    /// Before this position there is no end of the current line.
    searched: usize,
}

impl WatchDecoder {
    pub(super) fn new(kind: Kind, is_protobuf: bool, options: DecodeOptions) -> WatchDecoder {
        let (frames, lines) = (WatchFrames::new(EVENT_BYTES_MAX), LineDecoder::default());
        WatchDecoder { kind, is_protobuf, options, frames, lines }
    }

    /// Appends the next chunk of the stream. WatchDecoder must be taken until there are none before the next call.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        if self.is_protobuf {
            self.frames.push(chunk);
        } else {
            self.lines.push(chunk);
        }
    }

    pub(super) fn next(&mut self) -> Result<Option<WatchEvent<DecodedObject>>, String> {
        if self.is_protobuf {
            let frame = self.frames.next().map_err(|error| error_text(&error))?;
            let options = self.options;
            let event =
                |frame| proto::decode_event_with(frame, |envelope| proto_object(envelope, options));
            return frame.map(event).transpose().map_err(|error| error_text(&error));
        }
        match self.lines.next()? {
            Some(line) => json_event(self.kind, line, self.options).map(Some),
            None => Ok(None),
        }
    }
}

impl LineDecoder {
    fn push(&mut self, chunk: &[u8]) {
        self.buffer.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        self.buffer.extend_from_slice(chunk);
    }

    fn next(&mut self) -> Result<Option<&[u8]>, String> {
        let Some(at) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.buffer.len();
            if self.searched - self.start > EVENT_BYTES_MAX {
                return Err(format!("a watch event of more than {EVENT_BYTES_MAX} bytes"));
            }
            return Ok(None);
        };
        let line = self.start..self.searched + at;
        self.start = line.end + 1;
        self.searched = self.start;
        Ok(Some(&self.buffer[line]))
    }
}

fn json_event(
    kind: Kind,
    line: &[u8],
    options: DecodeOptions,
) -> Result<WatchEvent<DecodedObject>, String> {
    let JsonEvent { r#type, object: raw } =
        loadmaster_stdx::json::from_slice(line).map_err(|error| error_text(&error))?;
    if r#type == "ERROR" {
        let status = decode_json_status(raw.get().as_bytes());
        return status.map(WatchEvent::Error).ok_or_else(|| "an error without a Status".to_owned());
    }
    let ObjectHead { metadata } = head(raw)?;
    let resource_version = metadata.resource_version;
    let object = || json_object(kind, raw.get(), options);
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

fn head(raw: &RawValue) -> Result<ObjectHead, String> {
    serde_json::from_str(raw.get()).map_err(|error| error_text(&error))
}

fn proto_object(envelope: &[u8], options: DecodeOptions) -> Result<DecodedObject, ProtoError> {
    let object = proto::decode(envelope)?;
    if options == DecodeOptions::default() {
        return Ok(DecodedObject { object, raw: None });
    }
    let (object, raw) = options.extract(object, Envelope::open(envelope)?.raw)?;
    Ok(DecodedObject { object, raw })
}

fn json_object(kind: Kind, text: &str, options: DecodeOptions) -> Result<DecodedObject, String> {
    fn read<T: ProtoKind>(text: &str) -> Result<T, String> {
        T::from_json(text.as_bytes()).map_err(|error| error_text(&error))
    }
    fn read_other<T: DeserializeOwned>(text: &str) -> Result<T, String> {
        serde_json::from_str(text).map_err(|error| error_text(&error))
    }
    let extra = |text: &str, parts| {
        ExtraFields::read(Encoding::Json, text.as_bytes(), parts)
            .map_err(|error| error_text(&error))
    };
    let object = match kind {
        Kind::Pod => {
            let extra = extra(text, options.needs.pods)?;
            Object::Pod(Box::new(Pod { extra, ..read(text)? }))
        }
        Kind::Node => {
            let extra = extra(text, options.needs.nodes)?;
            Object::Node(Box::new(Node { extra, ..read(text)? }))
        }
        Kind::Namespace => Object::Namespace(read(text)?),
        Kind::Service => Object::Service(read(text)?),
        Kind::ReplicationController => Object::ReplicationController(read(text)?),
        Kind::ReplicaSet => Object::ReplicaSet(Box::new(read(text)?)),
        Kind::StatefulSet => Object::StatefulSet(Box::new(read(text)?)),
        Kind::PodDisruptionBudget => Object::PodDisruptionBudget(read(text)?),
        Kind::PriorityClass => Object::PriorityClass(read(text)?),
        Kind::Dynamic(_) => {
            let Named { metadata } = read_other(text)?;
            Object::Other(Box::new(OtherObject { metadata, value: read_other(text)? }))
        }
    };
    let raw = options.raw.then(|| RawObject::new(Encoding::Json, text.as_bytes()));
    Ok(DecodedObject { object, raw })
}

fn error_text(error: &(dyn std::error::Error + 'static)) -> String {
    ErrorChain(error).to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use loadmaster_api::ExtraFieldSelection;

    use super::*;

    const ANNOTATIONS: ExtraFieldSelection =
        ExtraFieldSelection { annotations: true, object: false };
    const NO_PARTS: ExtraFieldSelection = ExtraFieldSelection { annotations: false, object: false };
    const ALL: DecodeOptions = DecodeOptions {
        raw: true,
        needs: ExtraFieldsByKind { pods: NO_PARTS, nodes: ANNOTATIONS },
    };

    fn annotation() -> Arc<ExtraFields> {
        let annotations = [("k".into(), "v".into())].into();
        Arc::new(ExtraFields { annotations, ..ExtraFields::default() })
    }

    fn events(chunks: &[&str]) -> Result<Vec<String>, String> {
        let mut events = WatchDecoder::new(
            Kind::Node,
            false,
            DecodeOptions { raw: true, ..DecodeOptions::default() },
        );
        let mut all = Vec::new();
        for chunk in chunks {
            events.push(chunk.as_bytes());
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
    fn json_events_are_decoded_from_chunks_of_any_size() {
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
            let chunks: Vec<&str> =
                stream.as_bytes().chunks(size).map(|p| std::str::from_utf8(p).unwrap()).collect();
            assert_eq!(events(&chunks).unwrap(), want);
        }
        for bad in ["x\n", "{\"type\":\"ODD\",\"object\":{}}\n", "{\"type\":\"ADDED\"}\n"] {
            assert!(events(&[bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_object_of_another_kind_is_decoded_as_json() {
        let foos = Kind::dynamic("example.com", "v1", "foos", false);
        let text =
            r#"{"kind":"Foo","metadata":{"name":"a","namespace":"n","uid":"u"},"spec":{"size":7}}"#;
        let object = json_object(foos, text, DecodeOptions::default()).unwrap().object;
        let metadata = object.metadata().unwrap();
        assert_eq!((&*metadata.name, &*metadata.namespace, &*metadata.uid), ("a", "n", "u"));
        let Object::Other(other) = object else { panic!("{object:?}") };
        assert_eq!(other.value, serde_json::from_str::<serde_json::Value>(text).unwrap());
        assert!(json_object(foos, r#"{"spec":{}}"#, DecodeOptions::default()).is_err());
    }

    #[test]
    fn parts_needed_of_nodes_are_decoded_for_nodes_only() {
        let text = r#"{"metadata":{"name":"a","annotations":{"k":"v"}}}"#;
        let extra = |kind, options| match json_object(kind, text, options).unwrap().object {
            Object::Node(node) => node.extra,
            Object::Pod(pod) => pod.extra,
            other => panic!("{other:?}"),
        };
        assert_eq!(extra(Kind::Node, ALL), Some(annotation()));
        assert_eq!(extra(Kind::Node, DecodeOptions::default()), None);
        assert_eq!(extra(Kind::Pod, ALL), None);
    }

    #[test]
    fn json_pages_are_decoded() {
        let text = r#"{"kind":"NodeList","metadata":{"resourceVersion":"5","continue":"c"},
            "items":[{"metadata":{"name":"a","resourceVersion":"3"}},{"metadata":{"name":7}}]}"#;
        let page = ListPage::parse(false, text.as_bytes()).unwrap();
        assert_eq!((page.resource_version(), page.continue_token()), ("5", "c"));
        let items: Vec<_> = page.items(Kind::Node, ALL).collect();
        let first = items[0].as_ref().unwrap();
        assert_eq!(first.resource_version, "3");
        let raw = first.object.raw.as_ref().unwrap();
        assert_eq!(&*raw.bytes, br#"{"metadata":{"name":"a","resourceVersion":"3"}}"#);
        assert!(items[1].is_err());
        let empty = ListPage::parse(false, br#"{"metadata":{},"items":null}"#).unwrap();
        assert_eq!(empty.items(Kind::Node, ALL).count(), 0);
        assert!(ListPage::parse(true, b"{}").is_err());
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
    fn raw_protobuf_is_the_object_without_its_envelope() {
        // ObjectMeta (1) with name (1), resourceVersion (6) and annotations (12), which are pairs (1, 2).
        let pair = [field(1, b"k"), field(2, b"v")].concat();
        let node = field(1, &[field(1, b"a"), field(6, b"7"), field(12, &pair)].concat());
        let check = |options: DecodeOptions, read: &DecodedObject| {
            let want = RawObject::new(Encoding::Protobuf, &node);
            assert_eq!(read.raw, options.raw.then_some(want));
            let Object::Node(node) = &read.object else { panic!() };
            assert_eq!(&*node.metadata.name, "a");
            assert_eq!(node.extra, options.needs.nodes.annotations.then(annotation));
        };
        for options in [DecodeOptions::default(), ALL] {
            let list = envelope("NodeList", &field(2, &node));
            let page = ListPage::parse(true, &list).unwrap();
            check(options, &page.items(Kind::Node, options).next().unwrap().unwrap().object);
            let mut events = WatchDecoder::new(Kind::Node, true, options);
            let object = field(1, &envelope("Node", &node));
            let event = [field(1, b"ADDED"), field(2, &object)].concat();
            events.push(&(event.len() as u32).to_be_bytes());
            events.push(&event);
            let Ok(Some(WatchEvent::Added { object, .. })) = events.next() else { panic!() };
            check(options, &object);
        }
    }
}
