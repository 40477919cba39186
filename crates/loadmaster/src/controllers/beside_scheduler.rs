//! `loadmaster run --with-controllers`: the controllers beside the scheduler, in one process.

use loadmaster_client::flowcontrol::{TokenBucket, random_seed};
use loadmaster_client::{Cluster, ClusterOptions};
use loadmaster_controllers::runner::{ControllerStats, RunnerStats};
use loadmaster_controllers::{driver, manager};
use loadmaster_daemon::CompletedConfig;
use loadmaster_daemon::run::service::{Service, ServiceHandle, ServiceResult};
use loadmaster_framework::plugin_metrics::{MetricError, PluginCounter};
use tokio::sync::watch;

use super::endpoints;

/// What the controllers take over from the scheduler's configuration.
#[derive(Clone)]
struct Connection {
    cluster: ClusterOptions,
    qps: f32,
    burst: i32,
}

/// A service that runs the controllers while the scheduler leads, with its kubeconfig. Their requests are limited by `clientConnection`, but do
/// not count against the scheduler's. `/metrics` shows their counts.
pub(crate) fn service(ready: &CompletedConfig) -> Service {
    let config = &ready.loaded.config.client_connection;
    let master = &ready.loaded.master;
    let cluster = ClusterOptions {
        kubeconfig: (!config.kubeconfig.is_empty()).then(|| (&config.kubeconfig).into()),
        context: None,
        master: (!master.is_empty()).then(|| master.clone()),
        user_agent: super::USER_AGENT.to_owned(),
    };
    let connection = Connection { cluster, qps: config.qps, burst: config.burst };
    Service::new("controllers", move |handle| run(handle, connection.clone()))
}

async fn run(mut handle: ServiceHandle, connection: Connection) -> ServiceResult {
    let mut stopped = std::pin::pin!(handle.stopped());
    let metrics = ControllerMetrics::register(&handle)?;
    let cluster = Cluster::from_options(&connection.cluster).await?;
    loop {
        tokio::select! {
            () = &mut stopped => return Ok(()),
            leading = handle.wait_until_leading() => leading?,
        }
        let (stats, stats_receiver) = watch::channel(RunnerStats::default());
        let options = driver::DriverOptions {
            rate_limit: TokenBucket::new(connection.qps, connection.burst),
            seed: random_seed(),
            stats: Some(stats),
            ..driver::DriverOptions::default()
        };
        let mut leading = handle.leadership();
        let mut is_stopped = false;
        let ended = async {
            tokio::select! {
                () = &mut stopped => is_stopped = true,
                // Closed: the scheduler has stopped.
                _ = leading.wait_for(|is_leading| !is_leading) => {}
            }
        };
        let controllers = manager::scheduler_plugins_controllers();
        tokio::join!(
            driver::run_controllers(&cluster, controllers, options, ended),
            metrics.follow(stats_receiver)
        );
        if is_stopped {
            return Ok(());
        }
    }
}

/// The counters of [`endpoints::counts`].
struct ControllerMetrics(Vec<PluginCounter<1>>);

impl ControllerMetrics {
    fn register(handle: &ServiceHandle) -> Result<ControllerMetrics, MetricError> {
        let counts = endpoints::counts(&ControllerStats::default());
        let controllers = manager::scheduler_plugins_controllers();
        let counters = counts.iter().map(|count| {
            let counter = handle.counter(count.name, count.help, ["controller"])?;
            // Shown before anything is counted.
            for controller in &controllers {
                counter.add([&endpoints::label(controller.name())], 0);
            }
            Ok(counter)
        });
        Ok(ControllerMetrics(counters.collect::<Result<_, _>>()?))
    }

    /// Counts what one run of the controllers does, until it ends.
    async fn follow(&self, mut stats: watch::Receiver<RunnerStats>) {
        let mut last = RunnerStats::default();
        while stats.changed().await.is_ok() {
            let now = stats.borrow_and_update().clone();
            for (at, of_controller) in now.controllers.iter().enumerate() {
                let before = last.controllers.get(at).copied().unwrap_or_default();
                let label = endpoints::label(of_controller.name);
                let counts =
                    endpoints::counts(&before).into_iter().zip(endpoints::counts(of_controller));
                for (counter, (before, now)) in self.0.iter().zip(counts) {
                    counter.add([&label], now.value.saturating_sub(before.value));
                }
            }
            last = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_client::kube;

    use super::*;

    #[tokio::test]
    async fn counts_are_added_up_over_several_runs() {
        let unreachable = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = kube::Client::try_from(unreachable).unwrap();
        let (handle, control) = ServiceHandle::without_scheduler(client).unwrap();
        let metrics = ControllerMetrics::register(&handle).unwrap();
        for n_reconciled in [3, 2] {
            let (sender, receiver) = watch::channel(RunnerStats::default());
            let of = |name, n_reconciled| ControllerStats {
                name,
                n_reconciled,
                n_panics: 1,
                n_failed_requests: 0,
            };
            let controllers = vec![of("PodGroupController", n_reconciled), of("Other", 1)];
            sender.send_replace(RunnerStats { controllers, ..RunnerStats::default() });
            tokio::join!(metrics.follow(receiver), async { drop(sender) });
        }
        let text = control.metrics_text();
        for line in [
            "controller_runtime_reconcile_total{controller=\"podgroup\"} 5",
            "controller_runtime_reconcile_total{controller=\"elasticquota\"} 0",
            "controller_runtime_reconcile_total{controller=\"other\"} 2",
            "controller_runtime_reconcile_errors_total{controller=\"podgroup\"} 2",
            "controller_runtime_reconcile_panics_total{controller=\"podgroup\"} 2",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
    }
}
