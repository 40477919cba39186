//! A pod of a node: volumes, namespaces and containers, in the order in which the kubelet makes them, and its status.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::command::{self, Volume};
use super::container::{Container, Kind, second};
use super::network::Target;
use super::sandbox::Sandbox;
use super::{Images, Node};
use crate::e2e::api_client::ApiClient;

const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";

pub struct Pod {
    pub object: Value,
    folder: PathBuf,
    started: Timestamp,
    sandbox: Option<Sandbox>,
    volumes: BTreeMap<String, Volume>,
    containers: Vec<Container>,
    /// What keeps it from being started.
    obstacle: String,
    /// The status as it was last written.
    written: Value,
}

/// What a pod needs of its node when it is looked at.
pub struct Surroundings<'a> {
    pub api: &'a ApiClient,
    pub api_server: &'a Target,
    pub images: &'a Images,
    pub node: &'a Node,
}

impl Pod {
    pub fn new(object: Value, folder: PathBuf) -> Pod {
        let spec = &object["spec"];
        let list = |field: &str| spec[field].as_array().cloned().unwrap_or_default();
        let is_sidecar = |spec: &Value| spec["restartPolicy"] == "Always";
        let mut containers = Vec::new();
        for init in list("initContainers") {
            let kind = if is_sidecar(&init) { Kind::Sidecar } else { Kind::Init };
            containers.push(Container::new(&init, kind, &folder));
        }
        for main in list("containers") {
            containers.push(Container::new(&main, Kind::Main, &folder));
        }
        Pod {
            object,
            folder,
            started: Timestamp::now(),
            sandbox: None,
            volumes: BTreeMap::new(),
            containers,
            obstacle: String::new(),
            written: Value::Null,
        }
    }

    pub fn uid(&self) -> &str {
        self.object["metadata"]["uid"].as_str().unwrap_or_default()
    }

    pub fn is_ready(&self) -> bool {
        !self.is_terminating() && self.containers.iter().all(Container::is_ready)
    }

    /// A port of it, once it has an address.
    pub fn port(&self, port: u16) -> Option<Target> {
        self.sandbox.as_ref().map(|sandbox| sandbox.port(port))
    }

    fn is_terminating(&self) -> bool {
        !self.object["metadata"]["deletionTimestamp"].is_null()
    }

    fn grace(&self) -> Duration {
        let seconds = self.object["metadata"]["deletionGracePeriodSeconds"].as_u64();
        let seconds = seconds.or(self.object["spec"]["terminationGracePeriodSeconds"].as_u64());
        Duration::from_secs(seconds.unwrap_or(30))
    }

    fn policy(&self) -> String {
        self.object["spec"]["restartPolicy"].as_str().unwrap_or("Always").to_owned()
    }

    /// Takes it one step further; returns whether it is gone.
    pub async fn sync(&mut self, around: &Surroundings<'_>) -> Result<bool> {
        if let Some(sandbox) = &mut self.sandbox {
            sandbox.check_running()?;
            let grace = self.object["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap_or(30);
            for container in &mut self.containers {
                container.poll(sandbox, Duration::from_secs(grace))?;
            }
        }
        if self.is_terminating() {
            return self.end(around).await;
        }
        if self.sandbox.is_none() {
            match self.prepare(around).await {
                Ok(sandbox) => self.sandbox = Some(sandbox),
                Err(error) => self.obstacle = format!("{error:#}"),
            }
        }
        self.start_containers(around).await;
        self.write_status(around).await?;
        Ok(false)
    }

    async fn prepare(&mut self, around: &Surroundings<'_>) -> Result<Sandbox> {
        let volumes = self.folder.join("volumes");
        let root = &around.node.root;
        self.volumes = super::volumes::prepare(around.api, &self.object, &volumes, root).await?;
        self.obstacle.clear();
        let folder = self.folder.join("sandbox");
        if self.object["spec"]["hostNetwork"] == true {
            let node = &around.node.sandbox;
            return Sandbox::in_network_of(node, &around.node.name, &folder).await;
        }
        let name = self.object["metadata"]["name"].as_str().context("a pod without a name")?;
        let address = around.node.next_address()?;
        Sandbox::start(name, address, &folder, around.api_server).await
    }

    /// Starts what is due: init containers one after the other, then the others.
    async fn start_containers(&mut self, around: &Surroundings<'_>) {
        let Some(sandbox) = &self.sandbox else { return };
        let policy = self.policy();
        let is_host = self.object["spec"]["hostNetwork"] == true;
        let host_name = match is_host {
            true => around.node.name.clone(),
            false => self.object["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
        };
        let host_address = around.node.sandbox.address().to_string();
        for container in &mut self.containers {
            if container.is_due(&policy) {
                let spec = container.spec().clone();
                let Some(image) = around.images.get(spec["image"].as_str().unwrap_or_default())
                else {
                    let error = anyhow::anyhow!("there is no image {}", spec["image"]);
                    container.fail("ErrImageNeverPull", &error);
                    continue;
                };
                let context = command::Context {
                    pod: &self.object,
                    container: &spec,
                    image,
                    volumes: &self.volumes,
                    host_name: &host_name,
                    pod_address: &sandbox.address().to_string(),
                    host_address: &host_address,
                    folder: &container.next_folder(),
                    sandbox: sandbox.pid(),
                };
                if let Err(error) = container.start(&context, sandbox).await {
                    container.fail("CreateContainerError", &error);
                }
            }
            if container.kind != Kind::Main && !container.is_started() {
                return;
            }
        }
    }

    /// Stops the containers, the main ones first; when all have ended, the pod is removed.
    async fn end(&mut self, around: &Surroundings<'_>) -> Result<bool> {
        let grace = self.grace();
        let is_main_running =
            self.containers.iter().any(|it| it.kind == Kind::Main && it.is_running());
        for container in self.containers.iter_mut().rev() {
            if container.kind == Kind::Main || !is_main_running {
                container.stop(grace)?;
            }
        }
        self.write_status(around).await?;
        if self.containers.iter().any(Container::is_running) {
            return Ok(false);
        }
        self.sandbox = None;
        let body = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid()}});
        let body = body.to_string().into_bytes();
        let answer = around.api.request(Method::DELETE, &self.path(), body).await?;
        ensure!(matches!(answer.status, 200 | 404 | 409), "removing a pod: {}", answer.status);
        Ok(true)
    }

    fn path(&self) -> String {
        let text = |field: &str| self.object["metadata"][field].as_str().unwrap_or_default();
        format!("/api/v1/namespaces/{}/pods/{}", text("namespace"), text("name"))
    }

    async fn write_status(&mut self, around: &Surroundings<'_>) -> Result<()> {
        let status = self.status(around);
        if status == self.written {
            return Ok(());
        }
        // The times of conditions change only with the conditions.
        let mut patch = status.clone();
        for condition in patch["conditions"].as_array_mut().into_iter().flatten() {
            condition["lastTransitionTime"] = json!(second(Timestamp::now()));
        }
        let body = json!({"metadata": {"uid": self.uid()}, "status": patch});
        let headers = [("content-type", STRATEGIC_MERGE), ("accept", "application/json")];
        let path = format!("{}/status", self.path());
        let body = body.to_string().into_bytes();
        let answer = around.api.request_with_headers(Method::PATCH, &path, body, &headers).await?;
        // Deleted meanwhile, or replaced by another pod of its name.
        ensure!(
            matches!(answer.status, 200 | 404 | 409),
            "writing a status: {}: {}",
            answer.status,
            String::from_utf8_lossy(&answer.body)
        );
        self.written = status;
        Ok(())
    }

    fn status(&self, around: &Surroundings<'_>) -> Value {
        let policy = self.policy();
        let of_kind = |is_main: bool| -> Vec<&Container> {
            self.containers.iter().filter(|it| (it.kind == Kind::Main) == is_main).collect()
        };
        let (inits, mains) = (of_kind(false), of_kind(true));
        let is_initialized = inits.iter().all(|it| it.is_started());
        let phase = if mains.iter().all(|it| it.is_finished(&policy))
            || self.is_terminating() && !self.containers.iter().any(Container::is_running)
        {
            let has_succeeded = mains.iter().all(|it| it.has_succeeded());
            if has_succeeded { "Succeeded" } else { "Failed" }
        } else if is_initialized && mains.iter().any(|it| it.is_running() || it.is_due(&policy)) {
            "Running"
        } else {
            "Pending"
        };
        let is_ready = self.is_ready();
        let condition = |name: &str, is_true: bool| json!({"type": name, "status": if is_true { "True" } else { "False" }});
        let statuses = |of: &[&Container]| of.iter().map(|it| it.status()).collect::<Vec<_>>();
        let mut status = json!({
            "phase": phase,
            "startTime": second(self.started),
            "message": self.obstacle,
            "conditions": [
                condition("PodReadyToStartContainers", self.sandbox.is_some()),
                condition("Initialized", is_initialized),
                condition("ContainersReady", is_ready),
                condition("Ready", is_ready),
            ],
            "containerStatuses": statuses(&mains),
            "initContainerStatuses": statuses(&inits),
            "hostIP": around.node.sandbox.address().to_string(),
        });
        if let Some(sandbox) = &self.sandbox {
            let address = sandbox.address().to_string();
            status["podIPs"] = json!([{"ip": address}]);
            status["podIP"] = json!(address);
        }
        status
    }
}
