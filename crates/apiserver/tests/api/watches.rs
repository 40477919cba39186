//! Watches. Time stands still.

use bytes::Bytes;
use expect_test::expect;
use http::Method;
use http_body_util::BodyExt as _;
use loadmaster_apiserver::store::StoreLimits;
use loadmaster_apiserver::{ApiServer, Body};
use serde_json::{Value, json};

use super::resources::pod;
use super::testkit::{
    JSON, MERGE, PODS, block_on, call, call_with, create, refused, send, server, server_with,
};

/// The next events of a watch: type, name and revision each.
async fn next(body: &mut Body) -> Vec<String> {
    let Some(frame) = body.frame().await else { return Vec::new() };
    let data = frame.expect("never fails").into_data().expect("data");
    let lines = data.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let event: Value = serde_json::from_slice(line).expect("JSON");
            let object = &event["object"];
            let kind = event["type"].as_str().unwrap_or_default();
            match kind {
                "ERROR" => format!("ERROR {}", object["message"].as_str().unwrap_or_default()),
                _ => format!("{kind} {}", object["metadata"]["name"].as_str().unwrap_or("-")),
            }
        })
        .collect()
}

#[test]
fn a_watch_sends_every_change_once() {
    let server = server();
    create(&server, PODS, pod("a"));
    let path = format!(
        "{PODS}?watch=1&labelSelector=app%3Da&allowWatchBookmarks=true\
        &sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
    );
    let mut body = send(&server, Method::GET, &path, &[], Bytes::new()).into_body();
    block_on(async {
        assert_eq!(next(&mut body).await, ["ADDED a", "BOOKMARK -"]);
        create_now(&server, "b");
        let merge = [("content-type", MERGE)];
        let leave = json!({"metadata": {"labels": {"app": "other"}}}).to_string();
        let back = json!({"metadata": {"labels": {"app": "a"}}}).to_string();
        send(&server, Method::PATCH, &format!("{PODS}/a"), &merge, leave);
        send(&server, Method::PATCH, &format!("{PODS}/a"), &merge, back);
        send(&server, Method::DELETE, &format!("{PODS}/b"), &[], Bytes::new());
        assert_eq!(
            next(&mut body).await,
            ["ADDED b", "DELETED a", "ADDED a", "MODIFIED b", "DELETED b"]
        );
    });
}

fn create_now(server: &ApiServer, name: &str) {
    let headers = [("content-type", JSON)];
    let response = send(server, Method::POST, PODS, &headers, pod(name).to_string());
    assert_eq!(response.status(), 201);
}

#[test]
fn a_watch_that_is_too_slow_gets_410() {
    let server = server_with(StoreLimits { n_changes_max: 3, ..StoreLimits::default() });
    let path = format!("{PODS}?watch=1");
    let mut body = send(&server, Method::GET, &path, &[], Bytes::new()).into_body();
    for name in ["a", "b", "c", "d", "e"] {
        create_now(&server, name);
    }
    block_on(async {
        assert_eq!(next(&mut body).await, ["ERROR too old resource version: 152 (154)"]);
        assert_eq!(next(&mut body).await, Vec::<String>::new());
    });
    refused(
        &server,
        Method::GET,
        &format!("{path}&resourceVersion=2"),
        Value::Null,
        &expect!["410 Expired: too old resource version: 2 (154)"],
    );
}

#[test]
fn a_watch_ends_at_its_timeout() {
    let server = server();
    let path = format!("{PODS}?watch=1&timeoutSeconds=7");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let mut body = send(&server, Method::GET, &path, &[], Bytes::new()).into_body();
        assert_eq!(next(&mut body).await, Vec::<String>::new());
    });
}

/// A watch reads so many changes at a time; later ones do not wait for another write.
#[test]
fn a_watch_reads_all_pending_changes_before_it_waits() {
    let server = server();
    create(&server, PODS, pod("noisy"));
    let start = create(&server, PODS, pod("a"))["metadata"]["resourceVersion"].clone();
    for n in 0..1_200 {
        let label = json!({"metadata": {"labels": {"n": n.to_string()}}});
        call_with(&server, Method::PATCH, &format!("{PODS}/noisy"), MERGE, label);
    }
    call(&server, Method::DELETE, &format!("{PODS}/a"), Value::Null);
    let start = start.as_str().expect("a revision");
    let path = format!("{PODS}?watch=1&resourceVersion={start}&fieldSelector=metadata.name=a");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let mut body = send(&server, Method::GET, &path, &[], Bytes::new()).into_body();
        let events = tokio::time::timeout(std::time::Duration::from_secs(5), next(&mut body)).await;
        assert_eq!(events.expect("in time"), ["MODIFIED a", "DELETED a"]);
    });
}

#[test]
fn watches_start_where_requested_and_continue() {
    let server = server();
    create(&server, PODS, pod("a"));
    let without = "sendInitialEvents=false&resourceVersionMatch=NotOlderThan";
    let check = |parameters: &str, has_initial: bool| {
        let path = format!("{PODS}?watch=1&{parameters}");
        let mut body = send(&server, Method::GET, &path, &[], Bytes::new()).into_body();
        if has_initial {
            assert_eq!(block_on(next(&mut body)), ["ADDED a"], "{parameters}");
        }
        create(&server, PODS, pod("b"));
        call(&server, Method::DELETE, &format!("{PODS}/b"), Value::Null);
        let want = ["ADDED b", "MODIFIED b", "DELETED b"];
        assert_eq!(block_on(next(&mut body)), want, "{parameters}");
    };
    check(without, false);
    check(&format!("{without}&resourceVersion=0"), false);
    // For ever.
    check(&format!("timeoutSeconds={}", i64::MAX), true);
    check("timeoutSeconds=-1", true);
}
