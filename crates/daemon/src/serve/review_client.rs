//! The few requests of the endpoints to the API server: TokenReviews, SubjectAccessReviews and one ConfigMap. The
//! requests are plain values, so that any client can send them and tests can script the responses.

use std::pin::Pin;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub struct ReviewRequest {
    /// `GET` or `POST`.
    pub method: &'static str,
    /// `/apis/authentication.k8s.io/v1/tokenreviews`.
    pub path: String,
    /// The object to create.
    pub body: Option<Value>,
}

/// The response, successful or not.
#[derive(Clone, Debug, PartialEq)]
pub struct ReviewResponse {
    /// The HTTP status.
    pub status: u16,
    /// The object.
    pub body: Value,
}

/// The result of a [`ReviewClient`]: a response, or an error without a response.
pub type ReviewFuture<'a> =
    Pin<Box<dyn Future<Output = Result<ReviewResponse, String>> + Send + 'a>>;

/// A client for these requests. Implemented by closures `Fn(ReviewRequest) -> impl Future`.
pub trait ReviewClient: Send + Sync {
    /// Sends the request once, without retries.
    fn call(&self, call: ReviewRequest) -> ReviewFuture<'_>;
}

impl<F, A> ReviewClient for F
where
    F: Fn(ReviewRequest) -> A + Send + Sync,
    A: Future<Output = Result<ReviewResponse, String>> + Send + 'static,
{
    fn call(&self, call: ReviewRequest) -> ReviewFuture<'_> {
        Box::pin(self(call))
    }
}

/// The timeout of a review, including retries.
const REVIEW_TIME_MAX: Duration = Duration::from_secs(10);
/// Upstream's backoff of reviews: number of retries and first delay, which grows by half each time.
const RETRIES: u32 = 4;
const INITIAL_BACKOFF: Duration = Duration::from_millis(500);

/// Creates a review, with retries; `record` is called with the status and duration of each attempt.
pub(super) async fn review(
    api: &dyn ReviewClient,
    path: &str,
    body: Value,
    record: impl Fn(Option<u16>, f64),
) -> Result<Value, String> {
    let attempts = async {
        let mut delay = INITIAL_BACKOFF;
        for attempt in 0..=RETRIES {
            let started = Instant::now();
            let call =
                ReviewRequest { method: "POST", path: path.to_owned(), body: Some(body.clone()) };
            let reply = api.call(call).await;
            let code = reply.as_ref().ok().map(|reply| reply.status);
            record(code, started.elapsed().as_secs_f64());
            match reply {
                Ok(ReviewResponse { status: 200..=299, body }) => return Ok(body),
                // Too many requests, internal error, timeout or no response: retry.
                Ok(ReviewResponse { status: 429 | 500 | 504, .. }) | Err(_)
                    if attempt < RETRIES => {}
                Ok(reply) => return Err(error_message(path, &reply)),
                Err(error) => return Err(format!("Post {path:?}: {error}")),
            }
            sleep(delay).await;
            delay = delay * 3 / 2;
        }
        Err(format!("Post {path:?}: no response"))
    };
    match timeout(REVIEW_TIME_MAX, attempts).await {
        Ok(result) => result,
        Err(_) => Err(format!("Post {path:?}: no response within {REVIEW_TIME_MAX:?}")),
    }
}

/// The error message of a failed request.
pub(super) fn error_message(path: &str, reply: &ReviewResponse) -> String {
    let message = reply.body.get("message").and_then(Value::as_str).unwrap_or("no reason given");
    format!("{path}: status {}: {message}", reply.status)
}
