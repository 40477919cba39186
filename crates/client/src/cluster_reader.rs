//! Reads the objects of a live cluster once, for `loadmaster explain`: lists of each kind, page by page.
//!
//! Nodes and pods are required. Another kind of a snapshot that may not be read, or that the cluster does not have, leads to a warning;
//! whether a missing additional kind matters is for the caller to say.

use loadmaster_api::document::Document;
use loadmaster_api::snapshot::Snapshot;
use loadmaster_stdx::Set;

use crate::api_client::ConnectionLimits;
use crate::connect::{Cluster, KubeconfigSource};
use crate::kinds::{ApiResource, Kind, UnreadCause};
use crate::paged_list;
pub use crate::read_cluster_error::ReadClusterError;

/// The objects of a cluster.
#[derive(Debug)]
pub struct ClusterObjects {
    /// The objects. Pods on nodes that no longer exist are left out.
    pub snapshot: Snapshot,
    /// The JSON of nodes, pods and additional kinds, as [`ClusterReadOptions`] requests.
    pub documents: Vec<(Kind, Document)>,
    /// What could not be read of the snapshot and the consequence, one sentence each.
    pub warnings: Vec<String>,
    /// The additional kinds that could not be read.
    pub unread: Vec<(Kind, UnreadCause)>,
    /// The namespace of the current context.
    pub namespace: String,
}

/// What is read in addition to the kinds of a snapshot.
#[derive(Clone, Debug, Default)]
pub struct ClusterReadOptions {
    /// Additional kinds.
    pub extra_kinds: Vec<Kind>,
    /// Whether the JSON of nodes and pods is returned, too.
    pub raw_nodes_and_pods: bool,
}

const USER_AGENT: &str = concat!("loadmaster/", env!("CARGO_PKG_VERSION"));

/// The lists are read one after the other.
const LIMITS: ConnectionLimits =
    ConnectionLimits { http2_connections_max: 1, http1_connections_max: 1 };

/// Reads all objects of the cluster. Blocks.
///
/// # Errors
///
/// When there is no usable kubeconfig, when the API server does not respond, or when nodes or pods cannot be read.
pub fn read_cluster(
    options: &KubeconfigSource,
    read_options: &ClusterReadOptions,
) -> Result<ClusterObjects, ReadClusterError> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().map_err(ReadClusterError::Runtime)?;
    runtime.block_on(read(options, read_options))
}

async fn read(
    options: &KubeconfigSource,
    read_options: &ClusterReadOptions,
) -> Result<ClusterObjects, ReadClusterError> {
    let cluster = Cluster::from_kubeconfig(options, USER_AGENT).await?;
    let namespace = cluster.default_namespace().to_owned();
    let client = cluster.client("explain", LIMITS);
    let mut objects = ClusterObjects {
        snapshot: Snapshot::default(),
        documents: Vec::new(),
        warnings: Vec::new(),
        unread: Vec::new(),
        namespace,
    };
    for kind in Kind::ALL.into_iter().chain(read_options.extra_kinds.iter().copied()) {
        let request = paged_list::ListRequest { client: &client, kind: kind.resource() };
        match paged_list::list_all_pages(&request).await {
            Ok(pages) => objects.add_kind(kind, pages, read_options)?,
            Err(paged_list::ListError::Optional(cause)) => objects.add_unread(kind, cause),
            Err(paged_list::ListError::Fatal(error)) => return Err(*error),
        }
    }
    objects.warnings.extend(drop_pods_on_missing_nodes(&mut objects.snapshot));
    Ok(objects)
}

impl ClusterObjects {
    fn add_kind(
        &mut self,
        kind: Kind,
        pages: Document,
        read_options: &ClusterReadOptions,
    ) -> Result<(), ReadClusterError> {
        let is_dynamic = matches!(kind, Kind::Dynamic(_));
        if !is_dynamic {
            append(&mut self.snapshot, Snapshot::read(std::slice::from_ref(&pages))?);
        }
        if is_dynamic || read_options.raw_nodes_and_pods && matches!(kind, Kind::Pod | Kind::Node) {
            self.documents.push((kind, pages));
        }
        Ok(())
    }

    fn add_unread(&mut self, kind: Kind, cause: UnreadCause) {
        let ApiResource { group, resource, effect_if_missing, .. } = kind.resource();
        match kind {
            Kind::Dynamic(_) => self.unread.push((kind, cause)),
            _ => {
                let text = cause.text(group, &[resource]);
                self.warnings.push(format!("{text}: {effect_if_missing}"));
            }
        }
    }
}

/// Adds the objects of one kind.
fn append(all: &mut Snapshot, listed: Snapshot) {
    all.nodes.extend(listed.nodes);
    all.pods.extend(listed.pods);
    all.namespaces.extend(listed.namespaces);
    all.services.extend(listed.services);
    all.replication_controllers.extend(listed.replication_controllers);
    all.replica_sets.extend(listed.replica_sets);
    all.stateful_sets.extend(listed.stateful_sets);
    all.disruption_budgets.extend(listed.disruption_budgets);
    all.priority_classes.extend(listed.priority_classes);
    all.n_finished_pods += listed.n_finished_pods;
}

/// The lists are not consistent with each other: a node may have been deleted between two of them.
fn drop_pods_on_missing_nodes(snapshot: &mut Snapshot) -> Option<String> {
    let nodes: Set<&str> = snapshot.nodes.iter().map(|node| node.name()).collect();
    let before = snapshot.pods.len();
    snapshot
        .pods
        .retain(|pod| pod.spec.node_name.is_empty() || nodes.contains(pod.spec.node_name.as_str()));
    let n_dropped = before - snapshot.pods.len();
    let pods = if n_dropped == 1 { "1 pod is".to_owned() } else { format!("{n_dropped} pods are") };
    (n_dropped > 0).then(|| format!("{pods} on nodes that no longer exist, and ignored"))
}
