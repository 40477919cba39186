//! Serving certificates: from files, which are reloaded when they change, or self-signed.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use loadmaster_serving::{private_file, set_validity};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use super::ServeError;
use super::tls::provider;
use crate::flags::{COMMAND_NAME, SecureServingFlags};

/// The PEM of a certificate chain and of its key.
#[derive(Clone, PartialEq)]
struct Pem {
    chain: Vec<u8>,
    key: Vec<u8>,
}

/// The source of a certificate and key.
#[derive(Clone)]
enum PairSource {
    Files { chain: PathBuf, key: PathBuf },
    Memory(Pem),
}

/// A certificate and key, with the domain patterns of the flag.
#[derive(Clone)]
struct CertKeyPair {
    source: PairSource,
    names: Vec<String>,
    pem: Pem,
}

/// The certificates that are served, by server name.
#[derive(Debug)]
struct ServedCertificates {
    default: Arc<CertifiedKey>,
    by_name: BTreeMap<String, Arc<CertifiedKey>>,
}

/// All serving certificates.
pub(super) struct Certificates {
    pairs: RwLock<Vec<CertKeyPair>>,
    served: RwLock<Arc<ServedCertificates>>,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}

impl Certificates {
    /// From the flags: files, or files in `--cert-dir` that are created if missing, or a self-signed certificate in memory.
    pub fn new(flags: &SecureServingFlags) -> Result<Certificates, ServeError> {
        let files =
            |chain: &str, key: &str| PairSource::Files { chain: chain.into(), key: key.into() };
        let default = if !flags.tls_cert_file.is_empty() {
            files(&flags.tls_cert_file, &flags.tls_private_key_file)
        } else if !flags.cert_dir.is_empty() {
            in_directory(Path::new(&flags.cert_dir), flags.bind_address)?
        } else {
            PairSource::Memory(self_signed(flags.bind_address)?)
        };
        let mut sources = vec![(default, Vec::new())];
        for named in &flags.tls_sni_cert_key {
            sources.push((files(&named.cert_file, &named.key_file), named.names.clone()));
        }
        let pairs = sources.into_iter().map(|(source, names)| {
            let pem = source.read()?;
            Ok(CertKeyPair { source, names, pem })
        });
        let pairs = pairs.collect::<Result<Vec<CertKeyPair>, ServeError>>()?;
        let shown = ServedCertificates::from_pairs(&pairs)?;
        Ok(Certificates { pairs: RwLock::new(pairs), served: RwLock::new(Arc::new(shown)) })
    }

    /// Reloads the files; returns whether a certificate changed. On an error the current certificates are kept.
    pub fn reload(&self) -> Result<bool, ServeError> {
        let mut pairs = self.pairs.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut changed = false;
        for pair in &mut pairs {
            let pem = pair.source.read()?;
            changed |= pem != pair.pem;
            pair.pem = pem;
        }
        if changed {
            let shown = ServedCertificates::from_pairs(&pairs)?;
            *self.served.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(shown);
            *self.pairs.write().unwrap_or_else(PoisonError::into_inner) = pairs;
        }
        Ok(changed)
    }
}

impl PairSource {
    fn read(&self) -> Result<Pem, ServeError> {
        let read = |path: &Path| {
            fs::read(path)
                .map_err(|source| ServeError::File { path: path.display().to_string(), source })
        };
        match self {
            PairSource::Memory(pem) => Ok(pem.clone()),
            PairSource::Files { chain, key } => Ok(Pem { chain: read(chain)?, key: read(key)? }),
        }
    }

    fn name(&self) -> String {
        match self {
            PairSource::Memory(_) => "the self-signed certificate".to_owned(),
            PairSource::Files { chain, .. } => chain.display().to_string(),
        }
    }
}

impl ServedCertificates {
    fn from_pairs(pairs: &[CertKeyPair]) -> Result<ServedCertificates, ServeError> {
        let keys = pairs.iter().map(|pair| {
            pair.pem
                .certified()
                .map_err(|reason| ServeError::Certificate { file: pair.source.name(), reason })
        });
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        let mut by_name = BTreeMap::new();
        // Names of flags take precedence over names in certificates; the first one wins.
        for (pair, key) in pairs.iter().zip(&keys).skip(1) {
            for name in &pair.names {
                by_name.entry(name.to_ascii_lowercase()).or_insert_with(|| key.clone());
            }
        }
        for (pair, key) in pairs.iter().zip(&keys).skip(1).filter(|(pair, _)| pair.names.is_empty())
        {
            for name in names_in(&key.cert[0]) {
                by_name.entry(name).or_insert_with(|| key.clone());
            }
            let _ = pair;
        }
        let default = keys.into_iter().next().ok_or(ServeError::Random)?;
        Ok(ServedCertificates { default, by_name })
    }

    /// The certificate for a server name: an exact match, a wildcard match, or the default.
    fn for_server_name(&self, name: &str) -> Arc<CertifiedKey> {
        let name = name.to_ascii_lowercase();
        let wildcard = || {
            let (_, domain) = name.split_once('.')?;
            self.by_name.get(&format!("*.{domain}"))
        };
        self.by_name.get(&name).or_else(wildcard).unwrap_or(&self.default).clone()
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let shown = self.served.read().unwrap_or_else(PoisonError::into_inner).clone();
        Some(match hello.server_name() {
            Some(name) => shown.for_server_name(name),
            None => shown.default.clone(),
        })
    }
}

impl Pem {
    fn certified(&self) -> Result<Arc<CertifiedKey>, String> {
        let chain = CertificateDer::pem_slice_iter(&self.chain).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| error.to_string())?;
        if chain.is_empty() {
            return Err("it holds no certificate".to_owned());
        }
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|error| format!("its private key: {error}"))?;
        let key = provider().key_provider.load_private_key(key);
        let key = key.map_err(|error| format!("its private key: {error}"))?;
        let certified = CertifiedKey::new(chain, key);
        match certified.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {
                Ok(Arc::new(certified))
            }
            Err(error) => Err(format!("private key does not match public key: {error}")),
        }
    }
}

/// The DNS names of a certificate.
fn names_in(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(Some(names)) = parsed.subject_alternative_name() else { return Vec::new() };
    let names = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    });
    names.collect()
}

/// `kube-scheduler.crt` and `.key` in a directory; created if one of them is missing.
fn in_directory(directory: &Path, bind_address: IpAddr) -> Result<PairSource, ServeError> {
    let chain = directory.join(format!("{COMMAND_NAME}.crt"));
    let key = directory.join(format!("{COMMAND_NAME}.key"));
    if !chain.exists() || !key.exists() {
        let pem = self_signed(bind_address)?;
        let fail =
            |path: &Path, source| ServeError::File { path: path.display().to_string(), source };
        fs::create_dir_all(directory).map_err(|error| fail(directory, error))?;
        private_file::replace_public(&chain, &pem.chain).map_err(|error| fail(&chain, error))?;
        private_file::replace(&key, None, &pem.key).map_err(|error| fail(&key, error))?;
        tracing::info!(cert = %chain.display(), key = %key.display(), "Generated self-signed cert");
    }
    Ok(PairSource::Files { chain, key })
}

/// How long a self-signed certificate is valid, as upstream's.
const DAYS: u32 = 365;

/// A self-signed certificate for localhost, 127.0.0.1 and the bind address.
fn self_signed(bind_address: IpAddr) -> Result<Pem, ServeError> {
    let fail = |error: rcgen::Error| ServeError::SelfSigned(error.to_string());
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    if !bind_address.is_unspecified() && !names.contains(&bind_address.to_string()) {
        names.push(bind_address.to_string());
    }
    let mut params = CertificateParams::new(names).map_err(fail)?;
    params.distinguished_name.push(DnType::CommonName, "localhost");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    set_validity(&mut params, jiff::Timestamp::now(), DAYS);
    let key = KeyPair::generate().map_err(fail)?;
    let certificate = params.self_signed(&key).map_err(fail)?;
    Ok(Pem { chain: certificate.pem().into_bytes(), key: key.serialize_pem().into_bytes() })
}
