//! What the endpoints tell of the engine: each answer is a question on its thread.
//!
//! To explain a pod takes milliseconds at thousands of nodes, in which nothing is decided; a copy of the world would take longer to
//! make. So one such question is on its way at a time, and after each the engine is left alone for many times as long as it took.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderValue, Method, StatusCode};
use loadmaster_engine::Engine;
use loadmaster_engine::engine::progress::Progress;
use loadmaster_engine::explain::Explanation;
use loadmaster_framework::requests::PodRequests;
use loadmaster_framework::resources::{CPU, EPHEMERAL_STORAGE, MEMORY};
use loadmaster_framework::{FeatureGates, PodInfo, Resources};
use serde::Serialize;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Mutex, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::clock;
use super::shell::Command;
use crate::metrics::PodResources;
use crate::serve::{Reply, Route, RouteRequest};

/// The engine answers between two batches of cycles.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// `/metrics/resources`.
pub(super) fn pod_resources(
    commands: UnboundedSender<Command>,
) -> Arc<dyn Fn() -> Option<Vec<PodResources>> + Send + Sync> {
    Arc::new(move || {
        let (answer_in, answer) = std::sync::mpsc::sync_channel(1);
        let question = move |engine: &Engine| {
            let _ = answer_in.send(resources(engine));
        };
        commands.send(Command::Ask(Box::new(question))).ok()?;
        tokio::task::block_in_place(|| answer.recv_timeout(ANSWER_MAX).ok())
    })
}

fn resources(engine: &Engine) -> Vec<PodResources> {
    let world = engine.world();
    let assigned = world.node_infos().flat_map(|node| node.pods());
    let all = assigned.chain(engine.pending_pods());
    all.map(|pod| resources_of(pod, world.gates())).collect()
}

fn resources_of(pod: &PodInfo, gates: &FeatureGates) -> PodResources {
    let limits = PodRequests::of_limits(&pod.template.spec, gates);
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
        (CPU.to_owned(), resources.cpu_milli as f64 / 1000.0),
        (MEMORY.to_owned(), resources.memory_bytes as f64),
        (EPHEMERAL_STORAGE.to_owned(), resources.ephemeral_storage_bytes as f64),
    ];
    amounts.extend(resources.scalars.iter().map(|(name, n)| (name.to_string(), *n as f64)));
    amounts
}

/// Endpoints that kube-scheduler does not have.
pub(super) fn routes(commands: &UnboundedSender<Command>) -> Vec<Route> {
    let asking = Asking::new(commands);
    vec![Route::new("/explain", move |request: RouteRequest| {
        let asking = asking.clone();
        async move { explain(&asking, &request).await }
    })]
}

/// After a question the engine is left alone for so many times as long as the answer took: they take at most a twentieth of its time.
pub(super) const REST_FACTOR: u32 = 19;

/// Asks the engine long questions, one at a time.
#[derive(Clone)]
pub(super) struct Asking {
    commands: UnboundedSender<Command>,
    /// When the next one may be asked.
    free_from: Arc<Mutex<Instant>>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unanswered {
    /// Too many others ask.
    Busy,
    /// The engine has ended, or does not come to it.
    Gone,
    /// A plugin that was asked for the answer panicked.
    Panicked,
}

impl Asking {
    pub fn new(commands: &UnboundedSender<Command>) -> Asking {
        Asking { commands: commands.clone(), free_from: Arc::new(Mutex::new(Instant::now())) }
    }

    pub async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Engine) -> T + Send + 'static,
    ) -> Result<T, Unanswered> {
        let turn = async {
            let free_from = self.free_from.clone().lock_owned().await;
            sleep_until(*free_from).await;
            free_from
        };
        let mut free_from = timeout(ANSWER_MAX, turn).await.map_err(|_| Unanswered::Busy)?;
        let (answer_in, answer) = oneshot::channel();
        let question = move |engine: &Engine| {
            // Whoever asked may be gone by now, and must not have made room for the next one by that.
            if answer_in.is_closed() {
                return;
            }
            let began = Instant::now();
            // A question changes nothing, so that nothing is torn; a scheduler does not end because somebody asked.
            let answered = catch_unwind(AssertUnwindSafe(|| question(engine)));
            let now = Instant::now();
            *free_from = now + (now - began) * REST_FACTOR;
            drop(free_from);
            let _ = answer_in.send(answered);
        };
        self.commands.send(Command::Ask(Box::new(question))).map_err(|_| Unanswered::Gone)?;
        match timeout(ANSWER_MAX, answer).await {
            Ok(Ok(answered)) => answered.map_err(|_| Unanswered::Panicked),
            _ => Err(Unanswered::Gone),
        }
    }
}

impl Unanswered {
    fn reply(self) -> Reply {
        match self {
            Unanswered::Busy => {
                let text = "too many questions at once\n";
                let reply = Reply::text(StatusCode::TOO_MANY_REQUESTS, text);
                reply.with(RETRY_AFTER, HeaderValue::from_static("1"))
            }
            Unanswered::Gone => {
                Reply::text(StatusCode::SERVICE_UNAVAILABLE, "the scheduler is not there\n")
            }
            Unanswered::Panicked => {
                let text = "a plugin panicked when it was asked about the pod\n";
                Reply::text(StatusCode::INTERNAL_SERVER_ERROR, text)
            }
        }
    }
}

/// `/explain/NAMESPACE/POD`: what would become of the pod now; with `?last`, how far it is and why its last attempt failed.
async fn explain(asking: &Asking, request: &RouteRequest) -> Reply {
    if request.method != Method::GET {
        return Reply::text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered\n");
    }
    let path = request.path.trim_start_matches("/explain").trim_matches('/');
    let Some((namespace, name)) = path.split_once('/').filter(|(_, name)| !name.contains('/'))
    else {
        let text = "expected /explain/NAMESPACE/POD or /explain/NAMESPACE/POD?last\n";
        return Reply::text(StatusCode::BAD_REQUEST, text);
    };
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    let pod = format!("{namespace}/{name}");
    let is_last = match &*request.query {
        "" => false,
        "last" | "last=" | "last=true" => true,
        _ => return Reply::text(StatusCode::BAD_REQUEST, "the only parameter is last\n"),
    };
    let question = move |engine: &Engine| {
        let explained = if is_last { None } else { engine.explain(&namespace, &name) };
        match explained {
            Some(explanation) => Answer::Explained(Box::new(explanation)),
            None => {
                let progress = engine.progress(clock::now(), &namespace, &name);
                Answer::Progress(progress.map(Box::new))
            }
        }
    };
    match asking.ask(question).await {
        Ok(Answer::Explained(explanation)) => json(&*explanation),
        Ok(Answer::Progress(Some(progress))) if is_last => json(&*progress),
        Ok(Answer::Progress(Some(progress))) => {
            let Progress { pod, node, .. } = &*progress;
            let text = format!("{pod} is on {node}: only pods without a node are explained here\n");
            Reply::text(StatusCode::CONFLICT, text)
        }
        Ok(Answer::Progress(None)) => {
            let text = format!("no such pod waits here: {pod}\n");
            Reply::text(StatusCode::NOT_FOUND, text)
        }
        Err(unanswered) => unanswered.reply(),
    }
}

/// What the engine says of a pod.
enum Answer {
    Explained(Box<Explanation>),
    Progress(Option<Box<Progress>>),
}

fn json(value: &impl Serialize) -> Reply {
    match serde_json::to_vec(value) {
        Ok(json) => Reply::new(StatusCode::OK, "application/json", json),
        Err(error) => {
            Reply::text(StatusCode::INTERNAL_SERVER_ERROR, format!("writing JSON: {error}\n"))
        }
    }
}

#[cfg(test)]
mod tests;
