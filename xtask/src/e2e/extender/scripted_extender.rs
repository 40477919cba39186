//! A scripted extender with fault injection. HTTP/1.1 is implemented by hand, because no HTTP library sends such responses.

#![expect(clippy::disallowed_types, reason = "connections share the script")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::super::api_client::ApiClient;

/// How a request is answered.
#[derive(Clone, Debug)]
pub enum ResponseBehavior {
    /// Filter: keeps these nodes, in the format of the request.
    KeepNodes(&'static [&'static str]),
    /// Preempt: keeps these candidates, with the victims of the request.
    KeepCandidates(&'static [&'static str]),
    /// Bind: binds the pod.
    Bind,
    /// Status 200 with this body.
    Body(String),
    /// This status, without a body.
    Status(u16),
    /// A redirect (307) to `PREFIX/elsewhere`.
    Redirect,
    /// No response until the client closes the connection.
    NoResponse,
    /// The headers and the beginning of the body, then nothing more.
    StallInBody(&'static str),
    /// Resets the connection instead of a response.
    Reset,
    /// Closes the connection without a response.
    Close,
    /// Closes the connection after this beginning of the body.
    CloseInBody(&'static str),
    /// A body of endless white space.
    EndlessBody,
}

/// A received request.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// The last part of its `urlPrefix`.
    pub extender: String,
    pub verb: String,
    pub content_type: String,
    /// Null if it is not JSON.
    pub body: Value,
}

type Behaviors = BTreeMap<(String, String), ResponseBehavior>;

#[derive(Default)]
struct State {
    behaviors: Behaviors,
    received: Vec<ReceivedRequest>,
}

/// The server. Dropping it stops it.
pub struct ScriptedExtender {
    pub url: String,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

impl ScriptedExtender {
    /// Starts it on a free port of loopback. It binds pods with `api`.
    pub async fn start(api: &ApiClient) -> Result<ScriptedExtender> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listening")?;
        let url = format!("http://{}", listener.local_addr().context("listening")?);
        let state = Arc::new(Mutex::new(State::default()));
        let (shared, api) = (state.clone(), api.clone());
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (state, api) = (shared.clone(), api.clone());
                // The client may close the connection at any time.
                tokio::spawn(async move { drop(serve_connection(stream, &state, &api).await) });
            }
        });
        Ok(ScriptedExtender { url, state, task })
    }

    /// Sets the behaviors by extender and verb, and clears the received requests. A request without a behavior gets status 599.
    pub fn set_behaviors(&self, acts: Behaviors) {
        *lock(&self.state) = State { behaviors: acts, received: Vec::new() };
    }

    /// The requests received since.
    pub fn received(&self) -> Vec<ReceivedRequest> {
        lock(&self.state).received.clone()
    }
}

impl Drop for ScriptedExtender {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve_connection(
    mut stream: TcpStream,
    state: &Mutex<State>,
    api: &ApiClient,
) -> Result<()> {
    let mut read = Vec::new();
    while let Some((head, body)) = read_request(&mut stream, &mut read).await? {
        let request = received_request(&head, &body);
        let key = (request.extender.clone(), request.verb.clone());
        let behavior = {
            let mut state = lock(state);
            state.received.push(request.clone());
            state.behaviors.get(&key).cloned().unwrap_or(ResponseBehavior::Status(599))
        };
        if !respond(&behavior, &request, &mut stream, api).await? {
            break;
        }
    }
    Ok(())
}

/// The headers and the body of the next request; `None` if the client has closed the connection.
async fn read_request(
    stream: &mut TcpStream,
    read: &mut Vec<u8>,
) -> Result<Option<(String, Vec<u8>)>> {
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

fn received_request(head: &str, body: &[u8]) -> ReceivedRequest {
    let path = head.split_whitespace().nth(1).unwrap_or_default();
    let (prefix, verb) = path.rsplit_once('/').unwrap_or_default();
    ReceivedRequest {
        extender: prefix.rsplit('/').next().unwrap_or_default().to_owned(),
        verb: verb.to_owned(),
        content_type: header(head, "content-type").to_owned(),
        body: serde_json::from_slice(body).unwrap_or_default(),
    }
}

/// Responds to a request; returns whether the connection stays open.
async fn respond(
    behavior: &ResponseBehavior,
    request: &ReceivedRequest,
    stream: &mut TcpStream,
    api: &ApiClient,
) -> Result<bool> {
    let body = match behavior {
        ResponseBehavior::KeepNodes(nodes) => keep_nodes(&request.body, nodes).to_string(),
        ResponseBehavior::KeepCandidates(nodes) => {
            keep_candidates(&request.body, nodes).to_string()
        }
        ResponseBehavior::Bind => bind_pod(&request.body, api).await.to_string(),
        ResponseBehavior::Body(body) => body.clone(),
        ResponseBehavior::Status(status) => {
            let head = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            return Ok(true);
        }
        ResponseBehavior::Redirect => {
            let location = format!("/{}/elsewhere", request.extender);
            let head =
                format!("HTTP/1.1 307 X\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            return Ok(true);
        }
        ResponseBehavior::NoResponse | ResponseBehavior::StallInBody(_) => {
            if let ResponseBehavior::StallInBody(beginning) = behavior {
                let head = "HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n".to_owned();
                stream.write_all((head + beginning).as_bytes()).await?;
            }
            while stream.read_u8().await.is_ok() {}
            return Ok(false);
        }
        ResponseBehavior::Reset => {
            stream.set_zero_linger()?;
            return Ok(false);
        }
        ResponseBehavior::Close => return Ok(false),
        ResponseBehavior::CloseInBody(beginning) => {
            let head = "HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n".to_owned();
            stream.write_all((head + beginning).as_bytes()).await?;
            return Ok(false);
        }
        ResponseBehavior::EndlessBody => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
            // First more than Loadmaster accepts; then slowly, because kube-scheduler buffers everything until its timeout.
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

fn keep_nodes(request: &Value, nodes: &[&str]) -> Value {
    let is_selected = |name: &Value| name.as_str().is_some_and(|name| nodes.contains(&name));
    let items = request["Nodes"]["items"].as_array();
    match items {
        Some(items) => {
            let items: Vec<&Value> =
                items.iter().filter(|node| is_selected(&node["metadata"]["name"])).collect();
            json!({"Nodes": {"items": items}})
        }
        None => {
            let names = request["NodeNames"].as_array().into_iter().flatten();
            json!({"NodeNames": names.filter(|name| is_selected(name)).collect::<Vec<_>>()})
        }
    }
}

fn keep_candidates(request: &Value, nodes: &[&str]) -> Value {
    let mut left = serde_json::Map::new();
    for &node in nodes {
        let (whole, meta) =
            (&request["NodeNameToVictims"][node], &request["NodeNameToMetaVictims"][node]);
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

async fn bind_pod(request: &Value, api: &ApiClient) -> Value {
    let name = &request["PodName"];
    let path = format!(
        "/api/v1/namespaces/{}/pods/{}/binding",
        request["PodNamespace"].as_str().unwrap_or_default(),
        name.as_str().unwrap_or_default()
    );
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
        "target": {"kind": "Node", "name": request["Node"]}});
    let error = api.create(&path, &binding).await.err();
    json!({"Error": error.map(|error| format!("{error:#}")).unwrap_or_default()})
}
