//! Endpoints that read the engine's state: `/explain` and `/metrics/resources`. Each request runs a query on the engine's thread.
//!
//! To explain a pod takes milliseconds with thousands of nodes, and no pod is scheduled meanwhile; copying the world would take longer.
//! Therefore only one such query runs at a time, and after it the next one has to wait for a multiple of the time it took.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderValue, Method, StatusCode};
use loadmaster_engine::Engine;
use loadmaster_engine::engine::scheduling_state::PodSchedulingState;
use loadmaster_engine::explain::Explanation;
use loadmaster_framework::pod_requests::PodRequests;
use loadmaster_framework::resources::{RESOURCE_CPU, RESOURCE_EPHEMERAL_STORAGE, RESOURCE_MEMORY};
use loadmaster_framework::{FeatureGates, PodInfo, Resources};
use serde::Serialize;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Mutex, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::clock;
use super::engine_loop::Command;
use crate::metrics::PodResources;
use crate::serve::{HttpReply, Route, RouteRequest};

/// How long a request waits. The engine runs queries between two batches of scheduling cycles.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// `/metrics/resources`.
pub(super) fn pod_resources(
    commands: UnboundedSender<Command>,
) -> Arc<dyn Fn() -> Option<Vec<PodResources>> + Send + Sync> {
    Arc::new(move || {
        let (result_sender, result) = std::sync::mpsc::sync_channel(1);
        let query = move |engine: &mut Engine| {
            let _ = result_sender.send(pod_resources_of_engine(engine));
        };
        commands.send(Command::Query(Box::new(query))).ok()?;
        tokio::task::block_in_place(|| result.recv_timeout(QUERY_TIMEOUT).ok())
    })
}

fn pod_resources_of_engine(engine: &Engine) -> Vec<PodResources> {
    let world = engine.world();
    let assigned = world.node_infos().flat_map(|node| node.pods());
    let all = assigned.chain(engine.pending_pods());
    all.map(|pod| resources_of(pod, world.gates())).collect()
}

fn resources_of(pod: &PodInfo, gates: &FeatureGates) -> PodResources {
    let limits = PodRequests::limits(&pod.template.spec, gates);
    PodResources {
        namespace: pod.template.namespace.to_string(),
        pod: pod.name.to_string(),
        node: pod.node_name.to_string(),
        scheduler: pod.template.scheduler_name().to_owned(),
        priority: pod.template.spec.priority,
        requests: amounts(&pod.requests().resources),
        limits: amounts(&limits),
    }
}

fn amounts(resources: &Resources) -> Vec<(String, f64)> {
    let mut amounts = vec![
        (RESOURCE_CPU.to_owned(), resources.cpu_milli as f64 / 1000.0),
        (RESOURCE_MEMORY.to_owned(), resources.memory_bytes as f64),
        (RESOURCE_EPHEMERAL_STORAGE.to_owned(), resources.ephemeral_storage_bytes as f64),
    ];
    amounts.extend(resources.scalars.iter().map(|(name, n)| (name.to_string(), *n as f64)));
    amounts
}

/// Endpoints that kube-scheduler does not have.
pub(super) fn routes(commands: &UnboundedSender<Command>) -> Vec<Route> {
    let queries = EngineQueries::new(commands);
    vec![Route::new("/explain", move |request: RouteRequest| {
        let queries = queries.clone();
        async move { explain(&queries, &request).await }
    })]
}

/// After a query, the next one has to wait for this many times its duration, so that queries take at most a twentieth of the engine's
/// time.
pub(super) const QUERY_PAUSE_FACTOR: u32 = 19;

/// Runs queries on the engine, one at a time and with pauses.
#[derive(Clone)]
pub(super) struct EngineQueries {
    commands: UnboundedSender<Command>,
    /// When the next query may run.
    next_query_at: Arc<Mutex<Instant>>,
}

/// Why a query has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueryError {
    /// Too many queries are waiting.
    Busy,
    /// The engine has stopped, or did not run the query in time.
    Unavailable,
    /// A plugin panicked during the query.
    Panicked,
}

impl EngineQueries {
    pub fn new(commands: &UnboundedSender<Command>) -> EngineQueries {
        EngineQueries {
            commands: commands.clone(),
            next_query_at: Arc::new(Mutex::new(Instant::now())),
        }
    }

    pub async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, QueryError> {
        let turn = async {
            let free_from = self.next_query_at.clone().lock_owned().await;
            sleep_until(*free_from).await;
            free_from
        };
        let mut free_from = timeout(QUERY_TIMEOUT, turn).await.map_err(|_| QueryError::Busy)?;
        let (result_sender, result) = oneshot::channel();
        let query = move |engine: &mut Engine| {
            // The requester may have given up; the pause before the next query still applies.
            if result_sender.is_closed() {
                return;
            }
            let began = Instant::now();
            // A query changes the engine only in dry runs, which a panic undoes, so its state stays consistent.
            let result = catch_unwind(AssertUnwindSafe(|| query(engine)));
            let now = Instant::now();
            *free_from = now + (now - began) * QUERY_PAUSE_FACTOR;
            drop(free_from);
            let _ = result_sender.send(result);
        };
        self.commands.send(Command::Query(Box::new(query))).map_err(|_| QueryError::Unavailable)?;
        match timeout(QUERY_TIMEOUT, result).await {
            Ok(Ok(result)) => result.map_err(|_| QueryError::Panicked),
            _ => Err(QueryError::Unavailable),
        }
    }
}

impl QueryError {
    fn reply(self) -> HttpReply {
        match self {
            QueryError::Busy => {
                let text = "too many concurrent requests\n";
                let reply = HttpReply::text(StatusCode::TOO_MANY_REQUESTS, text);
                reply.with_header(RETRY_AFTER, HeaderValue::from_static("1"))
            }
            QueryError::Unavailable => {
                HttpReply::text(StatusCode::SERVICE_UNAVAILABLE, "the scheduler is not running\n")
            }
            QueryError::Panicked => {
                let text = "a plugin panicked while the pod was being explained\n";
                HttpReply::text(StatusCode::INTERNAL_SERVER_ERROR, text)
            }
        }
    }
}

/// `/explain/NAMESPACE/POD`: the result of scheduling the pod now; with `?last`, the pod's state and why its last attempt failed.
async fn explain(queries: &EngineQueries, request: &RouteRequest) -> HttpReply {
    if request.method != Method::GET {
        return HttpReply::text(StatusCode::METHOD_NOT_ALLOWED, "only GET is supported\n");
    }
    let path = request.path.trim_start_matches("/explain").trim_matches('/');
    let Some((namespace, name)) = path.split_once('/').filter(|(_, name)| !name.contains('/'))
    else {
        let text = "expected /explain/NAMESPACE/POD or /explain/NAMESPACE/POD?last\n";
        return HttpReply::text(StatusCode::BAD_REQUEST, text);
    };
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    let pod = format!("{namespace}/{name}");
    let is_last_attempt = match &*request.query {
        "" => false,
        "last" | "last=" | "last=true" => true,
        _ => return HttpReply::text(StatusCode::BAD_REQUEST, "the only parameter is last\n"),
    };
    let query = move |engine: &mut Engine| {
        let explained = if is_last_attempt { None } else { engine.explain(&namespace, &name) };
        match explained {
            Some(explanation) => ExplainResult::Explained(Box::new(explanation)),
            None => {
                let progress = engine.pod_scheduling_state(clock::now(), &namespace, &name);
                ExplainResult::PodProgress(progress.map(Box::new))
            }
        }
    };
    match queries.query(query).await {
        Ok(ExplainResult::Explained(explanation)) => json(&*explanation),
        Ok(ExplainResult::PodProgress(Some(progress))) if is_last_attempt => json(&*progress),
        Ok(ExplainResult::PodProgress(Some(progress))) => {
            let PodSchedulingState { pod, node, .. } = &*progress;
            let text = format!(
                "{pod} is already assigned to {node}: only unassigned pods can be explained\n"
            );
            HttpReply::text(StatusCode::CONFLICT, text)
        }
        Ok(ExplainResult::PodProgress(None)) => {
            let text = format!("pod {pod} is not pending in this scheduler\n");
            HttpReply::text(StatusCode::NOT_FOUND, text)
        }
        Err(error) => error.reply(),
    }
}

/// The result of an `/explain` query.
enum ExplainResult {
    Explained(Box<Explanation>),
    PodProgress(Option<Box<PodSchedulingState>>),
}

fn json(value: &impl Serialize) -> HttpReply {
    match serde_json::to_vec(value) {
        Ok(json) => HttpReply::new(StatusCode::OK, "application/json", json),
        Err(error) => {
            HttpReply::text(StatusCode::INTERNAL_SERVER_ERROR, format!("writing JSON: {error}\n"))
        }
    }
}

#[cfg(test)]
mod tests;
