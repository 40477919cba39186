//! Asking a running Loadmaster, for `loadmaster explain --server`.
//!
//! It is a server of its own, with a certificate of its own: of a kubeconfig only the user is taken, and the CA where none is given;
//! never its address, its proxy, or that its server need not be verified.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::Config;
use kube::config::AuthInfo;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::runtime::Runtime;

use crate::connect::{Cluster, ConnectError};
use crate::lane::{Lane, LaneLimits, Reply, Request, SendError};
use crate::read::{self, Options};

/// Where kube-scheduler and Loadmaster serve HTTPS.
const PORT: u16 = 10259;

/// Time for the whole answer, and how large it may be: about half a kilobyte a node.
const ANSWER: Duration = Duration::from_secs(30);
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Whom to ask, and as whom.
#[derive(Clone, Debug, Default)]
pub struct RemoteOptions {
    /// `https://HOST:PORT`; a bare host is asked over HTTPS, on port 10259 if it names none.
    pub server: String,
    /// Certificates that may have signed the server's; without them those of the kubeconfig, then of the system.
    pub certificate_authority: Option<PathBuf>,
    /// The name in the server's certificate, where it is not the host's.
    pub tls_server_name: Option<String>,
    /// Believe any server.
    pub insecure_skip_tls_verify: bool,
    /// How to prove who asks.
    pub credentials: Credentials,
    /// What the server calls us in its log.
    pub user_agent: String,
}

/// How to prove who asks.
#[derive(Clone, Debug, Default)]
pub enum Credentials {
    /// Not at all.
    #[default]
    None,
    /// By a token.
    Token(String),
    /// By a token that stands in a file.
    TokenFile(PathBuf),
    /// By a certificate, in files.
    Certificate {
        /// The certificate.
        certificate: PathBuf,
        /// Its key.
        key: PathBuf,
    },
    /// As the user of a kubeconfig does.
    Kubeconfig(Options),
}

/// Why nobody can be asked, or did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The runtime for sockets and timers did not start.
    #[error("starting the network runtime")]
    Runtime(#[source] std::io::Error),
    /// The address, the certificates or the credentials cannot be used.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// There is no usable kubeconfig.
    #[error(transparent)]
    Kubeconfig(#[from] read::Error),
    /// A file cannot be read.
    #[error("{path}")]
    File {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A file has no certificate.
    #[error("{path}: {text}")]
    NoCertificate {
        /// Which.
        path: String,
        /// What is wrong.
        text: String,
    },
    /// Anybody on the way could read them.
    #[error("{server}: credentials are not sent over plain HTTP, except to this machine")]
    PlainHttp {
        /// The server's address.
        server: String,
    },
    /// It did not answer.
    #[error(transparent)]
    Send(#[from] SendError),
}

/// A running Loadmaster.
pub struct Remote {
    runtime: Runtime,
    lane: Lane,
    namespace: String,
}

impl Remote {
    /// Prepares to ask. Runs a kubeconfig's exec plugin and reads certificates, but does not connect.
    ///
    /// # Errors
    ///
    /// When the address, the certificates or the credentials cannot be used.
    pub fn find(options: &RemoteOptions) -> Result<Remote, RemoteError> {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().map_err(RemoteError::Runtime)?;
        let config = runtime.block_on(config(options))?;
        let namespace = config.default_namespace.clone();
        let cluster = runtime.block_on(Cluster::of(config, &options.user_agent))?;
        let limits = LaneLimits { http2_connections_max: 1, http1_connections_max: 1 };
        Ok(Remote { lane: cluster.lane("remote", limits), runtime, namespace })
    }

    /// The namespace of names without one: the kubeconfig's, if one was given.
    pub fn default_namespace(&self) -> &str {
        &self.namespace
    }

    /// Its address, for people.
    pub fn server(&self) -> &str {
        self.lane.server()
    }

    /// Asks. An error status is an answer. Blocks until it is there.
    ///
    /// # Errors
    ///
    /// When there is no answer, or too long a one.
    pub fn get(&self, path: &str) -> Result<Reply, RemoteError> {
        let request =
            Request { timeout: ANSWER, answer_bytes_max: ANSWER_BYTES_MAX, ..Request::get(path) };
        Ok(self.runtime.block_on(self.lane.call(&request))?)
    }
}

async fn config(options: &RemoteOptions) -> Result<Config, RemoteError> {
    let url = url(&options.server)?;
    if url.scheme_str() == Some("http")
        && !matches!(options.credentials, Credentials::None)
        && !is_this_machine(url.host().unwrap_or_default())
    {
        return Err(RemoteError::PlainHttp { server: options.server.clone() });
    }
    let mut config = Config::new(url);
    match &options.credentials {
        Credentials::None => {}
        Credentials::Token(token) => config.auth_info = of_token(token),
        Credentials::TokenFile(path) => {
            config.auth_info = of_token(&String::from_utf8_lossy(&read_file(path)?));
        }
        Credentials::Certificate { certificate, key } => {
            let path = |path: &PathBuf| Some(path.to_string_lossy().into_owned());
            config.auth_info.client_certificate = path(certificate);
            config.auth_info.client_key = path(key);
        }
        Credentials::Kubeconfig(which) => {
            let user = read::find(which).await?;
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

fn of_token(token: &str) -> AuthInfo {
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

fn is_this_machine(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

fn read_file(path: &Path) -> Result<Vec<u8>, RemoteError> {
    let named = |source| RemoteError::File { path: path.display().to_string(), source };
    std::fs::read(path).map_err(named)
}

/// Certificates of a PEM file.
fn certificates(path: &Path) -> Result<Vec<Vec<u8>>, RemoteError> {
    let bytes = read_file(path)?;
    let wrong = |text| RemoteError::NoCertificate { path: path.display().to_string(), text };
    let all: Result<Vec<Vec<u8>>, _> =
        CertificateDer::pem_slice_iter(&bytes).map(|it| it.map(|it| it.to_vec())).collect();
    let all = all.map_err(|error| wrong(error.to_string()))?;
    if all.is_empty() { Err(wrong("no certificate in PEM form".to_owned())) } else { Ok(all) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
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
    fn plain_http_carries_no_credentials_away() {
        #[track_caller]
        fn check(server: &str, credentials: Credentials, allowed: bool) {
            let server = server.to_owned();
            let options = RemoteOptions { server, credentials, ..RemoteOptions::default() };
            match Remote::find(&options) {
                Ok(_) => assert!(allowed),
                Err(RemoteError::PlainHttp { .. }) => assert!(!allowed),
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
        let user = Options { kubeconfig: Some("nowhere".into()), context: None };
        check("http://10.0.0.1", Credentials::Kubeconfig(user), false);
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        #[track_caller]
        fn check(change: impl FnOnce(&mut RemoteOptions), want: &str) {
            let mut options = RemoteOptions {
                server: "https://127.0.0.1:1".to_owned(),
                ..RemoteOptions::default()
            };
            change(&mut options);
            let error = Remote::find(&options).err().unwrap().to_string();
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
