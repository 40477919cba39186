//! Who may do what: roles, bindings, tokens, acting as others, limits, and what is written down about it.

use std::sync::atomic::Ordering;

use expect_test::{Expect, expect};
use http::{HeaderMap, Method, header};
use loadmaster_apiserver::authentication::User;
use loadmaster_apiserver::authorization::AuthorizationMode;
use loadmaster_apiserver::store::StoreLimits;
use loadmaster_apiserver::{AdmissionPlugins, ClusterOptions};
use serde_json::{Value, json};

use super::testkit::{Bench, JSON, bytes, said, send_as, text};

mod admission;
mod audit;
mod certificates;
mod tokens;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

fn cluster() -> Bench {
    with(ClusterOptions { mode: AuthorizationMode::Rbac, ..ClusterOptions::default() })
}

fn with(setup: ClusterOptions) -> Bench {
    Bench::new(StoreLimits::default(), setup)
}

impl Bench {
    fn send(
        &self,
        user: &User,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> (u16, Value) {
        let form = [("content-type", JSON)];
        let response =
            send_as(&self.server, user, method, path, &[&form, headers].concat(), text(body));
        let code = response.status().as_u16();
        (code, serde_json::from_slice(&bytes(response)).unwrap_or(Value::Null))
    }

    /// Does something as administrator.
    #[track_caller]
    fn make(&self, path: &str, value: Value) -> Value {
        let (code, value) = self.send(&User::admin(), Method::POST, path, &[], &value);
        assert_eq!(code, 201, "{value}");
        value
    }

    fn get_as(&self, user: &User, path: &str) -> (u16, Value) {
        self.send(user, Method::GET, path, &[], &Value::Null)
    }

    #[track_caller]
    fn check(&self, user: &User, method: Method, path: &str, body: Value, want: &Expect) {
        self.check_with(user, method, path, &[], body, want);
    }

    #[track_caller]
    fn check_with(
        &self,
        user: &User,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Value,
        want: &Expect,
    ) {
        want.assert_eq(&said(self.send(user, method, path, headers, &body)));
    }

    fn grant(&self, name: &str, rules: Value) {
        self.make(
            &format!("{RBAC}/clusterroles"),
            json!({"metadata": {"name": name}, "rules": rules}),
        );
        self.bind("clusterrolebindings", "ClusterRole", name, name);
    }

    /// Gives a role to the user of the binding's name.
    fn bind(&self, resource: &str, kind: &str, role: &str, user: &str) {
        let path = match resource {
            "rolebindings" => format!("{RBAC}/namespaces/default/rolebindings"),
            _ => format!("{RBAC}/{resource}"),
        };
        self.make(
            &path,
            json!({"metadata": {"name": format!("{role}-{user}")},
            "subjects": [{"kind": "User", "name": user}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}}),
        );
    }
}

fn ann() -> User {
    User::authenticated("ann", Vec::new())
}

fn rule(verbs: &[&str], group: &str, resources: &[&str]) -> Value {
    json!({"verbs": verbs, "apiGroups": [group], "resources": resources})
}

#[test]
fn requests_without_a_matching_role_are_forbidden() {
    let cluster = cluster();
    let check = |method, path: &str, want: Expect| {
        cluster.check(&ann(), method, path, Value::Null, &want);
    };
    check(
        Method::GET,
        "/api/v1/namespaces/default/pods",
        expect![[
            r#"403 Forbidden: pods is forbidden: User "ann" cannot list resource "pods" in API group "" in the namespace "default""#
        ]],
    );
    check(
        Method::GET,
        "/api/v1/namespaces/default",
        expect![[
            r#"403 Forbidden: namespaces "default" is forbidden: User "ann" cannot get resource "namespaces" in API group "" in the namespace "default""#
        ]],
    );
    check(
        Method::DELETE,
        "/apis/apps/v1/deployments",
        expect![[
            r#"403 Forbidden: deployments.apps is forbidden: User "ann" cannot deletecollection resource "deployments" in API group "apps" at the cluster scope"#
        ]],
    );
    check(
        Method::GET,
        "/apis/nope/v1/nopes/x",
        expect![[
            r#"403 Forbidden: nopes.nope "x" is forbidden: User "ann" cannot get resource "nopes" in API group "nope" at the cluster scope"#
        ]],
    );
    check(
        Method::GET,
        "/metrics",
        expect![[r#"403 Forbidden: forbidden: User "ann" cannot get path "/metrics""#]],
    );
    let (code, status) = cluster.get_as(&ann(), "/api/v1/nodes/n");
    assert_eq!((code, &status["details"]), (403, &json!({"name": "n", "kind": "nodes"})));
    // All authenticated users may read discovery, and anonymous ones health.
    for path in ["/api", "/apis/apps/v1", "/openapi/v3", "/version"] {
        assert_eq!(cluster.get_as(&ann(), path).0, 200, "{path}");
    }
    assert_eq!(cluster.get_as(&User::anonymous(), "/readyz").0, 200);
    assert_eq!(cluster.get_as(&User::anonymous(), "/api").0, 403);
}

#[test]
fn roles_take_effect_at_once() {
    let cluster = cluster();
    let list = "/api/v1/namespaces/default/pods";
    cluster.bind("rolebindings", "ClusterRole", "view", "ann");
    assert_eq!(cluster.get_as(&ann(), list).0, 200);
    assert_eq!(cluster.get_as(&ann(), "/api/v1/namespaces/kube-system/pods").0, 403);
    assert_eq!(cluster.get_as(&ann(), "/api/v1/namespaces/default/secrets").0, 403);
    let binding = format!("{RBAC}/namespaces/default/rolebindings/view-ann");
    assert_eq!(cluster.send(&User::admin(), Method::DELETE, &binding, &[], &Value::Null).0, 200);
    assert_eq!(cluster.get_as(&ann(), list).0, 403);
    // A collection that is limited to one name is that object's matter.
    let mut one = rule(&["list", "watch"], "", &["configmaps"]);
    one["resourceNames"] = json!(["m"]);
    cluster.grant("ann", json!([one]));
    let maps = "/api/v1/configmaps";
    assert_eq!(cluster.get_as(&ann(), maps).0, 403);
    assert_eq!(cluster.get_as(&ann(), &format!("{maps}?fieldSelector=metadata.name=m")).0, 200);
    assert_eq!(cluster.get_as(&ann(), &format!("{maps}?fieldSelector=metadata.name=n")).0, 403);
}

#[test]
fn aggregated_roles_follow_the_selected_roles() {
    let cluster = cluster();
    let role =
        |name: &str| cluster.get_as(&User::admin(), &format!("{RBAC}/clusterroles/{name}")).1;
    let n_rules = |name: &str| role(name)["rules"].as_array().map_or(0, Vec::len);
    let (view, edit, admin) = (n_rules("view"), n_rules("edit"), n_rules("admin"));
    assert!(view > 5 && edit > view && admin > edit, "{view} {edit} {admin}");
    let label = "rbac.authorization.k8s.io/aggregate-to-view";
    cluster.make(
        &format!("{RBAC}/clusterroles"),
        json!({
        "metadata": {"name": "things", "labels": {label: "true"}},
        "rules": [rule(&["get"], "example.com", &["things"])]}),
    );
    assert_eq!(
        (n_rules("view"), n_rules("edit"), n_rules("admin")),
        (view + 1, edit + 1, admin + 1)
    );
    let path = format!("{RBAC}/clusterroles/things");
    cluster.send(&User::admin(), Method::DELETE, &path, &[], &Value::Null);
    assert_eq!(n_rules("admin"), admin);
}

#[test]
fn privilege_escalation_is_rejected() {
    let cluster = cluster();
    let own = rule(
        &["get", "create", "update"],
        "rbac.authorization.k8s.io",
        &["roles", "rolebindings", "clusterroles"],
    );
    cluster.grant("ann", json!([own, rule(&["get"], "", &["pods"])]));
    let roles = format!("{RBAC}/namespaces/default/roles");
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    let role = |name: &str, verbs: &[&str]| json!({"metadata": {"name": name}, "rules": [rule(verbs, "", &["pods"])]});
    let binding = |kind: &str, role: &str| {
        json!({"metadata": {"name": role},
        "subjects": [{"kind": "User", "name": "bob"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}})
    };
    let check = |path: &str, value: Value, want: Expect| {
        cluster.check(&ann(), Method::POST, path, value, &want);
    };
    check(&roles, role("held", &["get"]), expect!["201 : "]);
    check(
        &roles,
        role("more", &["get", "list", "watch"]),
        expect![[r#"
        403 Forbidden: roles.rbac.authorization.k8s.io "more" is forbidden: user "ann" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:
        {APIGroups:[""], Resources:["pods"], Verbs:["list" "watch"]}"#]],
    );
    check(&bindings, binding("Role", "held"), expect!["201 : "]);
    check(
        &bindings,
        binding("Role", "no"),
        expect![[r#"404 NotFound: rolebindings.rbac.authorization.k8s.io "no" not found"#]],
    );
    let (code, _) = cluster.send(
        &ann(),
        Method::POST,
        &bindings,
        &[],
        &binding("ClusterRole", "cluster-admin"),
    );
    assert_eq!(code, 403);
    check(
        &format!("{RBAC}/clusterroles"),
        json!({"metadata": {"name": "all"},
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}}),
        expect![[
            r#"403 Forbidden: clusterroles.rbac.authorization.k8s.io "all" is forbidden: must have cluster-admin privileges to use the aggregationRule"#
        ]],
    );
    // An update may not add rights, either; one that changes owners only may be anybody's.
    let mut held = cluster.get_as(&User::admin(), &format!("{roles}/held")).1;
    held["rules"][0]["verbs"] = json!(["delete"]);
    let (code, _) = cluster.send(&ann(), Method::PUT, &format!("{roles}/held"), &[], &held);
    assert_eq!(code, 403);
    let path = format!("{roles}/more");
    cluster.make(&roles, role("more", &["delete"]));
    let mut more = cluster.get_as(&User::admin(), &path).1;
    more["metadata"]["finalizers"] = json!(["example.com/x"]);
    assert_eq!(cluster.send(&ann(), Method::PUT, &path, &[], &more).0, 200);
    // The verbs escalate and bind are for those who shall.
    cluster.grant(
        "root",
        json!([rule(&["create", "escalate", "bind"], "rbac.authorization.k8s.io", &["*"])]),
    );
    let root = User::authenticated("root", Vec::new());
    for (path, value) in
        [(&roles, role("any", &["*"])), (&bindings, binding("ClusterRole", "cluster-admin"))]
    {
        assert_eq!(cluster.send(&root, Method::POST, path, &[], &value).0, 201);
    }
}

#[test]
fn access_reviews_agree_with_authorization() {
    let cluster = cluster();
    cluster.bind("rolebindings", "ClusterRole", "view", "ann");
    let ask = |path: &str, spec: Value| -> Value {
        let path = format!("/apis/authorization.k8s.io/v1/{path}");
        let (code, review) = cluster.send(&ann(), Method::POST, &path, &[], &json!({"spec": spec}));
        assert_eq!(code, 201, "{review}");
        review["status"].clone()
    };
    let pods = |verb: &str| json!({"resourceAttributes": {"verb": verb, "resource": "pods", "namespace": "default"}});
    assert_eq!(
        ask("selfsubjectaccessreviews", pods("list")),
        json!({"allowed": true,
        "reason": r#"RBAC: allowed by RoleBinding "view-ann/default" of ClusterRole "view" to User "ann""#})
    );
    assert_eq!(ask("selfsubjectaccessreviews", pods("delete")), json!({"allowed": false}));
    let path = json!({"nonResourceAttributes": {"verb": "get", "path": "/healthz"}});
    assert_eq!(ask("selfsubjectaccessreviews", path)["allowed"], true);
    let rules = ask("selfsubjectrulesreviews", json!({"namespace": "default"}));
    let listed = rules["resourceRules"].as_array().expect("rules");
    assert!(listed.iter().any(|it| it["resources"] == json!(["selfsubjectreviews"])));
    assert!(
        rules["nonResourceRules"]
            .as_array()
            .expect("rules")
            .iter()
            .all(|it| it["resources"].is_null())
    );
    // Others are asked about by those who may.
    let about = |user: &str| {
        json!({"spec": {"user": user, "groups": ["system:authenticated"],
        "resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}}})
    };
    let reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let review = |user: &str| cluster.make(reviews, about(user))["status"]["allowed"].clone();
    assert_eq!((review("ann"), review("bob")), (true.into(), false.into()));
    cluster.check(&User::admin(), Method::POST, reviews, json!({"spec": {}}), &expect![[r#"422 Invalid: .authorization.k8s.io "" is invalid: [spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified, spec.user: Invalid value: "": at least one of user or group must be specified]"#]]);
    let local = "/apis/authorization.k8s.io/v1/namespaces/kube-system/localsubjectaccessreviews";
    cluster.check(&User::admin(), Method::POST, local, about("ann"), &expect![[r#"422 Invalid: .authorization.k8s.io "" is invalid: spec.resourceAttributes.namespace: Invalid value: "default": must match metadata.namespace"#]]);
}

#[test]
fn impersonation() {
    let cluster = cluster();
    let review = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let act = |user: &User, headers: &[(&str, &str)]| {
        cluster.send(user, Method::POST, review, headers, &json!({}))
    };
    let (_, answer) = act(
        &User::admin(),
        &[
            ("Impersonate-User", "bob"),
            ("Impersonate-Group", "g"),
            ("Impersonate-Group", "h"),
            ("Impersonate-Uid", "7"),
            ("Impersonate-Extra-example.com%2fScope", "x"),
        ],
    );
    assert_eq!(
        answer["status"]["userInfo"],
        json!({"username": "bob", "uid": "7",
        "groups": ["g", "h", "system:authenticated"], "extra": {"example.com/scope": ["x"]}})
    );
    let (_, answer) = act(&User::admin(), &[("Impersonate-User", "system:serviceaccount:a:s")]);
    assert_eq!(
        answer["status"]["userInfo"]["groups"],
        json!(["system:serviceaccounts", "system:serviceaccounts:a", "system:authenticated"])
    );
    // Nobody known may not even ask who they are.
    assert_eq!(act(&User::admin(), &[("Impersonate-User", "system:anonymous")]).0, 403);
    // An impersonated request has the rights of the impersonated user only.
    let pods = "/api/v1/pods";
    cluster.check_with(&User::admin(), Method::GET, pods, &[("Impersonate-User", "bob")], Value::Null, &expect![[r#"403 Forbidden: pods is forbidden: User "bob" cannot list resource "pods" in API group "" at the cluster scope"#]]);
    cluster.check_with(&ann(), Method::GET, pods, &[("Impersonate-User", "bob")], Value::Null, &expect![[r#"403 Forbidden: pods is forbidden: User "ann" cannot impersonate-on:user-info:list resource "pods" in API group "" at the cluster scope"#]]);
    let (code, _) = act(&User::admin(), &[("Impersonate-Group", "g")]);
    assert_eq!(code, 400);
    // The constrained form: as whom, and to do what.
    cluster.grant(
        "ann",
        json!([
            rule(&["impersonate:user-info"], "authentication.k8s.io", &["users"]),
            rule(
                &["impersonate-on:user-info:create"],
                "authentication.k8s.io",
                &["selfsubjectreviews"]
            ),
        ]),
    );
    assert_eq!(act(&ann(), &[("Impersonate-User", "bob")]).0, 201);
    assert_eq!(act(&ann(), &[("Impersonate-User", "bob"), ("Impersonate-Group", "g")]).0, 403);
    assert_eq!(act(&ann(), &[("Impersonate-User", "system:serviceaccount:a:s")]).0, 403);
    assert_eq!(
        cluster.send(&ann(), Method::GET, pods, &[("Impersonate-User", "bob")], &Value::Null).0,
        403
    );
}

fn pod(name: &str, resources: Value) -> Value {
    json!({"metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]}})
}

#[test]
fn events_expire() {
    let cluster = cluster();
    let events = "/api/v1/namespaces/default/events";
    let event = |name: &str| json!({"metadata": {"name": name}, "involvedObject": {"namespace": "default"}});
    let names = |seconds: i64| -> Vec<String> {
        cluster.seconds.store(seconds, Ordering::Relaxed);
        let (_, list) = cluster.get_as(&User::admin(), events);
        let items = list["items"].as_array().expect("a list").iter();
        items.map(|it| it["metadata"]["name"].as_str().expect("a name").to_owned()).collect()
    };
    cluster.make(events, event("a"));
    assert_eq!(names(100), ["a"]);
    cluster.make(events, event("b"));
    assert_eq!(names(200), ["a", "b"]);
    assert_eq!(names(3_600), ["a", "b"]);
    assert_eq!(names(3_710), ["b"]);
    assert!(names(3_900).is_empty());
}
