//! Patches of objects that are there.

use std::cell::RefCell;

use http::Method;
use loadmaster_apiserver::schema::{decode, schema};
use loadmaster_apiserver::{ApiServer, protobuf};
use serde_json::Value;

use super::{JSON, OBJECTS, ask, ask_for, choose, is_lost_in_protobuf, put_object, server, with};

const JSON_PATCH: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const TYPES: &[&str] =
    &[JSON_PATCH, MERGE, "application/strategic-merge-patch+json", "application/apply-patch+yaml"];

thread_local! {
    /// Put back after each patch.
    static PATCHED: RefCell<ApiServer> = RefCell::new(server());
}

/// Patches of all kinds on all objects: a dry run shows what the patch does, the result can be decoded in both
/// encodings, and the same
/// patch again changes nothing more, unless its operations are to be done one by one.
pub fn patch(bytes: &[u8]) {
    let Some((media_type, rest)) = choose(bytes, TYPES) else { return };
    let Some(((collection, _), body)) = choose(rest, OBJECTS) else { return };
    PATCHED.with_borrow_mut(|server| {
        let path = format!("{collection}/a?fieldManager=fuzz");
        let patch = |path: &str| ask(server, Method::PATCH, path, media_type, body.to_vec());
        let Some(dry) = patch(&with(&path, "dryRun=All")) else { return };
        if !dry.is_good() {
            return;
        }
        let done = patch(&path).map(|it| (it.is_good(), it.json()));
        let Some((true, done)) = done else { panic!("{path}: {dry:?} {done:?}", dry = dry.json()) };
        assert_eq!(unversioned(dry.json()), unversioned(done.clone()), "{path}: as in a dry run");
        check_stored(server, collection, &done);
        if *media_type != JSON_PATCH {
            let again = patch(&path).map(|it| it.json());
            assert_eq!(again.as_ref(), Some(&done), "{path}: once more");
        }
        put_back(server, collection);
    });
}

fn unversioned(mut object: Value) -> Value {
    object["metadata"].as_object_mut().map(|metadata| metadata.remove("resourceVersion"));
    object
}

/// What is stored is what was answered, in JSON and in protobuf.
fn check_stored(server: &ApiServer, collection: &str, want: &Value) {
    let path = format!("{collection}/a");
    let got = ask(server, Method::GET, &path, JSON, "").map(|it| it.json());
    assert_eq!(got.as_ref(), Some(want), "{path}");
    if is_lost_in_protobuf(want) {
        return;
    }
    let text = |name: &str| want[name].as_str().unwrap_or_default();
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    let Some(id) = schema().find_kind(group, version, text("kind")) else { return };
    let got = ask_for(server, Method::GET, &path, (JSON, protobuf::MEDIA_TYPE), "");
    let envelope = got.and_then(|it| protobuf::decode_envelope(&it.body).ok()).map(|it| it.raw);
    let value = envelope.and_then(|it| protobuf::decode_message(schema(), id, &it).ok());
    let value = value.and_then(|it| decode(schema(), id, it).ok()).map(|it| it.value);
    let mut want = want.clone();
    want.as_object_mut().map(|it| (it.remove("apiVersion"), it.remove("kind")));
    assert_eq!(value, Some(want), "{path} in protobuf");
}

/// Makes the object as it was, or everything anew if it cannot go.
fn put_back(server: &mut ApiServer, collection: &str) {
    let path = format!("{collection}/a");
    let free = r#"{"metadata": {"finalizers": null, "ownerReferences": null}}"#;
    ask(server, Method::PATCH, &path, MERGE, free);
    ask(server, Method::DELETE, &with(&path, "gracePeriodSeconds=0"), JSON, "");
    match ask(server, Method::GET, &path, JSON, "") {
        Some(removed) if removed.code == 404 => put_object(server, collection),
        _ => *server = self::server(),
    }
}
