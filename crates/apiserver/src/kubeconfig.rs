//! The file by which clients find a server.

use base64::Engine as _;

use crate::http::Identity;

/// A kubeconfig for one cluster and one user, as YAML.
pub fn kubeconfig(server: &str, authority_pem: &str, user: &Identity) -> String {
    let base64 = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: loadmaster
  cluster:
    server: {server}
    certificate-authority-data: {}
users:
- name: admin
  user:
    client-certificate-data: {}
    client-key-data: {}
contexts:
- name: loadmaster
  context:
    cluster: loadmaster
    user: admin
current-context: loadmaster
",
        base64(authority_pem),
        base64(&user.certificate_pem),
        base64(&user.key_pem),
    )
}
