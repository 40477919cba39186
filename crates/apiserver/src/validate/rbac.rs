//! Validates roles and bindings.

use serde_json::{Value, json};

use super::names;
use crate::authorization::RBAC_GROUP;
use crate::object::list_entries;
use crate::status::Cause;

pub fn role(role: &Value, is_namespaced: bool, causes: &mut Vec<Cause>) {
    for (at, it) in list_entries(&role["rules"]).iter().enumerate() {
        rule(it, is_namespaced, &format!("rules[{at}]"), causes);
    }
    let aggregation = &role["aggregationRule"];
    if aggregation.is_object() && list_entries(&aggregation["clusterRoleSelectors"]).is_empty() {
        causes.push(Cause::required(
            "aggregationRule.clusterRoleSelectors",
            "at least one clusterRoleSelector required if aggregationRule is non-nil",
        ));
    }
}

fn rule(rule: &Value, is_namespaced: bool, path: &str, causes: &mut Vec<Cause>) {
    let is_empty = |field: &str| list_entries(&rule[field]).is_empty();
    if is_empty("verbs") {
        let detail = "verbs must contain at least one value";
        causes.push(Cause::required(format!("{path}.verbs"), detail));
    }
    let urls = &rule["nonResourceURLs"];
    if !list_entries(urls).is_empty() {
        let mut complain = |detail: &str| {
            causes.push(Cause::invalid(format!("{path}.nonResourceURLs"), urls, detail));
        };
        if is_namespaced {
            complain("namespaced rules cannot apply to non-resource URLs");
        }
        if ["apiGroups", "resources", "resourceNames"].iter().any(|field| !is_empty(field)) {
            complain("rules cannot apply to both regular resources and non-resource URLs");
        }
        return;
    }
    for (field, detail) in [
        ("apiGroups", "resource rules must supply at least one api group"),
        ("resources", "resource rules must supply at least one resource"),
    ] {
        if is_empty(field) {
            causes.push(Cause::required(format!("{path}.{field}"), detail));
        }
    }
}

pub fn binding(binding: &Value, is_namespaced: bool, causes: &mut Vec<Cause>) {
    let role = &binding["roleRef"];
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if role["apiGroup"] != RBAC_GROUP {
        let given = word(&role["apiGroup"]).into();
        causes.push(Cause::not_supported("roleRef.apiGroup", &given, &[RBAC_GROUP]));
    }
    let kinds: &[&str] = if is_namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    let kind = word(&role["kind"]);
    if !kinds.contains(&kind.as_str()) {
        causes.push(Cause::not_supported("roleRef.kind", &kind.into(), kinds));
    }
    let name = word(&role["name"]);
    if name.is_empty() {
        causes.push(Cause::required("roleRef.name", ""));
    } else {
        for complaint in names::path_segment(&name) {
            causes.push(Cause::invalid("roleRef.name", &role["name"], &complaint));
        }
    }
    for (at, it) in list_entries(&binding["subjects"]).iter().enumerate() {
        subject(it, is_namespaced, &format!("subjects[{at}]"), causes);
    }
}

fn subject(subject: &Value, is_namespaced: bool, path: &str, causes: &mut Vec<Cause>) {
    let word = |field: &str| subject[field].as_str().unwrap_or_default();
    let (name, group) = (word("name"), word("apiGroup"));
    if name.is_empty() {
        causes.push(Cause::required(format!("{path}.name"), ""));
    }
    match word("kind") {
        "ServiceAccount" => {
            if !name.is_empty() {
                for complaint in names::subdomain(name) {
                    causes.push(Cause::invalid(format!("{path}.name"), &name.into(), &complaint));
                }
            }
            if !group.is_empty() {
                let field = format!("{path}.apiGroup");
                causes.push(Cause::not_supported(field, &group.into(), &[""]));
            }
            if !is_namespaced && word("namespace").is_empty() {
                causes.push(Cause::required(format!("{path}.namespace"), ""));
            }
        }
        "User" | "Group" => {
            if group != RBAC_GROUP {
                let field = format!("{path}.apiGroup");
                causes.push(Cause::not_supported(field, &group.into(), &[RBAC_GROUP]));
            }
        }
        kind => causes.push(Cause::not_supported(
            format!("{path}.kind"),
            &kind.into(),
            &["ServiceAccount", "User", "Group"],
        )),
    }
}

/// The role of a binding is immutable.
pub fn binding_update(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    if old["roleRef"] != new["roleRef"] {
        // Upstream shows its internal form.
        let role = &new["roleRef"];
        let shown =
            json!({"APIGroup": role["apiGroup"], "Kind": role["kind"], "Name": role["name"]});
        causes.push(Cause::invalid("roleRef", &shown, "cannot change roleRef"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(causes: &[Cause], want: &[&str]) {
        let got: Vec<String> =
            causes.iter().map(|it| format!("{}: {}", it.field, it.message)).collect();
        assert_eq!(got, want);
    }

    #[test]
    fn roles() {
        let rules = json!([
            {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]},
            {"apiGroups": [""]},
            {"verbs": ["get"], "nonResourceURLs": ["/x"], "resources": ["pods"]},
        ]);
        let of = |is_namespaced| {
            let mut causes = Vec::new();
            role(&json!({"rules": rules, "aggregationRule": {}}), is_namespaced, &mut causes);
            causes
        };
        let want = [
            "rules[1].verbs: Required value: verbs must contain at least one value",
            "rules[1].resources: Required value: resource rules must supply at least one resource",
            r#"rules[2].nonResourceURLs: Invalid value: ["/x"]: namespaced rules cannot apply to non-resource URLs"#,
            r#"rules[2].nonResourceURLs: Invalid value: ["/x"]: rules cannot apply to both regular resources and non-resource URLs"#,
            "aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required if aggregationRule is non-nil",
        ];
        check(&of(true), &want);
        check(&of(false), &[want[0], want[1], want[3], want[4]]);
    }

    #[test]
    fn bindings() {
        let it = json!({"roleRef": {"apiGroup": RBAC_GROUP, "kind": "Role", "name": "r"}, "subjects": [
            {"kind": "User", "apiGroup": RBAC_GROUP, "name": "ann"},
            {"kind": "ServiceAccount", "name": "s", "apiGroup": "x"},
            {"kind": "Dog", "name": "d"},
            {"kind": "Group", "apiGroup": RBAC_GROUP},
        ]});
        let mut causes = Vec::new();
        binding(&it, false, &mut causes);
        check(
            &causes,
            &[
                r#"roleRef.kind: Unsupported value: "Role": supported values: "ClusterRole""#,
                r#"subjects[1].apiGroup: Unsupported value: "x": supported values: """#,
                "subjects[1].namespace: Required value",
                r#"subjects[2].kind: Unsupported value: "Dog": supported values: "ServiceAccount", "User", "Group""#,
                "subjects[3].name: Required value",
            ],
        );
        let mut causes = Vec::new();
        binding(&json!({"roleRef": {"kind": "Role", "name": ".."}}), true, &mut causes);
        check(
            &causes,
            &[
                r#"roleRef.apiGroup: Unsupported value: "": supported values: "rbac.authorization.k8s.io""#,
                r#"roleRef.name: Invalid value: "..": may not be '..'"#,
            ],
        );
    }
}
