//! Whom a client certificate names.

use std::fmt::Write as _;

use ring::digest;
use rustls::pki_types::CertificateDer;
use x509_parser::der_parser::{Oid, oid};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// The key of [`CertificateSubject::credential_id`] in a user's extra fields.
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The attribute of a subject that holds a user's UID.
const UID: Oid<'static> = oid!(1.3.6.1.4.1.57683.2);

/// The subject of a client certificate, as upstream's `CommonNameUserConversion` reads it. The certificate is not verified here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateSubject {
    /// The user name; empty if the subject has no common name. Of several, the last one counts, as in Go's `pkix.Name`.
    pub common_name: String,
    /// The groups: all organizations, in order.
    pub organizations: Vec<String>,
    /// The UID; empty if the subject has none.
    pub uid: String,
    /// `X509SHA256=` and the hash of the certificate in hexadecimal.
    pub credential_id: String,
}

impl CertificateSubject {
    /// Reads a certificate.
    ///
    /// # Errors
    ///
    /// When it is not an X.509 certificate.
    pub fn from_certificate(
        certificate: &CertificateDer<'_>,
    ) -> Result<CertificateSubject, String> {
        let (_, parsed) = X509Certificate::from_der(certificate)
            .map_err(|error| format!("reading a client certificate: {error}"))?;
        let name = parsed.subject();
        let text = |value: Result<&str, _>| value.ok().map(str::to_owned);
        let mut credential_id = "X509SHA256=".to_owned();
        for byte in digest::digest(&digest::SHA256, certificate).as_ref() {
            // Writing to a string cannot fail.
            let _ = write!(credential_id, "{byte:02x}");
        }
        Ok(CertificateSubject {
            common_name: name
                .iter_common_name()
                .filter_map(|it| text(it.as_str()))
                .last()
                .unwrap_or_default(),
            organizations: name.iter_organization().filter_map(|it| text(it.as_str())).collect(),
            uid: name.iter_by_oid(&UID).find_map(|it| text(it.as_str())).unwrap_or_default(),
            credential_id,
        })
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair};

    use super::*;

    /// A certificate whose subject has these attributes, in order.
    fn certificate(subject: &[(DnType, &str)]) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in subject {
            params.distinguished_name.push(kind.clone(), DnValue::Utf8String((*value).to_owned()));
        }
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn subjects() {
        let uid = || DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
        let check = |subject: &[(DnType, &str)], want: (&str, &[&str], &str)| {
            let found = CertificateSubject::from_certificate(&certificate(subject)).unwrap();
            let groups: Vec<&str> = found.organizations.iter().map(String::as_str).collect();
            assert_eq!((found.common_name.as_str(), &groups[..], found.uid.as_str()), want);
            assert_eq!(found.credential_id.len(), "X509SHA256=".len() + 64);
        };
        check(&[], ("", &[], ""));
        check(&[(DnType::CommonName, "ann")], ("ann", &[], ""));
        check(
            &[(DnType::OrganizationName, "a"), (DnType::CommonName, "bob"), (uid(), "7")],
            ("bob", &["a"], "7"),
        );
        let invalid = CertificateDer::from(vec![1, 2, 3]);
        let error = CertificateSubject::from_certificate(&invalid).unwrap_err();
        assert!(error.starts_with("reading a client certificate: "), "{error}");
    }

    /// Go keeps the last common name and all organizations. rcgen writes no attribute twice: two attributes of the same length are
    /// renamed in the encoded certificate.
    #[test]
    fn several_common_names_and_organizations() {
        let der = certificate(&[
            (DnType::CommonName, "first"),
            (DnType::OrganizationName, "a"),
            (DnType::LocalityName, "last"),
            (DnType::OrganizationalUnitName, "b"),
        ]);
        let mut bytes = der.as_ref().to_vec();
        // The object identifiers of X.520: 2.5.4.7 (locality) becomes 2.5.4.3 (common name), 2.5.4.11 becomes 2.5.4.10.
        for (from, to) in [(7, 3), (11, 10)] {
            for at in 0..bytes.len() - 5 {
                if bytes[at..at + 5] == [6, 3, 0x55, 4, from] {
                    bytes[at + 4] = to;
                }
            }
        }
        let found = CertificateSubject::from_certificate(&CertificateDer::from(bytes)).unwrap();
        assert_eq!(found.common_name, "last");
        assert_eq!(found.organizations, ["a", "b"]);
    }
}
