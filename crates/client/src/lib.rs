//! Talking to a Kubernetes API server. Async begins here; what decides is kept apart from what waits.
//!
//! | module | what it does | pure part |
//! | --- | --- | --- |
//! | [`connect`] | finds a cluster and proves who asks; dials | |
//! | [`lane`] | requests over connections of their own: binds never wait behind lists | |
//! | [`watch`] | keeps a picture of the cluster current | [`watch::Machine`] |
//! | [`calls`] | executes what the engine asks for, binds first | [`calls::Intent`], [`limit::Bucket`] |
//! | [`extender`] | asks HTTP extenders | `loadmaster-extender` |
//! | [`lease`] | says who leads | [`lease::Election`] |
//! | [`recorder`] | writes Events | [`recorder::Series`] |
//! | [`read`] | reads a cluster once, for `loadmaster explain` | |
//! | [`remote`] | asks a running Loadmaster, for `loadmaster explain --server` | |
//! | [`listing`] | a list apart from the watches, to hold against what they told | |
//!
//! How a cluster is found and how one proves who one is are kube-rs' matter: kubeconfig files, contexts, exec plugins, or the
//! service account of the pod this runs in. TLS is verified unless the kubeconfig says otherwise. Connections are our own,
//! because kube-rs speaks HTTP/1.1 only and no protobuf.
//!
//! Nothing here blocks a thread, and every queue, body and wait has a limit.

pub mod answer;
pub mod calls;
pub mod connect;
mod dial;
pub mod extender;
pub mod kinds;
pub mod lane;
pub mod lease;
pub mod limit;
pub mod listing;
mod page;
pub mod read;
pub mod recorder;
pub mod remote;
pub mod watch;

pub use connect::{Cluster, ClusterOptions, ConnectError};
pub use http::Method;
pub use kinds::Kind;
pub use lane::{Lane, Lanes, Reply, Request, SendError};
pub use read::{Also, Error, Options, Reading, read_cluster};
pub use remote::{Credentials, Remote, RemoteError, RemoteOptions};
