//! One suite, two servers: every case is played on a real kube-apiserver with etcd and on the embedded API server.
//!
//! | part | what it is |
//! | --- | --- |
//! | `case` | scripts and their steps |
//! | `compare` | parts of answers, variables |
//! | `play` | a case on a server |
//! | `cases` | the cases, by subject |
//!
//! Beside the cases a history of writers and watchers is recorded and checked, on the embedded server with faults, too.

mod case;
mod cases;
mod compare;
mod play;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};
use loadmaster_apiserver::authorize::Mode;
use loadmaster_apiserver::faults::Faults;
use loadmaster_apiserver::http::{Bounds, FaultStream, serve_within};
use loadmaster_apiserver::{ApiServer, Options as ServerOptions, Setup};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::api::Api;
use super::control_plane::{ControlPlane, Options};
use super::histories::{Load, Recording};
use case::Case;

/// Play the same cases on a real API server and on the embedded one.
#[derive(Parser)]
pub struct Args {
    /// On which.
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

/// Cases at a time.
const N_TOGETHER: usize = 8;

pub async fn run(args: &Args) -> Result<bool> {
    let wanted = args.case.as_deref().unwrap_or_default();
    let cases: Vec<Case> =
        cases::all().into_iter().filter(|case| case.name.contains(wanted)).collect();
    let mut all_passed = true;
    if args.server != Server::Real {
        let api = embedded("").await?;
        all_passed &= play_all("embedded", &api, &cases).await;
        if wanted.is_empty() {
            all_passed &= history("embedded", &api).await?;
            all_passed &= history("embedded, with faults", &embedded(FAULTS).await?).await?;
        }
    }
    if args.server != Server::Embedded {
        let plane = ControlPlane::start(&Options::default()).await?;
        let api = Api::once(&plane.admin_kubeconfig()).await?;
        let mut passed = play_all("real", &api, &cases).await;
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
async fn embedded(faults: &str) -> Result<Api> {
    let options = ServerOptions {
        clock: Arc::new(jiff::Timestamp::now),
        seed: 1,
        limits: loadmaster_apiserver::store::Limits::default(),
        also_serve: Vec::new(),
    };
    let server = ApiServer::with_setup(options, Setup { mode: Mode::Rbac, ..Setup::default() });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.context("listening")?;
    let url = format!("http://{}", listener.local_addr().context("listening")?);
    let faults = FaultStream::new(Faults::from_words(faults).context("reading faults")?, 1);
    let server = server.context("setting up the cluster")?;
    tokio::spawn(serve_within(listener, server, None, Bounds::default(), faults));
    Api::unverified(&url, None)
}

/// What goes wrong while a history is recorded.
const FAULTS: &str = "resources=configmaps,latency=0.1,latencyMs=20,throttle=0.02,error=0.03,conflict=0.03,drop=0.03,lose=0.05,cut=0.05,expire=0.2,late=0.1,lateMs=50";

/// How long writers write.
const HISTORY: Duration = Duration::from_secs(5);

/// Records a history and checks it.
async fn history(server: &str, api: &Api) -> Result<bool> {
    let load =
        Load { n_writers: 8, n_watchers: 4, n_keys: 12, namespace: "history".to_owned(), seed: 1 };
    let recording = Recording::start(api, load).await?;
    tokio::time::sleep(HISTORY).await;
    let n_done = recording.n_done();
    let (history, found) = recording.finish().await?;
    println!(
        "{server}: a history of {n_done} writes, {} watches, {} lists: {} complaints",
        history.watches.len(),
        history.lists.len(),
        found.len()
    );
    found.iter().take(20).for_each(|it| println!("    {it}"));
    Ok(found.is_empty() && n_done > 0)
}

/// Plays all cases, some at a time, and says which failed.
async fn play_all(server: &str, api: &Api, cases: &[Case]) -> bool {
    let room = Arc::new(Semaphore::new(N_TOGETHER));
    let mut playing = JoinSet::new();
    for (nth, case) in cases.iter().enumerate() {
        let (api, case, room) = (api.clone(), case.clone(), Arc::clone(&room));
        playing.spawn(async move {
            // It is never closed.
            let _permit = room.acquire_owned().await;
            (nth, play::play(&api, &case, &format!("case-{nth}")).await)
        });
    }
    let mut failed = Vec::new();
    while let Some(played) = playing.join_next().await {
        match played {
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
