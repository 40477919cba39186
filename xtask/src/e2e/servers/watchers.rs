//! Watches of pods, each over a connection of its own, that note what they are told and when.

#![expect(clippy::disallowed_types, reason = "measuring is reading a clock")]

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use loadmaster_api::Pod;
use loadmaster_api::proto::{Frames, WatchEvent, decode_event};
use loadmaster_client::lane::{Request, Stream};
use tokio::task::JoinSet;

use super::client::Client;
use super::objects::{NAMESPACE, number_of};
use crate::e2e::api::Api;

/// As client-go asks.
const ACCEPT: &str = "application/vnd.kubernetes.protobuf;stream=watch,application/json;stream=watch,application/json";

/// Who is told nothing for so long is not told any more.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whoever has been told all listens for so long whether there is more.
const MORE: Duration = Duration::from_millis(500);

const FRAME_BYTES_MAX: usize = 1 << 20;

/// Watches that are open.
pub struct Watchers {
    listening: JoinSet<Result<Heard>>,
}

/// What a watcher was told.
#[derive(Debug)]
pub struct Heard {
    /// The node whose pods it sees; all pods if there is none.
    pub node: Option<u32>,
    /// The pods that were bound meanwhile and that it sees.
    pub wanted: Vec<u32>,
    pub events: Vec<Event>,
}

/// A pod is, or has become, one that the watcher sees.
#[derive(Clone, Debug)]
pub struct Event {
    pub is_added: bool,
    pub pod: u32,
    pub node: String,
    pub version: u64,
    pub at: Instant,
}

impl Watchers {
    /// Opens a watch for each that is wanted: of a node's pods or of all, and the pods that will be told about.
    pub async fn open(
        api: &Api,
        kubeconfig: &Path,
        wanted: Vec<(Option<u32>, Vec<u32>)>,
    ) -> Result<Watchers> {
        let list = format!("/api/v1/namespaces/{NAMESPACE}/pods?limit=1");
        let list = api.get_json(&list).await?;
        let from = list["metadata"]["resourceVersion"].as_str();
        let from = from.context("a list without a resource version")?;
        let client = Client::new(kubeconfig, "kubelet", wanted.len() as u32).await?;
        let mut listening = JoinSet::new();
        for (lane, (node, wanted)) in client.lanes().iter().zip(wanted) {
            let mut path = format!(
                "/api/v1/pods?watch=1&resourceVersion={from}&allowWatchBookmarks=true&timeoutSeconds=600"
            );
            if let Some(node) = node {
                path.push_str(&format!("&fieldSelector=spec.nodeName%3Dnode-{node}"));
            }
            let request = Request { accept: ACCEPT, ..Request::get(path) };
            let stream = lane.open(&request).await?;
            ensure!(stream.status == 200, "{}: answer {}", request.path, stream.status);
            ensure!(stream.is_protobuf, "{}: no protobuf", request.path);
            listening.spawn(listen(stream, Heard { node, wanted, events: Vec::new() }));
        }
        Ok(Watchers { listening })
    }

    /// Waits until all have been told all, or nothing any more.
    pub async fn finish(mut self) -> Result<Vec<Heard>> {
        let mut all = Vec::new();
        while let Some(heard) = self.listening.join_next().await {
            all.push(heard.context("a watcher panicked")??);
        }
        Ok(all)
    }
}

async fn listen(mut stream: Stream, mut heard: Heard) -> Result<Heard> {
    let mut frames = Frames::new(FRAME_BYTES_MAX);
    loop {
        let patience = if heard.events.len() < heard.wanted.len() { PATIENCE } else { MORE };
        // Silence and the end are judged by what was told until then.
        let Ok(Some(piece)) = stream.next(patience).await else { return Ok(heard) };
        let at = Instant::now();
        frames.push(&piece);
        while let Some(frame) = frames.next()? {
            let (is_added, pod, version) = match decode_event::<Pod>(frame)? {
                WatchEvent::Added { object, resource_version } => (true, object, resource_version),
                WatchEvent::Modified { object, resource_version } => {
                    (false, object, resource_version)
                }
                WatchEvent::Bookmark { .. } => continue,
                other => bail!("a watcher of pods was told {other:?}"),
            };
            let name = &pod.metadata.name;
            let number = number_of(name).with_context(|| format!("a pod called {name}"))?;
            let version = version.parse().context("a resource version that is no number")?;
            let node = pod.spec.node_name.to_string();
            heard.events.push(Event { is_added, pod: number, node, version, at });
        }
    }
}

impl Heard {
    /// What is wrong with what was told: each pod once, in the order of the writes, with its node, and nothing else.
    pub fn complaints(&self, n_nodes: u32) -> Vec<String> {
        let who = match self.node {
            Some(node) => format!("the watcher of node-{node}"),
            None => "a watcher of all".to_owned(),
        };
        let mut missing: BTreeSet<u32> = self.wanted.iter().copied().collect();
        let mut complaints = Vec::new();
        let mut last = 0;
        for Event { is_added, pod, node, version, .. } in &self.events {
            if !missing.remove(pod) {
                complaints.push(format!("{who} was told of pod {pod} twice, or wrongly"));
            }
            if *version <= last {
                complaints.push(format!("{who} was told version {version} after {last}"));
            }
            last = *version;
            // A pod comes into sight when it is bound; who sees all has seen it before.
            if *is_added != self.node.is_some() {
                complaints.push(format!("{who} was told wrongly what happened to pod {pod}"));
            }
            if *node != format!("node-{}", super::objects::node_of(*pod, n_nodes)) {
                complaints.push(format!("{who} was told that pod {pod} is on {node:?}"));
            }
        }
        complaints.extend(missing.iter().map(|pod| format!("{who} was not told of pod {pod}")));
        complaints
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said() {
        let check = |node: Option<u32>, events: &[(bool, u32, &str, u64)], n_complaints: usize| {
            let event = |&(is_added, pod, node, version): &(bool, u32, &str, u64)| Event {
                is_added,
                pod,
                node: node.to_owned(),
                version,
                at: Instant::now(),
            };
            let events = events.iter().map(event).collect();
            let wanted = if node.is_some() { vec![1, 11] } else { vec![1, 2, 11] };
            let found = Heard { node, wanted, events }.complaints(10);
            assert_eq!(found.len(), n_complaints, "{found:?}");
        };
        let good = [(true, 11, "node-1", 5), (true, 1, "node-1", 7)];
        check(Some(1), &good, 0);
        check(Some(1), &good[..1], 1);
        check(Some(1), &[good[1], good[0]], 1);
        check(Some(1), &[good[0], good[1], (true, 1, "node-1", 8)], 1);
        check(Some(1), &[good[0], good[1], (true, 2, "node-2", 8)], 1);
        check(Some(1), &[good[0], (false, 1, "node-1", 7)], 1);
        check(Some(1), &[good[0], (true, 1, "node-2", 7)], 1);
        let all = [(false, 11, "node-1", 5), (false, 1, "node-1", 7), (false, 2, "node-2", 9)];
        check(None, &all, 0);
        check(None, &[], 3);
    }
}
