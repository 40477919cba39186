//! Who gets what on each port, and what attacks on files get: the tables of `docs/src/reference/security.md`.

mod files;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use loadmaster_apiserver::http::Pki;
use loadmaster_extender_server::{ExtenderServer, Tls};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::process::{Client, Folder, Running, free_port, wait_until};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/reference/security.md");
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Those who try, in the order of the table's columns.
const CALLERS: [&str; 8] = [
    "anonymous",
    "wrong token",
    "admin of another CA",
    "another user",
    "a pod's token",
    "web page",
    "preflight",
    "admin",
];

/// A certificate and its key as PEM.
type Identity = (Vec<u8>, Vec<u8>);

/// How a caller sends a request.
struct Caller {
    name: &'static str,
    identity: Option<Identity>,
    /// Header lines.
    headers: String,
}

/// A server: its address, and the roots that clients trust if it has TLS.
struct Port {
    name: &'static str,
    address: SocketAddr,
    roots: Option<RootCertStore>,
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn roots(pem: &[u8]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem).unwrap()).unwrap();
    roots
}

/// The identity in a kubeconfig, its CA, and the port of its server.
fn read_kubeconfig(folder: &Folder, name: &str) -> (Identity, Vec<u8>, u16) {
    let config: Value = serde_saphyr::from_str(&folder.read(name)).unwrap();
    let (user, cluster) = (&config["users"][0]["user"], &config["clusters"][0]["cluster"]);
    let bytes = |value: &Value| BASE64.decode(value.as_str().unwrap()).unwrap();
    let identity = (bytes(&user["client-certificate-data"]), bytes(&user["client-key-data"]));
    let url = cluster["server"].as_str().unwrap();
    let port = url.rsplit(':').next().unwrap().parse().unwrap();
    (identity, bytes(&cluster["certificate-authority-data"]), port)
}

/// Creates a pod and a token that is bound to it.
fn pod_token(client: &Client) -> String {
    let namespace = "/api/v1/namespaces/default";
    client.create(&format!("{namespace}/serviceaccounts"), &json!({"metadata": {"name": "web"}}));
    let spec = json!({"serviceAccountName": "web", "containers": [{"name": "c", "image": "i"}]});
    client
        .create(&format!("{namespace}/pods"), &json!({"metadata": {"name": "web"}, "spec": spec}));
    let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "web"});
    let request = json!({"spec": {"audiences": [], "boundObjectRef": bound}});
    let made = client.create(&format!("{namespace}/serviceaccounts/web/token"), &request);
    made["status"]["token"].as_str().unwrap().to_owned()
}

fn callers(folder: &Folder, token: &str) -> Vec<Caller> {
    let other = Pki::new(&["localhost"], jiff::Timestamp::now()).unwrap();
    let other = other.client("admin", "system:masters", jiff::Timestamp::now()).unwrap();
    let caller = |name: &'static str| {
        let (mut identity, mut headers) = (None, "Host: localhost\r\n".to_owned());
        let page = "Host: example.com\r\nOrigin: http://example.com\r\n";
        match name {
            "wrong token" => headers += "Authorization: Bearer wrong\r\n",
            "admin of another CA" => {
                let (certificate, key) = (other.certificate_pem.clone(), other.key_pem.clone());
                identity = Some((certificate.into_bytes(), key.into_bytes()));
            }
            "another user" => identity = Some(read_kubeconfig(folder, "jane.kubeconfig").0),
            "a pod's token" => headers += &format!("Authorization: Bearer {token}\r\n"),
            // After DNS rebinding, a browser takes the server for the page's own.
            "web page" => headers = page.to_owned(),
            "preflight" => headers = format!("{page}Access-Control-Request-Method: POST\r\n"),
            "admin" => identity = Some(read_kubeconfig(folder, "kubeconfig").0),
            _ => {}
        }
        Caller { name, identity, headers }
    };
    CALLERS.map(caller).into()
}

/// All servers; dropping it ends them.
struct Servers {
    folder: Folder,
    token: String,
    ports: Vec<Port>,
    _processes: Vec<Running>,
}

impl Servers {
    fn start() -> Servers {
        let folder = Folder::new();
        let flags = ["apiserver", "--kubeconfig", "kubeconfig"];
        let jane = ["--kubeconfig-as", "jane=jane.kubeconfig"];
        let apiserver = folder.start(&[&flags[..], &jane].concat(), "api.log");
        wait_until("the API server", || folder.read("api.log").contains("try:").then_some(()));
        let (_, ca, api_port) = read_kubeconfig(&folder, "kubeconfig");
        let client = Client::new(folder.path("kubeconfig"));
        let token = pod_token(&client);

        let (secure, metrics, probes) = (free_port(), free_port(), free_port());
        let secure_port = format!("--secure-port={secure}");
        let flags = ["run", "--kubeconfig=kubeconfig", "--leader-elect=false", "--cert-dir=certs"];
        let scheduler = folder
            .start(&[&flags[..], &["--bind-address=127.0.0.1", &secure_port]].concat(), "run.log");
        let addresses = [metrics, probes].map(|port| loopback(port).to_string());
        let flags = ["controllers", "--kubeconfig", "kubeconfig", "--metricsAddr", &addresses[0]];
        let controllers =
            folder.start(&[&flags[..], &["--probeAddr", &addresses[1]]].concat(), "c.log");
        for port in [secure, metrics, probes] {
            wait_until("a port", || std::net::TcpStream::connect(loopback(port)).ok());
        }
        wait_until("the scheduler's certificate", || {
            folder.path("certs/kube-scheduler.key").exists().then_some(())
        });
        let certificate = folder.read("certs/kube-scheduler.crt");
        std::fs::write(folder.path("ca.crt"), &ca).unwrap();
        let port = |name, port, roots| Port { name, address: loopback(port), roots };
        let ports = vec![
            port("API server", api_port, Some(roots(&ca))),
            port("scheduler", secure, Some(roots(certificate.as_bytes()))),
            port("controllers, metrics", metrics, None),
            port("controllers, probes", probes, None),
        ];
        Servers { folder, token, ports, _processes: vec![apiserver, scheduler, controllers] }
    }

    /// Starts an extender, with TLS and a client CA or without, on the runtime.
    async fn start_extender(&mut self, has_tls: bool) {
        let mut server = ExtenderServer::new().bind(|_| ());
        if has_tls {
            let (chain, key) = ("certs/kube-scheduler.crt", "certs/kube-scheduler.key");
            let tls = Tls::from_files(self.folder.path(chain), self.folder.path(key));
            server = server.tls(tls.client_ca(self.folder.path("ca.crt")));
        }
        let bound = server.listen("127.0.0.1:0").await.unwrap();
        let address = bound.address();
        tokio::spawn(bound.run(std::future::pending()));
        let certificate = self.folder.read("certs/kube-scheduler.crt");
        let (name, roots) = match has_tls {
            true => ("extender, client CA", Some(roots(certificate.as_bytes()))),
            false => ("extender, no TLS", None),
        };
        self.ports.push(Port { name, address, roots });
    }
}

/// The status of the response, or `closed`; with `CORS` if the response allows pages of other origins anything.
async fn call(port: &Port, caller: &Caller, request: &str) -> String {
    let (line, body) = request.split_once('|').unwrap_or((request, ""));
    let line = match (caller.name, line.split_once(' ')) {
        ("preflight", Some((_, path))) => format!("OPTIONS {path}"),
        _ => line.to_owned(),
    };
    let text = format!(
        "{line} HTTP/1.1\r\n{}Connection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        caller.headers,
        body.len()
    );
    let stream = TcpStream::connect(port.address).await.unwrap();
    let Some(roots) = &port.roots else { return exchange(stream, &text).await };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots.clone());
    let config = match &caller.identity {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let certificate = CertificateDer::from_pem_slice(certificate).unwrap();
            let key = PrivateKeyDer::from_pem_slice(key).unwrap();
            config.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    };
    let name = ServerName::try_from("localhost").unwrap();
    let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
    exchange(timeout(TEST_TIMEOUT, connecting).await.unwrap().unwrap(), &text).await
}

async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> String {
    // A server that rejects a certificate may close the connection before.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut response = Vec::new();
    let _ = timeout(TEST_TIMEOUT, stream.read_to_end(&mut response)).await.unwrap();
    let response = String::from_utf8(response).unwrap();
    let head = response.split("\r\n\r\n").next().unwrap().to_ascii_lowercase();
    let status = head.split(' ').nth(1).unwrap_or("closed");
    let cors = if head.contains("access-control-allow") { " CORS" } else { "" };
    format!("{status}{cors}")
}

/// Where credentials are not read.
const ALL: &[&str] = &[
    "anonymous",
    "wrong token",
    "admin of another CA",
    "another user",
    "a pod's token",
    "web page",
    "admin",
];
const ALL_BUT_PAGES: &[&str] =
    &["anonymous", "wrong token", "admin of another CA", "another user", "a pod's token", "admin"];
const WITH_TRUSTED_CA: &[&str] =
    &["anonymous", "wrong token", "another user", "a pod's token", "web page", "admin"];
/// Where no credentials are needed, but invalid ones are rejected.
const PUBLIC: &[&str] = &["anonymous", "another user", "a pod's token", "web page", "admin"];
const PUBLIC_ANY_METHOD: &[&str] =
    &["anonymous", "another user", "a pod's token", "web page", "preflight", "admin"];
const USERS: &[&str] = &["another user", "a pod's token", "admin"];
const CERTIFICATES: &[&str] = &["another user", "admin"];
const ADMIN: &[&str] = &["admin"];

/// The requests, and who gets a successful response: nobody gets more than upstream's rules allow.
const REQUESTS: &[(&str, &str, &[&str])] = &[
    ("API server", "GET /healthz", PUBLIC),
    ("API server", "GET /version", PUBLIC),
    ("API server", "GET /api", USERS),
    ("API server", "GET /api/v1/pods", ADMIN),
    ("API server", "GET /api/v1/namespaces/kube-system/secrets", ADMIN),
    ("API server", "DELETE /api/v1/namespaces/default/pods/none?dryRun=All", &[]),
    ("API server", "POST /api/v1/namespaces?dryRun=All|{\"metadata\":{\"name\":\"a\"}}", ADMIN),
    ("scheduler", "GET /livez", PUBLIC_ANY_METHOD),
    ("scheduler", "GET /metrics", ADMIN),
    ("scheduler", "GET /configz", ADMIN),
    ("scheduler", "GET /explain/default/web?last", ADMIN),
    ("scheduler", "PUT /debug/flags/v|0", ADMIN),
    ("controllers, metrics", "GET /metrics", ALL),
    ("controllers, probes", "GET /healthz", ALL),
    ("extender, no TLS", "GET /healthz", ALL),
    ("extender, no TLS", "GET /metrics", ALL),
    ("extender, no TLS", "POST /bind|{\"PodName\":\"web\",\"Node\":\"a\"}", ALL_BUT_PAGES),
    ("extender, client CA", "GET /healthz", WITH_TRUSTED_CA),
    ("extender, client CA", "GET /metrics", CERTIFICATES),
    ("extender, client CA", "POST /bind|{\"PodName\":\"web\",\"Node\":\"a\"}", CERTIFICATES),
];

#[track_caller]
fn check_page(table: &str) {
    let page = std::fs::read_to_string(PAGE).unwrap();
    assert!(page.contains(table), "{PAGE} should contain this table:\n\n{table}");
}

#[test]
fn nobody_gets_more_than_upstreams_rules_allow() {
    let mut servers = Servers::start();
    let callers = callers(&servers.folder, &servers.token);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut table, mut wrong) = (String::new(), String::new());
    write!(table, "| port | request | {} |\n| --- | --- |", CALLERS.join(" | ")).unwrap();
    table += &" --- |".repeat(CALLERS.len());
    table.push('\n');
    runtime.block_on(async {
        servers.start_extender(false).await;
        servers.start_extender(true).await;
        for (name, request, may) in REQUESTS {
            let port = servers.ports.iter().find(|port| port.name == *name).unwrap();
            let shown = request.split(['|', '?']).next().unwrap();
            write!(table, "| {name} | `{shown}` |").unwrap();
            for caller in &callers {
                let got = call(port, caller, request).await;
                if got.starts_with('2') != may.contains(&caller.name) || got.contains("CORS") {
                    writeln!(wrong, "{name}: {request}: {} got {got}", caller.name).unwrap();
                }
                write!(table, " {got} |").unwrap();
            }
            table.push('\n');
        }
    });
    assert!(wrong.is_empty(), "{wrong}\n{table}");
    check_page(&table);
}

/// The local addresses of the sockets on which a process listens, as the kernel writes them.
#[cfg(target_os = "linux")]
fn listening_sockets(process: &Running) -> Vec<String> {
    let folder = std::path::PathBuf::from(format!("/proc/{}", process.id()));
    let files = std::fs::read_dir(folder.join("fd")).unwrap();
    let links = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
    let own: Vec<String> = links.map(|link| link.display().to_string()).collect();
    let tables = ["net/tcp", "net/tcp6"].map(|table| std::fs::read_to_string(folder.join(table)));
    let lines = tables.iter().flatten().flat_map(|table| table.lines().skip(1));
    let sockets = lines.map(|line| line.split_whitespace().collect::<Vec<&str>>());
    let listening =
        sockets.filter(|it| it[3] == "0A" && own.contains(&format!("socket:[{}]", it[9])));
    listening.map(|it| it[1].split(':').next().unwrap().to_owned()).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn simulated_clusters_listen_on_the_loopback_address_only() {
    // 127.0.0.1
    const LOOPBACK: &str = "0100007F";
    let folder = Folder::new();
    let apiserver = folder.start(&["apiserver", "--kubeconfig", "kubeconfig"], "api.log");
    wait_until("the API server", || folder.read("api.log").contains("try:").then_some(()));
    let flags = ["kubelets", "--kubeconfig", "kubeconfig", "--nodes", "1"];
    let kubelets = folder.start(&flags, "kubelets.log");
    let up = folder.start(&["up", "--kubeconfig", "up", "--nodes", "1"], "up.log");
    for kubeconfig in ["kubeconfig", "up"] {
        wait_until("a node", || {
            folder.path(kubeconfig).exists().then_some(())?;
            let (_, nodes) = Client::new(folder.path(kubeconfig)).get("/api/v1/nodes");
            (nodes["items"].as_array().is_some_and(|it| !it.is_empty())).then_some(())
        });
    }
    assert_eq!(listening_sockets(&apiserver), [LOOPBACK]);
    assert_eq!(listening_sockets(&kubelets), [""; 0]);
    // The API server's and the scheduler's, which may come after the node.
    wait_until("two ports", || (listening_sockets(&up).len() >= 2).then_some(()));
    assert_eq!(listening_sockets(&up), [LOOPBACK; 2]);
}
