//! Where [`Faults`] take effect.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::{Service, respond};
use crate::faults::{Asked, Decision, Fate, Faults, Part, Stream};
use crate::request::{Query, Target, verb};
use crate::server::{Answer, Body, gone_frame};

/// The connection breaks on purpose.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a fault was asked for")]
pub(super) struct Cut;

/// Faults and how far their stream of chance has come.
#[derive(Debug, Default)]
pub struct FaultStream {
    faults: Faults,
    seed: u64,
    n_asked: AtomicU64,
    is_over: Arc<AtomicBool>,
}

impl FaultStream {
    /// Faults that a seed decides.
    pub fn new(faults: Faults, seed: u64) -> FaultStream {
        FaultStream { faults, seed, ..FaultStream::default() }
    }

    /// They come until somebody says that they are over: whether clients catch up can be asked then.
    #[must_use]
    pub fn until(self, is_over: &Arc<AtomicBool>) -> FaultStream {
        FaultStream { is_over: Arc::clone(is_over), ..self }
    }

    fn decide(&self, request: &Request<Incoming>) -> Option<Decision> {
        if self.is_over.load(Ordering::Relaxed) {
            return None;
        }
        let target = Target::parse(request.uri().path())?;
        let query = Query::parse(request.uri().query().unwrap_or_default());
        let verb = verb(request.method(), &target, &query)?;
        let agent = request.headers().get(header::USER_AGENT);
        let user_agent = agent.and_then(|it| it.to_str().ok()).unwrap_or_default();
        let revision = query.get("resourceVersion").unwrap_or("0");
        let goes_on = match verb {
            "watch" => revision != "0" && query.get("sendInitialEvents").is_none(),
            _ => query.get("continue").is_some(),
        };
        let nth = || self.n_asked.fetch_add(1, Ordering::Relaxed);
        self.faults.decide(self.seed, nth, Asked { verb, target: &target, user_agent, goes_on })
    }
}

/// Answers a request, or does to it what the faults say.
pub(super) async fn respond_or_fail(
    service: &Service,
    request: Request<Incoming>,
) -> Result<Response<Sent>, Cut> {
    let Some(Decision { delay, fate, stream }) = service.faults.decide(&request) else {
        return Ok(respond(service, request).await.map(Sent::sound));
    };
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    let refused = |error| Ok(Answer::error(&error).into_response().map(Sent::sound));
    match fate {
        Fate::Pass => {
            let response = respond(service, request).await;
            let is_refusal = response.status().is_client_error();
            let content_type = response.headers().get(header::CONTENT_TYPE).cloned();
            Ok(response.map(|body| match is_refusal || stream.is_sound() {
                true => Sent::sound(body),
                false => Sent { body, faulty: Some(Faulty::new(stream, content_type)) },
            }))
        }
        Fate::Refuse(error) => refused(error),
        Fate::Drop => Err(Cut),
        Fate::Lose => {
            respond(service, request).await;
            Err(Cut)
        }
        Fate::Deny(error) => {
            respond(service, request).await;
            refused(error)
        }
    }
}

/// A body, perhaps with faults.
pub(super) struct Sent {
    body: Body,
    faulty: Option<Faulty>,
}

struct Faulty {
    stream: Stream,
    content_type: Option<HeaderValue>,
    /// A part that is late; those behind it wait.
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

impl Sent {
    pub fn sound(body: Body) -> Sent {
        Sent { body, faulty: None }
    }
}

impl Faulty {
    fn new(stream: Stream, content_type: Option<HeaderValue>) -> Faulty {
        Faulty { stream, content_type, late: None, end: End::Open }
    }

    /// What comes in place of a part; none when it is to be waited for.
    fn pass(&mut self, part: Bytes) -> Option<Bytes> {
        match self.stream.next(part.len()) {
            Part::Pass(Duration::ZERO) => Some(part),
            Part::Pass(late) => {
                self.late = Some((Box::pin(tokio::time::sleep(late)), part));
                None
            }
            Part::Cut(n) => {
                self.end = End::Broken;
                Some(part.slice(..n))
            }
            Part::Expire => {
                self.end = End::Over;
                Some(gone_frame(self.content_type.as_ref()))
            }
        }
    }
}

impl http_body::Body for Sent {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let Sent { body, faulty } = &mut *self;
        loop {
            if let Some(faulty) = faulty {
                match faulty.end {
                    End::Open => {}
                    End::Over => return Poll::Ready(None),
                    End::Broken => return Poll::Ready(Some(Err(Cut))),
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
