//! Bodies of objects.

use std::sync::LazyLock;

use loadmaster_apiserver::protobuf;
use loadmaster_apiserver::schema::{Kind, decode, schema};
use serde_json::Value;

use super::{
    Answer, DEFINITIONS, JSON, OBJECTS, SERVER, YAML, choose, collection, create,
    is_lost_in_protobuf, stable, with,
};

/// All that can be made, the objects that are there first.
static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    let kinds = SERVER.kinds();
    let can_be_made = |it: &&Kind| it.table.is_some() && it.verbs.contains(&"create");
    let mut kinds: Vec<Kind> = kinds.iter().filter(can_be_made).cloned().collect();
    let first: Vec<&str> = OBJECTS.iter().map(|it| it.0).chain([DEFINITIONS]).collect();
    let place = |kind: &Kind| {
        let path = collection(kind);
        first.iter().position(|it| *it == path).unwrap_or(first.len())
    };
    kinds.sort_by_key(place);
    kinds
});

/// Nothing is stored.
fn try_out(kind: &Kind, media_type: &str, body: impl Into<bytes::Bytes>) -> Option<Answer> {
    create(&SERVER, &with(&collection(kind), "dryRun=All"), media_type, body)
}

/// The code, and the object if one was made.
fn outcome(answer: Option<Answer>) -> Option<(u16, Option<Value>)> {
    answer.map(|it| (it.code, it.is_good().then(|| stable(it.json()))))
}

/// Bodies of objects in JSON, and the same in YAML, of which JSON is a part.
pub fn json_body(bytes: &[u8]) {
    let Some((kind, body)) = choose(bytes, &KINDS) else { return };
    try_out(kind, YAML, body.to_vec());
    try_out(kind, JSON, body.to_vec());
    let Ok(value) = serde_json::from_slice::<Value>(body) else { return };
    let text = value.to_string();
    let made = outcome(try_out(kind, JSON, text.clone()));
    if let Some((201, Some(made))) = &made {
        // YAML has no control characters outside of escapes.
        let is_yaml = !text.chars().any(char::is_control);
        let from_yaml = outcome(try_out(kind, YAML, text));
        // A name may be made up, and limit ranges have one in any case.
        let is_chosen = matches!(kind.resource, "services" | "limitranges")
            || value["metadata"]["generateName"].is_string();
        if is_yaml && !is_chosen {
            assert_eq!(from_yaml, Some((201, Some(made.clone()))), "{kind:?} in YAML");
        }
        survives(kind, made);
    }
}

/// What was made is the same when it is made from itself, in JSON and in protobuf.
fn survives(kind: &Kind, made: &Value) {
    // What the server filled in is its client's now.
    let unowned = |mut object: Value| {
        object["metadata"].as_object_mut().map(|it| it.remove("managedFields"));
        object
    };
    let remade = |media_type: &str, body: bytes::Bytes| {
        outcome(try_out(kind, media_type, body)).map(|(code, it)| (code, it.map(unowned)))
    };
    let want = Some((201, Some(unowned(made.clone()))));
    assert_eq!(remade(JSON, made.to_string().into()), want, "JSON");
    if collection(kind).starts_with("/apis/example.com") || is_lost_in_protobuf(made) {
        return;
    }
    let bytes = protobuf::encode_object(kind.type_id, made);
    assert_eq!(remade(protobuf::MEDIA_TYPE, bytes.clone().into()), want, "protobuf");
    let envelope = protobuf::decode_envelope(&bytes).unwrap_or_else(|error| panic!("{error}"));
    let value = protobuf::decode_message(schema(), kind.type_id, &envelope.raw);
    let value = value.unwrap_or_else(|error| panic!("{error}"));
    let mut value = decode(schema(), kind.type_id, value).unwrap_or_else(|it| panic!("{it}")).value;
    value["apiVersion"] = envelope.api_version.into();
    value["kind"] = envelope.kind.into();
    assert_eq!(value, *made, "protobuf and JSON say the same");
}

/// Bodies in protobuf, whole, and as what is within the envelope. What is understood survives the way back and forth, and
/// through JSON.
pub fn protobuf(bytes: &[u8]) {
    let Some((kind, raw)) = choose(bytes, &KINDS) else { return };
    try_out(kind, protobuf::MEDIA_TYPE, raw.to_vec());
    let enclosed = protobuf::encode_envelope(&kind.api_version(), kind.kind, raw);
    let made = outcome(try_out(kind, protobuf::MEDIA_TYPE, enclosed));
    if let Some((201, Some(made))) = &made {
        survives(kind, made);
    }
    let Ok(value) = protobuf::decode_message(schema(), kind.type_id, raw) else { return };
    let again = protobuf::encode_message(schema(), kind.type_id, &value);
    let once_more = protobuf::decode_message(schema(), kind.type_id, &again);
    assert_eq!(once_more.as_ref(), Ok(&value), "{}", kind.kind);
    let Ok(reading) = decode(schema(), kind.type_id, value) else { return };
    let reread = |value: Value| decode(schema(), kind.type_id, value).map(|it| it.value);
    assert_eq!(reread(reading.value.clone()).as_ref(), Ok(&reading.value), "{}", kind.kind);
    let again = protobuf::encode_message(schema(), kind.type_id, &reading.value);
    let once_more = protobuf::decode_message(schema(), kind.type_id, &again);
    let once_more = once_more.map(reread).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(once_more.as_ref(), Ok(&reading.value), "{}", kind.kind);
}
