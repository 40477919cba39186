//! Validates Events. One with an `eventTime` follows the rules of `events.k8s.io/v1`: more required fields, and the
//! deprecated ones unset.

use jiff::Timestamp;
use loadmaster_api::selector::label_key_errors;
use serde_json::Value;

use crate::event_conversion::to_storage_version;
use crate::object::metadata_text;
use crate::schema::Kind;
use crate::status::Cause;

/// The longest text of a field, in bytes.
const LEN_MAX: usize = 128;
const NOTE_LEN_MAX: usize = 1024;

/// Validates a new Event.
pub(super) fn create(kind: &Kind, value: &Value, causes: &mut Vec<Cause>) {
    let event = to_storage_version(kind, value.clone());
    either(kind, &event, causes);
    if kind.group.is_empty() {
        return;
    }
    series(&event["series"], causes);
    if !is_time(&event["eventTime"]) {
        causes.push(Cause::required("eventTime", ""));
    }
    let sort = text(&event, "type");
    if !matches!(sort, "Normal" | "Warning") {
        causes.push(unnamed("type", &format!("has invalid value: {sort}")));
    }
    let source = &event["source"];
    for (field, is_set) in [
        ("firstTimestamp", is_time(&event["firstTimestamp"])),
        ("lastTimestamp", is_time(&event["lastTimestamp"])),
        ("count", event["count"].as_i64().unwrap_or_default() != 0),
        ("source", ["component", "host"].iter().any(|it| !text(source, it).is_empty())),
    ] {
        if is_set {
            causes.push(unnamed(field, "needs to be unset"));
        }
    }
}

/// Validates an update.
pub(super) fn update(kind: &Kind, old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    const FIXED: &[&str] = &[
        "involvedObject",
        "reason",
        "message",
        "source",
        "firstTimestamp",
        "lastTimestamp",
        "count",
        "reason",
        "type",
        "eventTime",
        "action",
        "related",
        "reportingController",
        "reportingInstance",
    ];
    let (old, new) = (to_storage_version(kind, old.clone()), to_storage_version(kind, new.clone()));
    either(kind, &new, causes);
    if kind.group.is_empty() {
        return;
    }
    if old["series"] != new["series"] {
        series(&new["series"], causes);
    }
    for name in FIXED {
        let field = if *name == "reportingController" { "reportingComponent" } else { *name };
        if old[field] != new[field] {
            causes.push(Cause::invalid(*name, &new[field], "field is immutable"));
        }
    }
}

/// Upstream's message does not show the value.
fn unnamed(field: &str, why: &str) -> Cause {
    Cause::invalid(field, &"".into(), why)
}

fn series(series: &Value, causes: &mut Vec<Cause>) {
    if !series.is_object() {
        return;
    }
    if series["count"].as_i64().unwrap_or_default() < 2 {
        causes.push(unnamed("series.count", "should be at least 2"));
    }
    if !is_time(&series["lastObservedTime"]) {
        causes.push(Cause::required("series.lastObservedTime", ""));
    }
}

/// Validates what both versions have in common.
fn either(kind: &Kind, event: &Value, causes: &mut Vec<Cause>) {
    let (own, about) = (metadata_text(event, "namespace"), &event["involvedObject"]);
    let involved = text(about, "namespace");
    let is_new = is_time(&event["eventTime"]);
    let fits = match (involved.is_empty(), is_new) {
        (true, true) => matches!(own, "default" | "kube-system"),
        (true, false) => matches!(own, "" | "default"),
        (false, true) => true,
        (false, false) => own == involved,
    };
    if !fits {
        let value = involved.into();
        let why = "does not match event.namespace";
        causes.push(Cause::invalid("involvedObject.namespace", &value, why));
    }
    if !is_new {
        return;
    }
    let controller =
        if kind.group.is_empty() { "reportingComponent" } else { "reportingController" };
    let reporter = text(event, "reportingComponent");
    if reporter.is_empty() {
        causes.push(Cause::required(controller, ""));
    }
    for why in label_key_errors(reporter) {
        causes.push(Cause::invalid(controller, &reporter.into(), &why));
    }
    for field in ["reportingInstance", "action", "reason"] {
        let said = text(event, field);
        if said.is_empty() {
            causes.push(Cause::required(field, ""));
        }
        check_len(field, said, LEN_MAX, causes);
    }
    check_len("message", text(event, "message"), NOTE_LEN_MAX, causes);
}

fn check_len(field: &str, said: &str, len_max: usize, causes: &mut Vec<Cause>) {
    if said.len() > len_max {
        let why = format!("can have at most {len_max} characters");
        causes.push(unnamed(field, &why));
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn is_time(value: &Value) -> bool {
    value.as_str().is_some_and(|it| it.parse::<Timestamp>().is_ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::Kinds;
    use crate::store::{Store, StoreLimits};

    #[track_caller]
    fn check(group: &str, more: Value, want: &[&str]) {
        let kinds = Kinds::new(&mut Store::new(StoreLimits::default()), &[]);
        let kind = kinds.find_stable(group, "events").expect("a kind");
        let mut event = json!({"metadata": {"name": "e", "namespace": "a"}, "type": "Normal",
            "reason": "R", "action": "A", "reportingInstance": "i"});
        for (field, value) in more.as_object().expect("members") {
            event[field] = value.clone();
        }
        let mut causes = Vec::new();
        create(kind, &event, &mut causes);
        let got: Vec<String> =
            causes.iter().map(|it| format!("{}: {}", it.field, it.message)).collect();
        assert_eq!(got, want, "{event}");
    }

    #[test]
    fn core_events_have_the_namespace_of_their_object() {
        let wrong =
            r#"involvedObject.namespace: Invalid value: "b": does not match event.namespace"#;
        check("", json!({"involvedObject": {"namespace": "a"}}), &[]);
        check("", json!({"involvedObject": {"namespace": "b"}}), &[wrong]);
        let new = json!({"involvedObject": {"namespace": "b"}, "reportingComponent": "c",
            "eventTime": "2026-01-01T00:00:00.000000Z"});
        check("", new, &[]);
    }

    #[test]
    fn new_events_require_more_fields() {
        let new = json!({"regarding": {"namespace": "b"}, "reportingController": "c",
            "eventTime": "2026-01-01T00:00:00.000000Z"});
        let group = "events.k8s.io";
        check(group, new.clone(), &[]);
        let mut bad = new;
        bad["type"] = "Odd".into();
        bad["deprecatedCount"] = 1.into();
        bad["series"] = json!({"count": 1});
        bad["action"] = "".into();
        check(
            group,
            bad,
            &[
                "action: Required value",
                r#"series.count: Invalid value: "": should be at least 2"#,
                "series.lastObservedTime: Required value",
                r#"type: Invalid value: "": has invalid value: Odd"#,
                r#"count: Invalid value: "": needs to be unset"#,
            ],
        );
    }
}
