//! The embedded API server in this process: its sockets, its kubeconfig, its flags.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write as _};
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
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::exit::{Answer, Failure};

/// How the API server is set up.
#[derive(clap::Args)]
pub(crate) struct ServerArgs {
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

/// An API server that answers on the loopback address.
pub(crate) struct Embedded {
    runtime: Runtime,
    address: SocketAddr,
    kubeconfig: PathBuf,
    serving: JoinHandle<io::Result<()>>,
}

fn failed(doing: &str, error: &dyn std::error::Error) -> Failure {
    Failure::input(format!("{doing}: {}", Chain(error)))
}

impl ServerArgs {
    /// Starts the server and writes its kubeconfig.
    pub fn start(&self) -> Answer<Embedded> {
        if let Some(unknown) = self.serve.iter().find(|it| !Kinds::can_also_serve(it)) {
            return Err(Failure::input(format!(
                "--serve {unknown}: not a group and version that can be served beside the stable ones"
            )));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed("starting the network runtime", &error))?;
        let server = ApiServer::new(Options {
            clock: Arc::new(jiff::Timestamp::now),
            seed: RandomState::new().hash_one(self.port),
            limits: Limits::default(),
            also_serve: self.serve.clone(),
        })
        .map_err(|error| failed("setting up the cluster", &error))?;
        let pki = Pki::new(&["localhost", "127.0.0.1", "kubernetes.default.svc"])
            .map_err(|error| failed("setting up TLS", &error))?;
        let admin = pki
            .client("kubernetes-admin", "system:masters")
            .map_err(|error| failed("setting up TLS", &error))?;
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)));
        let listener = runtime
            .block_on(listener)
            .map_err(|error| failed(&format!("listening on port {}", self.port), &error))?;
        let address =
            listener.local_addr().map_err(|error| failed("finding out the port", &error))?;
        let path = self.kubeconfig.clone().unwrap_or_else(|| temporary(address));
        let text = kubeconfig(&format!("https://{address}"), pki.authority_pem(), &admin);
        write_private(&path, &text)
            .map_err(|error| failed(&format!("writing {}", path.display()), &error))?;
        let serving = runtime.spawn(serve(listener, server, Some(Arc::new(pki))));
        Ok(Embedded { runtime, address, kubeconfig: path, serving })
    }
}

impl Embedded {
    /// `https://127.0.0.1:38805`.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Serves until Ctrl-C.
    ///
    /// # Errors
    ///
    /// When connections can no longer be accepted.
    pub fn serve(self) -> Answer<()> {
        self.runtime.block_on(async {
            tokio::select! {
                Ok(served) = self.serving => {
                    served.map_err(|error| failed("accepting connections", &error))
                }
                _ = tokio::signal::ctrl_c() => Ok(()),
            }
        })
    }
}

fn temporary(address: SocketAddr) -> PathBuf {
    std::env::temp_dir().join(format!("loadmaster-{}.kubeconfig", address.port()))
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
