//! A scripted extender: HTTP/1.1 by hand, because what it is told to say no well-behaved server would.

#![expect(clippy::disallowed_types, reason = "connections share the script")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::super::api::Api;

/// What is done with a question.
#[derive(Clone, Debug)]
pub enum Act {
    /// Filter: these nodes of those asked about are left, in the form in which they came.
    Keep(&'static [&'static str]),
    /// Preempt: these candidates are left, with the victims that came.
    Spare(&'static [&'static str]),
    /// Bind: does it.
    Bind,
    /// 200 with this body.
    Say(String),
    /// This status, and no body.
    Status(u16),
    /// 307 to `PREFIX/elsewhere`.
    Redirect,
    /// Nothing, until the other side gives up.
    Silence,
    /// The head of an answer and the beginning of its body, and nothing more.
    Stall(&'static str),
    /// A reset in place of an answer.
    Reset,
    /// The connection ends without an answer.
    Close,
    /// The connection ends behind this beginning of a body.
    Cut(&'static str),
    /// White space for ever.
    Endless,
}

/// A question as it came.
#[derive(Clone, Debug)]
pub struct Heard {
    /// The last part of its `urlPrefix`.
    pub extender: String,
    pub verb: String,
    pub content_type: String,
    /// Null when it is no JSON.
    pub body: Value,
}

type Acts = BTreeMap<(String, String), Act>;

#[derive(Default)]
struct State {
    acts: Acts,
    heard: Vec<Heard>,
}

/// The server. Dropping it ends it.
pub struct Script {
    pub url: String,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

impl Script {
    /// On a free port of loopback. `api` is where it binds pods.
    pub async fn start(api: &Api) -> Result<Script> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listening")?;
        let url = format!("http://{}", listener.local_addr().context("listening")?);
        let state = Arc::new(Mutex::new(State::default()));
        let (shared, api) = (state.clone(), api.clone());
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (state, api) = (shared.clone(), api.clone());
                // Whoever asks may hang up at any time.
                tokio::spawn(async move { drop(converse(stream, &state, &api).await) });
            }
        });
        Ok(Script { url, state, task })
    }

    /// What to do from now on, by extender and verb. A question that is not in it is answered with 599.
    pub fn play(&self, acts: Acts) {
        *lock(&self.state) = State { acts, heard: Vec::new() };
    }

    /// What was asked since.
    pub fn heard(&self) -> Vec<Heard> {
        lock(&self.state).heard.clone()
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn converse(mut stream: TcpStream, state: &Mutex<State>, api: &Api) -> Result<()> {
    let mut read = Vec::new();
    while let Some((head, body)) = request(&mut stream, &mut read).await? {
        let heard = heard(&head, &body);
        let place = (heard.extender.clone(), heard.verb.clone());
        let act = {
            let mut state = lock(state);
            state.heard.push(heard.clone());
            state.acts.get(&place).cloned().unwrap_or(Act::Status(599))
        };
        if !perform(&act, &heard, &mut stream, api).await? {
            break;
        }
    }
    Ok(())
}

/// The head and the body of the next request; nothing when the other side has hung up.
async fn request(stream: &mut TcpStream, read: &mut Vec<u8>) -> Result<Option<(String, Vec<u8>)>> {
    loop {
        if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&read[..end]).into_owned();
            let len = header(&head, "content-length").parse().unwrap_or(0);
            if read.len() >= end + 4 + len {
                let body = read[end + 4..end + 4 + len].to_vec();
                read.drain(..end + 4 + len);
                return Ok(Some((head, body)));
            }
        }
        if stream.read_buf(read).await? == 0 {
            return Ok(None);
        }
    }
}

fn header<'a>(head: &'a str, name: &str) -> &'a str {
    let mut headers = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    headers.find(|(key, _)| key.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value.trim())
}

fn heard(head: &str, body: &[u8]) -> Heard {
    let path = head.split_whitespace().nth(1).unwrap_or_default();
    let (prefix, verb) = path.rsplit_once('/').unwrap_or_default();
    Heard {
        extender: prefix.rsplit('/').next().unwrap_or_default().to_owned(),
        verb: verb.to_owned(),
        content_type: header(head, "content-type").to_owned(),
        body: serde_json::from_slice(body).unwrap_or_default(),
    }
}

/// Whether the connection goes on.
async fn perform(act: &Act, heard: &Heard, stream: &mut TcpStream, api: &Api) -> Result<bool> {
    let body = match act {
        Act::Keep(nodes) => kept(&heard.body, nodes).to_string(),
        Act::Spare(nodes) => spared(&heard.body, nodes).to_string(),
        Act::Bind => bound(&heard.body, api).await.to_string(),
        Act::Say(body) => body.clone(),
        Act::Status(status) => {
            let head = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            return Ok(true);
        }
        Act::Redirect => {
            let location = format!("/{}/elsewhere", heard.extender);
            let head =
                format!("HTTP/1.1 307 X\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            return Ok(true);
        }
        Act::Silence | Act::Stall(_) => {
            if let Act::Stall(beginning) = act {
                let head = "HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n".to_owned();
                stream.write_all((head + beginning).as_bytes()).await?;
            }
            while stream.read_u8().await.is_ok() {}
            return Ok(false);
        }
        Act::Reset => {
            stream.set_zero_linger()?;
            return Ok(false);
        }
        Act::Close => return Ok(false),
        Act::Cut(beginning) => {
            let head = "HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n".to_owned();
            stream.write_all((head + beginning).as_bytes()).await?;
            return Ok(false);
        }
        Act::Endless => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
            // At first more than Loadmaster takes; then slowly, as kube-scheduler keeps all that comes until its deadline.
            let spaces = vec![b' '; 1 << 20];
            for _ in 0..24 {
                if stream.write_all(&spaces).await.is_err() {
                    return Ok(false);
                }
            }
            while stream.write_all(&spaces[..1 << 14]).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            return Ok(false);
        }
    };
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).await?;
    Ok(true)
}

fn kept(question: &Value, nodes: &[&str]) -> Value {
    let is_kept = |name: &Value| name.as_str().is_some_and(|name| nodes.contains(&name));
    let items = question["Nodes"]["items"].as_array();
    match items {
        Some(items) => {
            let items: Vec<&Value> =
                items.iter().filter(|node| is_kept(&node["metadata"]["name"])).collect();
            json!({"Nodes": {"items": items}})
        }
        None => {
            let names = question["NodeNames"].as_array().into_iter().flatten();
            json!({"NodeNames": names.filter(|name| is_kept(name)).collect::<Vec<_>>()})
        }
    }
}

fn spared(question: &Value, nodes: &[&str]) -> Value {
    let mut left = serde_json::Map::new();
    for &node in nodes {
        let (whole, meta) =
            (&question["NodeNameToVictims"][node], &question["NodeNameToMetaVictims"][node]);
        if let Some(pods) = whole["Pods"].as_array() {
            let pods: Vec<Value> =
                pods.iter().map(|pod| json!({"UID": pod["metadata"]["uid"]})).collect();
            left.insert(node.to_owned(), json!({"Pods": pods}));
        } else if meta.is_object() {
            left.insert(node.to_owned(), meta.clone());
        }
    }
    json!({"NodeNameToMetaVictims": left})
}

async fn bound(question: &Value, api: &Api) -> Value {
    let name = &question["PodName"];
    let path = format!(
        "/api/v1/namespaces/{}/pods/{}/binding",
        question["PodNamespace"].as_str().unwrap_or_default(),
        name.as_str().unwrap_or_default()
    );
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
        "target": {"kind": "Node", "name": question["Node"]}});
    let error = api.create(&path, &binding).await.err();
    json!({"Error": error.map(|error| format!("{error:#}")).unwrap_or_default()})
}
