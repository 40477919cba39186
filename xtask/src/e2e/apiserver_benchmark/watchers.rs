//! Watches of pods, each on its own connection, that record their events and times.

#![expect(clippy::disallowed_types, reason = "measuring is reading a clock")]

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use loadmaster_api::Pod;
use loadmaster_api::proto::{WatchEvent, WatchFrames, decode_event};
use loadmaster_client::api_client::{Request, ResponseStream};
use tokio::task::JoinSet;

use super::client::BenchmarkClient;
use super::objects::{NAMESPACE, number_of};
use crate::e2e::api_client::ApiClient;

/// The Accept header of client-go.
const ACCEPT: &str = "application/vnd.kubernetes.protobuf;stream=watch,application/json;stream=watch,application/json";

/// How long a watcher waits for its next event.
const EVENT_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a watcher that has received all expected events waits for unexpected ones.
const EXTRA_EVENTS_WAIT: Duration = Duration::from_millis(500);

const FRAME_BYTES_MAX: usize = 1 << 20;

/// Open watches.
pub struct Watchers {
    listening: JoinSet<Result<WatcherLog>>,
}

/// The events of one watcher.
#[derive(Debug)]
pub struct WatcherLog {
    /// The node whose pods it watches; all pods if `None`.
    pub node: Option<u32>,
    /// The pods whose binding it should receive.
    pub wanted: Vec<u32>,
    pub events: Vec<PodEvent>,
}

/// An event of a pod that the watcher selects.
#[derive(Clone, Debug)]
pub struct PodEvent {
    pub is_added: bool,
    pub pod: u32,
    pub node: String,
    pub version: u64,
    pub at: Instant,
}

impl Watchers {
    /// Opens the watches: each of a node's pods or of all pods, with the pods whose binding it should receive.
    pub async fn open(
        api: &ApiClient,
        kubeconfig: &Path,
        wanted: Vec<(Option<u32>, Vec<u32>)>,
    ) -> Result<Watchers> {
        let list = format!("/api/v1/namespaces/{NAMESPACE}/pods?limit=1");
        let list = api.get_json(&list).await?;
        let from = list["metadata"]["resourceVersion"].as_str();
        let from = from.context("a list without a resource version")?;
        let client = BenchmarkClient::new(kubeconfig, "kubelet", wanted.len() as u32).await?;
        let mut listening = JoinSet::new();
        for (connection, (node, wanted)) in client.connections().iter().zip(wanted) {
            let mut path = format!(
                "/api/v1/pods?watch=1&resourceVersion={from}&allowWatchBookmarks=true&timeoutSeconds=600"
            );
            if let Some(node) = node {
                path.push_str(&format!("&fieldSelector=spec.nodeName%3Dnode-{node}"));
            }
            let request = Request { accept: ACCEPT, ..Request::get(path) };
            let stream = connection.open_stream(&request).await?;
            ensure!(stream.status == 200, "{}: status {}", request.path, stream.status);
            ensure!(stream.is_protobuf, "{}: no protobuf", request.path);
            listening.spawn(read_events(stream, WatcherLog { node, wanted, events: Vec::new() }));
        }
        Ok(Watchers { listening })
    }

    /// Waits until all watchers have received all events, or receive no more.
    pub async fn finish(mut self) -> Result<Vec<WatcherLog>> {
        let mut all = Vec::new();
        while let Some(log) = self.listening.join_next().await {
            all.push(log.context("a watcher panicked")??);
        }
        Ok(all)
    }
}

async fn read_events(mut stream: ResponseStream, mut log: WatcherLog) -> Result<WatcherLog> {
    let mut frames = WatchFrames::new(FRAME_BYTES_MAX);
    loop {
        let patience =
            if log.events.len() < log.wanted.len() { EVENT_TIMEOUT } else { EXTRA_EVENTS_WAIT };
        // After a timeout or the end of the stream the events so far are checked.
        let Ok(Some(piece)) = stream.next(patience).await else { return Ok(log) };
        let at = Instant::now();
        frames.push(&piece);
        while let Some(frame) = frames.next()? {
            let (is_added, pod, version) = match decode_event::<Pod>(frame)? {
                WatchEvent::Added { object, resource_version } => (true, object, resource_version),
                WatchEvent::Modified { object, resource_version } => {
                    (false, object, resource_version)
                }
                WatchEvent::Bookmark { .. } => continue,
                other => bail!("a watcher received {other:?}"),
            };
            let name = &pod.metadata.name;
            let number = number_of(name).with_context(|| format!("a pod called {name}"))?;
            let version = version.parse().context("a resource version that is not a number")?;
            let node = pod.spec.node_name.to_string();
            log.events.push(PodEvent { is_added, pod: number, node, version, at });
        }
    }
}

impl WatcherLog {
    /// The errors in the events. Expected is each pod once, in the order of the writes, with its node, and nothing else.
    pub fn errors(&self, n_nodes: u32) -> Vec<String> {
        let who = match self.node {
            Some(node) => format!("the watcher of node-{node}"),
            None => "a watcher of all".to_owned(),
        };
        let mut missing: BTreeSet<u32> = self.wanted.iter().copied().collect();
        let mut errors = Vec::new();
        let mut last = 0;
        for PodEvent { is_added, pod, node, version, .. } in &self.events {
            if !missing.remove(pod) {
                errors.push(format!("{who} received a duplicate or unexpected event of pod {pod}"));
            }
            if *version <= last {
                errors.push(format!("{who} received version {version} after {last}"));
            }
            last = *version;
            // The watcher of a node receives ADDED when a pod is bound, a watcher of all pods MODIFIED.
            if *is_added != self.node.is_some() {
                errors.push(format!("{who} received the wrong event type for pod {pod}"));
            }
            if *node != format!("node-{}", super::objects::node_of(*pod, n_nodes)) {
                errors.push(format!("{who} received pod {pod} with the wrong node {node:?}"));
            }
        }
        errors.extend(missing.iter().map(|pod| format!("{who} did not receive pod {pod}")));
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_wrong_events_are_reported() {
        let check = |node: Option<u32>, events: &[(bool, u32, &str, u64)], n_errors: usize| {
            let event = |&(is_added, pod, node, version): &(bool, u32, &str, u64)| PodEvent {
                is_added,
                pod,
                node: node.to_owned(),
                version,
                at: Instant::now(),
            };
            let events = events.iter().map(event).collect();
            let wanted = if node.is_some() { vec![1, 11] } else { vec![1, 2, 11] };
            let errors = WatcherLog { node, wanted, events }.errors(10);
            assert_eq!(errors.len(), n_errors, "{errors:?}");
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
