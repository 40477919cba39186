//! Certificates: a CA, a certificate for the server that is renewed in memory, and client certificates.

use std::sync::{Arc, PoisonError, RwLock};

use jiff::{SignedDuration, Timestamp};
use loadmaster_serving::set_validity;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

/// How long the CA certificate is valid, as kubeadm's. Its key is only in the memory of the server, or in the data directory.
const AUTHORITY_DAYS: u32 = 3_650;

/// How long the certificates of the server and of clients are valid.
const LEAF_DAYS: u32 = 7;

/// When to renew them: after half of that.
pub const CERTIFICATE_RENEW_AFTER: SignedDuration = SignedDuration::from_hours(7 * 12);

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
    names: Vec<String>,
    authority: CertificateDer<'static>,
    authority_pem: String,
    authority_key_pem: String,
    issuer: Issuer<'static, KeyPair>,
    server: RwLock<ServerTls>,
}

/// The TLS configuration with the server's current certificate.
struct ServerTls {
    config: Arc<ServerConfig>,
    renew_at: Timestamp,
}

impl Pki {
    /// A new CA and a certificate for a server with these names and addresses.
    ///
    /// # Errors
    ///
    /// When certificates cannot be made or used.
    pub fn new(names: &[&str], now: Timestamp) -> Result<Pki, TlsError> {
        Pki::with_authority(KeyPair::generate().map_err(TlsError::Certificate)?, names, now)
    }

    /// The CA with this key, from [`Pki::ca_key_pem`], and a new certificate for the server: clients that
    /// trust the CA or have a certificate of it keep working.
    ///
    /// # Errors
    ///
    /// When it is not a key, or certificates cannot be made or used.
    pub fn from_key(key_pem: &str, names: &[&str], now: Timestamp) -> Result<Pki, TlsError> {
        Pki::with_authority(KeyPair::from_pem(key_pem).map_err(TlsError::Certificate)?, names, now)
    }

    fn with_authority(key: KeyPair, names: &[&str], now: Timestamp) -> Result<Pki, TlsError> {
        let authority_key_pem = key.serialize_pem();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "loadmaster-ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        set_validity(&mut params, now, AUTHORITY_DAYS);
        let authority = params.self_signed(&key).map_err(TlsError::Certificate)?;
        let (authority_pem, authority) = (authority.pem(), authority.der().clone());
        let issuer = Issuer::new(params, key);
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let server = RwLock::new(ServerTls::new(&names, &authority, &issuer, now)?);
        Ok(Pki { names, authority, authority_pem, authority_key_pem, issuer, server })
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
    pub fn client(
        &self,
        user: &str,
        group: &str,
        now: Timestamp,
    ) -> Result<CertificateAndKey, TlsError> {
        let key = KeyPair::generate().map_err(TlsError::Certificate)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        if !group.is_empty() {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        set_validity(&mut params, now, LEAF_DAYS);
        let certificate = params.signed_by(&key, &self.issuer).map_err(TlsError::Certificate)?;
        Ok(CertificateAndKey { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() })
    }

    /// A serving certificate for another component of the cluster, with the names and addresses of the API server.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub fn serving(&self, component: &str, now: Timestamp) -> Result<CertificateAndKey, TlsError> {
        let (certificate, key) = serving_certificate(&self.issuer, component, &self.names, now)?;
        Ok(CertificateAndKey { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() })
    }

    /// The TLS configuration of the next connection.
    pub(super) fn server_config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server.read().unwrap_or_else(PoisonError::into_inner).config)
    }

    /// Renews the certificate of the server when half of its time is over.
    pub(super) fn renew_if_due(&self, now: Timestamp) -> Result<(), TlsError> {
        let renew_at = self.server.read().unwrap_or_else(PoisonError::into_inner).renew_at;
        if now >= renew_at {
            let renewed = ServerTls::new(&self.names, &self.authority, &self.issuer, now)?;
            *self.server.write().unwrap_or_else(PoisonError::into_inner) = renewed;
        }
        Ok(())
    }
}

impl ServerTls {
    fn new(
        names: &[String],
        authority: &CertificateDer<'static>,
        issuer: &Issuer<'static, KeyPair>,
        now: Timestamp,
    ) -> Result<ServerTls, TlsError> {
        let (leaf, key) = serving_certificate(issuer, "kube-apiserver", names, now)?;
        let config = server_config(authority, leaf.der(), &key)?;
        Ok(ServerTls { config, renew_at: now + CERTIFICATE_RENEW_AFTER })
    }
}

fn serving_certificate(
    issuer: &Issuer<'_, KeyPair>,
    component: &str,
    names: &[String],
    now: Timestamp,
) -> Result<(Certificate, KeyPair), TlsError> {
    let mut params = CertificateParams::new(names).map_err(TlsError::Certificate)?;
    params.distinguished_name.push(DnType::CommonName, component);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    set_validity(&mut params, now, LEAF_DAYS);
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

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject as _;
    use x509_parser::prelude::{FromDer as _, X509Certificate};

    use super::*;

    /// The certificate is another one exactly when half of its time was over.
    #[test]
    fn the_certificate_of_the_server_is_renewed() {
        let start: Timestamp = "2026-05-01T12:00:00Z".parse().expect("a time");
        let pki = Pki::new(&["localhost", "127.0.0.1"], start).expect("certificates");
        let check = |hours: i64, want_renewed: bool| {
            let before = pki.server_config();
            pki.renew_if_due(start + SignedDuration::from_hours(hours)).expect("a certificate");
            assert_eq!(!Arc::ptr_eq(&before, &pki.server_config()), want_renewed, "{hours} h");
        };
        check(0, false);
        check(83, false);
        check(84, true);
        check(85, false);
        check(84 + 84, true);
    }

    #[test]
    fn certificates_end() {
        let now: Timestamp = "2026-05-01T12:00:00Z".parse().expect("a time");
        let pki = Pki::new(&["localhost"], now).expect("certificates");
        let client = pki.client("ann", "a", now).expect("a certificate");
        let check = |pem: &str, want: [&str; 2]| {
            let der = CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM");
            let (_, read) = X509Certificate::from_der(&der).expect("a certificate");
            let validity = read.validity();
            let times = [validity.not_before, validity.not_after];
            let times = times.map(|it| Timestamp::from_second(it.timestamp()).expect("a time"));
            assert_eq!(times.map(|it| it.to_string()), want);
        };
        check(&client.certificate_pem, ["2026-05-01T11:00:00Z", "2026-05-08T12:00:00Z"]);
        check(pki.ca_certificate_pem(), ["2026-05-01T11:00:00Z", "2036-04-28T12:00:00Z"]);
    }
}
