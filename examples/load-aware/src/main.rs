//! Prefers nodes with a low load, as reported by an HTTP endpoint.
//!
//! A background service polls the endpoint every ten seconds and publishes the report; Score reads it. When the endpoint stops
//! answering, the last report expires after 30 seconds and all nodes get the same score. For a node that is not in the report the
//! annotation `example.com/expected-load` is used.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use loadmaster::SchedulerCommand;
use loadmaster::framework::{incremental::RowDependency, *};
use loadmaster::service::{ServiceHandle, ServiceResult};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

const NAME: &str = "LoadAware";
const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

const EXPECTED_LOAD_ANNOTATION: &str = "example.com/expected-load";

const POLL_PERIOD: Duration = Duration::from_secs(10);
const REPORT_TTL: Duration = Duration::from_secs(30);
const REPORT_BYTES_MAX: u64 = 16 << 20;

/// Load of nodes, 0 to 1, by name.
type Report = BTreeMap<String, f64>;

#[derive(Clone, Copy)]
struct Plugin {
    report: PublishedValueSlot<Report>,
}

fn build(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    points.request_field(ExtraField::NodeAnnotations);
    let plugin = Arc::new(Plugin { report: points.published_value_slot() });
    points.score = Some(plugin.clone());
    points.incremental = Some(plugin);
    points.register_no_events();
    Ok(())
}

impl Plugin {
    /// Without a report all nodes get the same score. A node without any information counts as half loaded.
    fn node_score(&self, cx: EvaluatorCx<'_>, node: NodeInfo<'_>) -> i64 {
        let Some(report) = cx.published_value(self.report) else { return 0 };
        let expected = || {
            node.annotation(EXPECTED_LOAD_ANNOTATION)?
                .parse()
                .ok()
                .filter(|load: &f64| !load.is_nan())
        };
        let load = report.get(node.name()).copied().or_else(expected).unwrap_or(0.5);
        let load = load.clamp(0.0, 1.0);
        MAX_NODE_SCORE - (load * MAX_NODE_SCORE as f64).round() as i64
    }
}

impl Score for Plugin {
    fn score(&self, cx: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        Ok(self.node_score(cx.evaluator_cx(), node))
    }
}

/// The score does not depend on the pod: all pods share the results. A new report, and a change of a node, make them be computed again.
impl Incremental for Plugin {
    type Key = ();

    fn key(&self, _: EvaluatorCx<'_>, _: &PodInfo) -> Option<()> {
        Some(())
    }

    fn prepare(&self, _: &mut PrepareCx<'_>, (): &()) -> PrepareResult {
        let plugin = *self;
        PrepareResult::row_local(RowDependency::Node, move |cx, row| {
            Some(plugin.node_score(cx, cx.world.node(row)?))
        })
    }
}

/// Polls and publishes until an error occurs; then the scheduler logs it and restarts this service with a backoff.
async fn poll(handle: ServiceHandle, address: String) -> ServiceResult {
    loop {
        let report = timeout(POLL_PERIOD, fetch(&address)).await??;
        handle.publish(NAME, &report, REPORT_TTL).await?;
        sleep(POLL_PERIOD).await;
    }
}

/// `GET /load` over plain HTTP: an object of node names and loads.
async fn fetch(address: &str) -> Result<Report, Box<dyn std::error::Error + Send + Sync>> {
    let mut stream = TcpStream::connect(address).await?;
    let request =
        format!("GET /load HTTP/1.0\r\nHost: {address}\r\nAccept: application/json\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.take(REPORT_BYTES_MAX).read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("the response header is incomplete")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    if status != "200" {
        return Err(format!("{address} answered {status}").into());
    }
    Ok(serde_json::from_str(body)?)
}

fn main() -> std::process::ExitCode {
    #[expect(clippy::disallowed_methods, reason = "a program reads its own environment")]
    let address = std::env::var("LOAD_ADDRESS").unwrap_or_else(|_| "127.0.0.1:9105".to_owned());
    let start = move |handle| poll(handle, address.clone());
    SchedulerCommand::new()
        .with_name(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
        .with_plugin(DEF)
        .with_service("load", start)
        .run()
}

#[cfg(test)]
mod tests;
