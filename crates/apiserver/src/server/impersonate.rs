//! Impersonation: the `Impersonate-*` headers. Beside the verb `impersonate` there are upstream's constrained forms
//! (on by default since 1.36): `impersonate:MODE` on the user, with `impersonate-on:MODE:VERB` on the requested
//! resource.

use std::borrow::Cow;

use http::HeaderMap;

use super::ApiServer;
use crate::authentication::{User, service_account_groups, split_service_account};
use crate::authorization::{AuthorizationAttributes, RequestTarget, ResourceAttributes};
use crate::status::ApiError;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

/// The group of the constrained forms, of uids and of extras.
const AUTHENTICATION: &str = "authentication.k8s.io";

/// The extra field of a token's user that names the node of its pod.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// The user that a request is made as.
pub(super) struct EffectiveUser<'a> {
    pub user: Cow<'a, User>,
    /// Whether it differs from the user who sent it.
    pub is_impersonated: bool,
}

impl ApiServer {
    /// The user that a request is made as.
    ///
    /// # Errors
    ///
    /// When the headers contradict each other, or the sender may not impersonate.
    pub(super) fn effective_user<'a>(
        &self,
        attributes: &AuthorizationAttributes<'a>,
        headers: &HeaderMap,
    ) -> Result<EffectiveUser<'a>, ApiError> {
        let Some(wanted) = wanted(headers)? else {
            return Ok(EffectiveUser {
                user: Cow::Borrowed(attributes.user),
                is_impersonated: false,
            });
        };
        let mut first = None;
        for mode in modes(&wanted, attributes.user) {
            match self.act(attributes, &wanted, mode) {
                Ok(user) => {
                    return Ok(EffectiveUser { user: Cow::Owned(user), is_impersonated: true });
                }
                Err(error) => drop(first.get_or_insert(error)),
            }
        }
        Err(first.unwrap_or_else(ApiError::unauthorized))
    }

    /// The impersonated user, if this mode allows it to the sender.
    fn act(
        &self,
        attributes: &AuthorizationAttributes<'_>,
        wanted: &User,
        mode: Option<&str>,
    ) -> Result<User, ApiError> {
        let verb = match mode {
            None => "impersonate".to_owned(),
            Some(mode) => {
                let verb = format!("impersonate-on:{mode}:{}", attributes.verb);
                self.authorize(&AuthorizationAttributes { verb: &verb, ..*attributes })?;
                format!("impersonate:{mode}")
            }
        };
        let check = |group, resource, subresource, namespace, name| {
            let what = ResourceAttributes { group, resource, subresource, namespace, name };
            let what = RequestTarget::Resource(what);
            self.authorize(&AuthorizationAttributes { user: attributes.user, verb: &verb, what })
        };
        let mut user = wanted.clone();
        let group = if mode.is_some() { AUTHENTICATION } else { "" };
        if let (Some(node), true) = (node_of(&wanted.name), mode.is_some()) {
            let name = if mode == Some("associated-node") { "*" } else { node };
            check(group, "nodes", "", "", name)?;
            user.groups = vec!["system:nodes".to_owned()];
        } else if let Some((namespace, name)) = split_service_account(&wanted.name) {
            check(group, "serviceaccounts", "", namespace, name)?;
            if wanted.groups.is_empty() {
                user.groups = service_account_groups(namespace);
            }
        } else {
            check(group, "users", "", "", &wanted.name)?;
        }
        if !wanted.uid.is_empty() {
            check(AUTHENTICATION, "uids", "", "", &wanted.uid)?;
        }
        for name in &wanted.groups {
            check(group, "groups", "", "", name)?;
        }
        for (key, values) in &wanted.extra {
            for value in values {
                check(AUTHENTICATION, "userextras", key, "", value)?;
            }
        }
        user.add_authentication_group();
        Ok(user)
    }
}

/// The modes that apply, the most constrained first; none stands for the plain verb.
fn modes(wanted: &User, sender: &User) -> Vec<Option<&'static str>> {
    let is_plain = wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty();
    let mut modes = Vec::new();
    if let Some(node) = node_of(&wanted.name) {
        let own = sender.extra.get(NODE_NAME).is_some_and(|names| names == &[node]);
        if is_plain && own && split_service_account(&sender.name).is_some() {
            modes.push(Some("associated-node"));
        }
        modes.extend(is_plain.then_some(Some("arbitrary-node")));
    } else if split_service_account(&wanted.name).is_some() {
        modes.extend(is_plain.then_some(Some("serviceaccount")));
    } else {
        modes.push(Some("user-info"));
    }
    modes.push(None);
    modes
}

fn node_of(user: &str) -> Option<&str> {
    user.strip_prefix("system:node:").filter(|name| !name.is_empty())
}

/// The user that the headers name; none if there are no such headers.
fn wanted(headers: &HeaderMap) -> Result<Option<User>, ApiError> {
    let all = |name: &str| -> Vec<String> {
        let values = headers.get_all(name).iter();
        values.map(|it| String::from_utf8_lossy(it.as_bytes()).into_owned()).collect()
    };
    let first = |name: &str| all(name).into_iter().next().unwrap_or_default();
    let mut user =
        User { name: first(USER), uid: first(UID), groups: all(GROUP), ..User::default() };
    for name in headers.keys() {
        if let Some(key) = name.as_str().strip_prefix(EXTRA) {
            user.extra.insert(unescaped(key), all(name.as_str()));
        }
    }
    if !user.name.is_empty() {
        return Ok(Some(user));
    }
    if user == User::default() {
        return Ok(None);
    }
    Err(ApiError::bad_request(format!(
        "requested groups {:?}, uid {:?} and extra {:?} without impersonating a user name",
        user.groups, user.uid, user.extra
    )))
}

/// Header names cannot have every character: `%2f` stands for a slash.
fn unescaped(key: &str) -> String {
    let escaped = format!("x={}", key.replace('+', "%2B"));
    let pair = form_urlencoded::parse(escaped.as_bytes()).next();
    pair.map_or_else(String::new, |(_, value)| value.into_owned())
}
