//! Users, and the client certificates that identify them.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_serving::{CREDENTIAL_ID, CertificateSubject};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;

use super::tls::provider;

/// The user of unauthenticated requests.
const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";
const AUTHENTICATED: &str = "system:authenticated";

/// The user of a request (upstream's `user.Info`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Name.
    pub name: String,
    /// UID; empty if there is none.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Extra fields.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    pub(super) fn anonymous() -> User {
        User {
            name: ANONYMOUS.to_owned(),
            groups: vec![UNAUTHENTICATED.to_owned()],
            ..User::default()
        }
    }

    pub(super) fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS || self.groups.iter().any(|group| group == UNAUTHENTICATED)
    }

    /// With the group of authenticated users.
    pub(super) fn authenticated(mut self) -> User {
        let is_known_group = |group: &String| group == AUTHENTICATED || group == UNAUTHENTICATED;
        if self.name != ANONYMOUS && !self.groups.iter().any(is_known_group) {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }

    /// From a verified client certificate: the common name is the user name, organizations are groups.
    pub(super) fn from_certificate(
        certificate: &CertificateDer<'_>,
    ) -> Result<Option<User>, String> {
        let subject = CertificateSubject::from_certificate(certificate)?;
        if subject.common_name.is_empty() {
            return Ok(None);
        }
        Ok(Some(User {
            name: subject.common_name,
            uid: subject.uid,
            groups: subject.organizations,
            extra: BTreeMap::from([(CREDENTIAL_ID.to_owned(), vec![subject.credential_id])]),
        }))
    }
}

/// A CA bundle that verifies client certificates.
#[derive(Clone)]
pub(super) struct CaBundle {
    verifier: Arc<dyn ClientCertVerifier>,
    pem: Arc<[u8]>,
}

impl CaBundle {
    /// From a bundle in PEM.
    pub fn from_pem(pem: &[u8]) -> Result<CaBundle, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| error.to_string())?;
            roots.add(certificate).map_err(|error| error.to_string())?;
        }
        if roots.is_empty() {
            return Err("data does not contain any valid RSA or ECDSA certificates".to_owned());
        }
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(provider()));
        let verifier = verifier.build().map_err(|error| error.to_string())?;
        Ok(CaBundle { verifier, pem: pem.into() })
    }

    /// Whether it was made from this PEM.
    pub fn is_made_from(&self, pem: &[u8]) -> bool {
        *self.pem == *pem
    }

    /// Verifies a client's certificate chain.
    pub fn verify(&self, chain: &[CertificateDer<'_>]) -> Result<(), String> {
        let [client, intermediates @ ..] = chain else { return Err("no certificate".to_owned()) };
        self.verifier
            .verify_client_cert(client, intermediates, UnixTime::now())
            .map(drop)
            .map_err(|error| format!("verifying certificate: {error}"))
    }
}
