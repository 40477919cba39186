//! Whom a client certificate names.

use std::fmt::Write as _;

use jiff::Timestamp;
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
    /// Until when it is valid. A connection may last longer.
    pub not_after: Timestamp,
}

impl CertificateSubject {
    /// Reads a certificate.
    ///
    /// # Errors
    ///
    /// When it is not an X.509 certificate, or its UID is empty or not the only one.
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
        let uids: Vec<_> = name.iter_by_oid(&UID).map(|it| text(it.as_str())).collect();
        let uid = match &uids[..] {
            [] => String::new(),
            [Some(uid)] if !uid.is_empty() => uid.clone(),
            [Some(_)] => return Err("UID cannot be an empty string".to_owned()),
            [None] => return Err("unable to parse UID into a string".to_owned()),
            several => {
                let found: Vec<&str> = several.iter().flatten().map(String::as_str).collect();
                return Err(format!("expected 1 UID, but found multiple: [{}]", found.join(" ")));
            }
        };
        Ok(CertificateSubject {
            common_name: name
                .iter_common_name()
                .filter_map(|it| text(it.as_str()))
                .last()
                .unwrap_or_default(),
            organizations: name.iter_organization().filter_map(|it| text(it.as_str())).collect(),
            uid,
            credential_id,
            not_after: Timestamp::from_second(parsed.validity().not_after.timestamp())
                .unwrap_or(Timestamp::MAX),
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

    /// Go keeps the last common name and all organizations, and upstream accepts one UID. rcgen writes no attribute twice: attributes of
    /// the same length are renamed in the encoded certificate.
    #[test]
    fn repeated_attributes() {
        let custom = |last| DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, last]);
        let der = certificate(&[
            (DnType::CommonName, "first"),
            (DnType::OrganizationName, "a"),
            (DnType::LocalityName, "last"),
            (DnType::OrganizationalUnitName, "b"),
            (custom(2), "7"),
            (custom(3), "8"),
        ]);
        // The object identifiers of X.520: 2.5.4.7 (locality) becomes 2.5.4.3 (common name), 2.5.4.11 becomes 2.5.4.10.
        let names = [(vec![6, 3, 0x55, 4], 7, 3), (vec![6, 3, 0x55, 4], 11, 10)];
        let uid = (vec![6, 9, 0x2b, 6, 1, 4, 1, 0x83, 0xc2, 0x53], 3, 2);
        let read = |renamed: &[(Vec<u8>, u8, u8)]| {
            let mut bytes = der.as_ref().to_vec();
            for (prefix, from, to) in renamed {
                let found = [&prefix[..], &[*from]].concat();
                // In the subject and in the issuer.
                for at in 0..bytes.len() - found.len() {
                    if bytes[at..].starts_with(&found) {
                        bytes[at + prefix.len()] = *to;
                    }
                }
            }
            CertificateSubject::from_certificate(&CertificateDer::from(bytes))
        };
        let found = read(&names).unwrap();
        assert_eq!((&*found.common_name, &*found.uid), ("last", "7"));
        assert_eq!(found.organizations, ["a", "b"]);
        assert_eq!(read(&[uid]).unwrap_err(), "expected 1 UID, but found multiple: [7 8]");
    }

    #[test]
    fn an_empty_uid_is_an_error() {
        let uid = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
        let der = certificate(&[(DnType::CommonName, "ann"), (uid, "")]);
        let error = CertificateSubject::from_certificate(&der).unwrap_err();
        assert_eq!(error, "UID cannot be an empty string");
    }
}
