//! Who asks: front proxies, client certificates, bearer tokens; in upstream's order.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};

use super::ServeError;
use super::api::{Api, ApiCall, refusal, review};
use super::cache::Cache;
use super::user::{Subject, Trust, User};
use crate::flags;
use crate::metrics::{AuthResult, ReviewMetrics};

const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
/// Where a cluster says which CAs and headers to trust.
const CONFIG_MAP: &str =
    "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";

/// A proxy that names users in headers.
#[derive(Clone)]
struct FrontProxy {
    trust: Trust,
    allowed_names: Vec<String>,
    username_headers: Vec<String>,
    uid_headers: Vec<String>,
    group_headers: Vec<String>,
    extra_prefixes: Vec<String>,
}

/// Whom to believe; replaced as a whole when files or the ConfigMap change.
#[derive(Clone, Default)]
struct Believed {
    client_ca: Option<Trust>,
    front_proxy: Option<FrontProxy>,
}

/// Finds out who asks.
pub(super) struct Authenticator {
    flags: flags::Authentication,
    api: Option<Arc<dyn Api>>,
    believed: RwLock<Arc<Believed>>,
    tokens: Cache<Option<User>>,
    token_ttl: Duration,
    metrics: Arc<crate::metrics::Metrics>,
}

impl Authenticator {
    /// Reads the CA files and, where they leave a gap, the cluster's ConfigMap.
    pub async fn new(
        flags: &flags::Authentication,
        api: Option<Arc<dyn Api>>,
        metrics: Arc<crate::metrics::Metrics>,
    ) -> Result<Authenticator, ServeError> {
        let tokens = Cache::new().map_err(|_| ServeError::Random)?;
        let token_ttl = flags.authentication_token_webhook_cache_ttl.to_std().unwrap_or_default();
        let flags = flags.clone();
        let believed = RwLock::default();
        let it = Authenticator { flags, api, believed, tokens, token_ttl, metrics };
        it.read_files()?;
        it.warn_of_gaps();
        if let Err(reason) = it.look_up().await {
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

    fn believed(&self) -> Arc<Believed> {
        self.believed.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut Believed)) {
        let mut believed = self.believed.write().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut believed));
    }

    /// Whether clients are worth being asked for a certificate.
    pub fn wants_certificates(&self) -> bool {
        let believed = self.believed();
        believed.client_ca.is_some() || believed.front_proxy.is_some()
    }

    /// Reads the CA files, again if they were read before and changed.
    pub fn read_files(&self) -> Result<(), ServeError> {
        let before = self.believed();
        let read = |file: &str, before: Option<&Trust>| -> Result<Option<Trust>, ServeError> {
            if file.is_empty() {
                return Ok(None);
            }
            let fail = |reason| ServeError::ClientCa { file: file.to_owned(), reason };
            let pem = fs::read(file).map_err(|error| fail(error.to_string()))?;
            match before {
                Some(trust) if trust.is_of(&pem) => Ok(Some(trust.clone())),
                _ => Trust::from_pem(&pem).map(Some).map_err(fail),
            }
        };
        let flags = &self.flags;
        if let Some(trust) = read(&flags.client_ca_file, before.client_ca.as_ref())? {
            self.change(|believed| believed.client_ca = Some(trust));
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
            self.change(|believed| believed.front_proxy = Some(proxy));
        }
        Ok(())
    }

    fn has_gaps(&self) -> bool {
        let flags = &self.flags;
        !flags.authentication_skip_lookup
            && (flags.client_ca_file.is_empty() || flags.requestheader_client_ca_file.is_empty())
    }

    fn warn_of_gaps(&self) {
        if self.api.is_none() && self.has_gaps() {
            tracing::warn!(
                "No authentication-kubeconfig provided in order to look up client CAs in configmap \
                 kube-system/extension-apiserver-authentication, so client certificates won't work"
            );
        }
    }

    /// Fills what no file says from the ConfigMap.
    pub async fn look_up(&self) -> Result<(), String> {
        let Some(api) = self.api.as_ref().filter(|_| self.has_gaps()) else { return Ok(()) };
        let call = ApiCall { method: "GET", path: CONFIG_MAP.to_owned(), body: None };
        let reply = api.call(call).await?;
        if reply.status == 403 {
            return Err(format!(
                "{}; it takes the Role extension-apiserver-authentication-reader in namespace kube-system",
                refusal(CONFIG_MAP, &reply)
            ));
        }
        if reply.status != 200 {
            return Err(refusal(CONFIG_MAP, &reply));
        }
        let data = &reply.body["data"];
        let before = self.believed();
        let trust = |key: &str, before: Option<&Trust>| match data[key].as_str() {
            None | Some("") => Ok(None),
            Some(pem) if before.is_some_and(|it| it.is_of(pem.as_bytes())) => Ok(before.cloned()),
            Some(pem) => {
                Trust::from_pem(pem.as_bytes()).map(Some).map_err(|error| format!("{key}: {error}"))
            }
        };
        if self.flags.client_ca_file.is_empty() {
            let client_ca = trust("client-ca-file", before.client_ca.as_ref())?;
            self.change(|believed| believed.client_ca = client_ca);
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
            self.change(|believed| believed.front_proxy = front_proxy);
        }
        Ok(())
    }

    /// Who asks; an error is a reason to answer 401.
    pub async fn authenticate(
        &self,
        headers: &HeaderMap,
        chain: &[CertificateDer<'static>],
    ) -> Result<User, String> {
        let started = tokio::time::Instant::now();
        let result = self.try_all(headers, chain).await;
        let seconds = started.elapsed().as_secs_f64();
        let metrics: &ReviewMetrics = &self.metrics.reviews;
        match &result {
            Ok(user) => metrics.authenticated(AuthResult::Success, Some(&user.name), seconds),
            Err(_) => metrics.authenticated(AuthResult::Error, None, seconds),
        }
        result
    }

    /// One who is known, if any way leads there; else why a way failed; else anonymous.
    async fn try_all(
        &self,
        headers: &HeaderMap,
        chain: &[CertificateDer<'static>],
    ) -> Result<User, String> {
        let believed = self.believed();
        let mut errors = Vec::new();
        if let Some(proxy) = &believed.front_proxy {
            match proxy.user(headers, chain) {
                Ok(Some(user)) => return Ok(user.authenticated()),
                Ok(None) => {}
                Err(error) => errors.push(error),
            }
        }
        if let (Some(trust), [client, ..]) = (&believed.client_ca, chain) {
            match trust.verify(chain).and_then(|()| User::of_certificate(client)) {
                Ok(Some(user)) => return Ok(user.authenticated()),
                Ok(None) => {}
                Err(error) => errors.push(error),
            }
        }
        if let (Some(api), Some(token)) = (&self.api, bearer(headers)) {
            match self.token(api.as_ref(), token).await {
                Ok(Some(user)) => return Ok(user.authenticated()),
                Ok(None) => errors.push("invalid bearer token".to_owned()),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(User::anonymous()) } else { Err(errors.join(", ")) }
    }

    /// Asks the API server whose token this is.
    async fn token(&self, api: &dyn Api, token: &str) -> Result<Option<User>, String> {
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
        self.tokens.put(token.as_bytes(), user.clone(), self.token_ttl);
        Ok(user)
    }
}

/// A list that the ConfigMap holds as JSON.
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
        extra: extra.map(|(key, values)| (key.clone(), strings(values))).collect(),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, token) = value.split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty()).then(|| token.trim())
}

impl FrontProxy {
    /// The user a proxy names, if the one who asks is such a proxy.
    fn user(
        &self,
        headers: &HeaderMap,
        chain: &[CertificateDer<'static>],
    ) -> Result<Option<User>, String> {
        let [client, ..] = chain else { return Ok(None) };
        self.trust.verify(chain)?;
        if !self.allowed_names.is_empty() {
            let name = Subject::read(client)?.common_name;
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

/// A key with `%2f` for `/`; as it stands if that is not well-formed.
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
