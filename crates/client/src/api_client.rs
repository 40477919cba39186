//! HTTP clients of the API server, one for each kind of traffic, so that a bind never waits behind a list, nor a lease behind
//! Events.
//!
//! Each client has its own connection pool and opens connections on demand, up to a limit. An HTTP/2 connection carries as many
//! concurrent requests as the server's SETTINGS allow, an HTTP/1.1 connection one. A request waits while all connections are busy.
//!
//! A connection on which a request times out gets no more requests, so that the next one does not wait for a dead connection, too. When the
//! server does not accept the credentials (401), they are loaded again, and the request is sent a second time.

mod kube_client;
mod pool;

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::connect::{Cluster, Unsigned};
use crate::dial::{BoxFuture, ConnectionSettings};
use crate::flowcontrol::RETRY_AFTER_MAX;
use crate::status::error_chain;
use pool::{Pool, Slot};

/// The number of connections of a client.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// When the server supports HTTP/2.
    pub http2_connections_max: usize,
    /// When it does not.
    pub http1_connections_max: usize,
}

/// The clients of a scheduler, one for each kind of traffic.
#[derive(Clone)]
pub struct ApiClients {
    /// Binds.
    pub bind: ApiClient,
    /// Status patches, deletes, reads and all other calls.
    pub other: ApiClient,
    /// Lists and watches.
    pub watch: ApiClient,
    /// Events.
    pub events: ApiClient,
    /// Leader election.
    pub lease: ApiClient,
    /// Services of plugin authors.
    pub services: ApiClient,
}

impl ApiClients {
    /// The clients of a cluster. No connection is opened yet.
    pub fn new(cluster: &Cluster) -> ApiClients {
        let with_settings = |name, http2_connections_max, http1_connections_max, settings| {
            let limits = ConnectionLimits { http2_connections_max, http1_connections_max };
            cluster.client_with_settings(name, limits, settings)
        };
        let client = |name, n_http2, n_http1| {
            with_settings(name, n_http2, n_http1, ConnectionSettings::DEFAULT)
        };
        ApiClients {
            bind: client("bind", 4, 64),
            other: client("other", 2, 16),
            // Over HTTP/1.1 each watch occupies a connection.
            watch: with_settings("watch", 2, 64, ConnectionSettings::WATCH),
            events: client("events", 1, 16),
            lease: with_settings("lease", 1, 2, ConnectionSettings::LEASE),
            // With watches.
            services: client("services", 2, 64),
        }
    }

    /// The same clients, which report each response, or that there is none, to `observer`.
    #[must_use]
    pub fn observed_by(mut self, observer: RequestObserver) -> ApiClients {
        let ApiClients { bind, other, watch, events, lease, services } = &mut self;
        for client in [bind, other, watch, events, lease, services] {
            client.observer = Some(observer.clone());
        }
        self
    }
}

/// Receives the outcome of every request.
pub type RequestObserver = Arc<dyn Fn(&RequestOutcome<'_>) + Send + Sync>;

/// The outcome of a request: the head of its response, or none.
#[derive(Clone, Copy, Debug)]
pub struct RequestOutcome<'a> {
    /// The HTTP method.
    pub method: &'a Method,
    /// `HOST:PORT` of the API server.
    pub host: &'a str,
    /// The status code; `None` without a response.
    pub status: Option<u16>,
    /// The time since it was sent.
    pub duration: Duration,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The HTTP method.
    pub method: Method,
    /// Path and query, such as `/api/v1/pods?limit=500`, percent-encoded.
    pub path: String,
    /// The Accept header.
    pub accept: &'static str,
    /// The Content-Type header; not sent without a body.
    pub content_type: &'static str,
    /// The body; may be empty.
    pub body: Bytes,
    /// Time limit for waiting for a connection, the request and the whole response. For a stream: until its head has arrived.
    pub timeout: Duration,
    /// Size limit of the response body.
    pub response_bytes_max: usize,
}

/// The media type of JSON.
pub const JSON_MEDIA_TYPE: &str = "application/json";
/// Media types: protobuf, or JSON from servers that do not support protobuf for a kind.
pub const PROTOBUF_MEDIA_TYPES: &str = "application/vnd.kubernetes.protobuf,application/json";

/// Default timeout of a request: the API server's own is 60 s.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
const RESPONSE_BYTES_MAX: usize = 16 << 20;

impl Request {
    /// A GET request with a response in JSON.
    pub fn get(path: impl Into<String>) -> Request {
        Request {
            method: Method::GET,
            path: path.into(),
            accept: JSON_MEDIA_TYPE,
            content_type: JSON_MEDIA_TYPE,
            body: Bytes::new(),
            timeout: CALL_TIMEOUT,
            response_bytes_max: RESPONSE_BYTES_MAX,
        }
    }

    /// A request with a JSON body.
    pub fn with_body(method: Method, path: impl Into<String>, body: impl Into<Bytes>) -> Request {
        Request { method, body: body.into(), ..Request::get(path) }
    }
}

/// The response to a request.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The Retry-After header, at most a minute.
    pub retry_after: Option<Duration>,
    /// Whether the body is protobuf; else it is JSON.
    pub is_protobuf: bool,
    /// The whole body.
    pub body: Bytes,
}

impl Reply {
    /// Whether the status is 2xx.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// How long to wait before the request is sent again, as client-go: Retry-After of a response with status 429 or 5xx.
    pub fn retry_pause(&self) -> Option<Duration> {
        self.retry_after.filter(|_| self.status == 429 || self.status >= 500)
    }
}

/// There is no response.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// No connection, or no credentials: the request was not sent.
    #[error("connecting to {server}: {text}")]
    NotSent {
        /// Its address.
        server: Arc<str>,
        /// What went wrong.
        text: Arc<str>,
    },
    /// The connection was lost: the server may have executed the request.
    #[error("request to {server}: {text}")]
    Lost {
        /// Its address.
        server: Arc<str>,
        /// What went wrong.
        text: Arc<str>,
    },
    /// There was no response in time.
    #[error("request to {server}: no response in {} s", after.as_secs_f64())]
    TimedOut {
        /// Its address.
        server: Arc<str>,
        /// The timeout.
        after: Duration,
        /// Whether the request was sent: the server may have executed it.
        was_sent: bool,
    },
    /// The response exceeds its size limit.
    #[error("request to {server}: the response is larger than {bytes_max} bytes")]
    TooLarge {
        /// Its address.
        server: Arc<str>,
        /// The limit.
        bytes_max: usize,
    },
}

impl SendError {
    /// Whether the server may have executed the request. Then the outcome can only be found by reading.
    pub fn may_have_arrived(&self) -> bool {
        match self {
            SendError::NotSent { .. } => false,
            SendError::TimedOut { was_sent, .. } => *was_sent,
            SendError::Lost { .. } | SendError::TooLarge { .. } => true,
        }
    }
}

/// A response whose body has not been read yet.
pub struct ResponseStream {
    /// The HTTP status.
    pub status: u16,
    /// The Retry-After header, at most a minute.
    pub retry_after: Option<Duration>,
    /// Whether the body is protobuf; else it is JSON.
    pub is_protobuf: bool,
    body: Incoming,
    slot: Slot,
    server: Arc<str>,
}

/// An HTTP client of the API server with its own connection pool. Cheap to clone.
#[derive(Clone)]
pub struct ApiClient {
    pool: Arc<Pool>,
    server: Arc<str>,
    observer: Option<RequestObserver>,
}

/// A request to send, or to send again.
struct Outgoing<'a> {
    method: &'a Method,
    path: &'a str,
    headers: Headers<'a>,
    body: &'a Bytes,
}

#[derive(Clone, Copy)]
enum Headers<'a> {
    Media { accept: &'static str, content_type: &'static str },
    All(&'a HeaderMap),
}

impl Request {
    fn outgoing(&self) -> Outgoing<'_> {
        let headers = Headers::Media { accept: self.accept, content_type: self.content_type };
        Outgoing { method: &self.method, path: &self.path, headers, body: &self.body }
    }
}

/// How often a response with `Retry-After` is retried, as in client-go.
pub(crate) const N_RETRIES_MAX: u32 = 10;

/// How far a request has come, also when it is canceled.
#[derive(Default)]
struct Progress {
    /// When it was sent; `None` before that.
    sent_at: Option<Instant>,
    /// Its HTTP/2 connection.
    h2_id: Option<u64>,
}

/// How often a request is sent again over another connection when its connection was closed before it was sent.
const N_RESENDS: usize = 3;

impl Cluster {
    /// A client with its own connection pool. No connection is opened before the first request.
    pub fn client(&self, name: &'static str, limits: ConnectionLimits) -> ApiClient {
        self.client_with_settings(name, limits, ConnectionSettings::DEFAULT)
    }

    fn client_with_settings(
        &self,
        name: &'static str,
        limits: ConnectionLimits,
        settings: ConnectionSettings,
    ) -> ApiClient {
        let server = self.server().into();
        let pool = Arc::new(Pool::new(self.clone(), name, limits, settings));
        ApiClient { pool, server, observer: None }
    }
}

impl ApiClient {
    /// The URL of the API server, for messages.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Sends a request and reads the whole response. An error status is a response.
    ///
    /// # Errors
    ///
    /// When there is no response, or it is too large.
    pub async fn call(&self, request: &Request) -> Result<Reply, SendError> {
        let mut progress = Progress::default();
        let whole = async {
            let (response, slot) = self.boxed_send(request.outgoing(), &mut progress).await?;
            let stream = self.response_stream(response, slot);
            let (status, retry_after, is_protobuf) =
                (stream.status, stream.retry_after, stream.is_protobuf);
            let body = stream.collect(request.response_bytes_max).await?;
            Ok(Reply { status, retry_after, is_protobuf, body })
        };
        match tokio::time::timeout(request.timeout, whole).await {
            Ok(result) => result,
            Err(_) => Err(self.timed_out(request.timeout, &progress)),
        }
    }

    /// The same, but while the server asks for that with Retry-After, the request is sent again, as client-go does.
    ///
    /// # Errors
    ///
    /// When there is no response, or it is too large.
    pub async fn call_with_retries(&self, request: &Request) -> Result<Reply, SendError> {
        let mut n_retries = 0;
        loop {
            let reply = self.call(request).await?;
            match reply.retry_pause() {
                Some(pause) if n_retries < N_RETRIES_MAX => {
                    n_retries += 1;
                    tokio::time::sleep(pause).await;
                }
                _ => return Ok(reply),
            }
        }
    }

    /// Sends a request and returns the response as soon as its head has arrived.
    ///
    /// # Errors
    ///
    /// When the head of the response does not arrive.
    pub async fn open_stream(&self, request: &Request) -> Result<ResponseStream, SendError> {
        let mut progress = Progress::default();
        let sent = self.boxed_send(request.outgoing(), &mut progress);
        match tokio::time::timeout(request.timeout, sent).await {
            Ok(opened) => opened.map(|(response, slot)| self.response_stream(response, slot)),
            Err(_) => Err(self.timed_out(request.timeout, &progress)),
        }
    }

    fn boxed_send<'a>(
        &'a self,
        request: Outgoing<'a>,
        progress: &'a mut Progress,
    ) -> BoxFuture<'a, Result<(http::Response<Incoming>, Slot), SendError>> {
        Box::pin(self.send(request, progress))
    }

    /// Sends a request, and again when the server did not accept the credentials (then it has not executed it) and there are newer ones.
    async fn send(
        &self,
        request: Outgoing<'_>,
        progress: &mut Progress,
    ) -> Result<(http::Response<Incoming>, Slot), SendError> {
        let (response, slot) = self.send_once(&request, progress).await?;
        let is_rejected = response.status() == http::StatusCode::UNAUTHORIZED;
        if !is_rejected || !self.pool.cluster().reload_access(slot.generation()).await {
            return Ok((response, slot));
        }
        drop((response, slot));
        *progress = Progress::default();
        self.send_once(&request, progress).await
    }

    async fn send_once(
        &self,
        request: &Outgoing<'_>,
        progress: &mut Progress,
    ) -> Result<(http::Response<Incoming>, Slot), SendError> {
        let cluster = self.pool.cluster();
        for _ in 0..N_RESENDS {
            let mut slot = self.pool.acquire_slot().await.map_err(|text| self.not_sent(text))?;
            let unsigned =
                self.build(request, slot.h2_id().is_some()).map_err(|text| self.not_sent(text))?;
            let signed = cluster.add_credentials(unsigned).await;
            let signed = signed.map_err(|error| self.not_sent(error_chain(&*error).into()))?;
            *progress = Progress { sent_at: Some(Instant::now()), h2_id: slot.h2_id() };
            let mut sent = SentRequest::new(self, request.method);
            match slot.send(signed).await {
                Ok(response) => {
                    sent.status = Some(response.status().as_u16());
                    return Ok((response, slot));
                }
                Err(None) => {
                    sent.was_sent = false;
                    *progress = Progress::default();
                }
                Err(Some(error)) => {
                    let text = error_chain(&error).into();
                    return Err(SendError::Lost { server: self.server.clone(), text });
                }
            }
        }
        Err(self.not_sent("the server closes connections as soon as they are open".into()))
    }

    fn response_stream(&self, response: http::Response<Incoming>, slot: Slot) -> ResponseStream {
        let (head, body) = response.into_parts();
        let status = head.status.as_u16();
        let is_protobuf = head.headers.get(header::CONTENT_TYPE).is_some_and(|kind| {
            kind.as_bytes().starts_with(b"application/vnd.kubernetes.protobuf")
        });
        let retry_after = retry_after(&head.headers);
        ResponseStream { status, retry_after, is_protobuf, body, slot, server: self.server.clone() }
    }

    fn build(&self, request: &Outgoing<'_>, is_h2: bool) -> Result<Unsigned, Arc<str>> {
        let address = self.pool.cluster().address();
        let (prefix, path) = (&address.prefix, &request.path);
        let mut builder = http::Request::builder().method(request.method.clone());
        if is_h2 {
            let scheme = if address.is_https { "https" } else { "http" };
            builder = builder.uri(format!("{scheme}://{}{prefix}{path}", address.authority));
        } else {
            builder =
                builder.uri(format!("{prefix}{path}")).header(header::HOST, &address.authority);
        }
        match request.headers {
            Headers::Media { accept, content_type } => {
                builder = builder.header(header::ACCEPT, accept);
                if !request.body.is_empty() {
                    builder = builder.header(header::CONTENT_TYPE, content_type);
                }
            }
            Headers::All(headers) => {
                for (name, value) in headers {
                    builder = builder.header(name, value);
                }
            }
        }
        builder.body(Full::new(request.body.clone())).map_err(|error| error_chain(&error).into())
    }

    fn not_sent(&self, text: Arc<str>) -> SendError {
        SendError::NotSent { server: self.server.clone(), text }
    }

    /// The next request must not wait for the same connection, which may be dead.
    fn timed_out(&self, after: Duration, progress: &Progress) -> SendError {
        if let Some(sent_at) = progress.sent_at {
            self.pool.retire(progress.h2_id, sent_at);
        }
        let was_sent = progress.sent_at.is_some();
        SendError::TimedOut { server: self.server.clone(), after, was_sent }
    }
}

/// Reports the outcome of a request when it is dropped, which is also what a timeout does.
struct SentRequest<'a> {
    client: &'a ApiClient,
    method: &'a Method,
    began: Instant,
    status: Option<u16>,
    was_sent: bool,
}

impl<'a> SentRequest<'a> {
    fn new(client: &'a ApiClient, method: &'a Method) -> SentRequest<'a> {
        SentRequest { client, method, began: Instant::now(), status: None, was_sent: true }
    }
}

impl Drop for SentRequest<'_> {
    fn drop(&mut self) {
        let Some(observer) = self.client.observer.as_ref().filter(|_| self.was_sent) else {
            return;
        };
        observer(&RequestOutcome {
            method: self.method,
            host: &self.client.pool.cluster().address().authority,
            status: self.status,
            duration: self.began.elapsed(),
        });
    }
}

/// The Retry-After header in seconds; dates are ignored, as in client-go.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

impl ResponseStream {
    /// The next chunk of the body; None at the end.
    ///
    /// # Errors
    ///
    /// When the connection is lost, or nothing arrives within `timeout`.
    pub async fn next(&mut self, timeout: Duration) -> Result<Option<Bytes>, SendError> {
        let since = Instant::now();
        loop {
            let Ok(frame) = tokio::time::timeout(timeout, self.body.frame()).await else {
                self.slot.retire(since);
                let server = self.server.clone();
                return Err(SendError::TimedOut { server, after: timeout, was_sent: true });
            };
            match frame {
                None => {
                    self.slot.finish();
                    return Ok(None);
                }
                Some(Err(error)) => return Err(connection_lost(&self.server, &error)),
                Some(Ok(frame)) => {
                    if let Ok(piece) = frame.into_data() {
                        return Ok(Some(piece));
                    }
                }
            }
        }
    }

    /// Reads the whole body. Has no timeout of its own.
    ///
    /// # Errors
    ///
    /// When the connection is lost, or the body is too large.
    pub async fn collect(mut self, bytes_max: usize) -> Result<Bytes, SendError> {
        let server = self.server.clone();
        let mut body = Limited::new(self.body, bytes_max);
        let mut all = BytesMut::new();
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => {
                    if let Ok(piece) = frame.into_data() {
                        all.extend_from_slice(&piece);
                    }
                }
                Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                    return Err(SendError::TooLarge { server, bytes_max });
                }
                Err(error) => return Err(connection_lost(&server, &*error)),
            }
        }
        self.slot.finish();
        Ok(all.freeze())
    }
}

fn connection_lost(server: &Arc<str>, error: &(dyn std::error::Error + 'static)) -> SendError {
    SendError::Lost { server: server.clone(), text: error_chain(error).into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_headers_are_bounded() {
        #[track_caller]
        fn check(header: &'static str, want_s: Option<u64>) {
            let mut headers = HeaderMap::new();
            headers.insert(header::RETRY_AFTER, http::HeaderValue::from_static(header));
            assert_eq!(retry_after(&headers), want_s.map(Duration::from_secs), "{header:?}");
        }
        check("0", Some(0));
        check(" 7 ", Some(7));
        check("86400", Some(60));
        check("18446744073709551615", Some(60));
        check("99999999999999999999999", None);
        check("-1", None);
        check("Fri, 31 Dec 1999 23:59:59 GMT", None);
    }
}
