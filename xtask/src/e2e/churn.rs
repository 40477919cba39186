//! `cargo xtask e2e churn`: a simulated day of changes within a minute, on an embedded API server with fault injection. The caches of
//! three clients must finally equal the server's state: our informer, client-go's, and controllers on kube-rs, which must also have
//! reconciled each object's last change.

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
use loadmaster_api::ExtraFieldsByKind;
use loadmaster_apiserver::authentication::User;
use loadmaster_apiserver::fault_injection::Faults;
use loadmaster_apiserver::http::{FaultInjector, HttpLimits, serve_with_options};
use loadmaster_apiserver::store::StoreLimits;
use loadmaster_apiserver::{ApiServer, Options};
use loadmaster_client::reflector::{
    ObjectFormat, ReflectorEvent, ReflectorOptions, Reflectors, start_reflectors,
};
use loadmaster_client::{ApiClients, Cluster, ClusterOptions, Kind};
use loadmaster_stdx::Rng;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::programs::{self, Program};
use super::run_folder::RunFolder;

/// Run informers and a controller during a day of changes on a server with fault injection.
#[derive(Parser)]
pub struct Args {
    /// Number of changes.
    #[arg(long, default_value_t = 20_000)]
    changes: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Faults for all clients except the one that makes the changes.
const FAULTS: &str = "userAgents=client-go-informer|kube-rs-reconciler|follower,latency=0.1,latencyMs=20,throttle=0.05,error=0.1,drop=0.1,cut=0.8,cutBytes=400000,expire=0.2,late=0.1,lateMs=50";

const PODS: &str = "/api/v1/namespaces/default/pods";
const NODES: &str = "/api/v1/nodes";
const N_NODES: u64 = 50;
const N_PODS_MAX: usize = 400;
const DAY_MS: i64 = 24 * 3600 * 1000;
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(150);

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
        limits: StoreLimits::default(),
        also_serve: Vec::new(),
    })
    .context("setting up the cluster")?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.context("listening")?;
    let url = format!("http://{}", listener.local_addr().context("listening")?);
    let faults =
        FaultInjector::new(Faults::from_flag(FAULTS).context("reading faults")?, args.seed);
    let is_over = Arc::new(AtomicBool::new(false));
    let faults = faults.until_stopped(&is_over);
    tokio::spawn(serve_with_options(listener, server.clone(), None, HttpLimits::default(), faults));
    let folder = RunFolder::temporary(&std::env::temp_dir())?;
    let kubeconfig = folder.path().join("kubeconfig");
    let text = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "none"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
    std::fs::write(&kubeconfig, text.to_string()).context("writing the kubeconfig")?;
    let mut theirs = vec![
        ExternalInformer::start(
            Program::Informer,
            format!("--kubeconfig={}", kubeconfig.display()),
        )?,
        ExternalInformer::start(Program::Reconciler, kubeconfig.display().to_string())?,
    ];
    let mut ours = OwnInformer::start(kubeconfig, args.seed).await?;

    let mut day = ChangeGenerator { server, rng: Rng::new(args.seed), n_made: 0, pods: Vec::new() };
    for _ in 0..args.changes {
        day.change().await?;
        passed_ms.fetch_add(DAY_MS / args.changes as i64, Ordering::Relaxed);
        ours.receive_events()?;
        // The server runs on the same thread.
        tokio::task::yield_now().await;
    }
    // Stop the faults: after several failures clients back off for up to a minute, as client-go does.
    is_over.store(true, Ordering::Relaxed);
    let mut behind = String::new();
    let caught_up = tokio::time::timeout(CATCH_UP_TIMEOUT, async {
        loop {
            ours.receive_events()?;
            theirs = tokio::task::spawn_blocking(move || query_all(theirs)).await??;
            let (actual, n_unseen) = day.list_objects().await?;
            let wrong =
                theirs.iter().map(|it| (it.program.name(), differing(&it.objects, &actual)));
            let wrong = [("ours", differing(&ours.objects, &actual))].into_iter().chain(wrong);
            let wrong: Vec<String> =
                wrong.filter(|(_, n)| *n > 0).map(|(who, n)| format!("{who}: {n}")).collect();
            if wrong.is_empty() && n_unseen == 0 {
                return anyhow::Ok((actual.len(), theirs));
            }
            let counts: Vec<_> = ours.following.stats().collect();
            behind = format!(
                "different objects: {wrong:?}; changes not reconciled: {n_unseen}; our informer: {counts:?}"
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    let Ok(caught_up) = caught_up.await else {
        bail!("after {} s {behind}", CATCH_UP_TIMEOUT.as_secs())
    };
    let (n_objects, theirs) = caught_up?;
    let n_failures: u64 = ours.following.stats().map(|(_, counts)| counts.n_failures).sum();
    println!("{} changes, {n_objects} objects left", args.changes);
    println!("our informer: {} events, {n_failures} failures handled", ours.n_events);
    for one in &theirs {
        let (name, n) = (one.program.name(), one.errors.len());
        println!("{name}: {} events, {n} errors", one.n_events);
        one.errors.iter().take(20).for_each(|it| println!("  {it}"));
    }
    drop(folder.remove_on_drop());
    Ok(theirs.iter().all(|it| it.errors.is_empty()))
}

/// The number of objects that are different or in only one of the two.
fn differing(one: &Objects, other: &Objects) -> usize {
    let missing = |one: &Objects, other: &Objects| {
        one.iter().filter(|(key, uid)| other.get(*key) != Some(*uid)).count()
    };
    missing(one, other).max(missing(other, one))
}

/// Makes the changes, directly in the server.
struct ChangeGenerator {
    server: ApiServer,
    rng: Rng,
    n_made: u64,
    pods: Vec<String>,
}

impl ChangeGenerator {
    async fn change(&mut self) -> Result<()> {
        self.n_made += 1;
        let nth = self.n_made;
        if nth <= N_NODES {
            let node = json!({"metadata": {"name": format!("n{nth}")}});
            return self.request(Method::POST, NODES, &node).await.map(drop);
        }
        let is_full = self.pods.len() >= N_PODS_MAX;
        if self.pods.is_empty() || (!is_full && self.rng.one_in(3)) {
            let name = format!("p{nth}");
            let pod = json!({"metadata": {"name": name},
                "spec": {"containers": [{"name": "c", "image": "i"}]}});
            self.request(Method::POST, PODS, &pod).await?;
            self.pods.push(name);
            return Ok(());
        }
        let at = self.rng.below(self.pods.len() as u64) as usize;
        let path = format!("{PODS}/{}", self.pods[at]);
        match self.rng.below(4) {
            0 => {
                self.pods.swap_remove(at);
                self.request(Method::DELETE, &format!("{path}?gracePeriodSeconds=0"), &Value::Null)
                    .await
            }
            1 => {
                let name = format!("n{}", 1 + self.rng.below(N_NODES));
                let label = json!({"metadata": {"labels": {"nth": nth.to_string()}}});
                self.request(Method::PATCH, &format!("{NODES}/{name}"), &label).await
            }
            _ => {
                let label = json!({"metadata": {"labels": {"nth": nth.to_string()}}});
                self.request(Method::PATCH, &path, &label).await
            }
        }
        .map(drop)
    }

    async fn request(&self, method: Method, path: &str, body: &Value) -> Result<Value> {
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let content_type = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = Request::builder().method(method).uri(path);
        let request = request.header("content-type", content_type).body(body)?;
        let response = self.server.handle(&User::admin(), &request);
        let status = response.status();
        let body = response.into_body().collect().await.context("reading a response")?.to_bytes();
        if !status.is_success() {
            bail!("{path}: {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(serde_json::from_slice(&body)?)
    }

    /// The server's objects, and the number of objects whose last change is not reconciled.
    async fn list_objects(&self) -> Result<(Objects, usize)> {
        let (mut all, mut n_unseen) = (Objects::new(), 0);
        for (resource, path) in [("pods", PODS), ("nodes", NODES)] {
            let list = self.request(Method::GET, path, &Value::Null).await?;
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
struct OwnInformer {
    following: Reflectors,
    changes: mpsc::Receiver<ReflectorEvent>,
    objects: Objects,
    n_events: usize,
}

impl OwnInformer {
    async fn start(kubeconfig: std::path::PathBuf, seed: u64) -> Result<OwnInformer> {
        let options = ClusterOptions {
            kubeconfig: Some(kubeconfig),
            context: None,
            master: None,
            user_agent: "follower".to_owned(),
        };
        let cluster = Cluster::from_options(&options).await.context("finding the cluster")?;
        let kinds = vec![Kind::Pod, Kind::Node];
        let what = ReflectorOptions {
            kinds,
            needs: ExtraFieldsByKind::default(),
            use_watch_list: true,
            format: ObjectFormat::Protobuf,
            keep_raw: false,
            seed,
        };
        let (out, changes) = mpsc::channel(10_000);
        let following = start_reflectors(&ApiClients::new(&cluster).watch, &what, &out);
        Ok(OwnInformer { following, changes, objects: Objects::new(), n_events: 0 })
    }

    /// Applies the received events; an error if an event contradicts the state.
    fn receive_events(&mut self) -> Result<()> {
        while let Ok(change) = self.changes.try_recv() {
            match change {
                ReflectorEvent::Upsert { kind, object, .. } => {
                    let metadata = object.metadata().context("an object has metadata")?;
                    let resource = kind.resource().resource;
                    let key = format!("{resource}/{}/{}", metadata.namespace, metadata.name);
                    self.objects.insert(key, metadata.uid.to_string());
                    self.n_events += 1;
                }
                ReflectorEvent::Delete { kind, namespace, name, uid } => {
                    let key = format!("{}/{namespace}/{name}", kind.resource().resource);
                    if self.objects.remove(&key).as_deref() != Some(&*uid) {
                        bail!(
                            "our informer received a delete of {key} {uid}, which was not in its cache"
                        );
                    }
                    self.n_events += 1;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// A process that prints the state of its cache for each input line.
struct ExternalInformer {
    program: Program,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    objects: Objects,
    errors: Vec<String>,
    n_events: u64,
}

impl ExternalInformer {
    fn start(program: Program, argument: String) -> Result<ExternalInformer> {
        let mut command = Command::new(program.path()?);
        command.arg(argument).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let name = program.name();
        let mut child = command.spawn().with_context(|| format!("starting {name}"))?;
        let input = child.stdin.take().context("its input")?;
        let output = BufReader::new(child.stdout.take().context("its output")?);
        let (objects, errors) = (Objects::new(), Vec::new());
        Ok(ExternalInformer { program, child, input, output, objects, errors, n_events: 0 })
    }

    fn query(&mut self) -> Result<()> {
        let name = self.program.name();
        self.input.write_all(b"?\n").with_context(|| format!("querying {name}"))?;
        let mut line = String::new();
        self.output
            .read_line(&mut line)
            .with_context(|| format!("reading the output of {name}"))?;
        let state: Value =
            serde_json::from_str(&line).with_context(|| format!("decoding {line:?} of {name}"))?;
        let objects = state["objects"].as_object().context("no objects in the output")?.iter();
        let uid = |text: &Value| text.as_str()?.split(' ').next().map(str::to_owned);
        self.objects = objects.filter_map(|(key, it)| Some((key.clone(), uid(it)?))).collect();
        let errors = state["errors"].as_array().into_iter().flatten();
        self.errors = errors.map(ToString::to_string).collect();
        self.n_events = state["events"].as_u64().unwrap_or(0);
        Ok(())
    }
}

impl Drop for ExternalInformer {
    fn drop(&mut self) {
        // The process may have exited already; errors are ignored.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn query_all(mut all: Vec<ExternalInformer>) -> Result<Vec<ExternalInformer>> {
    all.iter_mut().try_for_each(ExternalInformer::query)?;
    Ok(all)
}
