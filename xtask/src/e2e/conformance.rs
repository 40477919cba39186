//! `cargo xtask e2e conformance`: runs the same test cases on a real kube-apiserver with etcd and on the embedded API server.
//!
//! | part | what it is |
//! | --- | --- |
//! | `case` | scripts and their steps |
//! | `compare` | matching of responses, variables |
//! | `runner` | runs a case on a server |
//! | `cases` | the cases, by subject |
//!
//! In addition, a history of concurrent writers and watchers is recorded and checked, on the embedded server also with fault injection.

mod case;
mod cases;
mod compare;
mod runner;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};
use loadmaster_apiserver::authorization::AuthorizationMode;
use loadmaster_apiserver::fault_injection::Faults;
use loadmaster_apiserver::http::{FaultInjector, HttpLimits, serve_with_options};
use loadmaster_apiserver::{ApiServer, ClusterOptions, Options as ServerOptions};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::api_client::ApiClient;
use super::control_plane::{ControlPlane, ControlPlaneOptions};
use super::histories::{HistoryLoad, HistoryRecording};
use case::Case;

/// Run the same test cases on a real API server and on the embedded one.
#[derive(Parser)]
pub struct Args {
    /// The server to test.
    #[arg(long, default_value = "both")]
    server: Server,
    /// Only cases whose name contains this.
    case: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Server {
    Real,
    Embedded,
    Both,
}

/// The number of cases that run concurrently.
const N_CONCURRENT: usize = 8;

pub async fn run(args: &Args) -> Result<bool> {
    let wanted = args.case.as_deref().unwrap_or_default();
    let cases: Vec<Case> =
        cases::all().into_iter().filter(|case| case.name.contains(wanted)).collect();
    let mut all_passed = true;
    if args.server != Server::Real {
        let api = embedded("").await?;
        all_passed &= run_all("embedded", &api, &cases).await;
        if wanted.is_empty() {
            all_passed &= history("embedded", &api).await?;
            all_passed &= history("embedded, with faults", &embedded(FAULTS).await?).await?;
        }
    }
    if args.server != Server::Embedded {
        let options = ControlPlaneOptions::without_service_account_admission();
        let plane = ControlPlane::start(&options).await?;
        let api = ApiClient::without_retries(&plane.admin_kubeconfig()).await?;
        let mut passed = run_all("real", &api, &cases).await;
        if wanted.is_empty() {
            passed &= history("real", &api).await?;
        }
        all_passed &= passed;
        if passed {
            plane.finish();
        }
    }
    Ok(all_passed)
}

/// The embedded server in this process, without TLS.
async fn embedded(faults: &str) -> Result<ApiClient> {
    let options = ServerOptions {
        clock: Arc::new(jiff::Timestamp::now),
        seed: 1,
        limits: loadmaster_apiserver::store::StoreLimits::default(),
        also_serve: Vec::new(),
    };
    let server = ApiServer::with_cluster_options(
        options,
        ClusterOptions { mode: AuthorizationMode::Rbac, ..ClusterOptions::default() },
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.context("listening")?;
    let url = format!("http://{}", listener.local_addr().context("listening")?);
    let faults = FaultInjector::new(Faults::from_flag(faults).context("reading faults")?, 1);
    let server = server.context("setting up the cluster")?;
    tokio::spawn(serve_with_options(listener, server, None, HttpLimits::default(), faults));
    ApiClient::insecure(&url, None)
}

/// The faults while a history is recorded.
const FAULTS: &str = "resources=configmaps,latency=0.1,latencyMs=20,throttle=0.02,error=0.03,conflict=0.03,drop=0.03,lose=0.05,cut=0.05,expire=0.2,late=0.1,lateMs=50";

/// How long writers write.
const HISTORY: Duration = Duration::from_secs(5);

/// Records a history and checks it.
async fn history(server: &str, api: &ApiClient) -> Result<bool> {
    let load = HistoryLoad {
        n_writers: 8,
        n_watchers: 4,
        n_keys: 12,
        namespace: "history".to_owned(),
        seed: 1,
    };
    let recording = HistoryRecording::start(api, load).await?;
    tokio::time::sleep(HISTORY).await;
    let n_done = recording.n_acknowledged();
    let (history, found) = recording.finish().await?;
    println!(
        "{server}: a history of {n_done} writes, {} watches, {} lists: {} violations",
        history.watches.len(),
        history.lists.len(),
        found.len()
    );
    found.iter().take(20).for_each(|it| println!("    {it}"));
    Ok(found.is_empty() && n_done > 0)
}

/// Runs all cases, some concurrently, and prints those that failed.
async fn run_all(server: &str, api: &ApiClient, cases: &[Case]) -> bool {
    let permits = Arc::new(Semaphore::new(N_CONCURRENT));
    let mut running = JoinSet::new();
    for (nth, case) in cases.iter().enumerate() {
        let (api, case, permits) = (api.clone(), case.clone(), Arc::clone(&permits));
        running.spawn(async move {
            // The semaphore is never closed.
            let _permit = permits.acquire_owned().await;
            (nth, runner::run_case(&api, &case, &format!("case-{nth}")).await)
        });
    }
    let mut failed = Vec::new();
    while let Some(result) = running.join_next().await {
        match result {
            Ok((_, Ok(()))) => {}
            Ok((nth, Err(error))) => failed.push((nth, format!("{error:#}"))),
            Err(error) => failed.push((0, error.to_string())),
        }
    }
    failed.sort();
    for (nth, error) in &failed {
        println!("{server}: {}\n    {error}", cases[*nth].name);
    }
    println!("{server}: {} passed, {} failed", cases.len() - failed.len(), failed.len());
    failed.is_empty()
}
