//! SIGUSR2: what the engine knows, in the log, held against what the API server lists (upstream's `backend/cache/debugger`).
//!
//! ```text
//! engine's thread      picture ─────────────────────────────► names
//! beside it                     lists nodes and pods   waits        compares, prints
//! ```
//!
//! News are always on their way, so that a difference counts only if it was there before the list and is still there when its news
//! must have come. Upstream reads its own informers instead, which cannot tell of what a watch has lost.

mod print;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::Str;
use loadmaster_api::proto::Object;
use loadmaster_client::Kind;
use loadmaster_client::lane::Lane;
use loadmaster_client::listing::list;
use loadmaster_engine::Engine;
use loadmaster_engine::queue::Counts;
use loadmaster_framework::resources::{CPU, EPHEMERAL_STORAGE, MEMORY};
use loadmaster_framework::{PodInfo, Resources, World};
use tokio::signal::unix::Signal;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::shell::Command;

/// By then the watches have told what the lists saw.
const NEWS_TAKE: Duration = Duration::from_secs(2);

/// What the engine knows at one moment. Pods are shared with it, not copied.
struct Picture {
    nodes: Vec<Cached>,
    /// Pods of ours without a node, in flight included, by uid.
    pending: Vec<Arc<PodInfo>>,
    queued: Counts,
    /// The schedulerNames that are ours.
    profiles: Vec<String>,
    /// How long the engine stood still for it.
    took: Duration,
}

/// A node as the engine has it.
struct Cached {
    name: Str,
    /// Pods are on it, but it is not known.
    is_deleted: bool,
    requested: Resources,
    allocatable: Resources,
    pods: Vec<Arc<PodInfo>>,
    nominated: Vec<Arc<PodInfo>>,
}

/// What there is, by name and by uid.
#[derive(Default)]
struct Names {
    nodes: BTreeSet<Str>,
    pods: BTreeSet<Box<str>>,
}

/// What the API server lists.
#[derive(Default)]
struct Listed {
    nodes: BTreeSet<Str>,
    pods: BTreeMap<Box<str>, ListedPod>,
}

struct ListedPod {
    phase: Str,
    /// It has a node, or a profile of ours must find it one.
    is_expected: bool,
}

/// What is not as it should be, in order.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mismatch {
    /// Listed, and unknown to the engine.
    missed: Vec<String>,
    /// Known to the engine, and not listed.
    redundant: Vec<String>,
}

/// Dumps and compares at every signal, one at a time, until the engine ends.
pub(super) async fn on_signal(mut signal: Signal, lane: Lane, commands: UnboundedSender<Command>) {
    while signal.recv().await.is_some() {
        if dump(&lane, &commands).await.is_none() {
            return;
        }
    }
}

/// `None`: the engine has ended.
async fn dump(lane: &Lane, commands: &UnboundedSender<Command>) -> Option<()> {
    tracing::info!(v = 3, "Cache comparer started");
    let before = ask(commands, Picture::of).await?;
    let listed = read(lane, &before.profiles).await;
    sleep(NEWS_TAKE).await;
    let after = ask(commands, Picture::of).await?;
    // Printing a large cluster takes a while.
    let printed = tokio::task::spawn_blocking(move || {
        let listed = match listed {
            Ok(listed) => {
                compare(&before.names(), &after.names(), &listed);
                listed
            }
            Err(error) => {
                tracing::error!(err = error, "Cache comparer failed");
                Listed::default()
            }
        };
        tracing::info!(v = 3, "Cache comparer finished");
        let nodes = print::nodes(&after, &listed);
        tracing::info!(nodes, "Dump of cached NodeInfo");
        let (summary, pods) = (print::summary(after.queued), print::pods(&after.pending, &listed));
        tracing::info!(summary, pods, "Dump of scheduling queue");
        let stood_still = before.took.max(after.took);
        tracing::info!(?stood_still, "No pod was scheduled while the cache was read for the dump");
    });
    printed.await.ok()
}

async fn ask<T: Send + 'static>(
    commands: &UnboundedSender<Command>,
    question: fn(&Engine) -> T,
) -> Option<T> {
    let (answer_in, answer) = oneshot::channel();
    let asked = move |engine: &Engine| drop(answer_in.send(question(engine)));
    commands.send(Command::Ask(Box::new(asked))).ok()?;
    answer.await.ok()
}

async fn read(lane: &Lane, profiles: &[String]) -> Result<Listed, String> {
    // Pods before nodes: a pod's node is older than the pod.
    let pods = list(lane, Kind::Pod, |object| match object {
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
    let nodes = list(lane, Kind::Node, |object| match object {
        Object::Node(node) => Some(Str::new(node.name())),
        _ => None,
    });
    Ok(Listed { nodes: nodes.await?.into_iter().collect(), pods })
}

fn compare(before: &Names, after: &Names, listed: &Listed) {
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

fn nodes_mismatch(before: &Names, after: &Names, listed: &Listed) -> Mismatch {
    let is_missed = |name: &&Str| !before.nodes.contains(*name) && !after.nodes.contains(*name);
    let is_redundant = |name: &&Str| after.nodes.contains(*name) && !listed.nodes.contains(*name);
    Mismatch {
        missed: texts(listed.nodes.iter().filter(is_missed)),
        redundant: texts(before.nodes.iter().filter(is_redundant)),
    }
}

fn pods_mismatch(before: &Names, after: &Names, listed: &Listed) -> Mismatch {
    let expected = listed.pods.iter().filter(|(_, pod)| pod.is_expected).map(|(uid, _)| &**uid);
    let known = before.pods.iter().map(|uid| &**uid);
    let is_missed = |uid: &&str| !before.pods.contains(*uid) && !after.pods.contains(*uid);
    let is_redundant = |uid: &&str| after.pods.contains(*uid) && !listed.pods.contains_key(*uid);
    Mismatch {
        missed: texts(expected.filter(is_missed)),
        redundant: texts(known.filter(is_redundant)),
    }
}

fn texts(names: impl Iterator<Item = impl ToString>) -> Vec<String> {
    names.map(|name| name.to_string()).collect()
}

impl Picture {
    fn of(engine: &Engine) -> Picture {
        let began = Instant::now();
        let world = engine.world();
        let nominated = |name: &str| world.nominated(name).to_vec();
        let known = world.node_infos().map(|node| Cached {
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
        let gone = engine.orphans().map(|(name, pods)| Cached {
            name: name.clone(),
            is_deleted: true,
            requested: Resources::default(),
            allocatable: Resources::default(),
            pods: pods.to_vec(),
            nominated: nominated(name),
        });
        let mut picture = Picture {
            nodes: known.chain(gone).collect(),
            pending: engine.pending_pods().into_iter().cloned().collect(),
            queued: engine.queue().counts(),
            profiles: engine.profile_names().map(str::to_owned).collect(),
            took: Duration::ZERO,
        };
        picture.took = began.elapsed();
        picture
    }

    fn names(&self) -> Names {
        let known = self.nodes.iter().filter(|node| !node.is_deleted);
        let pods = self.nodes.iter().flat_map(|node| &node.pods).chain(&self.pending);
        Names {
            nodes: known.map(|node| node.name.clone()).collect(),
            pods: pods.map(|pod| pod.uid.clone()).collect(),
        }
    }

    /// The nodes by name.
    fn sorted(&self) -> BTreeMap<&Str, &Cached> {
        self.nodes.iter().map(|node| (&node.name, node)).collect()
    }
}

/// Sums of one node, or what it offers; of scalar resources those that are not 0.
fn amounts(world: &World, amount: impl Fn(&str) -> i64) -> Resources {
    let scalars = world.nodes().scalars().iter().map(|it| (it.name.clone(), amount(&it.name)));
    Resources {
        cpu_milli: amount(CPU),
        memory_bytes: amount(MEMORY),
        ephemeral_storage_bytes: amount(EPHEMERAL_STORAGE),
        pods: 0,
        scalars: scalars.filter(|(_, amount)| *amount != 0).collect(),
    }
}
