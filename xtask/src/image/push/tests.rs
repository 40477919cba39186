//! Pushes to a registry in this process, which keeps what it is sent.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::Arc;

use http::Response;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Mutex;

use super::super::contents::IMAGES;
use super::super::layer::add_file;
use super::super::layout::{Layout, Release, digest_of};
use super::*;

/// How the registry wants to know who its clients are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Anonymous,
    Basic,
    Bearer,
}

/// `user:password` in Base64.
const CREDENTIALS: &str = "dXNlcjpwYXNzd29yZA==";

struct TestRegistry {
    access: Access,
    host: String,
    /// Blobs and manifests by path, manifests with their type.
    content: Mutex<BTreeMap<String, (String, Bytes)>>,
    /// All requests that changed something.
    writes: Mutex<Vec<String>>,
}

async fn start(access: Access) -> Arc<TestRegistry> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let registry = Arc::new(TestRegistry {
        access,
        host,
        content: Mutex::default(),
        writes: Mutex::default(),
    });
    let shared = registry.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let registry = shared.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let registry = registry.clone();
                async move { Ok::<_, Infallible>(registry.answer(request).await) }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    registry
}

impl TestRegistry {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let path = parts.uri.path().to_owned();
        let header = |name| parts.headers.get(name).map_or("", |value| value.to_str().unwrap());
        let basic = format!("Basic {CREDENTIALS}");
        let reply = Response::builder();
        let empty = Full::new(Bytes::new());
        if path == "/token" {
            let scope = "service=test&scope=repository%3Ateam%2F";
            let is_right =
                header(AUTHORIZATION) == basic && parts.uri.query().unwrap().starts_with(scope);
            let token = json!({"token": if is_right { "good" } else { "bad" }});
            return reply.body(Full::new(token.to_string().into())).unwrap();
        }
        let (wanted, challenge) = match self.access {
            Access::Anonymous => (String::new(), String::new()),
            Access::Basic => (basic, "Basic realm=\"test\"".to_owned()),
            Access::Bearer => {
                let name = path.trim_start_matches("/v2/").split("/blobs").next().unwrap();
                let realm = format!("http://{}/token", self.host);
                let challenge = format!(
                    "Bearer realm=\"{realm}\",service=\"test\",scope=\"repository:{name}:pull,push\""
                );
                ("Bearer good".to_owned(), challenge)
            }
        };
        if header(AUTHORIZATION) != wanted {
            return reply.status(401).header(WWW_AUTHENTICATE, challenge).body(empty).unwrap();
        }
        let mut content = self.content.lock().await;
        if parts.method == Method::HEAD {
            let status = if content.contains_key(&path) { 200 } else { 404 };
            return reply.status(status).body(empty).unwrap();
        }
        self.writes.lock().await.push(format!("{} {path}", parts.method));
        if let Some(begin) = path.strip_suffix("/uploads/").filter(|_| parts.method == Method::POST)
        {
            let location = format!("http://{}{begin}/uploads/1?state=x", self.host);
            return reply.status(202).header(LOCATION, location).body(empty).unwrap();
        }
        let digest = digest_of(&body);
        let kept_as = match path.strip_suffix("/uploads/1") {
            Some(begin) if parts.uri.query() == Some(&format!("state=x&digest={digest}")) => {
                format!("{begin}/{digest}")
            }
            Some(_) => return reply.status(400).body(Full::new("wrong digest".into())).unwrap(),
            None => path,
        };
        content.insert(kept_as, (header(CONTENT_TYPE).to_owned(), body));
        reply.status(201).body(empty).unwrap()
    }
}

fn layout(architectures: &[&str]) -> Entries {
    let mut layout = Layout::new(flate2::Compression::best());
    let mut entries = Entries::new();
    add_file(&mut entries, "/bin/loadmaster", 0o755, b"program".to_vec());
    let (tag, version, revision) = ("v1".to_owned(), "0.1.0".to_owned(), "0123".to_owned());
    let release = Release { tag, version, revision, seconds: 0 };
    for architecture in architectures {
        layout.add_image(&IMAGES[0], architecture, &entries, &release).unwrap();
    }
    layout.finish().unwrap()
}

fn docker_config(host: &str) -> String {
    json!({"auths": {host: {"auth": CREDENTIALS}}}).to_string()
}

#[tokio::test]
async fn images_are_complete_in_the_registry() {
    for access in [Access::Anonymous, Access::Basic, Access::Bearer] {
        let server = start(access).await;
        let registry = Registry::parse(&format!("{}/team", server.host)).unwrap();
        let files = layout(&["amd64"]);
        let config = docker_config(&server.host);
        push(&files, &registry, Some(&config)).await.unwrap();

        let content = server.content.lock().await;
        let (kind, manifest) = &content["/v2/team/loadmaster/manifests/v1"];
        assert_eq!(kind, MANIFEST_TYPE);
        let manifest: Value = serde_json::from_slice(manifest).unwrap();
        for descriptor in [&manifest["config"], &manifest["layers"][0]] {
            let digest = digest(descriptor).unwrap();
            let (_, found) = &content[&format!("/v2/team/loadmaster/blobs/{digest}")];
            assert_eq!(*found, blob(&files, descriptor).unwrap());
        }
        assert_eq!(content.len(), 3);
    }
}

#[tokio::test]
async fn architectures_are_pushed_by_digest_and_their_index_by_tag() {
    let server = start(Access::Anonymous).await;
    let registry = Registry::parse(&server.host).unwrap();
    let files = layout(&["amd64", "arm64"]);
    push(&files, &registry, None).await.unwrap();
    {
        let content = server.content.lock().await;
        let (kind, index) = &content["/v2/loadmaster/manifests/v1"];
        assert_eq!(kind, INDEX_TYPE);
        let index: Value = serde_json::from_slice(index).unwrap();
        for manifest in index["manifests"].as_array().unwrap() {
            let path = format!("/v2/loadmaster/manifests/{}", digest(manifest).unwrap());
            assert_eq!(content[&path].0, MANIFEST_TYPE);
        }
    }
    // Blobs that the registry has are not sent again: a second time only the manifests are.
    server.writes.lock().await.clear();
    push(&files, &registry, None).await.unwrap();
    let writes = server.writes.lock().await;
    assert_eq!(writes.len(), 3);
    assert!(writes.iter().all(|write| write.starts_with("PUT /v2/loadmaster/manifests/")));
}

#[tokio::test]
async fn a_registry_that_refuses_access_is_an_error() {
    let server = start(Access::Bearer).await;
    let registry = Registry::parse(&server.host).unwrap();
    let error = push(&layout(&["amd64"]), &registry, None).await.unwrap_err();
    let (host, text) = (&server.host, format!("{error:#}"));
    let want = format!("pushing {host}/loadmaster:v1: blob sha256:");
    assert!(text.starts_with(&want) && text.contains("401 Unauthorized"), "{text}");

    let server = start(Access::Basic).await;
    let registry = Registry::parse(&server.host).unwrap();
    let error = push(&layout(&["amd64"]), &registry, None).await.unwrap_err();
    assert!(format!("{error:#}").contains("docker login"), "{error:#}");
}

#[test]
fn registries() {
    #[track_caller]
    fn check(text: &str, want: Option<(&str, &str)>) {
        let found = Registry::parse(text).ok();
        let found = found.map(|it| (it.url(), it.prefix));
        let found = found.as_ref().map(|(url, prefix)| (url.as_str(), prefix.as_str()));
        assert_eq!(found, want, "{text}");
    }
    check("localhost:5000", Some(("http://localhost:5000", "")));
    check("127.0.0.1", Some(("http://127.0.0.1", "")));
    check("[::1]:5000/a/b", Some(("http://[::1]:5000", "a/b/")));
    check("localhost.example.com/", Some(("https://localhost.example.com", "")));
    check("registry.example.com/team", Some(("https://registry.example.com", "team/")));
    check("https://registry.example.com", None);
    check("", None);
    check("a//b", None);
    check("a/B", None);
    check("user@host", None);
}

#[test]
fn uploads_go_to_the_registry_only() {
    #[track_caller]
    fn check(location: &str, want: Result<&str, &str>) {
        let found = upload_target(location, "sha256:a", "r:1").map_err(|error| error.to_string());
        assert_eq!(found, want.map(str::to_owned).map_err(str::to_owned));
    }
    check("/v2/x/uploads/1", Ok("/v2/x/uploads/1?digest=sha256:a"));
    check("http://r:1/v2/x?state=2", Ok("/v2/x?state=2&digest=sha256:a"));
    check("https://other/v2/x", Err("the registry wants the upload to be sent to other"));
}
