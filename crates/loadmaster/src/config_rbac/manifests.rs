//! Roles, and their bindings to a ServiceAccount, as YAML documents.

use std::io::Write;

use loadmaster_framework::PolicyRule;
use loadmaster_stdx::ErrorChain;
use serde::Serialize;

use super::Permissions;
use crate::exit::{CommandResult, Failure};

/// The account that runs the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceAccount {
    namespace: String,
    name: String,
}

impl ServiceAccount {
    /// From `NAMESPACE/NAME`.
    pub fn parse(text: &str) -> Result<ServiceAccount, String> {
        match text.split_once('/') {
            Some((namespace, name))
                if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
            {
                Ok(ServiceAccount { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err("expected NAMESPACE/NAME".to_owned()),
        }
    }
}

/// The name of all roles and bindings, and the account that they are bound to.
pub(super) struct RoleNames<'a> {
    pub roles: &'a str,
    pub account: Option<&'a ServiceAccount>,
}

#[derive(Serialize)]
struct Metadata<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Object<'a> {
    api_version: &'a str,
    kind: &'a str,
    metadata: Metadata<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<&'a [PolicyRule]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    role_ref: Option<RoleRef<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subjects: Option<[Subject<'a>; 1]>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RoleRef<'a> {
    api_group: &'a str,
    kind: &'a str,
    name: &'a str,
}

#[derive(Serialize)]
struct Subject<'a> {
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
}

const RBAC_GROUP: &str = "rbac.authorization.k8s.io";
const RBAC_VERSION: &str = "rbac.authorization.k8s.io/v1";

const HEAD: &str = "# Written by `loadmaster config rbac`: the permissions that this configuration needs, and no others.";

/// Said when no account is given.
const UNBOUND: &str = "# Bind each role to the user or service account of the scheduler, or print the bindings, too, with --service-account.";

/// Writes the objects.
pub(super) fn write(
    permissions: &Permissions,
    names: &RoleNames<'_>,
    out: &mut dyn Write,
) -> CommandResult<()> {
    let mut objects = Vec::new();
    if let Some(ServiceAccount { namespace, name }) = names.account {
        objects.push(Object {
            api_version: "v1",
            ..object("ServiceAccount", name, Some(namespace.as_str()))
        });
    }
    push_role(&mut objects, names, None, &permissions.cluster);
    for (namespace, rules) in &permissions.namespaced {
        push_role(&mut objects, names, Some(namespace), rules);
    }
    writeln!(out, "{HEAD}")?;
    if names.account.is_none() {
        writeln!(out, "{UNBOUND}")?;
    }
    for (nth, object) in objects.iter().enumerate() {
        if nth > 0 {
            writeln!(out, "---")?;
        }
        let text = serde_saphyr::to_string(object)
            .map_err(|error| Failure::invalid_input(ErrorChain(&error)))?;
        writeln!(out, "{}", text.trim_end())?;
    }
    Ok(())
}

/// Adds a Role of a namespace, or a ClusterRole, and its binding if there is an account.
fn push_role<'a>(
    objects: &mut Vec<Object<'a>>,
    names: &RoleNames<'a>,
    namespace: Option<&'a str>,
    rules: &'a [PolicyRule],
) {
    let (role, binding) = match namespace {
        Some(_) => ("Role", "RoleBinding"),
        None => ("ClusterRole", "ClusterRoleBinding"),
    };
    objects.push(Object { rules: Some(rules), ..object(role, names.roles, namespace) });
    let Some(account) = names.account else { return };
    objects.push(Object {
        role_ref: Some(RoleRef { api_group: RBAC_GROUP, kind: role, name: names.roles }),
        subjects: Some([Subject {
            kind: "ServiceAccount",
            namespace: &account.namespace,
            name: &account.name,
        }]),
        ..object(binding, names.roles, namespace)
    });
}

fn object<'a>(kind: &'a str, name: &'a str, namespace: Option<&'a str>) -> Object<'a> {
    Object {
        api_version: RBAC_VERSION,
        kind,
        metadata: Metadata { name, namespace },
        rules: None,
        role_ref: None,
        subjects: None,
    }
}
