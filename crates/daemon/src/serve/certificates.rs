//! The certificates that are shown to clients: from files, read again when they change; or made here.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use super::ServeError;
use super::tls::provider;
use crate::flags::{NAME, SecureServing};

/// PEM of a certificate with its chain, and of its key.
#[derive(Clone, PartialEq)]
struct Pem {
    chain: Vec<u8>,
    key: Vec<u8>,
}

/// Where a pair comes from.
#[derive(Clone)]
enum Source {
    Files { chain: PathBuf, key: PathBuf },
    Memory(Pem),
}

/// A pair with the names it was given for.
#[derive(Clone)]
struct Pair {
    source: Source,
    names: Vec<String>,
    pem: Pem,
}

/// What clients get.
#[derive(Debug)]
struct Shown {
    default: Arc<CertifiedKey>,
    by_name: BTreeMap<String, Arc<CertifiedKey>>,
}

/// All certificates of the server.
pub(super) struct Certificates {
    pairs: RwLock<Vec<Pair>>,
    shown: RwLock<Arc<Shown>>,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}

impl Certificates {
    /// As the flags say: files, or files in `--cert-dir`, made if they are absent, or memory.
    pub fn new(flags: &SecureServing) -> Result<Certificates, ServeError> {
        let files = |chain: &str, key: &str| Source::Files { chain: chain.into(), key: key.into() };
        let default = if !flags.tls_cert_file.is_empty() {
            files(&flags.tls_cert_file, &flags.tls_private_key_file)
        } else if !flags.cert_dir.is_empty() {
            in_directory(Path::new(&flags.cert_dir), flags.bind_address)?
        } else {
            Source::Memory(self_signed(flags.bind_address)?)
        };
        let mut sources = vec![(default, Vec::new())];
        for named in &flags.tls_sni_cert_key {
            sources.push((files(&named.cert_file, &named.key_file), named.names.clone()));
        }
        let pairs = sources.into_iter().map(|(source, names)| {
            let pem = source.read()?;
            Ok(Pair { source, names, pem })
        });
        let pairs = pairs.collect::<Result<Vec<Pair>, ServeError>>()?;
        let shown = Shown::of(&pairs)?;
        Ok(Certificates { pairs: RwLock::new(pairs), shown: RwLock::new(Arc::new(shown)) })
    }

    /// Reads the files again; whether something changed. What cannot be used leaves all as it was.
    pub fn reload(&self) -> Result<bool, ServeError> {
        let mut pairs = self.pairs.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut changed = false;
        for pair in &mut pairs {
            let pem = pair.source.read()?;
            changed |= pem != pair.pem;
            pair.pem = pem;
        }
        if changed {
            let shown = Shown::of(&pairs)?;
            *self.shown.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(shown);
            *self.pairs.write().unwrap_or_else(PoisonError::into_inner) = pairs;
        }
        Ok(changed)
    }
}

impl Source {
    fn read(&self) -> Result<Pem, ServeError> {
        let read = |path: &Path| {
            fs::read(path)
                .map_err(|source| ServeError::File { path: path.display().to_string(), source })
        };
        match self {
            Source::Memory(pem) => Ok(pem.clone()),
            Source::Files { chain, key } => Ok(Pem { chain: read(chain)?, key: read(key)? }),
        }
    }

    fn name(&self) -> String {
        match self {
            Source::Memory(_) => "the certificate made at start".to_owned(),
            Source::Files { chain, .. } => chain.display().to_string(),
        }
    }
}

impl Shown {
    fn of(pairs: &[Pair]) -> Result<Shown, ServeError> {
        let keys = pairs.iter().map(|pair| {
            pair.pem
                .certified()
                .map_err(|reason| ServeError::Certificate { file: pair.source.name(), reason })
        });
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        let mut by_name = BTreeMap::new();
        // Names that were given are stronger than names that certificates hold; of equals the first.
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
        Ok(Shown { default, by_name })
    }

    /// The certificate for a name: its own, that of `*.` its domain, or the default one.
    fn of_name(&self, name: &str) -> Arc<CertifiedKey> {
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
        let shown = self.shown.read().unwrap_or_else(PoisonError::into_inner).clone();
        Some(match hello.server_name() {
            Some(name) => shown.of_name(name),
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

/// The host names that a certificate is for.
fn names_in(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(Some(names)) = parsed.subject_alternative_name() else { return Vec::new() };
    let names = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    });
    names.collect()
}

/// `kube-scheduler.crt` and `.key` in a directory; made if one of them is not there.
fn in_directory(directory: &Path, bind_address: IpAddr) -> Result<Source, ServeError> {
    let chain = directory.join(format!("{NAME}.crt"));
    let key = directory.join(format!("{NAME}.key"));
    if !chain.exists() || !key.exists() {
        let pem = self_signed(bind_address)?;
        let fail =
            |path: &Path, source| ServeError::File { path: path.display().to_string(), source };
        fs::create_dir_all(directory).map_err(|error| fail(directory, error))?;
        fs::write(&chain, &pem.chain).map_err(|error| fail(&chain, error))?;
        write_secret(&key, &pem.key).map_err(|error| fail(&key, error))?;
        tracing::info!(cert = %chain.display(), key = %key.display(), "Generated self-signed cert");
    }
    Ok(Source::Files { chain, key })
}

/// Writes a file that only its owner can read.
fn write_secret(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)?.write_all(bytes)
}

/// A certificate for localhost, 127.0.0.1 and the address that is listened on, for a year.
fn self_signed(bind_address: IpAddr) -> Result<Pem, ServeError> {
    let fail = |error: rcgen::Error| ServeError::SelfSigned(error.to_string());
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    if !bind_address.is_unspecified() && !names.contains(&bind_address.to_string()) {
        names.push(bind_address.to_string());
    }
    let mut params = CertificateParams::new(names).map_err(fail)?;
    params.distinguished_name.push(DnType::CommonName, "localhost");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    // An hour back, for clocks that differ.
    let date = |timestamp: jiff::Timestamp| {
        let date = timestamp.to_zoned(jiff::tz::TimeZone::UTC).date();
        let (month, day) = (date.month().unsigned_abs(), date.day().unsigned_abs());
        rcgen::date_time_ymd(date.year().into(), month, day)
    };
    let now = jiff::Timestamp::now();
    params.not_before = date(now - jiff::SignedDuration::from_hours(1));
    params.not_after = date(now + jiff::SignedDuration::from_hours(366 * 24));
    let key = KeyPair::generate().map_err(fail)?;
    let certificate = params.self_signed(&key).map_err(fail)?;
    Ok(Pem { chain: certificate.pem().into_bytes(), key: key.serialize_pem().into_bytes() })
}
