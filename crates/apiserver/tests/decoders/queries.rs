//! Paths and parameters of requests.

use std::sync::LazyLock;

use http::Method;
use loadmaster_api::{LabelSelector, Selector};
use loadmaster_apiserver::selector::{parse_label_selector, selector_text};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{DEFINITIONS, JSON, OBJECTS, SERVER, ask, choose, create, definition, with};

/// What a watch takes its time from.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.unwrap_or_else(|error| panic!("{error}"))
});

/// Label and field selectors, continue tokens and revisions, whole queries of lists and watches, selectors within objects.
pub fn selectors(bytes: &[u8]) {
    const PARAMETERS: &[&str] = &[
        "labelSelector",
        "fieldSelector",
        "continue",
        "resourceVersion",
        "limit",
        "",
        "watch=1&",
        "LabelSelector",
    ];
    let _entered = RUNTIME.enter();
    let Some((name, text)) = choose(bytes, PARAMETERS) else { return };
    let query = match *name {
        "LabelSelector" => return printed(text),
        "" | "watch=1&" => format!("{name}{}", String::from_utf8_lossy(text)),
        _ => format!("{name}={}", form_urlencoded::byte_serialize(text).collect::<String>()),
    };
    for (kind, _) in OBJECTS {
        let path = format!("{kind}?{query}");
        let Some(list) = ask(&SERVER, Method::GET, &path, JSON, "") else { return };
        if list.code == 200 && name.ends_with("Selector") {
            same_ways(&path, &names(&list.json()["items"]));
        }
    }
}

fn names(items: &Value) -> Vec<String> {
    let name = |it: &Value| it["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    items.as_array().into_iter().flatten().map(name).collect()
}

/// A list in pages, and what a watch begins with, have what the list has.
fn same_ways(path: &str, want: &[String]) {
    let (mut paged, mut token) = (Vec::new(), String::new());
    loop {
        let page = with(path, &format!("limit=1&continue={token}"));
        let Some(page) = ask(&SERVER, Method::GET, &page, JSON, "").map(|it| it.json()) else {
            return;
        };
        paged.extend(names(&page["items"]));
        match page["metadata"]["continue"].as_str() {
            Some(next) => token = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(paged, want, "{path} in pages");
    let Some(watch) = ask(&SERVER, Method::GET, &with(path, "watch=1"), JSON, "") else { return };
    let events = serde_json::Deserializer::from_slice(&watch.body).into_iter::<Value>();
    let watched: Vec<Value> = events.flatten().map(|it| it["object"].clone()).collect();
    assert_eq!(names(&Value::from(watched)), want, "{path} as a watch");
}

/// A selector of an object, written as queries have it, selects the same.
fn printed(text: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(text) else { return };
    let Ok(selector) = serde_json::from_value::<LabelSelector>(value.clone()) else { return };
    let Ok(want) = Selector::new(Some(&selector)) else { return };
    // Other members stand for labels, as in the selector of a service.
    let is_known = |name: &String| name == "matchLabels" || name == "matchExpressions";
    if !value.as_object().is_some_and(|it| it.keys().all(is_known)) {
        return;
    }
    let text = selector_text(&value);
    let got =
        parse_label_selector(&text).unwrap_or_else(|error| panic!("{text:?}: {}", error.message));
    assert_eq!(got, want, "{text:?}");
}

/// Paths of requests, and the paths and rules within a definition: columns, selectable fields, CEL.
pub fn paths(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let escaped: String = form_urlencoded::byte_serialize(bytes).collect();
    let _entered = RUNTIME.enter();
    ask(&SERVER, Method::GET, &format!("/api/v1/{escaped}"), JSON, "");
    ask(&SERVER, Method::GET, &format!("/{}", text.trim_start_matches('/')), JSON, "");
    let spec = json!({"type": "object",
        "properties": {"size": {"type": "integer"}, "text": {"type": "string"}},
        "x-kubernetes-validations": [{"rule": text}]});
    let more = json!({"selectableFields": [{"jsonPath": text}],
        "additionalPrinterColumns": [{"name": "C", "type": "string", "jsonPath": text}]});
    let mut definition = definition(&spec, &more);
    definition["metadata"]["name"] = "others.example.com".into();
    definition["spec"]["names"] =
        json!({"plural": "others", "singular": "other", "kind": "Other", "listKind": "OtherList"});
    create(&SERVER, &with(DEFINITIONS, "dryRun=All"), JSON, definition.to_string());
}
