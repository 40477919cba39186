//! Address, credentials and TLS configuration of a cluster.

#![expect(clippy::disallowed_types, reason = "certificates are shared between tasks")]

mod kubeconfig;
mod proxy;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use http_body_util::Full;
use kube::Config;
use kube::client::{AuthError, ConfigExt};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use loadmaster_config::redact_password;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::time::Instant;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Layer, ServiceExt, service_fn};

pub use kubeconfig::KubeconfigSource;
use proxy::proxy_url;
pub(crate) use proxy::{Proxy, basic_auth_header, is_loopback};

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
    /// Only HTTP proxies are supported.
    #[error("proxy {proxy:?}: expected http://HOST:PORT or https://HOST:PORT")]
    Proxy {
        /// As it was given, without a password.
        proxy: String,
    },
    /// Credentials were loaded again from a kubeconfig that now has another server.
    #[error("the configuration now has another server, {server}")]
    OtherServer {
        /// The new server's address.
        server: String,
    },
}

/// The API server of a cluster: its address, credentials and TLS configuration. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    shared: Arc<Shared>,
}

struct Shared {
    source: Source,
    server: String,
    namespace: String,
    address: Address,
    server_name: Option<ServerName<'static>>,
    proxy: Option<Proxy>,
    user_agent: HeaderValue,
    access: Mutex<Access>,
    /// Locked while credentials are loaded again.
    loading: Arc<tokio::sync::Mutex<()>>,
}

/// What credentials and certificates are loaded from.
enum Source {
    /// A kubeconfig, or the service account.
    Options(ClusterOptions),
    /// A kubeconfig as kubectl finds it, or the service account.
    Kubeconfig(KubeconfigSource),
    /// A configuration in memory, which may name files and exec plugins.
    Config(Box<Config>),
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

/// Credentials and certificates, as last loaded.
struct Access {
    generation: u64,
    /// When they were last loaded again, or it was tried.
    tried_at: Option<Instant>,
    credentials: CredentialsService,
    tls: Option<Arc<ClientConfig>>,
}

/// Credentials that the server rejects are loaded again this often at most: an exec plugin is a process.
const RELOAD_PERIOD_MIN: Duration = Duration::from_secs(2);

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
        let source = Source::Options(options.clone());
        Cluster::load(source, options.user_agent.clone()).await
    }

    /// Finds the cluster as kubectl does. Runs exec plugins, reads certificates, but does not connect.
    ///
    /// # Errors
    ///
    /// When there is no cluster, or its address, certificates or credentials cannot be used.
    pub async fn from_kubeconfig(
        source: &KubeconfigSource,
        user_agent: &str,
    ) -> Result<Cluster, ConnectError> {
        Cluster::load(Source::Kubeconfig(source.clone()), user_agent.to_owned()).await
    }

    /// With what kube-rs calls a configuration.
    pub(crate) async fn from_config(
        config: Config,
        user_agent: &str,
    ) -> Result<Cluster, ConnectError> {
        Cluster::load(Source::Config(Box::new(config)), user_agent.to_owned()).await
    }

    async fn load(source: Source, user_agent: String) -> Result<Cluster, ConnectError> {
        let user_agent = HeaderValue::from_str(&user_agent).map_err(|_| {
            let text = format!("user agent {user_agent:?} is not a valid header value");
            ConnectError::Config { text }
        })?;
        load_blocking(move || Cluster::build(source, user_agent)).await
    }

    fn build(source: Source, user_agent: HeaderValue) -> Result<Cluster, ConnectError> {
        let config = source.config()?;
        let server = displayed_url(&config.cluster_url);
        let address = address(&config.cluster_url)?;
        let proxy = config.proxy_url.as_ref().map(Proxy::new).transpose()?;
        let server_name = match address.is_https {
            true => {
                let name = config.tls_server_name.clone().unwrap_or_else(|| address.host.clone());
                Some(tls_server_name(name)?)
            }
            false => None,
        };
        let needs_tls = needs_tls(&address, proxy.as_ref());
        let access = Access::new(&config, &server, needs_tls)?;
        let shared = Shared {
            source,
            server,
            namespace: config.default_namespace,
            address,
            server_name,
            proxy,
            user_agent,
            access: Mutex::new(access),
            loading: Arc::default(),
        };
        Ok(Cluster { shared: Arc::new(shared) })
    }

    /// The URL of the API server, for messages.
    pub fn server(&self) -> &str {
        &self.shared.server
    }

    /// The namespace of the current context.
    pub fn default_namespace(&self) -> &str {
        &self.shared.namespace
    }

    pub(crate) fn address(&self) -> &Address {
        &self.shared.address
    }

    pub(crate) fn proxy(&self) -> Option<&Proxy> {
        self.shared.proxy.as_ref()
    }

    /// Adds credentials, impersonation and the user agent.
    pub(crate) async fn add_credentials(
        &self,
        mut request: Unsigned,
    ) -> Result<Unsigned, BoxError> {
        request.headers_mut().insert(http::header::USER_AGENT, self.shared.user_agent.clone());
        let credentials = self.access().credentials.clone();
        Ok(credentials.oneshot(request).await?.into_body())
    }

    /// The TLS configuration; None for plain HTTP without a proxy over TLS.
    pub(crate) fn tls(&self) -> Option<Arc<ClientConfig>> {
        self.access().tls.clone()
    }

    /// The name to verify in the server's certificate; None for plain HTTP.
    pub(crate) fn server_name(&self) -> Option<ServerName<'static>> {
        self.shared.server_name.clone()
    }

    /// Incremented when credentials and certificates are loaded again.
    pub(crate) fn access_generation(&self) -> u64 {
        self.access().generation
    }

    fn access(&self) -> MutexGuard<'_, Access> {
        self.shared.access.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads credentials and certificates again, because those of this generation were rejected, by the server or by us: token, certificate
    /// or kubeconfig files may have been replaced, and exec plugins give new credentials. Returns whether newer ones are there.
    pub(crate) async fn reload_access(&self, rejected_generation: u64) -> bool {
        let loading = self.shared.loading.clone().lock_owned().await;
        {
            let mut access = self.access();
            if access.generation != rejected_generation {
                return true;
            }
            if access.tried_at.is_some_and(|at| at.elapsed() < RELOAD_PERIOD_MIN) {
                return false;
            }
            access.tried_at = Some(Instant::now());
        }
        let cluster = self.clone();
        // Goes on when the request that waits for it times out, so that there is never more than one exec plugin.
        let loaded = tokio::task::spawn_blocking(move || {
            let _loading = loading;
            cluster.load_access()
        });
        match loaded.await {
            Ok(Ok(())) => {
                tracing::info!(
                    server = self.server(),
                    "Credentials and certificates were loaded again"
                );
                true
            }
            Ok(Err(error)) => {
                let error = error_chain(&error);
                tracing::warn!(
                    error,
                    "Loading credentials and certificates again failed, keeping the old ones"
                );
                false
            }
            Err(error) => {
                tracing::error!(%error, "The task that loads credentials failed");
                false
            }
        }
    }

    fn load_access(&self) -> Result<(), ConnectError> {
        let config = self.shared.source.config()?;
        // Never send credentials of one cluster to another one.
        if address(&config.cluster_url)? != self.shared.address {
            return Err(ConnectError::OtherServer { server: displayed_url(&config.cluster_url) });
        }
        let needs_tls = needs_tls(&self.shared.address, self.shared.proxy.as_ref());
        let loaded = Access::new(&config, &self.shared.server, needs_tls)?;
        let mut access = self.access();
        let (generation, tried_at) = (access.generation + 1, access.tried_at);
        *access = Access { generation, tried_at, ..loaded };
        Ok(())
    }
}

impl Access {
    /// Runs exec plugins and reads files.
    fn new(config: &Config, server: &str, needs_tls: bool) -> Result<Access, ConnectError> {
        let credentials = credentials_service(config, server)?;
        let tls = needs_tls.then(|| build_tls(config, server)).transpose()?;
        Ok(Access { generation: 0, tried_at: None, credentials, tls })
    }
}

impl Source {
    /// Reads the kubeconfig or the service account's files. Blocks.
    fn config(&self) -> Result<Config, ConnectError> {
        match self {
            Source::Options(options) => load_config(options),
            Source::Kubeconfig(source) => source.load(),
            Source::Config(config) => Ok((**config).clone()),
        }
    }
}

fn needs_tls(address: &Address, proxy: Option<&Proxy>) -> bool {
    address.is_https || proxy.is_some_and(|proxy| proxy.address.is_https)
}

/// A name to verify in a certificate.
pub(crate) fn tls_server_name(name: String) -> Result<ServerName<'static>, ConnectError> {
    let wrong = |_| ConnectError::Address { address: name.clone(), text: "not a host name" };
    ServerName::try_from(name.clone()).map_err(wrong)
}

/// A URL for messages.
fn displayed_url(url: &http::Uri) -> String {
    redact_password(url.to_string().trim_end_matches('/'))
}

/// As upstream: the given kubeconfig file, else the service account; never `$KUBECONFIG`.
fn load_config(options: &ClusterOptions) -> Result<Config, ConnectError> {
    let ClusterOptions { kubeconfig, context, master, .. } = options;
    let mut file = None;
    let mut config = match (kubeconfig, master) {
        (Some(path), _) => {
            let read = kubeconfig::read_file(path)?;
            let config = config_of_context(read.clone(), context.clone())?;
            file = Some(read);
            config
        }
        (None, Some(master)) => Config::new(master_url(master)?),
        (None, None) => in_cluster_config(
            "no kubeconfig was given",
            "--kubeconfig, or with clientConnection.kubeconfig in the configuration",
        )?,
    };
    if let Some(master) = master {
        config.cluster_url = master_url(master)?;
    }
    let file = file.as_ref().map(|file| (file, context.as_deref()));
    config.proxy_url = proxy_url(&config.cluster_url, file)?;
    Ok(config)
}

/// The configuration that a kubeconfig, or the service account, gives.
pub(crate) async fn kubeconfig_config(source: &KubeconfigSource) -> Result<Config, ConnectError> {
    let source = source.clone();
    load_blocking(move || source.load()).await
}

/// Runs something that reads files and runs exec plugins, in a thread that may block.
async fn load_blocking<T: Send + 'static>(
    load: impl FnOnce() -> Result<T, ConnectError> + Send + 'static,
) -> Result<T, ConnectError> {
    let loaded = tokio::task::spawn_blocking(load).await;
    loaded.unwrap_or_else(|error| Err(ConnectError::Config { text: error.to_string() }))
}

/// What kube-rs makes of a context. Must be called in a thread of the runtime that may block.
fn config_of_context(file: Kubeconfig, context: Option<String>) -> Result<Config, ConnectError> {
    let selected = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    let loaded = Config::from_custom_kubeconfig(file, &selected);
    tokio::runtime::Handle::current().block_on(loaded).map_err(kubeconfig_error)
}

/// The configuration of the pod in which this process runs. An error begins with why there is no kubeconfig, and ends with how to give one.
fn in_cluster_config(no_kubeconfig: &str, flags: &str) -> Result<Config, ConnectError> {
    Config::incluster().map_err(|error| {
        // Outside of a cluster, what a pod lacks would only confuse.
        let is_in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        let in_cluster = if is_in_pod { format!(", and {error}") } else { String::new() };
        let text = format!("{no_kubeconfig}{in_cluster}; give a kubeconfig with {flags}");
        ConnectError::Config { text }
    })
}

/// An error of kube-rs without the lines of the file that it repeats: they may hold a token or a key.
fn kubeconfig_error(error: KubeconfigError) -> ConnectError {
    ConnectError::Config { text: error.to_string() }
}

fn master_url(master: &str) -> Result<http::Uri, ConnectError> {
    let invalid = |text| ConnectError::Address { address: redact_password(master), text };
    // As client-go's DefaultServerURL: a bare host means HTTP.
    let full = if master.contains("://") { master.to_owned() } else { format!("http://{master}") };
    full.parse().map_err(|_| invalid("not a URL"))
}

pub(crate) fn address(url: &http::Uri) -> Result<Address, ConnectError> {
    let invalid = |text| ConnectError::Address { address: redact_password(&url.to_string()), text };
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

/// kube-rs' layers around a service that returns the request: only the headers that they add are used.
fn credentials_service(config: &Config, server: &str) -> Result<CredentialsService, ConnectError> {
    let wrong = |error: kube::Error| ConnectError::Credentials {
        server: server.to_owned(),
        text: credentials_error_text(&error),
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

/// An error of kube-rs without output and environment of an exec plugin: they may hold tokens and keys.
fn credentials_error_text(error: &(dyn std::error::Error + 'static)) -> String {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    match causes.find_map(|cause| cause.downcast_ref::<AuthError>()) {
        Some(AuthError::AuthExecRun { out, .. }) => {
            format!("the exec plugin failed with {}", out.status)
        }
        Some(AuthError::AuthExecParse(error)) => {
            format!("decoding the output of the exec plugin: {}", error.without_snippet())
        }
        _ => error_chain(error),
    }
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
