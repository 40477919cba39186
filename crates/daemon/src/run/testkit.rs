//! Test helpers: an engine with the default profile, and a thread that runs queries on it.

use std::sync::Arc;

use loadmaster_api::{Node, Pod, Timestamp};
use loadmaster_config::{AllFeatureGates, default_configuration};
use loadmaster_engine::engine::{ApiObject, Engine, EngineEvent, EngineOptions};
use loadmaster_engine::{Effects, MonoTime, Now, Profile};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::engine_loop::Command;

/// An engine with these nodes of two CPUs each, and pods that request one CPU.
pub(super) fn engine(nodes: &[&str], pods: &[(&str, Value)]) -> Engine {
    let registry = loadmaster_plugins::in_tree_registry();
    let gates = AllFeatureGates::default();
    let checked = default_configuration(&registry, &gates).unwrap();
    let gates = gates.framework_gates();
    let profiles = checked.profiles.iter();
    let profiles = profiles.map(|it| Arc::new(Profile::new(it, &gates)));
    let mut engine = Engine::new(profiles.collect(), gates, EngineOptions::default());
    for name in nodes {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": name},
            "status": {"allocatable": {"cpu": "2", "memory": "8Gi", "pods": "10", "example.com/gpu": "4"}},
        }))
        .unwrap();
        apply(&mut engine, ApiObject::Node(Arc::new(node)));
    }
    for (name, spec) in pods {
        apply(&mut engine, ApiObject::Pod(Box::new(pod(name, spec))));
    }
    engine
}

/// A pod that requests one CPU.
fn pod(name: &str, spec: &Value) -> Pod {
    let mut object = json!({
        "metadata": {"name": name, "namespace": "shop", "uid": format!("uid-{name}")},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
    });
    for (key, value) in spec.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

fn now() -> Now {
    Now { mono: MonoTime(10_000_000_000), wall: Timestamp(1_700_000_000_000_000_000) }
}

pub(super) fn apply(engine: &mut Engine, object: ApiObject) {
    engine.apply_event(now(), EngineEvent::Upsert(object), &mut Effects::new());
}

/// Runs scheduling cycles until activeQ is empty.
pub(super) fn schedule_pods(engine: &mut Engine) {
    while engine.cycle(now(), &mut Effects::new()) == loadmaster_engine::engine::CycleResult::Ran {}
}

/// A thread that only runs queries.
#[expect(clippy::disallowed_methods, reason = "as the daemon's")]
pub(super) fn spawn_engine_thread(mut engine: Engine) -> UnboundedSender<Command> {
    let (commands, mut receiver) = unbounded_channel();
    std::thread::spawn(move || {
        while let Some(command) = receiver.blocking_recv() {
            match command {
                Command::Query(query) => query(&mut engine),
                Command::SetLeading(_) | Command::Reload(_) | Command::ServiceRequest(_) => {}
                Command::Stop => return,
            }
        }
    });
    commands
}
