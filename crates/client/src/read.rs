//! Reads a live cluster, once, for `loadmaster explain`: plain lists, page by page, decoded as lean objects.
//!
//! Nodes and pods must be readable. Of the other kinds one that may not be read, or that the cluster does not have, costs a warning.

use std::path::PathBuf;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use loadmaster_api::document::Document;
use loadmaster_api::snapshot::{Snapshot, SnapshotError};
use loadmaster_stdx::Set;

use crate::kinds::{Kind, Resource};
use crate::page;

/// Which cluster is read.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A kubeconfig file; without it `$KUBECONFIG`, `~/.kube/config`, or the cluster this runs in.
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig; without it the current one.
    pub context: Option<String>,
}

/// What was read.
#[derive(Debug)]
pub struct Reading {
    /// The objects. Pods on nodes that are gone are left out.
    pub snapshot: Snapshot,
    /// The pages of nodes, pods and other kinds, where [`Also`] asks for them.
    pub documents: Vec<(Kind, Document)>,
    /// What could not be read and what that means, a sentence each.
    pub warnings: Vec<String>,
    /// The namespace of names without one.
    pub namespace: String,
}

/// What is read beside a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Also {
    /// Kinds that a snapshot does not have.
    pub kinds: Vec<Kind>,
    /// Whether the pages of nodes and pods are kept as they came.
    pub whole: bool,
}

/// Why a cluster was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The runtime for sockets and timers did not start.
    #[error("starting the network runtime")]
    Runtime(#[source] std::io::Error),
    /// There is no usable kubeconfig. The source repeats itself in its own text, so that it is told here.
    #[error("finding a cluster: {text}")]
    Config {
        /// What is wrong.
        text: String,
    },
    /// The cluster did not answer.
    #[error("asking {server} for {resource}: {text}")]
    Unreachable {
        /// Its address.
        server: String,
        /// What it was asked for.
        resource: &'static str,
        /// What went wrong.
        text: String,
    },
    /// The cluster does not know who asks.
    #[error("{server} does not accept these credentials: {message}")]
    Unauthorized {
        /// Its address.
        server: String,
        /// What it said.
        message: String,
    },
    /// Nodes or pods may not be read.
    #[error("not allowed to list {resource}, which are needed: {message}; missing rule: {rule}")]
    Forbidden {
        /// What may not be read.
        resource: &'static str,
        /// What the cluster said.
        message: String,
        /// What a ClusterRole would have to say.
        rule: String,
    },
    /// An answer that no API server gives.
    #[error("asking {server} for {resource}: unexpected answer {status}: {message}")]
    Unexpected {
        /// Its address.
        server: String,
        /// What it was asked for.
        resource: &'static str,
        /// The HTTP status.
        status: u16,
        /// What it said.
        message: String,
    },
    /// An answer that grew without end.
    #[error("asking {server} for {resource}: the answer is larger than {bytes_max} bytes")]
    TooLarge {
        /// Its address.
        server: String,
        /// What it was asked for.
        resource: &'static str,
        /// The limit.
        bytes_max: usize,
    },
    /// Objects that are not what they should be.
    #[error(transparent)]
    Object(#[from] SnapshotError),
}

/// Time to connect, and for one page.
const CONNECT: Duration = Duration::from_secs(10);
pub(crate) const PAGE: Duration = Duration::from_secs(60);

/// Reads the cluster. Blocks until it is done.
///
/// # Errors
///
/// When there is no cluster to be found, when it does not answer, or when nodes or pods cannot be read.
pub fn read_cluster(options: &Options, also: &Also) -> Result<Reading, Error> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().map_err(Error::Runtime)?;
    runtime.block_on(read(options, also))
}

async fn read(options: &Options, also: &Also) -> Result<Reading, Error> {
    let mut config = find(options).await?;
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(PAGE);
    let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    let namespace = config.default_namespace.clone();
    let client =
        Client::try_from(config).map_err(|error| Error::Config { text: error.to_string() })?;
    let mut reading = Reading {
        snapshot: Snapshot::default(),
        documents: Vec::new(),
        warnings: Vec::new(),
        namespace,
    };
    for kind in Kind::ALL.into_iter().chain(also.kinds.iter().copied()) {
        let asked = page::Asked { client: &client, server: &server, kind: kind.resource() };
        match page::pages(&asked).await {
            Ok(pages) => reading.take(kind, pages, also)?,
            Err(page::Missing::Optional(warning)) => reading.warnings.push(warning),
            Err(page::Missing::Fatal(error)) => return Err(*error),
        }
    }
    reading.warnings.extend(leave_out_lost_pods(&mut reading.snapshot));
    Ok(reading)
}

impl Reading {
    fn take(&mut self, kind: Kind, pages: Document, also: &Also) -> Result<(), Error> {
        let is_other = matches!(kind, Kind::Other(_));
        if !is_other {
            append(&mut self.snapshot, Snapshot::read(std::slice::from_ref(&pages))?);
        }
        if is_other || also.whole && matches!(kind, Kind::Pod | Kind::Node) {
            self.documents.push((kind, pages));
        }
        Ok(())
    }
}

pub(crate) async fn find(options: &Options) -> Result<Config, Error> {
    let selected =
        KubeConfigOptions { context: options.context.clone(), ..KubeConfigOptions::default() };
    let wrong = |error: KubeconfigError| Error::Config { text: error.to_string() };
    match (&options.kubeconfig, &options.context) {
        (Some(file), _) => {
            let file = Kubeconfig::read_from(file).map_err(wrong)?;
            Config::from_custom_kubeconfig(file, &selected).await.map_err(wrong)
        }
        (None, Some(_)) => Config::from_kubeconfig(&selected).await.map_err(wrong),
        (None, None) => {
            Config::infer().await.map_err(|error| Error::Config { text: error.to_string() })
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

/// Lists are not of one moment: a node may have gone between two of them, and its pods with it.
fn leave_out_lost_pods(snapshot: &mut Snapshot) -> Option<String> {
    let nodes: Set<&str> = snapshot.nodes.iter().map(|node| node.name()).collect();
    let before = snapshot.pods.len();
    snapshot
        .pods
        .retain(|pod| pod.spec.node_name.is_empty() || nodes.contains(pod.spec.node_name.as_str()));
    let n_lost = before - snapshot.pods.len();
    let pods = if n_lost == 1 { "1 pod is".to_owned() } else { format!("{n_lost} pods are") };
    (n_lost > 0).then(|| format!("{pods} on nodes that are gone, and left out"))
}

/// What it costs that a kind cannot be read.
pub(crate) fn warning(kind: &Resource, why: &str) -> String {
    format!("{why}: {}", kind.without)
}
