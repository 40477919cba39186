//! The controller: writes the number of pods of each PodGroup to its status.

use std::collections::BTreeSet;

use futures::future;
use futures::stream::{self, Stream, StreamExt as _};
use loadmaster::k8s_openapi::api::core::v1::Pod;
use loadmaster::kube::api::*;
use loadmaster::kube::{self, Client, core::GroupVersionKind};
use loadmaster::service::{ServiceHandle, ServiceResult};
use loadmaster::tracing;
use serde_json::json;

use super::LABEL;

/// Namespace and name of a group.
type Key = (String, String);

/// Keeps the status of all groups up to date while this replica leads. After an error the scheduler restarts it, with a backoff.
pub(crate) async fn control(mut handle: ServiceHandle) -> ServiceResult {
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
