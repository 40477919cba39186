//! Lanes and all that goes over them, against a scripted server.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]
#![allow(clippy::disallowed_types, reason = "the server is shared between tasks")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Asked, Say, script, serve, serve_h2, soon};
use loadmaster_api::Needs;
use loadmaster_client::calls::{Calls, Finished, Job, Limits, Outcome};
use loadmaster_client::lease::{LeaseOptions, Timing, hold};
use loadmaster_client::listing::list;
use loadmaster_client::recorder::{Notice, Recorder, RecorderOptions, Reference};
use loadmaster_client::watch::{Change, Follow, Form, Unavailable, follow};
use loadmaster_client::{
    Credentials, Kind, Lanes, Options, Remote, RemoteOptions, Request, SendError,
};
use loadmaster_framework::request::{ApiRequest, Verb};
use serde_json::json;
use tokio::sync::{Barrier, mpsc};

#[tokio::test]
async fn requests_carry_who_asks() {
    let server = serve(script(|asked: Asked| async move {
        let header = |name: &str| asked.headers[name].to_str().unwrap().to_owned();
        let text = format!("{} {} {}", asked.path, header("authorization"), header("user-agent"));
        Say::Reply(200, text)
    }))
    .await;
    let lanes = Lanes::new(&server.cluster().await);
    let reply = soon(lanes.other.call(&Request::get("/api?x=1"))).await.unwrap();
    assert_eq!(reply.body, "/api?x=1 Bearer secret tester");
    assert!(!reply.is_protobuf && reply.is_success());
}

#[tokio::test]
async fn http2_carries_as_many_as_the_server_allows_and_no_more() {
    let (n_now, n_most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let most = n_most.clone();
    let server = serve_h2(
        script(move |_| {
            let (now, most) = (n_now.clone(), most.clone());
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                now.fetch_sub(1, Ordering::SeqCst);
                Say::Reply(200, "ok".to_owned())
            }
        }),
        5,
    )
    .await;
    let lanes = Lanes::new(&server.cluster().await);
    // The first answer brings the server's settings.
    soon(lanes.events.call(&Request::get("/api"))).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let lane = lanes.events.clone();
        tasks.spawn(async move { lane.call(&Request::get("/api")).await });
    }
    while let Some(done) = soon(tasks.join_next()).await {
        assert_eq!(done.unwrap().unwrap().body, "ok");
    }
    assert!(n_most.load(Ordering::SeqCst) <= 5);
    assert_eq!(server.n_connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn http1_has_a_pool_that_is_used_again() {
    let together = Arc::new(Barrier::new(10));
    let server = serve(script(move |_| {
        let together = together.clone();
        async move {
            together.wait().await;
            Say::Reply(200, "ok".to_owned())
        }
    }))
    .await;
    let lanes = Lanes::new(&server.cluster().await);
    for _ in 0..3 {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let lane = lanes.other.clone();
            tasks.spawn(async move { lane.call(&Request::get("/api")).await });
        }
        while let Some(done) = soon(tasks.join_next()).await {
            done.unwrap().unwrap();
        }
    }
    assert_eq!(server.n_connections.load(Ordering::SeqCst), 10);
}

#[tokio::test]
async fn errors_say_whether_the_request_arrived() {
    let server = serve(script(|asked: Asked| async move {
        match &*asked.path {
            "/cut" => Say::Cut,
            "/large" => Say::Reply(200, "x".repeat(1000)),
            _ => std::future::pending().await,
        }
    }))
    .await;
    let cluster = server.cluster().await;
    let lanes = Lanes::new(&cluster);
    let call = async |path: &str, timeout: Duration| {
        let request = Request { timeout, answer_bytes_max: 100, ..Request::get(path) };
        soon(lanes.other.call(&request)).await.unwrap_err()
    };
    let cut = call("/cut", common::LONG).await;
    assert!(matches!(cut, SendError::Lost { .. }) && cut.may_have_arrived(), "{cut}");
    let large = call("/large", common::LONG).await;
    assert!(matches!(large, SendError::TooLarge { bytes_max: 100, .. }), "{large}");
    let late = call("/late", Duration::from_millis(50)).await;
    assert!(matches!(late, SendError::TimedOut { was_sent: true, .. }), "{late}");

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let options = loadmaster_client::ClusterOptions {
        kubeconfig: None,
        context: None,
        master: Some(nobody.clone()),
        user_agent: "tester".to_owned(),
    };
    let lanes = Lanes::new(&loadmaster_client::Cluster::find(&options).await.unwrap());
    let unsent = soon(lanes.bind.call(&Request::get("/api"))).await.unwrap_err();
    assert!(!unsent.may_have_arrived());
    assert!(
        unsent.to_string().starts_with(&format!("connecting to {nobody}/: ").replace("/:", ":"))
    );
}

fn follow_what(kinds: &[Kind]) -> Follow {
    Follow {
        kinds: kinds.to_vec(),
        streams: true,
        form: Form::Protobuf,
        keep_raw: false,
        needs: Needs::default(),
        seed: 1,
    }
}

fn told(change: &Change) -> String {
    match change {
        Change::Set { object, .. } => format!("set {}", object.metadata().unwrap().name),
        Change::Gone { name, .. } => format!("gone {name}"),
        Change::Synced(kind) => format!("synced {kind:?}"),
        Change::Unavailable { why: Unavailable::Forbidden { rule }, .. } => rule.clone(),
        other => format!("{other:?}"),
    }
}

async fn take(changes: &mut mpsc::Receiver<Change>, n: usize) -> Vec<String> {
    let mut all = Vec::new();
    for _ in 0..n {
        all.push(told(&soon(changes.recv()).await.unwrap()));
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
async fn nodes_are_followed_over_a_stream_that_breaks() {
    let (send, receive) = mpsc::channel(8);
    let receive = Arc::new(Mutex::new(Some(receive)));
    let server = serve(script(move |asked: Asked| {
        let first = receive.lock().unwrap().take();
        async move {
            match first {
                Some(pieces) if asked.path.contains("sendInitialEvents=true") => {
                    Say::Stream(pieces)
                }
                // Resumed where it ended.
                None if asked.path.contains("resourceVersion=11&") => {
                    let (send, pieces) = mpsc::channel(8);
                    send.send(event("ADDED", "c", 12)).await.unwrap();
                    tokio::spawn(async move {
                        send.closed().await;
                    });
                    Say::Stream(pieces)
                }
                _ => Say::Reply(500, asked.path),
            }
        }
    }))
    .await;
    let lanes = Lanes::new(&server.cluster().await);
    let (out, mut changes) = mpsc::channel(100);
    let following = follow(&lanes.watch, &follow_what(&[Kind::Node]), &out);
    send.send(event("ADDED", "a", 3) + &event("ADDED", "b", 4)[..20]).await.unwrap();
    assert_eq!(take(&mut changes, 1).await, ["set a"]);
    send.send(event("ADDED", "b", 4)[20..].to_owned()).await.unwrap();
    send.send(event("BOOKMARK", "END", 9)).await.unwrap();
    assert_eq!(take(&mut changes, 2).await, ["set b", "synced Node"]);
    send.send(event("MODIFIED", "a", 10) + &event("DELETED", "b", 11)).await.unwrap();
    drop(send);
    assert_eq!(take(&mut changes, 3).await, ["set a", "gone b", "set c"]);
    let (kind, counts) = following.counts().next().unwrap();
    assert_eq!((kind, counts.n_watches, counts.n_events, counts.n_objects), (Kind::Node, 2, 6, 2));
}

#[tokio::test]
async fn kinds_in_pages_and_forbidden_kinds() {
    let server = serve(script(|asked: Asked| async move {
        if asked.path.contains("sendInitialEvents") {
            return Say::Reply(422, r#"{"kind":"Status","message":"sendInitialEvents is forbidden"}"#.into());
        }
        if asked.path.starts_with("/apis/policy") {
            return Say::Reply(403, r#"{"kind":"Status","message":"no"}"#.into());
        }
        if asked.path.contains("watch=true") {
            std::future::pending::<()>().await;
        }
        let (items, after) = if asked.path.contains("continue=next") {
            (r#"{"metadata":{"name":"b","resourceVersion":"2"}}"#, "")
        } else {
            (r#"{"metadata":{"name":"a","resourceVersion":"1"}}"#, "next")
        };
        Say::Reply(200, format!(r#"{{"kind":"NodeList","metadata":{{"resourceVersion":"5","continue":"{after}"}},"items":[{items}]}}"#))
    }))
    .await;
    let lanes = Lanes::new(&server.cluster().await);
    let (out, mut changes) = mpsc::channel(100);
    let nodes = follow(&lanes.watch, &follow_what(&[Kind::Node]), &out);
    assert_eq!(take(&mut changes, 3).await, ["set a", "set b", "synced Node"]);
    drop(nodes);
    let _budgets = follow(&lanes.watch, &follow_what(&[Kind::PodDisruptionBudget]), &out);
    assert_eq!(
        take(&mut changes, 1).await,
        ["list poddisruptionbudgets in policy at cluster scope"]
    );
}

fn bind(id: u64, pod: &str) -> Job {
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
    Job { id, request }
}

#[tokio::test]
async fn binds_whose_answer_is_lost_are_found_out() {
    let server = serve(script(|asked: Asked| async move {
        let pod = asked.path.split('/').nth(6).unwrap().to_owned();
        let node = |name: &str| {
            Say::Reply(
                200,
                json!({"metadata": {"uid": "u"}, "spec": {"nodeName": name}}).to_string(),
            )
        };
        match (&*asked.method, &*pod) {
            ("POST", "good") => Say::Reply(201, "{}".to_owned()),
            ("POST", "taken") => Say::Reply(
                409,
                json!({"kind": "Status", "reason": "Conflict", "message": "no"}).to_string(),
            ),
            ("POST", _) => Say::Cut,
            ("GET", "lost") => node("a"),
            ("GET", "stolen") => node("b"),
            _ => Say::Reply(404, "{}".to_owned()),
        }
    }))
    .await;
    let lanes = Lanes::new(&server.cluster().await);
    let (out, mut finished) = mpsc::channel(100);
    let calls = Calls::start(&lanes, Limits::default(), out);
    let pods = ["good", "taken", "lost", "stolen", "deleted"];
    for (id, pod) in pods.iter().enumerate() {
        calls.submit(bind(id as u64, pod)).unwrap();
    }
    let mut outcomes = vec![String::new(); pods.len()];
    for _ in pods {
        let Finished { id, outcome } = soon(finished.recv()).await.unwrap();
        outcomes[id as usize] = match outcome {
            Outcome::Done(_) => "done".to_owned(),
            Outcome::Refused { status, reason, .. } => format!("{status} {reason}"),
            other => format!("{other:?}"),
        };
    }
    assert_eq!(
        outcomes,
        ["done", "409 Conflict", "done", r#"BoundElsewhere { node: "b" }"#, "404 "]
    );
    soon(calls.drain()).await;
    assert_eq!(calls.stats().n_unknown_binds, 3);
    calls.close();
    assert!(calls.submit(bind(9, "good")).is_err());
}

#[tokio::test]
async fn a_full_queue_gives_the_job_back_and_a_stop_drops_all() {
    let server = serve(script(|_| async { std::future::pending().await })).await;
    let lanes = Lanes::new(&server.cluster().await);
    let (out, mut finished) = mpsc::channel(100);
    let limits = Limits { n_waiting_max: 2, n_binds_max: 1, ..Limits::default() };
    let calls = Calls::start(&lanes, limits, out);
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
async fn other_calls_come_back_with_the_object_or_the_refusal() {
    let n_asked = Arc::new(AtomicUsize::new(0));
    let server = serve(script(move |asked: Asked| {
        let nth = n_asked.fetch_add(1, Ordering::SeqCst);
        async move {
            assert_eq!(asked.headers["content-type"], "application/merge-patch+json");
            match nth {
                0 => Say::RetryAfter(429, 0, "{}".to_owned()),
                1 => Say::Cut,
                _ => Say::Reply(200, asked.body),
            }
        }
    }))
    .await;
    let lanes = Lanes::new(&server.cluster().await);
    let (out, mut finished) = mpsc::channel(100);
    let calls = Calls::start(&lanes, Limits { qps: 1000.0, burst: 1, ..Limits::default() }, out);
    let mut job = bind(7, "p");
    job.request.verb = Verb::MergePatch;
    job.request.subresource = "status".into();
    job.request.body = Some(json!({"status": {}}));
    calls.submit(job).unwrap();
    let done = soon(finished.recv()).await.unwrap();
    assert_eq!(done, Finished { id: 7, outcome: Outcome::Done(json!({"status": {}})) });
}

fn notice(pod: &str, note: &str) -> Notice {
    let (namespace, name) = ("n".into(), pod.into());
    Notice {
        regarding: Reference { namespace, name, ..Reference::default() },
        related: None,
        is_warning: false,
        reason: "Scheduled".into(),
        action: "Binding".into(),
        note: note.to_owned(),
        controller: "me".into(),
    }
}

#[tokio::test]
async fn events_are_written_and_repetitions_counted() {
    let written = Arc::new(Mutex::new(Vec::new()));
    let log = written.clone();
    let server = serve(script(move |asked: Asked| {
        let log = log.clone();
        async move {
            match &*asked.method {
                "GET" => return Say::Reply(200, "{}".to_owned()),
                // The Event has expired meanwhile.
                "PATCH" => return Say::Reply(404, "{}".to_owned()),
                _ => {}
            }
            let body: serde_json::Value = serde_json::from_str(&asked.body).unwrap();
            let refuse = body["note"] == "bad";
            log.lock().unwrap().push(format!(
                "{} {} {}",
                body["regarding"]["name"].as_str().unwrap(),
                body["note"].as_str().unwrap(),
                body["series"]["count"]
            ));
            if refuse { Say::Reply(422, "{}".to_owned()) } else { Say::Reply(201, "{}".to_owned()) }
        }
    }))
    .await;
    let lanes = Lanes::new(&server.cluster().await);
    let options =
        RecorderOptions { n_waiting_max: 3, n_writing_max: 1, ..RecorderOptions::default() };
    let recorder = Recorder::start(&lanes.events, options);
    for (pod, note) in [("a", "x"), ("b", "bad"), ("a", "x"), ("c", "too many")] {
        recorder.record(notice(pod, note));
    }
    soon(recorder.drain()).await;
    assert_eq!(*written.lock().unwrap(), ["a x null", "b bad null", "a x 2"]);
    let stats = recorder.stats();
    assert_eq!((stats.n_written, stats.n_failed, stats.n_dropped, stats.n_waiting), (2, 1, 1, 0));
}

#[tokio::test]
async fn servers_without_the_new_group_get_events_in_core() {
    let (paths, mut asked_paths) = mpsc::channel(10);
    let server = serve(script(move |asked: Asked| {
        let paths = paths.clone();
        async move {
            if asked.method == "GET" {
                return Say::Reply(404, "{}".to_owned());
            }
            paths.send(asked.path).await.unwrap();
            Say::Reply(201, "{}".to_owned())
        }
    }))
    .await;
    let lanes = Lanes::new(&server.cluster().await);
    let recorder = Recorder::start(&lanes.events, RecorderOptions::default());
    recorder.record(notice("a", "x"));
    assert_eq!(soon(asked_paths.recv()).await.unwrap(), "/api/v1/namespaces/n/events");
}

#[tokio::test]
async fn a_lease_is_taken_and_given_back() {
    let store = Arc::new(Mutex::new((0u64, serde_json::Value::Null)));
    let seen = store.clone();
    let server = serve(script(move |asked: Asked| {
        let store = store.clone();
        async move {
            let (version, lease) = &mut *store.lock().unwrap();
            if asked.method == "GET" {
                let status = if lease.is_null() { 404 } else { 200 };
                return Say::Reply(status, lease.to_string());
            }
            let mut body: serde_json::Value = serde_json::from_str(&asked.body).unwrap();
            let base = body["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            if asked.method == "PUT" && base != version.to_string() {
                return Say::Reply(409, "{}".to_owned());
            }
            *version += 1;
            body["metadata"]["resourceVersion"] = version.to_string().into();
            body["metadata"]["uid"] = "lease-uid".into();
            *lease = body;
            Say::Reply(200, lease.to_string())
        }
    }))
    .await;
    let lanes = Lanes::new(&server.cluster().await);
    let timing = Timing {
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
    };
    let options = |identity: &str| LeaseOptions {
        namespace: "kube-system".to_owned(),
        name: "kube-scheduler".to_owned(),
        identity: identity.to_owned(),
        timing,
    };
    let first = hold(&lanes.lease, options("first"));
    let mut standing = first.standing();
    soon(standing.wait_for(|standing| standing.is_leading && standing.leader == "first"))
        .await
        .unwrap();
    assert_eq!(standing.borrow().uid, "lease-uid");
    let second = hold(&lanes.lease, options("second"));
    let mut waiting = second.standing();
    soon(waiting.wait_for(|standing| standing.leader == "first")).await.unwrap();
    assert!(!waiting.borrow().is_leading);
    soon(first.release()).await;
    assert!(standing.borrow().is_over && !standing.borrow().is_leading);
    let released = seen.lock().unwrap().1["spec"].clone();
    assert_eq!(
        (&released["holderIdentity"], &released["leaseDurationSeconds"]),
        (&json!(""), &json!(1))
    );
    soon(waiting.wait_for(|standing| standing.is_leading)).await.unwrap();
    assert_eq!(seen.lock().unwrap().1["spec"]["leaseTransitions"], 1);
    drop(second);
}

#[tokio::test]
async fn a_list_is_read_to_its_end_and_begun_anew_when_it_expires() {
    let n_expired = Arc::new(AtomicUsize::new(0));
    let count = n_expired.clone();
    let node = |name: &str, more: &str| {
        let items = json!([{"metadata": {"name": name}}]);
        json!({"kind": "NodeList", "metadata": {"continue": more}, "items": items}).to_string()
    };
    let server = serve(script(move |asked: Asked| {
        let count = count.clone();
        async move {
            if !asked.path.contains("continue=") {
                return Say::Reply(200, node("a", "more"));
            }
            if count.fetch_add(1, Ordering::SeqCst) == 0 {
                return Say::Reply(410, "{}".to_owned());
            }
            Say::Reply(200, node("b", ""))
        }
    }))
    .await;
    let lanes = Lanes::new(&server.cluster().await);
    let name = |object: loadmaster_api::proto::Object| Some(object.metadata()?.name.to_string());
    let names = soon(list(&lanes.other, Kind::Node, name)).await.unwrap();
    assert_eq!(
        (names, n_expired.load(Ordering::SeqCst)),
        (vec!["a".to_owned(), "b".to_owned()], 2)
    );
}

#[tokio::test]
async fn a_list_that_is_refused_says_why() {
    let server =
        serve(script(|_| async { Say::Reply(403, r#"{"message":"no"}"#.to_owned()) })).await;
    let lanes = Lanes::new(&server.cluster().await);
    let listed = soon(list(&lanes.other, Kind::Pod, Some)).await;
    assert_eq!(listed.err().unwrap(), "listing pods: 403 no");
}

/// What a server of ours is asked as, or why it is not.
async fn asked_as(options: RemoteOptions) -> Result<String, String> {
    let asking = tokio::task::spawn_blocking(move || {
        let remote = Remote::find(&options).map_err(|error| error.to_string())?;
        let reply = remote.get("/explain/a/b").map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&reply.body).into_owned())
    });
    soon(asking).await.unwrap()
}

#[tokio::test]
async fn a_remote_is_believed_only_if_its_certificate_is() {
    let who = |asked: Asked| async move {
        let header = asked.headers.get("authorization").map(|it| it.to_str().unwrap().to_owned());
        Say::Reply(200, format!("{} {}", asked.path, header.unwrap_or_default()))
    };
    let server = serve_h2(script(who), 5).await;
    let url = server.url();
    let ask = |credentials: Credentials, change: fn(&mut RemoteOptions)| {
        let server = url.clone();
        let mut options = RemoteOptions { server, credentials, ..RemoteOptions::default() };
        change(&mut options);
        asked_as(options)
    };
    let unknown = ask(Credentials::None, |_| ()).await.unwrap_err();
    assert!(unknown.contains("certificate"), "{unknown}");
    let told = ask(Credentials::None, |it| it.insecure_skip_tls_verify = true).await;
    assert_eq!(told.unwrap(), "/explain/a/b ");
    let token = Credentials::Token("mine\n".to_owned());
    let told = ask(token, |it| it.insecure_skip_tls_verify = true).await;
    assert_eq!(told.unwrap(), "/explain/a/b Bearer mine");
    // Of a kubeconfig the user, and the CA.
    let user = Options { kubeconfig: Some(server.kubeconfig.clone()), context: None };
    let told = ask(Credentials::Kubeconfig(user), |_| ()).await;
    assert_eq!(told.unwrap(), "/explain/a/b Bearer secret");
}
