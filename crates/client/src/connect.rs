//! Address, credentials and TLS configuration of a cluster.

#![expect(clippy::disallowed_types, reason = "certificates are shared between tasks")]

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use http_body_util::Full;
use kube::Config;
use kube::client::ConfigExt;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::time::Instant;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Layer, ServiceExt, service_fn};

use crate::status::error_chain;

/// Selects a cluster.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// A kubeconfig file. Without it and without `master`: the cluster in which this process runs.
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig; without it the current one.
    pub context: Option<String>,
    /// The address of the API server, in place of the kubeconfig's.
    pub master: Option<String>,
    /// The User-Agent header, such as `loadmaster/0.1.0 (linux/amd64) scheduler`.
    pub user_agent: String,
}

/// The configuration of a cluster cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// There is no usable kubeconfig and no service account. Carries the source's text, which repeats its own sources.
    #[error("finding a cluster: {text}")]
    Config {
        /// What is wrong.
        text: String,
    },
    /// The server address is invalid.
    #[error("server address {address:?}: {text}")]
    Address {
        /// As it was given.
        address: String,
        /// What is wrong.
        text: &'static str,
    },
    /// Certificates or keys cannot be used.
    #[error("preparing TLS for {server}: {text}")]
    Tls {
        /// The server's address.
        server: String,
        /// What is wrong.
        text: String,
    },
    /// Credentials cannot be used.
    #[error("preparing credentials for {server}: {text}")]
    Credentials {
        /// The server's address.
        server: String,
        /// What is wrong.
        text: String,
    },
    /// Only plain HTTP proxies are supported.
    #[error("proxy {proxy:?}: expected http://HOST:PORT")]
    Proxy {
        /// As it was given.
        proxy: String,
    },
}

/// The API server of a cluster: its address, credentials and TLS configuration. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    shared: Arc<Shared>,
}

struct Shared {
    config: Config,
    server: String,
    address: Address,
    proxy: Option<Address>,
    user_agent: HeaderValue,
    credentials: CredentialsService,
    tls: Mutex<Tls>,
}

/// Host and port. The host has no brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub host: String,
    pub port: u16,
    pub is_https: bool,
    /// `host:port`, as in a `Host` header.
    pub authority: String,
    /// What stands in front of every path; empty or `/some/prefix`.
    pub prefix: String,
}

struct Tls {
    config: Option<Arc<ClientConfig>>,
    name: Option<ServerName<'static>>,
    built: Instant,
    is_stale: bool,
}

/// Certificates are read anew this often at most when the server stops accepting them.
const TLS_REBUILD_MIN: Duration = Duration::from_secs(10);

/// A request on its way to be signed, and signed.
pub(crate) type Unsigned = http::Request<Full<Bytes>>;
type CredentialsService = BoxCloneSyncService<Unsigned, http::Response<Unsigned>, BoxError>;

impl Cluster {
    /// Finds the cluster. Runs exec plugins, reads certificates, but does not connect.
    ///
    /// # Errors
    ///
    /// When there is no cluster, or its address, certificates or credentials cannot be used.
    pub async fn from_options(options: &ClusterOptions) -> Result<Cluster, ConnectError> {
        let mut config = config(options).await?;
        if let Some(master) = &options.master {
            config.cluster_url = master_url(master)?;
        }
        Cluster::from_config(config, &options.user_agent).await
    }

    /// With what kube-rs calls a configuration.
    pub(crate) async fn from_config(
        config: Config,
        user_agent: &str,
    ) -> Result<Cluster, ConnectError> {
        let agent = HeaderValue::from_str(user_agent).map_err(|_| {
            let text = format!("user agent {user_agent:?} is not a valid header value");
            ConnectError::Config { text }
        })?;
        // Exec plugins and files block.
        let made = tokio::task::spawn_blocking(move || Cluster::build(config, agent)).await;
        made.unwrap_or_else(|error| Err(ConnectError::Config { text: error.to_string() }))
    }

    fn build(config: Config, user_agent: HeaderValue) -> Result<Cluster, ConnectError> {
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let address = address(&config.cluster_url)?;
        let proxy = config.proxy_url.as_ref().map(proxy).transpose()?;
        let credentials = credentials_service(&config, &server)?;
        let mut tls = Tls { config: None, name: None, built: Instant::now(), is_stale: false };
        if address.is_https {
            tls.config = Some(build_tls(&config, &server)?);
            let name = config.tls_server_name.clone().unwrap_or_else(|| address.host.clone());
            let wrong =
                |_| ConnectError::Address { address: name.clone(), text: "not a host name" };
            tls.name = Some(ServerName::try_from(name.clone()).map_err(wrong)?);
        }
        let tls = Mutex::new(tls);
        let shared = Shared { config, server, address, proxy, user_agent, credentials, tls };
        Ok(Cluster { shared: Arc::new(shared) })
    }

    /// The URL of the API server, for messages.
    pub fn server(&self) -> &str {
        &self.shared.server
    }

    /// The namespace of the current context.
    pub fn default_namespace(&self) -> &str {
        &self.shared.config.default_namespace
    }

    pub(crate) fn address(&self) -> &Address {
        &self.shared.address
    }

    pub(crate) fn proxy(&self) -> Option<&Address> {
        self.shared.proxy.as_ref()
    }

    /// Adds credentials, impersonation and the user agent.
    pub(crate) async fn add_credentials(
        &self,
        mut request: Unsigned,
    ) -> Result<Unsigned, BoxError> {
        request.headers_mut().insert(http::header::USER_AGENT, self.shared.user_agent.clone());
        Ok(self.shared.credentials.clone().oneshot(request).await?.into_body())
    }

    /// The TLS configuration; None for plain HTTP. Certificates that the server has rejected are read again.
    pub(crate) async fn tls(&self) -> Option<(Arc<ClientConfig>, ServerName<'static>)> {
        let rebuild = {
            let mut tls = self.shared.tls.lock().unwrap_or_else(PoisonError::into_inner);
            let rebuild = tls.is_stale && tls.built.elapsed() >= TLS_REBUILD_MIN;
            if rebuild {
                tls.is_stale = false;
                tls.built = Instant::now();
            }
            rebuild && tls.config.is_some()
        };
        if rebuild {
            let shared = self.shared.clone();
            let built =
                tokio::task::spawn_blocking(move || build_tls(&shared.config, &shared.server));
            match built.await {
                Ok(Ok(fresh)) => {
                    let mut tls = self.shared.tls.lock().unwrap_or_else(PoisonError::into_inner);
                    tls.config = Some(fresh);
                }
                Ok(Err(error)) => {
                    tracing::warn!(error = %error_chain(&error), "Reading the client certificates again failed, keeping the old ones")
                }
                Err(error) => tracing::error!(%error, "The task that reads certificates failed"),
            }
        }
        let tls = self.shared.tls.lock().unwrap_or_else(PoisonError::into_inner);
        tls.config.clone().zip(tls.name.clone())
    }

    /// Has the certificates read again: the server no longer accepts the client certificate.
    pub(crate) fn mark_tls_config_stale(&self) {
        self.shared.tls.lock().unwrap_or_else(PoisonError::into_inner).is_stale = true;
    }
}

/// As upstream: the given kubeconfig file, else the service account; never `$KUBECONFIG`.
async fn config(options: &ClusterOptions) -> Result<Config, ConnectError> {
    let selected =
        KubeConfigOptions { context: options.context.clone(), ..KubeConfigOptions::default() };
    let wrong = |error: KubeconfigError| ConnectError::Config { text: error.to_string() };
    match (&options.kubeconfig, &options.master) {
        (Some(file), _) => {
            let file = Kubeconfig::read_from(file).map_err(wrong)?;
            Config::from_custom_kubeconfig(file, &selected).await.map_err(wrong)
        }
        (None, Some(master)) => Ok(Config::new(master_url(master)?)),
        (None, None) => Config::incluster().map_err(|error| {
            let text = format!("no kubeconfig was given, and {error}");
            ConnectError::Config { text }
        }),
    }
}

fn master_url(master: &str) -> Result<http::Uri, ConnectError> {
    let invalid = |text| ConnectError::Address { address: master.to_owned(), text };
    // As client-go's DefaultServerURL: a bare host means HTTP.
    let full = if master.contains("://") { master.to_owned() } else { format!("http://{master}") };
    full.parse().map_err(|_| invalid("not a URL"))
}

pub(crate) fn address(url: &http::Uri) -> Result<Address, ConnectError> {
    let invalid = |text| ConnectError::Address { address: url.to_string(), text };
    let is_https = match url.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        _ => return Err(invalid("expected http:// or https://")),
    };
    let host = url.host().filter(|host| !host.is_empty()).ok_or_else(|| invalid("no host"))?;
    let port = url.port_u16().unwrap_or(if is_https { 443 } else { 80 });
    Ok(Address {
        host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
        port,
        is_https,
        authority: format!("{host}:{port}"),
        prefix: url.path().trim_end_matches('/').to_owned(),
    })
}

fn proxy(url: &http::Uri) -> Result<Address, ConnectError> {
    match address(url) {
        Ok(address) if !address.is_https => Ok(address),
        _ => Err(ConnectError::Proxy { proxy: url.to_string() }),
    }
}

/// kube-rs' layers around a service that returns the request: only the headers that they add are used.
fn credentials_service(config: &Config, server: &str) -> Result<CredentialsService, ConnectError> {
    let wrong = |error: kube::Error| ConnectError::Credentials {
        server: server.to_owned(),
        text: error_chain(&error),
    };
    let echo =
        service_fn(
            |request: Unsigned| async move { Ok::<_, BoxError>(http::Response::new(request)) },
        );
    let headers = config.extra_headers_layer().map_err(wrong)?;
    Ok(match config.auth_layer().map_err(wrong)? {
        None => BoxCloneSyncService::new(headers.layer(echo)),
        Some(auth) => BoxCloneSyncService::new(headers.layer(auth.layer(echo))),
    })
}

fn build_tls(config: &Config, server: &str) -> Result<Arc<ClientConfig>, ConnectError> {
    let mut tls = config.rustls_client_config().map_err(|error| ConnectError::Tls {
        server: server.to_owned(),
        text: error_chain(&error),
    })?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(tls))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_urls_are_parsed() {
        #[track_caller]
        fn check(url: &str, want: Result<(&str, u16, &str, &str), &str>) {
            let found = master_url(url).and_then(|url| address(&url));
            let found = found.as_ref().map(|a| (&*a.host, a.port, &*a.authority, &*a.prefix));
            match (found, want) {
                (Ok(found), Ok(want)) => assert_eq!(found, want),
                (Err(error), Err(want)) => assert!(error.to_string().contains(want), "{error}"),
                (found, want) => panic!("{found:?} {want:?}"),
            }
        }
        check("https://a.example", Ok(("a.example", 443, "a.example:443", "")));
        check("https://a:6443/k8s/c1/", Ok(("a", 6443, "a:6443", "/k8s/c1")));
        check("https://[::1]:6443", Ok(("::1", 6443, "[::1]:6443", "")));
        check("127.0.0.1:8080", Ok(("127.0.0.1", 8080, "127.0.0.1:8080", "")));
        check("ftp://a", Err("expected http:// or https://"));
        check("https:///x", Err("https:///x"));
    }
}
