//! TLS settings from flags, as far as rustls supports them.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ResolvesServerCert;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{
    CipherSuite, DigitallySignedStruct, DistinguishedName, NamedGroup, ServerConfig,
    SignatureScheme,
};

use super::ServeError;
use super::authentication::Authenticator;
use crate::flags::SecureServingFlags;

/// The crypto provider.
pub(super) fn provider() -> CryptoProvider {
    ring::default_provider()
}

/// Go's names of cipher suites. Those of TLS 1.3 are not configurable, as in Go.
const SUITES: &[(&str, CipherSuite)] = &[
    ("TLS_AES_128_GCM_SHA256", CipherSuite::TLS13_AES_128_GCM_SHA256),
    ("TLS_AES_256_GCM_SHA384", CipherSuite::TLS13_AES_256_GCM_SHA384),
    ("TLS_CHACHA20_POLY1305_SHA256", CipherSuite::TLS13_CHACHA20_POLY1305_SHA256),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
];

/// Cipher suites that Go has and rustls does not support: no forward secrecy, CBC, RC4 or 3DES.
const UNSAFE_SUITES: &[&str] = &[
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

/// The TLS settings of the flags, and warnings about values that are not supported.
struct TlsSettings {
    provider: CryptoProvider,
    allows_12: bool,
    warnings: Vec<String>,
}

fn tls_settings(flags: &SecureServingFlags) -> Result<TlsSettings, ServeError> {
    let fail = |reason: String| Err(ServeError::Tls(reason));
    let mut warnings = Vec::new();
    let allows_12 = match flags.tls_min_version.as_str() {
        "" | "VersionTLS12" => true,
        old @ ("VersionTLS10" | "VersionTLS11") => {
            warnings.push(format!(
                "--tls-min-version={old}: the minimum supported version is VersionTLS12"
            ));
            true
        }
        "VersionTLS13" => false,
        other => return fail(format!("unknown tls version {other:?}")),
    };
    let mut provider = provider();
    if !flags.tls_cipher_suites.is_empty() {
        let mut wanted = Vec::new();
        for name in &flags.tls_cipher_suites {
            if let Some((_, suite)) = SUITES.iter().find(|(known, _)| known == name) {
                wanted.push(*suite);
            } else if UNSAFE_SUITES.contains(&name.as_str()) {
                warnings.push(format!("--tls-cipher-suites: {name} is insecure and not supported"));
            } else {
                return fail(format!("Cipher suite {name} not supported or doesn't exist"));
            }
        }
        if wanted.is_empty() {
            return fail("--tls-cipher-suites: none of these is supported: they lack forward secrecy or use CBC, RC4 or 3DES".to_owned());
        }
        provider
            .cipher_suites
            .retain(|suite| suite.version() == &TLS13 || wanted.contains(&suite.suite()));
    }
    if !flags.tls_curve_preferences.is_empty() {
        let mut wanted = Vec::new();
        for id in &flags.tls_curve_preferences {
            let Some(id) = u16::try_from(*id).ok().filter(|id| *id > 0) else {
                return fail(format!("curve preference {id} is out of range (must be 1-65535)"));
            };
            let group = NamedGroup::from(id);
            if provider.kx_groups.iter().any(|known| known.name() == group) {
                wanted.push(group);
            } else {
                warnings
                    .push(format!("--tls-curve-preferences: {id} ({group:?}) is not supported"));
            }
        }
        if wanted.is_empty() {
            return fail("--tls-curve-preferences: none of these is supported; supported are 23 (P-256), 24 (P-384) and 29 (X25519)".to_owned());
        }
        provider.kx_groups.retain(|group| wanted.contains(&group.name()));
    }
    let has_12 = provider.cipher_suites.iter().any(|suite| suite.version() == &TLS12);
    Ok(TlsSettings { provider, allows_12: allows_12 && has_12, warnings })
}

/// The TLS configuration of the server.
pub(super) fn server_config(
    flags: &SecureServingFlags,
    certificates: Arc<dyn ResolvesServerCert>,
    authenticator: Arc<Authenticator>,
) -> Result<ServerConfig, ServeError> {
    let TlsSettings { provider, allows_12, warnings } = tls_settings(flags)?;
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let versions: &[_] = if allows_12 { &[&TLS13, &TLS12] } else { &[&TLS13] };
    let verifier = RequestClientCertificate { authenticator, provider: provider.clone() };
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(versions)
        .map_err(|error| ServeError::Tls(error.to_string()))?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(certificates);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    if !flags.disable_http2_serving {
        config.alpn_protocols.insert(0, b"h2".to_vec());
    }
    Ok(config)
}

/// Requests a client certificate and accepts any whose key the client has (Go's `tls.RequestClientCert`). The
/// certificate is verified per request, so that an invalid one results in status 401, not in a TLS error, and
/// CAs can change without new connections.
struct RequestClientCertificate {
    authenticator: Arc<Authenticator>,
    provider: CryptoProvider,
}

impl fmt::Debug for RequestClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AskForCertificate").finish_non_exhaustive()
    }
}

impl ClientCertVerifier for RequestClientCertificate {
    fn offer_client_auth(&self) -> bool {
        self.authenticator.requests_client_certificates()
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::{ParsedCommandLine, parse_command_line};

    #[track_caller]
    fn check(args: &[&str], want: &str) {
        let ParsedCommandLine::Run(options) = parse_command_line(["x"].iter().chain(args)).unwrap()
        else {
            panic!("not parsed")
        };
        let got = match tls_settings(&options.serving) {
            Ok(it) => {
                let n_12 = it.provider.cipher_suites.iter().filter(|it| it.version() == &TLS12);
                let groups: Vec<_> = it.provider.kx_groups.iter().map(|it| it.name()).collect();
                let n_warnings = it.warnings.len();
                format!(
                    "1.2: {} ({}), {groups:?}, {n_warnings} warnings",
                    it.allows_12,
                    n_12.count()
                )
            }
            Err(error) => error.to_string(),
        };
        assert_eq!(got, want);
    }

    #[test]
    fn flags() {
        const ALL: &str = "[X25519, secp256r1, secp384r1], 0 warnings";
        check(&[], &format!("1.2: true (6), {ALL}"));
        check(&["--tls-min-version=VersionTLS13"], &format!("1.2: false (6), {ALL}"));
        check(
            &["--tls-min-version=VersionTLS10"],
            "1.2: true (6), [X25519, secp256r1, secp384r1], 1 warnings",
        );
        check(&["--tls-min-version=VersionTLS99"], "unknown tls version \"VersionTLS99\"");
        check(
            &[
                "--tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_RSA_WITH_AES_128_CBC_SHA",
            ],
            "1.2: true (1), [X25519, secp256r1, secp384r1], 1 warnings",
        );
        check(&["--tls-cipher-suites=TLS_AES_128_GCM_SHA256"], &format!("1.2: false (0), {ALL}"));
        check(&["--tls-cipher-suites=FOO"], "Cipher suite FOO not supported or doesn't exist");
        check(
            &["--tls-cipher-suites=TLS_RSA_WITH_AES_128_CBC_SHA"],
            "--tls-cipher-suites: none of these is supported: they lack forward secrecy or use CBC, RC4 or 3DES",
        );
        check(&["--tls-curve-preferences=29,25"], "1.2: true (6), [X25519], 1 warnings");
        check(
            &["--tls-curve-preferences=0"],
            "curve preference 0 is out of range (must be 1-65535)",
        );
        check(
            &["--tls-curve-preferences=4588"],
            "--tls-curve-preferences: none of these is supported; supported are 23 (P-256), 24 (P-384) and 29 (X25519)",
        );
    }
}
