//! Runs a case on a server.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use http::Method;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use super::case::{Body, Case, ExpectedResponse, RequestStep, Step, WatchStep};
use super::compare::{Variables, merge, scalar_text};
use crate::e2e::api_client::ApiClient;

/// The timeout of watch events and of retried requests.
const STEP_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs a case in its own namespace. An error names the line whose response did not match.
pub async fn run_case(api: &ApiClient, case: &Case, namespace: &str) -> Result<()> {
    let steps = case.steps()?;
    api.create("/api/v1/namespaces", &json!({"metadata": {"name": namespace}})).await?;
    let mut variables = Variables::default();
    variables.set("ns", namespace.into());
    for step in &steps {
        match step {
            Step::Request(request) => {
                let result = match request.retries_until_match {
                    true => run_request_until_match(api, request, &mut variables).await,
                    false => run_request(api, request, &mut variables).await,
                };
                result.with_context(|| request.line.clone())?;
            }
            Step::Watch(watch) => {
                let result =
                    tokio::time::timeout(STEP_TIMEOUT, run_watch(api, watch, &mut variables));
                let result =
                    result.await.unwrap_or_else(|_| bail!("timed out waiting for an event"));
                result.with_context(|| watch.line.clone())?;
            }
            Step::Assert { left, is_less, right } => {
                let filled = |text: &str| variables.fill_text(text);
                let (left, right) = (filled(left), filled(right));
                let holds = match (is_less, left.parse::<u64>(), right.parse::<u64>()) {
                    (true, Ok(left), Ok(right)) => left < right,
                    (true, _, _) => left < right,
                    (false, _, _) => left != right,
                };
                if !holds {
                    bail!("the assertion failed: {left}, {right}");
                }
            }
        }
    }
    Ok(())
}

/// Repeats a request until the response matches.
async fn run_request_until_match(
    api: &ApiClient,
    request: &RequestStep,
    variables: &mut Variables,
) -> Result<()> {
    let end = tokio::time::Instant::now() + STEP_TIMEOUT;
    loop {
        match run_request(api, request, variables).await {
            Err(_) if tokio::time::Instant::now() < end => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            result => return result,
        }
    }
}

async fn run_request(
    api: &ApiClient,
    request: &RequestStep,
    variables: &mut Variables,
) -> Result<()> {
    let body = match &request.body {
        None => Vec::new(),
        Some(Body::Value(value)) => variables.fill(value).to_string().into_bytes(),
        Some(Body::Merged { captured, with }) => {
            let object =
                variables.get(captured).with_context(|| format!("${captured} is not captured"));
            let mut object = object?.clone();
            merge(&mut object, &variables.fill(with));
            object.to_string().into_bytes()
        }
    };
    let method = Method::from_bytes(request.method.as_bytes())?;
    let path = variables.fill_text(&request.path);
    let user: Vec<String> = request.user.iter().map(|it| variables.fill_text(it)).collect();
    let mut headers = vec![("content-type", request.content_type), ("accept", request.accept)];
    for (nth, name) in user.iter().enumerate() {
        headers.push((if nth == 0 { "impersonate-user" } else { "impersonate-group" }, name));
    }
    let response = api.request_with_headers(method, &path, body, &headers).await?;
    let found: Value = serde_json::from_slice(&response.body)
        .unwrap_or_else(|_| String::from_utf8_lossy(&response.body).into_owned().into());
    if response.status != request.code {
        bail!("status {}: {found}", response.status);
    }
    let compared = match &request.expected {
        ExpectedResponse::Any => Ok(()),
        ExpectedResponse::Contains(part) => variables.match_value(part, &found),
        ExpectedResponse::Captured(name) => {
            variables.set(name, found.clone());
            Ok(())
        }
        ExpectedResponse::Names(names) => {
            let named = |name: &String| json!({"metadata": {"name": name}});
            let items: Vec<Value> = names.iter().map(named).collect();
            variables.match_value(&json!({"items": items}), &found)
        }
    };
    compared.map_err(|difference| anyhow::anyhow!("{difference}, in {found}"))
}

async fn run_watch(api: &ApiClient, watch: &WatchStep, variables: &mut Variables) -> Result<()> {
    let path = variables.fill_text(&watch.path);
    let join = if path.contains('?') { '&' } else { '?' };
    let timeout = if watch.ends { 1 } else { 30 };
    let path = format!("{path}{join}watch=true&timeoutSeconds={timeout}");
    let response = api.send(&Method::GET, &path, Vec::new(), "application/json").await?;
    if response.status() != 200 {
        bail!("status {}", response.status());
    }
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    let mut events = watch.events.iter();
    let mut wanted = events.next();
    while wanted.is_some() || watch.ends {
        if let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = bytes.drain(..=end).collect();
            let found: Value = serde_json::from_slice(&line).context("reading an event")?;
            let Some(event) = wanted else { bail!("an unexpected event: {found}") };
            let kind = found["type"].as_str().unwrap_or_default();
            if kind != event.kind {
                bail!("{kind} instead of {} {}: {found}", event.kind, event.part);
            }
            let compared = variables.match_value(&event.part, &found["object"]);
            compared.map_err(|difference| anyhow::anyhow!("{difference}, in {found}"))?;
            wanted = events.next();
            continue;
        }
        let Some(frame) = body.frame().await else { break };
        let frame = frame.map_err(|error| anyhow::anyhow!("{error}"))?;
        bytes.extend_from_slice(frame.data_ref().map_or(&[][..], |data| &data[..]));
    }
    match wanted {
        Some(event) => bail!("the watch ended before {} {}", event.kind, object_name(&event.part)),
        None => Ok(()),
    }
}

fn object_name(part: &Value) -> String {
    scalar_text(&part["metadata"]["name"]).unwrap_or_default()
}
