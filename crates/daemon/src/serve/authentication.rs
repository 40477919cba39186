//! Authentication: front proxies, client certificates, bearer tokens; in upstream's order.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use loadmaster_stdx::CollectByInsertion as _;
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};

use super::ServeError;
use super::expiring_cache::ExpiringCache;
use super::review_client::{ReviewClient, ReviewRequest, error_message, review};
use super::user::{CaBundle, User};
use crate::flags;
use crate::metrics::{AuthMetrics, AuthenticationResult};
use loadmaster_serving::CertificateSubject;

const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
/// The ConfigMap with the CAs and headers that the cluster trusts.
const CONFIG_MAP: &str =
    "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";

/// The configuration of the front proxy, which sets user names in request headers.
#[derive(Clone)]
struct FrontProxy {
    trust: CaBundle,
    allowed_names: Vec<String>,
    username_headers: Vec<String>,
    uid_headers: Vec<String>,
    group_headers: Vec<String>,
    extra_prefixes: Vec<String>,
}

/// The trusted CAs; replaced as a whole when files or the ConfigMap change.
#[derive(Clone, Default)]
struct TrustedCas {
    client_ca: Option<CaBundle>,
    front_proxy: Option<FrontProxy>,
}

/// Authenticates requests.
pub(super) struct Authenticator {
    flags: flags::AuthenticationFlags,
    api: Option<Arc<dyn ReviewClient>>,
    trusted: RwLock<Arc<TrustedCas>>,
    tokens: ExpiringCache<Option<User>>,
    token_ttl: Duration,
    metrics: Arc<crate::metrics::Metrics>,
}

impl Authenticator {
    /// Reads the CA files and, if a flag is not set, the cluster's ConfigMap.
    pub async fn new(
        flags: &flags::AuthenticationFlags,
        api: Option<Arc<dyn ReviewClient>>,
        metrics: Arc<crate::metrics::Metrics>,
    ) -> Result<Authenticator, ServeError> {
        let tokens = ExpiringCache::new().map_err(|_| ServeError::Random)?;
        let token_ttl = flags.authentication_token_webhook_cache_ttl.to_std().unwrap_or_default();
        let flags = flags.clone();
        let trusted = RwLock::default();
        let it = Authenticator { flags, api, trusted, tokens, token_ttl, metrics };
        it.reload_ca_files()?;
        it.warn_of_missing_cas();
        if let Err(reason) = it.read_config_map().await {
            if !it.flags.authentication_tolerate_lookup_failure {
                return Err(ServeError::Lookup(reason));
            }
            tracing::warn!(
                err = reason,
                "Error looking up in-cluster authentication configuration"
            );
            tracing::warn!(
                "Continuing without authentication configuration. This may treat all requests as anonymous. \
                 To require the lookup to succeed, set --authentication-tolerate-lookup-failure=false"
            );
        }
        Ok(it)
    }

    fn trusted(&self) -> Arc<TrustedCas> {
        self.trusted.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn update(&self, change: impl FnOnce(&mut TrustedCas)) {
        let mut trusted = self.trusted.write().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut trusted));
    }

    /// Whether to request client certificates.
    pub fn requests_client_certificates(&self) -> bool {
        let trusted = self.trusted();
        trusted.client_ca.is_some() || trusted.front_proxy.is_some()
    }

    /// Reads the CA files; files that have not changed are skipped.
    pub fn reload_ca_files(&self) -> Result<(), ServeError> {
        let before = self.trusted();
        let read =
            |file: &str, before: Option<&CaBundle>| -> Result<Option<CaBundle>, ServeError> {
                if file.is_empty() {
                    return Ok(None);
                }
                let fail = |reason| ServeError::ClientCa { file: file.to_owned(), reason };
                let pem = fs::read(file).map_err(|error| fail(error.to_string()))?;
                match before {
                    Some(trust) if trust.is_made_from(&pem) => Ok(Some(trust.clone())),
                    _ => CaBundle::from_pem(&pem).map(Some).map_err(fail),
                }
            };
        let flags = &self.flags;
        if let Some(trust) = read(&flags.client_ca_file, before.client_ca.as_ref())? {
            self.update(|trusted| trusted.client_ca = Some(trust));
        }
        let proxy = before.front_proxy.as_ref().map(|proxy| &proxy.trust);
        if let Some(trust) = read(&flags.requestheader_client_ca_file, proxy)? {
            let proxy = FrontProxy {
                trust,
                allowed_names: flags.requestheader_allowed_names.clone(),
                username_headers: flags.requestheader_username_headers.clone(),
                uid_headers: flags.requestheader_uid_headers.clone(),
                group_headers: flags.requestheader_group_headers.clone(),
                extra_prefixes: flags.requestheader_extra_headers_prefix.clone(),
            };
            self.update(|trusted| trusted.front_proxy = Some(proxy));
        }
        Ok(())
    }

    fn needs_lookup(&self) -> bool {
        let flags = &self.flags;
        !flags.authentication_skip_lookup
            && (flags.client_ca_file.is_empty() || flags.requestheader_client_ca_file.is_empty())
    }

    fn warn_of_missing_cas(&self) {
        if self.api.is_none() && self.needs_lookup() {
            tracing::warn!(
                "No authentication-kubeconfig provided in order to look up client CAs in configmap \
                 kube-system/extension-apiserver-authentication, so client certificates won't work"
            );
        }
    }

    /// Reads CAs that no flag sets from the ConfigMap.
    pub async fn read_config_map(&self) -> Result<(), String> {
        let Some(api) = self.api.as_ref().filter(|_| self.needs_lookup()) else { return Ok(()) };
        let call = ReviewRequest { method: "GET", path: CONFIG_MAP.to_owned(), body: None };
        let reply = api.call(call).await?;
        if reply.status == 403 {
            return Err(format!(
                "{}; grant the Role extension-apiserver-authentication-reader in namespace kube-system",
                error_message(CONFIG_MAP, &reply)
            ));
        }
        if reply.status != 200 {
            return Err(error_message(CONFIG_MAP, &reply));
        }
        let data = &reply.body["data"];
        let before = self.trusted();
        let trust = |key: &str, before: Option<&CaBundle>| match data[key].as_str() {
            None | Some("") => Ok(None),
            Some(pem) if before.is_some_and(|it| it.is_made_from(pem.as_bytes())) => {
                Ok(before.cloned())
            }
            Some(pem) => CaBundle::from_pem(pem.as_bytes())
                .map(Some)
                .map_err(|error| format!("{key}: {error}")),
        };
        if self.flags.client_ca_file.is_empty() {
            let client_ca = trust("client-ca-file", before.client_ca.as_ref())?;
            self.update(|trusted| trusted.client_ca = client_ca);
        }
        if self.flags.requestheader_client_ca_file.is_empty() {
            let proxy = before.front_proxy.as_ref().map(|proxy| &proxy.trust);
            let front_proxy = match trust("requestheader-client-ca-file", proxy)? {
                None => None,
                Some(trust) => Some(FrontProxy {
                    trust,
                    allowed_names: list(data, "requestheader-allowed-names")?,
                    username_headers: list(data, "requestheader-username-headers")?,
                    uid_headers: list(data, "requestheader-uid-headers")?,
                    group_headers: list(data, "requestheader-group-headers")?,
                    extra_prefixes: list(data, "requestheader-extra-headers-prefix")?,
                }),
            };
            self.update(|trusted| trusted.front_proxy = front_proxy);
        }
        Ok(())
    }

    /// The user of a request; an error means status 401.
    pub async fn authenticate(
        &self,
        headers: &HeaderMap,
        chain: &[CertificateDer<'static>],
    ) -> Result<User, String> {
        let started = tokio::time::Instant::now();
        let result = self.try_authenticators(headers, chain).await;
        let seconds = started.elapsed().as_secs_f64();
        let metrics: &AuthMetrics = &self.metrics.reviews;
        match &result {
            Ok(user) => {
                metrics.authenticated(AuthenticationResult::Success, Some(&user.name), seconds)
            }
            Err(_) => metrics.authenticated(AuthenticationResult::Error, None, seconds),
        }
        result
    }

    /// The first user found by an authenticator; else the errors of the authenticators; else anonymous.
    async fn try_authenticators(
        &self,
        headers: &HeaderMap,
        chain: &[CertificateDer<'static>],
    ) -> Result<User, String> {
        let trusted = self.trusted();
        let mut errors = Vec::new();
        if let Some(proxy) = &trusted.front_proxy {
            match proxy.user(headers, chain) {
                Ok(Some(user)) => return Ok(user.authenticated()),
                Ok(None) => {}
                Err(error) => errors.push(error),
            }
        }
        if let (Some(trust), [client, ..]) = (&trusted.client_ca, chain) {
            match trust.verify(chain).and_then(|()| User::from_certificate(client)) {
                Ok(Some(user)) => return Ok(user.authenticated()),
                Ok(None) => {}
                Err(error) => errors.push(error),
            }
        }
        if let (Some(api), Some(token)) = (&self.api, bearer(headers)) {
            match self.review_token(api.as_ref(), token).await {
                Ok(Some(user)) => return Ok(user.authenticated()),
                Ok(None) => errors.push("invalid bearer token".to_owned()),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(User::anonymous()) } else { Err(errors.join(", ")) }
    }

    /// Sends a TokenReview for this token.
    async fn review_token(
        &self,
        api: &dyn ReviewClient,
        token: &str,
    ) -> Result<Option<User>, String> {
        if let Some(user) = self.tokens.get(token.as_bytes()) {
            return Ok(user);
        }
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": {"token": token},
        });
        let record = |code, seconds| self.metrics.reviews.token_review(code, seconds);
        let reply = review(api, TOKEN_REVIEWS, body, record).await?;
        let status = &reply["status"];
        let user = match (status["authenticated"].as_bool(), status["error"].as_str()) {
            (Some(true), _) => Some(user_of(&status["user"])),
            (_, Some(error)) if !error.is_empty() => return Err(error.to_owned()),
            _ => None,
        };
        self.tokens.insert(token.as_bytes(), user.clone(), self.token_ttl);
        Ok(user)
    }
}

/// A list in the ConfigMap, encoded as JSON.
fn list(data: &Value, key: &str) -> Result<Vec<String>, String> {
    match data[key].as_str() {
        None | Some("") => Ok(Vec::new()),
        Some(text) => serde_json::from_str(text).map_err(|error| format!("{key}: {error}")),
    }
}

fn user_of(value: &Value) -> User {
    let strings = |value: &Value| -> Vec<String> {
        let items = value.as_array().into_iter().flatten();
        items.filter_map(|item| Some(item.as_str()?.to_owned())).collect()
    };
    let extra = value["extra"].as_object().into_iter().flatten();
    User {
        name: value["username"].as_str().unwrap_or_default().to_owned(),
        uid: value["uid"].as_str().unwrap_or_default().to_owned(),
        groups: strings(&value["groups"]),
        extra: extra.map(|(key, values)| (key.clone(), strings(values))).collect_by_insertion(),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, token) = value.split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty()).then(|| token.trim())
}

impl FrontProxy {
    /// The user named in the headers, if the client is a trusted front proxy.
    fn user(
        &self,
        headers: &HeaderMap,
        chain: &[CertificateDer<'static>],
    ) -> Result<Option<User>, String> {
        let [client, ..] = chain else { return Ok(None) };
        self.trust.verify(chain)?;
        if !self.allowed_names.is_empty() {
            let name = CertificateSubject::from_certificate(client)?.common_name;
            if !self.allowed_names.contains(&name) {
                return Err(format!("x509: subject with cn={name} is not in the allowed list"));
            }
        }
        let first = |names: &[String]| {
            let mut values =
                names.iter().filter_map(|name| headers.get(name.trim())?.to_str().ok());
            values.find(|value| !value.is_empty()).unwrap_or_default().to_owned()
        };
        let name = first(&self.username_headers);
        if name.is_empty() {
            return Ok(None);
        }
        let groups = self.group_headers.iter().flat_map(|name| headers.get_all(name.trim()));
        let groups = groups.filter_map(|value| value.to_str().ok()).filter(|it| !it.is_empty());
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for prefix in &self.extra_prefixes {
            let prefix = prefix.trim().to_ascii_lowercase();
            for (header, value) in headers {
                if let Some(key) = header.as_str().strip_prefix(&prefix)
                    && let Ok(value) = value.to_str()
                {
                    extra.entry(unescaped(key)).or_default().push(value.to_owned());
                }
            }
        }
        let groups = groups.map(str::to_owned).collect();
        Ok(Some(User { name, uid: first(&self.uid_headers), groups, extra }))
    }
}

/// Unescapes `%2f` and so on; unchanged if an escape is malformed.
fn unescaped(key: &str) -> String {
    let is_escape = |after: &str| {
        after.as_bytes().get(..2).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit))
    };
    if !key.split('%').skip(1).all(is_escape) {
        return key.to_owned();
    }
    match percent_encoding::percent_decode_str(key).decode_utf8() {
        Ok(decoded) => decoded.into_owned(),
        Err(_) => key.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_extra_headers() {
        for (key, want) in [
            ("a", "a"),
            ("example.com%2fx", "example.com/x"),
            ("50%", "50%"),
            ("%zz", "%zz"),
            ("%2f%", "%2f%"),
        ] {
            assert_eq!(unescaped(key), want);
        }
    }

    #[test]
    fn bearer_tokens() {
        let check = |value: &'static str, want: Option<&str>| {
            let headers =
                HeaderMap::from_iter([(AUTHORIZATION, http::HeaderValue::from_static(value))]);
            assert_eq!(bearer(&headers), want);
        };
        check("Bearer abc", Some("abc"));
        check("bearer  abc ", Some("abc"));
        check("Basic abc", None);
        check("Bearer ", None);
    }
}
