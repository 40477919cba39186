//! The embedded API server in this process: its sockets, its kubeconfig, its flags.

mod access;
mod kubeconfig;

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::SignedDuration;
use loadmaster_apiserver::auth::SigningKey;
use loadmaster_apiserver::faults::Faults;
use loadmaster_apiserver::http::{FaultStream, Pki, serve_within};
use loadmaster_apiserver::journal::{Compaction, Journal};
use loadmaster_apiserver::kubeconfig::kubeconfig;
use loadmaster_apiserver::schema::Kinds;
use loadmaster_apiserver::store::Limits;
use loadmaster_apiserver::{ApiServer, Options, Setup};
use loadmaster_stdx::Chain;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::exit::{Answer, Failure};
use crate::terminal;

/// How the API server is set up.
#[derive(clap::Args)]
pub(crate) struct ServerArgs {
    /// The port to answer on; 0 takes a free one.
    #[arg(long, value_name = "P", default_value_t = 0)]
    port: u16,
    /// The kubeconfig to which to add a cluster, user and context `loadmaster`, an administrator's [default: a new file in the folder
    /// for temporary files].
    ///
    /// The context becomes the current one; everything else in the file stays, except comments. A file that is not a kubeconfig is
    /// refused. At the end the entries are removed again and the current context is restored, or the file is removed if it was created
    /// and holds nothing else; with --data-dir they stay.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// A group and version to serve beside the stable ones, such as scheduling.k8s.io/v1alpha2. May be given several times.
    #[arg(long, value_name = "GROUP/VERSION")]
    serve: Vec<String>,
    /// Keep everything in this folder and go on from what is there [default: everything is in memory].
    #[arg(long, value_name = "D")]
    data_dir: Option<PathBuf>,
    /// Let requests go wrong: a file with rules, or one rule such as error=0.01,drop=0.01,late=0.1 (see the page "The embedded
    /// API server").
    #[arg(long, value_name = "FILE|K=V,..")]
    faults: Option<String>,
    /// Decides which requests go wrong.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "faults")]
    fault_seed: u64,
    #[command(flatten)]
    access: access::AccessArgs,
}

/// How much of the past the server keeps, unless flags say otherwise.
#[derive(Clone, Copy)]
pub(crate) struct History {
    /// Changes, for watches.
    pub limits: Limits,
    pub event_ttl: SignedDuration,
}

impl Default for History {
    fn default() -> History {
        History { limits: Limits::default(), event_ttl: Setup::default().event_ttl }
    }
}

/// An API server that answers on the loopback address.
pub(crate) struct Embedded {
    runtime: Runtime,
    server: ApiServer,
    address: SocketAddr,
    kubeconfig: PathBuf,
    /// What is in it for this server.
    config: Value,
    _entries: kubeconfig::AllEntries,
    temporaries: Vec<Temporary>,
    journal: Option<Journal>,
    serving: JoinHandle<io::Result<()>>,
}

fn failed(doing: &str, error: &dyn std::error::Error) -> Failure {
    Failure::input(format!("{doing}: {}", Chain(error)))
}

impl ServerArgs {
    /// Starts the server and writes its kubeconfig.
    pub fn start(&self, history: History) -> Answer<Embedded> {
        if let Some(unknown) = self.serve.iter().find(|it| !Kinds::can_also_serve(it)) {
            return Err(Failure::input(format!(
                "--serve {unknown}: not a group and version that can be served beside the stable ones"
            )));
        }
        self.check_kubeconfigs()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed("starting the network runtime", &error))?;
        let faults = self.fault_stream()?;
        let (server, journal) = self.open(history)?;
        let pki = self.pki()?;
        let admin = pki
            .client("kubernetes-admin", "system:masters")
            .map_err(|error| failed("setting up TLS", &error))?;
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)));
        let listener = runtime
            .block_on(listener)
            .map_err(|error| failed(&format!("listening on port {}", self.port), &error))?;
        let address =
            listener.local_addr().map_err(|error| failed("finding out the port", &error))?;
        let url = format!("https://{address}");
        let stay = self.data_dir.is_some();
        let mut entries = self.access.introduce(&server, &pki, &url, stay)?;
        let config = kubeconfig(NAME, &url, pki.authority_pem(), &admin);
        let mut temporaries = Vec::new();
        let path = match &self.kubeconfig {
            Some(path) => {
                entries.push(kubeconfig::add(path, NAME, &config, stay)?);
                path.clone()
            }
            None => temporary_kubeconfig(address, &config, &mut temporaries)?,
        };
        let serving = serve_within(
            listener,
            server.clone(),
            Some(Arc::new(pki)),
            self.access.bounds(),
            faults,
        );
        let serving = runtime.spawn(serving);
        Ok(Embedded {
            runtime,
            server,
            address,
            kubeconfig: path,
            config,
            _entries: entries,
            temporaries,
            journal,
            serving,
        })
    }
}

/// What cluster, user and context are called in a kubeconfig.
const NAME: &str = "loadmaster";

fn temporary_kubeconfig(
    address: SocketAddr,
    config: &Value,
    temporaries: &mut Vec<Temporary>,
) -> Answer<PathBuf> {
    let (file, mut open) = Temporary::create(address, "kubeconfig")?;
    let path = file.0.clone();
    temporaries.push(file);
    let written = kubeconfig::yaml(config).and_then(|text| open.write_all(text.as_bytes()));
    written.map_err(|error| cannot_write(&path, &error))?;
    Ok(path)
}

/// What the server is called in its certificate.
const NAMES: &[&str] = &["localhost", "127.0.0.1", "kubernetes.default.svc"];

impl ServerArgs {
    fn open(&self, history: History) -> Answer<(ApiServer, Option<Journal>)> {
        let options = Options {
            clock: Arc::new(jiff::Timestamp::now),
            seed: RandomState::new().hash_one(self.port),
            limits: history.limits,
            also_serve: self.serve.clone(),
        };
        let Some(folder) = &self.data_dir else {
            let server =
                ApiServer::with_setup(options, self.access.setup(None, history.event_ttl)?);
            let server = server.map_err(|error| failed("setting up the cluster", &error))?;
            return Ok((server, None));
        };
        let path = folder.join("sa.key");
        let known = known_key(&path)?;
        let made = || SigningKey::generate_pem().map_err(|error| failed("making a key", &error));
        let key = known.clone().map_or_else(made, Ok)?;
        let setup = self.access.setup(Some((&path, &key)), history.event_ttl)?;
        let opened = ApiServer::open(options, setup, folder, Compaction::default());
        let (server, journal) = opened.map_err(|error| failed("--data-dir", &error))?;
        if known.is_none() {
            keep_key(&path, &key)?;
        }
        Ok((server, Some(journal)))
    }

    /// What cannot be added to a kubeconfig is refused before anything begins.
    fn check_kubeconfigs(&self) -> Answer<()> {
        if let Some(path) = &self.kubeconfig {
            kubeconfig::check(path, NAME)?;
        }
        self.access.check_kubeconfigs()
    }

    /// With a folder, whoever has a kubeconfig can still use it after a restart.
    fn pki(&self) -> Answer<Pki> {
        let made = |pki: Result<Pki, _>| pki.map_err(|error| failed("setting up TLS", &error));
        let Some(folder) = &self.data_dir else { return made(Pki::new(NAMES)) };
        let path = folder.join("ca.key");
        match known_key(&path)? {
            Some(key) => Pki::from_key(&key, NAMES)
                .map_err(|error| failed(&format!("reading {}", path.display()), &error)),
            None => {
                let pki = made(Pki::new(NAMES))?;
                keep_key(&path, pki.authority_key_pem())?;
                Ok(pki)
            }
        }
    }

    /// Text with `=` and no such file is a rule.
    fn fault_stream(&self) -> Answer<FaultStream> {
        let Some(given) = &self.faults else { return Ok(FaultStream::default()) };
        let doing = || format!("--faults {given}");
        let faults = if given.contains('=') && !Path::new(given).exists() {
            Faults::from_words(given)
        } else {
            let text = std::fs::read_to_string(given);
            Faults::from_yaml(&text.map_err(|error| failed(&doing(), &error))?)
        };
        let faults = faults.map_err(|error| failed(&doing(), &error))?;
        Ok(FaultStream::new(faults, self.fault_seed))
    }
}

impl Embedded {
    /// For requests without sockets.
    pub fn server(&self) -> &ApiServer {
        &self.server
    }

    /// Where it runs; what belongs to it may, too.
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

    /// The same for this process alone: the user's file may name another current context at any time.
    pub fn private_kubeconfig(&mut self) -> Answer<PathBuf> {
        let is_private = self.temporaries.iter().any(|it| it.0 == self.kubeconfig);
        if is_private {
            return Ok(self.kubeconfig.clone());
        }
        temporary_kubeconfig(self.address, &self.config, &mut self.temporaries)
    }

    /// A file of this server that only its owner may read, in the folder for temporary files until the server ends.
    pub fn temporary(&mut self, extension: &str) -> Answer<(PathBuf, File)> {
        let (file, open) = Temporary::create(self.address, extension)?;
        let path = file.0.clone();
        self.temporaries.push(file);
        Ok((path, open))
    }

    /// Whether it keeps its data in a folder, where that of a run before this one may be.
    pub fn has_data(&self) -> bool {
        self.journal.is_some()
    }

    /// Serves until Ctrl-C or SIGTERM.
    ///
    /// # Errors
    ///
    /// When connections can no longer be accepted, or the data folder not be written.
    pub fn serve(mut self) -> Answer<()> {
        let served = self.until(terminal::end_asked());
        served.and(self.close())
    }

    /// Serves until something has happened.
    fn until(&mut self, end: impl Future<Output = ()>) -> Answer<()> {
        let Embedded { runtime, serving, journal, .. } = self;
        runtime.block_on(async {
            let lost = async {
                match journal {
                    Some(journal) => journal.failed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Ok(served) = serving => {
                    served.map_err(|error| failed("accepting connections", &error))
                }
                error = lost => Err(failed("keeping the data", &error)),
                () = end => Ok(()),
            }
        })
    }

    /// Ends it.
    ///
    /// # Errors
    ///
    /// When the data folder does not have all of it.
    pub fn close(self) -> Answer<()> {
        self.serving.abort();
        let closed = self.journal.map_or(Ok(()), Journal::close);
        closed.map_err(|error| failed("keeping the data", &error))
    }
}

/// A file in the folder for temporary files, which goes with the server, however that ends.
struct Temporary(PathBuf);

impl Temporary {
    /// A new file: one that somebody else put there under this name would be his to read, or a link to somewhere.
    fn create(address: SocketAddr, extension: &str) -> Answer<(Temporary, File)> {
        let name = format!("loadmaster-{}.{extension}", address.port());
        let path = std::env::temp_dir().join(name);
        // What a server before this one on the same port left.
        let _ = std::fs::remove_file(&path);
        let open = private().create_new(true).open(&path);
        let open = open.map_err(|error| cannot_write(&path, &error))?;
        Ok((Temporary(path), open))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A key from an earlier life.
fn known_key(path: &Path) -> Answer<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(key) => Ok(Some(key)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(&format!("reading {}", path.display()), &error)),
    }
}

/// Keeps a key; the file has its name only when it is whole.
fn keep_key(path: &Path, pem: &str) -> Answer<()> {
    let unfinished = path.with_extension("key.unfinished");
    write_private(&unfinished, pem)
        .and_then(|()| std::fs::rename(&unfinished, path))
        .map_err(|error| cannot_write(path, &error))
}

/// Writes a file that only its owner may read, also if there was one that others may.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut file = private().create(true).truncate(true).open(path)?;
    #[cfg(unix)]
    if file.metadata()?.is_file() {
        use std::os::unix::fs::PermissionsExt as _;
        file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    }
    file.write_all(text.as_bytes())
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(0o600);
    }
    options
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    failed(&format!("writing {}", path.display()), error)
}
