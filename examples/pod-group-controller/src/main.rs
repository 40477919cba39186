//! A controller beside its plugin: the pods of a group wait in the queue until the group is complete.
//!
//! A pod belongs to the group in its label `example.com/pod-group`. The service, on the leader, counts the pods of each PodGroup and writes
//! the number to its status, where users see it. The plugin reads it: PreEnqueue gates the pods of a group that has less than `minMembers`.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future;
use futures::stream::{self, Stream, StreamExt as _};
use loadmaster::framework::*;
use loadmaster::k8s_openapi::api::core::v1::Pod;
use loadmaster::kube::api::*;
use loadmaster::kube::{self, Client, core::GroupVersionKind};
use loadmaster::service::{ServiceHandle, ServiceResult};
use loadmaster::{SchedulerCommand, tracing};
use serde_json::{Value, json};

const NAME: &str = "PodGroup";
const DEF: PluginDef = PluginDef { name: NAME, build, args: None };
const LABEL: &str = "example.com/pod-group";

struct Plugin {
    groups: ObjectSlot<Value>,
    log: PluginLogger,
    gated: PluginCounter<1>,
}

fn build(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let groups = Gvr::new("example.com", "v1", "podgroups");
    // The controller's. The scheduler may list and watch pods and what plugins watch.
    let rule = |resource, verb| PolicyRule::new(&["example.com"], &[resource], &[verb]);
    points.require_permissions(rule("podgroups", "get"))?;
    points.require_permissions(rule("podgroups/status", "patch"))?;
    let help = "Number of times that a pod of an incomplete group was kept out of the queue.";
    let plugin = Plugin {
        groups: points.watch(groups.clone(), WatchRequirement::Required),
        log: points.logger(),
        gated: points.counter("podgroup_gated_pods_total", help, ["namespace"])?,
    };
    points.pre_enqueue = Some(Arc::new(plugin));
    let changed = ClusterEvent::new(groups.event_resource(), ActionType::ADD | ActionType::UPDATE);
    points.register_event(changed, Some(Arc::new(is_own_group)));
    Ok(())
}

/// Queueing hint: is the changed PodGroup that of the pod?
fn is_own_group(args: &cluster_event::QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> {
    let Some(EventObject::Other(changed)) = args.new else { return Ok(QueueingHint::Skip) };
    let pod = &args.pod.template;
    let has_name = pod.labels.get(LABEL).is_some_and(|group| *group == *changed.name);
    let is_own = has_name && pod.namespace == *changed.namespace;
    Ok(if is_own { QueueingHint::Queue } else { QueueingHint::Skip })
}

impl PreEnqueue for Plugin {
    fn pre_enqueue(&self, cx: Cx<'_>, pod: &PodInfo) -> Result<(), Rejection> {
        let Some(name) = pod.template.labels.get(LABEL) else { return Ok(()) };
        let namespace = &pod.template.namespace;
        let Some(group) = cx.objects(&self.groups).get(namespace, name) else {
            return Err(Rejection::unresolvable(format!("PodGroup {name:?} not found")));
        };
        let number = |section, field| group[section][field].as_u64().unwrap_or(0);
        let (n_members, n_min) = (number("status", "members"), number("spec", "minMembers"));
        if n_members >= n_min {
            return Ok(());
        }
        let why = format!("PodGroup {name:?} has {n_members} of {n_min} pods");
        self.log.pod(pod).info(3, format_args!("Gated: {why}"));
        self.gated.inc([namespace]);
        Err(Rejection::unresolvable(why))
    }
}

/// Namespace and name of a group.
type Key = (String, String);

/// Keeps the status of all groups up to date while this replica leads. After an error the scheduler restarts it, with a backoff.
async fn control(mut handle: ServiceHandle) -> ServiceResult {
    handle.wait_until_leading().await?;
    let stopped = handle.stopped();
    let client = handle.client();
    let reconcile_all = async {
        // The API server ends watches after some minutes.
        loop {
            reconcile_changes(&client).await?;
        }
    };
    tokio::select! {
        failed = reconcile_all => failed,
        () = stopped => Ok(()),
    }
}

async fn reconcile_changes(client: &Client) -> ServiceResult {
    let kind = GroupVersionKind::gvk("example.com", "v1", "PodGroup");
    let kind = ApiResource::from_gvk_with_plural(&kind, "podgroups");
    let groups = Api::<DynamicObject>::all_with(client.clone(), &kind);
    let pods = Api::<Pod>::all(client.clone());
    // From version 0 a watch begins with all objects.
    let groups = groups.watch(&WatchParams::default(), "0").await?;
    let groups = changed_groups(groups, |group| Some((group.namespace()?, group.name_any())));
    let pods = pods.watch(&WatchParams::default().labels(LABEL), "0").await?;
    let pods = changed_groups(pods, |pod| pod.namespace().zip(pod.labels().get(LABEL).cloned()));
    let changes = stream::select(groups.boxed(), pods.boxed());
    let until_one_ends = changes.scan((), |(), change| future::ready(change));
    // What has changed meanwhile is reconciled together.
    let mut changes = until_one_ends.ready_chunks(1024);
    while let Some(changed) = changes.next().await {
        let keys: BTreeSet<Option<Key>> = changed.into_iter().collect::<kube::Result<_>>()?;
        for key in keys.into_iter().flatten() {
            reconcile(client, &kind, &key).await?;
        }
    }
    Ok(())
}

/// The groups that are affected by watch events; `None` when the watch has ended.
fn changed_groups<K>(
    events: impl Stream<Item = kube::Result<WatchEvent<K>>>,
    group_of: impl Fn(&K) -> Option<Key>,
) -> impl Stream<Item = Option<kube::Result<Option<Key>>>> {
    use WatchEvent::{Added, Bookmark, Deleted, Error, Modified};
    let groups = events.map(move |event| match event? {
        Added(object) | Modified(object) | Deleted(object) => Ok(group_of(&object)),
        Bookmark(_) => Ok(None),
        Error(status) => Err(kube::Error::Api(status)),
    });
    groups.map(Some).chain(stream::once(future::ready(None)))
}

/// Writes the number of pods of one group to its status.
async fn reconcile(client: &Client, kind: &ApiResource, key: &Key) -> ServiceResult {
    let (namespace, name) = key;
    let groups = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, kind);
    let Some(group) = groups.get_opt(name).await? else { return Ok(()) };
    let members = ListParams::default().labels(&format!("{LABEL}={name}"));
    let pods = Api::<Pod>::namespaced(client.clone(), namespace).list(&members).await?;
    let n_members = pods.items.len();
    if group.data["status"]["members"] != n_members {
        let patch = Patch::Merge(json!({"status": {"members": n_members}}));
        groups.patch_status(name, &PatchParams::default(), &patch).await?;
        tracing::info!(v = 2, namespace, name, n_members, "Updated the status of a PodGroup");
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    SchedulerCommand::new().with_plugin(DEF).with_service("pod-group", control).run()
}

#[cfg(test)]
mod tests;
