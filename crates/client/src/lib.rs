//! Client of the Kubernetes API server. Async code begins in this crate; decisions are made by state machines without I/O, and
//! separate tasks do the I/O for them.
//!
//! | module | what it does | state machine without I/O |
//! | --- | --- | --- |
//! | [`connect`] | address, credentials and TLS configuration of a cluster | |
//! | [`api_client`] | HTTP requests, with one connection pool per kind of traffic: binds never wait behind lists | |
//! | [`reflector`] | lists and watches objects, as client-go's reflector | [`reflector::ReflectorState`] |
//! | [`api_dispatcher`] | executes the engine's API calls, binds first | [`api_dispatcher::BindOperation`], [`flowcontrol::TokenBucket`] |
//! | [`extender`] | calls HTTP extenders | `loadmaster-extender` |
//! | [`leader_election`] | leader election with a Lease | [`leader_election::Election`] |
//! | [`event_recorder`] | writes Events | [`event_recorder::EventCorrelator`] |
//! | [`cluster_reader`] | reads a cluster once, for `loadmaster explain` | |
//! | [`remote_scheduler`] | queries a running Loadmaster, for `loadmaster explain --server` | |
//! | [`listing`] | a single list of one kind, to compare with what its reflector has delivered | |
//!
//! kube-rs finds the cluster and authenticates: kubeconfig files, contexts, exec plugins, or the service account of the pod in
//! which this process runs. TLS is verified unless the kubeconfig says otherwise. Connections are implemented here, because
//! kube-rs supports neither HTTP/2 nor protobuf. Services of plugin authors use kube-rs over them
//! ([`ApiClient::kube_client`]).
//!
//! Nothing here blocks a thread, and every queue, body and wait is limited.

pub mod api_client;
pub mod api_dispatcher;
pub mod cluster_reader;
pub mod connect;
mod dial;
pub mod event_recorder;
pub mod extender;
pub mod flowcontrol;
pub mod kinds;
pub mod leader_election;
pub mod listing;
mod paged_list;
mod read_cluster_error;
pub mod reflector;
pub mod remote_scheduler;
pub mod status;

pub use api_client::{
    ApiClient, ApiClients, Reply, Request, RequestObserver, RequestOutcome, SendError,
};
pub use cluster_reader::{ClusterObjects, ClusterReadOptions, ReadClusterError, read_cluster};
pub use connect::{Cluster, ClusterOptions, ConnectError, KubeconfigSource};
pub use http::Method;
pub use k8s_openapi;
pub use kinds::Kind;
pub use kube;
pub use remote_scheduler::{
    Credentials, RemoteScheduler, RemoteSchedulerError, RemoteSchedulerOptions,
};
