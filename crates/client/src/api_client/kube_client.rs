//! A `kube::Client` over the connections of an [`ApiClient`].
//!
//! kube-rs makes the requests and decodes the responses; connections, TLS, credentials (also those that are renewed) and the user agent
//! are those of all other requests of this process. Requests are in JSON.

#![expect(clippy::disallowed_types, reason = "requests of concurrent tasks share a rate limit")]

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, HOST, HeaderValue};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming};
use tokio::time::{Instant, Sleep, sleep};
use tower::{BoxError, service_fn};

use super::pool::Slot;
use super::{
    ApiClient, CALL_TIMEOUT, Headers, JSON_MEDIA_TYPE, Outgoing, Progress, SendError,
    connection_lost,
};
use crate::flowcontrol::TokenBucket;

/// Size limit of a response that is not a stream; kube-rs' watchers list in pages of 500 objects.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

/// A watch or another stream that is silent for this long is ended. The API server ends watches of kube-rs after 290 s.
const STREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(300);

impl ApiClient {
    /// A kube-rs client over these connections. All its clones together send at most `qps` requests per second, and `burst` at once, as
    /// [`TokenBucket::new`] reads these numbers. Requests end with an error after 60 s; watches, and logs that are followed, when they
    /// are silent for 300 s.
    ///
    /// Must be called in a tokio runtime, which runs a task of the client.
    pub fn kube_client(&self, qps: f32, burst: i32) -> kube::Client {
        let namespace = self.pool.cluster().default_namespace().to_owned();
        let client = self.clone();
        let limiter = Arc::new(RateLimiter {
            bucket: Mutex::new(TokenBucket::new(qps, burst)),
            started: Instant::now(),
        });
        let send = move |request: http::Request<kube::client::Body>| {
            let (client, limiter) = (client.clone(), limiter.clone());
            async move {
                limiter.wait().await;
                client.send_kube_request(request).await
            }
        };
        kube::Client::new(service_fn(send), namespace)
    }

    async fn send_kube_request(
        &self,
        request: http::Request<kube::client::Body>,
    ) -> Result<http::Response<KubeResponseBody>, BoxError> {
        let (mut head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        for name in [HOST, CONTENT_LENGTH, AUTHORIZATION] {
            head.headers.remove(name);
        }
        head.headers.entry(ACCEPT).or_insert(HeaderValue::from_static(JSON_MEDIA_TYPE));
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let is_stream = head.uri.query().is_some_and(is_stream_query);
        let outgoing = Outgoing {
            method: &head.method,
            path,
            headers: Headers::All(&head.headers),
            body: &body,
        };
        let mut progress = Progress::default();
        let began = Instant::now();
        let sent = tokio::time::timeout(CALL_TIMEOUT, self.send(outgoing, &mut progress)).await;
        let (response, slot) = match sent {
            Ok(sent) => sent?,
            Err(_) => return Err(self.timed_out(CALL_TIMEOUT, &progress).into()),
        };
        let (mut head, body) = response.into_parts();
        // The body is passed on as it is read.
        head.headers.remove(CONTENT_LENGTH);
        let timeout = if is_stream { STREAM_IDLE_TIMEOUT } else { CALL_TIMEOUT };
        let started_at = if is_stream { Instant::now() } else { began };
        let body = KubeResponseBody {
            body,
            slot,
            server: self.server.clone(),
            timer: Box::pin(tokio::time::sleep_until(started_at + timeout)),
            timeout,
            bytes_left: (!is_stream).then_some(RESPONSE_BYTES_MAX),
        };
        Ok(http::Response::from_parts(head, body))
    }
}

/// Whether the response lasts until one side ends it.
fn is_stream_query(query: &str) -> bool {
    let is_set = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, "true"));
        matches!(key, "watch" | "follow") && matches!(value, "true" | "1")
    };
    query.split('&').any(is_set)
}

struct RateLimiter {
    bucket: Mutex<TokenBucket>,
    started: Instant,
}

impl RateLimiter {
    async fn wait(&self) {
        let wait = {
            let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
            bucket.reserve(self.started.elapsed())
        };
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }
}

/// The body of a response, with its limits. The connection can be reused when it has been read to its end.
struct KubeResponseBody {
    body: Incoming,
    slot: Slot,
    server: Arc<str>,
    timer: Pin<Box<Sleep>>,
    timeout: Duration,
    /// `None` for a stream, whose timer starts again with each frame.
    bytes_left: Option<usize>,
}

impl Body for KubeResponseBody {
    type Data = Bytes;
    type Error = SendError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, SendError>>> {
        let this = &mut *self;
        match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Ready(None) => {
                this.slot.finish();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Ok(frame))) => {
                let n_bytes = frame.data_ref().map_or(0, Bytes::len);
                match &mut this.bytes_left {
                    None => this.timer.as_mut().reset(Instant::now() + this.timeout),
                    Some(left) if n_bytes <= *left => *left -= n_bytes,
                    Some(_) => {
                        let (server, bytes_max) = (this.server.clone(), RESPONSE_BYTES_MAX);
                        return Poll::Ready(Some(Err(SendError::TooLarge { server, bytes_max })));
                    }
                }
                if this.body.is_end_stream() {
                    this.slot.finish();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                Poll::Ready(Some(Err(connection_lost(&this.server, &error))))
            }
            Poll::Pending => this.timer.as_mut().poll(context).map(|()| {
                let (server, after) = (this.server.clone(), this.timeout);
                this.slot.retire(Instant::now() - after);
                Some(Err(SendError::TimedOut { server, after, was_sent: true }))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_and_followed_logs_are_streams() {
        for (query, want) in [
            ("watch=true&resourceVersion=5", true),
            ("resourceVersion=5&watch=1", true),
            ("&follow=true", true),
            ("limit=500", false),
            ("watch=false", false),
            ("labelSelector=watch%3Dtrue", false),
        ] {
            assert_eq!(is_stream_query(query), want, "{query}");
        }
    }
}
