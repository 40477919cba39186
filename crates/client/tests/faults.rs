//! The worst day of a client: connections that die, credentials and certificates that are replaced, proxies.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]
#![allow(clippy::disallowed_types, reason = "the server is shared between tasks")]

mod common;

use std::future::pending;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::network::{FaultProxy, http_proxy};
use common::{ReceivedRequest, Server, ServerReply, script, serve, serve_h2, serve_tls, soon};
use loadmaster_client::api_client::ApiClient;
use loadmaster_client::leader_election::{
    LeaderElectionOptions, LeaderElectionTiming, start_leader_election,
};
use loadmaster_client::{ApiClients, Cluster, ClusterOptions, Kind, Request, SendError};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// The body of the response, or the status or the error in place of it.
async fn get(client: &ApiClient, path: &str) -> String {
    match soon(client.call(&Request::get(path))).await {
        Ok(reply) if reply.status == 200 => String::from_utf8_lossy(&reply.body).into_owned(),
        Ok(reply) => reply.status.to_string(),
        Err(error) => error.to_string(),
    }
}

/// Responds to every request with its path.
async fn echo(request: ReceivedRequest) -> ServerReply {
    ServerReply::Reply(200, request.path)
}

/// Lets clients of the server connect through a proxy.
async fn fault_proxy(server: &Server) -> FaultProxy {
    let proxy = FaultProxy::start(server.address()).await;
    server.edit(&server.address().to_string(), &proxy.address.to_string());
    proxy
}

/// Lets time pass, as far as timers are concerned.
async fn pass(duration: Duration) {
    tokio::time::pause();
    tokio::time::advance(duration).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_request_that_times_out_retires_its_connection() {
    let release = Arc::new(Notify::new());
    let released = release.clone();
    let server = serve_h2(
        script(move |request: ReceivedRequest| {
            let released = released.clone();
            async move {
                match &*request.path {
                    "/slow" => released.notified().await,
                    "/never" => pending().await,
                    _ => {}
                }
                echo(request).await
            }
        }),
        10,
    )
    .await;
    // It has one connection at a time.
    let client = ApiClients::new(&server.cluster().await).events;
    let slow_client = client.clone();
    let slow = tokio::spawn(async move { get(&slow_client, "/slow").await });
    assert_eq!(get(&client, "/1").await, "/1");
    let request = Request { timeout: Duration::from_millis(50), ..Request::get("/never") };
    let late = soon(client.call(&request)).await.unwrap_err();
    assert!(matches!(late, SendError::TimedOut { was_sent: true, .. }), "{late}");
    assert_eq!(get(&client, "/2").await, "/2");
    assert_eq!(server.n_connections.load(Ordering::SeqCst), 2);
    // Other requests on the old connection finish.
    release.notify_one();
    assert_eq!(soon(slow).await.unwrap(), "/slow");
    assert_eq!(get(&client, "/3").await, "/3");
    assert_eq!(server.n_connections.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_timeout_retires_all_connections_that_are_silent() {
    let server = serve(script(echo)).await;
    let proxy = fault_proxy(&server).await;
    let client = ApiClients::new(&server.cluster().await).other;
    let (first, second) = tokio::join!(get(&client, "/1"), get(&client, "/2"));
    assert_eq!((&*first, &*second), ("/1", "/2"));
    proxy.silence_open_connections();
    let request = Request { timeout: Duration::from_millis(50), ..Request::get("/3") };
    let late = soon(client.call(&request)).await.unwrap_err();
    assert!(late.may_have_arrived(), "{late}");
    // The other connection is dead, too, and is not tried.
    assert_eq!(get(&client, "/4").await, "/4");
}

#[tokio::test]
async fn a_reset_connection_is_replaced() {
    let server = serve_h2(script(echo), 10).await;
    let proxy = fault_proxy(&server).await;
    let client = ApiClients::new(&server.cluster().await).bind;
    assert_eq!(get(&client, "/1").await, "/1");
    proxy.reset_open_connections();
    // The reset may arrive only while the request is sent.
    let answered = match get(&client, "/2").await {
        answer if answer == "/2" => answer,
        _ => get(&client, "/2").await,
    };
    assert_eq!((&*answered, proxy.n_connections.load(Ordering::SeqCst)), ("/2", 2));
}

#[tokio::test]
async fn pings_notice_dead_connections() {
    let server = serve_h2(script(echo), 10).await;
    let proxy = fault_proxy(&server).await;
    let clients = ApiClients::new(&server.cluster().await);
    for (client, within_s) in [(&clients.lease, 4), (&clients.watch, 45)] {
        assert_eq!(get(client, "/1").await, "/1");
        proxy.silence_open_connections();
        // Nothing but timers happens from here to the error.
        tokio::time::pause();
        let began = Instant::now();
        let request = Request { timeout: Duration::from_secs(60), ..Request::get("/2") };
        let lost = client.call(&request).await.unwrap_err();
        let waited = began.elapsed();
        tokio::time::resume();
        assert!(matches!(lost, SendError::Lost { .. }), "{lost}");
        assert!(waited < Duration::from_secs(within_s + 1), "{waited:?}");
        assert_eq!(get(client, "/3").await, "/3");
    }
}

/// Stores a lease; the receiver has the number of its writes.
async fn serve_lease(is_h2: bool) -> (Server, watch::Receiver<usize>) {
    let lease = Arc::new(Mutex::new(None));
    let (written, n_written) = watch::channel(0);
    let script = script(move |request: ReceivedRequest| {
        let mut lease = lease.lock().unwrap();
        if request.method != "GET" {
            *lease = Some(request.body);
            written.send_modify(|n| *n += 1);
        }
        let reply = match &*lease {
            Some(lease) => ServerReply::Reply(200, lease.clone()),
            None => ServerReply::Reply(404, "{}".to_owned()),
        };
        async { reply }
    });
    let server = if is_h2 { serve_h2(script, 10).await } else { serve(script).await };
    (server, n_written)
}

/// A leader whose connections die, so that nothing arrives any more or with a reset.
async fn keeps_leading(is_h2: bool, fail: fn(&FaultProxy)) {
    let (server, mut n_written) = serve_lease(is_h2).await;
    let proxy = fault_proxy(&server).await;
    let clients = ApiClients::new(&server.cluster().await);
    let options = LeaderElectionOptions {
        namespace: "kube-system".to_owned(),
        name: "kube-scheduler".to_owned(),
        identity: "me".to_owned(),
        // A request times out after 2 s.
        timing: LeaderElectionTiming {
            lease_duration: Duration::from_secs(6),
            renew_deadline: Duration::from_secs(4),
            retry_period: Duration::from_millis(50),
        },
    };
    let elector = start_leader_election(&clients.lease, options);
    let mut status = elector.status();
    soon(status.wait_for(|status| status.is_leading)).await.unwrap();
    let n_before = *n_written.borrow();
    fail(&proxy);
    // At most one renewal has been on its way.
    soon(n_written.wait_for(|n| *n >= n_before + 3)).await.unwrap();
    assert!(proxy.n_connections.load(Ordering::SeqCst) >= 2);
    assert!(status.borrow().is_leading && !status.borrow().has_stopped);
    soon(elector.release()).await;
}

#[tokio::test]
async fn dead_connections_never_cost_the_leadership() {
    tokio::join!(
        keeps_leading(true, FaultProxy::silence_open_connections),
        keeps_leading(false, FaultProxy::silence_open_connections),
        keeps_leading(true, FaultProxy::reset_open_connections),
        keeps_leading(false, FaultProxy::reset_open_connections),
    );
}

#[tokio::test]
async fn leading_ends_in_time_when_the_server_is_silent() {
    let (server, _) = serve_lease(true).await;
    let proxy = fault_proxy(&server).await;
    let clients = ApiClients::new(&server.cluster().await);
    let timing = LeaderElectionTiming {
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
    };
    let (namespace, name, identity) = ("n".to_owned(), "l".to_owned(), "me".to_owned());
    let options = LeaderElectionOptions { namespace, name, identity, timing };
    let elector = start_leader_election(&clients.lease, options);
    let mut status = elector.status();
    soon(status.wait_for(|status| status.is_leading)).await.unwrap();
    proxy.silence_all();
    // Only timers matter from here.
    tokio::time::pause();
    let began = Instant::now();
    status.wait_for(|status| status.has_stopped).await.unwrap();
    let led = began.elapsed();
    tokio::time::resume();
    assert!(led > Duration::from_secs(9) && led < Duration::from_secs(13), "{led:?}");
}

/// Where a user's token comes from: the fields of the user in a kubeconfig, and the content of their file with a token.
struct TokenSource {
    user: fn(&str) -> String,
    content: fn(&str) -> String,
}

const TOKEN_SOURCES: [TokenSource; 2] = [
    TokenSource { user: |file| format!("tokenFile: {file:?}"), content: |token| token.to_owned() },
    TokenSource {
        user: |file| {
            let exec = "apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never";
            format!("exec: {{{exec}, command: cat, args: [{file:?}]}}")
        },
        content: |token| {
            format!(
                r#"{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{{"token":"{token}"}}}}"#
            )
        },
    },
];

/// Serves plain HTTP for requests with the accepted token; counts all requests.
async fn serve_token(accepted: &Arc<Mutex<&'static str>>) -> (Server, Arc<AtomicUsize>) {
    let n_requests = Arc::new(AtomicUsize::new(0));
    let (accepted, count) = (accepted.clone(), n_requests.clone());
    let server = serve(script(move |request: ReceivedRequest| {
        count.fetch_add(1, Ordering::SeqCst);
        let expected = format!("Bearer {}", accepted.lock().unwrap());
        async move {
            let is_accepted = request.headers["authorization"].to_str().unwrap() == expected;
            ServerReply::Reply(if is_accepted { 200 } else { 401 }, request.path)
        }
    }))
    .await;
    (server, n_requests)
}

#[tokio::test]
async fn tokens_are_loaded_again_after_a_401() {
    for TokenSource { user, content } in TOKEN_SOURCES {
        let accepted = Arc::new(Mutex::new("one"));
        let (server, n_requests) = serve_token(&accepted).await;
        let file = common::write_file("token", &content("one"));
        server.edit("token: secret", &user(file.to_str().unwrap()));
        let client = ApiClients::new(&server.cluster().await).bind;
        let n_sent = async |path: &str| {
            let n_before = n_requests.load(Ordering::SeqCst);
            let answer = get(&client, path).await;
            (answer, n_requests.load(Ordering::SeqCst) - n_before)
        };
        assert_eq!(n_sent("/1").await, ("/1".to_owned(), 1));
        // The request is sent again with the new token.
        std::fs::write(&file, content("two")).unwrap();
        *accepted.lock().unwrap() = "two";
        assert_eq!(n_sent("/2").await, ("/2".to_owned(), 2));
        assert_eq!(n_sent("/3").await, ("/3".to_owned(), 1));
        // A server that accepts nothing does not make an exec plugin run all the time.
        *accepted.lock().unwrap() = "three";
        assert_eq!(n_sent("/4").await, ("401".to_owned(), 1));
        std::fs::write(&file, content("three")).unwrap();
        pass(Duration::from_secs(3)).await;
        assert_eq!(n_sent("/5").await, ("/5".to_owned(), 2));
        std::fs::remove_file(&file).unwrap();
    }
}

#[tokio::test]
async fn a_kubeconfig_is_read_again_after_a_401() {
    let accepted = Arc::new(Mutex::new("secret"));
    let (server, n_requests) = serve_token(&accepted).await;
    let client = ApiClients::new(&server.cluster().await).other;
    assert_eq!(get(&client, "/1").await, "/1");
    *accepted.lock().unwrap() = "new";
    server.edit("token: secret", "token: new");
    assert_eq!(get(&client, "/2").await, "/2");
    // Never send the credentials of one cluster to another one.
    *accepted.lock().unwrap() = "other";
    server.edit("token: new", "token: other");
    server.edit(&server.address().to_string(), "127.0.0.1:1");
    pass(Duration::from_secs(3)).await;
    let n_before = n_requests.load(Ordering::SeqCst);
    assert_eq!(get(&client, "/3").await, "401");
    assert_eq!(n_requests.load(Ordering::SeqCst), n_before + 1);
}

/// A certificate authority, and files with what it has signed.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    file: PathBuf,
    certificate: rcgen::Certificate,
}

impl Authority {
    fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        let file = common::write_file("pem", &certificate.pem());
        Authority { issuer: Issuer::new(params, key), file, certificate }
    }

    /// A certificate and its key, valid until the end of a year.
    fn sign(&self, until: i32) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(until, 12, 31);
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// The server's side of TLS. With `requires_client` clients must have a valid certificate of the same authority.
    fn server(&self, requires_client: bool) -> rustls::ServerConfig {
        let (certificate, key) = self.sign(4000);
        let key = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        let verifier = rustls::server::WebPkiClientVerifier::builder(Arc::new(roots));
        let builder = rustls::ServerConfig::builder();
        let builder = match requires_client {
            true => builder.with_client_cert_verifier(verifier.build().unwrap()),
            false => builder.with_no_client_auth(),
        };
        builder.with_single_cert(vec![certificate.der().clone()], key).unwrap()
    }
}

#[tokio::test]
async fn a_certificate_authority_that_was_replaced_is_read_again() {
    let (old, new) = (Authority::new(), Authority::new());
    let server = serve_tls(script(echo), 10, new.server(false), &old.file, "token: t").await;
    let client = ApiClients::new(&server.cluster().await).other;
    let refused = get(&client, "/1").await;
    assert!(refused.contains("certificate"), "{refused}");
    std::fs::copy(&new.file, &old.file).unwrap();
    pass(Duration::from_secs(3)).await;
    assert_eq!(get(&client, "/2").await, "/2");
}

#[tokio::test]
async fn a_client_certificate_that_was_replaced_is_read_again() {
    let authority = Authority::new();
    let (expired, key) = authority.sign(2000);
    let certificate_file = common::write_file("pem", &expired.pem());
    let key_file = common::write_file("pem", &key.serialize_pem());
    let user = format!("client-certificate: {certificate_file:?}, client-key: {key_file:?}");
    let tls = authority.server(true);
    let server = serve_tls(script(echo), 10, tls, &authority.file, &user).await;
    let client = ApiClients::new(&server.cluster().await).other;
    let (valid, key) = authority.sign(4000);
    std::fs::write(&certificate_file, valid.pem()).unwrap();
    std::fs::write(&key_file, key.serialize_pem()).unwrap();
    // The server rejects the expired certificate after the handshake, in which it is used; then the new one is loaded.
    let rejected = get(&client, "/1").await;
    assert!(rejected.contains("CertificateExpired"), "{rejected}");
    let accepted = async { while get(&client, "/2").await != "/2" {} };
    soon(accepted).await;
}

#[tokio::test]
async fn proxies_have_tls_and_authorization() {
    for is_https in [false, true] {
        let server = serve_h2(script(echo), 10).await;
        let tls = server.tls.clone().filter(|_| is_https);
        let (proxy, n_tunnels) = http_proxy("Basic bWU6cGFzc0B3b3Jk", tls).await;
        let scheme = if is_https { "https" } else { "http" };
        let with_password =
            |password: &str| format!("{{proxy-url: \"{scheme}://me:{password}@{proxy}\", server:");
        server.edit("{server:", &with_password("wrongone"));
        let client = ApiClients::new(&server.cluster().await).other;
        let refused = get(&client, "/1").await;
        assert!(refused.contains("the proxy refused: HTTP/1.1 407"), "{refused}");
        assert!(!refused.contains("wrongone"), "{refused}");
        server.edit("wrongone", "pass%40word");
        let client = ApiClients::new(&server.cluster().await).other;
        assert_eq!(get(&client, "/2").await, "/2");
        assert_eq!(n_tunnels.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn a_list_waits_as_long_as_the_server_asks_for() {
    let n_requests = Arc::new(AtomicUsize::new(0));
    let count = n_requests.clone();
    let server = serve(script(move |_| {
        let nth = count.fetch_add(1, Ordering::SeqCst);
        async move {
            match nth {
                0 => ServerReply::RetryAfter(429, 0, "{}".to_owned()),
                1 => ServerReply::RetryAfter(503, 0, "{}".to_owned()),
                _ => ServerReply::Reply(200, r#"{"kind":"NodeList","items":[]}"#.to_owned()),
            }
        }
    }))
    .await;
    let client = ApiClients::new(&server.cluster().await).other;
    let listed = soon(loadmaster_client::listing::list_all(&client, Kind::Node, Some)).await;
    assert_eq!(listed.unwrap().len(), 0);
    assert_eq!(n_requests.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn errors_have_no_tokens_keys_and_passwords() {
    for (user, server, want) in [
        ("token: [hidden]", "", "failed to parse kubeconfig YAML"),
        (
            "exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: sh, \
             args: [-c, 'echo hidden; echo hidden >&2; exit 3'], env: [{name: A, value: hidden}]}",
            "",
            "the exec plugin failed with exit status: 3",
        ),
        (
            "exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: echo, \
             args: ['{\"status\": {\"token\": [\"hidden\"]}}']}",
            "",
            "decoding the output of the exec plugin",
        ),
        ("token: t", "ftp://me:hidden@127.0.0.1", "ftp://me:***@127.0.0.1/"),
    ] {
        let server = if server.is_empty() { "https://127.0.0.1:1" } else { server };
        let kubeconfig = common::kubeconfig(server, "", user);
        let options = ClusterOptions {
            kubeconfig: Some(kubeconfig.clone()),
            context: None,
            master: None,
            user_agent: "tester".to_owned(),
        };
        let error = Cluster::from_options(&options).await.err().unwrap();
        for text in [error.to_string(), format!("{error:?}")] {
            assert!(text.contains(want), "{text}");
            assert!(!text.contains("hidden"), "{text}");
        }
        std::fs::remove_file(kubeconfig).unwrap();
    }
}
