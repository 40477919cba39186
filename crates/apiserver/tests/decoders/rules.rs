//! What definitions say of their objects: rules, columns, schemas.

use std::cell::RefCell;

use http::Method;
use loadmaster_apiserver::ApiServer;
use serde_json::{Value, json};

use super::{DEFINITIONS, JSON, OBJECTS, ask, ask_for, create, definition, server, stable, with};

const THINGS: &str = OBJECTS[5].0;
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

thread_local! {
    /// Without the definition, which comes and goes.
    static DEFINED: RefCell<ApiServer> = RefCell::new(undefined());
}

fn undefined() -> ApiServer {
    let server = server();
    remove(&server);
    server
}

fn remove(server: &ApiServer) -> bool {
    ask(server, Method::DELETE, &format!("{THINGS}/a"), JSON, "");
    let path = format!("{DEFINITIONS}/things.example.com");
    ask(server, Method::DELETE, &path, JSON, "");
    ask(server, Method::GET, &path, JSON, "").is_some_and(|it| it.code == 404)
}

/// Makes a definition if it is good, runs, and takes it away.
fn with_definition(definition: &Value, run: impl FnOnce(&ApiServer)) {
    DEFINED.with_borrow_mut(|server| {
        let made = create(server, DEFINITIONS, JSON, definition.to_string());
        if !made.is_some_and(|it| it.is_good()) {
            return;
        }
        run(server);
        if !remove(server) {
            *server = undefined();
        }
    });
}

/// A thing with this spec: whether it is made is not the same for all, but when it is, it can be made from itself.
fn check_thing(server: &ApiServer, spec: &Value) {
    let thing = json!({"apiVersion": "example.com/v1", "kind": "Thing",
        "metadata": {"name": "b"}, "spec": spec});
    let dry = with(THINGS, "dryRun=All");
    let made = create(server, &dry, JSON, thing.to_string());
    let Some(made) = made.filter(|it| it.is_good()).map(|it| stable(it.json())) else { return };
    let again = create(server, &dry, JSON, made.to_string()).map(|it| stable(it.json()));
    assert_eq!(again.as_ref(), Some(&made), "made from itself");
    let stored = create(server, THINGS, JSON, thing.to_string()).map(|it| it.code);
    assert_eq!(stored, Some(201), "{thing}");
    let path = format!("{THINGS}/b");
    ask_for(server, Method::GET, THINGS, (JSON, TABLE), "");
    let got = ask(server, Method::GET, &path, JSON, "").map(|it| stable(it.json()));
    assert_eq!(got.as_ref(), Some(&made), "as in a dry run");
    let merged = json!({"spec": spec}).to_string();
    ask(server, Method::PATCH, &path, "application/merge-patch+json", merged);
    let removed = ask(server, Method::DELETE, &path, JSON, "");
    assert!(removed.is_some_and(|it| it.is_good()), "{path} goes");
}

/// A rule, what it says when it fails, the path of a column, and an object: a line each.
pub fn rules(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split('\n');
    let mut line = || lines.next().unwrap_or_default();
    let (rule, message, path, spec) = (line(), line(), line(), line());
    let spec = serde_json::from_str(spec).unwrap_or_else(|_| {
        json!({"size": 3, "text": "abc", "list": [{"name": "x", "n": 1}, {"name": "y"}],
            "map": {"a": "1"}, "time": "2026-01-02T03:04:05Z", "quantity": "1500m", "float": 0.5})
    });
    let mut checks = json!([{"rule": rule, "message": "m"}]);
    if !message.is_empty() {
        checks[0]["messageExpression"] = message.into();
    }
    let mut version = json!({});
    if !path.is_empty() {
        version["additionalPrinterColumns"] =
            json!([{"name": "C", "type": "string", "jsonPath": path}]);
    }
    let schema = json!({"type": "object", "x-kubernetes-validations": checks, "properties": {
        "size": {"type": "integer"}, "float": {"type": "number"}, "text": {"type": "string", "maxLength": 1000},
        "flag": {"type": "boolean"}, "time": {"type": "string", "format": "date-time"},
        "quantity": {"x-kubernetes-int-or-string": true},
        "list": {"type": "array", "maxItems": 20, "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"], "items": {"type": "object", "required": ["name"],
                "properties": {"name": {"type": "string"}, "n": {"type": "integer", "default": 2}}}},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
        "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
    with_definition(&definition(&schema, &version), |server| check_thing(server, &spec));
}

/// A schema and an object: a line each.
pub fn schemas(bytes: &[u8]) {
    let mut lines = bytes.split(|it| *it == b'\n');
    let mut value = || serde_json::from_slice::<Value>(lines.next().unwrap_or_default());
    let (Ok(schema), Ok(spec)) = (value(), value()) else { return };
    with_definition(&definition(&schema, &json!({})), |server| check_thing(server, &spec));
}
