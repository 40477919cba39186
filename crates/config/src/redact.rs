//! Configurations without keys and passwords, for what is shown, logged and recorded.

use std::fmt;

use crate::SchedulerConfiguration;
use crate::v1::{Extender, ExtenderTlsConfig};

/// In place of a key: `redacted` in base64, so that the configuration can still be decoded.
const KEY: &str = "cmVkYWN0ZWQ=";

/// A URL with `***` in place of its password, as Go's client prints it.
pub fn redact_password(url: &str) -> String {
    let begin = url.find("://").map_or(0, |at| at + 3);
    let authority = url[begin..].split(['/', '?', '#']).next().unwrap_or_default();
    let user = authority.rsplit_once('@').and_then(|(user, _)| user.split_once(':'));
    match user {
        Some((user, password)) => {
            let from = begin + user.len() + 1;
            format!("{}***{}", &url[..from], &url[from + password.len()..])
        }
        None => url.to_owned(),
    }
}

impl SchedulerConfiguration {
    /// The configuration without the keys of extenders and the passwords in their URLs.
    #[must_use]
    pub fn redacted(&self) -> SchedulerConfiguration {
        let extenders = self.extenders.iter().map(Extender::redacted).collect();
        SchedulerConfiguration { extenders, ..self.clone() }
    }
}

impl Extender {
    fn redacted(&self) -> Extender {
        let url_prefix = redact_password(&self.url_prefix);
        let tls_config = self.tls_config.as_ref().map(ExtenderTlsConfig::redacted);
        Extender { url_prefix, tls_config, ..self.clone() }
    }
}

impl ExtenderTlsConfig {
    fn redacted(&self) -> ExtenderTlsConfig {
        let key_data = if self.key_data.is_empty() { String::new() } else { KEY.to_owned() };
        ExtenderTlsConfig { key_data, ..self.clone() }
    }
}

impl fmt::Debug for Extender {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = serde_json::to_string(&self.redacted()).map_err(|_| fmt::Error)?;
        write!(formatter, "Extender {json}")
    }
}

impl fmt::Debug for ExtenderTlsConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = serde_json::to_string(&self.redacted()).map_err(|_| fmt::Error)?;
        write!(formatter, "ExtenderTlsConfig {json}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_redacted() {
        for (url, want) in [
            ("http://e.example:80/x", "http://e.example:80/x"),
            ("https://me:secret@e.example/x@y:z", "https://me:***@e.example/x@y:z"),
            ("https://me:a:b@c@e.example", "https://me:***@e.example"),
            ("https://:secret@e.example?q", "https://:***@e.example?q"),
            ("https://me@e.example", "https://me@e.example"),
            ("http://e.example/me:secret@x", "http://e.example/me:secret@x"),
            ("", ""),
        ] {
            let redacted = redact_password(url);
            assert_eq!(redacted, want);
            assert_eq!(redact_password(&redacted), want);
        }
    }
}
