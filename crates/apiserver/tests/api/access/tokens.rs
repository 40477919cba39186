//! Tokens of service accounts, and who comes without one.

use super::*;

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";

impl Bench {
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
fn a_token_is_invalid_after_its_bound_object_is_deleted() {
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
fn requests_without_credentials_are_anonymous() {
    let none = HeaderMap::new();
    let may = |cluster: &Bench, path: &str| cluster.server.authenticate(None, path, &none).is_ok();
    assert!(may(&cluster(), "/api"));
    let open = with(ClusterOptions::default());
    assert!(may(&open, "/healthz") && !may(&open, "/api"));
    let closed = with(ClusterOptions {
        anonymous: false,
        mode: AuthorizationMode::Rbac,
        ..ClusterOptions::default()
    });
    assert!(!may(&closed, "/healthz"));
    // Other schemes are not ours to judge.
    let mut headers = HeaderMap::new();
    headers.insert(header::AUTHORIZATION, "Basic eDp5".parse().expect("a header"));
    let user = cluster().server.authenticate(None, "/api", &headers).expect("anonymous");
    assert!(user.is_anonymous());
}
