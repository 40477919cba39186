//! `/metrics`: requests and stored objects, with kube-apiserver's names, labels and buckets.

use http::Response;
use jiff::Timestamp;
use prometheus::core::Collector;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry, TEXT_FORMAT,
    TextEncoder,
};

use super::body::Body;
use super::{ApiResponse, ApiServer, ParsedRequest};
use crate::audit::LongRunning;
use crate::schema::Kinds;
use crate::status::ApiError;

const BUCKETS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];

/// The labels of a request; the counter has `code`, too, and the gauge of watches has no `dry_run`.
const LABELS: [&str; 8] =
    ["verb", "group", "version", "resource", "subresource", "scope", "component", "dry_run"];

const N_GAUGE_LABELS: usize = 7;

/// The metrics of a server.
pub(super) struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    seconds: HistogramVec,
    watches: IntGaugeVec,
    objects: IntGaugeVec,
}

/// The values of [`LABELS`].
type LabelValues = [&'static str; LABELS.len()];

impl Metrics {
    pub(super) fn new() -> Result<Metrics, prometheus::Error> {
        let with_code = [&LABELS[..], &["code"]].concat();
        let seconds = HistogramOpts::new(
            "apiserver_request_duration_seconds",
            "Response latency distribution in seconds, without watches.",
        );
        let metrics = Metrics {
            registry: Registry::new(),
            requests: IntCounterVec::new(
                Opts::new("apiserver_request_total", "Counter of apiserver requests."),
                &with_code,
            )?,
            seconds: HistogramVec::new(seconds.buckets(BUCKETS.to_vec()), &LABELS)?,
            watches: IntGaugeVec::new(
                Opts::new("apiserver_longrunning_requests", "Gauge of all active watches."),
                &LABELS[..N_GAUGE_LABELS],
            )?,
            objects: IntGaugeVec::new(
                Opts::new("apiserver_resource_objects", "Number of stored objects."),
                &["group", "resource"],
            )?,
        };
        let all: [Box<dyn Collector>; 4] = [
            Box::new(metrics.requests.clone()),
            Box::new(metrics.seconds.clone()),
            Box::new(metrics.watches.clone()),
            Box::new(metrics.objects.clone()),
        ];
        for collector in all {
            metrics.registry.register(collector)?;
        }
        Ok(metrics)
    }
}

impl ApiServer {
    /// Counts a request. A watch counts as active until its response ends.
    pub(super) fn observe(
        &self,
        asked: &ParsedRequest<'_>,
        began: Timestamp,
        response: &mut Response<Body>,
    ) {
        let metrics = &self.shared.metrics;
        let labels = label_values(&self.kinds(), asked);
        let code = response.status().as_u16().to_string();
        metrics.requests.with_label_values(&[&labels[..], &[&code]].concat()).inc();
        if response.extensions().get::<LongRunning>().is_none() {
            let seconds = self.now().duration_since(began).as_secs_f64();
            metrics.seconds.with_label_values(&labels).observe(seconds);
            return;
        }
        let active = metrics.watches.with_label_values(&labels[..N_GAUGE_LABELS]);
        active.inc();
        response.body_mut().when_done(move || active.dec());
    }

    /// `/metrics`, in the text format of Prometheus.
    pub(super) fn metrics(&self) -> ApiResponse {
        let metrics = &self.shared.metrics;
        for kind in self.kinds().iter() {
            let Some(table) = kind.table else { continue };
            let n_objects = self.state().store.len(table);
            let gauge = metrics.objects.with_label_values(&[kind.group, kind.resource]);
            gauge.set(i64::try_from(n_objects).unwrap_or(i64::MAX));
        }
        match TextEncoder::new().encode_to_string(&metrics.registry.gather()) {
            Ok(text) => ApiResponse::from_bytes(200, TEXT_FORMAT, text),
            Err(error) => ApiResponse::error(&ApiError::internal(&error.to_string())),
        }
    }
}

/// The labels name served resources only, so that no client can make any number of series.
fn label_values(kinds: &Kinds, asked: &ParsedRequest<'_>) -> LabelValues {
    let verb = match asked.verb {
        Some("get") => "GET",
        Some("list") => "LIST",
        Some("watch") => "WATCH",
        Some("create") => "POST",
        Some("update") => "PUT",
        Some("patch") => "PATCH",
        Some("delete") => "DELETE",
        Some("deletecollection") => "DELETECOLLECTION",
        _ if asked.request.method() == http::Method::GET => "GET",
        _ => "other",
    };
    let mut labels = [verb, "", "", "", "", "", "apiserver", ""];
    let target = asked.target;
    let kind = target.and_then(|it| kinds.find(&it.group, &it.version, &it.resource));
    if let (Some(target), Some(kind)) = (target, kind) {
        let subresource = kind.subresource(&target.subresource);
        let scope = match (target.name.is_empty(), target.namespace.is_empty()) {
            _ if verb == "POST" => "resource",
            (false, _) => "resource",
            (true, false) => "namespace",
            (true, true) => "cluster",
        };
        labels[1..6].copy_from_slice(&[
            kind.group,
            kind.version,
            kind.resource,
            subresource.map_or("", |it| it.name),
            scope,
        ]);
    }
    if matches!(asked.query.dry_run(), Ok(true)) {
        labels[7] = "All";
    }
    labels
}
