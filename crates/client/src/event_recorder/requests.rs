//! The requests that create and patch Events, in events.k8s.io/v1 and in core/v1.

use http::Method;
use serde_json::{Value, json};

use super::{EventWrite, ObjectReference};
use crate::api_client::Request;
use crate::leader_election::format_micro_time;
use crate::status::percent_encode;

/// The API of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventApi {
    EventsV1,
    CoreV1,
}

const PATCH: &str = "application/strategic-merge-patch+json";

/// The request that creates an Event.
pub(super) fn create(write: &EventWrite, api: EventApi, hostname: &str) -> Request {
    let event = &write.event;
    let new = &event.new_event;
    let instance = format!("{}-{hostname}", new.controller);
    let kind = if new.is_warning { "Warning" } else { "Normal" };
    let metadata = json!({ "name": event.name, "namespace": namespace(write) });
    let body = match api {
        EventApi::EventsV1 => {
            let mut body = json!({
                "apiVersion": "events.k8s.io/v1",
                "kind": "Event",
                "metadata": metadata,
                "eventTime": format_micro_time(event.time_us),
                "reportingController": new.controller,
                "reportingInstance": instance,
                "action": new.action,
                "reason": new.reason,
                "regarding": reference(&new.regarding),
                "note": new.note,
                "type": kind,
            });
            if let Some(related) = &new.related {
                body["related"] = reference(related);
            }
            if let Some(series) = write.series {
                body["series"] = series_of(series);
            }
            body
        }
        EventApi::CoreV1 => {
            let (count, last_us) = write.series.unwrap_or((1, event.time_us));
            json!({
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": metadata,
                "firstTimestamp": time(event.time_us),
                "lastTimestamp": time(last_us),
                "count": count,
                "source": { "component": new.controller },
                "reportingComponent": new.controller,
                "reportingInstance": instance,
                "reason": new.reason,
                "involvedObject": reference(&new.regarding),
                "message": new.note,
                "type": kind,
            })
        }
    };
    Request::with_body(Method::POST, path(write, api, ""), body.to_string())
}

/// The request that updates the count of an existing Event.
pub(super) fn patch(write: &EventWrite, api: EventApi, series: (u32, i64)) -> Request {
    let body = match api {
        EventApi::EventsV1 => json!({ "series": series_of(series) }),
        EventApi::CoreV1 => json!({ "count": series.0, "lastTimestamp": time(series.1) }),
    };
    let path = path(write, api, &write.event.name);
    Request { content_type: PATCH, ..Request::with_body(Method::PATCH, path, body.to_string()) }
}

fn path(write: &EventWrite, api: EventApi, name: &str) -> String {
    let group = match api {
        EventApi::EventsV1 => "/apis/events.k8s.io/v1",
        EventApi::CoreV1 => "/api/v1",
    };
    let mut path = format!("{group}/namespaces/{}/events", namespace(write));
    if !name.is_empty() {
        path.push('/');
        percent_encode(name, &mut path);
    }
    path
}

/// The namespace of an Event; `default` for objects without a namespace.
fn namespace(write: &EventWrite) -> &str {
    match write.event.new_event.regarding.namespace.as_str() {
        "" => "default",
        namespace => namespace,
    }
}

fn series_of((count, last_us): (u32, i64)) -> Value {
    json!({ "count": count, "lastObservedTime": format_micro_time(last_us) })
}

fn reference(of: &ObjectReference) -> Value {
    let mut value = json!({ "apiVersion": of.api_version, "kind": of.kind, "name": of.name });
    for (name, text) in [("namespace", &*of.namespace), ("uid", &of.uid)] {
        if !text.is_empty() {
            value[name] = text.into();
        }
    }
    value
}

fn time(us: i64) -> String {
    let time = jiff::Timestamp::from_microsecond(us).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use expect_test::{Expect, expect};

    use super::super::{Event, NewEvent};
    use super::*;

    fn write(series: Option<(u32, i64)>) -> EventWrite {
        let regarding = ObjectReference {
            api_version: "v1".into(),
            kind: "Pod".into(),
            namespace: "shop".into(),
            name: "web".into(),
            uid: "u".into(),
        };
        let node = ObjectReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: "a".into(),
            ..ObjectReference::default()
        };
        let notice = NewEvent {
            regarding,
            related: Some(node),
            is_warning: false,
            reason: "Scheduled".into(),
            action: "Binding".into(),
            note: "Successfully assigned shop/web to a".to_owned(),
            controller: "default-scheduler".into(),
        };
        let time_us = 1_770_000_000_250_000;
        EventWrite {
            event: Arc::new(Event { new_event: notice, name: "web.1".to_owned(), time_us }),
            series,
        }
    }

    #[track_caller]
    fn check(request: &Request, want: &Expect) {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let text =
            format!("{} {} {}\n{body}\n", request.method, request.path, request.content_type);
        want.assert_eq(&text);
    }

    #[test]
    fn request_bodies() {
        check(
            &create(&write(None), EventApi::EventsV1, "host"),
            &expect![[r#"
                POST /apis/events.k8s.io/v1/namespaces/shop/events application/json
                {"action":"Binding","apiVersion":"events.k8s.io/v1","eventTime":"2026-02-02T02:40:00.250000Z","kind":"Event","metadata":{"name":"web.1","namespace":"shop"},"note":"Successfully assigned shop/web to a","reason":"Scheduled","regarding":{"apiVersion":"v1","kind":"Pod","name":"web","namespace":"shop","uid":"u"},"related":{"apiVersion":"v1","kind":"Node","name":"a"},"reportingController":"default-scheduler","reportingInstance":"default-scheduler-host","type":"Normal"}
            "#]],
        );
        check(
            &patch(&write(None), EventApi::EventsV1, (2, 1_770_000_001_000_000)),
            &expect![[r#"
                PATCH /apis/events.k8s.io/v1/namespaces/shop/events/web.1 application/strategic-merge-patch+json
                {"series":{"count":2,"lastObservedTime":"2026-02-02T02:40:01.000000Z"}}
            "#]],
        );
        check(
            &create(&write(Some((3, 1_770_000_002_000_000))), EventApi::CoreV1, "host"),
            &expect![[r#"
                POST /api/v1/namespaces/shop/events application/json
                {"apiVersion":"v1","count":3,"firstTimestamp":"2026-02-02T02:40:00Z","involvedObject":{"apiVersion":"v1","kind":"Pod","name":"web","namespace":"shop","uid":"u"},"kind":"Event","lastTimestamp":"2026-02-02T02:40:02Z","message":"Successfully assigned shop/web to a","metadata":{"name":"web.1","namespace":"shop"},"reason":"Scheduled","reportingComponent":"default-scheduler","reportingInstance":"default-scheduler-host","source":{"component":"default-scheduler"},"type":"Normal"}
            "#]],
        );
    }
}
