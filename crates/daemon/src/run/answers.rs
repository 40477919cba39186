//! What the endpoints tell of the engine: each answer is a question on its thread.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use loadmaster_engine::Engine;
use loadmaster_engine::explain::output::Shown;
use loadmaster_framework::requests::PodRequests;
use loadmaster_framework::resources::{CPU, EPHEMERAL_STORAGE, MEMORY};
use loadmaster_framework::{FeatureGates, PodInfo, Resources};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::time::timeout;

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
    let commands = commands.clone();
    vec![Route::new("/explain", move |request: RouteRequest| {
        let commands = commands.clone();
        async move { explain(&commands, &request.path).await }
    })]
}

/// `/explain/NAMESPACE/POD`: what would become of the pod now.
async fn explain(commands: &UnboundedSender<Command>, path: &str) -> Reply {
    let parts: Vec<&str> =
        path.trim_start_matches("/explain").trim_matches('/').split('/').collect();
    let [namespace, name] = parts[..] else {
        let text = "expected /explain/NAMESPACE/POD\n";
        return Reply::text(StatusCode::BAD_REQUEST, text);
    };
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    let (answer_in, answer) = oneshot::channel();
    let question = move |engine: &Engine| {
        let _ = answer_in.send(engine.explain(&namespace, &name));
    };
    let text = "the scheduler is not there\n";
    if commands.send(Command::Ask(Box::new(question))).is_err() {
        return Reply::text(StatusCode::SERVICE_UNAVAILABLE, text);
    }
    match timeout(ANSWER_MAX, answer).await {
        Ok(Ok(Some(explanation))) => {
            let json = serde_json::to_vec(&Shown::from(&explanation)).unwrap_or_default();
            Reply::new(StatusCode::OK, "application/json", json)
        }
        Ok(Ok(None)) => Reply::text(StatusCode::NOT_FOUND, "no such pod waits here\n"),
        _ => Reply::text(StatusCode::SERVICE_UNAVAILABLE, text),
    }
}
