//! Response bodies: complete bytes, or produced while they are read.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

/// The next part of a body, and the producer of the rest.
type Step = Pin<Box<dyn Future<Output = Option<(Bytes, Box<dyn Parts>)>> + Send>>;

/// Produces a body in parts.
pub(crate) trait Parts: Send {
    /// The next part; none at the end.
    fn next(self: Box<Self>) -> Step;
}

pub(crate) type NextPart = Step;

/// The body of a response.
pub struct Body {
    inner: Inner,
    done: Vec<Done>,
}

/// What runs when a body has been sent or dropped.
struct Done(Option<Box<dyn FnOnce() + Send>>);

impl Drop for Done {
    fn drop(&mut self) {
        if let Some(act) = self.0.take() {
            act();
        }
    }
}

enum Inner {
    Whole(Option<Bytes>),
    Parts(Option<Step>),
}

impl Body {
    /// All bytes at once.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Body {
        Body { inner: Inner::Whole(Some(bytes.into())), done: Vec::new() }
    }

    pub(crate) fn parts(parts: Box<dyn Parts>) -> Body {
        Body { inner: Inner::Parts(Some(parts.next())), done: Vec::new() }
    }

    /// Whether it is produced while it is read.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.inner, Inner::Parts(_))
    }

    /// Runs a function when the body has been sent or dropped.
    pub(crate) fn when_done(&mut self, act: impl FnOnce() + Send + 'static) {
        self.done.push(Done(Some(Box::new(act))));
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match &mut self.inner {
            Inner::Whole(bytes) => {
                Poll::Ready(bytes.take().filter(|it| !it.is_empty()).map(|it| Ok(Frame::data(it))))
            }
            Inner::Parts(step) => {
                let Some(future) = step else { return Poll::Ready(None) };
                match future.as_mut().poll(cx) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(None) => {
                        *step = None;
                        Poll::Ready(None)
                    }
                    Poll::Ready(Some((bytes, parts))) => {
                        *step = Some(parts.next());
                        Poll::Ready(Some(Ok(Frame::data(bytes))))
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Inner::Parts(step) => step.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            Inner::Parts(_) => SizeHint::default(),
        }
    }
}
