//! The few questions that serving asks of the API server, as plain values: whoever has a client
//! answers them, a test scripts them.

use std::pin::Pin;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiCall {
    /// `GET` or `POST`.
    pub method: &'static str,
    /// `/apis/authentication.k8s.io/v1/tokenreviews`.
    pub path: String,
    /// The object that is posted.
    pub body: Option<Value>,
}

/// Its answer, be it a refusal.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiReply {
    /// The HTTP status.
    pub status: u16,
    /// The object.
    pub body: Value,
}

/// What an [`Api`] gives back: an answer, or why there is none.
pub type ApiFuture<'a> = Pin<Box<dyn Future<Output = Result<ApiReply, String>> + Send + 'a>>;

/// Somebody who can ask the API server. Closures `Fn(ApiCall) -> impl Future` are.
pub trait Api: Send + Sync {
    /// Asks once, without retries.
    fn call(&self, call: ApiCall) -> ApiFuture<'_>;
}

impl<F, A> Api for F
where
    F: Fn(ApiCall) -> A + Send + Sync,
    A: Future<Output = Result<ApiReply, String>> + Send + 'static,
{
    fn call(&self, call: ApiCall) -> ApiFuture<'_> {
        Box::pin(self(call))
    }
}

/// A review may take this long, retries included.
const REVIEW_TIME_MAX: Duration = Duration::from_secs(10);
/// Upstream's backoff of reviews: so often, so long, growing by half.
const RETRIES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// Posts a review until it is answered; `record` hears of each answer and its duration.
pub(super) async fn review(
    api: &dyn Api,
    path: &str,
    body: Value,
    record: impl Fn(Option<u16>, f64),
) -> Result<Value, String> {
    let attempts = async {
        let mut pause = FIRST_PAUSE;
        for attempt in 0..=RETRIES {
            let started = Instant::now();
            let call = ApiCall { method: "POST", path: path.to_owned(), body: Some(body.clone()) };
            let reply = api.call(call).await;
            let code = reply.as_ref().ok().map(|reply| reply.status);
            record(code, started.elapsed().as_secs_f64());
            match reply {
                Ok(ApiReply { status: 200..=299, body }) => return Ok(body),
                // Too many requests, internal error, timeout, no answer: the next may go better.
                Ok(ApiReply { status: 429 | 500 | 504, .. }) | Err(_) if attempt < RETRIES => {}
                Ok(reply) => return Err(refusal(path, &reply)),
                Err(error) => return Err(format!("Post {path:?}: {error}")),
            }
            sleep(pause).await;
            pause = pause * 3 / 2;
        }
        Err(format!("Post {path:?}: no answer"))
    };
    match timeout(REVIEW_TIME_MAX, attempts).await {
        Ok(result) => result,
        Err(_) => Err(format!("Post {path:?}: no answer within {REVIEW_TIME_MAX:?}")),
    }
}

/// A refusal in words.
pub(super) fn refusal(path: &str, reply: &ApiReply) -> String {
    let message = reply.body.get("message").and_then(Value::as_str).unwrap_or("no reason given");
    format!("{path}: status {}: {message}", reply.status)
}
