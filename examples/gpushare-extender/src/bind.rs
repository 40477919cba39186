//! Binds a pod: selects a device, and sets the pod's node and the device's annotations in one write.
//!
//! The API server copies the annotations of a Binding to the pod. So a pod never has a device without a node, or a node without a
//! device, whatever fails.

use std::fmt;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt as _};
use loadmaster_extender_server::messages::ExtenderBindingArgs;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::cache::Cache;
use crate::devices::{Claim, FitError};
use crate::pod::{self, Annotations};

/// If the outcome of a binding is unknown, the pod is read this often, until the API server answers.
const VERIFY_ATTEMPTS: u32 = 30;
const VERIFY_PERIOD: Duration = Duration::from_secs(1);

/// Why a pod is not bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("reading the pod {0}")]
    Read(String, #[source] CallError),
    #[error("The pod {pod}'s uid is {uid}, and it's not equal with expected {expected}")]
    UidMismatch { pod: String, uid: String, expected: String },
    #[error("The node {node} can't place the pod {pod}")]
    DoesNotFit { node: String, pod: String, source: FitError },
    #[error("binding the pod {pod} to {node}")]
    Bind { node: String, pod: String, source: CallError },
}

/// A failed call of the API server. A rejection is shown with the server's message; kube's error would show the whole Status.
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

    /// Whether the API server rejected the call. Otherwise it may have been carried out, for example if the connection broke before the
    /// response.
    fn is_rejection(&self) -> bool {
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

    /// Binds the pod to the node in the request.
    pub async fn bind(self) -> Result<(), BindError> {
        let pod = self.read_pod().await?;
        if self.is_bound(&pod) {
            // The response to an earlier request did not reach the scheduler.
            return Ok(());
        }
        let memory = pod::memory(&pod);
        if memory == 0 {
            return self.post_binding(&Annotations::new()).await;
        }
        let (device, device_memory) = self.assume(memory)?;
        let now_ns = jiff::Timestamp::now().as_nanosecond();
        let done =
            self.post_binding(&pod::annotations(device, device_memory, memory, now_ns)).await;
        let is_bound = match &done {
            Ok(()) => true,
            Err(BindError::Bind { source, .. }) if source.is_rejection() => false,
            Err(_) => self.verify_bound().await,
        };
        let mut devices = self.cache.write();
        if is_bound {
            devices.finish_binding(&self.args.pod_uid);
            return Ok(());
        }
        devices.forget(&self.args.pod_uid);
        done
    }

    /// Reads the pod, and checks that its uid is the requested one.
    async fn read_pod(&self) -> Result<Pod, BindError> {
        let read = self.pods.get(&self.args.pod_name).await;
        let pod = read.map_err(|source| BindError::Read(self.name(), CallError::new(source)))?;
        let uid = pod.uid().unwrap_or_default();
        if uid != self.args.pod_uid {
            let expected = self.args.pod_uid.clone();
            return Err(BindError::UidMismatch { pod: self.name(), uid, expected });
        }
        Ok(pod)
    }

    fn is_bound(&self, pod: &Pod) -> bool {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        node == Some(&self.args.node)
    }

    /// Assumes memory of a device. Returns the device's number and its total memory.
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
            BindError::DoesNotFit { node, pod: self.name(), source }
        })
    }

    /// Posts the Binding with these annotations. The uid makes sure that it is the same pod.
    async fn post_binding(&self, annotations: &Annotations) -> Result<(), BindError> {
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

    /// Whether the pod was bound in spite of the error.
    async fn verify_bound(&self) -> bool {
        for _ in 0..VERIFY_ATTEMPTS {
            match self.read_pod().await {
                Ok(pod) => return self.is_bound(&pod),
                Err(BindError::Read(_, source)) if !source.is_rejection() => {
                    sleep(VERIFY_PERIOD).await
                }
                Err(_) => break,
            }
        }
        false
    }

    /// The pod as it is named in messages.
    fn name(&self) -> String {
        format!("{} in ns {}", self.args.pod_name, self.args.pod_namespace)
    }
}
