//! Binds a pod: a device is chosen, and the pod gets its node and the device's annotations in one write.
//!
//! The API server puts the annotations of a Binding on the pod. So there is no moment, and no failure, at which a pod has a device
//! and no node, or the other way round.

use std::fmt;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt as _};
use loadmaster_extender_server::messages::ExtenderBindingArgs;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::cache::Cache;
use crate::devices::{Claim, Misfit};
use crate::pod::{self, Annotations};

/// When the outcome of a binding is not known, the pod is looked at so often, until the API server answers.
const LOOKS: u32 = 30;
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// Why a pod is not bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("reading the pod {0}")]
    Read(String, #[source] CallError),
    #[error("The pod {pod}'s uid is {uid}, and it's not equal with expected {expected}")]
    OtherPod { pod: String, uid: String, expected: String },
    #[error("The node {node} can't place the pod {pod}")]
    Misfit { node: String, pod: String, source: Misfit },
    #[error("binding the pod {pod} to {node}")]
    Bind { node: String, pod: String, source: CallError },
}

/// A call on the API server that failed. A refusal is told in the server's words; kube's error would tell it as a structure.
#[derive(Debug)]
pub struct CallError(Box<kube::Error>);

impl std::error::Error for CallError {}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            kube::Error::Api(status) => f.write_str(&status.message),
            other => write!(f, "{other}"),
        }
    }
}

impl CallError {
    fn new(error: kube::Error) -> CallError {
        CallError(Box::new(error))
    }

    /// Whether the API server said no. Else what was asked may be done all the same, as when the connection broke before the answer.
    fn is_refusal(&self) -> bool {
        matches!(*self.0, kube::Error::Api(_))
    }
}

/// One binding.
pub struct Binder<'a> {
    pods: Api<Pod>,
    cache: &'a Cache,
    args: &'a ExtenderBindingArgs,
}

impl<'a> Binder<'a> {
    pub fn new(client: Client, cache: &'a Cache, args: &'a ExtenderBindingArgs) -> Binder<'a> {
        Binder { pods: Api::namespaced(client, &args.pod_namespace), cache, args }
    }

    /// Binds as the scheduler asks.
    pub async fn bind(self) -> Result<(), BindError> {
        let pod = self.pod().await?;
        if self.is_done(&pod) {
            // The answer to an earlier question did not reach the scheduler.
            return Ok(());
        }
        let memory = pod::memory(&pod);
        if memory == 0 {
            return self.post(&Annotations::new()).await;
        }
        let (device, device_memory) = self.assume(memory)?;
        let now_ns = jiff::Timestamp::now().as_nanosecond();
        let done = self.post(&pod::annotations(device, device_memory, memory, now_ns)).await;
        let is_bound = match &done {
            Ok(()) => true,
            Err(BindError::Bind { source, .. }) if source.is_refusal() => false,
            Err(_) => self.look().await,
        };
        let mut devices = self.cache.write();
        if is_bound {
            devices.bound(&self.args.pod_uid);
            return Ok(());
        }
        devices.forget(&self.args.pod_uid);
        done
    }

    /// The pod that is meant, and no other one of its name.
    async fn pod(&self) -> Result<Pod, BindError> {
        let read = self.pods.get(&self.args.pod_name).await;
        let pod = read.map_err(|source| BindError::Read(self.name(), CallError::new(source)))?;
        let uid = pod.uid().unwrap_or_default();
        if uid != self.args.pod_uid {
            let expected = self.args.pod_uid.clone();
            return Err(BindError::OtherPod { pod: self.name(), uid, expected });
        }
        Ok(pod)
    }

    fn is_done(&self, pod: &Pod) -> bool {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        node == Some(&self.args.node)
    }

    /// Takes memory of a device: its number and all of its memory.
    fn assume(&self, memory: u64) -> Result<(u32, u64), BindError> {
        let claim = Claim {
            namespace: self.args.pod_namespace.clone(),
            name: self.args.pod_name.clone(),
            node: self.args.node.clone(),
            device: 0,
            memory,
        };
        let assumed = self.cache.write().assume(&self.args.pod_uid, claim);
        assumed.map_err(|source| {
            let node = self.args.node.clone();
            BindError::Misfit { node, pod: self.name(), source }
        })
    }

    /// Gives the pod its node, and these annotations. The uid makes sure that it is this pod.
    async fn post(&self, annotations: &Annotations) -> Result<(), BindError> {
        let ExtenderBindingArgs { pod_name: name, pod_namespace, pod_uid: uid, node } = self.args;
        let metadata = json!({
            "name": name, "namespace": pod_namespace, "uid": uid, "annotations": annotations});
        let target = json!({"apiVersion": "v1", "kind": "Node", "name": node});
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target});
        let params = PostParams::default();
        let posted = self.pods.create_subresource::<_, Value>("binding", name, &params, &binding);
        posted.await.map(|_| ()).map_err(|source| {
            let node = node.clone();
            BindError::Bind { node, pod: self.name(), source: CallError::new(source) }
        })
    }

    /// Whether the pod has the node, after all.
    async fn look(&self) -> bool {
        for _ in 0..LOOKS {
            match self.pod().await {
                Ok(pod) => return self.is_done(&pod),
                Err(BindError::Read(_, source)) if !source.is_refusal() => sleep(LOOK_PERIOD).await,
                Err(_) => break,
            }
        }
        false
    }

    /// As messages call the pod.
    fn name(&self) -> String {
        format!("{} in ns {}", self.args.pod_name, self.args.pod_namespace)
    }
}
