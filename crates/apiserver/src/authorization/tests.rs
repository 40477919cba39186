use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::object::draft;
use crate::schema::Kinds;
use crate::store::{Filter, ListOptions, Precondition, Store, StoreLimits};

fn resource<'a>(path: &'a str, namespace: &'a str, name: &'a str) -> RequestTarget<'a> {
    let (group, path) = path.split_once(':').unwrap_or(("", path));
    let (resource, subresource) = path.split_once('/').unwrap_or((path, ""));
    RequestTarget::Resource(ResourceAttributes { group, resource, subresource, namespace, name })
}

fn user(name: &str, groups: &[&str]) -> User {
    User::authenticated(name, groups.iter().map(|&it| it.to_owned()).collect())
}

#[track_caller]
fn allows(rule: &Value, cases: &[(&str, RequestTarget<'_>, bool)]) {
    let rule: PolicyRule = serde_json::from_value(rule.clone()).expect("a rule");
    let user = user("ann", &[]);
    for (verb, what, want) in cases {
        let attributes = AuthorizationAttributes { user: &user, verb, what: *what };
        assert_eq!(rule.allows(&attributes), *want, "{verb} {what:?}");
    }
}

#[test]
fn rules_of_resources() {
    let rule = json!({"verbs": ["get", "list"], "apiGroups": ["", "apps"],
        "resources": ["pods", "pods/log", "*/scale"]});
    allows(
        &rule,
        &[
            ("get", resource("pods", "a", "b"), true),
            ("list", resource("apps:pods", "", ""), true),
            ("create", resource("pods", "a", ""), false),
            ("get", resource("batch:pods", "a", "b"), false),
            ("get", resource("pods/log", "a", "b"), true),
            ("get", resource("pods/status", "a", "b"), false),
            ("get", resource("deployments/scale", "a", "b"), true),
            ("get", resource("scale", "a", "b"), false),
            ("get", RequestTarget::Path("/pods"), false),
        ],
    );
    let rule = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"],
        "resourceNames": ["b"]});
    allows(
        &rule,
        &[
            ("get", resource("x:pods/log", "a", "b"), true),
            ("get", resource("pods", "a", "c"), false),
            ("list", resource("pods", "a", ""), false),
        ],
    );
}

#[test]
fn rules_of_paths() {
    let rule = json!({"verbs": ["get"], "nonResourceURLs": ["/healthz", "/api/*"]});
    allows(
        &rule,
        &[
            ("get", RequestTarget::Path("/healthz"), true),
            ("get", RequestTarget::Path("/healthz/ping"), false),
            ("get", RequestTarget::Path("/api/v1"), true),
            ("get", RequestTarget::Path("/api"), false),
            ("post", RequestTarget::Path("/healthz"), false),
            ("get", resource("pods", "", ""), false),
        ],
    );
}

/// The policy of these objects, each with its resource.
fn policy(objects: &[(&str, Value)]) -> RbacPolicy {
    let mut store = Store::new(StoreLimits::default());
    let kinds = Kinds::new(&mut store, &[]);
    let kind = |resource: &str| kinds.find_stable(RBAC_GROUP, resource).expect("a kind");
    let table = |resource: &str| kind(resource).table.expect("a table");
    for (resource, value) in objects {
        let draft = draft(kind(resource), value).expect("an object");
        store.put(table(resource), Precondition::Absent, draft).expect("is new");
    }
    RbacPolicy::read(&RbacPolicy::default(), [1; 4], |wanted| {
        let (_, resource) = RbacTable::ALL[wanted as usize];
        let page = store.list(table(resource), &ListOptions::default(), &Filter::everything());
        page.expect("readable").objects.iter().map(Arc::clone).collect()
    })
}

fn binding(namespace: &str, name: &str, role: (&str, &str), subjects: Value) -> Value {
    let (kind, role) = role;
    json!({"metadata": {"name": name, "namespace": namespace}, "subjects": subjects,
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": kind, "name": role}})
}

fn small() -> RbacPolicy {
    let rule = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
    let role =
        |namespace: &str| json!({"metadata": {"name": "r", "namespace": namespace}, "rules": rule});
    policy(&[
        ("clusterroles", role("")),
        ("roles", role("a")),
        (
            "clusterrolebindings",
            binding("", "all", ("ClusterRole", "r"), json!([{"kind": "Group", "name": "g"}])),
        ),
        (
            "clusterrolebindings",
            binding("", "lost", ("ClusterRole", "no"), json!([{"kind": "User", "name": "lost"}])),
        ),
        (
            "rolebindings",
            binding(
                "a",
                "some",
                ("Role", "r"),
                json!([{"kind": "User", "name": "x"}, {"kind": "ServiceAccount", "name": "s"}]),
            ),
        ),
    ])
}

#[track_caller]
fn decides(who: &User, namespace: &str, allowed: bool, reason: &str) {
    let attributes =
        AuthorizationAttributes { user: who, verb: "get", what: resource("pods", namespace, "p") };
    let decision = authorize_by_rbac(&small(), &attributes);
    assert_eq!((decision.is_allowed(), decision.reason()), (allowed, reason));
}

#[test]
fn decisions_say_why() {
    decides(&user("ann", &["system:masters"]), "a", true, "");
    let why = r#"RBAC: allowed by ClusterRoleBinding "all" of ClusterRole "r" to Group "g""#;
    decides(&user("ann", &["g"]), "", true, why);
    let account = User::service_account("a", "s");
    let why = r#"RBAC: allowed by RoleBinding "some/a" of Role "r" to ServiceAccount "s/a""#;
    decides(&account, "a", true, why);
    decides(&account, "b", false, "");
    decides(&account, "", false, "");
    decides(&User::service_account("b", "s"), "a", false, "");
    let why = r#"RBAC: clusterrole.rbac.authorization.k8s.io "no" not found"#;
    decides(&user("lost", &[]), "a", false, why);
}

#[track_caller]
fn refuses(verb: &str, what: RequestTarget<'_>, reason: &str, want: &str) {
    let user = user("a<b", &[]);
    let error = AuthorizationAttributes { user: &user, verb, what }.forbidden(reason);
    assert_eq!((error.code, error.message.as_str()), (403, want));
}

#[test]
fn forbidden_messages_equal_upstreams() {
    refuses(
        "list",
        resource("pods", "a", ""),
        "",
        r#"pods is forbidden: User "a&lt;b" cannot list resource "pods" in API group "" in the namespace "a""#,
    );
    refuses(
        "patch",
        resource("apps:deployments/scale", "", "d"),
        "RBAC: x",
        r#"deployments.apps "d" is forbidden: User "a&lt;b" cannot patch resource "deployments/scale" in API group "apps" at the cluster scope: RBAC: x"#,
    );
    refuses(
        "get",
        RequestTarget::Path("/x"),
        "",
        r#"forbidden: User "a&lt;b" cannot get path "/x""#,
    );
}

#[track_caller]
fn lacks(owned: Value, wanted: Value, want: &[&str]) {
    let rules = |value: Value| -> Vec<PolicyRule> { serde_json::from_value(value).expect("rules") };
    assert_eq!(missing_rights(&rules(owned), &rules(wanted)), want);
}

#[test]
fn missing_rights_are_listed() {
    let pods = |verbs: &[&str]| json!([{"verbs": verbs, "apiGroups": [""], "resources": ["pods"]}]);
    lacks(pods(&["get", "list"]), pods(&["list"]), &[]);
    lacks(
        pods(&["get"]),
        pods(&["get", "list", "watch"]),
        &[r#"{APIGroups:[""], Resources:["pods"], Verbs:["list" "watch"]}"#],
    );
    lacks(
        json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*/log", "pods"]}]),
        json!([{"verbs": ["get"], "apiGroups": ["x"], "resources": ["pods/log", "nodes", "pods"],
            "resourceNames": ["n"]}]),
        &[r#"{APIGroups:["x"], Resources:["nodes"], ResourceNames:["n"], Verbs:["get"]}"#],
    );
    lacks(
        json!([{"verbs": ["get"], "nonResourceURLs": ["/a/*"]}]),
        json!([{"verbs": ["get"], "nonResourceURLs": ["/a/b", "/c"]}]),
        &[r#"{NonResourceURLs:["/c"], Verbs:["get"]}"#],
    );
    let named = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"],
        "resourceNames": ["n"]}]);
    lacks(named, pods(&["get"]), &[r#"{APIGroups:[""], Resources:["pods"], Verbs:["get"]}"#]);
}

#[test]
fn every_line_of_the_bootstrap_policy_is_parsed() {
    let all = bootstrap_objects();
    let count = |resource: &str| all.iter().filter(|it| it.resource == resource).count();
    let text = include_str!("bootstrap.txt");
    for (word, resource) in [
        ("clusterrole ", "clusterroles"),
        ("clusterrolebinding ", "clusterrolebindings"),
        ("role ", "roles"),
        ("rolebinding ", "rolebindings"),
    ] {
        let n = text.lines().filter(|line| line.starts_with(word)).count();
        assert_eq!(count(resource), n, "{resource}");
    }
    let n_rules: usize =
        all.iter().map(|it| crate::object::list_entries(&it.value["rules"]).len()).sum();
    assert_eq!(n_rules, text.lines().filter(|line| line.starts_with("  rule ")).count());
    let n = all
        .iter()
        .map(|it| crate::object::list_entries(&it.value["subjects"]).len())
        .sum::<usize>();
    assert_eq!(n, text.lines().filter(|line| line.starts_with("  subject ")).count());
}

#[test]
fn roles_are_aggregated() {
    let rule = |verb: &str| json!({"verbs": [verb]});
    let role = |name: &str, label: &str, rules: Value| json!({"metadata": {"name": name, "labels": {label: "true"}}, "rules": rules});
    let mut all = role("sum", "x", json!([]));
    all["aggregationRule"] = json!({"clusterRoleSelectors": [
        {"matchLabels": {"x": "true"}}, {"matchLabels": {"y": "true"}}]});
    let roles = [
        role("a", "x", json!([rule("get")])),
        role("b", "y", json!([rule("list"), rule("get")])),
        role("c", "z", json!([rule("watch")])),
        all.clone(),
    ];
    assert_eq!(aggregated_rules(&all, &roles), Some(json!([rule("get"), rule("list")])));
    assert_eq!(aggregated_rules(&roles[0], &roles), None);
}
