//! Runs concurrent writers and watchers, and records the history of their requests and results.
//!
//! Each writer creates, updates and deletes ConfigMaps with a few names shared by all writers; each watcher watches all of them,
//! resumes where its connection was closed, and relists when its resource version has expired. Failures, broken connections and
//! restarts of the server must not make the history invalid: [`check`] verifies that an API server may produce it.

pub mod check;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use http::Method;
use http_body_util::BodyExt as _;
use loadmaster_stdx::Rng;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::api_client::{ApiClient, ApiResponse};
use check::{Event, History, List, Outcome, Watch, Write};

/// The number of clients and keys.
#[derive(Clone, Debug)]
pub struct HistoryLoad {
    pub n_writers: u64,
    pub n_watchers: u64,
    pub n_keys: u64,
    pub namespace: String,
    pub seed: u64,
}

/// The delay between attempts while the server does not respond.
const RETRY_DELAY: Duration = Duration::from_millis(30);

/// Running writers and watchers, and their history.
pub struct HistoryRecording {
    shared: Arc<Shared>,
    writers: JoinSet<()>,
    watchers: JoinSet<()>,
    stop: watch::Sender<bool>,
}

struct Shared {
    api: ApiClient,
    load: HistoryLoad,
    path: String,
    /// A logical clock that orders the beginnings and ends of requests.
    clock: AtomicU64,
    values: AtomicU64,
    #[expect(clippy::disallowed_types, reason = "clients append to it concurrently")]
    history: std::sync::Mutex<History>,
}

impl HistoryRecording {
    /// Creates the namespace and starts the clients.
    pub async fn start(api: &ApiClient, load: HistoryLoad) -> Result<HistoryRecording> {
        let namespace = json!({"metadata": {"name": load.namespace}});
        api.create("/api/v1/namespaces", &namespace).await?;
        let path = format!("/api/v1/namespaces/{}/configmaps", load.namespace);
        let from = newest(api, &path).await?;
        let shared = Arc::new(Shared {
            api: api.clone(),
            path,
            clock: AtomicU64::new(0),
            values: AtomicU64::new(0),
            #[expect(clippy::disallowed_types, reason = "clients append to it concurrently")]
            history: std::sync::Mutex::default(),
            load,
        });
        let (stop, stopped) = watch::channel(false);
        let (mut writers, mut watchers) = (JoinSet::new(), JoinSet::new());
        let rng = Rng::new(shared.load.seed);
        for nth in 0..shared.load.n_writers {
            let rng = rng.split(&format!("writer {nth}"));
            writers.spawn(Arc::clone(&shared).run_writer(rng, stopped.clone()));
        }
        for _ in 0..shared.load.n_watchers {
            watchers.spawn(Arc::clone(&shared).run_watcher(from));
        }
        Ok(HistoryRecording { shared, writers, watchers, stop })
    }

    /// The number of acknowledged writes so far.
    pub fn n_acknowledged(&self) -> usize {
        let done = |write: &&Write| matches!(write.outcome, Outcome::Acknowledged { .. });
        self.shared.history().writes.iter().filter(done).count()
    }

    /// Stops the writers, waits until every watcher has received the last change, and returns the history and its violations.
    pub async fn finish(mut self) -> Result<(History, Vec<String>)> {
        let _ = self.stop.send(true);
        while self.writers.join_next().await.is_some() {}
        let mut last = None;
        for _ in 0..100 {
            last = self.shared.list().await;
            if last.is_some() {
                break;
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
        let last = last.context("the final list failed")?;
        // A last change for which all watchers wait.
        let marker = json!({"metadata": {"name": "end"}, "data": {"value": "0"}});
        let mut marker_revision = None;
        for _ in 0..100 {
            if marker_revision.is_some() {
                break;
            }
            marker_revision = match self.shared.api.create(&self.shared.path, &marker).await {
                Ok(marker) => Some(number(&marker["metadata"]["resourceVersion"])?),
                Err(_) => {
                    let path = format!("{}/end", self.shared.path);
                    match self.shared.api.get_json(&path).await {
                        Ok(found) => Some(number(&found["metadata"]["resourceVersion"])?),
                        Err(_) => None,
                    }
                }
            };
        }
        let ended = tokio::time::timeout(Duration::from_secs(60), async {
            while self.watchers.join_next().await.is_some() {}
        });
        if ended.await.is_err() {
            bail!("a watcher did not receive the last change, revision {marker_revision:?}");
        }
        let mut history = self.shared.history().clone();
        history.lists.push(last);
        let found = check::violations(&history);
        Ok((history, found))
    }
}

impl Shared {
    fn history(&self) -> std::sync::MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    async fn run_writer(self: Arc<Self>, mut rng: Rng, stopped: watch::Receiver<bool>) {
        while !*stopped.borrow() {
            if self.write(&mut rng).await == Outcome::Unknown {
                tokio::time::sleep(RETRY_DELAY).await;
            }
            if rng.one_in(20)
                && let Some(list) = self.list().await
            {
                self.history().lists.push(list);
            }
        }
    }

    async fn write(&self, rng: &mut Rng) -> Outcome {
        let key = format!("k{}", rng.below(self.load.n_keys));
        let value = 1 + self.values.fetch_add(1, Ordering::SeqCst);
        let object = json!({"metadata": {"name": key}, "data": {"value": value.to_string()}});
        let one = format!("{}/{key}", self.path);
        let began = self.tick();
        let (value, response) = match rng.below(4) {
            0 => (Some(value), self.request(Method::POST, &self.path, &object).await),
            1 | 2 => (Some(value), self.request(Method::PUT, &one, &object).await),
            _ => (None, self.request(Method::DELETE, &one, &Value::Null).await),
        };
        let outcome = match response {
            Ok(response) => outcome_of(&response, value),
            Err(_) => Outcome::Unknown,
        };
        let ended = self.tick();
        self.history().writes.push(Write { key, value, began, ended, outcome });
        outcome
    }

    async fn request(&self, method: Method, path: &str, body: &Value) -> Result<ApiResponse> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        self.api.request(method, path, body).await
    }

    /// Lists all objects; `None` without a response.
    async fn list(&self) -> Option<List> {
        let began = self.tick();
        let list = self.api.get_json(&self.path).await.ok()?;
        let revision = number(&list["metadata"]["resourceVersion"]).ok()?;
        let items = list["items"].as_array()?.iter();
        let objects: Option<BTreeMap<_, _>> = items.map(object).collect();
        Some(List { revision, objects: objects?, began, ended: self.tick() })
    }

    /// Watches until the marker object is received.
    async fn run_watcher(self: Arc<Self>, from: u64) {
        let mut after = from;
        loop {
            let mut watch = Watch { after, events: Vec::new() };
            let end = self.watch(&mut watch).await;
            after = watch.events.iter().map(revision_of).next_back().unwrap_or(after);
            self.history().watches.push(watch);
            match end {
                WatchEnd::Marker => return,
                WatchEnd::Broken => tokio::time::sleep(RETRY_DELAY).await,
                WatchEnd::Expired => {
                    if let Some(list) = self.list().await {
                        after = list.revision;
                        if list.objects.contains_key("end") {
                            return;
                        }
                        self.history().lists.push(list);
                    }
                }
            }
        }
    }

    async fn watch(&self, watch: &mut Watch) -> WatchEnd {
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds=30&resourceVersion={}",
            self.path, watch.after
        );
        let response = self.api.send(&Method::GET, &path, Vec::new(), "application/json").await;
        let mut body = match response {
            Ok(response) if response.status() == 200 => response.into_body(),
            Ok(response) if response.status() == 410 => return WatchEnd::Expired,
            _ => return WatchEnd::Broken,
        };
        let mut bytes = Vec::new();
        while let Some(Ok(frame)) = body.frame().await {
            bytes.extend_from_slice(frame.data_ref().map_or(&[][..], |data| &data[..]));
            while let Some(at) = bytes.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = bytes.drain(..=at).collect();
                let Ok(event) = serde_json::from_slice::<Value>(&line) else {
                    return WatchEnd::Broken;
                };
                match event_of(&event) {
                    Some(Event::Upsert { key, .. }) if key == "end" => return WatchEnd::Marker,
                    Some(event) => watch.events.push(event),
                    None if event["object"]["code"] == 410 => return WatchEnd::Expired,
                    None => return WatchEnd::Broken,
                }
            }
        }
        WatchEnd::Broken
    }
}

/// The current revision, from a server with fault injection.
async fn newest(api: &ApiClient, path: &str) -> Result<u64> {
    let mut last = None;
    for _ in 0..50 {
        match api.get_json(path).await {
            Ok(list) => return number(&list["metadata"]["resourceVersion"]),
            Err(error) => last = Some(error),
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
    Err(last.context("no request was made")?)
}

enum WatchEnd {
    Marker,
    Broken,
    /// The revision has expired.
    Expired,
}

/// After 409 and 404 the write was not executed; after 429 and 5xx it may have been.
fn outcome_of(response: &ApiResponse, value: Option<u64>) -> Outcome {
    match response.status {
        200 | 201 => {
            let object: Value = serde_json::from_slice(&response.body).unwrap_or_default();
            let revision = number(&object["metadata"]["resourceVersion"]).ok();
            match (value, revision) {
                // A truncated response does not count.
                (Some(_), None) => Outcome::Unknown,
                (Some(_), revision) => Outcome::Acknowledged { revision },
                (None, _) => Outcome::Acknowledged { revision: None },
            }
        }
        400..=428 | 430..=499 => Outcome::Rejected,
        _ => Outcome::Unknown,
    }
}

fn event_of(event: &Value) -> Option<Event> {
    let revision = number(&event["object"]["metadata"]["resourceVersion"]).ok()?;
    let parts = || object(&event["object"]);
    Some(match event["type"].as_str()? {
        "BOOKMARK" => Event::Bookmark { revision },
        kind @ ("ADDED" | "MODIFIED") => {
            let (key, (value, _)) = parts()?;
            Event::Upsert { revision, key, value, is_new: kind == "ADDED" }
        }
        "DELETED" => {
            let (key, (value, _)) = parts()?;
            Event::Delete { revision, key, value }
        }
        _ => return None,
    })
}

fn revision_of(event: &Event) -> u64 {
    match event {
        Event::Upsert { revision, .. }
        | Event::Delete { revision, .. }
        | Event::Bookmark { revision } => *revision,
    }
}

/// Key, value and revision.
fn object(object: &Value) -> Option<(String, (u64, u64))> {
    let name = object["metadata"]["name"].as_str()?.to_owned();
    let revision = number(&object["metadata"]["resourceVersion"]).ok()?;
    Some((name, (number(&object["data"]["value"]).ok()?, revision)))
}

fn number(value: &Value) -> Result<u64> {
    let text = value.as_str().with_context(|| format!("{value} is not a string"))?;
    text.parse().with_context(|| format!("{text:?} is not a number"))
}
