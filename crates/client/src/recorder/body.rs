//! Events as JSON: in events.k8s.io/v1, and in core/v1.

use http::Method;
use serde_json::{Value, json};

use super::{Reference, Write};
use crate::answer::escape;
use crate::lane::Request;
use crate::lease::micro_time;

/// In which group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Events,
    Core,
}

const PATCH: &str = "application/strategic-merge-patch+json";

/// Creates the Event.
pub(super) fn create(write: &Write, style: Style, hostname: &str) -> Request {
    let event = &write.event;
    let notice = &event.notice;
    let instance = format!("{}-{hostname}", notice.controller);
    let kind = if notice.is_warning { "Warning" } else { "Normal" };
    let metadata = json!({ "name": event.name, "namespace": namespace(write) });
    let body = match style {
        Style::Events => {
            let mut body = json!({
                "apiVersion": "events.k8s.io/v1",
                "kind": "Event",
                "metadata": metadata,
                "eventTime": micro_time(event.time_us),
                "reportingController": notice.controller,
                "reportingInstance": instance,
                "action": notice.action,
                "reason": notice.reason,
                "regarding": reference(&notice.regarding),
                "note": notice.note,
                "type": kind,
            });
            if let Some(related) = &notice.related {
                body["related"] = reference(related);
            }
            if let Some(series) = write.series {
                body["series"] = series_of(series);
            }
            body
        }
        Style::Core => {
            let (count, last_us) = write.series.unwrap_or((1, event.time_us));
            json!({
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": metadata,
                "firstTimestamp": time(event.time_us),
                "lastTimestamp": time(last_us),
                "count": count,
                "source": { "component": notice.controller },
                "reportingComponent": notice.controller,
                "reportingInstance": instance,
                "reason": notice.reason,
                "involvedObject": reference(&notice.regarding),
                "message": notice.note,
                "type": kind,
            })
        }
    };
    Request::with(Method::POST, path(write, style, ""), body.to_string())
}

/// Writes the count of an Event that exists.
pub(super) fn patch(write: &Write, style: Style, series: (u32, i64)) -> Request {
    let body = match style {
        Style::Events => json!({ "series": series_of(series) }),
        Style::Core => json!({ "count": series.0, "lastTimestamp": time(series.1) }),
    };
    let path = path(write, style, &write.event.name);
    Request { content_type: PATCH, ..Request::with(Method::PATCH, path, body.to_string()) }
}

fn path(write: &Write, style: Style, name: &str) -> String {
    let group = match style {
        Style::Events => "/apis/events.k8s.io/v1",
        Style::Core => "/api/v1",
    };
    let mut path = format!("{group}/namespaces/{}/events", namespace(write));
    if !name.is_empty() {
        path.push('/');
        escape(name, &mut path);
    }
    path
}

/// Events about objects without a namespace live in `default`.
fn namespace(write: &Write) -> &str {
    match write.event.notice.regarding.namespace.as_str() {
        "" => "default",
        namespace => namespace,
    }
}

fn series_of((count, last_us): (u32, i64)) -> Value {
    json!({ "count": count, "lastObservedTime": micro_time(last_us) })
}

fn reference(of: &Reference) -> Value {
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

    use super::super::{Event, Notice};
    use super::*;

    fn write(series: Option<(u32, i64)>) -> Write {
        let regarding = Reference {
            api_version: "v1".into(),
            kind: "Pod".into(),
            namespace: "shop".into(),
            name: "web".into(),
            uid: "u".into(),
        };
        let node = Reference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: "a".into(),
            ..Reference::default()
        };
        let notice = Notice {
            regarding,
            related: Some(node),
            is_warning: false,
            reason: "Scheduled".into(),
            action: "Binding".into(),
            note: "Successfully assigned shop/web to a".to_owned(),
            controller: "default-scheduler".into(),
        };
        let time_us = 1_770_000_000_250_000;
        Write { event: Arc::new(Event { notice, name: "web.1".to_owned(), time_us }), series }
    }

    #[track_caller]
    fn check(request: &Request, want: &Expect) {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let text =
            format!("{} {} {}\n{body}\n", request.method, request.path, request.content_type);
        want.assert_eq(&text);
    }

    #[test]
    fn bodies() {
        check(
            &create(&write(None), Style::Events, "host"),
            &expect![[r#"
                POST /apis/events.k8s.io/v1/namespaces/shop/events application/json
                {"action":"Binding","apiVersion":"events.k8s.io/v1","eventTime":"2026-02-02T02:40:00.250000Z","kind":"Event","metadata":{"name":"web.1","namespace":"shop"},"note":"Successfully assigned shop/web to a","reason":"Scheduled","regarding":{"apiVersion":"v1","kind":"Pod","name":"web","namespace":"shop","uid":"u"},"related":{"apiVersion":"v1","kind":"Node","name":"a"},"reportingController":"default-scheduler","reportingInstance":"default-scheduler-host","type":"Normal"}
            "#]],
        );
        check(
            &patch(&write(None), Style::Events, (2, 1_770_000_001_000_000)),
            &expect![[r#"
                PATCH /apis/events.k8s.io/v1/namespaces/shop/events/web.1 application/strategic-merge-patch+json
                {"series":{"count":2,"lastObservedTime":"2026-02-02T02:40:01.000000Z"}}
            "#]],
        );
        check(
            &create(&write(Some((3, 1_770_000_002_000_000))), Style::Core, "host"),
            &expect![[r#"
                POST /api/v1/namespaces/shop/events application/json
                {"apiVersion":"v1","count":3,"firstTimestamp":"2026-02-02T02:40:00Z","involvedObject":{"apiVersion":"v1","kind":"Pod","name":"web","namespace":"shop","uid":"u"},"kind":"Event","lastTimestamp":"2026-02-02T02:40:02Z","message":"Successfully assigned shop/web to a","metadata":{"name":"web.1","namespace":"shop"},"reason":"Scheduled","reportingComponent":"default-scheduler","reportingInstance":"default-scheduler-host","source":{"component":"default-scheduler"},"type":"Normal"}
            "#]],
        );
    }
}
