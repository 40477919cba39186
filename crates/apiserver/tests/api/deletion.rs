//! Deleting: grace, and what becomes of dependents.

use std::sync::atomic::Ordering;

use http::Method;
use loadmaster_apiserver::store::StoreLimits;
use loadmaster_apiserver::{ApiServer, ClusterOptions};
use serde_json::{Value, json};

use super::testkit::{Bench, PODS, call, create, patch, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A pod on a node.
fn placed(name: &str, grace: i64) -> Value {
    json!({"metadata": {"name": name}, "spec": {"nodeName": "n",
        "terminationGracePeriodSeconds": grace, "containers": [{"name": "c", "image": "i"}]}})
}

/// Deletes, and returns deletion timestamp and grace period; nothing if the object was removed.
fn delete(server: &ApiServer, path: &str, options: Value) -> Option<(String, i64)> {
    let (code, _) = call(server, Method::DELETE, path, options);
    assert_eq!(code, 200);
    let (code, left) = call(server, Method::GET, path, Value::Null);
    let metadata = &left["metadata"];
    let at = metadata["deletionTimestamp"].as_str().unwrap_or_default().to_owned();
    (code == 200).then(|| (at, metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(-1)))
}

#[test]
fn grace_periods_can_be_any_number() {
    let server = server();
    for (name, grace) in [("a", i64::MAX), ("b", i64::MIN + 1), ("c", i64::MAX / 1_000_000_000)] {
        create(&server, PODS, placed(name, 10));
        let options = json!({"gracePeriodSeconds": grace});
        let (_, left) = delete(&server, &format!("{PODS}/{name}"), options).expect("is marked");
        assert_eq!(left, grace.max(1));
    }
}

#[test]
fn a_grace_period_is_only_shortened_and_only_on_request() {
    let Bench { server, seconds } = Bench::new(StoreLimits::default(), ClusterOptions::default());
    create(&server, PODS, placed("a", 10));
    let path = format!("{PODS}/a");
    let check = |now: i64, options: Value, at: &str, grace: i64| {
        seconds.store(now, Ordering::Relaxed);
        let want = Some((format!("2026-01-02T03:04:{at}Z"), grace));
        assert_eq!(delete(&server, &path, options), want);
    };
    let grace = |seconds: i64| json!({"gracePeriodSeconds": seconds});
    check(0, grace(30), "35", 30);
    // The pod's own grace period of ten seconds was not requested by this client.
    check(2, Value::Null, "35", 30);
    check(2, grace(40), "35", 30);
    check(2, grace(5), "10", 5);
    // It cannot have been over before the request.
    check(9, grace(4), "14", 1);
    patch(&server, &format!("{path}/status"), json!({"status": {"phase": "Succeeded"}}));
    check(9, Value::Null, "14", 1);
    assert_eq!(delete(&server, &path, grace(0)), None);
}

#[test]
fn the_last_propagation_policy_counts() {
    let server = server();
    let check = |name: &str, finalizers: &[&str], policies: &[&str], want: Option<&[&str]>| {
        create(&server, MAPS, json!({"metadata": {"name": name, "finalizers": finalizers}}));
        let path = format!("{MAPS}/{name}");
        for policy in policies {
            let options = match *policy {
                "" => Value::Null,
                policy => json!({"propagationPolicy": policy}),
            };
            assert_eq!(call(&server, Method::DELETE, &path, options).0, 200);
        }
        let (code, left) = call(&server, Method::GET, &path, Value::Null);
        let left = (code == 200).then(|| left["metadata"]["finalizers"].clone());
        assert_eq!(left, want.map(|it| json!(it)), "{name}");
    };
    check("a", &[], &["Foreground"], Some(&["foregroundDeletion"]));
    check("b", &[], &["Foreground", "Background"], None);
    check("c", &[], &["Foreground", ""], Some(&["foregroundDeletion"]));
    check("d", &[], &["Foreground", "Orphan"], Some(&["orphan"]));
    check("e", &["foregroundDeletion"], &["Background"], None);
    check("f", &["orphan"], &[""], Some(&["orphan"]));
    check("g", &["x.io/y", "orphan"], &["Foreground"], Some(&["x.io/y", "foregroundDeletion"]));
    check("h", &["x.io/y"], &["", "Foreground"], Some(&["x.io/y", "foregroundDeletion"]));
    // Events have no dependents.
    let events = "/api/v1/namespaces/default/events";
    create(
        &server,
        events,
        json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}}),
    );
    let path = format!("{events}/e");
    assert_eq!(delete(&server, &path, json!({"propagationPolicy": "Foreground"})), None);
}
