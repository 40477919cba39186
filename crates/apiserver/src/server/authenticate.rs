//! Who sent a request: certificates, tokens, or nobody known.

use std::sync::Arc;

use http::{HeaderMap, header};
use serde_json::{Value, json};

use super::ApiServer;
use crate::auth::{Bound, Claims, ISSUER, Ref, TokenError, User};
use crate::object::{meta, parsed};
use crate::status::ApiError;

/// How many checked signatures are kept, so that a client's next request need not be checked again.
const N_VERIFIED_MAX: usize = 4_096;

impl ApiServer {
    /// Who sends a request with these headers for a path. `certificate` is the user of a verified client certificate.
    ///
    /// # Errors
    ///
    /// 401, when the credentials are not good or there are none where some are needed.
    pub fn authenticate(
        &self,
        certificate: Option<&User>,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<User, ApiError> {
        if let Some(user) = certificate {
            return Ok(user.clone());
        }
        if let Some(token) = bearer(headers) {
            let user = self.token_user(token, &[]).map(|(user, _)| user);
            return user.map_err(|_| ApiError::unauthorized());
        }
        if self.is_open_to_anonymous(path) {
            Ok(User::anonymous())
        } else {
            Err(ApiError::unauthorized())
        }
    }

    /// Whom a token stands for, and for which of the audiences it is good. No audiences stand for the server's own.
    pub(super) fn token_user(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<(User, Vec<String>), TokenError> {
        let own = [ISSUER.to_owned()];
        let wanted = if audiences.is_empty() { &own[..] } else { audiences };
        let good = |all: &[String]| -> Vec<String> {
            all.iter().filter(|it| wanted.contains(it)).cloned().collect()
        };
        if let Some(user) = self.shared.tokens.user(token) {
            let audiences = good(&own);
            return if audiences.is_empty() {
                Err(TokenError::Unknown)
            } else {
                Ok((user, audiences))
            };
        }
        let claims = self.verified(token)?;
        claims.check_time(self.now())?;
        let audiences = good(&claims.audiences);
        if audiences.is_empty() {
            return Err(TokenError::Audiences {
                found: crate::authorize::quoted(&claims.audiences),
                wanted: crate::authorize::quoted(wanted),
            });
        }
        self.check_bound(&claims.kubernetes)?;
        Ok((claims.user(), audiences))
    }

    /// What a signed token says. A signature is checked once.
    fn verified(&self, token: &str) -> Result<Arc<Claims>, TokenError> {
        let lock =
            || self.shared.verified.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(claims) = lock().get(token) {
            return Ok(Arc::clone(claims));
        }
        let claims = Arc::new(self.shared.key.verify(token)?);
        let mut verified = lock();
        if verified.len() >= N_VERIFIED_MAX {
            verified.clear();
        }
        verified.insert(token.to_owned(), Arc::clone(&claims));
        Ok(claims)
    }

    /// A token ends with its account and with the object it was made for.
    fn check_bound(&self, bound: &Bound) -> Result<(), TokenError> {
        let Bound { namespace, node, pod, secret, serviceaccount } = bound;
        let account = self.bound_object("serviceaccounts", namespace, &serviceaccount.name);
        let account = account.ok_or_else(|| {
            TokenError::Bound(format!("serviceaccounts {:?} not found", serviceaccount.name))
        })?;
        let (found, claimed) = (meta(&account, "uid"), &serviceaccount.uid);
        if found != claimed {
            return Err(TokenError::Bound(format!(
                "service account UID ({found}) does not match claim ({claimed})"
            )));
        }
        let of_pod = pod.is_some();
        let node = node.as_ref().filter(|_| !of_pod);
        for (resource, namespace, kind, it) in [
            ("secrets", namespace.as_str(), "secret", secret.as_ref()),
            ("pods", namespace, "pod", pod.as_ref()),
            ("nodes", "", "node", node),
        ] {
            let Some(Ref { name, uid }) = it else { continue };
            let gone =
                || TokenError::Bound("service account token has been invalidated".to_owned());
            let object = self.bound_object(resource, namespace, name).ok_or_else(gone)?;
            let found = meta(&object, "uid");
            if found != uid {
                let title = format!("{}{}", kind[..1].to_uppercase(), &kind[1..]);
                return Err(TokenError::Bound(format!(
                    "{title} UID ({found}) does not match service account {kind} ref claim ({uid})"
                )));
            }
            if self.was_deleted(&object) {
                return Err(gone());
            }
        }
        Ok(())
    }

    fn bound_object(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        let kind = self.own_kind("", resource).ok()?;
        parsed(&*self.stored(kind, namespace, name).ok()?).ok()
    }

    /// Whether the time of an object's deletion is past, by more than clocks may differ.
    fn was_deleted(&self, object: &Value) -> bool {
        let at = object["metadata"]["deletionTimestamp"].as_str();
        let at: Option<jiff::Timestamp> = at.and_then(|it| it.parse().ok());
        let leeway = jiff::SignedDuration::from_secs(60);
        at.is_some_and(|at| at.checked_add(leeway).is_ok_and(|it| it < self.now()))
    }

    /// The status of a `TokenReview`.
    pub(super) fn token_review(&self, review: &Value) -> Result<Value, ApiError> {
        let token = review["spec"]["token"].as_str().unwrap_or_default();
        if token.is_empty() {
            let message = "token is required for TokenReview in authentication";
            return Err(ApiError::bad_request(message));
        }
        let audiences: Vec<String> = crate::object::entries(&review["spec"]["audiences"])
            .iter()
            .filter_map(|it| it.as_str().map(str::to_owned))
            .collect();
        Ok(match self.token_user(token, &audiences) {
            Ok((user, audiences)) => {
                json!({"authenticated": true, "user": user.info(), "audiences": audiences})
            }
            Err(TokenError::Unknown) => json!({"user": {}, "error": "invalid bearer token"}),
            Err(error) => json!({"user": {}, "error": format!("[invalid bearer token, {error}]")}),
        })
    }
}

/// The token of a request; none if it has none or other credentials.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}
