use super::*;

/// Second `at` of the run.
fn time(at: i64) -> Timestamp {
    Timestamp::from_second(1_000 + at).unwrap()
}

fn entry(at: i64, user: &str, code: u16) -> AuditEntry {
    AuditEntry {
        user: user.to_owned(),
        user_agent: String::new(),
        verb: "create".to_owned(),
        resource: String::new(),
        namespace: String::new(),
        name: String::new(),
        uid: String::new(),
        body: Value::Null,
        code,
        received: time(at),
        answered: time(at),
    }
}

fn lease(at: i64, user: &str, code: u16) -> AuditEntry {
    let (resource, name) = ("leases".to_owned(), "kube-scheduler".to_owned());
    AuditEntry { verb: "update".to_owned(), resource, name, ..entry(at, user, code) }
}

fn binding(at: i64, user: &str, uid: &str, code: u16) -> AuditEntry {
    let (resource, name) = ("pods/binding".to_owned(), format!("pod-{uid}"));
    AuditEntry { resource, name, uid: uid.to_owned(), ..entry(at, user, code) }
}

#[test]
fn an_audit_event_is_parsed() {
    let line = json!({
        "kind": "Event", "stage": "ResponseComplete", "verb": "create",
        "requestURI": "/api/v1/namespaces/e2e/pods/p/binding",
        "user": {"username": "a", "groups": ["g"]},
        "objectRef": {"resource": "pods", "namespace": "e2e", "name": "p", "uid": "u",
                      "subresource": "binding"},
        "responseStatus": {"code": 201},
        "requestObject": {"target": {"name": "n"}},
        "requestReceivedTimestamp": "1970-01-01T00:16:41.000000Z",
        "stageTimestamp": "1970-01-01T00:16:42.500000Z"});
    let mut want = binding(1, "a", "u", 201);
    (want.namespace, want.name) = ("e2e".to_owned(), "p".to_owned());
    want.body = json!({"target": {"name": "n"}});
    want.answered = Timestamp::from_millisecond(1_002_500).unwrap();
    assert_eq!(parse(&line.to_string()).unwrap(), Some(want));
}

#[test]
fn incomplete_audit_events_are_rejected() {
    let check = |line: Value, want: &str| {
        let error = parse(&line.to_string()).map_err(|error| error.to_string());
        assert_eq!(error, Err(want.to_owned()), "{line}");
    };
    let stage = "ResponseComplete";
    check(json!({"stage": stage}), "an entry without a code");
    let code = json!({"code": 200});
    check(
        json!({"stage": stage, "responseStatus": code}),
        "an entry without requestReceivedTimestamp",
    );
    check(
        json!({"stage": stage, "responseStatus": code, "requestReceivedTimestamp": "noon"}),
        "requestReceivedTimestamp \"noon\"",
    );
    assert!(parse("{").is_err());
    let early = json!({"stage": "ResponseStarted"}).to_string();
    assert_eq!(parse(&early).unwrap(), None);
}

#[test]
fn terms_follow_the_writes_of_the_lease() {
    let check = |entries: &[AuditEntry], want: &[(&str, i64)]| {
        let got = leader_terms(entries, "kube-scheduler");
        let got: Vec<_> = got.iter().map(|term| (term.user.as_str(), term.from)).collect();
        let want: Vec<_> = want.iter().map(|&(user, at)| (user, time(at))).collect();
        assert_eq!(got, want);
    };
    check(&[], &[]);
    check(&[lease(0, "a", 201), lease(2, "a", 200), lease(9, "b", 200)], &[("a", 0), ("b", 9)]);
    // A failed attempt to acquire the lease does not make a leader.
    check(&[lease(0, "a", 200), lease(1, "b", 409), lease(2, "a", 200)], &[("a", 0)]);
    let mut other = lease(1, "b", 200);
    other.name = "another".to_owned();
    check(&[lease(0, "a", 200), other], &[("a", 0)]);
}

#[test]
fn wrong_bindings_are_reported() {
    let leases = [lease(0, "a", 200), lease(10, "b", 200)];
    let check_with = |list: &[AuditEntry], v_is_bound: bool, want: &[&str]| {
        let mut entries = leases.to_vec();
        entries.extend_from_slice(list);
        entries.sort_by_key(|entry| entry.answered);
        let terms = leader_terms(&entries, "kube-scheduler");
        let pods = [("u", true), ("v", v_is_bound)];
        assert_eq!(binding_faults(&entries, &terms, pods.into_iter()), want, "{list:?}");
    };
    let check = |list: &[AuditEntry], want: &[&str]| check_with(list, true, want);
    let (u, v) = (binding(1, "a", "u", 201), binding(11, "b", "v", 201));
    check(&[u.clone(), v.clone()], &[]);
    // A rejected second binding does not count.
    check(&[u.clone(), v.clone(), binding(12, "b", "u", 409)], &[]);
    // The client died before it got the response: the binding may or may not be executed.
    check(&[u.clone(), binding(9, "a", "v", 504)], &[]);
    check(&[u.clone(), binding(9, "a", "v", 504), v.clone()], &[]);
    check(
        &[u.clone(), v.clone(), binding(12, "b", "u", 201)],
        &["the pod with uid u was bound 2 times"],
    );
    let by_nobody = "the pod with uid v is bound without a successful binding request";
    check(std::slice::from_ref(&u), &[by_nobody]);
    check(&[u.clone(), binding(11, "b", "v", 409)], &[by_nobody]);
    check_with(
        &[u.clone(), v.clone()],
        false,
        &["the pod with uid v was bound but is not bound now"],
    );
    check_with(std::slice::from_ref(&u), false, &[]);
    check(
        &[u.clone(), v.clone(), binding(12, "b", "x", 201)],
        &["pod-x has a binding request but does not exist"],
    );
    check(
        &[u, v, binding(12, "a", "u", 409)],
        &[
            "a sent a request at 1970-01-01T00:16:52Z to bind pod-u while b led since 1970-01-01T00:16:50Z",
        ],
    );
}

#[test]
fn denied_requests_are_counted_by_kind() {
    let mut list = entry(1, "a", 403);
    (list.verb, list.resource) = ("list".to_owned(), "pods".to_owned());
    let mut get = entry(2, "a", 403);
    (get.verb, get.resource, get.namespace) =
        ("get".to_owned(), "configmaps".to_owned(), "kube-system".to_owned());
    let (other_user, unknown) = (entry(3, "b", 403), entry(4, "a", 401));
    let entries = [list.clone(), get, other_user, unknown, entry(5, "a", 404), list];
    let want = [("401 create ", 1), ("403 get configmaps in kube-system", 1), ("403 list pods", 2)];
    assert_eq!(denied_requests(&entries, "a"), want.map(|(kind, n)| (kind.to_owned(), n)).into());
}

#[test]
fn lists_are_counted() {
    let event = |verb: &str, stage: &str, query: &str| {
        json!({"stage": stage, "verb": verb, "requestURI": format!("/api/v1/pods?{query}"),
            "user": {"username": "a"}, "objectRef": {"resource": "pods"}})
        .to_string()
    };
    let check = |lines: &[String], want: u32| {
        let name = format!("loadmaster-audit-{}-{want}.log", std::process::id());
        let path = std::env::temp_dir().join(name);
        // The API server is still writing the last line.
        let text = format!("{}\n{}", lines.join("\n"), r#"{"stage": "Resp"#);
        std::fs::write(&path, text).unwrap();
        let lists = n_lists(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let key = ("a".to_owned(), "pods".to_owned());
        assert_eq!(lists.get(&key).copied().unwrap_or_default(), want, "{lines:?}");
    };
    let started = event("watch", "ResponseStarted", "watch=true&sendInitialEvents=true");
    let complete = event("watch", "ResponseComplete", "watch=true&sendInitialEvents=true");
    let watch = event("watch", "ResponseStarted", "watch=true&resourceVersion=5");
    let first = event("list", "ResponseComplete", "limit=500");
    let second = event("list", "ResponseComplete", "limit=500&continue=x");
    check(&[watch], 0);
    check(&[started, complete], 1);
    check(&[first.clone(), second, first], 2);
}
