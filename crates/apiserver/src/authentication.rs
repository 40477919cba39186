//! Authentication: users, static tokens and service account tokens.

mod jwt;
mod token_file;

use std::collections::BTreeMap;
#[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
use std::sync::{Mutex, MutexGuard};

use loadmaster_stdx::Map;
use serde_json::{Value, json};

pub use jwt::{BoundObjects, Claims, KeyError, ObjectRef, SigningKey, TOKEN_ISSUER, TokenError};
pub use token_file::{TokenFileError, read_token_file};

/// The anonymous user.
const ANONYMOUS: &str = "system:anonymous";
const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// The user of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    /// May be empty.
    pub uid: String,
    pub groups: Vec<String>,
    /// Such as the pod that a token is bound to.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// An administrator (`system:masters`).
    pub fn admin() -> User {
        User::authenticated("kubernetes-admin", vec!["system:masters".to_owned()])
    }

    /// An authenticated user, with the group `system:authenticated`.
    pub fn authenticated(name: &str, mut groups: Vec<String>) -> User {
        groups.push(AUTHENTICATED.to_owned());
        User { name: name.to_owned(), groups, ..User::default() }
    }

    /// The anonymous user.
    pub fn anonymous() -> User {
        User {
            name: ANONYMOUS.to_owned(),
            groups: vec![UNAUTHENTICATED.to_owned()],
            ..User::default()
        }
    }

    /// A service account.
    pub fn service_account(namespace: &str, name: &str) -> User {
        let groups = service_account_groups(namespace);
        User::authenticated(&format!("{SERVICE_ACCOUNT}{namespace}:{name}"), groups)
    }

    /// Whether this is `system:anonymous`.
    pub fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS
    }

    /// Adds the group `system:authenticated` or `system:unauthenticated`, if it is missing.
    pub fn add_authentication_group(&mut self) {
        let group = if self.is_anonymous() { UNAUTHENTICATED } else { AUTHENTICATED };
        let is_there = |group: &str| self.groups.iter().any(|it| it == group);
        if !is_there(group) && !is_there(UNAUTHENTICATED) {
            self.groups.push(group.to_owned());
        }
    }

    /// `authentication.k8s.io/v1` `UserInfo`.
    pub fn user_info(&self) -> Value {
        let mut info = json!({"username": self.name, "groups": self.groups});
        if !self.uid.is_empty() {
            info["uid"] = self.uid.as_str().into();
        }
        if !self.extra.is_empty() {
            info["extra"] = json!(self.extra);
        }
        info
    }
}

/// The groups of a service account in a namespace.
pub fn service_account_groups(namespace: &str) -> Vec<String> {
    vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")]
}

/// Namespace and name of a service account's user name.
pub fn split_service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT)?.split_once(':')?;
    let is_whole = !namespace.is_empty() && !name.is_empty() && !name.contains(':');
    is_whole.then_some((namespace, name))
}

/// Static bearer tokens and their users.
#[derive(Debug, Default)]
pub struct StaticTokens {
    #[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
    users: Mutex<Map<String, User>>,
}

impl StaticTokens {
    fn lock(&self) -> MutexGuard<'_, Map<String, User>> {
        self.users.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Accepts a token from now on.
    pub fn add(&self, token: &str, user: User) {
        self.lock().insert(token.to_owned(), user);
    }

    /// The user of a token.
    pub fn user(&self, token: &str) -> Option<User> {
        self.lock().get(token).cloned()
    }
}
