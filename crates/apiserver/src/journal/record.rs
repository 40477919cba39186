//! The payload of a frame in protobuf: the head of a file, changes, or the end of a snapshot.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;

use crate::store::{Change, ChangeKind, Object};

/// One of the three.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Frame {
    #[prost(message, optional, tag = "1")]
    pub head: Option<FileHead>,
    #[prost(message, repeated, tag = "2")]
    pub records: Vec<Record>,
    /// Objects in the snapshot that ends here.
    #[prost(uint64, optional, tag = "3")]
    pub n_objects: Option<u64>,
}

/// The first frame of a file.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct FileHead {
    /// A log holds the changes after this revision, a snapshot what was there at it.
    #[prost(uint64, tag = "1")]
    pub revision: u64,
    /// Identifies the rules for labels and selectable fields.
    #[prost(uint32, tag = "2")]
    pub fingerprint: u32,
}

/// A version of an object.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Record {
    #[prost(string, tag = "1")]
    pub table: String,
    #[prost(string, tag = "2")]
    pub key: String,
    #[prost(uint64, tag = "3")]
    pub revision: u64,
    #[prost(bytes = "bytes", tag = "4")]
    pub json: Bytes,
    #[prost(uint32, tag = "5")]
    pub revision_at: u32,
    /// Names and values in turns.
    #[prost(string, repeated, tag = "6")]
    pub labels: Vec<String>,
    #[prost(string, repeated, tag = "7")]
    pub fields: Vec<String>,
    /// It is the last state of an object that was removed.
    #[prost(bool, tag = "8")]
    pub is_removed: bool,
}

impl Record {
    pub fn of_change(table: &str, change: &Change) -> Record {
        let is_removed = change.kind == ChangeKind::Deleted;
        Record { is_removed, ..Record::of_object(table, &change.object) }
    }

    pub fn of_object(table: &str, object: &Arc<Object>) -> Record {
        let labels = object.labels().iter();
        Record {
            table: table.to_owned(),
            key: object.key().to_owned(),
            revision: object.revision(),
            json: object.json(),
            revision_at: object.revision_offset(),
            labels: labels.flat_map(|(k, v)| [k.to_string(), v.to_string()]).collect(),
            fields: object.selectable_values().iter().map(|it| it.to_string()).collect(),
            is_removed: false,
        }
    }

    /// The object; none if the record contradicts itself.
    pub fn object(&self) -> Option<Object> {
        let (pairs, rest) = self.labels.as_chunks::<2>();
        let labels = pairs.iter().map(|[k, v]| (k.as_str(), v.as_str().into())).collect();
        let fields = self.fields.iter().map(|it| it.as_str().into()).collect();
        let object = Object::restored(
            &self.key,
            self.revision,
            labels,
            fields,
            &self.json,
            self.revision_at,
        );
        object.filter(|_| rest.is_empty())
    }

    /// Roughly how long it is when encoded.
    pub fn size(&self) -> usize {
        self.encoded_len()
    }
}

impl Frame {
    pub fn head(revision: u64, fingerprint: u32) -> Frame {
        Frame { head: Some(FileHead { revision, fingerprint }), ..Frame::default() }
    }

    pub fn records(records: Vec<Record>) -> Frame {
        Frame { records, ..Frame::default() }
    }

    pub fn end(n_objects: u64) -> Frame {
        Frame { n_objects: Some(n_objects), ..Frame::default() }
    }
}
