//! Fault injection into requests and response bodies, as [`Faults`] decide.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body::{Frame, SizeHint};
use loadmaster_serving::{Disconnect, Incoming, Peer};
use tokio::time::Sleep;

use super::{Service, respond};
use crate::fault_injection::{
    BodyFaults, ChunkFault, FaultDecision, FaultRequest, Faults, RequestFault,
};
use crate::request::{Query, RequestPath, request_verb};
use crate::server::{ApiResponse, Body, expired_frame};

/// An injected disconnect within a body.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("injected fault")]
pub(super) struct InjectedDisconnect;

/// Decides the faults of requests: rules, seed, and the number of requests so far.
#[derive(Debug, Default)]
pub struct FaultInjector {
    faults: Faults,
    seed: u64,
    n_asked: AtomicU64,
    is_over: Arc<AtomicBool>,
}

impl FaultInjector {
    /// Injects these faults, decided from a seed.
    pub fn new(faults: Faults, seed: u64) -> FaultInjector {
        FaultInjector { faults, seed, ..FaultInjector::default() }
    }

    /// Injects faults until the flag is set, so that tests can check whether clients catch up.
    #[must_use]
    pub fn until_stopped(self, is_over: &Arc<AtomicBool>) -> FaultInjector {
        FaultInjector { is_over: Arc::clone(is_over), ..self }
    }

    fn decide(&self, request: &Request<Incoming>) -> Option<FaultDecision> {
        if self.is_over.load(Ordering::Relaxed) {
            return None;
        }
        let target = RequestPath::parse(request.uri().path())?;
        let query = Query::parse(request.uri().query().unwrap_or_default());
        let verb = request_verb(request.method(), &target, &query)?;
        let agent = request.headers().get(header::USER_AGENT);
        let user_agent = agent.and_then(|it| it.to_str().ok()).unwrap_or_default();
        let revision = query.get("resourceVersion").unwrap_or("0");
        let is_continuation = match verb {
            "watch" => revision != "0" && query.get("sendInitialEvents").is_none(),
            _ => query.get("continue").is_some(),
        };
        let nth = || self.n_asked.fetch_add(1, Ordering::Relaxed);
        self.faults.decide_faults(
            self.seed,
            nth,
            FaultRequest { verb, target: &target, user_agent, is_continuation },
        )
    }
}

/// Handles a request with its injected faults.
pub(super) async fn respond_with_faults(
    service: &Service,
    peer: &Peer,
    request: Request<Incoming>,
) -> Response<FaultyBody> {
    let Some(FaultDecision { delay, fate, stream }) = service.faults.decide(&request) else {
        return respond(service, peer, request).await.map(FaultyBody::without_faults);
    };
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    let refused =
        |error| ApiResponse::error(&error).into_response().map(FaultyBody::without_faults);
    match fate {
        RequestFault::Pass => {
            let response = respond(service, peer, request).await;
            let is_refusal = response.status().is_client_error();
            let content_type = response.headers().get(header::CONTENT_TYPE).cloned();
            response.map(|body| match is_refusal || stream.has_no_faults() {
                true => FaultyBody::without_faults(body),
                false => {
                    FaultyBody { body, faulty: Some(BodyFaultState::new(stream, content_type)) }
                }
            })
        }
        RequestFault::Reject(error) => refused(error),
        RequestFault::Drop => disconnect(),
        RequestFault::DropResponse => {
            respond(service, peer, request).await;
            disconnect()
        }
        RequestFault::ErrorAfterExecution(error) => {
            respond(service, peer, request).await;
            refused(error)
        }
    }
}

/// In place of a response.
fn disconnect() -> Response<FaultyBody> {
    let mut response = Response::new(FaultyBody::without_faults(Body::from_bytes(Bytes::new())));
    response.extensions_mut().insert(Disconnect);
    response
}

/// A response body, perhaps with faults.
pub(super) struct FaultyBody {
    body: Body,
    faulty: Option<BodyFaultState>,
}

struct BodyFaultState {
    stream: BodyFaults,
    content_type: Option<HeaderValue>,
    /// A delayed part; later parts wait for it.
    late: Option<(Pin<Box<Sleep>>, Bytes)>,
    end: End,
}

enum End {
    /// As the body ends.
    Open,
    /// Nothing more comes.
    Over,
    /// The connection breaks now.
    Broken,
}

impl FaultyBody {
    pub fn without_faults(body: Body) -> FaultyBody {
        FaultyBody { body, faulty: None }
    }
}

impl BodyFaultState {
    fn new(stream: BodyFaults, content_type: Option<HeaderValue>) -> BodyFaultState {
        BodyFaultState { stream, content_type, late: None, end: End::Open }
    }

    /// What is sent in place of a part; none if it is delayed.
    fn pass(&mut self, part: Bytes) -> Option<Bytes> {
        match self.stream.next_chunk_fault(part.len()) {
            ChunkFault::Pass(Duration::ZERO) => Some(part),
            ChunkFault::Pass(late) => {
                self.late = Some((Box::pin(tokio::time::sleep(late)), part));
                None
            }
            ChunkFault::Cut(n) => {
                self.end = End::Broken;
                Some(part.slice(..n))
            }
            ChunkFault::Expire => {
                self.end = End::Over;
                Some(expired_frame(self.content_type.as_ref()))
            }
        }
    }
}

impl http_body::Body for FaultyBody {
    type Data = Bytes;
    type Error = InjectedDisconnect;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, InjectedDisconnect>>> {
        let FaultyBody { body, faulty } = &mut *self;
        loop {
            if let Some(faulty) = faulty {
                match faulty.end {
                    End::Open => {}
                    End::Over => return Poll::Ready(None),
                    End::Broken => return Poll::Ready(Some(Err(InjectedDisconnect))),
                }
                if let Some((sleep, _)) = &mut faulty.late {
                    ready!(sleep.as_mut().poll(cx));
                    let part = faulty.late.take().map(|(_, part)| part).unwrap_or_default();
                    return Poll::Ready(Some(Ok(Frame::data(part))));
                }
            }
            let Some(Ok(frame)) = ready!(Pin::new(&mut *body).poll_frame(cx)) else {
                return Poll::Ready(None);
            };
            let Some(faulty) = faulty else { return Poll::Ready(Some(Ok(frame))) };
            // Our bodies have no other frames.
            let Ok(part) = frame.into_data() else { continue };
            if let Some(part) = faulty.pass(part) {
                return Poll::Ready(Some(Ok(Frame::data(part))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.faulty.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
