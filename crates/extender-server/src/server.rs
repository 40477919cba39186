//! Which handlers there are, and how they are served.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use loadmaster_extender::messages::{
    ExtenderArgs, ExtenderBindingArgs, ExtenderBindingResult, ExtenderFilterResult,
    ExtenderPreemptionArgs, ExtenderPreemptionResult, HostPriorityList, read,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::ToSocketAddrs;

use crate::endpoints::Endpoints;
use crate::serve::{self, Listening, ServeError};
use crate::{Ask, Error, Filtered, Object, Outcome, PreemptAsk, Tls};

/// A handler at work.
pub(crate) type Work = Pin<Box<dyn Future<Output = Reply> + Send>>;
/// A verb: the body of a request in, the answer out.
pub(crate) type Verb = Box<dyn Fn(Bytes) -> Work + Send + Sync>;
/// Why there is no answer, and the status that says so where an answer has no place for it.
type Unanswered = (StatusCode, Error);
/// A page: the rest of the path in, the answer out.
pub(crate) type Page = Box<dyn Fn(String) -> Work + Send + Sync>;

/// An extender: handlers, and what is served around them.
///
/// Paths are `PREFIX/filter`, `PREFIX/prioritize`, `PREFIX/preempt` and `PREFIX/bind`, so that the scheduler's `urlPrefix` is the
/// address with the prefix, and its `filterVerb` is `filter`. Beside them stand `/healthz`, `/readyz`, `/version` and `/metrics`.
pub struct ExtenderServer {
    pub(crate) endpoints: Endpoints,
    pub(crate) bounds: Bounds,
    pub(crate) tls: Option<Tls>,
}

/// What requests may cost.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes of a body. 128 MiB: a whole node with 50 images takes about 20 KB, so that the 5,000 nodes of a large cluster take
    /// 100 MB. Names alone take 200 KB.
    pub body_bytes_max: usize,
    /// How long a body may take to come, and a request may wait for a place: 30 s.
    pub body_time_max: Duration,
    /// After so long a request is answered with 504: 60 s. The handler still runs to its end, so that what it began is finished.
    pub handler_time_max: Duration,
    /// Requests at a time; more wait: 16. Times `body_bytes_max`, this is what bodies can take of memory.
    pub requests_max: u16,
    /// How long requests under way may go on when the server stops: 20 s, less than the 30 s that a kubelet waits.
    pub stop_time_max: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            body_bytes_max: 128 << 20,
            body_time_max: Duration::from_secs(30),
            handler_time_max: Duration::from_secs(60),
            requests_max: 16,
            stop_time_max: Duration::from_secs(20),
        }
    }
}

/// An answer of a page.
#[derive(Clone, Debug)]
pub struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) content_type: &'static str,
    pub(crate) body: Bytes,
}

impl Reply {
    /// JSON.
    pub fn json(status: StatusCode, body: &impl Serialize) -> Reply {
        match serde_json::to_vec(body) {
            Ok(body) => Reply { status, content_type: "application/json", body: body.into() },
            Err(error) => {
                let line = format!("writing the answer: {error}");
                Reply::text(StatusCode::INTERNAL_SERVER_ERROR, line)
            }
        }
    }

    /// Plain text, as one line.
    pub fn text(status: StatusCode, line: impl Into<String>) -> Reply {
        let body = line.into() + "\n";
        Reply { status, content_type: "text/plain; charset=utf-8", body: body.into() }
    }
}

impl Default for ExtenderServer {
    fn default() -> Self {
        ExtenderServer::new()
    }
}

impl ExtenderServer {
    /// Without handlers.
    pub fn new() -> ExtenderServer {
        ExtenderServer { endpoints: Endpoints::new(), bounds: Bounds::default(), tls: None }
    }

    /// Which nodes are left for a pod. An error is told to the scheduler, which fails the pod with it unless the extender is
    /// `ignorable`.
    #[must_use]
    pub fn filter<F, O, Form>(self, handler: F) -> Self
    where
        F: Fn(Ask) -> O + Send + Sync + 'static,
        O: Outcome<Filtered, Form>,
        Form: 'static,
    {
        let ask = |args: ExtenderArgs<Object, Object>| args.try_into();
        self.verb("filter", handler, ask, |outcome: Result<Filtered, Unanswered>| {
            let result = outcome.map(ExtenderFilterResult::from).unwrap_or_else(|(_, error)| {
                ExtenderFilterResult { error: error.to_string(), ..Default::default() }
            });
            Reply::json(StatusCode::OK, &result)
        })
    }

    /// How good the nodes are for a pod, 0 to 10 each. The scheduler ignores errors here.
    #[must_use]
    pub fn prioritize<F, O, Form>(self, handler: F) -> Self
    where
        F: Fn(Ask) -> O + Send + Sync + 'static,
        O: Outcome<HostPriorityList, Form>,
        Form: 'static,
    {
        let ask = |args: ExtenderArgs<Object, Object>| args.try_into();
        self.verb("prioritize", handler, ask, |outcome: Result<HostPriorityList, Unanswered>| {
            json_or_status("prioritize", outcome)
        })
    }

    /// Which of the nodes with their victims may be preempted for a pod.
    #[must_use]
    pub fn preempt<F, O, Form>(self, handler: F) -> Self
    where
        F: Fn(PreemptAsk) -> O + Send + Sync + 'static,
        O: Outcome<ExtenderPreemptionResult, Form>,
        Form: 'static,
    {
        let ask = |args: ExtenderPreemptionArgs<Object>| args.try_into();
        self.verb(
            "preempt",
            handler,
            ask,
            |outcome: Result<ExtenderPreemptionResult, Unanswered>| {
                json_or_status("preempt", outcome)
            },
        )
    }

    /// Binds a pod to a node, in the scheduler's place. An error fails the pod with it.
    #[must_use]
    pub fn bind<F, O, Form>(self, handler: F) -> Self
    where
        F: Fn(ExtenderBindingArgs) -> O + Send + Sync + 'static,
        O: Outcome<(), Form>,
        Form: 'static,
    {
        let ask = |args: ExtenderBindingArgs| {
            let field = match (args.pod_name.is_empty(), args.node.is_empty()) {
                (true, _) => "PodName",
                (_, true) => "Node",
                _ => return Ok(args),
            };
            Err(Error::new(format!("there is no {field}")))
        };
        self.verb("bind", handler, ask, |outcome: Result<(), Unanswered>| {
            let error = outcome.err().map(|(_, error)| error.to_string()).unwrap_or_default();
            Reply::json(StatusCode::OK, &ExtenderBindingResult { error })
        })
    }

    /// Answers `GET path` and `GET path/REST`; the handler is given REST, or an empty text. The prefix does not count here.
    #[must_use]
    pub fn page<F, O, Form>(mut self, path: &str, handler: F) -> Self
    where
        F: Fn(String) -> O + Send + Sync + 'static,
        O: Outcome<Reply, Form>,
        Form: 'static,
    {
        let handler = Arc::new(handler);
        let page = move |rest| -> Work {
            let handler = handler.clone();
            Box::pin(async move {
                handler(rest).outcome().await.unwrap_or_else(|error| {
                    Reply::text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
                })
            })
        };
        self.endpoints.pages.push((normal(path), Box::new(page)));
        self
    }

    /// In front of the verbs' paths, such as `/gpushare-scheduler`.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.endpoints.prefix = normal(prefix);
        self
    }

    /// What `/version` answers; without it there is no such path.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.endpoints.version = Some(version.into());
        self
    }

    /// What `/readyz` asks: an error says what is missing, such as caches that are not filled yet.
    #[must_use]
    pub fn ready(mut self, check: impl Fn() -> Result<(), Error> + Send + Sync + 'static) -> Self {
        self.endpoints.ready = Box::new(check);
        self
    }

    /// Other limits than the default ones.
    #[must_use]
    pub fn bounds(mut self, bounds: Bounds) -> Self {
        self.bounds = bounds;
        self
    }

    /// HTTPS instead of HTTP.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Takes the port. Serving begins with [`Listening::run`].
    ///
    /// # Errors
    ///
    /// When the port cannot be had, or files of TLS cannot be used.
    pub async fn listen(self, address: impl ToSocketAddrs) -> Result<Listening, ServeError> {
        serve::listen(self, address).await
    }

    /// Serves until SIGTERM or Ctrl-C, finishes what is under way, and returns.
    ///
    /// # Errors
    ///
    /// As [`ExtenderServer::listen`], and when signals cannot be had.
    pub async fn serve(self, address: impl ToSocketAddrs) -> Result<(), ServeError> {
        let stop = serve::signals()?;
        self.listen(address).await?.run(stop).await;
        Ok(())
    }

    /// A verb: `ask` makes a question of what came, `reply` an answer of what the handler said.
    fn verb<Wire, Question, Answer, F, O, Form>(
        mut self,
        name: &'static str,
        handler: F,
        ask: fn(Wire) -> Result<Question, Error>,
        reply: fn(Result<Answer, Unanswered>) -> Reply,
    ) -> Self
    where
        Wire: Default + DeserializeOwned + 'static,
        Question: 'static,
        Answer: 'static,
        F: Fn(Question) -> O + Send + Sync + 'static,
        O: Outcome<Answer, Form>,
        Form: 'static,
    {
        let handler = Arc::new(handler);
        let verb = move |body: Bytes| -> Work {
            let handler = handler.clone();
            Box::pin(async move {
                let question = match read::<Wire>(&body).map(ask) {
                    Ok(Ok(question)) => question,
                    Ok(Err(lacking)) => {
                        return told(name, reply, Err((StatusCode::BAD_REQUEST, lacking)));
                    }
                    Err(error) => {
                        let line = format!("the body is no {name} request: {error}");
                        return Reply::text(StatusCode::BAD_REQUEST, line);
                    }
                };
                drop(body);
                let outcome = handler(question).outcome().await;
                let failed = |error| (StatusCode::INTERNAL_SERVER_ERROR, error);
                told(name, reply, outcome.map_err(failed))
            })
        };
        self.endpoints.verbs.insert(name, Box::new(verb));
        self
    }
}

/// The answer; the log is told of errors, too.
fn told<Answer>(
    verb: &str,
    reply: fn(Result<Answer, Unanswered>) -> Reply,
    outcome: Result<Answer, Unanswered>,
) -> Reply {
    if let Err((_, error)) = &outcome {
        tracing::info!(verb, err = %error, "A question is answered with an error");
    }
    reply(outcome)
}

/// For verbs whose answers have no place for an error.
fn json_or_status(verb: &str, outcome: Result<impl Serialize, Unanswered>) -> Reply {
    match outcome {
        Ok(answer) => Reply::json(StatusCode::OK, &answer),
        Err((status, error)) => Reply::text(status, format!("{verb}: {error}")),
    }
}

/// A path that begins with a slash and does not end with one; nothing for the root.
fn normal(path: &str) -> String {
    match path.trim_matches('/') {
        "" => String::new(),
        path => format!("/{path}"),
    }
}
