//! Writers and watchers at work, and a record of all they asked and were told.
//!
//! Each writer creates, changes and deletes ConfigMaps of a few names that it shares with the others; each watcher follows
//! all of them, begins anew where it was cut off, and lists when its revision is gone. A server that fails, breaks
//! connections or is killed and started again makes the history longer, not wrong: [`check`] says whether it is one an API
//! server may have.

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

use super::api::{Answer, Api};
use check::{Event, History, List, Outcome, Watch, Write};

/// How much is to happen.
#[derive(Clone, Debug)]
pub struct Load {
    pub n_writers: u64,
    pub n_watchers: u64,
    pub n_keys: u64,
    pub namespace: String,
    pub seed: u64,
}

/// Between two attempts on a server that does not answer.
const PAUSE: Duration = Duration::from_millis(30);

/// Writers and watchers that run.
pub struct Recording {
    shared: Arc<Shared>,
    writers: JoinSet<()>,
    watchers: JoinSet<()>,
    stop: watch::Sender<bool>,
}

struct Shared {
    api: Api,
    load: Load,
    path: String,
    /// Orders beginnings and ends.
    clock: AtomicU64,
    values: AtomicU64,
    #[expect(clippy::disallowed_types, reason = "clients write it down side by side")]
    history: std::sync::Mutex<History>,
}

impl Recording {
    /// Makes the namespace and starts.
    pub async fn start(api: &Api, load: Load) -> Result<Recording> {
        let namespace = json!({"metadata": {"name": load.namespace}});
        api.create("/api/v1/namespaces", &namespace).await?;
        let path = format!("/api/v1/namespaces/{}/configmaps", load.namespace);
        let from = newest(api, &path).await?;
        let shared = Arc::new(Shared {
            api: api.clone(),
            path,
            clock: AtomicU64::new(0),
            values: AtomicU64::new(0),
            #[expect(clippy::disallowed_types, reason = "clients write it down side by side")]
            history: std::sync::Mutex::default(),
            load,
        });
        let (stop, stopped) = watch::channel(false);
        let (mut writers, mut watchers) = (JoinSet::new(), JoinSet::new());
        let rng = Rng::new(shared.load.seed);
        for nth in 0..shared.load.n_writers {
            let rng = rng.split(&format!("writer {nth}"));
            writers.spawn(Arc::clone(&shared).write_on(rng, stopped.clone()));
        }
        for _ in 0..shared.load.n_watchers {
            watchers.spawn(Arc::clone(&shared).watch_on(from));
        }
        Ok(Recording { shared, writers, watchers, stop })
    }

    /// How many writes were acknowledged so far.
    pub fn n_done(&self) -> usize {
        let done = |write: &&Write| matches!(write.outcome, Outcome::Done { .. });
        self.shared.history().writes.iter().filter(done).count()
    }

    /// Lets writers end, waits until every watcher has seen the last change, and answers what is wrong.
    pub async fn finish(mut self) -> Result<(History, Vec<String>)> {
        let _ = self.stop.send(true);
        while self.writers.join_next().await.is_some() {}
        let mut last = None;
        for _ in 0..100 {
            last = self.shared.list().await;
            if last.is_some() {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        let last = last.context("there is no list in the end")?;
        // A last change that all can wait for.
        let marker = json!({"metadata": {"name": "end"}, "data": {"value": "0"}});
        let mut told = None;
        for _ in 0..100 {
            if told.is_some() {
                break;
            }
            told = match self.shared.api.create(&self.shared.path, &marker).await {
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
            bail!("a watcher does not come to the end, revision {told:?}");
        }
        let mut history = self.shared.history().clone();
        history.lists.push(last);
        let found = check::complaints(&history);
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

    async fn write_on(self: Arc<Self>, mut rng: Rng, stopped: watch::Receiver<bool>) {
        while !*stopped.borrow() {
            if self.write(&mut rng).await == Outcome::Unknown {
                tokio::time::sleep(PAUSE).await;
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
        let (value, answer) = match rng.below(4) {
            0 => (Some(value), self.ask(Method::POST, &self.path, &object).await),
            1 | 2 => (Some(value), self.ask(Method::PUT, &one, &object).await),
            _ => (None, self.ask(Method::DELETE, &one, &Value::Null).await),
        };
        let outcome = match answer {
            Ok(answer) => outcome_of(&answer, value),
            Err(_) => Outcome::Unknown,
        };
        let ended = self.tick();
        self.history().writes.push(Write { key, value, began, ended, outcome });
        outcome
    }

    async fn ask(&self, method: Method, path: &str, body: &Value) -> Result<Answer> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        self.api.ask(method, path, body).await
    }

    /// All there is now; none if there is no answer.
    async fn list(&self) -> Option<List> {
        let began = self.tick();
        let list = self.api.get_json(&self.path).await.ok()?;
        let revision = number(&list["metadata"]["resourceVersion"]).ok()?;
        let items = list["items"].as_array()?.iter();
        let objects: Option<BTreeMap<_, _>> = items.map(object).collect();
        Some(List { revision, objects: objects?, began, ended: self.tick() })
    }

    /// Watches until the marker comes.
    async fn watch_on(self: Arc<Self>, from: u64) {
        let mut after = from;
        loop {
            let mut watch = Watch { after, events: Vec::new() };
            let end = self.watch(&mut watch).await;
            after = watch.events.iter().map(revision_of).next_back().unwrap_or(after);
            self.history().watches.push(watch);
            match end {
                End::Marker => return,
                End::Broken => tokio::time::sleep(PAUSE).await,
                End::Expired => {
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

    async fn watch(&self, watch: &mut Watch) -> End {
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds=30&resourceVersion={}",
            self.path, watch.after
        );
        let response = self.api.send(&Method::GET, &path, Vec::new(), "application/json").await;
        let mut body = match response {
            Ok(response) if response.status() == 200 => response.into_body(),
            Ok(response) if response.status() == 410 => return End::Expired,
            _ => return End::Broken,
        };
        let mut bytes = Vec::new();
        while let Some(Ok(frame)) = body.frame().await {
            bytes.extend_from_slice(frame.data_ref().map_or(&[][..], |data| &data[..]));
            while let Some(at) = bytes.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = bytes.drain(..=at).collect();
                let Ok(event) = serde_json::from_slice::<Value>(&line) else { return End::Broken };
                match event_of(&event) {
                    Some(Event::Set { key, .. }) if key == "end" => return End::Marker,
                    Some(event) => watch.events.push(event),
                    None if event["object"]["code"] == 410 => return End::Expired,
                    None => return End::Broken,
                }
            }
        }
        End::Broken
    }
}

/// The revision of now, from a server that may fail.
async fn newest(api: &Api, path: &str) -> Result<u64> {
    let mut last = None;
    for _ in 0..50 {
        match api.get_json(path).await {
            Ok(list) => return number(&list["metadata"]["resourceVersion"]),
            Err(error) => last = Some(error),
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(last.context("nothing was asked")?)
}

enum End {
    Marker,
    Broken,
    /// The revision is gone.
    Expired,
}

/// 409 and 404 say that nothing was done; 429 and 5xx may hide that it was.
fn outcome_of(answer: &Answer, value: Option<u64>) -> Outcome {
    match answer.status {
        200 | 201 => {
            let object: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            let revision = number(&object["metadata"]["resourceVersion"]).ok();
            match (value, revision) {
                // An answer that was cut off is none.
                (Some(_), None) => Outcome::Unknown,
                (Some(_), revision) => Outcome::Done { revision },
                (None, _) => Outcome::Done { revision: None },
            }
        }
        400..=428 | 430..=499 => Outcome::Refused,
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
            Event::Set { revision, key, value, is_new: kind == "ADDED" }
        }
        "DELETED" => {
            let (key, (value, _)) = parts()?;
            Event::Gone { revision, key, value }
        }
        _ => return None,
    })
}

fn revision_of(event: &Event) -> u64 {
    match event {
        Event::Set { revision, .. }
        | Event::Gone { revision, .. }
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
    let text = value.as_str().with_context(|| format!("{value} is no text"))?;
    text.parse().with_context(|| format!("{text:?} is no number"))
}
