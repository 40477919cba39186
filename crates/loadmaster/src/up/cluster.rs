//! The components of a cluster in one process: API server, controllers, kubelets, scheduler.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use loadmaster_api::document::Document;
use loadmaster_client::{Cluster as ClusterClient, ClusterOptions, ConnectError};
use loadmaster_controllers::csi::CsiDriver;
use loadmaster_controllers::kubelet::stage::Stage;
use loadmaster_controllers::kubelet::{self, ManagedNodes};
use loadmaster_controllers::{driver, manager};
use loadmaster_daemon::flags::{COMMAND_NAME, Program};
use loadmaster_daemon::metrics::Metrics;
use loadmaster_daemon::run::service::Service;
use loadmaster_daemon::run::{EmbeddedScheduler, QueryOutcome};
use loadmaster_daemon::{EarlyExit, StartupConfig, load_startup_config_or};
use loadmaster_engine::Engine;
use loadmaster_framework::Registry;
use loadmaster_stdx::ErrorChain;
use loadmaster_stdx::catch_panic::catch_panic;
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle};

use super::api_client::InProcessApiClient;
use super::cluster_view::ClusterView;
use super::pod_counts::{PodCounts, PodsOfOtherSchedulers, SharedPodCounts};
use super::recent_decisions::RecentDecisions;
use crate::cluster_client::failed;
use crate::embedded::EmbeddedApiServer;
use crate::exit::{CommandResult, Failure};
use crate::explain::explanation_lines;
use crate::input::ConfigArgs;
use crate::text::{Line, Style};

/// Number of nodes shown as the fullest.
const N_FULLEST: usize = 5;

/// A running cluster.
pub(super) struct LocalCluster {
    pub api: InProcessApiClient,
    pub embedded: EmbeddedApiServer,
    pub recent_decisions: RecentDecisions,
    scheduler: EmbeddedScheduler,
    metrics: Arc<Metrics>,
    /// The address of the scheduler's secure port.
    secure_address: SocketAddr,
    counts: SharedPodCounts,
    stop_controllers: oneshot::Sender<()>,
    controllers: JoinHandle<()>,
    /// Ctrl-C or SIGTERM was received.
    stop_requested: Arc<AtomicBool>,
    log: PathBuf,
}

/// A scheduler with a valid configuration that is not started yet.
pub(super) struct PreparedScheduler {
    plan: StartupConfig,
}

/// Options of the controllers and the simulated kubelets.
pub(super) struct Simulation {
    pub stages: Vec<Stage>,
    pub csi_driver: CsiDriver,
    pub seed: u64,
}

/// Reads and validates the scheduler's configuration; `default_config` is used without `--config`.
pub(super) fn prepare_scheduler(
    config: &ConfigArgs,
    default_config: Option<&Document>,
    check_every: u64,
    registry: &Registry,
) -> CommandResult<PreparedScheduler> {
    let mut flags: Vec<OsString> = Vec::new();
    let mut flag = |text: String| flags.push(text.into());
    flag("--leader-elect=false".to_owned());
    flag("--bind-address=127.0.0.1".to_owned());
    flag(format!("--check-every={check_every}"));
    if let Some(file) = &config.config {
        flag(format!("--config={file}"));
    }
    for gates in config.gates.flag_values() {
        flag(format!("--feature-gates={gates}"));
    }
    let program = Program::kube_scheduler();
    let mut plan =
        load_startup_config_or(&program, flags, registry, default_config).map_err(stopped)?;
    let connection = &mut plan.loaded.config.client_connection;
    // No client-side rate limit for the embedded server.
    (connection.qps, connection.burst) = (-1.0, 0);
    Ok(PreparedScheduler { plan })
}

/// A listener on this port, or on a free one if it is in use.
fn secure_listener(port: u16) -> io::Result<(TcpListener, SocketAddr)> {
    let listen = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let listener = listen(port).or_else(|_| listen(0))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

fn stopped(stop: EarlyExit) -> Failure {
    match stop {
        EarlyExit::Done(text) => Failure::invalid_input(text.trim_end()),
        EarlyExit::Failed(text) => Failure::invalid_inputs(text.lines()),
    }
}

impl LocalCluster {
    /// Starts the scheduler, controllers and kubelets of a cluster whose API server is running.
    pub fn start(
        mut embedded: EmbeddedApiServer,
        api: InProcessApiClient,
        prepared: PreparedScheduler,
        services: &[Service],
        simulation: Simulation,
    ) -> CommandResult<LocalCluster> {
        let Simulation { stages, csi_driver, seed } = simulation;
        let PreparedScheduler { mut plan } = prepared;
        let (log, file) = embedded.create_temporary_file("log")?;
        let kubeconfig = embedded.private_kubeconfig()?;
        plan.loaded.config.client_connection.kubeconfig = kubeconfig.to_string_lossy().into_owned();
        // Clients that trust the API server trust the scheduler, too.
        let (certificate, key) = embedded.serving_certificate(COMMAND_NAME)?;
        plan.options.serving.tls_cert_file = certificate.to_string_lossy().into_owned();
        plan.options.serving.tls_private_key_file = key.to_string_lossy().into_owned();
        let port = u16::try_from(plan.options.serving.secure_port).unwrap_or(0);
        let (listener, secure_address) = secure_listener(port)
            .map_err(|error| failed("opening the secure port of the scheduler", &error))?;
        let profiles = plan.loaded.config.profiles.iter().map(|it| it.scheduler_name.to_string());
        let profiles = profiles.collect();
        let metrics = plan.metrics.clone();
        let ready = plan.start_logging_to(Box::new(file)).map_err(stopped)?;
        let scheduler = EmbeddedScheduler::start(ready, services, &[], listener)
            .map_err(|error| Failure::invalid_input(ErrorChain(&error)))?;
        let options = ClusterOptions {
            kubeconfig: Some(kubeconfig),
            context: None,
            master: None,
            user_agent: "loadmaster-up".to_owned(),
        };
        let counts = SharedPodCounts::new(profiles);
        let mut manager_options = manager::ControllerOptions::default();
        manager_options.csi_driver = Some(csi_driver.clone());
        let mut all = manager::all_controllers(manager_options);
        all.extend(kubelet::kubelet_controllers(kubelet::KubeletOptions {
            // All nodes of this cluster are simulated.
            managed: ManagedNodes { selector: Some(LabelSelector::default()) },
            stages,
            csi_driver: Some(csi_driver),
            seed,
            ..kubelet::KubeletOptions::default()
        }));
        all.extend(manager::scheduler_plugins_controllers());
        all.push(counts.counting_controller());
        let (stop_controllers, stopped) = oneshot::channel::<()>();
        let started = embedded.runtime().block_on(async {
            let found = ClusterClient::from_options(&options).await?;
            let recent_decisions = RecentDecisions::start(&found, seed);
            let controllers = tokio::spawn(async move {
                let options = driver::DriverOptions { seed, ..driver::DriverOptions::default() };
                driver::run_controllers(&found, all, options, async move { drop(stopped.await) })
                    .await;
            });
            Ok((recent_decisions, controllers))
        });
        let (recent_decisions, controllers) =
            started.map_err(|error: ConnectError| Failure::invalid_input(ErrorChain(&error)))?;
        let stop_requested = Arc::new(AtomicBool::new(false));
        let flag = stop_requested.clone();
        let stop_signal = embedded.stop_signal();
        embedded.runtime().spawn(async move {
            stop_signal.await;
            flag.store(true, Ordering::Relaxed);
        });
        Ok(LocalCluster {
            api,
            embedded,
            recent_decisions,
            scheduler,
            metrics,
            secure_address,
            counts,
            stop_controllers,
            controllers,
            stop_requested,
            log,
        })
    }

    /// The state of the scheduler, if it is not busy. It counts as ended when the controllers have ended.
    pub fn query_view(&mut self) -> QueryOutcome<ClusterView> {
        if self.controllers.is_finished() {
            return QueryOutcome::Ended;
        }
        self.scheduler.query(|engine| ClusterView::from_engine(engine, N_FULLEST))
    }

    /// Explains a pending pod, `namespace/name`; `None` if the scheduler is busy.
    pub fn explain(&mut self, pod: &str) -> Option<Vec<Line>> {
        let (namespace, name) = pod.split_once('/').unwrap_or(("", pod));
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        // A plugin may panic.
        let explain = move |engine: &mut Engine| catch_panic(|| engine.explain(&namespace, &name));
        let text = match self.scheduler.query(explain) {
            QueryOutcome::Completed(Ok(Some(explanation))) => {
                return Some(explanation_lines(&explanation));
            }
            QueryOutcome::Completed(Ok(None)) => {
                format!("pod {pod} is not pending in this scheduler")
            }
            QueryOutcome::Completed(Err(panic)) => format!("a plugin panicked: {panic}"),
            QueryOutcome::Busy => return None,
            QueryOutcome::Ended => "the scheduler has ended".to_owned(),
        };
        Some(vec![Line::new(Style::Plain, text)])
    }

    /// The current pod counts.
    pub fn counts(&self) -> PodCounts {
        self.counts.current_counts()
    }

    /// Pending pods of schedulers that do not run in this cluster.
    pub fn pods_of_other_schedulers(&self) -> PodsOfOtherSchedulers {
        self.counts.pods_of_other_schedulers()
    }

    /// Whether Ctrl-C or SIGTERM was received.
    pub fn is_stop_requested(&self) -> bool {
        self.stop_requested.load(Ordering::Relaxed)
    }

    /// The URL of the scheduler's secure port.
    pub fn scheduler_url(&self) -> String {
        format!("https://{}", self.secure_address)
    }

    /// Path of the log of scheduler and controllers.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Number of decisions so far, and the seconds they took.
    pub fn decision_count_and_seconds(&self) -> (u64, f64) {
        self.metrics.scheduler.decision_count_and_seconds()
    }

    /// Stops all components.
    ///
    /// # Errors
    ///
    /// If the scheduler had failed before, or the data folder could not be written completely.
    pub fn stop(self) -> CommandResult<()> {
        let ended = self.scheduler.stop();
        drop(self.recent_decisions);
        let _ = self.stop_controllers.send(());
        let controllers = self.embedded.runtime().block_on(self.controllers);
        let closed = self.embedded.close();
        if let Err(Ok(panic)) = controllers.map_err(JoinError::try_into_panic) {
            std::panic::resume_unwind(panic);
        }
        ended
            .map_err(|error| {
                Failure::invalid_input(format_args!("the scheduler: {}", ErrorChain(&error)))
            })
            .and(closed)
    }
}
