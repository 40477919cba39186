//! Who asks, and whether they may.

#[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
use std::sync::{Mutex, MutexGuard};

use loadmaster_stdx::Map;
use serde_json::{Value, json};

use crate::request::Target;
use crate::schema::Kind;
use crate::status::ApiError;

/// Who sends a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub groups: Vec<String>,
}

impl User {
    /// Everything is allowed to them.
    pub fn admin() -> User {
        User::authenticated("kubernetes-admin", vec!["system:masters".to_owned()])
    }

    /// A known user; the group of all of them is added.
    pub fn authenticated(name: &str, mut groups: Vec<String>) -> User {
        groups.push("system:authenticated".to_owned());
        User { name: name.to_owned(), groups }
    }

    /// Nobody known.
    pub fn anonymous() -> User {
        User {
            name: "system:anonymous".to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
        }
    }

    /// A service account.
    pub fn service_account(namespace: &str, name: &str) -> User {
        let groups = vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
        ];
        User::authenticated(&format!("system:serviceaccount:{namespace}:{name}"), groups)
    }

    /// `authentication.k8s.io/v1` `UserInfo`.
    pub fn info(&self) -> Value {
        json!({"username": self.name, "groups": self.groups})
    }
}

/// Bearer tokens and whom they stand for.
#[derive(Debug, Default)]
pub struct Tokens {
    #[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
    users: Mutex<Map<String, User>>,
}

impl Tokens {
    fn lock(&self) -> MutexGuard<'_, Map<String, User>> {
        self.users.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Accepts a token from now on.
    pub fn add(&self, token: &str, user: User) {
        self.lock().insert(token.to_owned(), user);
    }

    /// Whom a token stands for.
    pub fn user(&self, token: &str) -> Option<User> {
        self.lock().get(token).cloned()
    }
}

/// Decides whether a user may do something.
#[derive(Clone, Debug)]
pub enum Authorizer {
    /// Everybody who is known may do everything, and so may those let in without a name.
    AllowAll,
}

impl Authorizer {
    /// # Errors
    ///
    /// When the user may not.
    pub fn check(
        &self,
        _user: &User,
        _verb: &str,
        _kind: &Kind,
        _target: &Target,
    ) -> Result<(), ApiError> {
        match self {
            Authorizer::AllowAll => Ok(()),
        }
    }

    /// The status of an access review.
    pub fn review(&self, _user: &str, _spec: &Value) -> Value {
        match self {
            Authorizer::AllowAll => json!({"allowed": true}),
        }
    }
}
