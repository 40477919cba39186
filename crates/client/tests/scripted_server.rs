//! API clients, reflectors, the API dispatcher, the event recorder and leader election against a scripted server.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]
#![allow(clippy::disallowed_types, reason = "the server is shared between tasks")]

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{ReceivedRequest, ServerReply, script, serve, serve_h2, soon};
use loadmaster_api::ExtraFieldsByKind;
use loadmaster_client::api_dispatcher::{
    ApiCall, ApiCallOutcome, ApiDispatcher, ApiDispatcherLimits, FinishedCall,
};
use loadmaster_client::event_recorder::{
    EventRecorder, EventRecorderOptions, NewEvent, ObjectReference,
};
use loadmaster_client::leader_election::{
    LeaderElectionOptions, LeaderElectionTiming, start_leader_election,
};
use loadmaster_client::listing::list_all;
use loadmaster_client::reflector::{
    KindUnavailableReason, ObjectFormat, ReflectorEvent, ReflectorOptions, start_reflectors,
};
use loadmaster_client::{
    ApiClients, Credentials, Kind, KubeconfigSource, RemoteScheduler, RemoteSchedulerOptions,
    Request, RequestOutcome, SendError,
};
use loadmaster_framework::api_calls::{ApiRequest, Verb};
use serde_json::json;
use tokio::sync::{Barrier, mpsc};

#[tokio::test]
async fn requests_carry_credentials_and_user_agent() {
    let server = serve(script(|request: ReceivedRequest| async move {
        let header = |name: &str| request.headers[name].to_str().unwrap().to_owned();
        let text = format!("{} {} {}", request.path, header("authorization"), header("user-agent"));
        ServerReply::Reply(200, text)
    }))
    .await;
    let clients = ApiClients::new(&server.cluster().await);
    let reply = soon(clients.other.call(&Request::get("/api?x=1"))).await.unwrap();
    assert_eq!(reply.body, "/api?x=1 Bearer secret tester");
    assert!(!reply.is_protobuf && reply.is_success());
}

#[tokio::test]
async fn http2_concurrency_follows_the_servers_settings() {
    let (n_now, n_most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let most = n_most.clone();
    let server = serve_h2(
        script(move |_| {
            let (now, most) = (n_now.clone(), most.clone());
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                now.fetch_sub(1, Ordering::SeqCst);
                ServerReply::Reply(200, "ok".to_owned())
            }
        }),
        5,
    )
    .await;
    let clients = ApiClients::new(&server.cluster().await);
    // The first response brings the server's SETTINGS.
    soon(clients.events.call(&Request::get("/api"))).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let client = clients.events.clone();
        tasks.spawn(async move { client.call(&Request::get("/api")).await });
    }
    while let Some(done) = soon(tasks.join_next()).await {
        assert_eq!(done.unwrap().unwrap().body, "ok");
    }
    assert!(n_most.load(Ordering::SeqCst) <= 5);
    assert_eq!(server.n_connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn http1_connections_are_pooled_and_reused() {
    let together = Arc::new(Barrier::new(10));
    let server = serve(script(move |_| {
        let together = together.clone();
        async move {
            together.wait().await;
            ServerReply::Reply(200, "ok".to_owned())
        }
    }))
    .await;
    let clients = ApiClients::new(&server.cluster().await);
    for _ in 0..3 {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let client = clients.other.clone();
            tasks.spawn(async move { client.call(&Request::get("/api")).await });
        }
        while let Some(done) = soon(tasks.join_next()).await {
            done.unwrap().unwrap();
        }
    }
    assert_eq!(server.n_connections.load(Ordering::SeqCst), 10);
}

#[tokio::test]
async fn errors_say_whether_the_request_may_have_arrived() {
    let server = serve(script(|request: ReceivedRequest| async move {
        match &*request.path {
            "/disconnect" => ServerReply::Disconnect,
            "/large" => ServerReply::Reply(200, "x".repeat(1000)),
            _ => std::future::pending().await,
        }
    }))
    .await;
    let cluster = server.cluster().await;
    let clients = ApiClients::new(&cluster);
    let call = async |path: &str, timeout: Duration| {
        let request = Request { timeout, response_bytes_max: 100, ..Request::get(path) };
        soon(clients.other.call(&request)).await.unwrap_err()
    };
    let lost = call("/disconnect", common::LONG).await;
    assert!(matches!(lost, SendError::Lost { .. }) && lost.may_have_arrived(), "{lost}");
    let large = call("/large", common::LONG).await;
    assert!(matches!(large, SendError::TooLarge { bytes_max: 100, .. }), "{large}");
    let late = call("/late", Duration::from_millis(50)).await;
    assert!(matches!(late, SendError::TimedOut { was_sent: true, .. }), "{late}");

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let unreachable = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let options = loadmaster_client::ClusterOptions {
        kubeconfig: None,
        context: None,
        master: Some(unreachable.clone()),
        user_agent: "tester".to_owned(),
    };
    let clients =
        ApiClients::new(&loadmaster_client::Cluster::from_options(&options).await.unwrap());
    let unsent = soon(clients.bind.call(&Request::get("/api"))).await.unwrap_err();
    assert!(!unsent.may_have_arrived());
    assert!(
        unsent
            .to_string()
            .starts_with(&format!("connecting to {unreachable}/: ").replace("/:", ":"))
    );
}

fn options_for(kinds: &[Kind]) -> ReflectorOptions {
    ReflectorOptions {
        kinds: kinds.to_vec(),
        use_watch_list: true,
        format: ObjectFormat::Protobuf,
        keep_raw: false,
        needs: ExtraFieldsByKind::default(),
        seed: 1,
    }
}

fn describe_event(event: &ReflectorEvent) -> String {
    match event {
        ReflectorEvent::Upsert { object, .. } => format!("set {}", object.metadata().unwrap().name),
        ReflectorEvent::Delete { name, .. } => format!("deleted {name}"),
        ReflectorEvent::Synced(kind) => format!("synced {kind:?}"),
        ReflectorEvent::Unavailable { why: KindUnavailableReason::Forbidden { rule }, .. } => {
            rule.clone()
        }
        other => format!("{other:?}"),
    }
}

async fn take_events(events: &mut mpsc::Receiver<ReflectorEvent>, n: usize) -> Vec<String> {
    let mut all = Vec::new();
    for _ in 0..n {
        all.push(describe_event(&soon(events.recv()).await.unwrap()));
    }
    all
}

fn event(kind: &str, name: &str, version: u64) -> String {
    let annotations =
        if name == "END" { r#","annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
    format!(
        "{{\"type\":\"{kind}\",\"object\":{{\"metadata\":{{\"name\":\"{name}\",\"uid\":\"u\",\"resourceVersion\":\"{version}\"{annotations}}}}}}}\n"
    )
}

#[tokio::test]
async fn a_reflector_resumes_a_watch_that_breaks() {
    let (send, receive) = mpsc::channel(8);
    let receive = Arc::new(Mutex::new(Some(receive)));
    let server = serve(script(move |request: ReceivedRequest| {
        let first = receive.lock().unwrap().take();
        async move {
            match first {
                Some(chunks) if request.path.contains("sendInitialEvents=true") => {
                    ServerReply::Stream(chunks)
                }
                // The watch resumes at the last resourceVersion.
                None if request.path.contains("resourceVersion=11&") => {
                    let (send, chunks) = mpsc::channel(8);
                    send.send(event("ADDED", "c", 12)).await.unwrap();
                    tokio::spawn(async move {
                        send.closed().await;
                    });
                    ServerReply::Stream(chunks)
                }
                _ => ServerReply::Reply(500, request.path),
            }
        }
    }))
    .await;
    let clients = ApiClients::new(&server.cluster().await);
    let (out, mut events) = mpsc::channel(100);
    let reflectors = start_reflectors(&clients.watch, &options_for(&[Kind::Node]), &out);
    send.send(event("ADDED", "a", 3) + &event("ADDED", "b", 4)[..20]).await.unwrap();
    assert_eq!(take_events(&mut events, 1).await, ["set a"]);
    send.send(event("ADDED", "b", 4)[20..].to_owned()).await.unwrap();
    send.send(event("BOOKMARK", "END", 9)).await.unwrap();
    assert_eq!(take_events(&mut events, 2).await, ["set b", "synced Node"]);
    send.send(event("MODIFIED", "a", 10) + &event("DELETED", "b", 11)).await.unwrap();
    drop(send);
    assert_eq!(take_events(&mut events, 3).await, ["set a", "deleted b", "set c"]);
    let (kind, counts) = reflectors.stats().next().unwrap();
    assert_eq!((kind, counts.n_watches, counts.n_events, counts.n_objects), (Kind::Node, 2, 6, 2));
}

#[tokio::test]
async fn paged_lists_and_forbidden_kinds() {
    let server = serve(script(|request: ReceivedRequest| async move {
        if request.path.contains("sendInitialEvents") {
            return ServerReply::Reply(422, r#"{"kind":"Status","message":"sendInitialEvents is forbidden"}"#.into());
        }
        if request.path.starts_with("/apis/policy") {
            return ServerReply::Reply(403, r#"{"kind":"Status","message":"no"}"#.into());
        }
        if request.path.contains("watch=true") {
            std::future::pending::<()>().await;
        }
        let (items, after) = if request.path.contains("continue=next") {
            (r#"{"metadata":{"name":"b","resourceVersion":"2"}}"#, "")
        } else {
            (r#"{"metadata":{"name":"a","resourceVersion":"1"}}"#, "next")
        };
        ServerReply::Reply(200, format!(r#"{{"kind":"NodeList","metadata":{{"resourceVersion":"5","continue":"{after}"}},"items":[{items}]}}"#))
    }))
    .await;
    let clients = ApiClients::new(&server.cluster().await);
    let (out, mut events) = mpsc::channel(100);
    let nodes = start_reflectors(&clients.watch, &options_for(&[Kind::Node]), &out);
    assert_eq!(take_events(&mut events, 3).await, ["set a", "set b", "synced Node"]);
    drop(nodes);
    let _budgets =
        start_reflectors(&clients.watch, &options_for(&[Kind::PodDisruptionBudget]), &out);
    assert_eq!(
        take_events(&mut events, 1).await,
        ["list poddisruptionbudgets in policy at cluster scope"]
    );
}

fn bind(id: u64, pod: &str) -> ApiCall {
    let request = ApiRequest {
        verb: Verb::Create,
        group: "".into(),
        version: "v1".into(),
        resource: "pods".into(),
        namespace: "n".into(),
        name: pod.into(),
        subresource: "binding".into(),
        body: Some(
            json!({"metadata": {"name": pod, "uid": "u"}, "target": {"kind": "Node", "name": "a"}}),
        ),
    };
    ApiCall { id, request }
}

#[tokio::test]
async fn the_outcome_of_a_bind_whose_reply_is_lost_is_read() {
    let server = serve(script(|request: ReceivedRequest| async move {
        let pod = request.path.split('/').nth(6).unwrap().to_owned();
        let node = |name: &str| {
            ServerReply::Reply(
                200,
                json!({"metadata": {"uid": "u"}, "spec": {"nodeName": name}}).to_string(),
            )
        };
        match (&*request.method, &*pod) {
            ("POST", "good") => ServerReply::Reply(201, "{}".to_owned()),
            ("POST", "taken") => ServerReply::Reply(
                409,
                json!({"kind": "Status", "reason": "Conflict", "message": "no"}).to_string(),
            ),
            ("POST", "forbidden") => ServerReply::Reply(403, "{}".to_owned()),
            ("POST", _) => ServerReply::Disconnect,
            ("GET", "lost") => node("a"),
            ("GET", "elsewhere") => node("b"),
            _ => ServerReply::Reply(404, "{}".to_owned()),
        }
    }))
    .await;
    let (outcomes_sender, mut outcomes) = mpsc::unbounded_channel();
    let clients = ApiClients::new(&server.cluster().await).observed_by(Arc::new(move |outcome| {
        let RequestOutcome { method, status, .. } = outcome;
        let _ = outcomes_sender.send(format!("{method} {status:?}"));
    }));
    let (out, mut finished) = mpsc::channel(100);
    let calls = ApiDispatcher::start(&clients, ApiDispatcherLimits::default(), out);
    let pods = ["good", "taken", "lost", "elsewhere", "deleted", "forbidden"];
    for (id, pod) in pods.iter().enumerate() {
        calls.submit(bind(id as u64, pod)).unwrap();
    }
    let mut results = vec![String::new(); pods.len()];
    for _ in pods {
        let FinishedCall { id, outcome } = soon(finished.recv()).await.unwrap();
        results[id as usize] = match outcome {
            ApiCallOutcome::Done(_) => "done".to_owned(),
            ApiCallOutcome::Refused { status, reason, .. } => format!("{status} {reason}"),
            other => format!("{other:?}"),
        };
    }
    assert_eq!(
        results,
        ["done", "409 Conflict", "done", r#"BoundElsewhere { node: "b" }"#, "404 ", "403 "]
    );
    soon(calls.drain()).await;
    let stats = calls.stats();
    assert_eq!(stats.n_unknown_binds, 3);
    let counts = (stats.n_binds_succeeded, stats.n_binds_in_conflict, stats.n_binds_failed);
    assert_eq!(counts, (2, 3, 1));
    let mut counts = BTreeMap::new();
    while let Ok(outcome) = outcomes.try_recv() {
        *counts.entry(outcome).or_insert(0) += 1;
    }
    let want = [
        ("GET Some(200)", 2),
        ("GET Some(404)", 1),
        ("POST None", 3),
        ("POST Some(201)", 1),
        ("POST Some(403)", 1),
        ("POST Some(409)", 1),
    ];
    assert_eq!(counts, want.map(|(outcome, n)| (outcome.to_owned(), n)).into());
    calls.close();
    assert!(calls.submit(bind(9, "good")).is_err());
}

#[tokio::test]
async fn a_full_queue_returns_the_call_and_stop_drops_all_calls() {
    let server = serve(script(|_| async { std::future::pending().await })).await;
    let clients = ApiClients::new(&server.cluster().await);
    let (out, mut finished) = mpsc::channel(100);
    let limits =
        ApiDispatcherLimits { n_waiting_max: 2, n_binds_max: 1, ..ApiDispatcherLimits::default() };
    let calls = ApiDispatcher::start(&clients, limits, out);
    calls.submit(bind(0, "a")).unwrap();
    while calls.stats().n_binds_in_flight == 0 {
        tokio::task::yield_now().await;
    }
    calls.submit(bind(1, "b")).unwrap();
    calls.submit(bind(2, "c")).unwrap();
    let full = calls.submit(bind(3, "d")).unwrap_err();
    assert_eq!(full.0.id, 3);
    calls.stop();
    soon(calls.drain()).await;
    assert!(soon(finished.recv()).await.is_none());
}

#[tokio::test]
async fn other_calls_are_retried_and_return_the_object() {
    let n_requests = Arc::new(AtomicUsize::new(0));
    let server = serve(script(move |request: ReceivedRequest| {
        let nth = n_requests.fetch_add(1, Ordering::SeqCst);
        async move {
            assert_eq!(request.headers["content-type"], "application/merge-patch+json");
            match nth {
                0 => ServerReply::RetryAfter(429, 0, "{}".to_owned()),
                1 => ServerReply::Disconnect,
                _ => ServerReply::Reply(200, request.body),
            }
        }
    }))
    .await;
    let clients = ApiClients::new(&server.cluster().await);
    let (out, mut finished) = mpsc::channel(100);
    let calls = ApiDispatcher::start(
        &clients,
        ApiDispatcherLimits { qps: 1000.0, burst: 1, ..ApiDispatcherLimits::default() },
        out,
    );
    let mut job = bind(7, "p");
    job.request.verb = Verb::MergePatch;
    job.request.subresource = "status".into();
    job.request.body = Some(json!({"status": {}}));
    calls.submit(job).unwrap();
    let done = soon(finished.recv()).await.unwrap();
    assert_eq!(done, FinishedCall { id: 7, outcome: ApiCallOutcome::Done(json!({"status": {}})) });
}

fn new_event(pod: &str, note: &str) -> NewEvent {
    let (namespace, name) = ("n".into(), pod.into());
    NewEvent {
        regarding: ObjectReference { namespace, name, ..ObjectReference::default() },
        related: None,
        is_warning: false,
        reason: "Scheduled".into(),
        action: "Binding".into(),
        note: note.to_owned(),
        controller: "me".into(),
    }
}

#[tokio::test]
async fn events_are_written_and_repetitions_are_counted() {
    let written = Arc::new(Mutex::new(Vec::new()));
    let log = written.clone();
    let server = serve(script(move |request: ReceivedRequest| {
        let log = log.clone();
        async move {
            match &*request.method {
                "GET" => return ServerReply::Reply(200, "{}".to_owned()),
                // The Event has expired meanwhile.
                "PATCH" => return ServerReply::Reply(404, "{}".to_owned()),
                _ => {}
            }
            let body: serde_json::Value = serde_json::from_str(&request.body).unwrap();
            let refuse = body["note"] == "bad";
            log.lock().unwrap().push(format!(
                "{} {} {}",
                body["regarding"]["name"].as_str().unwrap(),
                body["note"].as_str().unwrap(),
                body["series"]["count"]
            ));
            if refuse {
                ServerReply::Reply(422, "{}".to_owned())
            } else {
                ServerReply::Reply(201, "{}".to_owned())
            }
        }
    }))
    .await;
    let clients = ApiClients::new(&server.cluster().await);
    let options = EventRecorderOptions {
        n_waiting_max: 3,
        n_writing_max: 1,
        ..EventRecorderOptions::default()
    };
    let recorder = EventRecorder::start(&clients.events, options);
    for (pod, note) in [("a", "x"), ("b", "bad"), ("a", "x"), ("c", "too many")] {
        recorder.record(new_event(pod, note));
    }
    soon(recorder.drain()).await;
    assert_eq!(*written.lock().unwrap(), ["a x null", "b bad null", "a x 2"]);
    let stats = recorder.stats();
    assert_eq!((stats.n_written, stats.n_failed, stats.n_dropped, stats.n_waiting), (2, 1, 1, 0));
}

#[tokio::test]
async fn without_events_v1_events_are_written_as_core_v1() {
    let (paths, mut received_paths) = mpsc::channel(10);
    let server = serve(script(move |request: ReceivedRequest| {
        let paths = paths.clone();
        async move {
            if request.method == "GET" {
                return ServerReply::Reply(404, "{}".to_owned());
            }
            paths.send(request.path).await.unwrap();
            ServerReply::Reply(201, "{}".to_owned())
        }
    }))
    .await;
    let clients = ApiClients::new(&server.cluster().await);
    let recorder = EventRecorder::start(&clients.events, EventRecorderOptions::default());
    recorder.record(new_event("a", "x"));
    assert_eq!(soon(received_paths.recv()).await.unwrap(), "/api/v1/namespaces/n/events");
}

#[tokio::test]
async fn a_lease_is_acquired_and_released() {
    let store = Arc::new(Mutex::new((0u64, serde_json::Value::Null)));
    let seen = store.clone();
    let server = serve(script(move |request: ReceivedRequest| {
        let store = store.clone();
        async move {
            let (version, lease) = &mut *store.lock().unwrap();
            if request.method == "GET" {
                let status = if lease.is_null() { 404 } else { 200 };
                return ServerReply::Reply(status, lease.to_string());
            }
            let mut body: serde_json::Value = serde_json::from_str(&request.body).unwrap();
            let base = body["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            if request.method == "PUT" && base != version.to_string() {
                return ServerReply::Reply(409, "{}".to_owned());
            }
            *version += 1;
            body["metadata"]["resourceVersion"] = version.to_string().into();
            body["metadata"]["uid"] = "lease-uid".into();
            *lease = body;
            ServerReply::Reply(200, lease.to_string())
        }
    }))
    .await;
    let clients = ApiClients::new(&server.cluster().await);
    let timing = LeaderElectionTiming {
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
    };
    let options = |identity: &str| LeaderElectionOptions {
        namespace: "kube-system".to_owned(),
        name: "kube-scheduler".to_owned(),
        identity: identity.to_owned(),
        timing,
    };
    let first = start_leader_election(&clients.lease, options("first"));
    let mut status = first.status();
    soon(status.wait_for(|status| status.is_leading && status.leader == "first")).await.unwrap();
    assert_eq!(status.borrow().uid, "lease-uid");
    let second = start_leader_election(&clients.lease, options("second"));
    let mut waiting = second.status();
    soon(waiting.wait_for(|status| status.leader == "first")).await.unwrap();
    assert!(!waiting.borrow().is_leading);
    soon(first.release()).await;
    assert!(status.borrow().has_stopped && !status.borrow().is_leading);
    let released = seen.lock().unwrap().1["spec"].clone();
    assert_eq!(
        (&released["holderIdentity"], &released["leaseDurationSeconds"]),
        (&json!(""), &json!(1))
    );
    soon(waiting.wait_for(|status| status.is_leading)).await.unwrap();
    assert_eq!(seen.lock().unwrap().1["spec"]["leaseTransitions"], 1);
    drop(second);
}

#[tokio::test]
async fn a_list_is_read_to_its_end_and_restarted_when_it_expires() {
    let n_expired = Arc::new(AtomicUsize::new(0));
    let count = n_expired.clone();
    let node = |name: &str, more: &str| {
        let items = json!([{"metadata": {"name": name}}]);
        json!({"kind": "NodeList", "metadata": {"continue": more}, "items": items}).to_string()
    };
    let server = serve(script(move |request: ReceivedRequest| {
        let count = count.clone();
        async move {
            if !request.path.contains("continue=") {
                return ServerReply::Reply(200, node("a", "more"));
            }
            if count.fetch_add(1, Ordering::SeqCst) == 0 {
                return ServerReply::Reply(410, "{}".to_owned());
            }
            ServerReply::Reply(200, node("b", ""))
        }
    }))
    .await;
    let clients = ApiClients::new(&server.cluster().await);
    let name = |object: loadmaster_api::proto::Object| Some(object.metadata()?.name.to_string());
    let names = soon(list_all(&clients.other, Kind::Node, name)).await.unwrap();
    assert_eq!(
        (names, n_expired.load(Ordering::SeqCst)),
        (vec!["a".to_owned(), "b".to_owned()], 2)
    );
}

#[tokio::test]
async fn a_refused_list_is_an_error_with_the_servers_message() {
    let server =
        serve(script(|_| async { ServerReply::Reply(403, r#"{"message":"no"}"#.to_owned()) }))
            .await;
    let clients = ApiClients::new(&server.cluster().await);
    let listed = soon(list_all(&clients.other, Kind::Pod, Some)).await;
    assert_eq!(listed.err().unwrap(), "listing pods: 403 no");
}

/// Queries a scheduler; the body of its response, or the error.
async fn query(options: RemoteSchedulerOptions) -> Result<String, String> {
    let blocking = tokio::task::spawn_blocking(move || {
        let remote = RemoteScheduler::new(&options).map_err(|error| error.to_string())?;
        let reply = remote.http_get("/explain/a/b").map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&reply.body).into_owned())
    });
    soon(blocking).await.unwrap()
}

#[tokio::test]
async fn a_remote_scheduler_needs_a_trusted_certificate() {
    let who = |request: ReceivedRequest| async move {
        let header = request.headers.get("authorization").map(|it| it.to_str().unwrap().to_owned());
        ServerReply::Reply(200, format!("{} {}", request.path, header.unwrap_or_default()))
    };
    let server = serve_h2(script(who), 5).await;
    let url = server.url();
    let query_as = |credentials: Credentials, change: fn(&mut RemoteSchedulerOptions)| {
        let server = url.clone();
        let mut options =
            RemoteSchedulerOptions { server, credentials, ..RemoteSchedulerOptions::default() };
        change(&mut options);
        query(options)
    };
    let unknown = query_as(Credentials::None, |_| ()).await.unwrap_err();
    assert!(unknown.contains("certificate"), "{unknown}");
    let body = query_as(Credentials::None, |it| it.insecure_skip_tls_verify = true).await;
    assert_eq!(body.unwrap(), "/explain/a/b ");
    let token = Credentials::Token("mine\n".to_owned());
    let body = query_as(token, |it| it.insecure_skip_tls_verify = true).await;
    assert_eq!(body.unwrap(), "/explain/a/b Bearer mine");
    // From a kubeconfig the user and the CA are used.
    let user = KubeconfigSource { kubeconfig: Some(server.kubeconfig.clone()), context: None };
    let body = query_as(Credentials::Kubeconfig(user), |_| ()).await;
    assert_eq!(body.unwrap(), "/explain/a/b Bearer secret");
}
