//! Credentials in Docker's configuration file, and what a registry asks for. No I/O.

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use serde_json::Value;

/// Docker's configuration file.
pub struct DockerConfig(Value);

impl DockerConfig {
    /// Parses the file; without one there are no credentials.
    pub fn parse(text: Option<&str>) -> Result<DockerConfig> {
        let value = text.map_or(Ok(Value::Null), serde_json::from_str);
        Ok(DockerConfig(value.context("reading Docker's configuration file")?))
    }

    /// The credentials for a registry.
    pub fn authenticator(&self, host: &str) -> Authenticator {
        let is_found = |text: &&str| !text.is_empty();
        let found = self.0["auths"][host]["auth"].as_str().filter(is_found);
        let helper = self.0["credHelpers"][host].as_str().or(self.0["credsStore"].as_str());
        let reason = match helper {
            Some(helper) => format!(
                "its credentials are in the credential helper {helper}, which is not supported: add them to `auths` in Docker's config.json"
            ),
            None => {
                format!("Docker's config.json has no `auths` for {host}: run `docker login {host}`")
            }
        };
        Authenticator { basic: found.map(str::to_owned), reason }
    }
}

/// The credentials for one registry.
pub struct Authenticator {
    /// User and password, in Base64.
    basic: Option<String>,
    /// Why there are none.
    reason: String,
}

impl Authenticator {
    /// No credentials.
    pub fn none() -> Authenticator {
        Authenticator { basic: None, reason: "there are no credentials for it".to_owned() }
    }

    /// The value of the header `Authorization` with user and password.
    pub fn basic(&self) -> Result<String> {
        let Some(basic) = &self.basic else {
            bail!("the registry wants credentials; {}", self.reason)
        };
        let decoded = STANDARD.decode(basic).ok().filter(|it| it.contains(&b':'));
        decoded.context("`auth` in Docker's config.json is not USER:PASSWORD in Base64")?;
        Ok(format!("Basic {basic}"))
    }
}

/// What a registry asks for in the header `WWW-Authenticate`.
#[derive(Debug, PartialEq, Eq)]
pub enum Challenge {
    /// User and password.
    Basic,
    /// A token, which this server gives for this path.
    Bearer { url: String, path: String },
}

impl Challenge {
    /// Parses `Bearer realm="https://auth.example.com/token",service="registry",scope="repository:web:pull,push"`.
    pub fn parse(text: &str) -> Result<Challenge> {
        let (scheme, rest) = text.split_once(' ').unwrap_or((text, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Ok(Challenge::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            bail!("the registry wants {scheme:?} authentication, which is not supported");
        }
        let parameters = parameters(rest);
        let of =
            |name: &str| parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        let realm = of("realm").context("the registry names no server for tokens")?;
        let uri: Uri = realm.parse().with_context(|| format!("the server for tokens {realm:?}"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            bail!("the server for tokens {realm:?} is not a URL");
        };
        let mut query = form_urlencoded::Serializer::new(String::new());
        for (name, value) in &parameters {
            if matches!(name.as_str(), "service" | "scope") {
                query.append_pair(name, value);
            }
        }
        let separator = if uri.query().is_some() { '&' } else { '?' };
        let base = uri.path_and_query().map_or("/", |path| path.as_str());
        let path = format!("{base}{separator}{}", query.finish());
        Ok(Challenge::Bearer { url: format!("{scheme}://{authority}"), path })
    }
}

/// Parses `name="value",name="value"`; a comma inside quotes is part of a value.
fn parameters(mut text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    while let Some((name, rest)) = text.split_once("=\"") {
        let Some((value, after)) = rest.split_once('"') else { break };
        let name = name.trim_matches([',', ' ']).to_ascii_lowercase();
        found.push((name, value.to_owned()));
        text = after;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges() {
        #[track_caller]
        fn check(text: &str, want: Result<(&str, &str), &str>) {
            let found = Challenge::parse(text).map_err(|error| error.to_string());
            let want = want.map(|(url, path)| Challenge::Bearer {
                url: url.to_owned(),
                path: path.to_owned(),
            });
            assert_eq!(found, want.map_err(str::to_owned), "{text}");
        }
        check(
            r#"Bearer realm="https://auth.example.com/token",service="r",scope="repository:a/b:pull,push""#,
            Ok((
                "https://auth.example.com",
                "/token?service=r&scope=repository%3Aa%2Fb%3Apull%2Cpush",
            )),
        );
        check(
            r#"bearer realm="http://localhost:5001/t?x=1", service="r""#,
            Ok(("http://localhost:5001", "/t?x=1&service=r")),
        );
        check(r#"Bearer service="r""#, Err("the registry names no server for tokens"));
        check(r#"Bearer realm="/token""#, Err("the server for tokens \"/token\" is not a URL"));
        check(
            "Negotiate",
            Err("the registry wants \"Negotiate\" authentication, which is not supported"),
        );
        assert_eq!(Challenge::parse(r#"Basic realm="r""#).unwrap(), Challenge::Basic);
    }

    #[test]
    fn credentials_of_docker() {
        #[track_caller]
        fn check(config: Option<&str>, want: &str) {
            let config = DockerConfig::parse(config).unwrap();
            let found = config.authenticator("r:5000").basic();
            let found = found.unwrap_or_else(|error| error.to_string());
            assert!(found.contains(want), "{found}");
        }
        check(Some(r#"{"auths": {"r:5000": {"auth": "dTpw"}}}"#), "Basic dTpw");
        check(Some(r#"{"auths": {"other": {"auth": "dTpw"}}}"#), "no `auths` for r:5000");
        check(Some(r#"{"auths": {"r:5000": {"auth": "!"}}}"#), "not USER:PASSWORD in Base64");
        check(Some(r#"{"credsStore": "desktop"}"#), "credential helper desktop");
        check(None, "docker login r:5000");
        assert!(DockerConfig::parse(Some("{")).is_err());
    }
}
