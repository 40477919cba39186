//! TLS as the flags say, with what rustls has.

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
use crate::flags::SecureServing;

/// The algorithms.
pub(super) fn provider() -> CryptoProvider {
    ring::default_provider()
}

/// Go's names of suites. Those of TLS 1.3 cannot be chosen, in Go neither.
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

/// Suites that Go has and rustls leaves out: no forward secrecy, CBC, RC4 or 3DES.
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

/// What the flags leave of TLS, and what of them cannot be served.
struct Chosen {
    provider: CryptoProvider,
    allows_12: bool,
    warnings: Vec<String>,
}

fn choose(flags: &SecureServing) -> Result<Chosen, ServeError> {
    let fail = |reason: String| Err(ServeError::Tls(reason));
    let mut warnings = Vec::new();
    let allows_12 = match flags.tls_min_version.as_str() {
        "" | "VersionTLS12" => true,
        old @ ("VersionTLS10" | "VersionTLS11") => {
            warnings.push(format!(
                "--tls-min-version={old}: the oldest version served is VersionTLS12"
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
                warnings.push(format!("--tls-cipher-suites: {name} is not safe and not served"));
            } else {
                return fail(format!("Cipher suite {name} not supported or doesn't exist"));
            }
        }
        if wanted.is_empty() {
            return fail("--tls-cipher-suites: none of these can be served: they lack forward secrecy or use CBC, RC4 or 3DES".to_owned());
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
                warnings.push(format!("--tls-curve-preferences: {id} ({group:?}) is not served"));
            }
        }
        if wanted.is_empty() {
            return fail("--tls-curve-preferences: none of these can be served; there are 23 (P-256), 24 (P-384) and 29 (X25519)".to_owned());
        }
        provider.kx_groups.retain(|group| wanted.contains(&group.name()));
    }
    let has_12 = provider.cipher_suites.iter().any(|suite| suite.version() == &TLS12);
    Ok(Chosen { provider, allows_12: allows_12 && has_12, warnings })
}

/// The server's side of TLS.
pub(super) fn config(
    flags: &SecureServing,
    certificates: Arc<dyn ResolvesServerCert>,
    authenticator: Arc<Authenticator>,
) -> Result<ServerConfig, ServeError> {
    let Chosen { provider, allows_12, warnings } = choose(flags)?;
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let versions: &[_] = if allows_12 { &[&TLS13, &TLS12] } else { &[&TLS13] };
    let verifier = AskForCertificate { authenticator, provider: provider.clone() };
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

/// Takes any certificate that a client owns the key of. Whether it means something is decided when
/// a request comes, so that a client with a useless one is anonymous to open paths only by its own
/// choice, gets 401 elsewhere, and CAs can change without new connections.
struct AskForCertificate {
    authenticator: Arc<Authenticator>,
    provider: CryptoProvider,
}

impl fmt::Debug for AskForCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AskForCertificate").finish_non_exhaustive()
    }
}

impl ClientCertVerifier for AskForCertificate {
    fn offer_client_auth(&self) -> bool {
        self.authenticator.wants_certificates()
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
    use crate::flags::{Parsed, parse};

    #[track_caller]
    fn check(args: &[&str], want: &str) {
        let Parsed::Run(options) = parse(["x"].iter().chain(args)).unwrap() else {
            panic!("not run")
        };
        let got = match choose(&options.serving) {
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
            "--tls-cipher-suites: none of these can be served: they lack forward secrecy or use CBC, RC4 or 3DES",
        );
        check(&["--tls-curve-preferences=29,25"], "1.2: true (6), [X25519], 1 warnings");
        check(
            &["--tls-curve-preferences=0"],
            "curve preference 0 is out of range (must be 1-65535)",
        );
        check(
            &["--tls-curve-preferences=4588"],
            "--tls-curve-preferences: none of these can be served; there are 23 (P-256), 24 (P-384) and 29 (X25519)",
        );
    }
}
