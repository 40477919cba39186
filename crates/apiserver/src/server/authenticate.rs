//! Authentication of requests: client certificates, bearer tokens, or anonymous.

use std::sync::Arc;

use http::{HeaderMap, header};
use serde_json::{Value, json};

use super::ApiServer;
use crate::authentication::{BoundObjects, Claims, ObjectRef, TOKEN_ISSUER, TokenError, User};
use crate::object::{metadata_text, parsed};
use crate::status::ApiError;

/// How many verified tokens are cached, so that the signature of a client's next request need not be verified again.
const N_VERIFIED_MAX: usize = 4_096;

impl ApiServer {
    /// The user of a request with these headers for a path. `certificate` is the user of a verified client
    /// certificate.
    ///
    /// # Errors
    ///
    /// 401 when the credentials are invalid, or missing where they are required.
    pub fn authenticate(
        &self,
        certificate: Option<User>,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<User, ApiError> {
        if let Some(user) = certificate {
            return Ok(user);
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

    /// The user of a token, and the audiences it is valid for. Without audiences, the server's own is meant.
    pub(super) fn token_user(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<(User, Vec<String>), TokenError> {
        let own = [TOKEN_ISSUER.to_owned()];
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
                found: crate::authorization::quoted_list(&claims.audiences),
                wanted: crate::authorization::quoted_list(wanted),
            });
        }
        self.check_bound(&claims.kubernetes)?;
        Ok((claims.user(), audiences))
    }

    /// The claims of a signed token. A signature is verified once.
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

    /// Rejects a token whose service account or bound object is deleted.
    fn check_bound(&self, bound: &BoundObjects) -> Result<(), TokenError> {
        let BoundObjects { namespace, node, pod, secret, serviceaccount } = bound;
        let account = self.bound_object("serviceaccounts", namespace, &serviceaccount.name);
        let account = account.ok_or_else(|| {
            TokenError::Bound(format!("serviceaccounts {:?} not found", serviceaccount.name))
        })?;
        let (found, claimed) = (metadata_text(&account, "uid"), &serviceaccount.uid);
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
            let Some(ObjectRef { name, uid }) = it else { continue };
            let deleted_error =
                || TokenError::Bound("service account token has been invalidated".to_owned());
            let object = self.bound_object(resource, namespace, name).ok_or_else(deleted_error)?;
            let found = metadata_text(&object, "uid");
            if found != uid {
                let title = format!("{}{}", kind[..1].to_uppercase(), &kind[1..]);
                return Err(TokenError::Bound(format!(
                    "{title} UID ({found}) does not match service account {kind} ref claim ({uid})"
                )));
            }
            if self.was_deleted(&object) {
                return Err(deleted_error());
            }
        }
        Ok(())
    }

    fn bound_object(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        let kind = self.own_kind("", resource).ok()?;
        parsed(&*self.get_object(kind, namespace, name).ok()?).ok()
    }

    /// Whether an object's deletion timestamp has passed by more than the allowed clock skew.
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
        let audiences: Vec<String> = crate::object::list_entries(&review["spec"]["audiences"])
            .iter()
            .filter_map(|it| it.as_str().map(str::to_owned))
            .collect();
        Ok(match self.token_user(token, &audiences) {
            Ok((user, audiences)) => {
                json!({"authenticated": true, "user": user.user_info(), "audiences": audiences})
            }
            Err(TokenError::Unknown) => json!({"user": {}, "error": "invalid bearer token"}),
            Err(error) => json!({"user": {}, "error": format!("[invalid bearer token, {error}]")}),
        })
    }
}

/// The bearer token of a request, if any.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}
