//! `cargo xtask e2e churn`: a day of changes in a minute, on an embedded API server that goes wrong on purpose, and three who
//! must come to believe what is true: our informer, client-go's, and controllers on kube-rs, which also must have seen to each object's
//! last change.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use clap::Parser;
use http::{Method, Request};
use http_body_util::BodyExt as _;
use loadmaster_api::Needs;
use loadmaster_apiserver::auth::User;
use loadmaster_apiserver::faults::Faults;
use loadmaster_apiserver::http::{Bounds, FaultStream, serve_within};
use loadmaster_apiserver::store::Limits;
use loadmaster_apiserver::{ApiServer, Options};
use loadmaster_client::watch::{Change, Follow, Following, Form, follow};
use loadmaster_client::{Cluster, ClusterOptions, Kind, Lanes};
use loadmaster_stdx::Rng;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::folder::Folder;
use super::programs::{self, Program};

/// Let informers and a controller follow a day of changes on a server that goes wrong.
#[derive(Parser)]
pub struct Args {
    /// Changes in the day.
    #[arg(long, default_value_t = 20_000)]
    changes: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Whoever does not make the changes meets them.
const FAULTS: &str = "userAgents=client-go-informer|kube-rs-reconciler|follower,latency=0.1,latencyMs=20,throttle=0.05,error=0.1,drop=0.1,cut=0.8,cutBytes=400000,expire=0.2,late=0.1,lateMs=50";

const PODS: &str = "/api/v1/namespaces/default/pods";
const NODES: &str = "/api/v1/nodes";
const N_NODES: u64 = 50;
const N_PODS_MAX: usize = 400;
const DAY_MS: i64 = 24 * 3600 * 1000;
const CATCH_UP: Duration = Duration::from_secs(150);

/// Uid by resource, namespace and name.
type Objects = BTreeMap<String, String>;

pub async fn run(args: &Args) -> Result<bool> {
    programs::build(&[Program::Informer, Program::Reconciler])?;
    let passed_ms = Arc::new(AtomicI64::new(0));
    let clock = Arc::clone(&passed_ms);
    let server = ApiServer::new(Options {
        clock: Arc::new(move || {
            let passed = jiff::SignedDuration::from_millis(clock.load(Ordering::Relaxed));
            jiff::Timestamp::UNIX_EPOCH + passed
        }),
        seed: args.seed,
        limits: Limits::default(),
        also_serve: Vec::new(),
    })
    .context("setting up the cluster")?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.context("listening")?;
    let url = format!("http://{}", listener.local_addr().context("listening")?);
    let faults = FaultStream::new(Faults::from_words(FAULTS).context("reading faults")?, args.seed);
    let is_over = Arc::new(AtomicBool::new(false));
    let faults = faults.until(&is_over);
    tokio::spawn(serve_within(listener, server.clone(), None, Bounds::default(), faults));
    let folder = Folder::temporary(&std::env::temp_dir())?;
    let kubeconfig = folder.path().join("kubeconfig");
    let text = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "none"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
    std::fs::write(&kubeconfig, text.to_string()).context("writing the kubeconfig")?;
    let mut theirs = vec![
        Theirs::start(Program::Informer, format!("--kubeconfig={}", kubeconfig.display()))?,
        Theirs::start(Program::Reconciler, kubeconfig.display().to_string())?,
    ];
    let mut ours = Ours::start(kubeconfig, args.seed).await?;

    let mut day = Day { server, rng: Rng::new(args.seed), n_made: 0, pods: Vec::new() };
    for _ in 0..args.changes {
        day.change().await?;
        passed_ms.fetch_add(DAY_MS / args.changes as i64, Ordering::Relaxed);
        ours.listen()?;
        // The sockets have the same thread.
        tokio::task::yield_now().await;
    }
    // Whoever met many faults in a row pauses for up to a minute, as client-go does, and would meet the next one.
    is_over.store(true, Ordering::Relaxed);
    let mut behind = String::new();
    let caught_up = tokio::time::timeout(CATCH_UP, async {
        loop {
            ours.listen()?;
            theirs = tokio::task::spawn_blocking(move || all_asked(theirs)).await??;
            let (truth, n_unseen) = day.truth().await?;
            let wrong = theirs.iter().map(|it| (it.program.name(), differing(&it.objects, &truth)));
            let wrong = [("ours", differing(&ours.objects, &truth))].into_iter().chain(wrong);
            let wrong: Vec<String> =
                wrong.filter(|(_, n)| *n > 0).map(|(who, n)| format!("{who} about {n}")).collect();
            if wrong.is_empty() && n_unseen == 0 {
                return anyhow::Ok((truth.len(), theirs));
            }
            let counts: Vec<_> = ours.following.counts().collect();
            behind = format!(
                "wrong: {wrong:?}; changes the reconciler did not see to: {n_unseen}; ours: {counts:?}"
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    let Ok(caught_up) = caught_up.await else { bail!("after {} s {behind}", CATCH_UP.as_secs()) };
    let (n_objects, theirs) = caught_up?;
    let n_failures: u64 = ours.following.counts().map(|(_, counts)| counts.n_failures).sum();
    println!("{} changes, {n_objects} objects left", args.changes);
    println!("ours: told {} times, {n_failures} failures lived through", ours.n_told);
    for one in &theirs {
        let (name, n) = (one.program.name(), one.complaints.len());
        println!("{name}: told {} times, {n} complaints", one.n_told);
        one.complaints.iter().take(20).for_each(|it| println!("  {it}"));
    }
    drop(folder.removed());
    Ok(theirs.iter().all(|it| it.complaints.is_empty()))
}

/// How many objects only one of the two has, or has otherwise.
fn differing(one: &Objects, other: &Objects) -> usize {
    let missing = |one: &Objects, other: &Objects| {
        one.iter().filter(|(key, uid)| other.get(*key) != Some(*uid)).count()
    };
    missing(one, other).max(missing(other, one))
}

/// Who makes the changes, beside the sockets.
struct Day {
    server: ApiServer,
    rng: Rng,
    n_made: u64,
    pods: Vec<String>,
}

impl Day {
    async fn change(&mut self) -> Result<()> {
        self.n_made += 1;
        let nth = self.n_made;
        if nth <= N_NODES {
            let node = json!({"metadata": {"name": format!("n{nth}")}});
            return self.ask(Method::POST, NODES, &node).await.map(drop);
        }
        let is_full = self.pods.len() >= N_PODS_MAX;
        if self.pods.is_empty() || (!is_full && self.rng.one_in(3)) {
            let name = format!("p{nth}");
            let pod = json!({"metadata": {"name": name},
                "spec": {"containers": [{"name": "c", "image": "i"}]}});
            self.ask(Method::POST, PODS, &pod).await?;
            self.pods.push(name);
            return Ok(());
        }
        let at = self.rng.below(self.pods.len() as u64) as usize;
        let path = format!("{PODS}/{}", self.pods[at]);
        match self.rng.below(4) {
            0 => {
                self.pods.swap_remove(at);
                self.ask(Method::DELETE, &format!("{path}?gracePeriodSeconds=0"), &Value::Null)
                    .await
            }
            1 => {
                let name = format!("n{}", 1 + self.rng.below(N_NODES));
                let label = json!({"metadata": {"labels": {"nth": nth.to_string()}}});
                self.ask(Method::PATCH, &format!("{NODES}/{name}"), &label).await
            }
            _ => {
                let label = json!({"metadata": {"labels": {"nth": nth.to_string()}}});
                self.ask(Method::PATCH, &path, &label).await
            }
        }
        .map(drop)
    }

    async fn ask(&self, method: Method, path: &str, body: &Value) -> Result<Value> {
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let content_type = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = Request::builder().method(method).uri(path);
        let request = request.header("content-type", content_type).body(body)?;
        let response = self.server.handle(&User::admin(), &request);
        let status = response.status();
        let body = response.into_body().collect().await.context("reading an answer")?.to_bytes();
        if !status.is_success() {
            bail!("{path}: {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(serde_json::from_slice(&body)?)
    }

    /// What there is, and how many objects do not say that the reconciler has seen their last change.
    async fn truth(&self) -> Result<(Objects, usize)> {
        let (mut all, mut n_unseen) = (Objects::new(), 0);
        for (resource, path) in [("pods", PODS), ("nodes", NODES)] {
            let list = self.ask(Method::GET, path, &Value::Null).await?;
            for object in list["items"].as_array().context("a list has items")? {
                let metadata = &object["metadata"];
                let text = |field: &str| metadata[field].as_str().unwrap_or_default();
                let key = format!("{resource}/{}/{}", text("namespace"), text("name"));
                all.insert(key, text("uid").to_owned());
                n_unseen +=
                    usize::from(metadata["labels"]["nth"] != metadata["annotations"]["seen"]);
            }
        }
        Ok((all, n_unseen))
    }
}

/// Our informer.
struct Ours {
    following: Following,
    changes: mpsc::Receiver<Change>,
    objects: Objects,
    n_told: usize,
}

impl Ours {
    async fn start(kubeconfig: std::path::PathBuf, seed: u64) -> Result<Ours> {
        let options = ClusterOptions {
            kubeconfig: Some(kubeconfig),
            context: None,
            master: None,
            user_agent: "follower".to_owned(),
        };
        let cluster = Cluster::find(&options).await.context("finding the cluster")?;
        let kinds = vec![Kind::Pod, Kind::Node];
        let what = Follow {
            kinds,
            needs: Needs::default(),
            streams: true,
            form: Form::Protobuf,
            keep_raw: false,
            seed,
        };
        let (out, changes) = mpsc::channel(10_000);
        let following = follow(&Lanes::new(&cluster).watch, &what, &out);
        Ok(Ours { following, changes, objects: Objects::new(), n_told: 0 })
    }

    /// Takes in what has come; an error is a contradiction.
    fn listen(&mut self) -> Result<()> {
        while let Ok(change) = self.changes.try_recv() {
            match change {
                Change::Set { kind, object, .. } => {
                    let metadata = object.metadata().context("an object has metadata")?;
                    let resource = kind.resource().resource;
                    let key = format!("{resource}/{}/{}", metadata.namespace, metadata.name);
                    self.objects.insert(key, metadata.uid.to_string());
                    self.n_told += 1;
                }
                Change::Gone { kind, namespace, name, uid } => {
                    let key = format!("{}/{namespace}/{name}", kind.resource().resource);
                    if self.objects.remove(&key).as_deref() != Some(&*uid) {
                        bail!("our informer is told that {key} {uid} is gone, which it never knew");
                    }
                    self.n_told += 1;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// A process that answers each line with what it believes.
struct Theirs {
    program: Program,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    objects: Objects,
    complaints: Vec<String>,
    n_told: u64,
}

impl Theirs {
    fn start(program: Program, argument: String) -> Result<Theirs> {
        let mut command = Command::new(program.path()?);
        command.arg(argument).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let name = program.name();
        let mut child = command.spawn().with_context(|| format!("starting {name}"))?;
        let input = child.stdin.take().context("its input")?;
        let output = BufReader::new(child.stdout.take().context("its output")?);
        let (objects, complaints) = (Objects::new(), Vec::new());
        Ok(Theirs { program, child, input, output, objects, complaints, n_told: 0 })
    }

    fn ask(&mut self) -> Result<()> {
        let name = self.program.name();
        self.input.write_all(b"?\n").with_context(|| format!("asking {name}"))?;
        let mut line = String::new();
        self.output
            .read_line(&mut line)
            .with_context(|| format!("reading the answer of {name}"))?;
        let told: Value =
            serde_json::from_str(&line).with_context(|| format!("{name} says {line:?}"))?;
        let objects = told["objects"].as_object().context("it tells objects")?.iter();
        let uid = |text: &Value| text.as_str()?.split(' ').next().map(str::to_owned);
        self.objects = objects.filter_map(|(key, it)| Some((key.clone(), uid(it)?))).collect();
        let complaints = told["complaints"].as_array().into_iter().flatten();
        self.complaints = complaints.map(ToString::to_string).collect();
        self.n_told = told["events"].as_u64().unwrap_or(0);
        Ok(())
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        // It may have ended already; there is nobody left to tell.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn all_asked(mut all: Vec<Theirs>) -> Result<Vec<Theirs>> {
    all.iter_mut().try_for_each(Theirs::ask)?;
    Ok(all)
}
