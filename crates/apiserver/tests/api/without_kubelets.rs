//! What an API server without kubelets and without metrics-server answers, and its own metrics.

use expect_test::expect;
use http::Method;
use serde_json::{Value, json};

use super::resources::pod;
use super::testkit::{PODS, bytes, call, create, refused, send, server};

#[test]
fn requests_to_containers_are_answered_with_a_sentence() {
    let server = server();
    create(&server, PODS, pod("a"));
    create(&server, "/api/v1/nodes", json!({"metadata": {"name": "n"}}));
    for (method, path, want) in [
        (
            Method::GET,
            format!("{PODS}/a/log"),
            expect![[
                r#"400 BadRequest: log of pod "a" is not available: the containers of simulated pods do not run"#
            ]],
        ),
        (
            Method::POST,
            format!("{PODS}/a/exec?command=ls&stdout=true"),
            expect![[
                r#"400 BadRequest: exec of pod "a" is not available: the containers of simulated pods do not run"#
            ]],
        ),
        (
            Method::GET,
            format!("{PODS}/a/attach"),
            expect![[
                r#"400 BadRequest: attach of pod "a" is not available: the containers of simulated pods do not run"#
            ]],
        ),
        (
            Method::POST,
            format!("{PODS}/a/portforward"),
            expect![[
                r#"400 BadRequest: portforward of pod "a" is not available: the containers of simulated pods do not run"#
            ]],
        ),
        (
            Method::GET,
            "/api/v1/nodes/n/proxy".to_owned(),
            expect![[
                r#"400 BadRequest: proxy of node "n" is not available: the containers of simulated pods do not run"#
            ]],
        ),
        (
            Method::GET,
            "/api/v1/nodes/n:10250/proxy/metrics/cadvisor".to_owned(),
            expect![[
                r#"400 BadRequest: proxy of node "n" is not available: the containers of simulated pods do not run"#
            ]],
        ),
        (
            Method::POST,
            format!("{PODS}/http:a:80/proxy/login?next=/"),
            expect![[
                r#"400 BadRequest: proxy of pod "a" is not available: the containers of simulated pods do not run"#
            ]],
        ),
        (
            Method::GET,
            "/api/v1/namespaces/default/services/web/proxy/index.html".to_owned(),
            expect![[r#"404 NotFound: services "web" not found"#]],
        ),
        (Method::GET, format!("{PODS}/b/log"), expect![[r#"404 NotFound: pods "b" not found"#]]),
        (
            Method::GET,
            format!("{PODS}/a/logs"),
            expect![["404 NotFound: the server could not find the requested resource"]],
        ),
    ] {
        refused(&server, method, &path, Value::Null, &want);
    }
}

#[test]
fn metrics_count_requests_and_objects() {
    let server = server();
    create(&server, PODS, pod("a"));
    for _ in 0..2 {
        call(&server, Method::GET, &format!("{PODS}/b"), Value::Null);
    }
    // Names that are not served are in no label.
    send(&server, Method::GET, "/apis/any.example.com/v1/things", &[], "");
    let watch = send(&server, Method::GET, &format!("{PODS}?watch=true"), &[], "");
    let shown = || {
        let text = bytes(send(&server, Method::GET, "/metrics", &[], ""));
        let text = String::from_utf8(text.to_vec()).expect("text");
        let wanted = |line: &&str| {
            let is_series = ["_total{", "_count{", "_requests{"].iter().any(|it| line.contains(it));
            is_series || line.contains("resource=\"pods\"} ")
        };
        text.lines().filter(wanted).map(|line| format!("{line}\n")).collect::<String>()
    };
    expect![[r#"
        apiserver_longrunning_requests{component="apiserver",group="",resource="pods",scope="namespace",subresource="",verb="WATCH",version="v1"} 1
        apiserver_request_duration_seconds_count{component="apiserver",dry_run="",group="",resource="",scope="",subresource="",verb="LIST",version=""} 1
        apiserver_request_duration_seconds_count{component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1"} 2
        apiserver_request_duration_seconds_count{component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="POST",version="v1"} 1
        apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="pods",scope="namespace",subresource="",verb="WATCH",version="v1"} 1
        apiserver_request_total{code="201",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="POST",version="v1"} 1
        apiserver_request_total{code="404",component="apiserver",dry_run="",group="",resource="",scope="",subresource="",verb="LIST",version=""} 1
        apiserver_request_total{code="404",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1"} 2
        apiserver_resource_objects{group="",resource="pods"} 1
    "#]]
    .assert_eq(&shown());
    drop(watch);
    let active = shown();
    let active = active.lines().find(|it| it.starts_with("apiserver_longrunning_requests"));
    assert!(active.is_some_and(|it| it.ends_with(" 0")), "{active:?}");
}
