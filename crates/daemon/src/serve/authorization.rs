//! Authorization: the privileged group, always-allowed paths, SubjectAccessReviews.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::ServeError;
use super::expiring_cache::ExpiringCache;
use super::review_client::{ReviewClient, review};
use super::user::User;
use crate::flags;
use crate::metrics::{AuthorizationResult, Metrics};

const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
/// The group that is always authorized.
const MASTERS: &str = "system:masters";
/// Reviews with a spec longer than this are not cached.
const CACHED_SPEC_BYTES_MAX: usize = 10_000;

/// The decision; a denial may have a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Allowed,
    Denied(String),
}

/// Authorizes requests.
pub(super) struct Authorizer {
    api: Option<Arc<dyn ReviewClient>>,
    always_allowed_paths: Vec<String>,
    allowed_ttl: Duration,
    denied_ttl: Duration,
    decisions: ExpiringCache<Decision>,
    metrics: Arc<Metrics>,
}

impl Authorizer {
    pub fn new(
        flags: &flags::AuthorizationFlags,
        api: Option<Arc<dyn ReviewClient>>,
        metrics: Arc<Metrics>,
    ) -> Result<Authorizer, ServeError> {
        if api.is_none() {
            tracing::warn!(
                "No authorization-kubeconfig provided, so SubjectAccessReview of authorization tokens won't work"
            );
        }
        let paths = flags.authorization_always_allow_paths.iter();
        Ok(Authorizer {
            api,
            always_allowed_paths: paths
                .map(|path| path.trim_start_matches('/').to_owned())
                .collect(),
            allowed_ttl: flags
                .authorization_webhook_cache_authorized_ttl
                .to_std()
                .unwrap_or_default(),
            denied_ttl: flags
                .authorization_webhook_cache_unauthorized_ttl
                .to_std()
                .unwrap_or_default(),
            decisions: ExpiringCache::new().map_err(|_| ServeError::Random)?,
            metrics,
        })
    }

    /// Whether the user is authorized; an error means status 500.
    pub async fn authorize(&self, user: &User, verb: &str, path: &str) -> Result<Decision, String> {
        let started = tokio::time::Instant::now();
        let result = self.decide(user, verb, path).await;
        let label = match &result {
            Ok(Decision::Allowed) => AuthorizationResult::Allowed,
            Ok(Decision::Denied(_)) if self.api.is_some() => AuthorizationResult::Denied,
            Ok(Decision::Denied(_)) => AuthorizationResult::NoOpinion,
            Err(_) => AuthorizationResult::Error,
        };
        self.metrics.reviews.authorized(label, started.elapsed().as_secs_f64());
        result
    }

    async fn decide(&self, user: &User, verb: &str, path: &str) -> Result<Decision, String> {
        if user.groups.iter().any(|group| group == MASTERS) || self.is_always_allowed(path) {
            return Ok(Decision::Allowed);
        }
        let Some(api) = &self.api else { return Ok(Decision::Denied(String::new())) };
        let mut spec = json!({
            "user": user.name,
            "groups": user.groups,
            "nonResourceAttributes": {"path": path, "verb": verb},
        });
        if !user.uid.is_empty() {
            spec["uid"] = json!(user.uid);
        }
        if !user.extra.is_empty() {
            spec["extra"] = json!(user.extra);
        }
        let spec_text = spec.to_string();
        if let Some(decision) = self.decisions.get(spec_text.as_bytes()) {
            return Ok(decision);
        }
        let body = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec,
        });
        let record = |code, seconds| self.metrics.reviews.access_review(code, seconds);
        let reply = review(api.as_ref(), ACCESS_REVIEWS, body, record).await?;
        let status = &reply["status"];
        let (decision, ttl) = if status["allowed"].as_bool() == Some(true) {
            (Decision::Allowed, self.allowed_ttl)
        } else {
            let reason = status["reason"].as_str().unwrap_or_default();
            (Decision::Denied(reason.to_owned()), self.denied_ttl)
        };
        if spec_text.len() < CACHED_SPEC_BYTES_MAX {
            self.decisions.insert(spec_text.as_bytes(), decision.clone(), ttl);
        }
        Ok(decision)
    }

    fn is_always_allowed(&self, path: &str) -> bool {
        let path = path.trim_start_matches('/');
        self.always_allowed_paths.iter().any(|allowed| match allowed.strip_suffix('*') {
            Some(prefix) => path.starts_with(prefix),
            None => path == allowed,
        })
    }
}

/// The message of status 403.
pub(super) fn forbidden_message(user: &User, verb: &str, path: &str, reason: &str) -> String {
    let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let name = Value::from(escape(&user.name));
    let path = Value::from(escape(path));
    let message = format!("forbidden: User {name} cannot {verb} path {path}");
    if reason.is_empty() { message } else { format!("{message}: {reason}") }
}
