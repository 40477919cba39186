//! Field paths, and who owns them.

use loadmaster_apiserver::managed_fields::{
    FieldManager, FieldSet, PathElement, ResetFields, TypeRef, Types, VersionedTypes, built_in,
    set_managed_fields,
};
use loadmaster_apiserver::schema::schema;
use serde_json::{Value, json};

const VERSION: &str = "apps/v1";

/// Deployments.
struct Deployments;

impl VersionedTypes for Deployments {
    fn form(&self, api_version: &str) -> Option<(&Types, TypeRef)> {
        let id = schema().find("apps/v1.Deployment").filter(|_| api_version == VERSION)?;
        Some((built_in(), Types::of_built_in(id)))
    }

    fn convert(&self, object: &Value, _api_version: &str) -> Value {
        object.clone()
    }

    fn nothing(&self, _api_version: &str) -> Value {
        typed(json!({}))
    }
}

fn typed(mut object: Value) -> Value {
    object["apiVersion"] = VERSION.into();
    object["kind"] = "Deployment".into();
    object
}

/// Sets of field paths as `fieldsV1` has them, and, a line each, what managers apply one after the other.
pub fn fields(bytes: &[u8]) {
    match bytes.split_first() {
        Some((0, lines)) => apply_in_turn(lines),
        Some((_, text)) => set_of_fields(text),
        None => {}
    }
}

/// What is read is written so that it reads the same again, and keeps to what sets are.
fn set_of_fields(text: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(text) else { return };
    let Ok(set) = FieldSet::from_json(&value) else { return };
    let written = set.to_json();
    let text = written.to_string();
    assert_eq!(FieldSet::from_json(&written).as_ref(), Ok(&set), "{text}");
    let mut again = FieldSet::default();
    for path in set.paths() {
        assert!(set.contains(&path), "{path:?} of {text}");
        for element in &path {
            let key = element.to_key();
            assert_eq!(PathElement::parse(&key), Ok(Some(element.clone())), "{key}");
        }
        again.insert(&path);
    }
    assert_eq!(again, set, "{text}");
    assert_eq!((set.union(&set), set.intersection(&set)), (set.clone(), set.clone()), "{text}");
    assert!(set.difference(&set).is_empty() && set.without(&set).is_empty(), "{text}");
}

/// What is applied once more changes nothing, and who applies nothing owns nothing.
fn apply_in_turn(lines: &[u8]) {
    let mut live = Deployments.nothing(VERSION);
    for (nth, line) in lines.split(|it| *it == b'\n').take(5).enumerate() {
        let Ok(config @ Value::Object(_)) = serde_json::from_slice::<Value>(line) else { return };
        let (config, manager) = (typed(config), format!("m{}", nth % 3));
        let books = manager_at(nth);
        let Ok(applied) = books.apply(&live, &config, &manager, nth % 2 == 0) else { continue };
        let again = books.apply(&applied, &config, &manager, false);
        let again = again.unwrap_or_else(|failure| panic!("{config}: {failure:?}"));
        assert_eq!(again, applied, "{config} once more");
        let left = books.apply(&applied, &typed(json!({})), &manager, false);
        let left = left.unwrap_or_else(|failure| panic!("nothing: {failure:?}"));
        let owners = left["metadata"]["managedFields"].to_string();
        assert!(!owners.contains(&format!("{manager:?}")), "{owners}");
        let mut updated = applied.clone();
        set_managed_fields(&mut updated, books.update(&live, &applied, "updater"));
        live = if nth % 2 == 0 { applied } else { updated };
    }
}

fn manager_at(nth: usize) -> FieldManager<'static> {
    FieldManager {
        versions: &Deployments,
        api_version: VERSION,
        kind: "Deployment",
        subresource: "",
        reset: ResetFields::default(),
        now: format!("2026-01-02T03:04:0{nth}Z"),
    }
}
