//! HTTPS with certificates from files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

/// The server certificate, and the CA of client certificates. The files are read again every minute, because mounted Secrets
/// change.
#[derive(Clone, Debug)]
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

/// The certificates cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("reading {file}")]
    Read {
        /// The file.
        file: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// A file does not contain the expected PEM block.
    #[error("{file} has no {expected} in PEM")]
    Pem {
        /// The file.
        file: PathBuf,
        /// A certificate or a private key.
        expected: &'static str,
        /// The error.
        source: pem::Error,
    },
    /// The certificate does not match the key, or is not supported.
    #[error("using {certificate} with {key}")]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The error.
        source: rustls::Error,
    },
    /// The client CA cannot be used.
    #[error("using {file} as the client CA")]
    Authority {
        /// The file.
        file: PathBuf,
        /// The error.
        source: VerifierBuilderError,
    },
}

impl Tls {
    /// Files with the certificate chain and the private key, as PEM.
    pub fn from_files(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Tls {
        Tls { certificate: certificate.into(), key: key.into(), client_ca: None }
    }

    /// Requires client certificates signed by one of the CAs in the file. Other clients get status 401, except for `/healthz`,
    /// `/livez`
    /// and `/readyz`, which kubelets probe.
    #[must_use]
    pub fn client_ca(mut self, file: impl Into<PathBuf>) -> Tls {
        self.client_ca = Some(file.into());
        self
    }

    pub(crate) fn needs_certificate(&self) -> bool {
        self.client_ca.is_some()
    }

    /// Reads the files.
    pub(crate) fn config(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let chain = certificates(&self.certificate)?;
        let pem = read(&self.key)?;
        let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|source| {
            let file = self.key.clone();
            TlsError::Pem { file, expected: "private key", source }
        })?;
        let pair = |source| TlsError::Pair {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            source,
        };
        let provider = Arc::new(ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider.clone());
        let config = config.with_safe_default_protocol_versions().map_err(pair)?;
        let config = match &self.client_ca {
            None => config.with_no_client_auth(),
            Some(file) => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(certificates(file)?);
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .allow_unauthenticated()
                        .build()
                        .map_err(|source| TlsError::Authority { file: file.clone(), source })?;
                config.with_client_cert_verifier(verifier)
            }
        };
        let mut config = config.with_single_cert(chain, key).map_err(pair)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(file).map_err(|source| TlsError::Read { file: file.to_owned(), source })
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |source| TlsError::Pem { file: file.to_owned(), expected: "certificate", source };
    let pem = read(file)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(wrong(pem::Error::NoItemsFound)),
        Ok(found) => Ok(found),
        Err(source) => Err(wrong(source)),
    }
}
