//! A rule of a role: what it allows.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::{AuthorizationAttributes, RequestTarget};

const ALL: &str = "*";

/// What a role allows (`rbac.authorization.k8s.io/v1` `PolicyRule`). Empty lists allow nothing, but for names.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicyRule {
    #[serde(deserialize_with = "list")]
    pub verbs: Vec<String>,
    #[serde(deserialize_with = "list")]
    pub api_groups: Vec<String>,
    #[serde(deserialize_with = "list")]
    pub resources: Vec<String>,
    /// Empty for all.
    #[serde(deserialize_with = "list")]
    pub resource_names: Vec<String>,
    #[serde(deserialize_with = "list", rename = "nonResourceURLs")]
    pub non_resource_urls: Vec<String>,
}

fn list<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

impl PolicyRule {
    /// Whether a request is allowed by this rule.
    pub fn allows(&self, attributes: &AuthorizationAttributes<'_>) -> bool {
        if !has_or_all(&self.verbs, attributes.verb) {
            return false;
        }
        let it = match attributes.what {
            RequestTarget::Path(path) => {
                return self.non_resource_urls.iter().any(|it| fits(it, path));
            }
            RequestTarget::Resource(it) => it,
        };
        has_or_all(&self.api_groups, it.group)
            && self.resources.iter().any(|rule| names(rule, it.resource, it.subresource))
            && (self.resource_names.is_empty() || self.resource_names.iter().any(|n| n == it.name))
    }

    /// What it says of resources, or of paths, as a review lists it: empty lists are left out but for the verbs.
    pub fn to_review_json(&self, of_paths: bool) -> Value {
        let mut value = Map::new();
        value.insert("verbs".to_owned(), json!(self.verbs));
        let resources = [
            ("apiGroups", &self.api_groups),
            ("resources", &self.resources),
            ("resourceNames", &self.resource_names),
        ];
        let paths = [("nonResourceURLs", &self.non_resource_urls)];
        let lists = if of_paths { &paths[..] } else { &resources[..] };
        for (name, list) in lists.iter().filter(|(_, list)| !list.is_empty()) {
            value.insert((*name).to_owned(), json!(list));
        }
        Value::Object(value)
    }

    /// As messages show a rule.
    pub fn compact(&self) -> String {
        let lists = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ];
        let shown = lists.iter().filter(|(_, list)| !list.is_empty());
        let parts: Vec<String> =
            shown.map(|(name, list)| format!("{name}:{}", quoted_list(list))).collect();
        format!("{{{}}}", parts.join(", "))
    }
}

/// A list as Go's `%q` prints it.
pub fn quoted_list(list: &[String]) -> String {
    let words: Vec<String> = list.iter().map(|it| format!("{it:?}")).collect();
    format!("[{}]", words.join(" "))
}

pub(super) fn has_or_all(list: &[String], wanted: &str) -> bool {
    list.iter().any(|it| it == ALL || it == wanted)
}

/// Whether a rule's resource, such as `pods/status`, `*/scale` or `*`, names a resource.
fn names(rule: &str, resource: &str, subresource: &str) -> bool {
    if rule == ALL {
        return true;
    }
    match rule.split_once('/') {
        None => subresource.is_empty() && rule == resource,
        Some((first, rest)) => {
            !subresource.is_empty() && rest == subresource && (first == ALL || first == resource)
        }
    }
}

/// Whether a rule's path, which may end with a star, covers a path.
pub(super) fn fits(rule: &str, path: &str) -> bool {
    rule == path || (rule.ends_with('*') && path.starts_with(rule.trim_end_matches('*')))
}
