//! The HTTP client that calls extenders: a POST with JSON over reused connections (upstream's `HTTPExtender.send`).
//!
//! | | as upstream | differences |
//! | --- | --- | --- |
//! | timeout | one for connecting, the request and the response | |
//! | status | anything but 200 is an error | redirects are not followed |
//! | TLS | by the URL's scheme; `enableHTTPS` without a CA skips verification | HTTP/1.1 only; no proxy from the environment; files are read again when TLS fails |
//! | body | what follows the first JSON value is ignored | longer than [`RESPONSE_LIMIT_BYTES_MIN`] plus twice the request is an error |
//!
//! Error texts are upstream's, except for local addresses of connections.

#![expect(clippy::disallowed_types, reason = "connections are shared between tasks")]

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderValue};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};
use hyper::client::conn::http1;
use kube::Config;
use kube::client::ConfigExt;
use loadmaster_config::redact_password;
use loadmaster_config::v1::{Extender, ExtenderTlsConfig};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde::de::IgnoredAny;
use tokio_rustls::TlsConnector;

use crate::connect::{Address, address, basic_auth_header};
use crate::dial::{BoxFuture, connect_tcp, handshake_http1, is_tls_error};
use crate::status::error_chain;

/// The size limit of a response is this plus twice the size of the request: a valid response repeats at most the nodes of the
/// request, and an endless one is cut off.
pub const RESPONSE_LIMIT_BYTES_MIN: usize = 16 << 20;

/// Idle connections per extender.
const IDLE_MAX: usize = 8;

/// An extender's TLS settings cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("extender {url_prefix:?}: {text}")]
pub struct ExtenderError {
    /// Its `urlPrefix`, without a password.
    pub url_prefix: String,
    /// What is wrong.
    pub text: String,
}

type Connection = http1::SendRequest<BodyChunks>;

/// A request body in chunks, which are written without being copied.
#[derive(Debug)]
struct BodyChunks(std::vec::IntoIter<Bytes>);

impl BodyChunks {
    fn n_bytes(&self) -> usize {
        self.0.as_slice().iter().map(Bytes::len).sum()
    }
}

impl Body for BodyChunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.next().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.len() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.n_bytes() as u64)
    }
}

/// What the TLS configuration is made of.
#[derive(Clone)]
struct TlsSettings {
    config: ExtenderTlsConfig,
    enable_https: bool,
    is_https: bool,
}

/// The connections to one extender.
pub struct ExtenderClient {
    /// The address of the extender. With an invalid one every call fails, as upstream.
    address: Result<Address, String>,
    /// From user and password in the URL.
    authorization: Option<HeaderValue>,
    settings: TlsSettings,
    /// As last read.
    tls: Mutex<Arc<ClientConfig>>,
    server_name: String,
    idle: Mutex<Vec<Connection>>,
}

impl ExtenderClient {
    /// Reads the certificates; does not connect.
    ///
    /// # Errors
    ///
    /// When certificates or keys cannot be used.
    pub fn new(extender: &Extender) -> Result<ExtenderClient, ExtenderError> {
        let parsed = extender.url_prefix.parse::<http::Uri>();
        let authorization = parsed.as_ref().ok().and_then(basic_auth_header);
        let address = match parsed {
            Ok(parsed) => address(&parsed).map_err(|_| {
                let scheme = parsed.scheme_str().unwrap_or_default();
                format!("unsupported protocol scheme {scheme:?}")
            }),
            Err(error) => Err(error.to_string()),
        };
        let config = extender.tls_config.clone().unwrap_or_default();
        let url_prefix = redact_password(&extender.url_prefix);
        let is_https = address.as_ref().is_ok_and(|address| address.is_https);
        let settings = TlsSettings { config, enable_https: extender.enable_https, is_https };
        let tls = tls(&settings).map_err(|text| ExtenderError { url_prefix, text })?;
        let host = address.as_ref().map(|address| address.host.clone()).unwrap_or_default();
        let name = &settings.config.server_name;
        let server_name = if name.is_empty() { host } else { name.clone() };
        let (tls, idle) = (Mutex::new(tls), Mutex::default());
        Ok(ExtenderClient { address, authorization, settings, tls, server_name, idle })
    }

    /// Posts a body, in chunks, to a URL of this extender, and reads the response. `action` is the verb as configured.
    ///
    /// # Errors
    ///
    /// When there is no response or its status is not 200, with upstream's text.
    pub async fn call(
        &self,
        action: &str,
        url: &str,
        body: Vec<Bytes>,
        timeout: Duration,
    ) -> Result<Bytes, String> {
        let body = BodyChunks(body.into_iter());
        let bytes_max = RESPONSE_LIMIT_BYTES_MIN.saturating_add(body.n_bytes().saturating_mul(2));
        let deadline = tokio::time::Instant::now() + timeout;
        let shown = redact_password(url);
        let sent = tokio::time::timeout_at(deadline, self.send_request(url, body)).await;
        let (response, connection) = match sent {
            Ok(Ok(sent)) => sent,
            Ok(Err(text)) => return Err(format!("Post {shown:?}: {text}")),
            Err(_) => {
                let text =
                    "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
                return Err(format!("Post {shown:?}: {text}"));
            }
        };
        let status = response.status().as_u16();
        if status != 200 {
            return Err(format!("failed {action} with extender at URL {shown}, code {status}"));
        }
        let mut read = BytesMut::new();
        let whole = collect(response.into_body(), &mut read, bytes_max);
        let error = match tokio::time::timeout_at(deadline, whole).await {
            Ok(Ok(())) => {
                self.return_idle(connection);
                return Ok(read.freeze());
            }
            Ok(Err(text)) => text,
            Err(_) => "context deadline exceeded (Client.Timeout or context cancellation while reading body)".to_owned(),
        };
        if contains_json_value(&read) { Ok(read.freeze()) } else { Err(error) }
    }

    /// Sends a request and waits for the head of its response. A request that no idle connection accepted is sent over a new one.
    async fn send_request(
        &self,
        url: &str,
        body: BodyChunks,
    ) -> Result<(http::Response<hyper::body::Incoming>, Connection), String> {
        let address = self.address.as_ref().map_err(String::clone)?;
        let path = url.parse::<http::Uri>().map_err(|error| error.to_string())?;
        let path = path.path_and_query().map_or("/", |path| path.as_str());
        let request = http::Request::post(path)
            .header(header::HOST, host_header(address))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, concat!("loadmaster/", env!("CARGO_PKG_VERSION")))
            .body(body);
        let mut request = request.map_err(|error| error.to_string())?;
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(header::AUTHORIZATION, authorization.clone());
        }
        while let Some(mut connection) = self.take_idle() {
            if connection.ready().await.is_err() {
                continue;
            }
            match connection.try_send_request(request).await {
                Ok(response) => return Ok((response, connection)),
                Err(mut error) => match error.take_message() {
                    Some(not_sent) => request = not_sent,
                    None => return Err(connection_error_text(&error.into_error())),
                },
            }
        }
        let mut connection = self.boxed_dial(address).await?;
        match connection.send_request(request).await {
            Ok(response) => Ok((response, connection)),
            Err(error) => {
                // A client certificate is rejected after the handshake.
                self.read_tls_again(is_tls_error(&error)).await;
                Err(connection_error_text(&error))
            }
        }
    }

    fn boxed_dial<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, Result<Connection, String>> {
        Box::pin(self.dial(address))
    }

    async fn dial(&self, address: &Address) -> Result<Connection, String> {
        let stream = connect_tcp(address).await.map_err(|error| {
            let to = &address.authority;
            match error.kind() {
                io::ErrorKind::ConnectionRefused => {
                    format!("dial tcp {to}: connect: connection refused")
                }
                io::ErrorKind::TimedOut => format!("dial tcp {to}: i/o timeout"),
                _ => format!("dial tcp {to}: {error}"),
            }
        })?;
        if !address.is_https {
            return handshake_http1(Box::new(stream)).await;
        }
        let name = ServerName::try_from(self.server_name.clone())
            .map_err(|error| format!("{:?}: {error}", self.server_name))?;
        let tls = self.tls.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match TlsConnector::from(tls).connect(name, stream).await {
            Ok(stream) => handshake_http1(Box::new(stream)).await,
            Err(error) => {
                self.read_tls_again(is_tls_error(&error)).await;
                Err(error_chain(&error))
            }
        }
    }

    /// Reads certificates and keys again for the next connection if they were rejected: the files may have been replaced.
    async fn read_tls_again(&self, were_rejected: bool) {
        if !were_rejected {
            return;
        }
        let settings = self.settings.clone();
        match tokio::task::spawn_blocking(move || tls(&settings)).await {
            Ok(Ok(read)) => *self.tls.lock().unwrap_or_else(PoisonError::into_inner) = read,
            Ok(Err(error)) => {
                tracing::warn!(error, "Reading the certificates of an extender again failed");
            }
            Err(error) => tracing::error!(%error, "The task that reads certificates failed"),
        }
    }

    fn take_idle(&self) -> Option<Connection> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn return_idle(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|connection| !connection.is_closed());
        if idle.len() < IDLE_MAX && !connection.is_closed() {
            idle.push(connection);
        }
    }
}

/// The Host header as Go writes it: without the default port.
fn host_header(address: &Address) -> &str {
    let default_port = if address.is_https { ":443" } else { ":80" };
    address.authority.strip_suffix(default_port).unwrap_or(&address.authority)
}

async fn collect(
    mut body: hyper::body::Incoming,
    all: &mut BytesMut,
    bytes_max: usize,
) -> Result<(), String> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| match connection_error_text(&error) {
            ended if ended == "EOF" => "unexpected EOF".to_owned(),
            other => other,
        })?;
        if let Ok(piece) = frame.into_data() {
            if all.len() + piece.len() > bytes_max {
                return Err(format!("the response is longer than {bytes_max} bytes"));
            }
            all.extend_from_slice(&piece);
        }
    }
    Ok(())
}

/// Whether the bytes begin with a complete JSON value. What follows it is ignored, even the error with which the body ended.
fn contains_json_value(read: &[u8]) -> bool {
    let text = read.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    matches!(values.next(), Some(Ok(_)))
}

/// The error of a connection that ended, with Go's text.
fn connection_error_text(error: &hyper::Error) -> String {
    use std::error::Error as _;
    let mut source = error.source();
    while let Some(cause) = source {
        match cause.downcast_ref::<io::Error>().map(io::Error::kind) {
            Some(io::ErrorKind::ConnectionReset) => {
                return "read: connection reset by peer".to_owned();
            }
            Some(io::ErrorKind::UnexpectedEof) => return "EOF".to_owned(),
            _ => {}
        }
        source = cause.source();
    }
    match error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
        true => "EOF".to_owned(),
        false => error_chain(error),
    }
}

/// As upstream's `makeTransport` and client-go's `TLSConfigFor`: data has precedence over files; a certificate without a key is
/// ignored.
fn tls(settings: &TlsSettings) -> Result<Arc<ClientConfig>, String> {
    let TlsSettings { config, enable_https, is_https } = settings;
    let has_ca = !config.ca_data.is_empty() || !config.ca_file.is_empty();
    let insecure = config.insecure || *enable_https && !has_ca;
    if insecure && has_ca {
        return Err(
            "specifying a root certificates file with the insecure flag is not allowed".to_owned()
        );
    }
    // Only its TLS settings are used.
    let mut kube = Config::new(http::Uri::from_static("https://extender"));
    kube.accept_invalid_certs = insecure;
    if insecure || !*is_https && !has_ca {
        // Nothing is verified. The certificates of the system may be missing, as in images from scratch.
        kube.root_cert = Some(Vec::new());
    } else if has_ca {
        let pem = pem(&config.ca_data, &config.ca_file)?;
        let certificates: Result<Vec<Vec<u8>>, _> = CertificateDer::pem_slice_iter(&pem)
            .map(|found| found.map(|certificate| certificate.to_vec()))
            .collect();
        let certificates = certificates.map_err(|error| error.to_string())?;
        if certificates.is_empty() {
            return Err(
                "unable to load root certificates: unable to parse bytes as PEM block".to_owned()
            );
        }
        kube.root_cert = Some(certificates);
    }
    let has = |data: &str, file: &str| !data.is_empty() || !file.is_empty();
    if has(&config.cert_data, &config.cert_file) && has(&config.key_data, &config.key_file) {
        let encoded = |data: &str, file: &str| pem(data, file).map(|pem| STANDARD.encode(pem));
        let auth = serde_json::json!({
            "client-certificate-data": encoded(&config.cert_data, &config.cert_file)?,
            "client-key-data": encoded(&config.key_data, &config.key_file)?,
        });
        kube.auth_info = serde_json::from_value(auth).map_err(|error| error.to_string())?;
    }
    let mut tls = kube.rustls_client_config().map_err(|error| error_chain(&error))?;
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(tls))
}

fn pem(data: &str, file: &str) -> Result<Vec<u8>, String> {
    if data.is_empty() {
        return std::fs::read(file).map_err(|error| format!("open {file}: {error}"));
    }
    STANDARD.decode(data).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
