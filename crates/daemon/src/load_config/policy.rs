//! The legacy Policy: which one the flags and the configuration name, and how it is read.

use std::time::Duration;

use loadmaster_api::document::{Document, DocumentError, LocatedError};
use loadmaster_client::api_client::{Request, SendError};
use loadmaster_client::{ApiClients, Cluster, ClusterOptions, ConnectError};
use loadmaster_config::{POLICY_CONFIG_MAP_KEY, POLICY_NAMESPACE, PolicySource, policy_source};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::CONFIG_BYTES_MAX;
use crate::flags::Options;

/// How long reading a ConfigMap may take in all.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Why a Policy cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadPolicyError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] DocumentError),
    /// The configuration does not name one.
    #[error("{}", super::join(.0))]
    Source(Vec<LocatedError>),
    /// The ConfigMap cannot be read.
    #[error("couldn't get policy config map {namespace}/{name}")]
    ConfigMap {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: ReadConfigMapError,
    },
}

/// Why a ConfigMap cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadConfigMapError {
    /// There is no usable kubeconfig.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The request failed.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The API server rejected the request.
    #[error("the API server responds with {status}: {message}")]
    Status {
        /// The HTTP status.
        status: u16,
        /// Its message.
        message: String,
    },
    /// The key is not there.
    #[error("missing policy config map value at key {POLICY_CONFIG_MAP_KEY:?}")]
    Key,
    /// The time is over.
    #[error("no response from the API server within {TIMEOUT:?}")]
    Timeout,
    /// The network runtime cannot be started.
    #[error("starting the network runtime")]
    Runtime(#[source] std::io::Error),
}

impl Options {
    /// The Policy that the flags name, else the one of the configuration (upstream's `DeprecatedOptions.ApplyTo`).
    pub(super) fn read_policy(
        &self,
        configuration: Option<&Document>,
    ) -> Result<Option<Document>, ReadPolicyError> {
        let legacy = &self.legacy;
        let file = legacy.policy_config_file.as_str();
        let name = legacy.policy_configmap.as_str();
        let source = if legacy.use_legacy_policy_config || (!file.is_empty() && name.is_empty()) {
            Some(PolicySource::File { path: file.to_owned() })
        } else if !name.is_empty() {
            let namespace = match legacy.policy_configmap_namespace.as_str() {
                "" => POLICY_NAMESPACE,
                namespace => namespace,
            };
            Some(PolicySource::ConfigMap { namespace: namespace.to_owned(), name: name.to_owned() })
        } else {
            let source = configuration.map(policy_source).transpose();
            source.map_err(ReadPolicyError::Source)?.flatten()
        };
        match source {
            None => Ok(None),
            Some(PolicySource::File { path }) => {
                Ok(Some(Document::read(&path, Some(CONFIG_BYTES_MAX))?))
            }
            Some(PolicySource::ConfigMap { namespace, name }) => {
                let text = self.read_config_map(configuration, &namespace, &name);
                match text {
                    Ok(text) => {
                        let name = format!("ConfigMap {namespace}/{name}");
                        Ok(Some(Document::new(name, text)))
                    }
                    Err(source) => Err(ReadPolicyError::ConfigMap { namespace, name, source }),
                }
            }
        }
    }

    /// The text of the Policy in a ConfigMap. The cluster is that of the configuration, which has not been checked yet.
    fn read_config_map(
        &self,
        configuration: Option<&Document>,
        namespace: &str,
        name: &str,
    ) -> Result<String, ReadConfigMapError> {
        let configured = configuration
            .and_then(|document| document.decode_value().ok())
            .and_then(|value| value["clientConnection"]["kubeconfig"].as_str().map(str::to_owned));
        let kubeconfig = match configuration {
            Some(_) => configured.unwrap_or_default(),
            None => self.deprecated.kubeconfig.clone(),
        };
        let options = ClusterOptions {
            kubeconfig: (!kubeconfig.is_empty()).then(|| kubeconfig.into()),
            context: None,
            master: (!self.misc.master.is_empty()).then(|| self.misc.master.clone()),
            user_agent: crate::run::user_agent(),
        };
        let encoded = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
        let path =
            format!("/api/v1/namespaces/{}/configmaps/{}", encoded(namespace), encoded(name));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(ReadConfigMapError::Runtime)?;
        let reply = runtime.block_on(async {
            let read = async {
                let cluster = Cluster::from_options(&options).await?;
                let client = ApiClients::new(&cluster).other;
                Ok::<_, ReadConfigMapError>(client.call(&Request::get(path)).await?)
            };
            tokio::time::timeout(TIMEOUT, read).await.map_err(|_| ReadConfigMapError::Timeout)?
        })?;
        let mut body: Value = loadmaster_stdx::json::from_slice(&reply.body).unwrap_or_default();
        if !reply.is_success() {
            let message = body["message"].as_str().unwrap_or_default().to_owned();
            return Err(ReadConfigMapError::Status { status: reply.status, message });
        }
        match body["data"][POLICY_CONFIG_MAP_KEY].take() {
            Value::String(text) => Ok(text),
            _ => Err(ReadConfigMapError::Key),
        }
    }
}
