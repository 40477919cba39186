//! What is counted: requests by verb and code, and how long they took.

#![expect(clippy::disallowed_types, reason = "measuring is reading a clock")]

use std::time::Instant;

use http::StatusCode;
use prometheus::{
    Encoder as _, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
};

/// From half a millisecond to the time that a scheduler waits, and beyond.
const SECONDS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

pub(crate) struct Metrics {
    registry: Registry,
    vectors: Option<Vectors>,
}

struct Vectors {
    requests: IntCounterVec,
    seconds: HistogramVec,
    under_way: IntGauge,
}

impl Metrics {
    pub fn new() -> Metrics {
        let registry = Registry::new();
        // These names and labels are right; were they not, there would be no metrics, and the extender would still work.
        let vectors = Vectors::new(&registry).ok();
        Metrics { registry, vectors }
    }

    /// A request to a verb has come.
    pub fn begin<'a>(&'a self, verb: &'a str) -> Request<'a> {
        let vectors = self.vectors.as_ref();
        vectors.inspect(|it| it.under_way.inc());
        Request { vectors, verb, since: Instant::now(), code: StatusCode::REQUEST_TIMEOUT }
    }

    /// All of it, as Prometheus reads it.
    pub fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::warn!(err = %error, "Writing metrics failed");
        }
        text
    }
}

impl Vectors {
    fn new(registry: &Registry) -> Result<Vectors, prometheus::Error> {
        let requests = Opts::new("extender_requests_total", "Requests by verb and HTTP status.");
        let seconds = HistogramOpts::new(
            "extender_request_duration_seconds",
            "From the head of a request to its answer, by verb.",
        );
        let vectors = Vectors {
            requests: IntCounterVec::new(requests, &["verb", "code"])?,
            seconds: HistogramVec::new(seconds.buckets(SECONDS.to_vec()), &["verb"])?,
            under_way: IntGauge::new("extender_requests_in_flight", "Requests under way.")?,
        };
        registry.register(Box::new(vectors.requests.clone()))?;
        registry.register(Box::new(vectors.seconds.clone()))?;
        registry.register(Box::new(vectors.under_way.clone()))?;
        Ok(vectors)
    }
}

/// A request under way; counted when dropped, so that one whose client left counts too.
pub(crate) struct Request<'a> {
    vectors: Option<&'a Vectors>,
    verb: &'a str,
    since: Instant,
    code: StatusCode,
}

impl Request<'_> {
    /// It is answered with this.
    pub fn end(mut self, code: StatusCode) {
        self.code = code;
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let Some(vectors) = self.vectors else { return };
        vectors.under_way.dec();
        vectors.requests.with_label_values(&[self.verb, self.code.as_str()]).inc();
        vectors.seconds.with_label_values(&[self.verb]).observe(self.since.elapsed().as_secs_f64());
    }
}
