//! Lets pods share GPUs by memory: a pod that asks for `aliyun.com/gpu-mem` goes where one device has so much left, and is told
//! which one by annotations. An HTTP extender for kube-scheduler and Loadmaster.
//!
//! ```text
//!  scheduler ──filter──► devices: does it fit?     ◄── cache ◄── pods, nodes, ConfigMaps (watched)
//!            ──bind────► devices: assume ─► binding with annotations   (forgotten when it fails)
//!  kubectl inspect ────► inspect
//! ```
//!
//! Read [`devices`] first: it decides, and does no I/O.

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
use loadmaster_extender_server::{Ask, Error, ExtenderServer, Filtered, Rejection, Tls};

use bind::Binder;
use cache::Cache;

/// Lets pods share GPUs by memory, as an HTTP extender.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Where to listen.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:39999")]
    listen: String,
    /// The cluster; without it the default kubeconfig, or the cluster this runs in.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Serve HTTPS with this certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// The certificate's key.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// Serve only clients with a certificate of this authority.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    client_ca_file: Option<PathBuf>,
}

/// The handlers over a cache and an API server.
fn extender(cache: &Cache, client: &Client) -> ExtenderServer {
    let (asked, bound, shown, checked) =
        (cache.clone(), cache.clone(), cache.clone(), cache.clone());
    let client = client.clone();
    ExtenderServer::new()
        .prefix("/gpushare-scheduler")
        .version(env!("CARGO_PKG_VERSION"))
        .ready(move || synced(&checked))
        .filter(move |ask| filter(&asked, ask))
        .bind(move |args: ExtenderBindingArgs| {
            let (cache, client) = (bound.clone(), client.clone());
            async move {
                synced(&cache)?;
                Binder::new(client, &cache, &args).bind().await.map_err(Error::from)
            }
        })
        .page("/gpushare-scheduler/inspect", move |node| inspect::inspect(&shown.read(), &node))
}

/// Who does not know all pods could give a device away twice.
fn synced(cache: &Cache) -> Result<(), Error> {
    match cache.is_synced() {
        true => Ok(()),
        false => Err(Error::new("pods, nodes and ConfigMaps are not listed yet")),
    }
}

/// Nothing is taken here: two pods may both be told that they fit, and the second one to be bound fails then.
fn filter(cache: &Cache, ask: Ask) -> Result<Filtered, Error> {
    synced(cache)?;
    let memory = pod::memory(&ask.pod.decode::<Pod>()?);
    let devices = cache.read();
    Ok(ask.filter_names(|_, node| match memory {
        0 => Ok(()),
        memory => match devices.fit(node, memory) {
            Ok(_) => Ok(()),
            Err(misfit) => Err(Rejection::unschedulable(misfit.to_string())),
        },
    }))
}

async fn config(kubeconfig: Option<PathBuf>) -> Result<Config> {
    let Some(path) = kubeconfig else {
        return Config::infer().await.context("finding a cluster");
    };
    let reading = || format!("reading {}", path.display());
    let file = Kubeconfig::read_from(&path).with_context(reading)?;
    Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.with_context(reading)
}

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let args = Args::parse();
    let client = Client::try_from(config(args.kubeconfig).await?).context("making a client")?;
    let cache = Cache::default();
    let mut extender = extender(&cache, &client);
    if let (Some(certificate), Some(key)) = (args.tls_cert_file, args.tls_private_key_file) {
        let tls = Tls::files(certificate, key);
        extender = extender.tls(match args.client_ca_file {
            Some(file) => tls.client_ca(file),
            None => tls,
        });
    }
    let following = tokio::spawn(cache.follow(client));
    let served = extender.serve(&args.listen).await;
    following.abort();
    served.with_context(|| format!("serving on {}", args.listen))
}

#[cfg(test)]
mod tests;
