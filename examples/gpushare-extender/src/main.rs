//! Lets pods share GPUs by memory: a pod that requests `aliyun.com/gpu-mem` is scheduled to a node with one device that has enough free
//! memory, and annotations say which device. An HTTP extender for kube-scheduler and Loadmaster.
//!
//! ```text
//!  scheduler ──filter──► devices: fit              ◄── cache ◄── pods, nodes, ConfigMaps (watched)
//!            ──bind────► devices: assume ─► Binding with annotations   (forget if it fails)
//!  kubectl inspect ────► inspect
//! ```
//!
//! Read [`devices`] first: it makes the decisions, without I/O.

mod devices;
mod pod;

mod bind;
mod cache;
mod inspect;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Parser;
use k8s_openapi::api::core::v1::Pod;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use loadmaster_extender_server::messages::ExtenderBindingArgs;
use loadmaster_extender_server::{
    Error, ExtenderServer, FilteredNodes, NodeRejection, NodesRequest, Tls,
};

use bind::Binder;
use cache::Cache;

/// Lets pods share GPUs by memory, as an HTTP extender.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:39999")]
    listen: String,
    /// Path to a kubeconfig file. By default the default kubeconfig, or the in-cluster configuration.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// File with the PEM certificate for HTTPS. Without it plain HTTP is served.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// File with the PEM private key of --tls-cert-file.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// File with the CA certificates that client certificates must be signed by.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    client_ca_file: Option<PathBuf>,
}

/// The extender's handlers.
fn extender(cache: &Cache, client: &Client) -> ExtenderServer {
    let (filter_cache, bind_cache, inspect_cache, ready_cache) =
        (cache.clone(), cache.clone(), cache.clone(), cache.clone());
    let client = client.clone();
    ExtenderServer::new()
        .url_prefix("/gpushare-scheduler")
        .version(env!("CARGO_PKG_VERSION"))
        .readiness_check(move || check_synced(&ready_cache))
        .filter(move |request| filter(&filter_cache, request))
        .bind(move |args: ExtenderBindingArgs| {
            let (cache, client) = (bind_cache.clone(), client.clone());
            async move {
                check_synced(&cache)?;
                Binder::new(client, &cache, &args).bind().await.map_err(Error::from)
            }
        })
        .page("/gpushare-scheduler/inspect", move |node| {
            inspect::inspect(&inspect_cache.read(), &node)
        })
}

/// Fails until everything was listed: with unknown pods, memory could be assigned twice.
fn check_synced(cache: &Cache) -> Result<(), Error> {
    match cache.is_synced() {
        true => Ok(()),
        false => Err(Error::new("pods, nodes and ConfigMaps are not listed yet")),
    }
}

/// Filter reserves nothing: two pods may both pass, and then the second one to be bound fails.
fn filter(cache: &Cache, request: NodesRequest) -> Result<FilteredNodes, Error> {
    check_synced(cache)?;
    let memory = pod::memory(&request.pod.decode::<Pod>()?);
    let devices = cache.read();
    Ok(request.filter_node_names(|_, node| match memory {
        0 => Ok(()),
        memory => match devices.fit(node, memory) {
            Ok(_) => Ok(()),
            Err(error) => Err(NodeRejection::unschedulable(error.to_string())),
        },
    }))
}

async fn config(kubeconfig: Option<PathBuf>) -> Result<Config> {
    let Some(path) = kubeconfig else {
        return Config::infer().await.context("finding the cluster configuration");
    };
    let reading = || format!("reading {}", path.display());
    let file = Kubeconfig::read_from(&path).with_context(reading)?;
    Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.with_context(reading)
}

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let args = Args::parse();
    let client = Client::try_from(config(args.kubeconfig).await?).context("building a client")?;
    let cache = Cache::default();
    let mut extender = extender(&cache, &client);
    if let (Some(certificate), Some(key)) = (args.tls_cert_file, args.tls_private_key_file) {
        let tls = Tls::from_files(certificate, key);
        extender = extender.tls(match args.client_ca_file {
            Some(file) => tls.client_ca(file),
            None => tls,
        });
    }
    let following = tokio::spawn(cache.run(client));
    let served = extender.serve(&args.listen).await;
    following.abort();
    served.with_context(|| format!("serving on {}", args.listen))
}

#[cfg(test)]
mod tests;
