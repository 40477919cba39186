//! The kubeconfig of a server.

use base64::Engine as _;
use serde_json::{Value, json};

use crate::http::CertificateAndKey;

/// A kubeconfig for one cluster and one user; cluster, user and context all have the same name.
pub fn kubeconfig(
    name: &str,
    server: &str,
    authority_pem: &str,
    user: &CertificateAndKey,
) -> Value {
    let base64 = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {
            "server": server,
            "certificate-authority-data": base64(authority_pem),
        }}],
        "users": [{"name": name, "user": {
            "client-certificate-data": base64(&user.certificate_pem),
            "client-key-data": base64(&user.key_pem),
        }}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    })
}
