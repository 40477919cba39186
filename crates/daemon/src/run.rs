//! Runs a scheduler on a cluster: the engine on its own thread, and everything that uses the network around it.
//!
//! ```text
//!  watches ──► events ──►┌────────┐──► API calls ──► bindings, status patches, evictions
//!  API replies ────────► │ engine │──► Events
//!  lease ──► leading ───►└────────┘──► metrics
//!                    its own thread
//! ```
//!
//! If extenders are configured, pods (and nodes, if an extender is not `nodeCacheCapable`) are watched as JSON and their bytes are stored,
//! because extenders are sent whole objects. The same applies if plugins need whole pods or nodes.
//!
//! Only the engine's thread makes decisions; it never waits for the network. Requests to the API server run on the runtime's threads, so
//! that the lease is renewed and health checks are answered whatever the engine does. A standby replica keeps its cache up to date, unless
//! `delayCacheUntilActive` is set, and starts to schedule as soon as it becomes the leader.

mod cache_debugger;
mod clock;
mod delegated_auth;
mod embedded;
mod engine_loop;
mod engine_queries;
mod engine_thread;
mod event_conversion;
mod extender_calls;
mod leadership;
mod missing_kinds;
mod observations;
mod permissions;
mod recording;
mod reload;
pub mod service;
mod shadow_report;
#[cfg(test)]
mod testkit;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::{ExtraFieldsByKind, Str};
use loadmaster_client::api_dispatcher::{ApiDispatcher, ApiDispatcherLimits};
use loadmaster_client::event_recorder::{EventRecorder, EventRecorderOptions};
use loadmaster_client::extender::ExtenderError;
use loadmaster_client::flowcontrol::random_seed;
use loadmaster_client::leader_election::LeaderElector;
use loadmaster_client::reflector::{
    ObjectFormat, ReflectorEvent, ReflectorOptions, start_reflectors,
};
use loadmaster_client::{ApiClients, Cluster, ClusterOptions, ConnectError, Kind};
use loadmaster_config::{AllFeatureGates, PrintError, SchedulerConfiguration};
use loadmaster_engine::Profile;
use loadmaster_engine::engine::{Engine, EngineConfiguration, EngineOptions};
use loadmaster_framework::plugin_metrics::MetricError;
use loadmaster_framework::{Registry, WatchRequirement};
use loadmaster_stdx::{ErrorChain, HashSeed};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::flags::{LoadmasterFlags, platform};
use crate::metrics::Metrics;
use crate::serve::{
    self, EndpointsConfig, Health, HealthCheck, HealthState, SHUTTING_DOWN, Server,
};
use crate::{CompletedConfig, LoadedConfig};
pub use clock::hostname;
pub use embedded::{EmbeddedScheduler, QueryOutcome};
use engine_loop::{Command, EngineLoop};
use engine_thread::EngineThread;
use extender_calls::ExtenderCaller;
use missing_kinds::MissingKinds;
use recording::Recording;
pub use recording::RecordingError;
use reload::{ReloadSource, ReloadStatus, Reloader};
use service::{RunningServices, Service, ServiceContext};
use shadow_report::ShadowReport;

/// Watch events that wait for the engine; when the channel is full, the watches stop reading from the API server.
const WATCH_EVENTS_MAX: usize = 16 << 10;

/// How long a stopping scheduler waits for the replies to its bindings.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(1500);

/// How long it then waits for the engine's thread, which may have to finish a recording or may be blocked by a stuck plugin.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A leader that has not renewed its lease for the lease duration plus this is unhealthy (upstream's leader election watchdog).
const LEASE_GRACE: Duration = Duration::from_secs(20);

/// Why a scheduler could not start, or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A plugin declares a metric that another plugin has.
    #[error("initializing plugin {plugin:?}")]
    Metric {
        /// The plugin's name.
        plugin: &'static str,
        /// The metric and what is wrong.
        #[source]
        error: MetricError,
    },
    /// There is no usable kubeconfig or in-cluster configuration.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The configuration of an extender, such as its certificates.
    #[error("couldn't build extenders")]
    Extender(#[from] ExtenderError),
    /// The recording of `--record` could not be started.
    #[error(transparent)]
    Record(#[from] RecordingError),
    /// The HTTPS endpoints could not be started.
    #[error(transparent)]
    Serve(#[from] serve::ServeError),
    /// Threads or signal handlers could not be set up.
    #[error("starting the runtime")]
    Runtime(#[source] std::io::Error),
    /// Another replica leads, or the lease was not renewed in time.
    #[error("leaderelection lost")]
    LeaseLost,
    /// The engine's thread ended unexpectedly: a bug in Loadmaster or in a plugin.
    #[error("the scheduler's thread ended")]
    EngineEnded,
}

/// Runs a scheduler until it receives SIGTERM or SIGINT (exit code 0) or fails (exit code 1), as kube-scheduler. `out_of_tree` are the
/// names of plugins that are not in-tree: they are written to recordings, which cannot be replayed without them. After SIGHUP, and when
/// a file changes, the configuration is loaded again with the plugins of `registry`.
pub fn run_scheduler(
    ready: CompletedConfig,
    services: &[Service],
    out_of_tree: &[String],
    registry: &Registry,
) -> ExitCode {
    let logs = ready.logs.clone();
    let ended = try_run(ready, services, out_of_tree, registry);
    if let Err(error) = &ended {
        tracing::error!("{}", ErrorChain(error));
    }
    logs.flush();
    if ended.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The engine for these profiles; used by a run and by its replay.
pub fn build_engine(
    profiles: &[loadmaster_config::ResolvedProfile],
    gates: &AllFeatureGates,
    options: EngineOptions,
) -> Engine {
    let gates = gates.framework_gates();
    let profiles = profiles.iter().map(|it| Arc::new(Profile::new(it, &gates)));
    Engine::new(profiles.collect(), gates, options)
}

/// Another configuration for a running engine.
///
/// # Errors
///
/// When the configuration cannot be written as YAML.
pub fn build_configuration(
    config: &SchedulerConfiguration,
    profiles: &[loadmaster_config::ResolvedProfile],
    gates: &AllFeatureGates,
) -> Result<EngineConfiguration, PrintError> {
    let gates = gates.framework_gates();
    let profiles = profiles.iter().map(|it| Arc::new(Profile::new(it, &gates)));
    Ok(EngineConfiguration {
        profiles: profiles.collect(),
        initial_backoff: whole_seconds(config.pod_initial_backoff_seconds),
        max_backoff: whole_seconds(config.pod_max_backoff_seconds),
        yaml: config.redacted().to_v1_yaml()?,
    })
}

fn whole_seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

fn try_run(
    ready: CompletedConfig,
    services: &[Service],
    out_of_tree: &[String],
    registry: &Registry,
) -> Result<(), RunError> {
    let options = ready.options.clone();
    let prepared = PreparedScheduler::new(ready, services, out_of_tree)?;
    let runtime = runtime(prepared.daemon.hash_seed)?;
    prepared.daemon.hash_seed.set_for_thread();
    let ended = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(RunError::Runtime)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(RunError::Runtime)?;
        let stop_signal = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        let hangup = signal(SignalKind::hangup()).map_err(RunError::Runtime)?;
        let source = ReloadSource { options, registry: registry.clone(), hangup };
        prepared.run(stop_signal, Some(source)).await
    });
    // Do not wait for tasks that still read watches.
    runtime.shutdown_background();
    ended
}

/// A runtime whose threads use this seed for hash maps, such as those of watched objects.
fn runtime(hash_seed: HashSeed) -> Result<tokio::runtime::Runtime, RunError> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.on_thread_start(move || hash_seed.set_for_thread());
    runtime.worker_threads(2).enable_all().build().map_err(RunError::Runtime)
}

/// A scheduler before any connection.
struct PreparedScheduler {
    daemon: Daemon,
    engine: Engine,
    recording: Option<Recording>,
    /// Commands for the engine's thread.
    command_receiver: mpsc::UnboundedReceiver<Command>,
}

impl PreparedScheduler {
    fn new(
        ready: CompletedConfig,
        services: &[Service],
        out_of_tree: &[String],
    ) -> Result<PreparedScheduler, RunError> {
        loadmaster_engine::guard::silence_caught_panics();
        let loaded = &ready.loaded;
        let options = engine_options(loaded, &ready.options.loadmaster);
        let engine = build_engine(&loaded.profiles, &loaded.gates, options.clone());
        for (plugin, metric) in engine.plugin_metrics() {
            let registered = ready.metrics.register_plugin_metric(plugin, metric);
            registered.map_err(|error| RunError::Metric { plugin, error })?;
        }
        let recording = start_recording(&ready, &options, out_of_tree)?;
        let (commands, command_receiver) = mpsc::unbounded_channel();
        let hash_seed = options.hash_seed;
        let services = services.to_vec();
        let daemon = Daemon { ready, services, hash_seed, commands, listener: None };
        Ok(PreparedScheduler { daemon, engine, recording, command_receiver })
    }

    /// Runs until the signal. Without a source the configuration is never reloaded.
    async fn run(
        self,
        stop_signal: impl Future<Output = ()>,
        reload_source: Option<ReloadSource>,
    ) -> Result<(), RunError> {
        let PreparedScheduler { daemon, engine, recording, command_receiver } = self;
        daemon.run(engine, recording, command_receiver, reload_source, stop_signal).await
    }
}

/// Starts the recording of `--record`, if the flag is set.
fn start_recording(
    ready: &CompletedConfig,
    options: &EngineOptions,
    out_of_tree: &[String],
) -> Result<Option<Recording>, RecordingError> {
    let flags = &ready.options.loadmaster;
    if flags.record.is_empty() {
        return Ok(None);
    }
    let header = recording::header(&ready.loaded, options, out_of_tree)?;
    let path = flags.record.as_ref();
    Recording::start(path, flags.record_max_size, &header, ready.metrics.clone()).map(Some)
}

/// The kinds that the scheduler watches, and those that plugins watch.
fn watched_kinds(engine: &Engine) -> Vec<Kind> {
    let watched = engine.watched_kinds().map(|(kind, requirement)| {
        let required = requirement == WatchRequirement::Required;
        Kind::dynamic(&kind.group, &kind.version, &kind.resource, required)
    });
    Kind::SCHEDULING.into_iter().chain(watched).collect()
}

/// The user agent of all requests to the API server.
pub(crate) fn user_agent() -> String {
    format!("loadmaster/{} ({}) scheduler", env!("CARGO_PKG_VERSION"), platform())
}

fn engine_options(loaded: &LoadedConfig, flags: &LoadmasterFlags) -> EngineOptions {
    EngineOptions {
        seed: random_seed(),
        hash_seed: HashSeed::random(),
        initial_backoff: whole_seconds(loaded.config.pod_initial_backoff_seconds),
        max_backoff: whole_seconds(loaded.config.pod_max_backoff_seconds),
        max_in_unschedulable: loaded.pod_max_in_unschedulable_pods.to_std().unwrap_or_default(),
        shadow: flags.shadow,
        verify_every: flags.check_every,
        stopwatch: clock::ticks,
        ..EngineOptions::default()
    }
}

struct Daemon {
    ready: CompletedConfig,
    services: Vec<Service>,
    /// The seed of the hash maps of all threads.
    hash_seed: HashSeed,
    /// The sender of commands to the engine's thread.
    commands: mpsc::UnboundedSender<Command>,
    /// An open socket for the secure port; without it, the flags name the address.
    listener: Option<std::net::TcpListener>,
}

/// The states that `/readyz` reports.
struct HealthStates {
    /// All informers have synced.
    synced: HealthState,
    shutdown: HealthState,
}

impl Daemon {
    async fn run(
        mut self,
        engine: Engine,
        recording: Option<Recording>,
        command_receiver: mpsc::UnboundedReceiver<Command>,
        reload_source: Option<ReloadSource>,
        stop_signal: impl Future<Output = ()>,
    ) -> Result<(), RunError> {
        let cluster = self.connect().await?;
        let metrics = self.ready.metrics.clone();
        let observer = observations::request_observer(&metrics);
        let clients = ApiClients::new(&cluster).observed_by(observer);
        let health = HealthStates {
            synced: HealthState::failing("handlers are not fully synchronized"),
            shutdown: HealthState::passing(),
        };
        let debug = signal(SignalKind::user_defined2()).map_err(RunError::Runtime)?;
        let (watch_event_sender, watch_events) = mpsc::channel(WATCH_EVENTS_MAX);
        let (finished_call_sender, finished_calls) = mpsc::channel(WATCH_EVENTS_MAX);
        let client = &self.ready.loaded.config.client_connection;
        let limits = ApiDispatcherLimits {
            qps: client.qps,
            burst: client.burst,
            ..ApiDispatcherLimits::default()
        };
        let calls = Arc::new(ApiDispatcher::start(&clients, limits, finished_call_sender));
        let recorder = Arc::new(EventRecorder::start(&clients.events, self.recorder_options()));
        let extenders = &self.ready.loaded.config.extenders;
        let runtime = tokio::runtime::Handle::current();
        let (extender_caller, extender_replies) =
            ExtenderCaller::new(extenders, metrics.clone(), runtime)?;
        let elector = self.elect_leader(&clients);
        let kinds = watched_kinds(&engine);
        let permissions = permissions::permissions(engine.policy_rules());
        let reflector_options = self.reflector_options(kinds.clone(), engine.extra_fields());
        let (leading_sender, leading_receiver) = watch::channel(false);
        let (reload_status, status) = watch::channel(ReloadStatus::new(&self.ready.loaded.config));
        let status = reload_source.is_some().then_some(status);
        let server = self.serve(&clients, &metrics, &health, elector.as_ref(), status).await?;
        let mut thread = EngineThread::start(EngineLoop {
            engine,
            recording,
            watch_events,
            finished_calls,
            commands: command_receiver,
            calls: calls.clone(),
            extender_caller,
            extender_replies,
            recorder: recorder.clone(),
            metrics: metrics.clone(),
            logs: self.ready.logs.clone(),
            synced: health.synced.clone(),
            missing: MissingKinds::new(
                metrics.clone(),
                recorder.clone(),
                self.lease(elector.as_ref()),
            ),
            kinds,
            leading: leading_sender,
            shadow_report: ShadowReport::new(&self.ready.options.loadmaster.shadow_report),
        })?;
        if let Some(source) = reload_source {
            let options = reflector_options.clone();
            let (client, sender) = (clients.watch.clone(), watch_event_sender.clone());
            let watch_kinds = move |kinds| {
                let options = ReflectorOptions { kinds, ..options.clone() };
                let (client, sender) = (client.clone(), sender.clone());
                tokio::spawn(async move {
                    let _reflectors = start_reflectors(&client, &options, &sender);
                    std::future::pending::<()>().await;
                });
            };
            let reloader = Reloader {
                source,
                first: self.ready.loaded.config.clone(),
                commands: self.commands.clone(),
                metrics: metrics.clone(),
                status: reload_status,
                recorder: recorder.clone(),
                lease: self.lease(elector.as_ref()),
                watch_kinds: Box::new(watch_kinds),
            };
            tokio::spawn(reloader.run());
        }
        let _watches =
            self.start_watches(&clients, elector.as_ref(), reflector_options, watch_event_sender);
        tokio::spawn(cache_debugger::dump_on_signal(
            debug,
            clients.other.clone(),
            self.commands.clone(),
        ));
        tokio::spawn(permissions::report_missing(clients.other.clone(), permissions));
        let services = self.start_services(&clients, &leading_receiver, &recorder);
        let mut leadership_loss = self.watch_leadership(elector.as_ref(), &recorder, &metrics);
        let outcome = tokio::select! {
            () = stop_signal => Ok(()),
            () = leadership_loss.wait() => Err(RunError::LeaseLost),
            () = thread.ended() => Err(RunError::EngineEnded),
        };
        health.shutdown.fail(SHUTTING_DOWN);
        if outcome.is_ok() {
            // Stop scheduling; wait for the replies to bindings in flight, and for services, before another replica may lead.
            let _ = self.commands.send(Command::SetLeading(false));
            let _ = tokio::join!(timeout(DRAIN_TIMEOUT, calls.drain()), services.stop());
        } else {
            drop(services);
        }
        calls.stop();
        let _ = self.commands.send(Command::Stop);
        thread.join(JOIN_TIMEOUT).await;
        if let (Ok(()), Some(elector)) = (&outcome, elector) {
            elector.release().await;
        }
        if let Some(server) = server {
            server.shutdown().await;
        }
        outcome
    }

    fn start_services(
        &self,
        clients: &ApiClients,
        leading: &watch::Receiver<bool>,
        recorder: &Arc<EventRecorder>,
    ) -> RunningServices {
        let recorder = recorder.clone();
        let connection = &self.ready.loaded.config.client_connection;
        let context = ServiceContext {
            commands: self.commands.clone(),
            leading: leading.clone(),
            client: clients.services.kube_client(connection.qps, connection.burst),
            metrics: self.ready.metrics.clone(),
            event_sink: Arc::new(move |event| recorder.record(event)),
            controller: self.first_profile(),
        };
        RunningServices::start(&self.services, &context)
    }

    async fn connect(&self) -> Result<Cluster, RunError> {
        let path = &self.ready.loaded.config.client_connection.kubeconfig;
        let master = &self.ready.loaded.master;
        let options = ClusterOptions {
            kubeconfig: (!path.is_empty()).then(|| path.into()),
            context: None,
            master: (!master.is_empty()).then(|| master.clone()),
            user_agent: user_agent(),
        };
        let cluster = Cluster::from_options(&options).await?;
        tracing::info!(server = cluster.server(), "Connecting to the API server");
        Ok(cluster)
    }

    fn recorder_options(&self) -> EventRecorderOptions {
        let client = &self.ready.loaded.config.client_connection;
        EventRecorderOptions {
            hostname: clock::hostname(),
            qps: client.qps,
            burst: client.burst,
            ..EventRecorderOptions::default()
        }
    }

    fn reflector_options(&self, kinds: Vec<Kind>, needs: ExtraFieldsByKind) -> ReflectorOptions {
        let client = &self.ready.loaded.config.client_connection;
        let has_extenders = !self.ready.loaded.config.extenders.is_empty();
        let is_protobuf =
            client.content_type.contains("protobuf") && !has_extenders && !needs.needs_json();
        ReflectorOptions {
            kinds,
            use_watch_list: self.ready.loaded.gates.enabled("WatchListClient"),
            keep_raw: has_extenders || !self.ready.options.loadmaster.record.is_empty(),
            needs,
            format: if is_protobuf { ObjectFormat::Protobuf } else { ObjectFormat::Json },
            seed: random_seed(),
        }
    }

    /// Starts the watches, immediately or, with `delayCacheUntilActive`, when this replica becomes the leader: until then a standby has no
    /// cache and is not ready. Dropping the returned set stops them.
    fn start_watches(
        &self,
        clients: &ApiClients,
        elector: Option<&LeaderElector>,
        options: ReflectorOptions,
        sender: mpsc::Sender<ReflectorEvent>,
    ) -> JoinSet<()> {
        let is_delayed = self.ready.loaded.config.delay_cache_until_active;
        let status = elector.filter(|_| is_delayed).map(LeaderElector::status);
        let client = clients.watch.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            if let Some(mut status) = status {
                // Leader election has stopped; the process is about to exit.
                if status.wait_for(|status| status.is_leading).await.is_err() {
                    return;
                }
                tracing::info!("Starting watches");
            }
            let _reflectors = start_reflectors(&client, &options, &sender);
            std::future::pending().await
        });
        tasks
    }

    /// The schedulerName that Events of services name as their reporting controller.
    fn first_profile(&self) -> Str {
        let first = self.ready.loaded.profiles.first();
        first.map(|profile| Str::new(&profile.scheduler_name)).unwrap_or_default()
    }

    async fn serve(
        &mut self,
        clients: &ApiClients,
        metrics: &Arc<Metrics>,
        health: &HealthStates,
        elector: Option<&LeaderElector>,
        reload_status: Option<watch::Receiver<ReloadStatus>>,
    ) -> Result<Option<Server>, RunError> {
        let mut endpoints =
            EndpointsConfig::new(&self.ready.options, &self.ready.loaded, metrics.clone());
        let lease = elector.map(|elector| {
            let status = elector.status();
            let duration = self.ready.loaded.config.leader_election.lease_duration;
            let duration = duration.to_std().unwrap_or_default();
            HealthCheck::new("leaderElection", move || {
                let now = tokio::time::Instant::now();
                if status.borrow().is_lease_expired(now, duration, LEASE_GRACE) {
                    return Err("failed election to renew leadership on lease".to_owned());
                }
                Ok(())
            })
        });
        endpoints.health = Health::scheduler_health_checks(lease, &health.shutdown, &health.synced);
        let api = delegated_auth::DelegatedReviewClient::new(&clients.other);
        let options = &self.ready.options;
        let kubeconfig = &options.authentication.authentication_kubeconfig;
        endpoints.authentication = Some(delegated_auth::review_client(kubeconfig, &api).await?);
        let kubeconfig = &options.authorization.authorization_kubeconfig;
        endpoints.authorization = Some(delegated_auth::review_client(kubeconfig, &api).await?);
        let logs = self.ready.logs.clone();
        endpoints.set_verbosity = Arc::new(move |verbosity| logs.set_verbosity(verbosity));
        endpoints.pod_resources = engine_queries::pod_resources(self.commands.clone());
        if let Some(status) = reload_status {
            let lines = status.clone();
            endpoints.configz = Arc::new(move || status.borrow().configz.clone());
            endpoints.status_lines = Arc::new(move || lines.borrow().lines());
        }
        endpoints.routes = engine_queries::routes(&self.commands);
        let Some(listener) = self.listener.take() else {
            return Ok(serve::start_server(options, endpoints).await?);
        };
        listener.set_nonblocking(true).map_err(RunError::Runtime)?;
        let listener = tokio::net::TcpListener::from_std(listener).map_err(RunError::Runtime)?;
        Ok(Some(serve::start_server_on(listener, options, endpoints).await?))
    }
}
