//! Queries a running Loadmaster, for `loadmaster explain --server`.
//!
//! A scheduler has its own address and its own certificate: from a kubeconfig only the user is used, and the CA if none is given;
//! never
//! its server address, its proxy, or its `insecure-skip-tls-verify`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::Config;
use kube::config::AuthInfo;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::runtime::Runtime;

use crate::api_client::{ApiClient, ConnectionLimits, Reply, Request, SendError};
use crate::connect::{self, Cluster, ConnectError, KubeconfigSource, is_loopback};

/// The port on which kube-scheduler and Loadmaster serve HTTPS.
const PORT: u16 = 10259;

/// Timeout and size limit of a response; an explanation takes about half a kilobyte per node.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
const RESPONSE_BYTES_MAX: usize = 256 << 20;

/// Address and credentials of a running Loadmaster.
#[derive(Clone, Debug, Default)]
pub struct RemoteSchedulerOptions {
    /// `https://HOST:PORT`; a host without a scheme means HTTPS, without a port 10259.
    pub server: String,
    /// A file with CA certificates; without it those of the kubeconfig, then those of the system.
    pub certificate_authority: Option<PathBuf>,
    /// The server name to verify in the certificate, if it is not the host.
    pub tls_server_name: Option<String>,
    /// Skip TLS verification (insecure).
    pub insecure_skip_tls_verify: bool,
    /// How to authenticate.
    pub credentials: Credentials,
    /// The User-Agent header.
    pub user_agent: String,
}

/// How to authenticate. The `Debug` form does not have the token.
#[derive(Clone, Default)]
pub enum Credentials {
    /// Anonymous.
    #[default]
    None,
    /// With a bearer token.
    Token(String),
    /// With a bearer token from a file.
    TokenFile(PathBuf),
    /// With a client certificate from files.
    Certificate {
        /// The certificate.
        certificate: PathBuf,
        /// Its key.
        key: PathBuf,
    },
    /// As the user of a kubeconfig.
    Kubeconfig(KubeconfigSource),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Credentials::None => formatter.write_str("None"),
            Credentials::Token(_) => formatter.write_str("Token(..)"),
            Credentials::TokenFile(path) => formatter.debug_tuple("TokenFile").field(path).finish(),
            Credentials::Certificate { certificate, .. } => {
                formatter.debug_tuple("Certificate").field(certificate).finish()
            }
            Credentials::Kubeconfig(source) => {
                formatter.debug_tuple("Kubeconfig").field(source).finish()
            }
        }
    }
}

/// The scheduler cannot be queried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteSchedulerError {
    /// The runtime for sockets and timers did not start.
    #[error("starting the network runtime")]
    Runtime(#[source] std::io::Error),
    /// The address, the certificates or the credentials cannot be used.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A file cannot be read.
    #[error("{path}")]
    File {
        /// The file.
        path: String,
        /// The error.
        source: std::io::Error,
    },
    /// A file contains no certificate.
    #[error("{path}: {text}")]
    NoCertificate {
        /// The file.
        path: String,
        /// The error.
        text: String,
    },
    /// Credentials are not sent over plain HTTP.
    #[error("{server}: credentials are not sent over plain HTTP, except to this machine")]
    PlainHttp {
        /// The server's address.
        server: String,
    },
    /// There is no response.
    #[error(transparent)]
    Send(#[from] SendError),
}

/// A client of a running Loadmaster.
pub struct RemoteScheduler {
    runtime: Runtime,
    client: ApiClient,
    namespace: String,
}

impl RemoteScheduler {
    /// A client with these options. Runs a kubeconfig's exec plugin and reads certificates, but does not connect.
    ///
    /// # Errors
    ///
    /// When the address, the certificates or the credentials cannot be used.
    pub fn new(options: &RemoteSchedulerOptions) -> Result<RemoteScheduler, RemoteSchedulerError> {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().map_err(RemoteSchedulerError::Runtime)?;
        let config = runtime.block_on(config(options))?;
        let namespace = config.default_namespace.clone();
        let cluster = runtime.block_on(Cluster::from_config(config, &options.user_agent))?;
        let limits = ConnectionLimits { http2_connections_max: 1, http1_connections_max: 1 };
        Ok(RemoteScheduler { client: cluster.client("remote", limits), runtime, namespace })
    }

    /// The namespace of the kubeconfig's context, or `default`.
    pub fn default_namespace(&self) -> &str {
        &self.namespace
    }

    /// The URL of the scheduler, for messages.
    pub fn server(&self) -> &str {
        self.client.server()
    }

    /// Sends a GET request and waits for the response. An error status is a response. Blocks.
    ///
    /// # Errors
    ///
    /// When there is no response, or it is too large.
    pub fn http_get(&self, path: &str) -> Result<Reply, RemoteSchedulerError> {
        let request = Request {
            timeout: RESPONSE_TIMEOUT,
            response_bytes_max: RESPONSE_BYTES_MAX,
            ..Request::get(path)
        };
        Ok(self.runtime.block_on(self.client.call(&request))?)
    }
}

async fn config(options: &RemoteSchedulerOptions) -> Result<Config, RemoteSchedulerError> {
    let url = url(&options.server)?;
    if url.scheme_str() == Some("http")
        && !matches!(options.credentials, Credentials::None)
        && !is_loopback(url.host().unwrap_or_default())
    {
        return Err(RemoteSchedulerError::PlainHttp { server: options.server.clone() });
    }
    let mut config = Config::new(url);
    match &options.credentials {
        Credentials::None => {}
        Credentials::Token(token) => config.auth_info = token_auth(token),
        Credentials::TokenFile(path) => {
            config.auth_info = token_auth(&String::from_utf8_lossy(&read_file(path)?));
        }
        Credentials::Certificate { certificate, key } => {
            let path = |path: &PathBuf| Some(path.to_string_lossy().into_owned());
            config.auth_info.client_certificate = path(certificate);
            config.auth_info.client_key = path(key);
        }
        Credentials::Kubeconfig(source) => {
            let user = connect::kubeconfig_config(source).await?;
            config.auth_info = user.auth_info;
            config.root_cert = user.root_cert;
            config.default_namespace = user.default_namespace;
        }
    }
    if let Some(path) = &options.certificate_authority {
        config.root_cert = Some(certificates(path)?);
    }
    config.accept_invalid_certs = options.insecure_skip_tls_verify;
    config.tls_server_name = options.tls_server_name.clone();
    Ok(config)
}

fn token_auth(token: &str) -> AuthInfo {
    AuthInfo { token: Some(token.trim().to_owned().into()), ..AuthInfo::default() }
}

fn url(server: &str) -> Result<http::Uri, ConnectError> {
    let wrong = |text| ConnectError::Address { address: server.to_owned(), text };
    let parse = |text: String| text.parse::<http::Uri>().map_err(|_| wrong("not a URL"));
    if server.contains("://") {
        return parse(server.to_owned());
    }
    let url = parse(format!("https://{server}"))?;
    match (url.port(), url.host()) {
        (None, Some(host)) => parse(format!("https://{host}:{PORT}{}", url.path())),
        _ => Ok(url),
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, RemoteSchedulerError> {
    let named = |source| RemoteSchedulerError::File { path: path.display().to_string(), source };
    std::fs::read(path).map_err(named)
}

/// The certificates of a PEM file.
fn certificates(path: &Path) -> Result<Vec<Vec<u8>>, RemoteSchedulerError> {
    let bytes = read_file(path)?;
    let wrong =
        |text| RemoteSchedulerError::NoCertificate { path: path.display().to_string(), text };
    let all: Result<Vec<Vec<u8>>, _> =
        CertificateDer::pem_slice_iter(&bytes).map(|it| it.map(|it| it.to_vec())).collect();
    let all = all.map_err(|error| wrong(error.to_string()))?;
    if all.is_empty() { Err(wrong("no certificate in PEM form".to_owned())) } else { Ok(all) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_addresses_default_to_https_and_port_10259() {
        #[track_caller]
        fn check(server: &str, want: Result<&str, &str>) {
            match (url(server), want) {
                (Ok(found), Ok(want)) => assert_eq!(found.to_string(), want),
                (Err(error), Err(want)) => assert!(error.to_string().contains(want), "{error}"),
                (found, want) => panic!("{found:?} {want:?}"),
            }
        }
        check("https://a.example", Ok("https://a.example/"));
        check("http://a:1/p", Ok("http://a:1/p"));
        check("a.example", Ok("https://a.example:10259/"));
        check("a.example:443", Ok("https://a.example:443/"));
        check("[::1]", Ok("https://[::1]:10259/"));
        check("a/scheduler", Ok("https://a:10259/scheduler"));
        check("a b", Err("not a URL"));
    }

    #[test]
    fn tokens_are_not_shown() {
        let credentials = Credentials::Token("secret".to_owned());
        let options = RemoteSchedulerOptions { credentials, ..RemoteSchedulerOptions::default() };
        let text = format!("{options:?}");
        assert!(text.contains("Token(..)") && !text.contains("secret"), "{text}");
    }

    #[test]
    fn credentials_are_not_sent_over_plain_http() {
        #[track_caller]
        fn check(server: &str, credentials: Credentials, allowed: bool) {
            let server = server.to_owned();
            let options =
                RemoteSchedulerOptions { server, credentials, ..RemoteSchedulerOptions::default() };
            match RemoteScheduler::new(&options) {
                Ok(_) => assert!(allowed),
                Err(RemoteSchedulerError::PlainHttp { .. }) => assert!(!allowed),
                Err(error) => panic!("{error}"),
            }
        }
        let token = || Credentials::Token("secret".to_owned());
        check("http://10.0.0.1", Credentials::None, true);
        check("http://10.0.0.1", token(), false);
        check("http://localhost.example", token(), false);
        check("http://127.0.0.1:8080", token(), true);
        check("http://[::1]:8080", token(), true);
        check("http://localhost", token(), true);
        let user = KubeconfigSource { kubeconfig: Some("nowhere".into()), context: None };
        check("http://10.0.0.1", Credentials::Kubeconfig(user), false);
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        #[track_caller]
        fn check(change: impl FnOnce(&mut RemoteSchedulerOptions), want: &str) {
            let mut options = RemoteSchedulerOptions {
                server: "https://127.0.0.1:1".to_owned(),
                ..RemoteSchedulerOptions::default()
            };
            change(&mut options);
            let error = RemoteScheduler::new(&options).err().unwrap().to_string();
            assert!(error.contains(want), "{error}");
        }
        check(|it| it.certificate_authority = Some("no-ca.pem".into()), "no-ca.pem");
        check(|it| it.certificate_authority = Some("Cargo.toml".into()), "no certificate");
        check(|it| it.credentials = Credentials::TokenFile("no-token".into()), "no-token");
        let missing = || PathBuf::from("no-key");
        let pair = Credentials::Certificate { certificate: missing(), key: missing() };
        check(|it| it.credentials = pair, "no-key");
    }
}
