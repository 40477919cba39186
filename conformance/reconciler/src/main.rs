//! Reconciles pods and nodes with kube-rs' controllers: reconciler KUBECONFIG.
//!
//! A reconciliation copies the label `nth` to the annotation `seen`: if an event is lost, the object stays unreconciled. For each line on
//! standard input it prints the state of the controllers' stores as one line of JSON: objects (resource/namespace/name to uid and resource
//! version), the number of reconciliations, and errors: objects that contradict what was received before.

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

/// Delay before a failed reconciliation is retried.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// The default backoff waits up to half a minute, which is half a day of the simulated time.
struct ConstantBackoff;

impl Iterator for ConstantBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(RETRY_DELAY)
    }
}

impl Backoff for ConstantBackoff {
    fn reset(&mut self) {}
}

#[derive(Default)]
struct Observed {
    n_reconciled: usize,
    errors: Vec<String>,
    /// The newest resource version by uid.
    versions: BTreeMap<String, u64>,
}

struct Context<K> {
    api: Api<K>,
    observed: Mutex<Observed>,
}

async fn reconcile<K>(object: Arc<K>, cx: Arc<Context<K>>) -> Result<Action, kube::Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    observe(&*object, &mut cx.observed.lock().unwrap_or_else(PoisonError::into_inner));
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

fn observe<K: Resource>(object: &K, observed: &mut Observed) {
    observed.n_reconciled += 1;
    let (uid, version) =
        (object.uid().unwrap_or_default(), object.resource_version().unwrap_or_default());
    let Ok(version) = version.parse() else {
        observed.errors.push(format!("{}: invalid resource version {version:?}", object.name_any()));
        return;
    };
    let known = observed.versions.insert(uid, version);
    if known.is_some_and(|known| version < known) {
        observed
            .errors
            .push(format!("{} went from resource version {known:?} to {version}", object.name_any()));
    }
}

/// Starts a controller and returns its store and its context.
fn start<K>(api: Api<K>) -> (Store<K>, Arc<Context<K>>)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let controller =
        Controller::new(api.clone(), watcher::Config::default()).trigger_backoff(ConstantBackoff);
    let store = controller.store();
    let cx = Arc::new(Context { api, observed: Mutex::default() });
    let again = |_, _: &kube::Error, _| Action::requeue(RETRY_DELAY);
    // Failures are expected: they come from fault injection.
    let running = controller.run(reconcile, again, Arc::clone(&cx)).for_each(|_| ready(()));
    tokio::spawn(running);
    (store, cx)
}

fn stored_objects<'a, K: Resource<DynamicType = ()> + Clone>(
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
    let (pods, pods_context) = start::<Pod>(Api::default_namespaced(client.clone()));
    let (nodes, nodes_context) = start::<Node>(Api::all(client));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while lines.next_line().await?.is_some() {
        let objects: BTreeMap<String, String> = stored_objects(&pods).chain(stored_objects(&nodes)).collect();
        let read = |observed: &Mutex<Observed>| {
            let observed = observed.lock().unwrap_or_else(PoisonError::into_inner);
            (observed.n_reconciled, observed.errors.clone())
        };
        let ((n_pods, mut errors), (n_nodes, more)) =
            (read(&pods_context.observed), read(&nodes_context.observed));
        errors.extend(more);
        println!(
            "{}",
            json!({"objects": objects, "errors": errors, "events": n_pods + n_nodes})
        );
    }
    Ok(())
}
