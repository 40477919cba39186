//! Test helpers: an engine with the default profile, and a thread that runs queries on it.

use std::sync::Arc;

use loadmaster_api::{Node, Pod, Timestamp};
use loadmaster_config::{Gates, check_default};
use loadmaster_engine::engine::{Engine, Event, Object, Options};
use loadmaster_engine::{Effects, MonoTime, Now, Profile};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::engine_loop::Command;

/// An engine with these nodes of two CPUs each, and pods that request one CPU.
pub(super) fn engine(nodes: &[&str], pods: &[(&str, Value)]) -> Engine {
    let registry = loadmaster_plugins::in_tree();
    let gates = Gates::default();
    let checked = check_default(&registry, &gates).unwrap();
    let gates = gates.framework();
    let profiles = checked.profiles.iter();
    let profiles = profiles.map(|it| Arc::new(Profile::new(it, &registry, &gates).unwrap()));
    let mut engine = Engine::new(profiles.collect(), gates, Options::default());
    for name in nodes {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": name},
            "status": {"allocatable": {"cpu": "2", "memory": "8Gi", "pods": "10", "example.com/gpu": "4"}},
        }))
        .unwrap();
        apply(&mut engine, Object::Node(Arc::new(node)));
    }
    for (name, spec) in pods {
        apply(&mut engine, Object::Pod(Box::new(pod(name, spec))));
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

pub(super) fn apply(engine: &mut Engine, object: Object) {
    engine.apply(now(), Event::Upsert(object), &mut Effects::new());
}

/// Runs scheduling cycles until activeQ is empty.
pub(super) fn schedule_pods(engine: &mut Engine) {
    while engine.cycle(now(), &mut Effects::new()) == loadmaster_engine::engine::CycleResult::Ran {}
}

/// A thread that only runs queries.
#[expect(clippy::disallowed_methods, reason = "as the daemon's")]
pub(super) fn spawn_engine_thread(engine: Engine) -> UnboundedSender<Command> {
    let (commands, mut receiver) = unbounded_channel();
    std::thread::spawn(move || {
        while let Some(command) = receiver.blocking_recv() {
            match command {
                Command::Query(query) => query(&engine),
                Command::SetLeading(_) | Command::ServiceRequest(_) => {}
                Command::Stop => return,
            }
        }
    });
    commands
}
