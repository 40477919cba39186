//! What a request gets: the chain of who, may and what.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CACHE_CONTROL, HeaderName, HeaderValue, LOCATION};
use http::{Method, Request, StatusCode, Version};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::Parts;
use super::authentication::Authenticator;
use super::authorization::{Authorizer, Decision, forbidden};
use super::health::{self, Endpoint};
use super::reply::{Reply, not_found, plain, status};
use super::zpages::{Statusz, flagz};
use crate::metrics::{CONTENT_TYPE as METRICS, process_start_seconds, resources_text};

/// A request may take this long.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(60);
/// The only body that is read is a log level.
const BODY_BYTES_MAX: usize = 64 << 10;

/// What is known of the other side.
pub(super) struct Peer {
    /// Its certificates, the client's own first; none if it showed none.
    pub chain: Vec<CertificateDer<'static>>,
    /// Told when the connection should end.
    pub close: Notify,
}

/// What a [`Route`] is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteRequest {
    /// The HTTP method.
    pub method: Method,
    /// The path, the route's prefix included.
    pub path: String,
    /// What follows `?`; empty if nothing does.
    pub query: String,
}

/// What a [`Route`] answers.
pub type RouteFuture = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// An endpoint beyond upstream's, behind the same authentication and authorization.
#[derive(Clone)]
pub struct Route {
    prefix: String,
    answer: Arc<dyn Fn(RouteRequest) -> RouteFuture + Send + Sync>,
}

impl Route {
    /// Answers for `prefix` and everything below it: `/explain` for `/explain/ns/pod`.
    pub fn new<F: Future<Output = Reply> + Send + 'static>(
        prefix: impl Into<String>,
        answer: impl Fn(RouteRequest) -> F + Send + Sync + 'static,
    ) -> Route {
        Route { prefix: prefix.into(), answer: Arc::new(move |it| Box::pin(answer(it))) }
    }

    fn is_for(&self, path: &str) -> bool {
        let rest = path.strip_prefix(&self.prefix);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// All endpoints behind authentication and authorization.
pub(super) struct Endpoints {
    parts: Parts,
    health: Vec<Endpoint>,
    statusz: Option<Statusz>,
    authenticator: Arc<Authenticator>,
    authorizer: Authorizer,
}

impl Endpoints {
    pub fn new(
        mut parts: Parts,
        authenticator: Arc<Authenticator>,
        authorizer: Authorizer,
    ) -> Endpoints {
        let statusz = parts.has_statusz.then(|| Statusz {
            started: Timestamp::now(),
            binary_version: parts.binary_version.clone(),
            versions: parts.versions,
        });
        let health = std::mem::take(&mut parts.health).endpoints();
        Endpoints { parts, health, statusz, authenticator, authorizer }
    }

    /// The answer to a request, logged at level 3, and whether it is the connection's last.
    pub async fn answer(&self, peer: &Peer, request: Request<Incoming>) -> (Reply, bool) {
        let started = Instant::now();
        let (verb, uri) = (request.method().clone(), request.uri().path().to_owned());
        let (reply, is_last) = match timeout(REQUEST_TIME_MAX, self.checked(peer, request)).await {
            Ok(answer) => answer,
            Err(_) => {
                let why = "the request took too long".to_owned();
                (plain(StatusCode::GATEWAY_TIMEOUT, why), false)
            }
        };
        tracing::info!(
            v = 3,
            verb = %verb,
            URI = uri,
            latency = ?started.elapsed(),
            resp = reply.status.as_u16(),
            "HTTP"
        );
        (reply.with(CACHE_CONTROL, HeaderValue::from_static("no-cache, private")), is_last)
    }

    /// Who asks, may they, and what do they get. HTTP/2 is expensive: who is not known gets one answer
    /// a connection.
    async fn checked(&self, peer: &Peer, request: Request<Incoming>) -> (Reply, bool) {
        let is_http2 = request.version() == Version::HTTP_2;
        let user = match self.authenticator.authenticate(request.headers(), &peer.chain).await {
            Ok(user) => user,
            Err(reason) => {
                tracing::error!(err = reason, "Unable to authenticate the request");
                let reply = status(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized");
                return (reply, is_http2);
            }
        };
        let is_last = is_http2 && user.is_anonymous();
        let verb = request.method().as_str().to_ascii_lowercase();
        let path = request.uri().path().to_owned();
        let reply = match self.authorizer.authorize(&user, &verb, &path).await {
            Ok(Decision::Allowed) => self.route(request).await,
            Ok(Decision::Denied(reason)) => {
                tracing::info!(v = 4, URI = path, reason, "Forbidden");
                let message = forbidden(&user, &verb, &path, &reason);
                status(StatusCode::FORBIDDEN, "Forbidden", &message)
                    .with(http::header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
            }
            Err(error) => {
                tracing::error!(err = error, URI = path, "Unable to authorize the request");
                let text = format!("Internal Server Error: {path:?}: {error}");
                plain(StatusCode::INTERNAL_SERVER_ERROR, text)
            }
        };
        (reply, is_last)
    }

    async fn route(&self, request: Request<Incoming>) -> Reply {
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default().to_owned();
        let metrics = &self.parts.metrics;
        if let Some(reply) = self.health.iter().find_map(|it| it.answer(&path, &query, metrics)) {
            return reply;
        }
        match path.as_str() {
            "/metrics" if request.method() == Method::DELETE => {
                metrics.reset();
                reset()
            }
            "/metrics" => shown(metrics.text()),
            "/metrics/slis" if request.method() == Method::DELETE => {
                metrics.reset_slis();
                reset()
            }
            "/metrics/slis" => shown(metrics.slis_text()),
            "/metrics/resources" => match (self.parts.pod_resources)() {
                Some(pods) => shown(resources_text(&pods)),
                None => Reply::empty(StatusCode::OK),
            },
            "/configz" => {
                let body = format!("{{\"componentconfig\":{}}}", self.parts.configz);
                Reply::new(StatusCode::OK, "application/json", body)
                    .with(http::header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
            }
            "/statusz" => match &self.statusz {
                Some(statusz) => statusz.answer(request.headers(), Timestamp::now()),
                None => not_found(),
            },
            "/flagz" => match &self.parts.flagz {
                Some(flags) => flagz(flags, request.headers()),
                None => not_found(),
            },
            _ if path.starts_with("/debug/") || path == "/debug/pprof" => self.debug(request).await,
            _ => match self.parts.routes.iter().find(|route| route.is_for(&path)) {
                Some(route) => {
                    let method = request.method().clone();
                    (route.answer)(RouteRequest { method, path, query }).await
                }
                None => not_found(),
            },
        }
    }

    async fn debug(&self, request: Request<Incoming>) -> Reply {
        if !self.parts.has_debug {
            return not_found();
        }
        match request.uri().path() {
            "/debug/flags/v" => self.set_verbosity(request).await,
            "/debug/pprof" => Reply::text(StatusCode::FOUND, "")
                .with(LOCATION, HeaderValue::from_static("/debug/pprof/")),
            path if path.starts_with("/debug/pprof/") => plain(
                StatusCode::NOT_IMPLEMENTED,
                "Profiles of the Go runtime are not served: this is no Go program. Use perf or another \
                 profiler of the system on this process."
                    .to_owned(),
            ),
            _ => not_found(),
        }
    }

    /// Upstream's answers, which do not name their character set.
    async fn set_verbosity(&self, request: Request<Incoming>) -> Reply {
        self.verbosity(request).await.with_type("text/plain")
    }

    async fn verbosity(&self, request: Request<Incoming>) -> Reply {
        if request.method() != Method::PUT {
            return plain(StatusCode::NOT_ACCEPTABLE, "unsupported http method".to_owned());
        }
        let body = match Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => {
                return plain(
                    StatusCode::BAD_REQUEST,
                    format!("reading the request body: {error}"),
                );
            }
        };
        let text = String::from_utf8_lossy(&body).into_owned();
        match text.parse::<u32>() {
            Ok(level) if level <= i32::MAX as u32 => {
                (self.parts.set_verbosity)(level);
                let done = format!("successfully set klog.logging.verbosity to {text}\n");
                Reply::text(StatusCode::OK, done)
            }
            _ => {
                let why = format!("strconv.ParseUint: parsing {text:?}: invalid syntax");
                plain(StatusCode::BAD_REQUEST, why)
            }
        }
    }
}

fn shown(text: String) -> Reply {
    let reply = Reply::new(StatusCode::OK, METRICS, text);
    let started = process_start_seconds().map(|seconds| (seconds as i64).to_string());
    match started.and_then(|started| HeaderValue::from_str(&started).ok()) {
        Some(started) => reply.with(HeaderName::from_static("process-start-time-unix"), started),
        None => reply,
    }
}

fn reset() -> Reply {
    Reply::text(StatusCode::OK, "metrics reset\n").sniffed()
}

impl health::Health {
    /// The checks of a scheduler, in upstream's order.
    pub fn of_scheduler(
        leader_election: Option<health::Check>,
        shutdown: &health::Condition,
        synced: &health::Condition,
    ) -> health::Health {
        let mut readyz: Vec<health::Check> = leader_election.iter().cloned().collect();
        readyz.push(shutdown.check("shutdown"));
        readyz.push(synced.check("sched-handler-sync"));
        health::Health { healthz: leader_election.into_iter().collect(), livez: Vec::new(), readyz }
    }
}
