//! A control plane for pods with claims: kube-apiserver, kube-controller-manager, simulated kubelets and a simulated CSI driver.

use anyhow::{Context as _, Result};
use loadmaster_client::{Cluster, ClusterOptions};
use loadmaster_controllers::csi::CsiDriver;
use loadmaster_controllers::kubelet::{self, KubeletOptions, ManagedNodes};
use loadmaster_controllers::manager::{self, ControllerOptions};
use loadmaster_controllers::{Controller, driver};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::e2e::api_client::ApiClient;
use crate::e2e::audit::{self, AuditEntry};
use crate::e2e::control_plane::{ControlPlane, ControlPlaneOptions};
use crate::e2e::controller_manager;
use crate::e2e::credentials::UserIdentity;
use crate::e2e::load_objects;
use crate::e2e::process::Process;
use crate::e2e::scheduler::{Scheduler, SchedulerArgs, SchedulerKind, SchedulerSetup};

/// The namespace of the pods and claims.
pub const NAMESPACE: &str = "e2e";
/// The collections of pods, claims and volumes.
pub const PODS: &str = "/api/v1/namespaces/e2e/pods";
pub const CLAIMS: &str = "/api/v1/namespaces/e2e/persistentvolumeclaims";
pub const VOLUMES: &str = "/api/v1/persistentvolumes";
/// The simulated CSI driver, and the capacity of each zone.
pub const DRIVER: &str = "disk.csi.example.com";
const ZONE_BYTES: i64 = 1 << 40;
/// The user of both schedulers.
const SCHEDULER: &str = "system:kube-scheduler";
/// The controllers that create, bind, protect and delete claims.
const CONTROLLERS: &str = "--controllers=ephemeral-volume-controller,garbage-collector-controller,persistentvolume-binder-controller,\
     persistentvolume-protection-controller,persistentvolumeclaim-protection-controller,statefulset-controller";
/// Requests per second of kube-controller-manager, so that its default does not make steps slow.
const MANAGER_QPS: u32 = 500;
/// Simulated controllers that kube-controller-manager does not have, or not for simulated drivers.
const SIMULATED: [&str; 2] = ["csi-provisioner", "attachdetach-controller"];

/// A running control plane with controllers and nodes.
pub struct VolumeCluster {
    pub api: ApiClient,
    manager: Process,
    simulated: SimulatedControllers,
    plane: ControlPlane,
}

impl VolumeCluster {
    /// Starts it with `n_nodes` nodes in three zones, without a scheduler.
    pub async fn start(n_nodes: u32) -> Result<VolumeCluster> {
        let audit_policy = Some(audit::policy_for_writes_with_volumes(SCHEDULER));
        let options = ControlPlaneOptions { audit_policy, ..ControlPlaneOptions::default() };
        let plane = ControlPlane::start(&options).await?;
        let kubeconfig = plane.admin_kubeconfig();
        let api = ApiClient::new(&kubeconfig).await?;
        load_objects::namespace(&api, NAMESPACE).await?;
        load_objects::nodes(&api, n_nodes).await?;
        let manager = start_manager(&plane, MANAGER_QPS)?;
        let simulated = SimulatedControllers::start(&plane).await?;
        Ok(VolumeCluster { api, manager, simulated, plane })
    }

    /// Starts a scheduler; `name` is unique in the cluster. It has no DynamicResources, which Loadmaster does not have: kube-scheduler's adds
    /// text to the message of every rejected pod.
    pub fn start_scheduler(
        &self,
        chosen: &SchedulerArgs,
        kind: SchedulerKind,
        name: &str,
    ) -> Result<Scheduler> {
        let kubeconfig = self.plane.kubeconfig(&UserIdentity::new(SCHEDULER, &[]));
        let disabled = json!({"multiPoint": {"disabled": [{"name": "DynamicResources"}]}});
        let profile = json!({"schedulerName": "default-scheduler", "plugins": disabled});
        let setup = SchedulerSetup {
            extra_config: [("profiles".to_owned(), json!([profile]))].into_iter().collect(),
            ..SchedulerSetup::new(name, self.plane.folder(), &kubeconfig)
        };
        chosen.start(kind, &setup)
    }

    /// Starts kube-controller-manager again, with a limit of requests per second.
    pub fn restart_manager_with_qps(&mut self, qps: u32) -> Result<()> {
        self.manager.kill()?;
        self.manager = start_manager(&self.plane, qps)?;
        Ok(())
    }

    /// The requests of the schedulers that write pods, claims and volumes.
    pub fn scheduler_writes(&self) -> Result<Vec<AuditEntry>> {
        audit::read(self.plane.audit_log())
    }

    /// Stops the controllers and returns the control plane, whose logs are kept unless it is finished; an error if a controller has stopped
    /// before.
    pub async fn stop_controllers(mut self) -> Result<ControlPlane> {
        self.manager.check_running()?;
        self.simulated.stop().await?;
        Ok(self.plane)
    }
}

fn start_manager(plane: &ControlPlane, qps: u32) -> Result<Process> {
    let (qps, burst) = (format!("--kube-api-qps={qps}"), format!("--kube-api-burst={qps}"));
    let flags = [CONTROLLERS, &qps, &burst];
    controller_manager::start(&plane.admin_kubeconfig(), plane.folder(), &flags)
}

/// Kubelets, and the provisioner and attacher of the CSI driver.
struct SimulatedControllers {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl SimulatedControllers {
    async fn start(plane: &ControlPlane) -> Result<SimulatedControllers> {
        let options = ClusterOptions {
            kubeconfig: Some(plane.admin_kubeconfig()),
            context: None,
            master: None,
            user_agent: "loadmaster-e2e".to_owned(),
        };
        let cluster = Cluster::from_options(&options).await.context("finding the cluster")?;
        let controllers = controllers()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let stop = async { stopped.await.unwrap_or_default() };
            driver::run_controllers(&cluster, controllers, driver::DriverOptions::default(), stop)
                .await;
        });
        Ok(SimulatedControllers { stop, task })
    }

    async fn stop(self) -> Result<()> {
        drop(self.stop);
        self.task.await.context("stopping the simulated controllers")
    }
}

fn controllers() -> Result<Vec<Box<dyn Controller>>> {
    let csi_driver = Some(CsiDriver {
        name: DRIVER.to_owned(),
        segment_bytes: ZONE_BYTES,
        ..CsiDriver::default()
    });
    let selector = kubelet::parse_label_selector("kubernetes.io/os=linux");
    let selector = Some(selector.map_err(anyhow::Error::msg)?);
    let mut all = kubelet::kubelet_controllers(KubeletOptions {
        managed: ManagedNodes { selector },
        csi_driver: csi_driver.clone(),
        ..KubeletOptions::default()
    });
    let mut options = ControllerOptions::default();
    options.csi_driver = csi_driver;
    let csi = manager::all_controllers(options);
    all.extend(csi.into_iter().filter(|it| SIMULATED.contains(&it.name())));
    Ok(all)
}
