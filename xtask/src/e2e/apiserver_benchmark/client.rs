//! A client with several connections, each with one request at a time.

#![expect(clippy::disallowed_types, reason = "measuring is reading a clock")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use loadmaster_client::api_client::{ApiClient, ConnectionLimits, Request};
use loadmaster_client::{Cluster, ClusterOptions};
use tokio::task::JoinSet;

/// Connections of one user.
pub struct BenchmarkClient {
    connections: Vec<ApiClient>,
}

/// When a request was sent, and when its response was received.
#[derive(Clone, Copy, Debug)]
pub struct SentRequest {
    pub at: Instant,
    pub answered: Instant,
}

impl BenchmarkClient {
    /// With the credentials of this kubeconfig file; does not connect yet.
    pub async fn new(
        kubeconfig: &Path,
        user_agent: &str,
        n_connections: u32,
    ) -> Result<BenchmarkClient> {
        let options = ClusterOptions {
            kubeconfig: Some(kubeconfig.to_owned()),
            context: None,
            master: None,
            user_agent: user_agent.to_owned(),
        };
        let cluster = Cluster::from_options(&options).await.context("finding the cluster")?;
        let limits = ConnectionLimits { http2_connections_max: 1, http1_connections_max: 1 };
        let connections = (0..n_connections).map(|_| cluster.client("load", limits)).collect();
        Ok(BenchmarkClient { connections })
    }

    pub fn connections(&self) -> &[ApiClient] {
        &self.connections
    }

    /// Opens the connections that are not open yet.
    pub async fn connect(&self) -> Result<()> {
        for connection in &self.connections {
            connection.call(&Request::get("/version")).await.context("connecting")?;
        }
        Ok(())
    }

    /// Sends all requests, in order and as fast as the connections can; all must succeed.
    pub async fn send_all(&self, requests: Vec<Request>) -> Result<Vec<SentRequest>> {
        let (requests, next) = (Arc::new(requests), Arc::new(AtomicUsize::new(0)));
        let mut tasks = JoinSet::new();
        for connection in &self.connections {
            let (connection, requests, next) =
                (connection.clone(), Arc::clone(&requests), Arc::clone(&next));
            tasks.spawn(async move {
                let mut done = Vec::new();
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(request) = requests.get(i) else { return Ok(done) };
                    let at = Instant::now();
                    let reply = connection.call(request).await?;
                    let answered = Instant::now();
                    if !reply.is_success() {
                        let text = String::from_utf8_lossy(&reply.body);
                        bail!("{} {}: {} {text}", request.method, request.path, reply.status);
                    }
                    done.push((i, SentRequest { at, answered }));
                }
            });
        }
        let mut all = Vec::with_capacity(requests.len());
        while let Some(done) = tasks.join_next().await {
            all.extend(done.context("a connection's task panicked")??);
        }
        all.sort_by_key(|(i, _)| *i);
        Ok(all.into_iter().map(|(_, sent)| sent).collect())
    }
}
