//! Service account tokens: signed claims (JWT, ES256).

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jiff::Timestamp;
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _,
    UnparsedPublicKey,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::User;

/// Issuer and default audience of the tokens, as kubeadm sets them.
pub const TOKEN_ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The allowed clock skew.
const LEEWAY_SECONDS: i64 = 60;

/// The bytes before the point of a P-256 key in a `SubjectPublicKeyInfo`.
const P256_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// The claims of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    #[serde(rename = "aud")]
    pub audiences: Vec<String>,
    /// Seconds since 1970.
    #[serde(rename = "exp")]
    pub expires: i64,
    #[serde(rename = "iat")]
    pub issued: i64,
    #[serde(rename = "iss")]
    pub issuer: String,
    #[serde(rename = "jti")]
    pub id: String,
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: BoundObjects,
    #[serde(rename = "nbf")]
    pub not_before: i64,
    #[serde(rename = "sub")]
    pub subject: String,
}

/// The service account of a token, and the object it is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundObjects {
    pub namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<ObjectRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<ObjectRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<ObjectRef>,
    pub serviceaccount: ObjectRef,
}

/// An object by name and uid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ObjectRef {
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

impl Claims {
    /// The user that the token stands for.
    pub fn user(&self) -> User {
        let BoundObjects { namespace, node, pod, serviceaccount, .. } = &self.kubernetes;
        let mut user = User::service_account(namespace, &serviceaccount.name);
        user.uid.clone_from(&serviceaccount.uid);
        let mut add = |key: &str, value: String| {
            user.extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value]);
        };
        add("credential-id", format!("JTI={}", self.id));
        for (kind, it) in [("node", node), ("pod", pod)] {
            if let Some(ObjectRef { name, uid }) = it {
                add(&format!("{kind}-name"), name.clone());
                if !uid.is_empty() {
                    add(&format!("{kind}-uid"), uid.clone());
                }
            }
        }
        user
    }

    /// # Errors
    ///
    /// When the token is not valid yet or has expired.
    pub fn check_time(&self, now: Timestamp) -> Result<(), TokenError> {
        let now = now.as_second();
        if now + LEEWAY_SECONDS < self.not_before {
            Err(TokenError::Early)
        } else if now - LEEWAY_SECONDS > self.expires {
            Err(TokenError::Expired)
        } else if now + LEEWAY_SECONDS < self.issued {
            Err(TokenError::FromTheFuture)
        } else {
            Ok(())
        }
    }
}

/// Why a token is rejected; upstream's message.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenError {
    /// Not one of ours.
    #[error("invalid bearer token")]
    Unknown,
    #[error("service account token has expired")]
    Expired,
    #[error("service account token is not valid yet")]
    Early,
    #[error("service account token is issued in the future")]
    FromTheFuture,
    /// The bound object was deleted, or another object has its name.
    #[error("{0}")]
    Bound(String),
    #[error("token audiences {found} is invalid for the target audiences {wanted}")]
    Audiences { found: String, wanted: String },
}

/// Why a key cannot be generated or read.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    #[error("not an ECDSA P-256 private key in PKCS #8 (`BEGIN PRIVATE KEY`)")]
    RevisionError,
    #[error("the system's random number generator failed")]
    Random,
}

/// The key that signs tokens.
#[derive(Debug)]
pub struct SigningKey {
    pair: EcdsaKeyPair,
    random: SystemRandom,
    id: String,
}

impl SigningKey {
    /// A new key.
    ///
    /// # Errors
    ///
    /// When the system has no random numbers.
    pub fn generate() -> Result<SigningKey, KeyError> {
        let random = SystemRandom::new();
        let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random);
        SigningKey::from_der(der.map_err(|_| KeyError::Random)?.as_ref())
    }

    /// Generates a key as PEM. If it is stored, tokens stay valid after a restart.
    ///
    /// # Errors
    ///
    /// When the system has no random numbers.
    pub fn generate_pem() -> Result<String, KeyError> {
        let der =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
        let body = STANDARD.encode(der.map_err(|_| KeyError::Random)?);
        Ok(format!("-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n"))
    }

    /// The key in a PEM file.
    ///
    /// # Errors
    ///
    /// When there is none of the right kind.
    pub fn from_pem(text: &str) -> Result<SigningKey, KeyError> {
        let (_, rest) =
            text.split_once("-----BEGIN PRIVATE KEY-----").ok_or(KeyError::RevisionError)?;
        let (body, _) = rest.split_once("-----END").ok_or(KeyError::RevisionError)?;
        let body: String = body.split_whitespace().collect();
        let der = STANDARD.decode(body).map_err(|_| KeyError::RevisionError)?;
        SigningKey::from_der(&der)
    }

    fn from_der(der: &[u8]) -> Result<SigningKey, KeyError> {
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der, &random);
        let pair = pair.map_err(|_| KeyError::RevisionError)?;
        let info = [&P256_PREFIX[..], pair.public_key().as_ref()].concat();
        let id = URL_SAFE_NO_PAD.encode(digest(&SHA256, &info));
        Ok(SigningKey { pair, random, id })
    }

    /// A token.
    ///
    /// # Errors
    ///
    /// When the system has no random numbers.
    pub fn sign(&self, claims: &Claims) -> Result<String, KeyError> {
        let header = json!({"alg": "ES256", "kid": self.id});
        let part = |text: String| URL_SAFE_NO_PAD.encode(text);
        let claims = serde_json::to_string(claims).map_err(|_| KeyError::RevisionError)?;
        let signed = format!("{}.{}", part(header.to_string()), part(claims));
        let signature = self.pair.sign(&self.random, signed.as_bytes());
        let signature = signature.map_err(|_| KeyError::Random)?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// The claims of a token that this key signed. Times, audiences and bound objects are not checked.
    ///
    /// # Errors
    ///
    /// When this key did not sign it.
    pub fn verify(&self, token: &str) -> Result<Claims, TokenError> {
        let unknown = || TokenError::Unknown;
        let decoded = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::Unknown);
        let (signed, signature) = token.rsplit_once('.').ok_or_else(unknown)?;
        let (header, claims) = signed.split_once('.').ok_or_else(unknown)?;
        let header: Value = loadmaster_stdx::json::from_slice(&decoded(header)?)
            .map_err(|_| TokenError::Unknown)?;
        if header["alg"] != "ES256" || header["kid"] != *self.id {
            return Err(TokenError::Unknown);
        }
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.pair.public_key());
        key.verify(signed.as_bytes(), &decoded(signature)?).map_err(|_| TokenError::Unknown)?;
        let claims: Claims = loadmaster_stdx::json::from_slice(&decoded(claims)?)
            .map_err(|_| TokenError::Unknown)?;
        if claims.issuer == TOKEN_ISSUER { Ok(claims) } else { Err(TokenError::Unknown) }
    }

    /// The public half, as a set of JSON web keys.
    pub fn public_jwks(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        // An uncompressed point is a byte and two numbers.
        let (x, y) = point.get(1..).unwrap_or_default().split_at(point.len().saturating_sub(1) / 2);
        json!({"keys": [{"use": "sig", "kty": "EC", "kid": self.id, "crv": "P-256", "alg": "ES256",
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y)}]})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims() -> Claims {
        Claims {
            audiences: vec!["a".to_owned()],
            expires: 2_000,
            issued: 1_000,
            issuer: TOKEN_ISSUER.to_owned(),
            id: "i".to_owned(),
            kubernetes: BoundObjects {
                namespace: "n".to_owned(),
                node: None,
                pod: Some(ObjectRef { name: "p".to_owned(), uid: "u".to_owned() }),
                secret: None,
                serviceaccount: ObjectRef { name: "s".to_owned(), uid: "v".to_owned() },
            },
            not_before: 1_000,
            subject: "system:serviceaccount:n:s".to_owned(),
        }
    }

    #[test]
    fn a_token_has_the_signed_claims() {
        let key = SigningKey::generate().expect("a key");
        let token = key.sign(&claims()).expect("a token");
        assert_eq!(key.verify(&token), Ok(claims()));
        let user = claims().user();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("system:serviceaccount:n:s", "v"));
        assert_eq!(user.extra["authentication.kubernetes.io/pod-uid"], ["u"]);
    }

    #[test]
    fn a_changed_token_is_rejected() {
        let key = SigningKey::generate().expect("a key");
        let token = key.sign(&claims()).expect("a token");
        let (head, signature) = token.rsplit_once('.').expect("three parts");
        let other = Claims { id: "j".to_owned(), ..claims() };
        let other = key.sign(&other).expect("a token");
        let (other_head, _) = other.rsplit_once('.').expect("three parts");
        let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
        let (_, body) = head.split_once('.').expect("two parts");
        let foreign = Claims { issuer: "other".to_owned(), ..claims() };
        for token in [
            format!("{other_head}.{signature}"),
            format!("{head}."),
            format!("{none}.{body}."),
            key.sign(&foreign).expect("a token"),
            SigningKey::generate().expect("a key").sign(&claims()).expect("a token"),
            String::new(),
            "a.b.c".to_owned(),
        ] {
            assert_eq!(key.verify(&token), Err(TokenError::Unknown), "{token}");
        }
    }

    #[test]
    fn times() {
        let at = |second| {
            let now = Timestamp::from_second(second).expect("a time");
            claims().check_time(now)
        };
        assert_eq!(at(939), Err(TokenError::Early));
        assert_eq!(at(940), Ok(()));
        assert_eq!(at(2_060), Ok(()));
        assert_eq!(at(2_061), Err(TokenError::Expired));
    }

    #[test]
    fn keys_come_from_pem() {
        let pem = SigningKey::generate_pem().expect("a key");
        let (one, two) = (SigningKey::from_pem(&pem), SigningKey::from_pem(&pem));
        let token = one.expect("a key").sign(&claims()).expect("a token");
        assert_eq!(two.expect("a key").verify(&token), Ok(claims()));
        for bad in [
            "",
            "-----BEGIN PRIVATE KEY-----\n!\n-----END PRIVATE KEY-----",
            "-----BEGIN PRIVATE KEY-----",
        ] {
            assert!(SigningKey::from_pem(bad).is_err(), "{bad}");
        }
    }
}
