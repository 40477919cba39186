//! The builder of a server: handlers, limits, TLS.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use loadmaster_extender::messages::{
    ExtenderArgs, ExtenderBindingArgs, ExtenderBindingResult, ExtenderFilterResult,
    ExtenderPreemptionArgs, ExtenderPreemptionResult, HostPriorityList, decode_message,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::ToSocketAddrs;

use crate::endpoints::Endpoints;
use crate::listener::{self, BoundServer, ServeError};
use crate::{
    Error, FilteredNodes, IntoHandlerResult, NodesRequest, Object, PreemptionRequest, Tls,
};

/// The future of a handler's response.
pub(crate) type HandlerFuture = Pin<Box<dyn Future<Output = PageReply> + Send>>;
/// Handles a verb: from the body of a request to the response.
pub(crate) type VerbHandler = Box<dyn Fn(Bytes) -> HandlerFuture + Send + Sync>;
/// The error of a handler, and the status for verbs whose responses have no error field.
type HandlerFailure = (StatusCode, Error);
/// Handles a page: from the rest of the path to the response.
pub(crate) type PageHandler = Box<dyn Fn(String) -> HandlerFuture + Send + Sync>;

/// An extender: its handlers and the configuration of its server.
///
/// Paths are `PREFIX/filter`, `PREFIX/prioritize`, `PREFIX/preempt` and `PREFIX/bind`, so that the scheduler's `urlPrefix` is the
/// address with the prefix, and its `filterVerb` is `filter`. Also served are `/healthz`, `/livez`, `/readyz`, `/version` and
/// `/metrics`.
pub struct ExtenderServer {
    pub(crate) endpoints: Endpoints,
    pub(crate) limits: RequestLimits,
    pub(crate) tls: Option<Tls>,
}

/// Limits of requests.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Size of a body: 128 MiB. A node object with 50 images takes about 20 KB, so that the 5,000 nodes of a large cluster take
    /// 100 MB. Names alone take 200 KB.
    pub body_bytes_max: usize,
    /// How long a body may take to arrive, and how long a request may wait for other requests: 30 s.
    pub body_time_max: Duration,
    /// After this a request fails with status 504: 60 s. Its handler is not canceled.
    pub handler_time_max: Duration,
    /// Concurrent requests; more wait: 16. Times `body_bytes_max`, this limits the memory of bodies.
    pub requests_max: u16,
    /// How long a graceful shutdown waits for requests in flight: 20 s, less than a pod's default grace period of 30 s.
    pub stop_time_max: Duration,
}

impl Default for RequestLimits {
    fn default() -> RequestLimits {
        RequestLimits {
            body_bytes_max: 128 << 20,
            body_time_max: Duration::from_secs(30),
            handler_time_max: Duration::from_secs(60),
            requests_max: 16,
            stop_time_max: Duration::from_secs(20),
        }
    }
}

/// The response of a page.
#[derive(Clone, Debug)]
pub struct PageReply {
    pub(crate) status: StatusCode,
    pub(crate) content_type: &'static str,
    pub(crate) body: Bytes,
}

impl PageReply {
    /// A response with a JSON body.
    pub fn json(status: StatusCode, body: &impl Serialize) -> PageReply {
        match serde_json::to_vec(body) {
            Ok(body) => PageReply { status, content_type: "application/json", body: body.into() },
            Err(error) => {
                let line = format!("encoding the response: {error}");
                PageReply::text(StatusCode::INTERNAL_SERVER_ERROR, line)
            }
        }
    }

    /// A response with one line of plain text.
    pub fn text(status: StatusCode, line: impl Into<String>) -> PageReply {
        let body = line.into() + "\n";
        PageReply { status, content_type: "text/plain; charset=utf-8", body: body.into() }
    }
}

impl Default for ExtenderServer {
    fn default() -> Self {
        ExtenderServer::new()
    }
}

impl ExtenderServer {
    /// A server without handlers.
    pub fn new() -> ExtenderServer {
        ExtenderServer { endpoints: Endpoints::new(), limits: RequestLimits::default(), tls: None }
    }

    /// Sets the handler of filter. An error is returned to the scheduler, which fails the scheduling cycle of the pod unless the
    /// extender is `ignorable`.
    #[must_use]
    pub fn filter<F, O, Form>(self, handler: F) -> Self
    where
        F: Fn(NodesRequest) -> O + Send + Sync + 'static,
        O: IntoHandlerResult<FilteredNodes, Form>,
        Form: 'static,
    {
        let to_request = |args: ExtenderArgs<Object, Object>| args.try_into();
        self.verb(
            "filter",
            handler,
            to_request,
            |outcome: Result<FilteredNodes, HandlerFailure>| {
                let result =
                    outcome.map(ExtenderFilterResult::from).unwrap_or_else(|(_, error)| {
                        ExtenderFilterResult { error: error.to_string(), ..Default::default() }
                    });
                PageReply::json(StatusCode::OK, &result)
            },
        )
    }

    /// Sets the handler of prioritize, which scores nodes from 0 to 10. The scheduler ignores its errors.
    #[must_use]
    pub fn prioritize<F, O, Form>(self, handler: F) -> Self
    where
        F: Fn(NodesRequest) -> O + Send + Sync + 'static,
        O: IntoHandlerResult<HostPriorityList, Form>,
        Form: 'static,
    {
        let to_request = |args: ExtenderArgs<Object, Object>| args.try_into();
        self.verb(
            "prioritize",
            handler,
            to_request,
            |outcome: Result<HostPriorityList, HandlerFailure>| {
                json_or_status("prioritize", outcome)
            },
        )
    }

    /// Sets the handler of preempt, which filters the candidates of a preemption.
    #[must_use]
    pub fn preempt<F, O, Form>(self, handler: F) -> Self
    where
        F: Fn(PreemptionRequest) -> O + Send + Sync + 'static,
        O: IntoHandlerResult<ExtenderPreemptionResult, Form>,
        Form: 'static,
    {
        let to_request = |args: ExtenderPreemptionArgs<Object>| args.try_into();
        self.verb(
            "preempt",
            handler,
            to_request,
            |outcome: Result<ExtenderPreemptionResult, HandlerFailure>| {
                json_or_status("preempt", outcome)
            },
        )
    }

    /// Sets the handler of bind, which binds a pod in place of the scheduler. An error fails the binding cycle of the pod.
    #[must_use]
    pub fn bind<F, O, Form>(self, handler: F) -> Self
    where
        F: Fn(ExtenderBindingArgs) -> O + Send + Sync + 'static,
        O: IntoHandlerResult<(), Form>,
        Form: 'static,
    {
        let to_request = |args: ExtenderBindingArgs| {
            let field = match (args.pod_name.is_empty(), args.node.is_empty()) {
                (true, _) => "PodName",
                (_, true) => "Node",
                _ => return Ok(args),
            };
            Err(Error::new(format!("{field} is missing")))
        };
        self.verb("bind", handler, to_request, |outcome: Result<(), HandlerFailure>| {
            let error = outcome.err().map(|(_, error)| error.to_string()).unwrap_or_default();
            PageReply::json(StatusCode::OK, &ExtenderBindingResult { error })
        })
    }

    /// Serves `GET path` and `GET path/REST`; the handler gets REST, or an empty string. The prefix does not apply to pages.
    #[must_use]
    pub fn page<F, O, Form>(mut self, path: &str, handler: F) -> Self
    where
        F: Fn(String) -> O + Send + Sync + 'static,
        O: IntoHandlerResult<PageReply, Form>,
        Form: 'static,
    {
        let handler = Arc::new(handler);
        let page = move |rest| -> HandlerFuture {
            let handler = handler.clone();
            Box::pin(async move {
                handler(rest).into_handler_result().await.unwrap_or_else(|error| {
                    PageReply::text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
                })
            })
        };
        self.endpoints.pages.push((normalize_path(path), Box::new(page)));
        self
    }

    /// The prefix of the verbs' paths, such as `/gpushare-scheduler`.
    #[must_use]
    pub fn url_prefix(mut self, prefix: &str) -> Self {
        self.endpoints.prefix = normalize_path(prefix);
        self
    }

    /// The response of `/version`; without it the path is not served.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.endpoints.version = Some(version.into());
        self
    }

    /// The check of `/readyz`: an error means not ready, for example because caches have not synced.
    #[must_use]
    pub fn readiness_check(
        mut self,
        check: impl Fn() -> Result<(), Error> + Send + Sync + 'static,
    ) -> Self {
        self.endpoints.ready = Box::new(check);
        self
    }

    /// Sets the limits.
    #[must_use]
    pub fn limits(mut self, limits: RequestLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Serves HTTPS instead of HTTP.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Binds the port. [`BoundServer::run`] serves requests.
    ///
    /// # Errors
    ///
    /// When the port cannot be bound, or TLS files cannot be used.
    pub async fn listen(self, address: impl ToSocketAddrs) -> Result<BoundServer, ServeError> {
        listener::listen(self, address).await
    }

    /// Serves until SIGTERM or Ctrl-C, completes requests in flight, and returns.
    ///
    /// # Errors
    ///
    /// As [`ExtenderServer::listen`], and when signal handlers cannot be installed.
    pub async fn serve(self, address: impl ToSocketAddrs) -> Result<(), ServeError> {
        let stop = listener::signals()?;
        self.listen(address).await?.run(stop).await;
        Ok(())
    }

    /// Sets the handler of a verb: `to_request` converts the decoded body to the handler's request, `encode` its result to the
    /// response.
    fn verb<Wire, Request, Response, F, O, Form>(
        mut self,
        name: &'static str,
        handler: F,
        to_request: fn(Wire) -> Result<Request, Error>,
        encode: fn(Result<Response, HandlerFailure>) -> PageReply,
    ) -> Self
    where
        Wire: Default + DeserializeOwned + 'static,
        Request: 'static,
        Response: 'static,
        F: Fn(Request) -> O + Send + Sync + 'static,
        O: IntoHandlerResult<Response, Form>,
        Form: 'static,
    {
        let handler = Arc::new(handler);
        let verb = move |body: Bytes| -> HandlerFuture {
            let handler = handler.clone();
            Box::pin(async move {
                let request = match decode_message::<Wire>(&body).map(to_request) {
                    Ok(Ok(request)) => request,
                    Ok(Err(invalid)) => {
                        return log_and_encode(
                            name,
                            encode,
                            Err((StatusCode::BAD_REQUEST, invalid)),
                        );
                    }
                    Err(error) => {
                        let line = format!("the body is not a valid {name} request: {error}");
                        return PageReply::text(StatusCode::BAD_REQUEST, line);
                    }
                };
                drop(body);
                let outcome = handler(request).into_handler_result().await;
                let failed = |error| (StatusCode::INTERNAL_SERVER_ERROR, error);
                log_and_encode(name, encode, outcome.map_err(failed))
            })
        };
        self.endpoints.verbs.insert(name, Box::new(verb));
        self
    }
}

/// Encodes the response, and logs errors.
fn log_and_encode<Response>(
    verb: &str,
    encode: fn(Result<Response, HandlerFailure>) -> PageReply,
    outcome: Result<Response, HandlerFailure>,
) -> PageReply {
    if let Err((_, error)) = &outcome {
        tracing::info!(verb, err = %error, "Responding with an error");
    }
    encode(outcome)
}

/// The response of verbs without an error field.
fn json_or_status(verb: &str, outcome: Result<impl Serialize, HandlerFailure>) -> PageReply {
    match outcome {
        Ok(response) => PageReply::json(StatusCode::OK, &response),
        Err((status, error)) => PageReply::text(status, format!("{verb}: {error}")),
    }
}

/// A path that begins with a slash and does not end with one; nothing for the root.
fn normalize_path(path: &str) -> String {
    match path.trim_matches('/') {
        "" => String::new(),
        path => format!("/{path}"),
    }
}
