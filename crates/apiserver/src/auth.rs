//! Who asks: users, and the tokens that stand for them.

mod jwt;
mod token_file;

use std::collections::BTreeMap;
#[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
use std::sync::{Mutex, MutexGuard};

use loadmaster_stdx::Map;
use serde_json::{Value, json};

pub use jwt::{Bound, Claims, ISSUER, KeyError, Ref, SigningKey, TokenError};
pub use token_file::{TokenFileError, read_token_file};

/// Nobody known.
const ANONYMOUS: &str = "system:anonymous";
const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// Who sends a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    /// May be empty.
    pub uid: String,
    pub groups: Vec<String>,
    /// What else is known, such as the pod a token was made for.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// Everything is allowed to them.
    pub fn admin() -> User {
        User::authenticated("kubernetes-admin", vec!["system:masters".to_owned()])
    }

    /// A known user; the group of all of them is added.
    pub fn authenticated(name: &str, mut groups: Vec<String>) -> User {
        groups.push(AUTHENTICATED.to_owned());
        User { name: name.to_owned(), groups, ..User::default() }
    }

    /// Nobody known.
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

    /// Whether nobody knows who this is.
    pub fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS
    }

    /// Adds the group of all known, or of all unknown users, if it is not there.
    pub fn add_group_of_all(&mut self) {
        let group = if self.is_anonymous() { UNAUTHENTICATED } else { AUTHENTICATED };
        let is_there = |group: &str| self.groups.iter().any(|it| it == group);
        if !is_there(group) && !is_there(UNAUTHENTICATED) {
            self.groups.push(group.to_owned());
        }
    }

    /// `authentication.k8s.io/v1` `UserInfo`.
    pub fn info(&self) -> Value {
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

/// Bearer tokens that are not signed, and whom they stand for.
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
