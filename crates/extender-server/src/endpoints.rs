//! A request in, a response out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::metrics::Metrics;
use crate::server::{Page, Verb, Work};
use crate::{Bounds, Error, Reply};

const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Everything that is served.
pub(crate) struct Endpoints {
    /// Empty or `/some/prefix`.
    pub prefix: String,
    pub verbs: BTreeMap<&'static str, Verb>,
    pub pages: Vec<(String, Page)>,
    pub version: Option<String>,
    pub ready: Box<dyn Fn() -> Result<(), Error> + Send + Sync>,
    metrics: Metrics,
}

/// Endpoints that are being served.
pub(crate) struct Service {
    pub endpoints: Endpoints,
    pub bounds: Bounds,
    /// Whether all but health is for clients with a certificate.
    pub needs_certificate: bool,
    /// One for each request that may be under way.
    pub places: Arc<Semaphore>,
    pub is_stopping: AtomicBool,
}

impl Endpoints {
    pub fn new() -> Endpoints {
        Endpoints {
            prefix: String::new(),
            verbs: BTreeMap::new(),
            pages: Vec::new(),
            version: None,
            ready: Box::new(|| Ok(())),
            metrics: Metrics::new(),
        }
    }

    fn verb(&self, path: &str) -> Option<(&'static str, &Verb)> {
        let name = path.strip_prefix(&self.prefix)?.strip_prefix('/')?;
        self.verbs.get_key_value(name).map(|(name, verb)| (*name, verb))
    }

    fn page(&self, path: &str) -> Option<(&Page, String)> {
        self.pages.iter().find_map(|(prefix, page)| {
            let rest = path.strip_prefix(prefix.as_str())?;
            let rest = if rest.is_empty() { rest } else { rest.strip_prefix('/')? };
            Some((page, rest.to_owned()))
        })
    }

    fn not_found(&self, path: &str) -> Reply {
        let verbs: Vec<_> =
            self.verbs.keys().map(|verb| format!("{}/{verb}", self.prefix)).collect();
        let line = format!("nothing is served at {path}; the verbs are at {}", verbs.join(", "));
        Reply::text(StatusCode::NOT_FOUND, line)
    }
}

impl Service {
    /// Answers one request of a client that did or did not show a certificate.
    pub async fn answer<B>(
        &self,
        request: Request<B>,
        has_certificate: bool,
    ) -> Response<Full<Bytes>>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let path = request.uri().path().to_owned();
        let is_get = matches!(*request.method(), Method::GET | Method::HEAD);
        let health = self.health(&path);
        let wanted = if health.is_none() && self.needs_certificate && !has_certificate {
            let line = "a client certificate of the configured authority is needed";
            return response(Reply::text(StatusCode::UNAUTHORIZED, line), None);
        } else if let Some((name, verb)) = self.endpoints.verb(&path) {
            if request.method() != Method::POST {
                return not_allowed("POST", &path);
            }
            let counted = self.endpoints.metrics.begin(name);
            let reply = self.ask(name, verb, request.into_body()).await;
            counted.end(reply.status);
            return response(reply, None);
        } else if !is_get && (health.is_some() || self.has_page(&path)) {
            return not_allowed("GET", &path);
        } else {
            health
        };
        let reply = match wanted {
            Some(reply) => reply,
            None => self.show(&path).await,
        };
        response(reply, None)
    }

    fn health(&self, path: &str) -> Option<Reply> {
        let unready = |line| Reply::text(StatusCode::SERVICE_UNAVAILABLE, line);
        match path {
            "/healthz" | "/livez" => Some(Reply::text(StatusCode::OK, "ok")),
            "/readyz" if self.is_stopping.load(Ordering::Relaxed) => {
                Some(unready("stopping".to_owned()))
            }
            "/readyz" => Some(match (self.endpoints.ready)() {
                Ok(()) => Reply::text(StatusCode::OK, "ok"),
                Err(error) => unready(format!("not ready: {error}")),
            }),
            _ => None,
        }
    }

    fn has_page(&self, path: &str) -> bool {
        path == "/metrics"
            || path == "/version" && self.endpoints.version.is_some()
            || self.endpoints.page(path).is_some()
    }

    /// A page's answer.
    async fn show(&self, path: &str) -> Reply {
        if path == "/metrics" {
            let body = self.endpoints.metrics.text().into();
            return Reply { status: StatusCode::OK, content_type: METRICS_TYPE, body };
        }
        if let ("/version", Some(version)) = (path, &self.endpoints.version) {
            return Reply::text(StatusCode::OK, version);
        }
        match self.endpoints.page(path) {
            Some((page, rest)) => match self.place().await {
                Some(place) => self.run("page", page(rest), place).await,
                None => busy(),
            },
            None => self.endpoints.not_found(path),
        }
    }

    async fn ask<B>(&self, name: &'static str, verb: &Verb, body: B) -> Reply
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let Some(place) = self.place().await else { return busy() };
        let most = self.bounds.body_bytes_max;
        let body = match timeout(self.bounds.body_time_max, Limited::new(body, most).collect())
            .await
        {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                let line = format!("the body has more than {most} bytes");
                return Reply::text(StatusCode::PAYLOAD_TOO_LARGE, line);
            }
            Ok(Err(error)) => {
                return Reply::text(StatusCode::BAD_REQUEST, format!("reading the body: {error}"));
            }
            Err(_) => {
                let line = "the body did not come in time";
                return Reply::text(StatusCode::REQUEST_TIMEOUT, line);
            }
        };
        self.run(name, verb(body), place).await
    }

    /// A place among the requests under way.
    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        let waiting = timeout(self.bounds.body_time_max, self.places.clone().acquire_owned());
        waiting.await.ok()?.ok()
    }

    /// Runs a handler in a task of its own, so that a panic costs only this request, and a client that leaves does not stop it
    /// halfway.
    async fn run(&self, name: &str, work: Work, place: OwnedSemaphorePermit) -> Reply {
        let task = tokio::spawn(async move {
            let reply = work.await;
            drop(place);
            reply
        });
        match timeout(self.bounds.handler_time_max, task).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) => {
                tracing::error!(verb = name, err = %error, "A handler panicked");
                let line = format!("the handler of {name} panicked; see the extender's log");
                Reply::text(StatusCode::INTERNAL_SERVER_ERROR, line)
            }
            Err(_) => {
                let most = self.bounds.handler_time_max.as_secs_f64();
                let line = format!("the handler of {name} took more than {most} s");
                Reply::text(StatusCode::GATEWAY_TIMEOUT, line)
            }
        }
    }
}

fn busy() -> Reply {
    Reply::text(StatusCode::SERVICE_UNAVAILABLE, "too many requests are under way")
}

fn not_allowed(allowed: &'static str, path: &str) -> Response<Full<Bytes>> {
    let line = format!("{path} answers {allowed} only");
    response(Reply::text(StatusCode::METHOD_NOT_ALLOWED, line), Some(allowed))
}

fn response(reply: Reply, allowed: Option<&'static str>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(reply.body));
    *response.status_mut() = reply.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(reply.content_type));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(allowed) = allowed {
        headers.insert(ALLOW, HeaderValue::from_static(allowed));
    }
    response
}
