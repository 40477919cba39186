//! The permissions that a plugin and its service need.

use serde::Serialize;

/// A rule of a ClusterRole, as `rbac.authorization.k8s.io/v1`: every combination of group, resource and verb is allowed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyRule {
    /// API groups; `""` is the core group.
    pub api_groups: Vec<String>,
    /// Resources, such as `pods` or `pods/status`.
    pub resources: Vec<String>,
    /// The names of the objects; empty for all. The verbs `create`, `list`, `watch` and `deletecollection` cannot be restricted by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    /// Verbs, such as `get` or `patch`.
    pub verbs: Vec<String>,
}

impl PolicyRule {
    /// A rule for all objects of resources.
    pub fn new(api_groups: &[&str], resources: &[&str], verbs: &[&str]) -> PolicyRule {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        PolicyRule {
            api_groups: owned(api_groups),
            resources: owned(resources),
            resource_names: Vec::new(),
            verbs: owned(verbs),
        }
    }

    /// The rule for objects of these names only.
    #[must_use]
    pub fn with_resource_names(self, names: &[&str]) -> PolicyRule {
        PolicyRule { resource_names: names.iter().map(|name| (*name).to_owned()).collect(), ..self }
    }

    /// Why an API server would reject the rule, or read another meaning into it.
    pub(crate) fn check(&self) -> Result<(), String> {
        let lists = [
            ("no API groups", &self.api_groups),
            ("no resources", &self.resources),
            ("no verbs", &self.verbs),
        ];
        match lists.iter().find(|(_, list)| list.is_empty()) {
            Some((missing, _)) => Err(format!("a rule with {missing}")),
            None if self.resources.iter().chain(&self.verbs).any(String::is_empty) => {
                Err("a rule with an empty resource or verb".to_owned())
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_serialized_as_in_a_cluster_role() {
        let rule = PolicyRule::new(&["example.com"], &["podgroups/status"], &["patch"]);
        let json = |rule: &PolicyRule| serde_json::to_string(rule).unwrap();
        let want =
            r#"{"apiGroups":["example.com"],"resources":["podgroups/status"],"verbs":["patch"]}"#;
        assert_eq!(json(&rule), want);
        let named = rule.with_resource_names(&["a"]);
        assert!(json(&named).contains(r#""resourceNames":["a"]"#));
    }

    #[test]
    fn incomplete_rules_are_invalid() {
        #[track_caller]
        fn check(rule: &PolicyRule, want: Result<(), &str>) {
            assert_eq!(rule.check(), want.map_err(str::to_owned));
        }
        check(&PolicyRule::new(&[""], &["pods"], &["get"]), Ok(()));
        check(&PolicyRule::new(&[], &["pods"], &["get"]), Err("a rule with no API groups"));
        check(&PolicyRule::new(&[""], &[], &["get"]), Err("a rule with no resources"));
        check(&PolicyRule::new(&[""], &["pods"], &[]), Err("a rule with no verbs"));
        let empty = Err("a rule with an empty resource or verb");
        check(&PolicyRule::new(&[""], &["pods"], &[""]), empty);
    }
}
