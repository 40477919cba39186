//! Routes requests to handlers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, ORIGIN, X_CONTENT_TYPE_OPTIONS};
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::metrics::Metrics;
use crate::server::{HandlerFuture, PageHandler, VerbHandler};
use crate::{Error, PageReply, RequestLimits};

const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The handlers by path.
pub(crate) struct Endpoints {
    /// Empty, or such as `/some/prefix`.
    pub prefix: String,
    pub verbs: BTreeMap<&'static str, VerbHandler>,
    pub pages: Vec<(String, PageHandler)>,
    pub version: Option<String>,
    pub ready: Box<dyn Fn() -> Result<(), Error> + Send + Sync>,
    metrics: Metrics,
}

/// A running server's endpoints and limits.
pub(crate) struct Service {
    pub endpoints: Endpoints,
    pub limits: RequestLimits,
    /// Whether all paths but health checks require a client certificate.
    pub needs_certificate: bool,
    /// A permit for each request that may be in flight.
    pub permits: Arc<Semaphore>,
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

    fn verb(&self, path: &str) -> Option<(&'static str, &VerbHandler)> {
        let name = path.strip_prefix(&self.prefix)?.strip_prefix('/')?;
        self.verbs.get_key_value(name).map(|(name, verb)| (*name, verb))
    }

    fn page(&self, path: &str) -> Option<(&PageHandler, String)> {
        self.pages.iter().find_map(|(prefix, page)| {
            let rest = path.strip_prefix(prefix.as_str())?;
            let rest = if rest.is_empty() { rest } else { rest.strip_prefix('/')? };
            Some((page, rest.to_owned()))
        })
    }

    fn not_found(&self, path: &str) -> PageReply {
        let verbs: Vec<_> =
            self.verbs.keys().map(|verb| format!("{}/{verb}", self.prefix)).collect();
        let line = format!("{path} not found; the verbs are at {}", verbs.join(", "));
        PageReply::text(StatusCode::NOT_FOUND, line)
    }
}

impl Service {
    /// Handles a request of a client that did or did not present a certificate.
    pub async fn handle_request<B>(
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
            let line = "a client certificate signed by the configured CA is required";
            return response(PageReply::text(StatusCode::UNAUTHORIZED, line), None);
        } else if let Some((name, verb)) = self.endpoints.verb(&path) {
            if request.method() != Method::POST {
                return not_allowed("POST", &path);
            }
            // Browsers send this header with each POST, and schedulers never do: a page of any site could otherwise bind pods through
            // the browser of somebody who can reach the extender.
            if request.headers().contains_key(ORIGIN) {
                let line = "requests of web pages (with the header Origin) are not served";
                return response(PageReply::text(StatusCode::FORBIDDEN, line), None);
            }
            let timer = self.endpoints.metrics.start_request(name);
            let reply = self.call_verb(name, verb, request.into_body()).await;
            timer.finish(reply.status);
            return response(reply, None);
        } else if !is_get && (health.is_some() || self.has_page(&path)) {
            return not_allowed("GET", &path);
        } else {
            health
        };
        let reply = match wanted {
            Some(reply) => reply,
            None => self.get_page(&path).await,
        };
        response(reply, None)
    }

    fn health(&self, path: &str) -> Option<PageReply> {
        let unready = |line| PageReply::text(StatusCode::SERVICE_UNAVAILABLE, line);
        match path {
            "/healthz" | "/livez" => Some(PageReply::text(StatusCode::OK, "ok")),
            "/readyz" if self.is_stopping.load(Ordering::Relaxed) => {
                Some(unready("stopping".to_owned()))
            }
            "/readyz" => Some(match (self.endpoints.ready)() {
                Ok(()) => PageReply::text(StatusCode::OK, "ok"),
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

    /// The response of a page.
    async fn get_page(&self, path: &str) -> PageReply {
        if path == "/metrics" {
            let body = self.endpoints.metrics.text().into();
            return PageReply { status: StatusCode::OK, content_type: METRICS_TYPE, body };
        }
        if let ("/version", Some(version)) = (path, &self.endpoints.version) {
            return PageReply::text(StatusCode::OK, version);
        }
        match self.endpoints.page(path) {
            Some((page, rest)) => match self.acquire_permit().await {
                Some(permit) => self.run_handler("page", page(rest), permit).await,
                None => busy(),
            },
            None => self.endpoints.not_found(path),
        }
    }

    async fn call_verb<B>(&self, name: &'static str, verb: &VerbHandler, body: B) -> PageReply
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let Some(permit) = self.acquire_permit().await else { return busy() };
        let bytes_max = self.limits.body_bytes_max;
        let body = match timeout(self.limits.body_time_max, Limited::new(body, bytes_max).collect())
            .await
        {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                let line = format!("the body has more than {bytes_max} bytes");
                return PageReply::text(StatusCode::PAYLOAD_TOO_LARGE, line);
            }
            Ok(Err(error)) => {
                return PageReply::text(
                    StatusCode::BAD_REQUEST,
                    format!("reading the body: {error}"),
                );
            }
            Err(_) => {
                let line = "the body did not arrive in time";
                return PageReply::text(StatusCode::REQUEST_TIMEOUT, line);
            }
        };
        self.run_handler(name, verb(body), permit).await
    }

    /// A permit to run a request; None after waiting for too long.
    async fn acquire_permit(&self) -> Option<OwnedSemaphorePermit> {
        let waiting = timeout(self.limits.body_time_max, self.permits.clone().acquire_owned());
        waiting.await.ok()?.ok()
    }

    /// Runs a handler in its own task, so that a panic fails only this request, and the handler is not canceled when its client
    /// disconnects.
    async fn run_handler(
        &self,
        name: &str,
        future: HandlerFuture,
        permit: OwnedSemaphorePermit,
    ) -> PageReply {
        let task = tokio::spawn(async move {
            let reply = future.await;
            drop(permit);
            reply
        });
        match timeout(self.limits.handler_time_max, task).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) => {
                tracing::error!(verb = name, err = %error, "A handler panicked");
                let line = format!("the handler of {name} panicked; see the extender's log");
                PageReply::text(StatusCode::INTERNAL_SERVER_ERROR, line)
            }
            Err(_) => {
                let seconds = self.limits.handler_time_max.as_secs_f64();
                let line = format!("the handler of {name} took more than {seconds} s");
                PageReply::text(StatusCode::GATEWAY_TIMEOUT, line)
            }
        }
    }
}

fn busy() -> PageReply {
    PageReply::text(StatusCode::SERVICE_UNAVAILABLE, "too many requests in flight")
}

fn not_allowed(allowed: &'static str, path: &str) -> Response<Full<Bytes>> {
    let line = format!("{path} supports only {allowed}");
    response(PageReply::text(StatusCode::METHOD_NOT_ALLOWED, line), Some(allowed))
}

fn response(reply: PageReply, allowed: Option<&'static str>) -> Response<Full<Bytes>> {
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
