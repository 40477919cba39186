//! `cargo xtask e2e kill-writes`: an embedded API server with a data folder is killed at random times while clients write
//! and watch, and restarted; in the end the history must be valid.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Parser;
use http::Method;
use loadmaster_stdx::Rng;

use super::api_client::ApiClient;
use super::control_plane::free_port;
use super::histories::{HistoryLoad, HistoryRecording};
use super::process::Process;
use super::programs;
use super::run_folder::RunFolder;

/// Kill an embedded API server repeatedly while clients write, and check that no acknowledged write is lost.
#[derive(Parser)]
pub struct Args {
    /// Number of kills.
    #[arg(long, default_value_t = 50)]
    rounds: u64,
    /// The seed of the random number generator for kills and writes.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The loadmaster binary; by default that of the release profile.
    #[arg(long, value_name = "FILE")]
    loadmaster: Option<PathBuf>,
}

/// The maximum time until a server is killed.
const KILL_AFTER_MS_MAX: u64 = 400;

const START_TIMEOUT: Duration = Duration::from_secs(60);

pub async fn run(args: &Args) -> Result<bool> {
    let binary = programs::loadmaster(args.loadmaster.as_deref())?;
    let folder = RunFolder::temporary(&std::env::temp_dir())?;
    let port = free_port()?;
    let start = |round: u64| start(&binary, folder.path(), port, round);
    let mut server = start(0)?;
    let kubeconfig = folder.path().join("kubeconfig");
    let api = wait_until_ready(&kubeconfig, &mut server).await?;
    let load = HistoryLoad {
        n_writers: 8,
        n_watchers: 4,
        n_keys: 12,
        namespace: "history".to_owned(),
        seed: args.seed,
    };
    let recording = HistoryRecording::start(&api, load).await?;
    let mut rng = Rng::new(args.seed).split("kills");
    for round in 1..=args.rounds {
        tokio::time::sleep(Duration::from_millis(rng.below(KILL_AFTER_MS_MAX))).await;
        server.kill()?;
        server = start(round)?;
        wait_until_ready(&kubeconfig, &mut server).await?;
    }
    tokio::time::sleep(Duration::from_millis(KILL_AFTER_MS_MAX)).await;
    let n_done = recording.n_acknowledged();
    let (history, found) = recording.finish().await?;
    let n_events: usize = history.watches.iter().map(|watch| watch.events.len()).sum();
    println!(
        "{} kills: {n_done} of {} writes acknowledged, {} watches with {n_events} events, {} lists: {} violations",
        args.rounds,
        history.writes.len(),
        history.watches.len(),
        history.lists.len(),
        found.len()
    );
    found.iter().take(20).for_each(|it| println!("  {it}"));
    if found.is_empty() {
        drop(folder.remove_on_drop());
    }
    Ok(found.is_empty() && n_done > 0)
}

fn start(binary: &Path, folder: &Path, port: u16, round: u64) -> Result<Process> {
    let mut command = Command::new(binary);
    command.args(["apiserver", "--port", &port.to_string(), "--data-dir"]);
    command.arg(folder.join("data")).arg("--kubeconfig").arg(folder.join("kubeconfig"));
    Process::start("loadmaster", &mut command, &folder.join(format!("server-{round}.log")))
}

async fn wait_until_ready(kubeconfig: &Path, server: &mut Process) -> Result<ApiClient> {
    const PAUSE: Duration = Duration::from_millis(10);
    for _ in 0..START_TIMEOUT.as_millis() / PAUSE.as_millis() {
        server.check_running()?;
        if kubeconfig.exists()
            && let Ok(api) = ApiClient::without_retries(kubeconfig).await
            && api
                .request(Method::GET, "/readyz", Vec::new())
                .await
                .is_ok_and(|it| it.status == 200)
        {
            return Ok(api);
        }
        tokio::time::sleep(PAUSE).await;
    }
    bail!("the server was not ready within {} s", START_TIMEOUT.as_secs())
}
