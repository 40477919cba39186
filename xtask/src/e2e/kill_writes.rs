//! `cargo xtask e2e kill-writes`: an embedded API server with a data folder is killed at random moments while clients write
//! and watch, and started again; in the end the whole history must be sound.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Parser;
use http::Method;
use loadmaster_stdx::Rng;

use super::api::Api;
use super::control_plane::free_port;
use super::folder::Folder;
use super::histories::{Load, Recording};
use super::process::Process;
use super::programs;

/// Kill an embedded API server again and again while clients write, and check what is left.
#[derive(Parser)]
pub struct Args {
    /// How often.
    #[arg(long, default_value_t = 50)]
    rounds: u64,
    /// When, and what is written.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Loadmaster's binary; that of the release profile when not given.
    #[arg(long, value_name = "FILE")]
    loadmaster: Option<PathBuf>,
}

/// A server lives at most so long.
const LIFE_MS_MAX: u64 = 400;

const START: Duration = Duration::from_secs(60);

pub async fn run(args: &Args) -> Result<bool> {
    let binary = programs::loadmaster(args.loadmaster.as_deref())?;
    let folder = Folder::temporary(&std::env::temp_dir())?;
    let port = free_port()?;
    let start = |round: u64| start(&binary, folder.path(), port, round);
    let mut server = start(0)?;
    let kubeconfig = folder.path().join("kubeconfig");
    let api = wait_for(&kubeconfig, &mut server).await?;
    let load = Load {
        n_writers: 8,
        n_watchers: 4,
        n_keys: 12,
        namespace: "history".to_owned(),
        seed: args.seed,
    };
    let recording = Recording::start(&api, load).await?;
    let mut rng = Rng::new(args.seed).split("kills");
    for round in 1..=args.rounds {
        tokio::time::sleep(Duration::from_millis(rng.below(LIFE_MS_MAX))).await;
        server.kill()?;
        server = start(round)?;
        wait_for(&kubeconfig, &mut server).await?;
    }
    tokio::time::sleep(Duration::from_millis(LIFE_MS_MAX)).await;
    let n_done = recording.n_done();
    let (history, found) = recording.finish().await?;
    let n_events: usize = history.watches.iter().map(|watch| watch.events.len()).sum();
    println!(
        "{} kills: {n_done} of {} writes acknowledged, {} watches with {n_events} events, {} lists: {} complaints",
        args.rounds,
        history.writes.len(),
        history.watches.len(),
        history.lists.len(),
        found.len()
    );
    found.iter().take(20).for_each(|it| println!("  {it}"));
    if found.is_empty() {
        drop(folder.removed());
    }
    Ok(found.is_empty() && n_done > 0)
}

fn start(binary: &Path, folder: &Path, port: u16, round: u64) -> Result<Process> {
    let mut command = Command::new(binary);
    command.args(["apiserver", "--port", &port.to_string(), "--data-dir"]);
    command.arg(folder.join("data")).arg("--kubeconfig").arg(folder.join("kubeconfig"));
    Process::start("loadmaster", &mut command, &folder.join(format!("server-{round}.log")))
}

async fn wait_for(kubeconfig: &Path, server: &mut Process) -> Result<Api> {
    const PAUSE: Duration = Duration::from_millis(10);
    for _ in 0..START.as_millis() / PAUSE.as_millis() {
        server.check_running()?;
        if kubeconfig.exists()
            && let Ok(api) = Api::once(kubeconfig).await
            && api.ask(Method::GET, "/readyz", Vec::new()).await.is_ok_and(|it| it.status == 200)
        {
            return Ok(api);
        }
        tokio::time::sleep(PAUSE).await;
    }
    bail!("the server does not come up within {} s", START.as_secs())
}
