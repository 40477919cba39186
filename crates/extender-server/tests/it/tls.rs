//! HTTPS and client certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use loadmaster_extender_server::{ExtenderServer, ServeError, Tls};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::{RunningServer, exchange, run};

/// A temporary folder, removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("extender-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.0.join(name), text).expect("a file");
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Authority {
    pem: String,
    der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let made = params.self_signed(&key).expect("a certificate");
        let (pem, der) = (made.pem(), made.der().clone());
        Authority { pem, der, issuer: Issuer::new(params, key) }
    }

    fn sign(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        (params.signed_by(&key, &self.issuer).expect("a certificate"), key)
    }
}

async fn get(
    server: &RunningServer,
    trusted: &Authority,
    shown: Option<&Authority>,
    path: &str,
) -> u16 {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.der.clone()).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let config = match shown.map(|authority| authority.sign("scheduler")) {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
            config.with_client_auth_cert(vec![certificate.der().clone()], key).expect("a pair")
        }
    };
    let stream = TcpStream::connect(server.address).await.expect("connects");
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("TLS");
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    exchange(stream, &request).await.0
}

#[test]
fn https_requires_a_client_certificate_except_for_health_checks() {
    run(async {
        let (folder, authority) = (Folder::new("https"), Authority::new());
        let (certificate, key) = authority.sign("localhost");
        let certificate = folder.write("tls.crt", &certificate.pem());
        let key = folder.write("tls.key", &key.serialize_pem());
        let tls = Tls::from_files(&certificate, &key);

        let open = RunningServer::start(ExtenderServer::new().version("1").tls(tls.clone())).await;
        assert_eq!(get(&open, &authority, None, "/version").await, 200);
        open.stop().await;

        let tls = tls.client_ca(folder.write("ca.crt", &authority.pem));
        let closed = RunningServer::start(ExtenderServer::new().version("1").tls(tls)).await;
        assert_eq!(get(&closed, &authority, Some(&authority), "/version").await, 200);
        assert_eq!(get(&closed, &authority, None, "/version").await, 401);
        assert_eq!(get(&closed, &authority, None, "/metrics").await, 401);
        assert_eq!(get(&closed, &authority, None, "/healthz").await, 200);
        closed.stop().await;
    });
}

#[test]
fn files_that_cannot_be_used_are_named() {
    run(async {
        let (folder, authority) = (Folder::new("files"), Authority::new());
        let (certificate, key) = authority.sign("localhost");
        let good = folder.write("tls.crt", &certificate.pem());
        let good_key = folder.write("tls.key", &key.serialize_pem());
        let empty = folder.write("empty", "");
        let other_key = folder.write("other.key", &authority.sign("x").1.serialize_pem());
        let absent = folder.0.join("absent");
        let check = async |tls: Tls, file: &Path, want: &str| {
            let listening = ExtenderServer::new().tls(tls).listen(("127.0.0.1", 0)).await;
            let Err(ServeError::Tls(error)) = listening else { panic!("{want}: it was used") };
            let text = error.to_string();
            assert!(text.contains(want) && text.contains(&file.display().to_string()), "{text}");
        };
        check(Tls::from_files(&absent, &good_key), &absent, "reading").await;
        check(Tls::from_files(&good, &absent), &absent, "reading").await;
        check(Tls::from_files(&empty, &good_key), &empty, "has no certificate in PEM").await;
        check(Tls::from_files(&good, &empty), &empty, "has no private key in PEM").await;
        check(Tls::from_files(&good, &other_key), &other_key, "using").await;
        check(Tls::from_files(&good, &good_key).client_ca(&empty), &empty, "has no certificate")
            .await;
    });
}
