//! The embedded API server: its flags, listener, kubeconfig and data folder.

mod access;
mod issued_certificates;
mod kubeconfig;

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use loadmaster_apiserver::authentication::SigningKey;
use loadmaster_apiserver::fault_injection::Faults;
use loadmaster_apiserver::http::{FaultInjector, Pki, serve_with_options};
use loadmaster_apiserver::journal::{Journal, SnapshotPolicy};
use loadmaster_apiserver::schema::Kinds;
use loadmaster_apiserver::store::StoreLimits;
use loadmaster_apiserver::{ApiServer, ClusterOptions, Options};
use loadmaster_serving::private_file;
use loadmaster_stdx::{ErrorChain, HashSeed};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::exit::{CommandResult, Failure};
use crate::terminal;
use issued_certificates::{IssuedCertificates, KubeconfigUser};

/// Flags of the embedded API server.
#[derive(clap::Args)]
pub(crate) struct ServerArgs {
    /// The port to listen on; 0 selects a free port.
    #[arg(long, value_name = "P", default_value_t = 0)]
    port: u16,
    /// Path to the kubeconfig file to which a cluster, an administrator user and a context named `loadmaster` are added [default: a new
    /// temporary file].
    ///
    /// The context becomes the current context; other entries are kept, comments are not. A file that is not a kubeconfig is rejected.
    /// On exit the entries are removed and the current context is restored, or the file is removed if it was created and is otherwise
    /// empty. With --data-dir the entries are kept.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// An additional API group and version to serve, such as scheduling.k8s.io/v1alpha2. May be repeated.
    #[arg(long, value_name = "GROUP/VERSION")]
    serve: Vec<String>,
    /// Directory for persistent data; existing data is loaded at startup [default: data is kept in memory].
    #[arg(long, value_name = "D")]
    data_dir: Option<PathBuf>,
    /// Inject faults into requests: a file with rules, or one rule such as error=0.01,drop=0.01,late=0.1 (see the page "The embedded
    /// API server" of the documentation).
    #[arg(long, value_name = "FILE|K=V,..")]
    faults: Option<String>,
    /// Seed of the random number generator for fault injection.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "faults")]
    fault_seed: u64,
    #[command(flatten)]
    access: access::AccessArgs,
}

/// Default limits for the watch history and Events.
#[derive(Clone, Copy)]
pub(crate) struct HistoryLimits {
    /// Limits of the watch cache.
    pub limits: StoreLimits,
    pub event_ttl: SignedDuration,
}

impl Default for HistoryLimits {
    fn default() -> HistoryLimits {
        HistoryLimits {
            limits: StoreLimits::default(),
            event_ttl: ClusterOptions::default().event_ttl,
        }
    }
}

/// A running API server on the loopback address.
pub(crate) struct EmbeddedApiServer {
    runtime: Runtime,
    server: ApiServer,
    address: SocketAddr,
    kubeconfig: PathBuf,
    issued: Arc<IssuedCertificates>,
    _entries: kubeconfig::AllKubeconfigEntries,
    temporaries: Vec<TemporaryFile>,
    journal: Option<Journal>,
    serving: JoinHandle<()>,
}

fn failed(doing: &str, error: &dyn std::error::Error) -> Failure {
    Failure::invalid_input(format!("{doing}: {}", ErrorChain(error)))
}

impl ServerArgs {
    /// Starts the server and writes its kubeconfig.
    pub fn start_api_server(&self, history: HistoryLimits) -> CommandResult<EmbeddedApiServer> {
        if let Some(unknown) = self.serve.iter().find(|it| !Kinds::can_also_serve(it)) {
            return Err(Failure::invalid_input(format!(
                "--serve {unknown}: not an API group and version that can be enabled"
            )));
        }
        self.check_kubeconfigs()?;
        let hash_seed = HashSeed::of_thread();
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.enable_all().on_thread_start(move || hash_seed.set_for_thread());
        let runtime = runtime.build();
        let runtime = runtime.map_err(|error| failed("starting the network runtime", &error))?;
        let faults = self.fault_stream()?;
        let (server, journal) = self.open(history)?;
        let pki = Arc::new(self.pki()?);
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)));
        let listener = runtime
            .block_on(listener)
            .map_err(|error| failed(&format!("listening on port {}", self.port), &error))?;
        let address = listener
            .local_addr()
            .map_err(|error| failed("reading the port of the listener", &error))?;
        let url = format!("https://{address}");
        let stay = self.data_dir.is_some();
        let issued = Arc::new(IssuedCertificates::new(pki.clone(), &url, Timestamp::now()));
        let mut entries = self.access.add_users(&server, &pki, &issued, stay)?;
        let mut temporaries = Vec::new();
        let path = match &self.kubeconfig {
            Some(path) => {
                let config = issued.issue(ADMIN, path, Timestamp::now())?;
                entries.push(kubeconfig::add(path, NAME, &config, stay)?);
                path.clone()
            }
            None => temporary_kubeconfig(address, &issued, &mut temporaries)?,
        };
        let serving = serve_with_options(
            listener,
            server.clone(),
            Some(pki),
            self.access.http_limits(),
            faults,
        );
        let serving = runtime.spawn(serving);
        runtime.spawn(issued.clone().keep_renewed());
        Ok(EmbeddedApiServer {
            runtime,
            server,
            address,
            kubeconfig: path,
            issued,
            _entries: entries,
            temporaries,
            journal,
            serving,
        })
    }
}

/// Name of the cluster, user and context in the kubeconfig.
const NAME: &str = "loadmaster";

const ADMIN: KubeconfigUser<'static> =
    KubeconfigUser { user: "kubernetes-admin", group: "system:masters", name: NAME };

fn temporary_kubeconfig(
    address: SocketAddr,
    issued: &IssuedCertificates,
    temporaries: &mut Vec<TemporaryFile>,
) -> CommandResult<PathBuf> {
    let (file, mut open) = TemporaryFile::create(address, "kubeconfig")?;
    let path = file.0.clone();
    temporaries.push(file);
    let config = issued.issue(ADMIN, &path, Timestamp::now())?;
    let written = kubeconfig::yaml(&config).and_then(|text| open.write_all(text.as_bytes()));
    written.map_err(|error| cannot_write(&path, &error))?;
    Ok(path)
}

/// Names in the server's certificate.
const NAMES: &[&str] = &["localhost", "127.0.0.1", "kubernetes.default.svc"];

impl ServerArgs {
    fn open(&self, history: HistoryLimits) -> CommandResult<(ApiServer, Option<Journal>)> {
        let options = Options {
            clock: Arc::new(Timestamp::now),
            seed: RandomState::new().hash_one(self.port),
            limits: history.limits,
            also_serve: self.serve.clone(),
        };
        let Some(folder) = &self.data_dir else {
            let server = ApiServer::with_cluster_options(
                options,
                self.access.server_setup(None, history.event_ttl)?,
            );
            let server = server.map_err(|error| failed("setting up the cluster", &error))?;
            return Ok((server, None));
        };
        let path = folder.join("sa.key");
        let known = read_key(&path)?;
        let made =
            || SigningKey::generate_pem().map_err(|error| failed("generating a key", &error));
        let key = known.clone().map_or_else(made, Ok)?;
        let setup = self.access.server_setup(Some((&path, &key)), history.event_ttl)?;
        let opened = ApiServer::open(options, setup, folder, SnapshotPolicy::default());
        let (server, journal) = opened.map_err(|error| failed("--data-dir", &error))?;
        if known.is_none() {
            private_file::replace(&path, None, &key)
                .map_err(|error| cannot_write(&path, &error))?;
        }
        Ok((server, Some(journal)))
    }

    /// Checks all kubeconfig files before anything is started.
    fn check_kubeconfigs(&self) -> CommandResult<()> {
        if let Some(path) = &self.kubeconfig {
            kubeconfig::check(path, NAME)?;
        }
        self.access.check_kubeconfigs()
    }

    /// With a data folder the CA key is stored, so that kubeconfigs stay valid after a restart.
    fn pki(&self) -> CommandResult<Pki> {
        let now = Timestamp::now();
        let made = |pki: Result<Pki, _>| pki.map_err(|error| failed("setting up TLS", &error));
        let Some(folder) = &self.data_dir else { return made(Pki::new(NAMES, now)) };
        let path = folder.join("ca.key");
        match read_key(&path)? {
            Some(key) => Pki::from_key(&key, NAMES, now)
                .map_err(|error| failed(&format!("reading {}", path.display()), &error)),
            None => {
                let pki = made(Pki::new(NAMES, now))?;
                private_file::replace(&path, None, pki.ca_key_pem())
                    .map_err(|error| cannot_write(&path, &error))?;
                Ok(pki)
            }
        }
    }

    /// `--faults` is a rule if it contains `=` and there is no such file.
    fn fault_stream(&self) -> CommandResult<FaultInjector> {
        let Some(given) = &self.faults else { return Ok(FaultInjector::default()) };
        let doing = || format!("--faults {given}");
        let faults = if given.contains('=') && !Path::new(given).exists() {
            Faults::from_flag(given)
        } else {
            let text = std::fs::read_to_string(given);
            Faults::from_yaml(&text.map_err(|error| failed(&doing(), &error))?)
        };
        let faults = faults.map_err(|error| failed(&doing(), &error))?;
        Ok(FaultInjector::new(faults, self.fault_seed))
    }
}

impl EmbeddedApiServer {
    /// The server, for requests without a connection.
    pub fn server(&self) -> &ApiServer {
        &self.server
    }

    /// The runtime of the server.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// `https://127.0.0.1:38805`.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A kubeconfig for this process only: the current context of the user's file may change at any time.
    pub fn private_kubeconfig(&mut self) -> CommandResult<PathBuf> {
        let is_private = self.temporaries.iter().any(|it| it.0 == self.kubeconfig);
        if is_private {
            return Ok(self.kubeconfig.clone());
        }
        temporary_kubeconfig(self.address, &self.issued, &mut self.temporaries)
    }

    /// Writes a serving certificate of this cluster's CA, and its key, to temporary files, in which they are renewed. Returns their paths.
    pub fn serving_certificate(&mut self, component: &str) -> CommandResult<(PathBuf, PathBuf)> {
        let (certificate, _) = self.create_temporary_file("crt")?;
        let (key, _) = self.create_temporary_file("key")?;
        self.issued.issue_serving(component, &certificate, &key, Timestamp::now())?;
        Ok((certificate, key))
    }

    /// Creates a temporary file that only its owner can read. It is removed when the server stops.
    pub fn create_temporary_file(&mut self, extension: &str) -> CommandResult<(PathBuf, File)> {
        let (file, open) = TemporaryFile::create(self.address, extension)?;
        let path = file.0.clone();
        self.temporaries.push(file);
        Ok((path, open))
    }

    /// Whether there is a data folder, which may contain data of an earlier run.
    pub fn has_data(&self) -> bool {
        self.journal.is_some()
    }

    /// Waits for Ctrl-C or SIGTERM, neither of which ends the process from this call on.
    pub fn stop_signal(&self) -> impl Future<Output = ()> + Send + use<> {
        let _in_runtime = self.runtime.enter();
        terminal::stop_signal()
    }

    /// Serves until the future is ready, and closes the data folder.
    ///
    /// # Errors
    ///
    /// If the data folder cannot be written.
    pub fn serve_until(mut self, end: impl Future<Output = ()>) -> CommandResult<()> {
        let served = self.until(end);
        served.and(self.close())
    }

    /// Serves until the future is ready.
    fn until(&mut self, end: impl Future<Output = ()>) -> CommandResult<()> {
        let EmbeddedApiServer { runtime, journal, .. } = self;
        runtime.block_on(async {
            let lost = async {
                match journal {
                    Some(journal) => journal.failed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                error = lost => Err(failed("writing the data folder", &error)),
                () = end => Ok(()),
            }
        })
    }

    /// Stops the server.
    ///
    /// # Errors
    ///
    /// If the data folder could not be written completely.
    pub fn close(self) -> CommandResult<()> {
        self.serving.abort();
        let closed = self.journal.map_or(Ok(()), Journal::close);
        closed.map_err(|error| failed("writing the data folder", &error))
    }
}

/// A temporary file, which is removed when it is dropped.
struct TemporaryFile(PathBuf);

impl TemporaryFile {
    /// Creates a new file. An existing file is never reused: it could belong to another user, or be a link. Another user may have created
    /// one by the first name, which can be guessed; the second one cannot.
    fn create(address: SocketAddr, extension: &str) -> CommandResult<(TemporaryFile, File)> {
        let folder = std::env::temp_dir();
        let path = folder.join(format!("loadmaster-{}.{extension}", address.port()));
        // Left behind by an earlier server on the same port.
        let _ = std::fs::remove_file(&path);
        let create = |path: &Path| private_file::open_options().create_new(true).open(path);
        let (path, open) = match create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let random = RandomState::new().hash_one(address);
                let path = folder.join(format!("loadmaster-{random:016x}.{extension}"));
                let open = create(&path);
                (path, open)
            }
            open => (path, open),
        };
        let open = open.map_err(|error| cannot_write(&path, &error))?;
        Ok((TemporaryFile(path), open))
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Reads a key that an earlier run has written; `None` if there is none.
fn read_key(path: &Path) -> CommandResult<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(key) => Ok(Some(key)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(&format!("reading {}", path.display()), &error)),
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    failed(&format!("writing {}", path.display()), error)
}
