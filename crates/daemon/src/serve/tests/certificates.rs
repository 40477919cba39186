//! Client certificates and serving certificates.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::*;

/// A CA that signs certificates.
struct Ca {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Ca {
    fn new() -> Ca {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Ca { pem, issuer: Issuer::new(params, key) }
    }

    fn sign(&self, names: &[&str], common_name: &str, organization: &str) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        if !organization.is_empty() {
            params.distinguished_name.push(DnType::OrganizationName, organization);
        }
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        (cert.pem(), key.serialize_pem())
    }

    fn client(&self, common_name: &str, organization: &str) -> Identity {
        let (cert, key) = self.sign(&[], common_name, organization);
        let cert = CertificateDer::from_pem_slice(cert.as_bytes()).unwrap();
        (cert, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap())
    }
}

/// A directory that is removed at the end of the test.
pub(super) struct TempDirectory(PathBuf);

impl TempDirectory {
    pub(super) fn new(name: &str) -> TempDirectory {
        let path =
            std::env::temp_dir().join(format!("loadmaster-serve-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        TempDirectory(path)
    }

    pub(super) fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for TempDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn client_certificates_name_users() {
    let (ca, other) = (Ca::new(), Ca::new());
    let directory = TempDirectory::new("client-ca");
    let flag = format!("--client-ca-file={}", directory.write("ca.crt", &ca.pem));
    let server = serve(&[&flag], |_| ()).await;
    let status = async |identity: Option<&Identity>, path: &str| {
        status_of(&request(&server, &format!("GET {path}"), "", identity).await.0)
    };
    assert_eq!(status(Some(&ca.client("root", "system:masters")), "/metrics").await, 200);
    assert_eq!(status(Some(&ca.client("jane", "devs")), "/metrics").await, 403);
    assert_eq!(status(Some(&ca.client("jane", "devs")), "/healthz").await, 200);
    assert_eq!(status(Some(&other.client("root", "system:masters")), "/healthz").await, 401);
    assert_eq!(status(None, "/healthz").await, 200);
    // A new CA in the file is trusted, the old one is not.
    directory.write("ca.crt", &other.pem);
    server.reload().unwrap();
    assert_eq!(status(Some(&other.client("root", "system:masters")), "/metrics").await, 200);
    assert_eq!(status(Some(&ca.client("root", "system:masters")), "/metrics").await, 401);
    server.shutdown().await;
}

#[tokio::test]
async fn front_proxies_name_users_in_headers() {
    let (users, proxies) = (Ca::new(), Ca::new());
    let lists = |names: &[&str]| json!(names).to_string();
    let config_map = json!({"data": {
        "client-ca-file": users.pem,
        "requestheader-client-ca-file": proxies.pem,
        "requestheader-allowed-names": lists(&["front-proxy-client"]),
        "requestheader-username-headers": lists(&["X-Remote-User"]),
        "requestheader-group-headers": lists(&["X-Remote-Group"]),
        "requestheader-extra-headers-prefix": lists(&["X-Remote-Extra-"]),
    }});
    let script = ScriptedApi::new(&[("extension-apiserver-authentication", 200, config_map)]);
    let reviews =
        ScriptedApi::new(&[("subjectaccessreviews", 201, json!({"status": {"allowed": true}}))]);
    let server = serve(&[], |parts| {
        parts.authentication = script.api();
        parts.authorization = reviews.api();
    })
    .await;
    let headers =
        "X-Remote-User: jane\r\nX-Remote-Group: devs\r\nX-Remote-Extra-Example.com%2fscope: a\r\n";
    let proxy = proxies.client("front-proxy-client", "");
    assert_eq!(status_of(&request(&server, "GET /configz", headers, Some(&proxy)).await.0), 200);
    let spec = reviews.requests()[0].body.as_ref().unwrap()["spec"].clone();
    assert_eq!(spec["user"], "jane");
    assert_eq!(spec["groups"], json!(["devs", "system:authenticated"]));
    assert_eq!(spec["extra"], json!({"example.com/scope": ["a"]}));
    // Neither a proxy with another name nor a user may set user names in headers.
    let impostor = proxies.client("other", "");
    assert_eq!(status_of(&request(&server, "GET /configz", headers, Some(&impostor)).await.0), 401);
    let user = users.client("joe", "");
    assert_eq!(status_of(&request(&server, "GET /configz", headers, Some(&user)).await.0), 200);
    assert_eq!(reviews.requests()[1].body.as_ref().unwrap()["spec"]["user"], "joe");
    server.shutdown().await;
}

#[tokio::test]
async fn a_forbidden_lookup_fails_unless_tolerated() {
    let forbidden = json!({"message": "configmaps is forbidden"});
    let script = ScriptedApi::new(&[("extension-apiserver-authentication", 403, forbidden)]);
    let strict = "--authentication-tolerate-lookup-failure=false";
    let error =
        try_serve(&[strict], |parts| parts.authentication = script.api()).await.err().unwrap();
    let text = error.to_string();
    assert!(text.contains("configmaps is forbidden"), "{text}");
    assert!(text.contains("Role extension-apiserver-authentication-reader"), "{text}");
    let server = serve(&[], |parts| parts.authentication = script.api()).await;
    assert_eq!(get(&server, "/healthz").await.0, 200);
    server.shutdown().await;
}

/// The common name of the certificate that is served for a server name.
async fn served_common_name(server: &Server, name: &str) -> String {
    let stream = connect(server, name, b"http/1.1", None).await;
    let chain = stream.get_ref().1.peer_certificates().unwrap();
    loadmaster_serving::CertificateSubject::from_certificate(&chain[0]).unwrap().common_name
}

#[tokio::test]
async fn certificates_are_selected_by_name_and_reloaded() {
    let ca = Ca::new();
    let directory = TempDirectory::new("certificates");
    let pair = |name: &str, dns: &[&str], common_name: &str| {
        let (cert, key) = ca.sign(dns, common_name, "");
        (
            directory.write(&format!("{name}.crt"), &cert),
            directory.write(&format!("{name}.key"), &key),
        )
    };
    let (cert, key) = pair("main", &["main.test"], "main");
    let (a_cert, a_key) = pair("a", &["a.test", "*.w.test"], "a");
    let (b_cert, b_key) = pair("b", &["a.test"], "b");
    let server = serve(
        &[
            &format!("--tls-cert-file={cert}"),
            &format!("--tls-private-key-file={key}"),
            &format!("--tls-sni-cert-key={a_cert},{a_key}"),
            &format!("--tls-sni-cert-key={b_cert},{b_key}:b.test,x.w.test"),
        ],
        |_| (),
    )
    .await;
    for (name, want) in [
        ("main.test", "main"),
        ("a.test", "a"),
        ("b.test", "b"),
        ("y.w.test", "a"),
        ("x.w.test", "b"),
        ("z", "main"),
    ] {
        assert_eq!(served_common_name(&server, name).await, want, "{name}");
    }
    assert!(!server.reload().unwrap());
    pair("main", &["main.test"], "renewed");
    assert!(server.reload().unwrap());
    assert_eq!(served_common_name(&server, "main.test").await, "renewed");
    directory.write("main.key", "broken");
    assert!(server.reload().is_err());
    assert_eq!(
        served_common_name(&server, "main.test").await,
        "renewed",
        "the working certificate is kept"
    );
    server.shutdown().await;
}

#[tokio::test]
async fn a_self_signed_certificate_is_stored_in_cert_dir() {
    let directory = TempDirectory::new("made");
    let flag = format!("--cert-dir={}", directory.0.display());
    let first = serve(&[&flag], |_| ()).await;
    let der =
        |stream: TlsStream<TcpStream>| stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    let made = der(connect(&first, "localhost", b"http/1.1", None).await);
    first.shutdown().await;
    let second = serve(&[&flag], |_| ()).await;
    assert_eq!(der(connect(&second, "localhost", b"http/1.1", None).await), made);
    second.shutdown().await;
    let key = std::fs::metadata(directory.0.join("kube-scheduler.key")).unwrap();
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
}

/// Where a key is written, somebody else may have created a symbolic link.
#[tokio::test]
async fn a_symbolic_link_in_cert_dir_is_replaced() {
    let directory = TempDirectory::new("linked");
    let target = directory.write("target", "untouched");
    std::os::unix::fs::symlink(&target, directory.0.join("kube-scheduler.key")).unwrap();
    let server = serve(&[&format!("--cert-dir={}", directory.0.display())], |_| ()).await;
    server.shutdown().await;
    assert_eq!(std::fs::read_to_string(target).unwrap(), "untouched");
    let key = std::fs::symlink_metadata(directory.0.join("kube-scheduler.key")).unwrap();
    assert!(key.is_file() && key.permissions().mode() & 0o777 == 0o600, "{key:?}");
}
