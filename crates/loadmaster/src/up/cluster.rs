//! All parts of a cluster in one process: API server, controllers, kubelets, scheduler.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use loadmaster_client::{Cluster as Found, ClusterOptions, ConnectError};
use loadmaster_controllers::kubelet::stage::Stage;
use loadmaster_controllers::kubelet::{self, Managed};
use loadmaster_controllers::{driver, manager};
use loadmaster_daemon::metrics::Metrics;
use loadmaster_daemon::run::service::Service;
use loadmaster_daemon::run::{Asked, Scheduler};
use loadmaster_daemon::{Plan, Stop, prepare};
use loadmaster_framework::Registry;
use loadmaster_stdx::Chain;
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle};

use super::api::Api;
use super::picture::Picture;
use super::recent::Recents;
use super::tally::{SharedTally, Tally, Unscheduled};
use crate::embedded::Embedded;
use crate::exit::{Answer, Failure};
use crate::input::ConfigArgs;
use crate::terminal;

/// Nodes shown as the fullest.
const N_FULLEST: usize = 5;

/// A cluster that runs.
pub(super) struct Cluster {
    pub api: Api,
    pub embedded: Embedded,
    pub recents: Recents,
    scheduler: Scheduler,
    metrics: Arc<Metrics>,
    tally: SharedTally,
    stop_controllers: oneshot::Sender<()>,
    controllers: JoinHandle<()>,
    /// Ctrl-C or SIGTERM came.
    told_to_stop: Arc<AtomicBool>,
    log: PathBuf,
}

/// A scheduler that is not connected yet; what is wrong with its configuration has been said.
pub(super) struct Prepared {
    plan: Plan,
}

/// Reads the scheduler's configuration.
pub(super) fn prepare_scheduler(
    config: &ConfigArgs,
    check_every: u64,
    registry: &Registry,
) -> Answer<Prepared> {
    let mut args = vec![OsString::from("kube-scheduler")];
    let mut flag = |text: String| args.push(text.into());
    flag("--leader-elect=false".to_owned());
    flag("--secure-port=0".to_owned());
    flag(format!("--check-every={check_every}"));
    if let Some(file) = &config.config {
        flag(format!("--config={file}"));
    }
    for gates in config.gates.given() {
        flag(format!("--feature-gates={gates}"));
    }
    let mut plan = prepare(args, registry).map_err(stopped)?;
    let connection = &mut plan.loaded.config.client_connection;
    // The server is ours: nobody else needs to be spared.
    (connection.qps, connection.burst) = (-1.0, 0);
    Ok(Prepared { plan })
}

fn stopped(stop: Stop) -> Failure {
    match stop {
        Stop::Done(text) => Failure::input(text.trim_end()),
        Stop::Failed(text) => Failure::inputs(text.lines()),
    }
}

impl Cluster {
    /// Starts the scheduler of a cluster whose API server runs.
    pub fn start(
        mut embedded: Embedded,
        api: Api,
        prepared: Prepared,
        registry: &Registry,
        services: &[Service],
        stages: Vec<Stage>,
        seed: u64,
    ) -> Answer<Cluster> {
        let Prepared { mut plan } = prepared;
        let (log, file) = embedded.temporary("log")?;
        let kubeconfig = embedded.private_kubeconfig()?;
        plan.loaded.config.client_connection.kubeconfig = kubeconfig.to_string_lossy().into_owned();
        let profiles = plan.loaded.config.profiles.iter().map(|it| it.scheduler_name.to_string());
        let profiles = profiles.collect();
        let metrics = plan.metrics.clone();
        let ready = plan.begin_logging_into(Box::new(file)).map_err(stopped)?;
        let scheduler = Scheduler::start(ready, registry, services, &[])
            .map_err(|error| Failure::input(Chain(&error)))?;
        let options = ClusterOptions {
            kubeconfig: Some(kubeconfig),
            context: None,
            master: None,
            user_agent: "loadmaster-up".to_owned(),
        };
        let tally = SharedTally::new(profiles);
        let mut all = manager::all(manager::Options::default());
        all.extend(kubelet::controllers(kubelet::Options {
            // Every node of this cluster is pretended.
            managed: Managed { selector: Some(LabelSelector::default()) },
            stages,
            seed,
            ..kubelet::Options::default()
        }));
        all.push(tally.keeper());
        let (stop_controllers, stopped) = oneshot::channel::<()>();
        let started = embedded.runtime().block_on(async {
            let found = Found::find(&options).await?;
            let recents = Recents::follow(&found, seed);
            let controllers = tokio::spawn(async move {
                let options = driver::Options { seed, ..driver::Options::default() };
                driver::run(&found, all, options, async move { drop(stopped.await) }).await;
            });
            Ok((recents, controllers))
        });
        let (recents, controllers) =
            started.map_err(|error: ConnectError| Failure::input(Chain(&error)))?;
        let told_to_stop = Arc::new(AtomicBool::new(false));
        let told = told_to_stop.clone();
        embedded.runtime().spawn(async move {
            terminal::end_asked().await;
            told.store(true, Ordering::Relaxed);
        });
        Ok(Cluster {
            api,
            embedded,
            recents,
            scheduler,
            metrics,
            tally,
            stop_controllers,
            controllers,
            told_to_stop,
            log,
        })
    }

    /// What the scheduler knows, if it has the time to say. It counts as ended when the controllers have.
    pub fn picture(&mut self) -> Asked<Picture> {
        if self.controllers.is_finished() {
            return Asked::Ended;
        }
        self.scheduler.ask(|engine| Picture::of(engine, N_FULLEST))
    }

    /// How far the pods are.
    pub fn tally(&self) -> Tally {
        self.tally.get()
    }

    /// Pods that wait for schedulers that do not run here.
    pub fn unscheduled(&self) -> Unscheduled {
        self.tally.unscheduled()
    }

    /// Whether somebody wants it to end.
    pub fn is_told_to_stop(&self) -> bool {
        self.told_to_stop.load(Ordering::Relaxed)
    }

    /// Where the scheduler's and the controllers' log is.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Decisions so far, and the seconds they took.
    pub fn decisions(&self) -> (u64, f64) {
        self.metrics.scheduler.decisions()
    }

    /// Ends everything.
    ///
    /// # Errors
    ///
    /// What ended the scheduler before; that not all is in the data folder.
    pub fn stop(self) -> Answer<()> {
        let ended = self.scheduler.stop();
        drop(self.recents);
        let _ = self.stop_controllers.send(());
        let controllers = self.embedded.runtime().block_on(self.controllers);
        let closed = self.embedded.close();
        if let Err(Ok(panic)) = controllers.map_err(JoinError::try_into_panic) {
            std::panic::resume_unwind(panic);
        }
        ended
            .map_err(|error| Failure::input(format_args!("the scheduler: {}", Chain(&error))))
            .and(closed)
    }
}
