//! Parsers of credentials.

use std::sync::LazyLock;

use http::{HeaderMap, HeaderValue, header};
use loadmaster_apiserver::audit::AuditPolicy;
use loadmaster_apiserver::authentication::{SigningKey, read_token_file};

use super::{SERVER, choose};

static KEY: LazyLock<SigningKey> =
    LazyLock::new(|| SigningKey::generate().unwrap_or_else(|error| panic!("{error}")));

/// Forged bearer tokens; token files, audit policies and keys.
pub fn accounts(bytes: &[u8]) {
    let Some((what, rest)) = choose(bytes, &["token", "file", "policy", "key"]) else { return };
    let text = String::from_utf8_lossy(rest);
    match *what {
        "token" => {
            assert!(KEY.verify(&text).is_err(), "{text:?}");
            let mut headers = HeaderMap::new();
            let Ok(value) = HeaderValue::from_bytes(&[b"Bearer ", rest].concat()) else { return };
            headers.insert(header::AUTHORIZATION, value);
            let user = SERVER.authenticate(None, "/api/v1/pods", &headers);
            assert!(user.is_err(), "{text:?}: {user:?}");
        }
        "file" => drop(read_token_file(&text).map_err(|error| error.to_string())),
        "policy" => drop(AuditPolicy::read(&text).map_err(|error| error.to_string())),
        _ => drop(SigningKey::from_pem(&text).map_err(|error| error.to_string())),
    }
}
