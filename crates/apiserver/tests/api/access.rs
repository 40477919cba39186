//! Who may do what: roles, bindings, tokens, acting as others, limits, and what is written down about it.

use std::io::Write;
use std::sync::Arc;
#[expect(clippy::disallowed_types, reason = "a log is written on any thread")]
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use base64::Engine as _;
use expect_test::{Expect, expect};
use http::{HeaderMap, Method, header};
use loadmaster_apiserver::audit::{Audit, Policy};
use loadmaster_apiserver::auth::User;
use loadmaster_apiserver::authorize::Mode;
use loadmaster_apiserver::store::Limits;
use loadmaster_apiserver::{Admission, Setup};
use serde_json::{Value, json};

use super::bench::{Bench, JSON, bytes, said, send_as, text};

mod admission;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";

fn cluster() -> Bench {
    with(Setup { mode: Mode::Rbac, ..Setup::default() })
}

fn with(setup: Setup) -> Bench {
    Bench::new(Limits::default(), setup)
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

    fn who(&self, token: &str) -> Option<User> {
        let mut headers = HeaderMap::new();
        let value = format!("Bearer {token}").parse().expect("a header");
        headers.insert(header::AUTHORIZATION, value);
        self.server.authenticate(None, "/api", &headers).ok()
    }

    fn token(&self, spec: Value) -> String {
        let made = self.make(&format!("{ACCOUNTS}/default/token"), json!({"spec": spec}));
        made["status"]["token"].as_str().expect("a token").to_owned()
    }
}

fn ann() -> User {
    User::authenticated("ann", Vec::new())
}

fn rule(verbs: &[&str], group: &str, resources: &[&str]) -> Value {
    json!({"verbs": verbs, "apiGroups": [group], "resources": resources})
}

#[test]
fn nothing_is_allowed_that_no_role_allows() {
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
    // All known users may look around, and all unknown ones ask for health.
    for path in ["/api", "/apis/apps/v1", "/openapi/v3", "/version"] {
        assert_eq!(cluster.get_as(&ann(), path).0, 200, "{path}");
    }
    assert_eq!(cluster.get_as(&User::anonymous(), "/readyz").0, 200);
    assert_eq!(cluster.get_as(&User::anonymous(), "/api").0, 403);
}

#[test]
fn roles_are_obeyed_as_soon_as_they_are_written() {
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
fn roles_that_gather_follow_those_they_gather() {
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
fn nobody_gives_away_what_they_do_not_have() {
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
fn reviews_answer_as_the_server_decides() {
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
fn acting_as_somebody_else() {
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
    // He who acts as somebody has their rights and no others.
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

#[test]
fn tokens_of_service_accounts() {
    let cluster = cluster();
    let token = cluster.token(json!({}));
    let user = cluster.who(&token).expect("known");
    assert_eq!(user.name, "system:serviceaccount:default:default");
    assert!(!user.uid.is_empty());
    assert!(user.extra["authentication.kubernetes.io/credential-id"][0].starts_with("JTI="));
    assert_eq!(cluster.who(&format!("{token}x")), None);
    // Over after an hour, with a minute for clocks that differ.
    cluster.seconds.store(3_659, Ordering::Relaxed);
    assert!(cluster.who(&token).is_some());
    cluster.seconds.store(3_661, Ordering::Relaxed);
    assert_eq!(cluster.who(&token), None);
    let foreign = cluster.token(json!({"audiences": ["vault"]}));
    assert_eq!(cluster.who(&foreign), None);
    let review = |token: &str, audiences: Value| {
        let spec = json!({"token": token, "audiences": audiences});
        cluster.make("/apis/authentication.k8s.io/v1/tokenreviews", json!({"spec": spec}))["status"]
            .clone()
    };
    let status = review(&foreign, json!(["vault", "other"]));
    assert_eq!((&status["authenticated"], &status["audiences"]), (&true.into(), &json!(["vault"])));
    assert_eq!(
        review(&foreign, json!([])),
        json!({"user": {}, "error": r#"[invalid bearer token, token audiences ["vault"] is invalid for the target audiences ["https://kubernetes.default.svc.cluster.local"]]"#})
    );
    assert_eq!(review("x", json!([])), json!({"user": {}, "error": "invalid bearer token"}));
}

#[test]
fn a_token_ends_with_what_it_is_bound_to() {
    let cluster = cluster();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = cluster.make(
        pods,
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n",
        "containers": [{"name": "c", "image": "i"}]}}),
    );
    let bound = |uid: &Value| {
        json!({"expirationSeconds": 600, "boundObjectRef":
        {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid}})
    };
    let token = cluster.token(bound(&pod["metadata"]["uid"]));
    let user = cluster.who(&token).expect("known");
    let extra = |name: &str| user.extra[&format!("authentication.kubernetes.io/{name}")][0].clone();
    assert_eq!((extra("pod-name"), extra("node-name")), ("p".to_owned(), "n".to_owned()));
    let path = format!("{pods}/p?gracePeriodSeconds=0");
    assert_eq!(cluster.send(&User::admin(), Method::DELETE, &path, &[], &Value::Null).0, 200);
    assert_eq!(cluster.who(&token), None);
    let tokens = format!("{ACCOUNTS}/default/token");
    let check = |spec: Value, want: Expect| {
        cluster.check(&User::admin(), Method::POST, &tokens, json!({"spec": spec}), &want);
    };
    check(bound(&"x".into()), expect![[r#"404 NotFound: pods "p" not found"#]]);
    check(
        json!({"expirationSeconds": 5}),
        expect![[
            r#"422 Invalid: TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 5: may not specify a duration less than 10 minutes"#
        ]],
    );
    check(
        json!({"boundObjectRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}),
        expect!["400 BadRequest: cannot bind token to object of type apps/v1, Kind=Deployment"],
    );
    let token = cluster.token(json!({}));
    let account = format!("{ACCOUNTS}/default");
    cluster.send(&User::admin(), Method::DELETE, &account, &[], &Value::Null);
    assert_eq!(cluster.who(&token), None);
}

#[test]
fn who_has_no_credentials_is_nobody() {
    let none = HeaderMap::new();
    let may = |cluster: &Bench, path: &str| cluster.server.authenticate(None, path, &none).is_ok();
    assert!(may(&cluster(), "/api"));
    let open = with(Setup::default());
    assert!(may(&open, "/healthz") && !may(&open, "/api"));
    let closed = with(Setup { anonymous: false, mode: Mode::Rbac, ..Setup::default() });
    assert!(!may(&closed, "/healthz"));
    // Other schemes are not ours to judge.
    let mut headers = HeaderMap::new();
    headers.insert(header::AUTHORIZATION, "Basic eDp5".parse().expect("a header"));
    let user = cluster().server.authenticate(None, "/api", &headers).expect("anonymous");
    assert!(user.is_anonymous());
}

fn pod(name: &str, resources: Value) -> Value {
    json!({"metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]}})
}

#[test]
fn events_are_forgotten() {
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

/// What has been written.
#[derive(Clone, Default)]
#[expect(clippy::disallowed_types, reason = "a log is written on any thread")]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("whole").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn requests_are_written_down() {
    let written = Written::default();
    let audit = Audit::new(Policy::everything(), Box::new(written.clone()));
    let cluster = with(Setup { mode: Mode::Rbac, audit: Some(audit), ..Setup::default() });
    let pods = "/api/v1/namespaces/default/pods";
    let headers =
        [("audit-id", "one"), ("user-agent", "test"), ("x-forwarded-for", "10.0.0.1, 10.0.0.2")];
    cluster.send(&User::admin(), Method::POST, pods, &headers, &pod("a", json!({})));
    let headers = [("audit-id", "two"), ("impersonate-user", "bob")];
    cluster.send(&User::admin(), Method::GET, &format!("{pods}/a?x=y"), &headers, &Value::Null);
    let watch = format!("{pods}?watch=true&resourceVersion=1&timeoutSeconds=1");
    cluster.send(&ann(), Method::GET, &watch, &[("audit-id", "three")], &Value::Null);
    cluster.bind("rolebindings", "ClusterRole", "view", "ann");
    cluster.send(&ann(), Method::GET, pods, &[("audit-id", "list")], &Value::Null);
    let watch = format!("{pods}?watch=true&timeoutSeconds=1");
    cluster.send(&ann(), Method::GET, &watch, &[("audit-id", "watch")], &Value::Null);
    let error = cluster.server.authenticate(None, "/api", &{
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, "Bearer secret".parse().expect("a header"));
        headers
    });
    let mut headers = HeaderMap::new();
    headers.insert("audit-id", "four".parse().expect("a header"));
    let uri = "/api".parse().expect("a path");
    let _ = cluster.server.refuse(&Method::GET, &uri, &headers, None, error.expect_err("nobody"));
    let text = String::from_utf8(written.0.lock().expect("whole").clone()).expect("text");
    assert!(!text.contains("secret"), "{text}");
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(
        lines[0],
        json!({"kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata",
        "auditID": "one", "stage": "ResponseComplete", "requestURI": pods, "verb": "create",
        "user": {"username": "kubernetes-admin", "groups": ["system:masters", "system:authenticated"]},
        "sourceIPs": ["10.0.0.1", "10.0.0.2"], "userAgent": "test",
        "objectRef": {"resource": "pods", "namespace": "default", "name": "a", "apiVersion": "v1"},
        "responseStatus": {"metadata": {}, "code": 201},
        "requestReceivedTimestamp": "2026-01-02T03:04:05.000000Z", "stageTimestamp": "2026-01-02T03:04:05.000000Z",
        "annotations": {"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": ""}})
    );
    assert_eq!(lines[1]["impersonatedUser"]["username"], "bob");
    assert_eq!(lines[1]["responseStatus"]["code"], 403);
    assert_eq!(lines[1]["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert_eq!(lines[2]["verb"], "watch");
    let stages = |id: &str| -> Vec<&str> {
        let own = lines.iter().filter(|it| it["auditID"] == id);
        own.filter_map(|it| it["stage"].as_str()).collect()
    };
    assert_eq!(stages("list"), ["ResponseComplete"]);
    assert_eq!(stages("watch"), ["ResponseStarted", "ResponseComplete"]);
    let refused = lines.last().expect("a line");
    assert_eq!(
        (&refused["auditID"], &refused["responseStatus"]["reason"]),
        (&"four".into(), &"Unauthorized".into())
    );
}

#[test]
fn who_asks_for_a_certificate_is_who_sends_the_request() {
    let cluster = cluster();
    let group = "certificates.k8s.io";
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    cluster.grant(
        "asker",
        json!([rule(
            &["create", "update"],
            group,
            &["certificatesigningrequests", "certificatesigningrequests/approval"]
        )]),
    );
    let asker = User::authenticated("asker", vec!["g".to_owned()]);
    let spec = json!({"signerName": "e.io/s", "request": "YQ==", "usages": ["client auth"],
        "username": "system:admin", "groups": ["system:masters"], "extra": {"a": ["b"]}});
    let request = json!({"metadata": {"name": "r"}, "spec": spec});
    let (code, made) = cluster.send(&asker, Method::POST, requests, &[], &request);
    assert_eq!(code, 201, "{made}");
    assert_eq!(made["spec"]["username"], "asker");
    assert_eq!(made["spec"]["groups"], json!(["g", "system:authenticated"]));
    assert_eq!(made["spec"]["extra"], Value::Null);
    let path = format!("{requests}/r");
    let (_, changed) = cluster.send(&asker, Method::PUT, &path, &[], &request);
    assert_eq!(changed["spec"], made["spec"]);
    let approve = |name: &str| {
        let mut approved = made.clone();
        approved["metadata"]["resourceVersion"] = Value::Null;
        approved["status"] =
            json!({"conditions": [{"type": "Approved", "status": "True", "reason": name}]});
        said(cluster.send(&asker, Method::PUT, &format!("{path}/approval"), &[], &approved))
    };
    expect![[r#"403 Forbidden: certificatesigningrequests.certificates.k8s.io "r" is forbidden: user not permitted to approve requests with signerName "e.io/s""#]].assert_eq(&approve("a"));
    let signers = json!([{"verbs": ["approve"], "apiGroups": [group], "resources": ["signers"], "resourceNames": ["e.io/*"]}]);
    cluster.make(
        &format!("{RBAC}/clusterroles"),
        json!({"metadata": {"name": "signers"}, "rules": signers}),
    );
    cluster.bind("clusterrolebindings", "ClusterRole", "signers", "asker");
    assert_eq!(approve("b"), "200 : ");
    let mut client = request.clone();
    client["spec"]["signerName"] = "kubernetes.io/kube-apiserver-client".into();
    let refused = said(cluster.send(&asker, Method::POST, requests, &[], &client));
    assert!(refused.contains("failed to parse CSR"), "{refused}");
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
    let pem = params.serialize_request(&key).and_then(|it| it.pem()).expect("a request");
    client["spec"]["request"] = base64::engine::general_purpose::STANDARD.encode(pem).into();
    let refused = said(cluster.send(&asker, Method::POST, requests, &[], &client));
    assert!(refused.ends_with("signer with system:masters group is not allowed"), "{refused}");
}
