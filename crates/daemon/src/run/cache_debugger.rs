//! SIGUSR2: logs the engine's cache and queue, and compares the cache with the API server (upstream's `backend/cache/debugger`).
//!
//! ```text
//! engine's thread   dump ──────────────────────────────► dump
//! other threads          lists nodes and pods   waits          compares, logs
//! ```
//!
//! Watch events are always in flight. Therefore a difference counts only if it existed before the list and still exists when the watch
//! event must have arrived. Upstream compares with its own informers instead, which does not detect events that a watch has missed.

mod print;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::Str;
use loadmaster_api::proto::Object;
use loadmaster_client::Kind;
use loadmaster_client::api_client::ApiClient;
use loadmaster_client::listing::list_all;
use loadmaster_engine::Engine;
use loadmaster_engine::queue::PendingCounts;
use loadmaster_framework::resources::{RESOURCE_CPU, RESOURCE_EPHEMERAL_STORAGE, RESOURCE_MEMORY};
use loadmaster_framework::{PodInfo, Resources, World};
use loadmaster_stdx::CollectByInsertion as _;
use tokio::signal::unix::Signal;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::engine_loop::Command;

/// After this time the watches must have delivered what the lists contain.
const WATCH_DELAY_MAX: Duration = Duration::from_secs(2);

/// The engine's cache and queue at one moment. Pods are shared with the engine, not copied.
struct CacheDump {
    nodes: Vec<CachedNode>,
    /// Pending pods of our profiles, including those in flight, by uid.
    pending: Vec<Arc<PodInfo>>,
    queued: PendingCounts,
    /// The schedulerNames of our profiles.
    profiles: Vec<String>,
    /// How long the engine was blocked by the dump.
    engine_blocked: Duration,
}

/// A node in the engine's cache.
struct CachedNode {
    name: Str,
    /// Pods are assigned to it, but the node does not exist.
    is_deleted: bool,
    requested: Resources,
    allocatable: Resources,
    pods: Vec<Arc<PodInfo>>,
    nominated: Vec<Arc<PodInfo>>,
}

/// The names of cached nodes and the uids of cached pods.
#[derive(Default)]
struct CachedKeys {
    nodes: BTreeSet<Str>,
    pods: BTreeSet<Box<str>>,
}

/// Nodes and pods as listed from the API server.
#[derive(Default)]
struct ListedObjects {
    nodes: BTreeSet<Str>,
    pods: BTreeMap<Box<str>, ListedPod>,
}

struct ListedPod {
    phase: Str,
    /// It is assigned, or one of our profiles has to schedule it.
    is_expected: bool,
}

/// Differences between cache and API server, sorted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mismatch {
    /// Listed, but not in the cache.
    missed: Vec<String>,
    /// In the cache, but not listed.
    redundant: Vec<String>,
}

/// Dumps and compares at every signal, one at a time, until the engine stops.
pub(super) async fn dump_on_signal(
    mut signal: Signal,
    client: ApiClient,
    commands: UnboundedSender<Command>,
) {
    while signal.recv().await.is_some() {
        if dump_and_compare(&client, &commands).await.is_none() {
            return;
        }
    }
}

/// Returns `None` if the engine has stopped.
async fn dump_and_compare(client: &ApiClient, commands: &UnboundedSender<Command>) -> Option<()> {
    tracing::info!(v = 3, "Cache comparer started");
    let before = query_engine(commands, CacheDump::from_engine).await?;
    let listed = list_objects(client, &before.profiles).await;
    sleep(WATCH_DELAY_MAX).await;
    let after = query_engine(commands, CacheDump::from_engine).await?;
    // Formatting a large cluster takes a while.
    let printed = tokio::task::spawn_blocking(move || {
        let listed = match listed {
            Ok(listed) => {
                compare(&before.keys(), &after.keys(), &listed);
                listed
            }
            Err(error) => {
                tracing::error!(err = error, "Cache comparer failed");
                ListedObjects::default()
            }
        };
        tracing::info!(v = 3, "Cache comparer finished");
        let nodes = print::nodes(&after, &listed);
        tracing::info!(nodes, "Dump of cached NodeInfo");
        let (summary, pods) = (print::summary(after.queued), print::pods(&after.pending, &listed));
        tracing::info!(summary, pods, "Dump of scheduling queue");
        let blocked = before.engine_blocked.max(after.engine_blocked);
        tracing::info!(?blocked, "No pod was scheduled while the cache was read for the dump");
    });
    printed.await.ok()
}

async fn query_engine<T: Send + 'static>(
    commands: &UnboundedSender<Command>,
    query: fn(&Engine) -> T,
) -> Option<T> {
    let (result_sender, result) = oneshot::channel();
    let query = move |engine: &mut Engine| drop(result_sender.send(query(engine)));
    commands.send(Command::Query(Box::new(query))).ok()?;
    result.await.ok()
}

async fn list_objects(client: &ApiClient, profiles: &[String]) -> Result<ListedObjects, String> {
    // Pods before nodes: the node of an assigned pod is older than its assignment.
    let pods = list_all(client, Kind::Pod, |object| match object {
        Object::Pod(pod) => {
            let uid = match &*pod.metadata.uid {
                "" => pod.full_name().into(),
                uid => uid.into(),
            };
            let scheduler = match pod.spec.scheduler_name.as_str() {
                "" => "default-scheduler",
                name => name,
            };
            let is_ours = profiles.iter().any(|profile| profile == scheduler);
            let is_expected = is_ours || !pod.spec.node_name.is_empty();
            Some((uid, ListedPod { phase: pod.status.phase.clone(), is_expected }))
        }
        _ => None,
    });
    let pods = pods.await?.into_iter().collect();
    let nodes = list_all(client, Kind::Node, |object| match object {
        Object::Node(node) => Some(Str::new(node.name())),
        _ => None,
    });
    Ok(ListedObjects { nodes: nodes.await?.into_iter().collect(), pods })
}

fn compare(before: &CachedKeys, after: &CachedKeys, listed: &ListedObjects) {
    let nodes = nodes_mismatch(before, after, listed);
    if nodes != Mismatch::default() {
        let Mismatch { missed, redundant } = &nodes;
        tracing::info!(missedNodes = ?missed, redundantNodes = ?redundant, "Cache mismatch");
    }
    let pods = pods_mismatch(before, after, listed);
    if pods != Mismatch::default() {
        let Mismatch { missed, redundant } = &pods;
        tracing::info!(missedPods = ?missed, redundantPods = ?redundant, "Cache mismatch");
    }
}

fn nodes_mismatch(before: &CachedKeys, after: &CachedKeys, listed: &ListedObjects) -> Mismatch {
    let is_missed = |name: &&Str| !before.nodes.contains(*name) && !after.nodes.contains(*name);
    let is_redundant = |name: &&Str| after.nodes.contains(*name) && !listed.nodes.contains(*name);
    Mismatch {
        missed: to_strings(listed.nodes.iter().filter(is_missed)),
        redundant: to_strings(before.nodes.iter().filter(is_redundant)),
    }
}

fn pods_mismatch(before: &CachedKeys, after: &CachedKeys, listed: &ListedObjects) -> Mismatch {
    let expected = listed.pods.iter().filter(|(_, pod)| pod.is_expected).map(|(uid, _)| &**uid);
    let known = before.pods.iter().map(|uid| &**uid);
    let is_missed = |uid: &&str| !before.pods.contains(*uid) && !after.pods.contains(*uid);
    let is_redundant = |uid: &&str| after.pods.contains(*uid) && !listed.pods.contains_key(*uid);
    Mismatch {
        missed: to_strings(expected.filter(is_missed)),
        redundant: to_strings(known.filter(is_redundant)),
    }
}

fn to_strings(names: impl Iterator<Item = impl ToString>) -> Vec<String> {
    names.map(|name| name.to_string()).collect()
}

impl CacheDump {
    fn from_engine(engine: &Engine) -> CacheDump {
        let began = Instant::now();
        let world = engine.world();
        let nominated = |name: &str| world.nominated_pods_for_node(name).to_vec();
        let known = world.node_infos().map(|node| CachedNode {
            name: Str::new(node.name()),
            is_deleted: false,
            requested: amounts(world, |name| node.requested(name)),
            allocatable: Resources {
                pods: node.allocatable_pods(),
                ..amounts(world, |name| node.allocatable(name))
            },
            pods: node.pods().cloned().collect(),
            nominated: nominated(node.name()),
        });
        let deleted = engine.orphaned_pods().map(|(name, pods)| CachedNode {
            name: name.clone(),
            is_deleted: true,
            requested: Resources::default(),
            allocatable: Resources::default(),
            pods: pods.to_vec(),
            nominated: nominated(name),
        });
        let mut dump = CacheDump {
            nodes: known.chain(deleted).collect(),
            pending: engine.pending_pods().into_iter().cloned().collect(),
            queued: engine.queue().counts(),
            profiles: engine.profile_names().map(str::to_owned).collect(),
            engine_blocked: Duration::ZERO,
        };
        dump.engine_blocked = began.elapsed();
        dump
    }

    fn keys(&self) -> CachedKeys {
        let known = self.nodes.iter().filter(|node| !node.is_deleted);
        let pods = self.nodes.iter().flat_map(|node| &node.pods).chain(&self.pending);
        CachedKeys {
            nodes: known.map(|node| node.name.clone()).collect(),
            pods: pods.map(|pod| pod.uid.clone()).collect(),
        }
    }

    /// The nodes, sorted by name.
    fn sorted(&self) -> BTreeMap<&Str, &CachedNode> {
        self.nodes.iter().map(|node| (&node.name, node)).collect_by_insertion()
    }
}

/// The requested or allocatable resources of one node; only scalar resources that are not 0.
fn amounts(world: &World, amount: impl Fn(&str) -> i64) -> Resources {
    let scalars = world.nodes().scalars().iter().map(|it| (it.name.clone(), amount(&it.name)));
    Resources {
        cpu_milli: amount(RESOURCE_CPU),
        memory_bytes: amount(RESOURCE_MEMORY),
        ephemeral_storage_bytes: amount(RESOURCE_EPHEMERAL_STORAGE),
        pods: 0,
        scalars: scalars.filter(|(_, amount)| *amount != 0).collect(),
    }
}
