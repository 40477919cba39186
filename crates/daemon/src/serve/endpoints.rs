//! Handles requests: authentication, authorization, routing.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CACHE_CONTROL, HeaderName, HeaderValue, LOCATION};
use http::{Method, Request, StatusCode, Version};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use jiff::Timestamp;
use loadmaster_serving::Peer;
use tokio::time::{Instant, timeout};

use super::EndpointsConfig;
use super::authentication::Authenticator;
use super::authorization::{Authorizer, Decision, forbidden_message};
use super::cpu_profile;
use super::health::{self, HealthEndpoint};
use super::reply::{HttpReply, not_found, status, text_line};
use super::zpages::{Statusz, flagz};
use crate::metrics::{CONTENT_TYPE as METRICS, process_start_seconds, resource_metrics_text};

/// The timeout of a request.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(60);
/// The maximum size of a request body. The only body that is read is a log level.
const BODY_BYTES_MAX: usize = 64 << 10;

/// A request to a [`Route`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteRequest {
    /// The HTTP method.
    pub method: Method,
    /// The path, the route's prefix included.
    pub path: String,
    /// The query string, without `?`; may be empty.
    pub query: String,
}

/// The response of a [`Route`].
pub type RouteFuture = Pin<Box<dyn Future<Output = HttpReply> + Send>>;

/// An endpoint that upstream does not have, behind the same authentication and authorization.
#[derive(Clone)]
pub struct Route {
    prefix: String,
    handler: Arc<dyn Fn(RouteRequest) -> RouteFuture + Send + Sync>,
}

impl Route {
    /// Handles `prefix` and all paths below it: `/explain` for `/explain/ns/pod`.
    pub fn new<F: Future<Output = HttpReply> + Send + 'static>(
        prefix: impl Into<String>,
        handler: impl Fn(RouteRequest) -> F + Send + Sync + 'static,
    ) -> Route {
        Route { prefix: prefix.into(), handler: Arc::new(move |it| Box::pin(handler(it))) }
    }

    fn matches(&self, path: &str) -> bool {
        let rest = path.strip_prefix(&self.prefix);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// All endpoints behind authentication and authorization.
pub(super) struct Endpoints {
    config: EndpointsConfig,
    health: Vec<HealthEndpoint>,
    statusz: Option<Statusz>,
    authenticator: Arc<Authenticator>,
    authorizer: Authorizer,
}

impl Endpoints {
    pub fn new(
        mut parts: EndpointsConfig,
        authenticator: Arc<Authenticator>,
        authorizer: Authorizer,
    ) -> Endpoints {
        let statusz = parts.has_statusz.then(|| Statusz {
            started: Timestamp::now(),
            binary_version: parts.binary_version.clone(),
            versions: parts.versions,
        });
        let health = std::mem::take(&mut parts.health).endpoints();
        Endpoints { config: parts, health, statusz, authenticator, authorizer }
    }

    /// Handles a request and logs it at verbosity 3; also returns whether to close the connection.
    pub async fn handle(&self, peer: &Peer, request: Request<Incoming>) -> (HttpReply, bool) {
        let started = Instant::now();
        let (verb, uri) = (request.method().clone(), request.uri().path().to_owned());
        let time_max = match uri.as_str() {
            cpu_profile::PATH => cpu_profile::request_time_max(query_of(&request)),
            _ => REQUEST_TIME_MAX,
        };
        let (reply, is_last) =
            match timeout(time_max, self.authenticate_and_route(peer, request)).await {
                Ok(reply) => reply,
                Err(_) => {
                    let why = "the request took too long".to_owned();
                    (text_line(StatusCode::GATEWAY_TIMEOUT, why), false)
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
        (reply.with_header(CACHE_CONTROL, HeaderValue::from_static("no-cache, private")), is_last)
    }

    /// Authenticates and authorizes the request and routes it. HTTP/2 connections are expensive: anonymous clients
    /// get one response per connection.
    async fn authenticate_and_route(
        &self,
        peer: &Peer,
        request: Request<Incoming>,
    ) -> (HttpReply, bool) {
        let is_http2 = request.version() == Version::HTTP_2;
        let user =
            match self.authenticator.authenticate(request.headers(), &peer.certificates).await {
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
                let message = forbidden_message(&user, &verb, &path, &reason);
                status(StatusCode::FORBIDDEN, "Forbidden", &message).with_header(
                    http::header::X_CONTENT_TYPE_OPTIONS,
                    HeaderValue::from_static("nosniff"),
                )
            }
            Err(error) => {
                tracing::error!(err = error, URI = path, "Unable to authorize the request");
                let text = format!("Internal Server Error: {path:?}: {error}");
                text_line(StatusCode::INTERNAL_SERVER_ERROR, text)
            }
        };
        (reply, is_last)
    }

    async fn route(&self, request: Request<Incoming>) -> HttpReply {
        let path = request.uri().path().to_owned();
        let query = query_of(&request).to_owned();
        let metrics = &self.config.metrics;
        if let Some(reply) = self.health.iter().find_map(|it| it.handle(&path, &query, metrics)) {
            return reply;
        }
        match path.as_str() {
            "/metrics" if request.method() == Method::DELETE => {
                metrics.reset();
                reset_reply()
            }
            "/metrics" => metrics_reply(metrics.text()),
            "/metrics/slis" if request.method() == Method::DELETE => {
                metrics.reset_slis();
                reset_reply()
            }
            "/metrics/slis" => metrics_reply(metrics.slis_text()),
            "/metrics/resources" => match (self.config.pod_resources)() {
                Some(pods) => metrics_reply(resource_metrics_text(&pods)),
                None => HttpReply::empty(StatusCode::OK),
            },
            "/configz" => {
                let body = format!("{{\"componentconfig\":{}}}", (self.config.configz)());
                HttpReply::new(StatusCode::OK, "application/json", body).with_header(
                    http::header::X_CONTENT_TYPE_OPTIONS,
                    HeaderValue::from_static("nosniff"),
                )
            }
            "/statusz" => match &self.statusz {
                Some(statusz) => {
                    let lines = (self.config.status_lines)();
                    statusz.handle(request.headers(), Timestamp::now(), &lines)
                }
                None => not_found(),
            },
            "/flagz" => match &self.config.flagz {
                Some(flags) => flagz(flags, request.headers()),
                None => not_found(),
            },
            _ if path.starts_with("/debug/") || path == "/debug/pprof" => self.debug(request).await,
            _ => match self.config.routes.iter().find(|route| route.matches(&path)) {
                Some(route) => {
                    let method = request.method().clone();
                    (route.handler)(RouteRequest { method, path, query }).await
                }
                None => not_found(),
            },
        }
    }

    async fn debug(&self, request: Request<Incoming>) -> HttpReply {
        if !self.config.has_debug {
            return not_found();
        }
        match request.uri().path() {
            "/debug/flags/v" => self.set_verbosity(request).await,
            "/debug/pprof" => HttpReply::text(StatusCode::FOUND, "")
                .with_header(LOCATION, HeaderValue::from_static("/debug/pprof/")),
            cpu_profile::PATH => cpu_profile::cpu_profile(query_of(&request)).await,
            path if path.starts_with("/debug/pprof/") => text_line(
                StatusCode::NOT_IMPLEMENTED,
                "This profile is not available, because Loadmaster is not a Go program. /debug/pprof/profile is."
                    .to_owned(),
            ),
            _ => not_found(),
        }
    }

    /// Upstream's responses, whose content type has no charset.
    async fn set_verbosity(&self, request: Request<Incoming>) -> HttpReply {
        self.put_verbosity(request).await.with_content_type("text/plain")
    }

    async fn put_verbosity(&self, request: Request<Incoming>) -> HttpReply {
        if request.method() != Method::PUT {
            return text_line(StatusCode::NOT_ACCEPTABLE, "unsupported http method".to_owned());
        }
        let body = match Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => {
                return text_line(
                    StatusCode::BAD_REQUEST,
                    format!("reading the request body: {error}"),
                );
            }
        };
        let text = String::from_utf8_lossy(&body).into_owned();
        match text.parse::<u32>() {
            Ok(level) if level <= i32::MAX as u32 => {
                (self.config.set_verbosity)(level);
                let done = format!("successfully set klog.logging.verbosity to {text}\n");
                HttpReply::text(StatusCode::OK, done)
            }
            _ => {
                let why = format!("strconv.ParseUint: parsing {text:?}: invalid syntax");
                text_line(StatusCode::BAD_REQUEST, why)
            }
        }
    }
}

/// The query string, without `?`; may be empty.
fn query_of(request: &Request<Incoming>) -> &str {
    request.uri().query().unwrap_or_default()
}

fn metrics_reply(text: String) -> HttpReply {
    let reply = HttpReply::new(StatusCode::OK, METRICS, text);
    let started = process_start_seconds().map(|seconds| (seconds as i64).to_string());
    match started.and_then(|started| HeaderValue::from_str(&started).ok()) {
        Some(started) => {
            reply.with_header(HeaderName::from_static("process-start-time-unix"), started)
        }
        None => reply,
    }
}

fn reset_reply() -> HttpReply {
    HttpReply::text(StatusCode::OK, "metrics reset\n").without_nosniff()
}

impl health::Health {
    /// The checks of a scheduler, in upstream's order.
    pub fn scheduler_health_checks(
        leader_election: Option<health::HealthCheck>,
        shutdown: &health::HealthState,
        synced: &health::HealthState,
    ) -> health::Health {
        let mut readyz: Vec<health::HealthCheck> = leader_election.iter().cloned().collect();
        readyz.push(shutdown.check("shutdown"));
        readyz.push(synced.check("sched-handler-sync"));
        health::Health { healthz: leader_election.into_iter().collect(), livez: Vec::new(), readyz }
    }
}
