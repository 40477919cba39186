//! `loadmaster apiserver`: the embedded API server alone.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use loadmaster_apiserver::http::{Pki, serve};
use loadmaster_apiserver::kubeconfig::kubeconfig;
use loadmaster_apiserver::schema::Kinds;
use loadmaster_apiserver::store::Limits;
use loadmaster_apiserver::{ApiServer, Options};
use loadmaster_stdx::Chain;
use tokio::net::TcpListener;

use crate::exit::{Answer, Exit, Failure};

/// Run a Kubernetes API server in this process, for kubectl, client libraries and schedulers.
///
/// It keeps everything in memory and answers on the loopback address as kube-apiserver 1.36 does. There are no kubelets and no
/// controllers behind it; whatever runs against it is its cluster. It ends with Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  loadmaster apiserver
  loadmaster apiserver --port 6443 --kubeconfig test.kubeconfig
  kube-scheduler --kubeconfig test.kubeconfig --leader-elect=false")]
pub(crate) struct Args {
    /// The port to answer on; 0 takes a free one.
    #[arg(long, value_name = "P", default_value_t = 0)]
    port: u16,
    /// Where to write the kubeconfig of an administrator [default: in the folder for temporary files].
    #[arg(long, value_name = "OUT")]
    kubeconfig: Option<PathBuf>,
    /// A group and version to serve beside the stable ones, such as scheduling.k8s.io/v1alpha2. May be given several times.
    #[arg(long, value_name = "GROUP/VERSION")]
    serve: Vec<String>,
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Answer<Exit> {
    let failed = |doing: &str, error: &dyn std::error::Error| {
        Failure::input(format!("{doing}: {}", Chain(error)))
    };
    if let Some(unknown) = args.serve.iter().find(|it| !Kinds::can_also_serve(it)) {
        return Err(Failure::input(format!(
            "--serve {unknown}: not a group and version that can be served beside the stable ones"
        )));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("starting the network runtime", &error))?;
    let server = ApiServer::new(Options {
        clock: Arc::new(jiff::Timestamp::now),
        seed: RandomState::new().hash_one(args.port),
        limits: Limits::default(),
        also_serve: args.serve.clone(),
    })
    .map_err(|error| failed("setting up the cluster", &error))?;
    let pki = Pki::new(&["localhost", "127.0.0.1", "kubernetes.default.svc"])
        .map_err(|error| failed("setting up TLS", &error))?;
    let admin = pki
        .client("kubernetes-admin", "system:masters")
        .map_err(|error| failed("setting up TLS", &error))?;
    runtime.block_on(async {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, args.port)))
            .await
            .map_err(|error| failed(&format!("listening on port {}", args.port), &error))?;
        let address =
            listener.local_addr().map_err(|error| failed("finding out the port", &error))?;
        let default =
            || std::env::temp_dir().join(format!("loadmaster-{}.kubeconfig", address.port()));
        let path = args.kubeconfig.clone().unwrap_or_else(default);
        let text = kubeconfig(&format!("https://{address}"), pki.authority_pem(), &admin);
        write_private(&path, &text)
            .map_err(|error| failed(&format!("writing {}", path.display()), &error))?;
        let shown = path.display();
        writeln!(out, "API server on https://{address}")?;
        writeln!(out, "kubeconfig:  {shown}")?;
        writeln!(out, "try:         kubectl --kubeconfig {shown} get namespaces")?;
        out.flush()?;
        let serving = tokio::spawn(serve(listener, server, Some(Arc::new(pki))));
        let stop = serving.abort_handle();
        tokio::spawn(async move {
            if tokio::signal::ctrl_c().await.is_ok() {
                stop.abort();
            }
        });
        // Aborted is how it is meant to end.
        if let Ok(served) = serving.await {
            served.map_err(|error| failed("accepting connections", &error))?;
        }
        Ok(Exit::Done)
    })
}

/// Writes a file that only its owner may read: it holds a key.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(0o600);
    }
    options.open(path)?.write_all(text.as_bytes())
}
