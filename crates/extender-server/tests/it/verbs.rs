//! The requests that handlers receive, and the responses.

use std::sync::Arc;

use loadmaster_extender_server::{Error, ExtenderServer, NodeRejection, PageReply};

use crate::{RunningServer, run};

const POD: &str = r#"{"metadata":{"name":"web","namespace":"default","uid":"u1"}}"#;

fn tiers() -> ExtenderServer {
    let tier = |node: &loadmaster_extender_server::Object| node.label("tier")?.parse::<i64>().ok();
    ExtenderServer::new()
        .filter(move |request| {
            request.filter_nodes(|_, node| match tier(node) {
                Some(0) => Err(NodeRejection::unschedulable("node(s) are full")),
                Some(_) => Ok(()),
                None => Err(NodeRejection::unresolvable("node(s) had no tier")),
            })
        })
        .prioritize(move |request| async move { request.score_nodes(|_, node| tier(node)) })
        .preempt(|request| {
            request
                .retain_candidates(|_, node, candidate| node != "b" && candidate.victims.len() < 2)
        })
        .bind(|args| match args.node.as_str() {
            "a" => Ok(()),
            node => Err(Error::new(format!("{node} is not ours"))),
        })
}

fn args(nodes: &[(&str, Option<i64>)]) -> String {
    let node = |(name, tier): &(&str, Option<i64>)| match tier {
        Some(tier) => {
            format!(r#"{{"metadata":{{"name":"{name}","labels":{{"tier":"{tier}"}}}},"x":[1]}}"#)
        }
        None => format!(r#"{{"metadata":{{"name":"{name}"}}}}"#),
    };
    let items: Vec<_> = nodes.iter().map(node).collect();
    format!(r#"{{"pod":{POD},"NODES":{{"items":[{}]}},"NodeNames":null}}"#, items.join(","))
}

#[test]
fn the_four_verbs_respond_as_go_encodes() {
    run(async {
        let server = RunningServer::start(tiers()).await;
        let nodes = args(&[("a", Some(3)), ("b", Some(0)), ("c", None), ("d", Some(42))]);
        let a = r#"{"metadata":{"name":"a","labels":{"tier":"3"}},"x":[1]}"#;
        let d = r#"{"metadata":{"name":"d","labels":{"tier":"42"}},"x":[1]}"#;
        let want = format!(
            r#"{{"Nodes":{{"metadata":{{}},"items":[{a},{d}]}},"NodeNames":null,"FailedNodes":{{"b":"node(s) are full"}},"FailedAndUnresolvableNodes":{{"c":"node(s) had no tier"}},"Error":""}}"#
        );
        assert_eq!(server.post("/filter", &nodes).await, (200, want));

        let want = r#"[{"Host":"a","Score":3},{"Host":"b","Score":0},{"Host":"c","Score":0},{"Host":"d","Score":10}]"#;
        assert_eq!(server.post("/prioritize", &nodes).await, (200, want.to_owned()));

        let body = format!(
            r#"{{"Pod":{POD},"NodeNameToVictims":{{"a":{{"Pods":[{POD}],"NumPDBViolations":1}},"b":{{"Pods":[{POD}]}}}}}}"#
        );
        let want =
            r#"{"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"u1"}],"NumPDBViolations":1}}}"#;
        assert_eq!(server.post("/preempt", &body).await, (200, want.to_owned()));
        let body = format!(
            r#"{{"Pod":{POD},"nodenametometavictims":{{"a":{{"Pods":[{{"UID":"u7"}}]}},"c":{{"Pods":[{{"UID":"u8"}},{{"uid":"u9"}}]}}}}}}"#
        );
        let want =
            r#"{"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"u7"}],"NumPDBViolations":0}}}"#;
        assert_eq!(server.post("/preempt", &body).await, (200, want.to_owned()));

        for (node, error) in [("a", ""), ("b", "b is not ours")] {
            let body = format!(
                r#"{{"podname":"web","PodNamespace":"default","PodUID":"u1","Node":"{node}"}}"#
            );
            let want = format!(r#"{{"Error":"{error}"}}"#);
            assert_eq!(server.post("/bind", &body).await, (200, want));
        }
        server.stop().await;
    });
}

#[test]
fn a_request_with_names_gets_a_response_with_names() {
    run(async {
        let known = Arc::new(["a".to_owned()]);
        let scores = known.clone();
        let server = ExtenderServer::new()
            .url_prefix("/gpus/")
            .filter(move |request| {
                request.filter_node_names(|_, node| match known.iter().any(|it| it == node) {
                    true => Ok(()),
                    false => Err(NodeRejection::unschedulable("node(s) are unknown")),
                })
            })
            .prioritize(move |request| {
                request.score_node_names(|_, node| (node == scores[0]).then_some(7))
            });
        let server = RunningServer::start(server).await;
        let body = format!(r#"{{"Pod":{POD},"Nodes":null,"NodeNames":["b","a"]}}"#);
        let want = r#"{"Nodes":null,"NodeNames":["a"],"FailedNodes":{"b":"node(s) are unknown"},"FailedAndUnresolvableNodes":null,"Error":""}"#;
        assert_eq!(server.post("/gpus/filter", &body).await, (200, want.to_owned()));
        let want = r#"[{"Host":"b","Score":0},{"Host":"a","Score":7}]"#;
        assert_eq!(server.post("/gpus/prioritize", &body).await, (200, want.to_owned()));
        assert_eq!(server.post("/filter", &body).await.0, 404);
        server.stop().await;
    });
}

#[test]
fn an_extender_that_needs_node_objects_responds_with_an_error() {
    run(async {
        let server = RunningServer::start(tiers()).await;
        let body = format!(r#"{{"Pod":{POD},"NodeNames":["a"]}}"#);
        let text = "this extender needs node objects but received node names: set nodeCacheCapable: false for it";
        let want = format!(
            r#"{{"Nodes":null,"NodeNames":null,"FailedNodes":null,"FailedAndUnresolvableNodes":null,"Error":"{text}"}}"#
        );
        assert_eq!(server.post("/filter", &body).await, (200, want));
        let want = (500, format!("prioritize: {text}\n"));
        assert_eq!(server.post("/prioritize", &body).await, want);
        server.stop().await;
    });
}

#[test]
fn bad_requests_get_an_error_message() {
    run(async {
        let server = RunningServer::start(tiers()).await;
        let long = format!(r#"{{"Pod":{POD},"Nodes":{{"items":[{{"metadata":{{}}}}]}}}}"#);
        for (path, body, status, want) in [
            ("/filter", "", 400, "the body is not a valid filter request: EOF\n"),
            ("/filter", "{", 400, "the body is not a valid filter request: unexpected EOF\n"),
            (
                "/filter",
                "[]",
                400,
                "the body is not a valid filter request: invalid type: sequence, ",
            ),
            (
                "/filter",
                "null",
                200,
                r#"{"Nodes":null,"NodeNames":null,"FailedNodes":null,"FailedAndUnresolvableNodes":null,"Error":"arg or pod is nil"}"#,
            ),
            ("/bind", r#"{"Node":"a"}"#, 200, r#"{"Error":"PodName is missing"}"#),
            ("/bind", r#"{"PodName":"a"}"#, 200, r#"{"Error":"Node is missing"}"#),
            ("/preempt", "{}", 400, "preempt: arg or pod is nil\n"),
            ("/prioritize", "null", 400, "prioritize: arg or pod is nil\n"),
            (
                "/filter",
                &long,
                400,
                "the body is not a valid filter request: an object without metadata.name",
            ),
            (
                "/filter",
                &format!(r#"{{"Pod":{POD}}}"#),
                200,
                r#"{"Nodes":null,"NodeNames":null,"FailedNodes":null,"FailedAndUnresolvableNodes":null,"Error":"cannot get node names"}"#,
            ),
            (
                "/filters",
                "{}",
                404,
                "/filters not found; the verbs are at /bind, /filter, /preempt, /prioritize\n",
            ),
            ("/version", "", 404, "/version not found; "),
            ("/metrics", "", 405, "/metrics supports only GET\n"),
        ] {
            let (code, text) = server.post(path, body).await;
            assert!(code == status && text.starts_with(want), "{path} {body}: {code} {text}");
        }
        let want = (405, "/filter supports only POST\n".to_owned());
        assert_eq!(server.get("/filter").await, want);
        server.stop().await;
    });
}

#[test]
fn pages_health_checks_and_metrics_are_served_beside_the_verbs() {
    run(async {
        let ready = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let check = ready.clone();
        let server = tiers()
            .version("1.2.3")
            .readiness_check(move || match check.load(std::sync::atomic::Ordering::Relaxed) {
                true => Ok(()),
                false => Err(Error::new("nodes are not synced yet")),
            })
            .page("/nodes", |rest| match rest.as_str() {
                "" => Ok(PageReply::json(http::StatusCode::OK, &["a", "b"])),
                rest => Err(Error::new(format!("what is {rest}?"))),
            });
        let server = RunningServer::start(server).await;
        let check = async |path: &str, status: u16, want: &str| {
            assert_eq!(server.get(path).await, (status, want.to_owned()), "{path}");
        };
        check("/healthz", 200, "ok\n").await;
        check("/readyz", 503, "not ready: nodes are not synced yet\n").await;
        ready.store(true, std::sync::atomic::Ordering::Relaxed);
        check("/readyz", 200, "ok\n").await;
        check("/version", 200, "1.2.3\n").await;
        check("/nodes", 200, r#"["a","b"]"#).await;
        check("/nodes/c/d", 500, "what is c/d?\n").await;
        assert_eq!(server.get("/nodesc").await.0, 404);
        server.post("/filter", "").await;
        server.post("/filter", &args(&[])).await;
        let (_, metrics) = server.get("/metrics").await;
        for line in [
            r#"extender_requests_total{code="200",verb="filter"} 1"#,
            r#"extender_requests_total{code="400",verb="filter"} 1"#,
            r#"extender_request_duration_seconds_count{verb="filter"} 2"#,
            "extender_requests_in_flight 0",
        ] {
            assert!(metrics.lines().any(|it| it == line), "{line}: {metrics}");
        }
        server.stop().await;
    });
}
