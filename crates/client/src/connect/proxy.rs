//! HTTP proxies: which one is used for a server, and its credentials.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use hyper_util::client::proxy::matcher::Matcher;
use kube::config::Kubeconfig;
use loadmaster_config::redact_password;

use super::{Address, ConnectError, address};

/// A proxy that opens tunnels (CONNECT), itself over TLS or not.
pub(crate) struct Proxy {
    pub address: Address,
    /// The Proxy-Authorization header, from user and password in the URL.
    pub authorization: Option<HeaderValue>,
}

impl Proxy {
    /// The proxy with this URL.
    pub(super) fn new(url: &http::Uri) -> Result<Proxy, ConnectError> {
        match address(url) {
            Ok(address) => Ok(Proxy { address, authorization: basic_auth_header(url) }),
            Err(_) => Err(invalid(&url.to_string())),
        }
    }
}

fn invalid(proxy: &str) -> ConnectError {
    ConnectError::Proxy { proxy: redact_password(proxy) }
}

/// The URL of the proxy for a server, as client-go finds it: `proxy-url` of the kubeconfig always; else that of the environment, unless
/// the server is excluded.
pub(crate) fn proxy_url(
    server: &http::Uri,
    kubeconfig: Option<(&Kubeconfig, Option<&str>)>,
) -> Result<Option<http::Uri>, ConnectError> {
    #[expect(clippy::disallowed_methods, reason = "where every program finds its proxy")]
    let variable = |name: &str| std::env::var(name).ok();
    let configured = kubeconfig.and_then(|(file, context)| configured_proxy(file, context));
    let Some(mut url) = configured.or_else(|| environment_proxy(server, variable)) else {
        return Ok(None);
    };
    if !url.contains("://") {
        url.insert_str(0, "http://");
    }
    url.parse().map(Some).map_err(|_| invalid(&url))
}

/// `proxy-url` of the context's cluster.
fn configured_proxy(file: &Kubeconfig, context: Option<&str>) -> Option<String> {
    let selected = context.or(file.current_context.as_deref())?;
    let context = file.contexts.iter().find(|named| named.name == selected)?.context.as_ref()?;
    let cluster = file.clusters.iter().find(|named| named.name == context.cluster)?;
    cluster.cluster.as_ref()?.proxy_url.clone().filter(|url| !url.is_empty())
}

/// As Go's `ProxyFromEnvironment`: HTTP_PROXY, HTTPS_PROXY and NO_PROXY, or their names in lower case. This machine is reached directly.
fn environment_proxy(
    server: &http::Uri,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let either = |name: &str| {
        let value = |name: &str| variable(name).filter(|value| !value.is_empty());
        value(name).or_else(|| value(&name.to_ascii_lowercase()))
    };
    let is_https = server.scheme_str() == Some("https");
    let proxy = either(if is_https { "HTTPS_PROXY" } else { "HTTP_PROXY" })?;
    let target = address(server).ok()?;
    if is_loopback(&target.host) {
        return None;
    }
    let excluded = either("NO_PROXY").unwrap_or_default();
    let excluded: Vec<&str> =
        excluded.split(',').filter_map(|entry| host_pattern(entry.trim(), target.port)).collect();
    // Only whether it is excluded is asked: the URL is parsed by the caller, who reports errors.
    let any = "http://proxy";
    let matcher = Matcher::builder().all(any).no(excluded.join(",")).build();
    matcher.intercept(server).map(|_| proxy)
}

/// An entry of NO_PROXY without its port and `*.`; None if it is for another port.
fn host_pattern(entry: &str, port: u16) -> Option<&str> {
    let (host, is_this_port) = match entry.rsplit_once(':') {
        Some((host, digits)) if !host.contains(':') || host.ends_with(']') => {
            (host.trim_start_matches('[').trim_end_matches(']'), digits.parse() == Ok(port))
        }
        _ => (entry, true),
    };
    is_this_port.then_some(host.strip_prefix("*.").unwrap_or(host))
}

/// Whether a host is this machine.
pub(crate) fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// The header that Go's client makes of `USER:PASSWORD@` in a URL.
pub(crate) fn basic_auth_header(url: &http::Uri) -> Option<HeaderValue> {
    let (user, _) = url.authority()?.as_str().rsplit_once('@')?;
    let (user, password) = user.split_once(':').unwrap_or((user, ""));
    let decoded = |text| percent_encoding::percent_decode_str(text);
    let both: Vec<u8> = decoded(user).chain(*b":").chain(decoded(password)).collect();
    let mut value = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(both))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_of_the_environment() {
        #[track_caller]
        fn check(server: &str, variables: &[(&str, &str)], want: Option<&str>) {
            let variable = |name: &str| {
                variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            };
            let found = environment_proxy(&server.parse().unwrap(), variable);
            assert_eq!(found.as_deref(), want, "{server} {variables:?}");
        }
        let proxy = ("HTTPS_PROXY", "http://p:3128");
        check("https://a.example:6443", &[proxy], Some("http://p:3128"));
        check("https://a.example", &[("https_proxy", "p:1")], Some("p:1"));
        check("https://a.example", &[("HTTPS_PROXY", ""), ("https_proxy", "p:1")], Some("p:1"));
        check("https://a.example", &[("HTTP_PROXY", "http://p")], None);
        check("http://a.example", &[("HTTP_PROXY", "http://p")], Some("http://p"));
        // This machine is reached directly.
        for local in ["https://localhost:6443", "https://127.0.0.1:6443", "https://[::1]:6443"] {
            check(local, &[proxy], None);
        }
        #[track_caller]
        fn check_excluded(server: &str, no_proxy: &str, is_excluded: bool) {
            let variables = [("HTTPS_PROXY", "http://p"), ("NO_PROXY", no_proxy)];
            check(server, &variables, (!is_excluded).then_some("http://p"));
        }
        check_excluded("https://a.example", "*", true);
        check_excluded("https://a.example", "b.example, a.example,", true);
        check_excluded("https://api.a.example", "a.example", true);
        check_excluded("https://api.a.example", ".a.example", true);
        check_excluded("https://api.a.example", "*.a.example", true);
        check_excluded("https://bad.example", "d.example", false);
        check_excluded("https://10.0.0.1:6443", "10.0.0.0/8", true);
        check_excluded("https://10.0.0.1:6443", "10.0.0.1", true);
        check_excluded("https://11.0.0.1:6443", "10.0.0.0/8", false);
        check_excluded("https://[fd00::1]:6443", "fd00::/8", true);
        check_excluded("https://a.example:6443", "a.example:6443", true);
        check_excluded("https://a.example:6443", "a.example:443", false);
        check_excluded("https://[fd00::1]:6443", "[fd00::1]:6443", true);
    }

    #[test]
    fn a_proxy_of_the_kubeconfig_has_precedence() {
        let text = "current-context: a\n\
                    clusters:\n\
                    - {name: one, cluster: {server: 'https://s', proxy-url: 'http://p:1'}}\n\
                    - {name: two, cluster: {server: 'https://s'}}\n\
                    contexts:\n\
                    - {name: a, context: {cluster: one, user: u}}\n\
                    - {name: b, context: {cluster: two, user: u}}\n";
        let file = Kubeconfig::from_yaml(text).unwrap();
        assert_eq!(configured_proxy(&file, None).as_deref(), Some("http://p:1"));
        assert_eq!(configured_proxy(&file, Some("a")).as_deref(), Some("http://p:1"));
        assert_eq!(configured_proxy(&file, Some("b")), None);
        assert_eq!(configured_proxy(&file, Some("c")), None);
    }

    #[test]
    fn proxies_have_http_or_https_urls_and_credentials() {
        #[track_caller]
        fn check(url: &str, want: Result<(&str, Option<&str>), &str>) {
            let proxy = Proxy::new(&url.parse().unwrap());
            let found = proxy.as_ref().map(|proxy| {
                let header = proxy.authorization.as_ref().map(|value| value.to_str().unwrap());
                (&*proxy.address.authority, header)
            });
            match (found, want) {
                (Ok(found), Ok(want)) => assert_eq!(found, want),
                (Err(error), Err(want)) => assert_eq!(error.to_string(), want),
                (found, want) => panic!("{:?} {want:?}", found.ok()),
            }
        }
        check("http://p:3128", Ok(("p:3128", None)));
        check("https://p", Ok(("p:443", None)));
        check("http://me:pass%40word@p:1", Ok(("p:1", Some("Basic bWU6cGFzc0B3b3Jk"))));
        let want = "proxy \"socks5://me:***@p:1/\": expected http://HOST:PORT or https://HOST:PORT";
        check("socks5://me:pass@p:1/", Err(want));
    }
}
