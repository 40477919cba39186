//! Connections of their own for each sort of traffic, so that a bind never waits behind a list, nor a lease behind events.
//!
//! A lane opens connections when it needs them, up to its limit. Over HTTP/2 a connection carries as many requests at a time as
//! the server's SETTINGS allow; over HTTP/1.1 it carries one, and the lane keeps a pool. Who finds no room waits.

mod pool;

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use std::sync::Arc;

use crate::answer::causes;
use crate::connect::{Cluster, Unsigned};
use pool::{Pool, Slot};

/// How many connections a lane may have.
#[derive(Clone, Copy, Debug)]
pub struct LaneLimits {
    /// Where the server speaks HTTP/2.
    pub http2_connections_max: usize,
    /// Where it does not.
    pub http1_connections_max: usize,
}

/// The lanes of a scheduler.
#[derive(Clone)]
pub struct Lanes {
    /// Binds.
    pub bind: Lane,
    /// Status patches, deletes, reads: all other calls.
    pub other: Lane,
    /// Lists and watches.
    pub watch: Lane,
    /// Events.
    pub events: Lane,
    /// The lease.
    pub lease: Lane,
}

impl Lanes {
    /// The lanes of a cluster. No connection is opened yet.
    pub fn new(cluster: &Cluster) -> Lanes {
        let lane = |name, http2_connections_max, http1_connections_max| {
            cluster.lane(name, LaneLimits { http2_connections_max, http1_connections_max })
        };
        Lanes {
            bind: lane("bind", 4, 64),
            other: lane("other", 2, 16),
            // Over HTTP/1.1 a watch holds its connection, and each kind has one.
            watch: lane("watch", 2, 64),
            events: lane("events", 1, 16),
            lease: lane("lease", 1, 2),
        }
    }
}

/// What is asked.
#[derive(Clone, Debug)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// Path and query, from `/api` or `/apis` on, percent-encoded.
    pub path: String,
    /// Media types that are understood.
    pub accept: &'static str,
    /// Media type of the body; ignored without one.
    pub content_type: &'static str,
    /// The body; may be empty.
    pub body: Bytes,
    /// For all of it: a place in the lane, the request and the whole answer. For a stream: until its head is there.
    pub timeout: Duration,
    /// The answer may not be larger.
    pub answer_bytes_max: usize,
}

/// Media types.
pub const JSON: &str = "application/json";
/// Protobuf, and JSON from servers that have no protobuf for a kind.
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf,application/json";

/// Time for an ordinary call: the API server gives up after 60 s itself.
const CALL: Duration = Duration::from_secs(60);
const ANSWER_BYTES_MAX: usize = 16 << 20;

impl Request {
    /// A request without a body that takes JSON.
    pub fn get(path: impl Into<String>) -> Request {
        Request {
            method: Method::GET,
            path: path.into(),
            accept: JSON,
            content_type: JSON,
            body: Bytes::new(),
            timeout: CALL,
            answer_bytes_max: ANSWER_BYTES_MAX,
        }
    }

    /// A request with a body in JSON.
    pub fn with(method: Method, path: impl Into<String>, body: impl Into<Bytes>) -> Request {
        Request { method, body: body.into(), ..Request::get(path) }
    }
}

/// What was answered.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// How long the server wants to be left alone.
    pub retry_after: Option<Duration>,
    /// The body is protobuf, else JSON.
    pub is_protobuf: bool,
    /// The whole body.
    pub body: Bytes,
}

impl Reply {
    /// Whether the server did as it was asked.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// No connection, or no credentials: the server has not seen the request.
    #[error("connecting to {server}: {text}")]
    NotSent {
        /// Its address.
        server: Arc<str>,
        /// What went wrong.
        text: Arc<str>,
    },
    /// The connection ended: the server may have acted upon the request.
    #[error("asking {server}: {text}")]
    Lost {
        /// Its address.
        server: Arc<str>,
        /// What went wrong.
        text: Arc<str>,
    },
    /// The answer takes too long.
    #[error("asking {server}: no answer in {} s", after.as_secs_f64())]
    TimedOut {
        /// Its address.
        server: Arc<str>,
        /// So long was waited.
        after: Duration,
        /// The request may have arrived.
        was_sent: bool,
    },
    /// An answer that grew without end.
    #[error("asking {server}: the answer is larger than {bytes_max} bytes")]
    TooLarge {
        /// Its address.
        server: Arc<str>,
        /// The limit.
        bytes_max: usize,
    },
}

impl SendError {
    /// Whether the server may have acted upon the request. Then only reading says what is true.
    pub fn may_have_arrived(&self) -> bool {
        match self {
            SendError::NotSent { .. } => false,
            SendError::TimedOut { was_sent, .. } => *was_sent,
            SendError::Lost { .. } | SendError::TooLarge { .. } => true,
        }
    }
}

/// An answer whose body is still coming.
pub struct Stream {
    /// The HTTP status.
    pub status: u16,
    /// How long the server wants to be left alone.
    pub retry_after: Option<Duration>,
    /// The body is protobuf, else JSON.
    pub is_protobuf: bool,
    body: Incoming,
    slot: Slot,
    server: Arc<str>,
}

/// Connections of their own. Cheap to clone.
#[derive(Clone)]
pub struct Lane {
    pool: Arc<Pool>,
    server: Arc<str>,
}

/// A request that found its connection closed has not been sent and is given to another one so often.
const N_RESENDS: usize = 3;

impl Lane {
    pub(crate) fn new(cluster: Cluster, name: &'static str, limits: LaneLimits) -> Lane {
        let server = cluster.server().into();
        Lane { pool: Arc::new(Pool::new(cluster, name, limits)), server }
    }

    /// The server's address, for people.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Asks, and reads the whole answer. An error status is an answer.
    ///
    /// # Errors
    ///
    /// When there is no answer, or too long a one.
    pub async fn call(&self, request: &Request) -> Result<Reply, SendError> {
        let mut was_sent = false;
        let whole = async {
            let stream = self.send(request, &mut was_sent).await?;
            let (status, retry_after, is_protobuf) =
                (stream.status, stream.retry_after, stream.is_protobuf);
            let body = stream.collect(request.answer_bytes_max).await?;
            Ok(Reply { status, retry_after, is_protobuf, body })
        };
        match tokio::time::timeout(request.timeout, whole).await {
            Ok(answered) => answered,
            Err(_) => Err(self.timed_out(request.timeout, was_sent)),
        }
    }

    /// Asks, and hands the answer over when its head is there.
    ///
    /// # Errors
    ///
    /// When no head comes.
    pub async fn open(&self, request: &Request) -> Result<Stream, SendError> {
        let mut was_sent = false;
        match tokio::time::timeout(request.timeout, self.send(request, &mut was_sent)).await {
            Ok(opened) => opened,
            Err(_) => Err(self.timed_out(request.timeout, was_sent)),
        }
    }

    async fn send(&self, request: &Request, was_sent: &mut bool) -> Result<Stream, SendError> {
        let cluster = self.pool.cluster();
        for _ in 0..N_RESENDS {
            let mut slot = self.pool.slot().await.map_err(|text| self.not_sent(text))?;
            let unsigned = self.build(request, slot.is_h2()).map_err(|text| self.not_sent(text))?;
            let signed = cluster.sign(unsigned).await;
            let signed = signed.map_err(|error| self.not_sent(causes(&*error).into()))?;
            *was_sent = true;
            match slot.send(signed).await {
                Ok(response) => return Ok(self.opened(response, slot)),
                Err(None) => *was_sent = false,
                Err(Some(error)) => {
                    let text = causes(&error).into();
                    return Err(SendError::Lost { server: self.server.clone(), text });
                }
            }
        }
        Err(self.not_sent("connections are closed as soon as they are open".into()))
    }

    fn opened(&self, response: http::Response<Incoming>, slot: Slot) -> Stream {
        let (head, body) = response.into_parts();
        let status = head.status.as_u16();
        if status == 401 {
            // A client certificate that has expired stays with its connection.
            self.pool.cluster().distrust_certificates();
            self.pool.retire();
        }
        let is_protobuf = head.headers.get(header::CONTENT_TYPE).is_some_and(|kind| {
            kind.as_bytes().starts_with(b"application/vnd.kubernetes.protobuf")
        });
        let retry_after = retry_after(&head.headers);
        Stream { status, retry_after, is_protobuf, body, slot, server: self.server.clone() }
    }

    fn build(&self, request: &Request, is_h2: bool) -> Result<Unsigned, Arc<str>> {
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
        builder = builder.header(header::ACCEPT, request.accept);
        if !request.body.is_empty() {
            builder = builder.header(header::CONTENT_TYPE, request.content_type);
        }
        builder.body(Full::new(request.body.clone())).map_err(|error| causes(&error).into())
    }

    fn not_sent(&self, text: Arc<str>) -> SendError {
        SendError::NotSent { server: self.server.clone(), text }
    }

    fn timed_out(&self, after: Duration, was_sent: bool) -> SendError {
        SendError::TimedOut { server: self.server.clone(), after, was_sent }
    }
}

/// Whole seconds; dates are not understood, as in client-go.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

impl Stream {
    /// The next piece; None at the end.
    ///
    /// # Errors
    ///
    /// When the connection ends, or is silent for too long.
    pub async fn next(&mut self, timeout: Duration) -> Result<Option<Bytes>, SendError> {
        loop {
            let Ok(frame) = tokio::time::timeout(timeout, self.body.frame()).await else {
                let server = self.server.clone();
                return Err(SendError::TimedOut { server, after: timeout, was_sent: true });
            };
            match frame {
                None => {
                    self.slot.finish();
                    return Ok(None);
                }
                Some(Err(error)) => return Err(lost(&self.server, &error)),
                Some(Ok(frame)) => {
                    if let Ok(piece) = frame.into_data() {
                        return Ok(Some(piece));
                    }
                }
            }
        }
    }

    /// The whole body. Has no timeout of its own.
    ///
    /// # Errors
    ///
    /// When the connection ends, or the body is too large.
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
                Err(error) => return Err(lost(&server, &*error)),
            }
        }
        self.slot.finish();
        Ok(all.freeze())
    }
}

fn lost(server: &Arc<str>, error: &(dyn std::error::Error + 'static)) -> SendError {
    SendError::Lost { server: server.clone(), text: causes(error).into() }
}
