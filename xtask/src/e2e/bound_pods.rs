//! Observes bindings independently of the schedulers: a metadata-only watch of assigned pods.

#![expect(clippy::disallowed_types, reason = "measuring is reading a clock")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use http::Method;
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::Value;
use tokio::time::timeout;

use super::api_client::ApiClient;

/// Only metadata, because thousands of whole pods would load the API server.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// A watch of one namespace. If the API server closes it because it is too slow, it is restarted.
pub struct BoundPods {
    api: ApiClient,
    path: String,
    body: Body,
    /// Bytes after the last whole line.
    rest: Vec<u8>,
    uids: BTreeSet<String>,
    names: Vec<String>,
    bound_at: Vec<Instant>,
}

impl BoundPods {
    /// Starts the watch.
    pub async fn watch(api: &ApiClient, namespace: &str) -> Result<BoundPods> {
        let selector = "fieldSelector=spec.nodeName!%3D";
        let mut watch = BoundPods {
            api: api.clone(),
            path: format!("/api/v1/namespaces/{namespace}/pods?{selector}"),
            body: Body::empty(),
            rest: Vec::new(),
            uids: BTreeSet::new(),
            names: Vec::new(),
            bound_at: Vec::new(),
        };
        watch.start_watch().await?;
        Ok(watch)
    }

    /// When the binding of each pod was observed, in that order.
    pub fn bound_at(&self) -> &[Instant] {
        &self.bound_at
    }

    /// The names of the bound pods, in the same order.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Waits until `n` pods in total are bound; `false` if no event arrives for `patience`.
    pub async fn wait_for(&mut self, n: usize, patience: Duration) -> Result<bool> {
        while self.bound_at.len() < n {
            let Ok(frame) = timeout(patience, self.body.frame()).await else { return Ok(false) };
            let Some(frame) = frame else {
                self.start_watch().await?;
                continue;
            };
            let frame = frame.map_err(|error| anyhow::anyhow!("watching pods: {error}"))?;
            self.rest.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            for line in whole_lines(&mut self.rest) {
                if let Some(pod) = pod_when_bound(&line)? {
                    self.record(pod);
                }
            }
        }
        Ok(true)
    }

    /// Lists the bound pods from the API server's cache, and watches from that resource version.
    async fn start_watch(&mut self) -> Result<()> {
        let path = format!("{}&resourceVersion=0", self.path);
        let response = self.api.send(&Method::GET, &path, Vec::new(), METADATA_LIST).await?;
        ensure!(response.status() == 200, "GET {path}: status {}", response.status());
        let body = response.into_body().collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("listing pods: {error}"))?.to_bytes();
        let list: Value = serde_json::from_slice(&body).context("reading a list of pods")?;
        // An empty list of metadata has null there.
        for pod in list["items"].as_array().into_iter().flatten() {
            self.record(BoundPod::from_metadata(pod)?);
        }
        let version = list["metadata"]["resourceVersion"].as_str();
        let version = version.context("a list of pods without a resource version")?;
        let path = format!("{}&watch=1&resourceVersion={version}", self.path);
        let response = self.api.send(&Method::GET, &path, Vec::new(), METADATA).await?;
        ensure!(response.status() == 200, "GET {path}: status {}", response.status());
        self.body = response.into_body();
        self.rest.clear();
        Ok(())
    }

    fn record(&mut self, pod: BoundPod) {
        if self.uids.insert(pod.uid) {
            self.names.push(pod.name);
            self.bound_at.push(Instant::now());
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct BoundPod {
    uid: String,
    name: String,
}

impl BoundPod {
    fn from_metadata(object: &Value) -> Result<BoundPod> {
        let text = |field: &str| {
            let text = object["metadata"][field].as_str();
            Ok::<_, anyhow::Error>(
                text.with_context(|| format!("a pod without {field}"))?.to_owned(),
            )
        };
        Ok(BoundPod { uid: text("uid")?, name: text("name")? })
    }
}

/// Removes the complete lines from `buffer`.
pub fn whole_lines(buffer: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let Some(end) = buffer.iter().rposition(|&byte| byte == b'\n') else { return Vec::new() };
    let rest = buffer.split_off(end + 1);
    let lines = std::mem::replace(buffer, rest);
    lines.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect()
}

/// The pod, if the watch event says that it was bound.
fn pod_when_bound(line: &[u8]) -> Result<Option<BoundPod>> {
    let event: Value = serde_json::from_slice(line).context("reading a watch event")?;
    match event["type"].as_str() {
        Some("ADDED") => BoundPod::from_metadata(&event["object"]).map(Some),
        Some("ERROR") => bail!("watching pods: {}", event["object"]),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_when_they_have_ended() {
        let mut buffer = Vec::new();
        let mut feed = |bytes: &[u8], want: &[&str]| {
            buffer.extend_from_slice(bytes);
            let lines = whole_lines(&mut buffer);
            let lines: Vec<_> = lines.iter().map(|line| String::from_utf8_lossy(line)).collect();
            assert_eq!(lines, want);
        };
        feed(b"on", &[]);
        feed(b"e\ntwo\nth", &["one", "two"]);
        feed(b"ree", &[]);
        feed(b"\n\n", &["three"]);
        feed(b"", &[]);
    }

    #[test]
    fn only_additions_count() {
        let check = |line: &str, want: Result<Option<&str>, ()>| {
            let got = pod_when_bound(line.as_bytes()).map(|pod| pod.map(|pod| pod.name));
            assert_eq!(got.map_err(|_| ()), want.map(|name| name.map(str::to_owned)), "{line}");
        };
        let event = |kind: &str| {
            format!(r#"{{"type":"{kind}","object":{{"metadata":{{"uid":"u","name":"a"}}}}}}"#)
        };
        check(&event("ADDED"), Ok(Some("a")));
        check(&event("MODIFIED"), Ok(None));
        check(&event("DELETED"), Ok(None));
        check(&event("ERROR"), Err(()));
        check(r#"{"type":"ADDED","object":{}}"#, Err(()));
        check("{", Err(()));
    }
}
