//! Connections that each have one request at a time.

#![expect(clippy::disallowed_types, reason = "measuring is reading a clock")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use loadmaster_client::lane::{Lane, LaneLimits, Request};
use loadmaster_client::{Cluster, ClusterOptions};
use tokio::task::JoinSet;

/// Connections of one user.
pub struct Client {
    lanes: Vec<Lane>,
}

/// When a request was sent, and when its answer was there.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub at: Instant,
    pub answered: Instant,
}

impl Client {
    /// As the user of this kubeconfig file. Nothing is connected yet.
    pub async fn new(kubeconfig: &Path, user_agent: &str, n_connections: u32) -> Result<Client> {
        let options = ClusterOptions {
            kubeconfig: Some(kubeconfig.to_owned()),
            context: None,
            master: None,
            user_agent: user_agent.to_owned(),
        };
        let cluster = Cluster::find(&options).await.context("finding the cluster")?;
        let limits = LaneLimits { http2_connections_max: 1, http1_connections_max: 1 };
        let lanes = (0..n_connections).map(|_| cluster.lane("load", limits)).collect();
        Ok(Client { lanes })
    }

    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// Connects where that has not happened.
    pub async fn connect(&self) -> Result<()> {
        for lane in &self.lanes {
            lane.call(&Request::get("/version")).await.context("connecting")?;
        }
        Ok(())
    }

    /// Sends all requests, in order and as fast as the connections can; all must succeed.
    pub async fn send_all(&self, requests: Vec<Request>) -> Result<Vec<Sent>> {
        let (requests, next) = (Arc::new(requests), Arc::new(AtomicUsize::new(0)));
        let mut lanes = JoinSet::new();
        for lane in &self.lanes {
            let (lane, requests, next) = (lane.clone(), Arc::clone(&requests), Arc::clone(&next));
            lanes.spawn(async move {
                let mut done = Vec::new();
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(request) = requests.get(i) else { return Ok(done) };
                    let at = Instant::now();
                    let reply = lane.call(request).await?;
                    let answered = Instant::now();
                    if !reply.is_success() {
                        let text = String::from_utf8_lossy(&reply.body);
                        bail!("{} {}: {} {text}", request.method, request.path, reply.status);
                    }
                    done.push((i, Sent { at, answered }));
                }
            });
        }
        let mut all = Vec::with_capacity(requests.len());
        while let Some(done) = lanes.join_next().await {
            all.extend(done.context("a connection's task panicked")??);
        }
        all.sort_by_key(|(i, _)| *i);
        Ok(all.into_iter().map(|(_, sent)| sent).collect())
    }
}
