//! HTTP probes of a container.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::Method;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::network::Forwarder;
use super::sandbox::Sandbox;
use crate::e2e::api_client::ApiClient;

/// What a probe has found out so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Not often enough the same.
    Unknown,
    Success,
    Failure,
}

/// A probe that is repeated until it is dropped.
pub struct Probe {
    finding: watch::Receiver<Finding>,
    task: JoinHandle<()>,
}

/// How often, and when a result counts, with the defaults of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rhythm {
    delay: Duration,
    period: Duration,
    timeout: Duration,
    n_successes: u64,
    n_failures: u64,
}

impl Rhythm {
    fn of(probe: &Value) -> Rhythm {
        let number = |field: &str, default: u64| probe[field].as_u64().unwrap_or(default);
        Rhythm {
            delay: Duration::from_secs(number("initialDelaySeconds", 0)),
            period: Duration::from_secs(number("periodSeconds", 10)),
            timeout: Duration::from_secs(number("timeoutSeconds", 1)),
            n_successes: number("successThreshold", 1),
            n_failures: number("failureThreshold", 3),
        }
    }
}

/// Equal results in a row.
#[derive(Debug)]
struct Row {
    is_success: bool,
    length: u64,
}

impl Row {
    /// Adds a result; returns what is known then.
    fn add(&mut self, is_success: bool, rhythm: Rhythm, before: Finding) -> Finding {
        if is_success != self.is_success {
            *self = Row { is_success, length: 0 };
        }
        self.length += 1;
        match is_success {
            true if self.length >= rhythm.n_successes => Finding::Success,
            false if self.length >= rhythm.n_failures => Finding::Failure,
            _ => before,
        }
    }
}

impl Probe {
    /// Starts the probe of this name, such as `readinessProbe`, if the container has it.
    pub fn start(container: &Value, name: &str, sandbox: &Sandbox) -> Result<Option<Probe>> {
        let Some(probe) = container.get(name) else { return Ok(None) };
        let request = probe.get("httpGet").context("only httpGet is implemented")?;
        ensure!(
            request["httpHeaders"].is_null() && request["host"].is_null(),
            "only a path is implemented"
        );
        let port = port(container, &request["port"])?;
        let scheme = if request["scheme"] == "HTTPS" { "https" } else { "http" };
        let path = request["path"].as_str().unwrap_or("/").to_owned();
        let forwarder = Forwarder::from_here(sandbox.port(port))?;
        let url = format!("{scheme}://{}", forwarder.address());
        let rhythm = Rhythm::of(probe);
        let (sender, finding) = watch::channel(Finding::Unknown);
        let task = tokio::spawn(async move {
            // As long as the probe.
            let _forwarder = forwarder;
            tokio::time::sleep(rhythm.delay).await;
            let mut row = Row { is_success: false, length: 0 };
            let mut finding = Finding::Unknown;
            loop {
                let answer = tokio::time::timeout(rhythm.timeout, is_well(&url, &path)).await;
                finding = row.add(answer.unwrap_or(false), rhythm, finding);
                sender.send_replace(finding);
                tokio::time::sleep(rhythm.period).await;
            }
        });
        Ok(Some(Probe { finding, task }))
    }

    pub fn finding(&self) -> Finding {
        *self.finding.borrow()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether the answer has a status from 200 to 399, on a new connection, as the kubelet asks.
async fn is_well(url: &str, path: &str) -> bool {
    let Ok(client) = ApiClient::insecure(url, None) else { return false };
    let answer = client.request(Method::GET, path, Vec::new()).await;
    answer.is_ok_and(|answer| (200..400).contains(&answer.status))
}

/// A port by its number or its name.
fn port(container: &Value, port: &Value) -> Result<u16> {
    let number = match port.as_str() {
        None => port.as_u64(),
        Some(name) => {
            let mut ports = container["ports"].as_array().into_iter().flatten();
            ports.find(|it| it["name"] == name).and_then(|it| it["containerPort"].as_u64())
        }
    };
    let number = number.with_context(|| format!("the container has no port {port}"))?;
    u16::try_from(number).with_context(|| format!("the port {number}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn results_in_a_row_count() {
        let rhythm = Rhythm::of(&json!({"failureThreshold": 2, "successThreshold": 2}));
        let mut row = Row { is_success: false, length: 0 };
        let mut finding = Finding::Unknown;
        let mut found = Vec::new();
        for is_success in [false, true, true, false, true, false, false] {
            finding = row.add(is_success, rhythm, finding);
            found.push(finding);
        }
        use Finding::{Failure, Success, Unknown};
        assert_eq!(found, [Unknown, Unknown, Success, Success, Success, Success, Failure]);
    }

    #[test]
    fn ports_have_names() {
        let container = json!({"ports": [{"name": "https", "containerPort": 10259}]});
        let check = |of: Value, want: Option<u16>| assert_eq!(port(&container, &of).ok(), want);
        check(json!("https"), Some(10259));
        check(json!("http"), None);
        check(json!(80), Some(80));
        check(json!(70000), None);
    }
}
