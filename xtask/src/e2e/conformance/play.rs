//! Plays a case on a server.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use http::Method;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use super::case::{Answer, Ask, Body, Case, Step, Watch};
use super::compare::{Variables, merge, plain};
use crate::e2e::api::Api;

/// For the events a watch should have; both servers send them at once.
const EVENTS: Duration = Duration::from_secs(20);

/// Plays a case in a namespace of its own. An error says which line was answered otherwise.
pub async fn play(api: &Api, case: &Case, namespace: &str) -> Result<()> {
    let steps = case.steps()?;
    api.create("/api/v1/namespaces", &json!({"metadata": {"name": namespace}})).await?;
    let mut variables = Variables::default();
    variables.set("ns", namespace.into());
    for step in &steps {
        match step {
            Step::Ask(ask) => {
                let played = match ask.is_patient {
                    true => play_until(api, ask, &mut variables).await,
                    false => play_ask(api, ask, &mut variables).await,
                };
                played.with_context(|| ask.line.clone())?;
            }
            Step::Watch(watch) => {
                let played = tokio::time::timeout(EVENTS, play_watch(api, watch, &mut variables));
                let played = played.await.unwrap_or_else(|_| bail!("an event does not come"));
                played.with_context(|| watch.line.clone())?;
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
                    bail!("{left} and {right} are not as asserted");
                }
            }
        }
    }
    Ok(())
}

/// Asks until the answer is right.
async fn play_until(api: &Api, ask: &Ask, variables: &mut Variables) -> Result<()> {
    let end = tokio::time::Instant::now() + EVENTS;
    loop {
        match play_ask(api, ask, variables).await {
            Err(_) if tokio::time::Instant::now() < end => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            played => return played,
        }
    }
}

async fn play_ask(api: &Api, ask: &Ask, variables: &mut Variables) -> Result<()> {
    let body = match &ask.body {
        None => Vec::new(),
        Some(Body::Value(value)) => variables.fill(value).to_string().into_bytes(),
        Some(Body::Merged { captured, with }) => {
            let object = variables.get(captured).with_context(|| format!("${captured} is nothing"));
            let mut object = object?.clone();
            merge(&mut object, &variables.fill(with));
            object.to_string().into_bytes()
        }
    };
    let method = Method::from_bytes(ask.method.as_bytes())?;
    let path = variables.fill_text(&ask.path);
    let user: Vec<String> = ask.user.iter().map(|it| variables.fill_text(it)).collect();
    let mut headers = vec![("content-type", ask.content_type), ("accept", ask.accept)];
    for (nth, name) in user.iter().enumerate() {
        headers.push((if nth == 0 { "impersonate-user" } else { "impersonate-group" }, name));
    }
    let answer = api.ask_with(method, &path, body, &headers).await?;
    let found: Value = serde_json::from_slice(&answer.body)
        .unwrap_or_else(|_| String::from_utf8_lossy(&answer.body).into_owned().into());
    if answer.status != ask.code {
        bail!("answer {}: {found}", answer.status);
    }
    let compared = match &ask.answer {
        Answer::Any => Ok(()),
        Answer::Part(part) => variables.unify(part, &found),
        Answer::Captured(name) => {
            variables.set(name, found.clone());
            Ok(())
        }
        Answer::Names(names) => {
            let named = |name: &String| json!({"metadata": {"name": name}});
            let items: Vec<Value> = names.iter().map(named).collect();
            variables.unify(&json!({"items": items}), &found)
        }
    };
    compared.map_err(|difference| anyhow::anyhow!("{difference}, in {found}"))
}

async fn play_watch(api: &Api, watch: &Watch, variables: &mut Variables) -> Result<()> {
    let path = variables.fill_text(&watch.path);
    let join = if path.contains('?') { '&' } else { '?' };
    let timeout = if watch.ends { 1 } else { 30 };
    let path = format!("{path}{join}watch=true&timeoutSeconds={timeout}");
    let response = api.send(&Method::GET, &path, Vec::new(), "application/json").await?;
    if response.status() != 200 {
        bail!("answer {}", response.status());
    }
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    let mut events = watch.events.iter();
    let mut wanted = events.next();
    while wanted.is_some() || watch.ends {
        if let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = bytes.drain(..=end).collect();
            let found: Value = serde_json::from_slice(&line).context("reading an event")?;
            let Some(event) = wanted else { bail!("one event too many: {found}") };
            let kind = found["type"].as_str().unwrap_or_default();
            if kind != event.kind {
                bail!("{kind} where {} {} should be: {found}", event.kind, event.part);
            }
            let compared = variables.unify(&event.part, &found["object"]);
            compared.map_err(|difference| anyhow::anyhow!("{difference}, in {found}"))?;
            wanted = events.next();
            continue;
        }
        let Some(frame) = body.frame().await else { break };
        let frame = frame.map_err(|error| anyhow::anyhow!("{error}"))?;
        bytes.extend_from_slice(frame.data_ref().map_or(&[][..], |data| &data[..]));
    }
    match wanted {
        Some(event) => bail!("it ended before {} {}", event.kind, plain_name(&event.part)),
        None => Ok(()),
    }
}

fn plain_name(part: &Value) -> String {
    plain(&part["metadata"]["name"]).unwrap_or_default()
}
