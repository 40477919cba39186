//! Certificates: a CA generated at start, a certificate for the server, and client certificates.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::authentication::User;

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    #[error("generating a certificate")]
    Certificate(#[source] rcgen::Error),
    #[error("setting up TLS")]
    Tls(#[source] rustls::Error),
    #[error("setting up the verification of client certificates")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
}

/// A certificate and its key, as PEM.
#[derive(Clone, Debug)]
pub struct CertificateAndKey {
    pub certificate_pem: String,
    pub key_pem: String,
}

/// The CA of a cluster and the TLS configuration of its server.
pub struct Pki {
    authority_pem: String,
    authority_key_pem: String,
    issuer: Issuer<'static, KeyPair>,
    names: Vec<String>,
    config: Arc<ServerConfig>,
}

impl Pki {
    /// A new CA and a certificate for a server with these names and addresses.
    ///
    /// # Errors
    ///
    /// When certificates cannot be made or used.
    pub fn new(names: &[&str]) -> Result<Pki, TlsError> {
        Pki::with_authority(KeyPair::generate().map_err(TlsError::Certificate)?, names)
    }

    /// The CA with this key, from [`Pki::ca_key_pem`], and a new certificate for the server: clients that
    /// trust the CA or have a certificate of it keep working.
    ///
    /// # Errors
    ///
    /// When it is not a key, or certificates cannot be made or used.
    pub fn from_key(key_pem: &str, names: &[&str]) -> Result<Pki, TlsError> {
        Pki::with_authority(KeyPair::from_pem(key_pem).map_err(TlsError::Certificate)?, names)
    }

    fn with_authority(key: KeyPair, names: &[&str]) -> Result<Pki, TlsError> {
        let authority_key_pem = key.serialize_pem();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "loadmaster-ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let authority = params.self_signed(&key).map_err(TlsError::Certificate)?;
        let issuer = Issuer::new(params, key);

        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let (leaf, key) = serving_certificate(&issuer, "kube-apiserver", &names)?;
        let config = server_config(authority.der(), leaf.der(), &key)?;
        Ok(Pki { authority_pem: authority.pem(), authority_key_pem, issuer, names, config })
    }

    /// The CA certificate, for clients.
    pub fn ca_certificate_pem(&self) -> &str {
        &self.authority_pem
    }

    /// The CA key, with which certificates for any user can be signed.
    pub fn ca_key_pem(&self) -> &str {
        &self.authority_key_pem
    }

    /// A client certificate for a user, in a group if it is not empty.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub fn client(&self, user: &str, group: &str) -> Result<CertificateAndKey, TlsError> {
        let key = KeyPair::generate().map_err(TlsError::Certificate)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        if !group.is_empty() {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).map_err(TlsError::Certificate)?;
        Ok(CertificateAndKey { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() })
    }

    /// A serving certificate for another component of the cluster, with the names and addresses of the API server.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub fn serving(&self, component: &str) -> Result<CertificateAndKey, TlsError> {
        let (certificate, key) = serving_certificate(&self.issuer, component, &self.names)?;
        Ok(CertificateAndKey { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() })
    }

    pub(super) fn server_config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }
}

fn serving_certificate(
    issuer: &Issuer<'_, KeyPair>,
    component: &str,
    names: &[String],
) -> Result<(Certificate, KeyPair), TlsError> {
    let mut params = CertificateParams::new(names).map_err(TlsError::Certificate)?;
    params.distinguished_name.push(DnType::CommonName, component);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate().map_err(TlsError::Certificate)?;
    let certificate = params.signed_by(&key, issuer).map_err(TlsError::Certificate)?;
    Ok((certificate, key))
}

fn server_config(
    authority: &CertificateDer<'static>,
    leaf: &CertificateDer<'static>,
    key: &KeyPair,
) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone()).map_err(TlsError::Tls)?;
    // Client certificates are optional: clients may use tokens.
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .map_err(TlsError::Verifier)?;
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Tls)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![leaf.clone()], key)
        .map_err(TlsError::Tls)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The user a verified certificate names: its common name, with its organizations as groups.
pub(super) fn user_of(certificate: &CertificateDer<'_>) -> Option<User> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let subject = parsed.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?;
    let groups = subject.iter_organization().filter_map(|it| it.as_str().ok());
    let mut user = User::authenticated(name, groups.map(str::to_owned).collect());
    let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
    let digest: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let id = vec![format!("X509SHA256={digest}")];
    user.extra.insert("authentication.kubernetes.io/credential-id".to_owned(), id);
    Some(user)
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject as _;

    use super::*;

    #[test]
    fn a_certificate_names_its_user() {
        let pki = Pki::new(&["localhost", "127.0.0.1"]).expect("certificates");
        let identity = pki.client("ann", "a").expect("a certificate");
        let der = CertificateDer::from_pem_slice(identity.certificate_pem.as_bytes()).expect("PEM");
        let user = user_of(&der).expect("a user");
        assert_eq!(
            (user.name.as_str(), user.groups.join(",")),
            ("ann", "a,system:authenticated".to_owned())
        );
        let lock_services = pki.client("bob", "").expect("a certificate");
        let der =
            CertificateDer::from_pem_slice(lock_services.certificate_pem.as_bytes()).expect("PEM");
        let bob = user_of(&der).expect("a user");
        assert_eq!((bob.name.as_str(), bob.groups.len()), ("bob", 1));
        let id = &user.extra["authentication.kubernetes.io/credential-id"];
        assert!(id[0].starts_with("X509SHA256=") && id[0].len() == 75, "{id:?}");
    }
}
