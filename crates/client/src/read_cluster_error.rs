//! Why a cluster cannot be read.

use loadmaster_api::snapshot::SnapshotError;

use crate::connect::ConnectError;

/// A cluster cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadClusterError {
    /// The runtime for sockets and timers did not start.
    #[error("starting the network runtime")]
    Runtime(#[source] std::io::Error),
    /// There is no usable kubeconfig, or its address, certificates or credentials cannot be used.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The API server did not respond.
    #[error("listing {resource} from {server}: {text}")]
    Unreachable {
        /// The address of the API server.
        server: String,
        /// The requested resource.
        resource: &'static str,
        /// What went wrong.
        text: String,
    },
    /// The API server does not accept the credentials.
    #[error("{server} does not accept these credentials: {message}")]
    Unauthorized {
        /// The address of the API server.
        server: String,
        /// The server's message.
        message: String,
    },
    /// Nodes or pods may not be read.
    #[error("not allowed to list {resource}, which are required: {message}; missing rule: {rule}")]
    Forbidden {
        /// The resource that may not be read.
        resource: &'static str,
        /// The server's message.
        message: String,
        /// The ClusterRole rule that would allow it.
        rule: String,
    },
    /// The server responded with an unexpected status.
    #[error("listing {resource} from {server}: unexpected status {status}: {message}")]
    Unexpected {
        /// The address of the API server.
        server: String,
        /// The requested resource.
        resource: &'static str,
        /// The HTTP status.
        status: u16,
        /// The server's message.
        message: String,
    },
    /// The response exceeds its size limit.
    #[error("listing {resource} from {server}: the response is larger than {bytes_max} bytes")]
    TooLarge {
        /// The address of the API server.
        server: String,
        /// The requested resource.
        resource: &'static str,
        /// The limit.
        bytes_max: usize,
    },
    /// An object cannot be decoded.
    #[error(transparent)]
    Object(#[from] SnapshotError),
}
