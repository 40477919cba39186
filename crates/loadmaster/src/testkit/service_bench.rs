//! The test bench for one service: the embedded API server, and a handle without a scheduler.

use std::net::Ipv4Addr;
use std::sync::Arc;

use loadmaster_apiserver::store::StoreLimits;
use loadmaster_apiserver::{ApiServer, Options, http};
use loadmaster_client::{ApiClients, Cluster, ClusterOptions, kube};
use loadmaster_daemon::run::service::{ServiceHandle, ServiceHandleControl};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::{BenchResult, bench_error};

/// An API server on the loopback address, and a service's handle with a client of it. There is no scheduler: what the service publishes can
/// be taken; its other requests to the scheduler have no effect, and `waiting_pods` has no result.
///
/// ```
/// # use loadmaster::k8s_openapi::api::core::v1::Namespace;
/// # use loadmaster::kube::api::{Api, ListParams};
/// # use loadmaster::service::{ServiceHandle, ServiceResult};
/// # use loadmaster::testkit::ServiceTestBench;
/// async fn count(handle: ServiceHandle) -> ServiceResult {
///     let namespaces = Api::<Namespace>::all(handle.client()).list(&ListParams::default()).await?;
///     handle.publish("Count", &namespaces.items.len(), std::time::Duration::from_secs(60)).await?;
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let mut bench = ServiceTestBench::start().await?;
/// count(bench.handle()).await?;
/// assert_eq!(bench.take_published(), [("Count".to_owned(), serde_json::json!(4))]);
/// # Ok(())
/// # }
/// ```
pub struct ServiceTestBench {
    handle: ServiceHandle,
    control: ServiceHandleControl,
    _server: JoinSet<()>,
}

impl ServiceTestBench {
    /// Starts the API server. The replica is not the leader yet.
    ///
    /// # Errors
    ///
    /// If there is no free port.
    pub async fn start() -> BenchResult<ServiceTestBench> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.map_err(|error| bench_error(&error))?;
        let address = listener.local_addr().map_err(|error| bench_error(&error))?;
        let server = ApiServer::new(Options {
            clock: Arc::new(jiff::Timestamp::now),
            seed: address.port().into(),
            limits: StoreLimits::default(),
            also_serve: Vec::new(),
        });
        let server = server.map_err(|error| bench_error(&error))?;
        let mut tasks = JoinSet::new();
        tasks.spawn(http::serve(listener, server, None));
        let options = ClusterOptions {
            kubeconfig: None,
            context: None,
            master: Some(format!("http://{address}")),
            user_agent: "service-test".to_owned(),
        };
        let cluster = Cluster::from_options(&options).await.map_err(|error| bench_error(&error))?;
        let client = ApiClients::new(&cluster).services.kube_client(-1.0, 1);
        let made = ServiceHandle::without_scheduler(client);
        let (handle, control) = made.map_err(|error| bench_error(&error))?;
        Ok(ServiceTestBench { handle, control, _server: tasks })
    }

    /// The handle for the service.
    pub fn handle(&self) -> ServiceHandle {
        self.handle.clone()
    }

    /// A client of the API server, as an administrator.
    pub fn client(&self) -> kube::Client {
        self.handle.client()
    }

    /// Makes the replica the leader, or no longer the leader.
    pub fn set_leading(&self, is_leading: bool) {
        self.control.set_leading(is_leading);
    }

    /// Lets [`ServiceHandle::stopped`] resolve.
    pub fn stop(&self) {
        self.control.stop();
    }

    /// Takes the values that were published since the last call, with the names of the plugins.
    pub fn take_published(&mut self) -> Vec<(String, Value)> {
        self.control.take_published()
    }

    /// `/metrics`.
    pub fn metrics_text(&self) -> String {
        self.control.metrics_text()
    }
}
