//! What the commands that run controllers for any cluster share: flags, logs, the network runtime, and the connection.

use std::path::PathBuf;
use std::time::Duration;

use loadmaster_client::{Cluster, KubeconfigSource};
use loadmaster_daemon::logs::{LogFormat, LogSettings, Logs};
use loadmaster_stdx::{ErrorChain, HashSeed};

use crate::exit::{CommandResult, Failure};

/// Flags that select a cluster, with kubectl's names and defaults.
#[derive(clap::Args)]
pub(crate) struct KubeconfigArgs {
    /// Path to the kubeconfig file of the cluster [default: the files of $KUBECONFIG, ~/.kube/config, or the in-cluster configuration].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The name of the kubeconfig context to use [default: the current context].
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl KubeconfigArgs {
    /// The cluster that the flags select.
    pub fn source(&self) -> KubeconfigSource {
        KubeconfigSource { kubeconfig: self.kubeconfig.clone(), context: self.context.clone() }
    }

    /// Whether a flag was given.
    pub fn is_given(&self) -> bool {
        self.kubeconfig.is_some() || self.context.is_some()
    }
}

/// Flags for the cluster and for logs.
#[derive(clap::Args)]
pub(crate) struct ClusterArgs {
    #[command(flatten)]
    kubeconfig: KubeconfigArgs,
    /// Log verbosity: 0 logs errors only, 4 also every rejected request.
    #[arg(short, value_name = "V", default_value_t = 0)]
    verbosity: u32,
}

impl ClusterArgs {
    /// Sets up logs, and runs a command that gets the connection to the cluster.
    pub fn run<T>(
        &self,
        user_agent: &str,
        command: impl AsyncFnOnce(Cluster) -> CommandResult<T>,
    ) -> CommandResult<T> {
        let settings = LogSettings {
            format: LogFormat::Text,
            verbosity: self.verbosity,
            vmodule: Vec::new(),
            has_split_stream: false,
            info_buffer_bytes: 0,
            flush_frequency: Duration::from_secs(5),
        };
        loadmaster_stdx::catch_panic::silence_caught_panics();
        Logs::init(&settings).map_err(|error| failed("setting up logs", &error))?;
        let hash_seed = HashSeed::of_thread();
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.enable_all().on_thread_start(move || hash_seed.set_for_thread());
        let runtime = runtime.build();
        let runtime = runtime.map_err(|error| failed("starting the network runtime", &error))?;
        runtime.block_on(async {
            let cluster = Cluster::from_kubeconfig(&self.kubeconfig.source(), user_agent).await;
            command(cluster.map_err(|error| Failure::invalid_input(ErrorChain(&error)))?).await
        })
    }
}

/// A command cannot do this.
pub(crate) fn failed(doing: &str, error: &dyn std::error::Error) -> Failure {
    Failure::invalid_input(format!("{doing}: {}", ErrorChain(error)))
}
