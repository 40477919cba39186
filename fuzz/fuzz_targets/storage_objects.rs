//! Gives storage objects and pods, in JSON, YAML or protobuf, to the volume plugins.
#![no_main]

use libfuzzer_sys::fuzz_target;
use loadmaster_apiserver::protobuf;
use loadmaster_apiserver::schema::schema;
use serde_json::Value;

#[path = "../../crates/plugins/tests/decoders/mod.rs"]
mod decoders;

const MAGIC: &[u8] = b"k8s\0";

fuzz_target!(|bytes: &[u8]| match bytes.strip_prefix(MAGIC) {
    Some(objects) => decoders::storage_objects(&protobuf_objects(objects)),
    None => {
        decoders::storage_documents(bytes);
    }
});

/// Objects in protobuf, of which the magic is between two.
fn protobuf_objects(bytes: &[u8]) -> Vec<Value> {
    let ends = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(MAGIC));
    let mut objects = Vec::new();
    let mut start = 0;
    for end in ends.chain([bytes.len()]) {
        if end >= start {
            objects.extend(protobuf_object(&[MAGIC, &bytes[start..end]].concat()));
            start = end + MAGIC.len();
        }
    }
    objects
}

/// An object as the API server decodes it, and serves it in JSON to schedulers.
fn protobuf_object(bytes: &[u8]) -> Option<Value> {
    let envelope = protobuf::decode_envelope(bytes).ok()?;
    let (group, version) = envelope.api_version.split_once('/').unwrap_or(("", &envelope.api_version));
    let kind = schema().find_kind(group, version, &envelope.kind)?;
    let mut object = protobuf::decode_message(schema(), kind, &envelope.raw).ok()?;
    object["apiVersion"] = envelope.api_version.into();
    object["kind"] = envelope.kind.into();
    Some(object)
}
