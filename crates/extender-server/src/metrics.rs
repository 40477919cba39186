//! Metrics: requests by verb and code, and their duration.

#![expect(clippy::disallowed_types, reason = "measuring is reading a clock")]

use std::time::Instant;

use http::StatusCode;
use prometheus::{
    Encoder as _, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
};

/// Histogram buckets, from half a millisecond to more than a scheduler's timeout.
const SECONDS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

pub(crate) struct Metrics {
    registry: Registry,
    vectors: Option<Vectors>,
}

struct Vectors {
    requests: IntCounterVec,
    seconds: HistogramVec,
    in_flight: IntGauge,
}

impl Metrics {
    pub fn new() -> Metrics {
        let registry = Registry::new();
        // These names and labels are valid; were they not, the extender would work without metrics.
        let vectors = Vectors::new(&registry).ok();
        Metrics { registry, vectors }
    }

    /// Counts a request in flight, until the returned timer is dropped.
    pub fn start_request<'a>(&'a self, verb: &'a str) -> RequestTimer<'a> {
        let vectors = self.vectors.as_ref();
        vectors.inspect(|it| it.in_flight.inc());
        RequestTimer { vectors, verb, since: Instant::now(), code: StatusCode::REQUEST_TIMEOUT }
    }

    /// All metrics in the Prometheus text format.
    pub fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::warn!(err = %error, "Encoding metrics failed");
        }
        text
    }
}

impl Vectors {
    fn new(registry: &Registry) -> Result<Vectors, prometheus::Error> {
        let requests = Opts::new(
            "extender_requests_total",
            "Number of requests by verb and HTTP status code.",
        );
        let seconds = HistogramOpts::new(
            "extender_request_duration_seconds",
            "Time from the head of a request to its response, by verb.",
        );
        let vectors = Vectors {
            requests: IntCounterVec::new(requests, &["verb", "code"])?,
            seconds: HistogramVec::new(seconds.buckets(SECONDS.to_vec()), &["verb"])?,
            in_flight: IntGauge::new(
                "extender_requests_in_flight",
                "Number of requests in flight.",
            )?,
        };
        registry.register(Box::new(vectors.requests.clone()))?;
        registry.register(Box::new(vectors.seconds.clone()))?;
        registry.register(Box::new(vectors.in_flight.clone()))?;
        Ok(vectors)
    }
}

/// Measures a request in flight; it is counted when dropped, also when its client has disconnected.
pub(crate) struct RequestTimer<'a> {
    vectors: Option<&'a Vectors>,
    verb: &'a str,
    since: Instant,
    code: StatusCode,
}

impl RequestTimer<'_> {
    /// Sets the status code of the response.
    pub fn finish(mut self, code: StatusCode) {
        self.code = code;
    }
}

impl Drop for RequestTimer<'_> {
    fn drop(&mut self) {
        let Some(vectors) = self.vectors else { return };
        vectors.in_flight.dec();
        vectors.requests.with_label_values(&[self.verb, self.code.as_str()]).inc();
        vectors.seconds.with_label_values(&[self.verb]).observe(self.since.elapsed().as_secs_f64());
    }
}
