//! A scheduler on a real cluster: the engine on a thread of its own, and around it everything that talks.
//!
//! ```text
//!  watches ──► news ──►┌────────┐──► calls ──► binds, status patches, evictions
//!  answers ──────────► │ engine │──► Events
//!  lease ──► leading ─►└────────┘──► metrics
//!                  thread of its own
//! ```
//!
//! Where there are extenders, pods (and nodes, if some extender keeps none) are watched in JSON, and their bytes kept: extenders
//! are sent whole objects. So they are where plugins need whole pods or nodes.
//!
//! The engine's thread is the only one that decides; it never waits for the network. Requests to the API server run on the runtime's
//! threads, so that the lease is renewed and health answered whatever the engine does. The engine keeps its picture of the cluster while
//! another replica leads, unless the configuration delays it, and begins to schedule as soon as it leads itself.

mod answers;
mod authority;
mod clock;
mod dump;
mod extend;
mod missing;
mod news;
mod observe;
mod record;
pub mod service;
mod shell;
#[cfg(test)]
mod testkit;
mod thread;
mod within;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::{Needs, Str};
use loadmaster_client::calls::{Calls, Limits};
use loadmaster_client::extender::ExtenderError;
use loadmaster_client::lease::{Held, LeaseOptions, Timing, hold};
use loadmaster_client::limit::random_seed;
use loadmaster_client::recorder::{Notice, Recorder, RecorderOptions, Reference};
use loadmaster_client::watch::{Change, Follow, Form, follow};
use loadmaster_client::{Cluster, ClusterOptions, ConnectError, Kind, Lanes};
use loadmaster_config::Gates;
use loadmaster_engine::engine::{Engine, Options as EngineOptions};
use loadmaster_engine::{Profile, ProfileError};
use loadmaster_framework::{Presence, Registry};
use loadmaster_stdx::Chain;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::flags::{Own, platform};
use crate::metrics::Metrics;
use crate::serve::{self, Check, Condition, Health, Parts, SHUTTING_DOWN, Server};
use crate::{Loaded, Ready};
use extend::Calling;
use missing::{Lease, Missing};
pub use record::RecordError;
use record::Recording;
use service::Service;
use shell::{Command, Shell};
use thread::EngineThread;
pub use within::{Asked, Scheduler};

/// News that wait for the engine; when so many do, reading from the API server waits.
const NEWS_MAX: usize = 16 << 10;

/// How long a scheduler that is told to stop waits for the answers to its binds.
const DRAIN_MAX: Duration = Duration::from_millis(1500);

/// How long it waits for its engine then, which may have a recording to finish, or a plugin that does not return.
const JOIN_MAX: Duration = Duration::from_secs(10);

/// A leader that has not renewed for its lease and so much longer is not healthy (upstream's watchdog).
const LEASE_GRACE: Duration = Duration::from_secs(20);

/// Why a scheduler did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A plugin.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The cluster was not found.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The certificates of an extender.
    #[error("couldn't build extenders")]
    Extender(#[from] ExtenderError),
    /// `--record`.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The endpoints.
    #[error(transparent)]
    Serve(#[from] serve::ServeError),
    /// Threads, sockets, signals.
    #[error("starting the runtime")]
    Runtime(#[source] std::io::Error),
    /// Another replica leads, or the lease was not renewed in time.
    #[error("leaderelection lost")]
    LeaseLost,
    /// A bug of ours or of a plugin.
    #[error("the scheduler's thread ended")]
    EngineEnded,
}

/// Runs a scheduler until it is told to stop (0), or cannot go on (1): kube-scheduler's exit codes. Plugins that are not in-tree
/// are named for recordings, which cannot be replayed without them.
pub fn run(
    ready: Ready,
    registry: &Registry,
    services: &[Service],
    out_of_tree: &[String],
) -> ExitCode {
    let logs = ready.logs.clone();
    let ended = try_run(ready, registry, services, out_of_tree);
    if let Err(error) = &ended {
        tracing::error!("{}", Chain(error));
    }
    logs.flush();
    if ended.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The engine of these profiles, that of a run and that of its replay.
///
/// # Errors
///
/// When a plugin cannot be built.
pub fn engine(
    profiles: &[loadmaster_config::Profile],
    gates: &Gates,
    registry: &Registry,
    options: EngineOptions,
) -> Result<Engine, ProfileError> {
    let gates = gates.framework();
    let profiles: Result<Vec<Arc<Profile>>, ProfileError> =
        profiles.iter().map(|it| Profile::new(it, registry, &gates).map(Arc::new)).collect();
    Ok(Engine::new(profiles?, gates, options))
}

fn try_run(
    ready: Ready,
    registry: &Registry,
    services: &[Service],
    out_of_tree: &[String],
) -> Result<(), RunError> {
    let prepared = Prepared::new(ready, registry, services, out_of_tree)?;
    let runtime = runtime()?;
    let ended = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(RunError::Runtime)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(RunError::Runtime)?;
        let told = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        prepared.run(told).await
    });
    // Whoever still reads a watch is not waited for.
    runtime.shutdown_background();
    ended
}

fn runtime() -> Result<tokio::runtime::Runtime, RunError> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().map_err(RunError::Runtime)
}

/// A scheduler before any connection.
struct Prepared {
    daemon: Daemon,
    engine: Engine,
    recording: Option<Recording>,
    /// What the engine's thread will be told.
    heard: mpsc::UnboundedReceiver<Command>,
}

impl Prepared {
    fn new(
        ready: Ready,
        registry: &Registry,
        services: &[Service],
        out_of_tree: &[String],
    ) -> Result<Prepared, RunError> {
        loadmaster_engine::guard::quiet_caught_panics();
        let loaded = &ready.loaded;
        let options = engine_options(loaded, &ready.options.own);
        let engine = engine(&loaded.profiles, &loaded.gates, registry, options.clone())?;
        let recording = record(&ready, &options, out_of_tree)?;
        let (commands, heard) = mpsc::unbounded_channel();
        let daemon = Daemon { ready, services: services.to_vec(), commands };
        Ok(Prepared { daemon, engine, recording, heard })
    }

    async fn run(self, told_to_stop: impl Future<Output = ()>) -> Result<(), RunError> {
        let Prepared { daemon, engine, recording, heard } = self;
        daemon.run(engine, recording, heard, told_to_stop).await
    }
}

/// What `--record` asks for.
fn record(
    ready: &Ready,
    options: &EngineOptions,
    out_of_tree: &[String],
) -> Result<Option<Recording>, RecordError> {
    let own = &ready.options.own;
    if own.record.is_empty() {
        return Ok(None);
    }
    let header = record::header(&ready.loaded, options, out_of_tree)?;
    let path = own.record.as_ref();
    Recording::start(path, own.record_max_size, &header, ready.metrics.clone()).map(Some)
}

/// What the scheduler itself reads, and what plugins watch.
fn kinds(engine: &Engine) -> Vec<Kind> {
    let watched = engine.watched().map(|(kind, presence)| {
        let required = presence == Presence::Required;
        Kind::other(&kind.group, &kind.version, &kind.resource, required)
    });
    Kind::SCHEDULING.into_iter().chain(watched).collect()
}

/// What the API server's audit log calls us.
fn user_agent() -> String {
    format!("loadmaster/{} ({}) scheduler", env!("CARGO_PKG_VERSION"), platform())
}

fn engine_options(loaded: &Loaded, own: &Own) -> EngineOptions {
    let seconds = |seconds: i64| Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    EngineOptions {
        seed: random_seed(),
        initial_backoff: seconds(loaded.config.pod_initial_backoff_seconds),
        max_backoff: seconds(loaded.config.pod_max_backoff_seconds),
        max_in_unschedulable: loaded.pod_max_in_unschedulable_pods.to_std().unwrap_or_default(),
        shadow: own.shadow,
        check_every: own.check_every,
        ticks: clock::ticks,
        ..EngineOptions::default()
    }
}

struct Daemon {
    ready: Ready,
    services: Vec<Service>,
    /// To the engine's thread.
    commands: mpsc::UnboundedSender<Command>,
}

/// What readyz and healthz look at.
struct Conditions {
    /// All first lists are there.
    synced: Condition,
    shutdown: Condition,
}

impl Daemon {
    async fn run(
        self,
        engine: Engine,
        recording: Option<Recording>,
        heard: mpsc::UnboundedReceiver<Command>,
        told_to_stop: impl Future<Output = ()>,
    ) -> Result<(), RunError> {
        let cluster = self.find().await?;
        let lanes = Lanes::new(&cluster);
        let metrics = self.ready.metrics.clone();
        let conditions = Conditions {
            synced: Condition::failing("handlers are not fully synchronized"),
            shutdown: Condition::well(),
        };
        let debug = signal(SignalKind::user_defined2()).map_err(RunError::Runtime)?;
        let (news_in, news) = mpsc::channel(NEWS_MAX);
        let (finished_in, finished) = mpsc::channel(NEWS_MAX);
        let client = &self.ready.loaded.config.client_connection;
        let limits = Limits { qps: client.qps, burst: client.burst, ..Limits::default() };
        let calls = Arc::new(Calls::start(&lanes, limits, finished_in));
        let recorder = Arc::new(Recorder::start(&lanes.events, self.recorder_options()));
        let extenders = &self.ready.loaded.config.extenders;
        let runtime = tokio::runtime::Handle::current();
        let (calling, extended) = Calling::new(extenders, metrics.clone(), runtime)?;
        let held = self.seek_lease(&lanes);
        let kinds = kinds(&engine);
        let what = self.following(kinds.clone(), engine.needs());
        let (lead, leads) = watch::channel(false);
        let server = self.serve(&lanes, &metrics, &conditions, held.as_ref()).await?;
        let mut thread = EngineThread::start(Shell {
            engine,
            recording,
            news,
            finished,
            commands: heard,
            calls: calls.clone(),
            calling,
            extended,
            recorder: recorder.clone(),
            metrics: metrics.clone(),
            synced: conditions.synced.clone(),
            missing: Missing::new(metrics.clone(), recorder.clone(), self.lease(held.as_ref())),
            kinds,
            leading: lead,
        })?;
        let _following = self.follow(&lanes, held.as_ref(), what, news_in);
        tokio::spawn(dump::on_signal(debug, lanes.other.clone(), self.commands.clone()));
        let _services = self.start_services(&leads, &recorder, &metrics);
        let mut leading = self.leading(held.as_ref(), &recorder, &metrics);
        let outcome = tokio::select! {
            () = told_to_stop => Ok(()),
            () = leading.lost() => Err(RunError::LeaseLost),
            () = thread.ended() => Err(RunError::EngineEnded),
        };
        conditions.shutdown.fail(SHUTTING_DOWN);
        if outcome.is_ok() {
            // No new pod is tried; binds that are under way get their answers.
            let _ = self.commands.send(Command::Lead(false));
            let _ = timeout(DRAIN_MAX, calls.drain()).await;
        }
        calls.stop();
        let _ = self.commands.send(Command::Stop);
        thread.join(JOIN_MAX).await;
        if let (Ok(()), Some(held)) = (&outcome, held) {
            held.release().await;
        }
        if let Some(server) = server {
            server.shutdown().await;
        }
        outcome
    }

    fn start_services(
        &self,
        leads: &watch::Receiver<bool>,
        recorder: &Arc<Recorder>,
        metrics: &Arc<Metrics>,
    ) -> JoinSet<()> {
        let writer = recorder.clone();
        let tell: service::Teller = Arc::new(move |notice| writer.record(notice));
        let teller = (tell, &self.first_profile());
        service::start(&self.services, &self.commands, leads, teller, metrics)
    }

    async fn find(&self) -> Result<Cluster, RunError> {
        let path = &self.ready.loaded.config.client_connection.kubeconfig;
        let master = &self.ready.loaded.master;
        let options = ClusterOptions {
            kubeconfig: (!path.is_empty()).then(|| path.into()),
            context: None,
            master: (!master.is_empty()).then(|| master.clone()),
            user_agent: user_agent(),
        };
        let cluster = Cluster::find(&options).await?;
        tracing::info!(server = cluster.server(), "Talking to the API server");
        Ok(cluster)
    }

    fn recorder_options(&self) -> RecorderOptions {
        let client = &self.ready.loaded.config.client_connection;
        RecorderOptions {
            hostname: clock::hostname(),
            qps: client.qps,
            burst: client.burst,
            ..RecorderOptions::default()
        }
    }

    fn following(&self, kinds: Vec<Kind>, needs: Needs) -> Follow {
        let client = &self.ready.loaded.config.client_connection;
        let has_extenders = !self.ready.loaded.config.extenders.is_empty();
        let is_protobuf =
            client.content_type.contains("protobuf") && !has_extenders && !needs.json_only();
        Follow {
            kinds,
            streams: self.ready.loaded.gates.enabled("WatchListClient"),
            keep_raw: has_extenders || !self.ready.options.own.record.is_empty(),
            needs,
            form: if is_protobuf { Form::Protobuf } else { Form::Json },
            seed: random_seed(),
        }
    }

    /// Watches, from now on or, with delayCacheUntilActive, from when we lead: a standby then holds no picture of the cluster and
    /// is not ready. They end when this is dropped.
    fn follow(
        &self,
        lanes: &Lanes,
        held: Option<&Held>,
        what: Follow,
        news: mpsc::Sender<Change>,
    ) -> JoinSet<()> {
        let is_delayed = self.ready.loaded.config.delay_cache_until_active;
        let standing = held.filter(|_| is_delayed).map(Held::standing);
        let lane = lanes.watch.clone();
        let mut following = JoinSet::new();
        following.spawn(async move {
            if let Some(mut standing) = standing {
                // Whoever ends the process sees that the lease is over.
                if standing.wait_for(|standing| standing.is_leading).await.is_err() {
                    return;
                }
                tracing::info!("Starting watches");
            }
            let _following = follow(&lane, &what, &news);
            std::future::pending().await
        });
        following
    }

    /// A shadow needs no lease: it does nothing that only one may do.
    fn seek_lease(&self, lanes: &Lanes) -> Option<Held> {
        let election = &self.ready.loaded.config.leader_election;
        if !election.leader_elect || self.ready.options.own.shadow {
            return None;
        }
        let options = LeaseOptions {
            namespace: election.resource_namespace.clone(),
            name: election.resource_name.clone(),
            identity: LeaseOptions::identity(&clock::hostname()),
            timing: Timing {
                lease_duration: election.lease_duration.to_std().unwrap_or_default(),
                renew_deadline: election.renew_deadline.to_std().unwrap_or_default(),
                retry_period: election.retry_period.to_std().unwrap_or_default(),
            },
        };
        tracing::info!(
            lease = format!("{}/{}", options.namespace, options.name),
            "Attempting to acquire leader lease"
        );
        Some(hold(&lanes.lease, options))
    }

    /// The schedulerName in whose name services write Events.
    fn first_profile(&self) -> Str {
        let first = self.ready.loaded.profiles.first();
        first.map(|profile| Str::new(&profile.scheduler_name)).unwrap_or_default()
    }

    /// The lease, without its uid.
    fn lease_name(&self) -> Reference {
        let election = &self.ready.loaded.config.leader_election;
        Reference {
            api_version: "coordination.k8s.io/v1".into(),
            kind: "Lease".into(),
            namespace: election.resource_namespace.as_str().into(),
            name: election.resource_name.as_str().into(),
            ..Reference::default()
        }
    }

    fn lease(&self, held: Option<&Held>) -> Option<Lease> {
        held.map(|held| Lease { name: self.lease_name(), standing: held.standing() })
    }

    async fn serve(
        &self,
        lanes: &Lanes,
        metrics: &Arc<Metrics>,
        conditions: &Conditions,
        held: Option<&Held>,
    ) -> Result<Option<Server>, RunError> {
        let mut parts = Parts::new(&self.ready.options, &self.ready.loaded, metrics.clone());
        let lease = held.map(|held| {
            let standing = held.standing();
            let duration = self.ready.loaded.config.leader_election.lease_duration;
            let duration = duration.to_std().unwrap_or_default();
            Check::new("leaderElection", move || {
                let now = tokio::time::Instant::now();
                if standing.borrow().is_stuck(now, duration, LEASE_GRACE) {
                    return Err("failed election to renew leadership on lease".to_owned());
                }
                Ok(())
            })
        });
        parts.health = Health::of_scheduler(lease, &conditions.shutdown, &conditions.synced);
        let api = authority::Authority::new(&lanes.other);
        let options = &self.ready.options;
        let kubeconfig = &options.authentication.authentication_kubeconfig;
        parts.authentication = Some(authority::of(kubeconfig, &api).await?);
        let kubeconfig = &options.authorization.authorization_kubeconfig;
        parts.authorization = Some(authority::of(kubeconfig, &api).await?);
        let logs = self.ready.logs.clone();
        parts.set_verbosity = Arc::new(move |verbosity| logs.set_verbosity(verbosity));
        parts.pod_resources = answers::pod_resources(self.commands.clone());
        parts.routes = answers::routes(&self.commands);
        Ok(serve::start(options, parts).await?)
    }

    /// Lets the engine schedule while we lead.
    fn leading(
        &self,
        held: Option<&Held>,
        recorder: &Arc<Recorder>,
        metrics: &Arc<Metrics>,
    ) -> Leading {
        let Some(held) = held else {
            let _ = self.commands.send(Command::Lead(!self.ready.options.own.shadow));
            return Leading(None);
        };
        let (lost_in, lost) = mpsc::channel(1);
        let follower = Follower {
            lease: self.lease_name(),
            commands: self.commands.clone(),
            recorder: recorder.clone(),
            metrics: metrics.clone(),
            lost: lost_in,
        };
        tokio::spawn(follower.run(held.standing()));
        Leading(Some(lost))
    }
}

/// Tells when it is over; without a lease, never.
struct Leading(Option<mpsc::Receiver<()>>);

impl Leading {
    async fn lost(&mut self) {
        match &mut self.0 {
            Some(lost) => drop(lost.recv().await),
            None => std::future::pending().await,
        }
    }
}

/// Passes on who leads.
struct Follower {
    lease: Reference,
    commands: mpsc::UnboundedSender<Command>,
    recorder: Arc<Recorder>,
    metrics: Arc<Metrics>,
    lost: mpsc::Sender<()>,
}

impl Follower {
    async fn run(
        self,
        mut standing: tokio::sync::watch::Receiver<loadmaster_client::lease::Standing>,
    ) {
        let name = self.lease.name.clone();
        let mut was_leading = false;
        let mut leader = String::new();
        loop {
            let now = standing.borrow_and_update().clone();
            if now.leader != leader && !now.leader.is_empty() {
                tracing::info!(identity = now.leader, "New leader elected");
                leader.clone_from(&now.leader);
            }
            if now.is_leading && !was_leading {
                tracing::info!(lease = &*name, "Successfully acquired lease");
                self.tell(&leader, &now.uid, "became leader");
                let _ = self.commands.send(Command::Lead(true));
            }
            if was_leading && !now.is_leading || now.is_over {
                let _ = self.commands.send(Command::Lead(false));
                self.metrics.election.set_leading(&name, false);
                let _ = self.lost.send(()).await;
                return;
            }
            self.metrics.election.set_leading(&name, now.is_leading);
            was_leading = now.is_leading;
            if standing.changed().await.is_err() {
                return;
            }
        }
    }

    fn tell(&self, identity: &str, uid: &str, what: &str) {
        let lease = Reference { uid: uid.into(), ..self.lease.clone() };
        self.recorder.record(Notice::of_lease(lease, identity, what, "kube-scheduler"));
    }
}
