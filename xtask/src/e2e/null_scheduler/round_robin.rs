//! Binds pending pods to the nodes in turn, as the watches report them.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use loadmaster_api::ExtraFieldsByKind;
use loadmaster_api::proto::Object;
use loadmaster_client::reflector::{
    ObjectFormat, ReflectorEvent, ReflectorOptions, start_reflectors,
};
use loadmaster_client::{ApiClients, Kind};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::{N_PODS_MAX, PodId, bind};

/// Binds every pod without a node, once. Returns only if something fails.
pub async fn run(clients: &Arc<ApiClients>) -> Result<()> {
    let options = ReflectorOptions {
        kinds: vec![Kind::Node, Kind::Pod],
        use_watch_list: true,
        format: ObjectFormat::Protobuf,
        keep_raw: false,
        needs: ExtraFieldsByKind::default(),
        seed: 1,
    };
    let (sender, mut events) = mpsc::channel(N_PODS_MAX);
    let _reflectors = start_reflectors(&clients.watch, &options, &sender);
    let permits = Arc::new(Semaphore::new(N_PODS_MAX));
    let (mut round_robin, mut tasks) = (RoundRobin::default(), JoinSet::new());
    loop {
        tokio::select! {
            event = events.recv() => {
                for (pod, node) in round_robin.handle(event.context("the watches have ended")?) {
                    let (clients, permits) = (Arc::clone(clients), Arc::clone(&permits));
                    tasks.spawn(async move {
                        let _permit = permits.acquire().await.context("waiting for other pods")?;
                        bind(&clients, &pod, &node).await
                    });
                }
            }
            Some(ended) = tasks.join_next() => ended.context("a task panicked")??,
        }
    }
}

/// The nodes, and the pods that have been assigned to them.
#[derive(Default)]
struct RoundRobin {
    nodes: Vec<Arc<str>>,
    has_all_nodes: bool,
    /// Pods that wait for the list of nodes.
    waiting: Vec<PodId>,
    assigned_uids: BTreeSet<Box<str>>,
    n_assigned: usize,
}

impl RoundRobin {
    /// Handles a change; returns the pods to bind, with their nodes.
    fn handle(&mut self, event: ReflectorEvent) -> Vec<(PodId, Arc<str>)> {
        match event {
            ReflectorEvent::Upsert { object: Object::Node(node), .. } if !self.has_all_nodes => {
                self.nodes.push((*node.metadata.name).into());
            }
            ReflectorEvent::Upsert { object: Object::Pod(pod), .. } => {
                let meta = &pod.metadata;
                let is_pending = pod.spec.node_name.is_empty();
                if is_pending && self.assigned_uids.insert((*meta.uid).into()) {
                    self.waiting.push(PodId {
                        namespace: meta.namespace.to_string(),
                        name: meta.name.to_string(),
                        uid: meta.uid.to_string(),
                    });
                }
            }
            ReflectorEvent::Synced(Kind::Node) => self.has_all_nodes = true,
            _ => {}
        }
        if !self.has_all_nodes || self.nodes.is_empty() {
            return Vec::new();
        }
        let waiting = std::mem::take(&mut self.waiting);
        let assigned = waiting.into_iter().map(|pod| {
            let node = Arc::clone(&self.nodes[self.n_assigned % self.nodes.len()]);
            self.n_assigned += 1;
            (pod, node)
        });
        assigned.collect()
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_api::{Node, Pod};

    use super::*;

    fn upsert(kind: Kind, object: Object) -> ReflectorEvent {
        ReflectorEvent::Upsert { kind, object, raw: None }
    }

    fn node(name: &str) -> ReflectorEvent {
        let mut node = Node::default();
        node.metadata.name = name.into();
        upsert(Kind::Node, Object::Node(Box::new(node)))
    }

    fn pod(name: &str, node: &str) -> ReflectorEvent {
        let mut pod = Pod::default();
        (pod.metadata.name, pod.metadata.uid) = (name.into(), format!("uid-{name}").into());
        pod.spec.node_name = node.into();
        upsert(Kind::Pod, Object::Pod(Box::new(pod)))
    }

    #[test]
    fn each_pending_pod_is_assigned_once_and_nodes_take_turns() {
        let check = |events: Vec<ReflectorEvent>, want: &[&str]| {
            let mut round_robin = RoundRobin::default();
            let assigned: Vec<String> = events
                .into_iter()
                .flat_map(|event| round_robin.handle(event))
                .map(|(pod, node)| format!("{} {node}", pod.name))
                .collect();
            assert_eq!(assigned, want);
        };
        let synced = || ReflectorEvent::Synced(Kind::Node);
        check(vec![pod("a", ""), node("x")], &[]);
        check(vec![pod("a", ""), synced()], &[]);
        check(
            vec![pod("a", ""), node("x"), node("y"), pod("b", ""), synced(), pod("c", "")],
            &["a x", "b y", "c x"],
        );
        check(vec![node("x"), synced(), pod("a", ""), pod("a", ""), pod("b", "x")], &["a x"]);
        check(vec![node("x"), synced(), node("x"), node("y"), pod("a", "")], &["a x"]);
    }
}
