//! Reconciles pods and nodes with kube-rs' controllers, and tells, for each line on standard input, what they believe: reconciler KUBECONFIG.
//!
//! To reconcile is to make the annotation `seen` say what the label `nth` says: an event that is lost leaves an object behind for ever. A
//! line of JSON comes out: objects (resource/namespace/name to uid and resource version, from the controllers' stores), the number of
//! reconciliations, and complaints about what contradicts what was there before.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::ready;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::reflector::Store;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher;
use kube::{Client, Config, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};

type Failure = Box<dyn std::error::Error>;

/// How long after a failure it is tried again.
const PAUSE: Duration = Duration::from_millis(200);

/// The default one waits for up to half a minute, which here is half a day.
struct Steadily;

impl Iterator for Steadily {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(PAUSE)
    }
}

impl Backoff for Steadily {
    fn reset(&mut self) {}
}

#[derive(Default)]
struct Seen {
    n_reconciled: usize,
    complaints: Vec<String>,
    /// The newest resource version by uid.
    versions: BTreeMap<String, u64>,
}

struct Context<K> {
    api: Api<K>,
    seen: Mutex<Seen>,
}

async fn reconcile<K>(object: Arc<K>, cx: Arc<Context<K>>) -> Result<Action, kube::Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    note(&*object, &mut cx.seen.lock().unwrap_or_else(PoisonError::into_inner));
    let label = object.labels().get("nth");
    if label != object.annotations().get("seen") {
        let patch = json!({"metadata": {"annotations": {"seen": label}}});
        let done =
            cx.api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await;
        match done {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            done => drop(done?),
        }
    }
    Ok(Action::await_change())
}

fn note<K: Resource>(object: &K, seen: &mut Seen) {
    seen.n_reconciled += 1;
    let (uid, version) =
        (object.uid().unwrap_or_default(), object.resource_version().unwrap_or_default());
    let Ok(version) = version.parse() else {
        seen.complaints.push(format!("{}: version {version:?}", object.name_any()));
        return;
    };
    let known = seen.versions.insert(uid, version);
    if known.is_some_and(|known| version < known) {
        seen.complaints
            .push(format!("{} went from version {known:?} to {version}", object.name_any()));
    }
}

/// Starts a controller; its store, and what it has seen.
fn start<K>(api: Api<K>) -> (Store<K>, Arc<Context<K>>)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let controller =
        Controller::new(api.clone(), watcher::Config::default()).trigger_backoff(Steadily);
    let store = controller.store();
    let cx = Arc::new(Context { api, seen: Mutex::default() });
    let again = |_, _: &kube::Error, _| Action::requeue(PAUSE);
    // Failures are what the server was told to make.
    let working = controller.run(reconcile, again, Arc::clone(&cx)).for_each(|_| ready(()));
    tokio::spawn(working);
    (store, cx)
}

fn believed<'a, K: Resource<DynamicType = ()> + Clone>(
    store: &'a Store<K>,
) -> impl Iterator<Item = (String, String)> + use<'a, K> {
    let resource = K::plural(&());
    store.state().into_iter().map(move |it| {
        let key = format!("{resource}/{}/{}", it.namespace().unwrap_or_default(), it.name_any());
        (
            key,
            format!(
                "{} {}",
                it.uid().unwrap_or_default(),
                it.resource_version().unwrap_or_default()
            ),
        )
    })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let path = std::env::args().nth(1).ok_or("usage: reconciler KUBECONFIG")?;
    let mut config =
        Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &KubeConfigOptions::default())
            .await?;
    config.headers.push(("user-agent".parse()?, "kube-rs-reconciler".parse()?));
    let client = Client::try_from(config)?;
    let (pods, of_pods) = start::<Pod>(Api::default_namespaced(client.clone()));
    let (nodes, of_nodes) = start::<Node>(Api::all(client));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while lines.next_line().await?.is_some() {
        let objects: BTreeMap<String, String> = believed(&pods).chain(believed(&nodes)).collect();
        let lock = |seen: &Mutex<Seen>| {
            let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            (seen.n_reconciled, seen.complaints.clone())
        };
        let ((n_pods, mut complaints), (n_nodes, more)) =
            (lock(&of_pods.seen), lock(&of_nodes.seen));
        complaints.extend(more);
        println!(
            "{}",
            json!({"objects": objects, "complaints": complaints, "events": n_pods + n_nodes})
        );
    }
    Ok(())
}
