//! What a namespace may use, and what it uses.

use expect_test::expect;
use http::Method;
use loadmaster_apiserver::store::StoreLimits;
use loadmaster_apiserver::{AdmissionPlugins, ApiServer, ClusterOptions};
use serde_json::{Value, json};

use super::testkit::{
    Bench, MERGE, PODS, call, call_with, create, get, patch, refused, said, server,
};

const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const SERVICES: &str = "/api/v1/namespaces/default/services";

/// A quota that says what there is, as its controller writes it, and of which nothing is used.
#[track_caller]
fn quota(server: &ApiServer, name: &str, spec: Value) {
    create(server, QUOTAS, json!({"metadata": {"name": name}, "spec": spec}));
    let mut none = spec["hard"].clone();
    none.as_object_mut().into_iter().flatten().for_each(|(_, amount)| *amount = json!("0"));
    let status = json!({"hard": spec["hard"], "used": none});
    patch(server, &format!("{QUOTAS}/{name}/status"), json!({"status": status}));
}

fn used(server: &ApiServer, name: &str) -> Value {
    get(server, &format!("{QUOTAS}/{name}"))["status"]["used"].take()
}

fn pod(name: &str, resources: Value) -> Value {
    let container = json!({"name": "c", "image": "i", "resources": resources});
    json!({"metadata": {"name": name}, "spec": {"containers": [container]}})
}

fn claim(name: &str, size: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}}}})
}

#[test]
fn pods_are_limited_by_quota() {
    let server = server();
    quota(&server, "q", json!({"hard": {"pods": "2", "requests.cpu": "1"}}));
    let asks = |cpu: &str| json!({"requests": {"cpu": cpu}});
    create(&server, PODS, pod("a", asks("600m")));
    assert_eq!(used(&server, "q"), json!({"pods": "1", "requests.cpu": "600m"}));
    refused(
        &server,
        Method::POST,
        PODS,
        pod("b", asks("500m")),
        &expect![[
            r#"403 Forbidden: pods "b" is forbidden: exceeded quota: q, requested: requests.cpu=500m, used: requests.cpu=600m, limited: requests.cpu=1"#
        ]],
    );
    refused(
        &server,
        Method::POST,
        PODS,
        pod("b", json!({})),
        &expect![[
            r#"403 Forbidden: pods "b" is forbidden: failed quota: q: must specify requests.cpu for: c"#
        ]],
    );
    // Nothing is used by what is only tried out, or is there already.
    let dry = format!("{PODS}?dryRun=All");
    assert_eq!(call(&server, Method::POST, &dry, pod("b", asks("400m"))).0, 201);
    assert_eq!(call(&server, Method::POST, &dry, pod("b", asks("500m"))).0, 403);
    assert_eq!(call(&server, Method::POST, PODS, pod("a", asks("100m"))).0, 409);
    assert_eq!(used(&server, "q"), json!({"pods": "1", "requests.cpu": "600m"}));
    create(&server, PODS, pod("b", asks("0.4")));
    assert_eq!(used(&server, "q"), json!({"pods": "2", "requests.cpu": "1"}));
    refused(
        &server,
        Method::POST,
        PODS,
        pod("c", asks("1m")),
        &expect![[
            r#"403 Forbidden: pods "c" is forbidden: exceeded quota: q, requested: pods=1,requests.cpu=1m, used: pods=2,requests.cpu=1, limited: pods=2,requests.cpu=1"#
        ]],
    );
    let elsewhere = json!({"metadata": {"name": "other"}});
    create(&server, "/api/v1/namespaces", elsewhere);
    create(&server, "/api/v1/namespaces/other/pods", pod("a", json!({})));
    let owners = get(&server, &format!("{QUOTAS}/q"))["metadata"]["managedFields"].take();
    let raised = owners.as_array().unwrap().iter().find(|it| it["manager"] == "kube-apiserver");
    assert_eq!(raised.unwrap()["subresource"], "status");
}

#[test]
fn a_quota_is_enforced_once_its_status_has_limits() {
    let server = server();
    create(&server, QUOTAS, json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}}));
    create(&server, PODS, pod("a", json!({})));
    let path = format!("{QUOTAS}/q/status");
    patch(&server, &path, json!({"status": {"hard": {"pods": "0", "services": "0"}}}));
    refused(
        &server,
        Method::POST,
        PODS,
        pod("b", json!({})),
        &expect![[
            r#"403 Forbidden: pods "b" is forbidden: status unknown for quota: q, resources: pods"#
        ]],
    );
    let odd = json!({"status": {"used": {"gpu": "1"}}});
    assert_eq!(
        said(call_with(&server, Method::PATCH, &path, MERGE, odd)),
        r#"422 Invalid: ResourceQuota "q" is invalid: [status.used[gpu]: Invalid value: "gpu": must be a standard resource type or fully qualified, status.used[gpu]: Invalid value: "gpu": must be a standard resource for quota]"#
    );
    let other = json!({"spec": {"scopes": ["BestEffort"]}});
    assert_eq!(
        said(call_with(&server, Method::PATCH, &format!("{QUOTAS}/q"), MERGE, other)),
        r#"422 Invalid: ResourceQuota "q" is invalid: spec.scopes: Invalid value: ["BestEffort"]: field is immutable"#
    );
    let admission = AdmissionPlugins { resource_quota: false, ..AdmissionPlugins::default() };
    let setup = ClusterOptions { admission, ..ClusterOptions::default() };
    let off = Bench::new(StoreLimits::default(), setup).server;
    quota(&off, "q", json!({"hard": {"pods": "0"}}));
    create(&off, PODS, pod("a", json!({})));
}

#[test]
fn concurrent_creates_do_not_exceed_a_quota() {
    const N_THREADS: usize = 8;
    const N_EACH: usize = 8;
    let server = server();
    quota(&server, "few", json!({"hard": {"pods": "5"}}));
    quota(&server, "many", json!({"hard": {"count/pods": "100"}}));
    let made = std::thread::scope(|scope| {
        let work = |thread: usize| {
            let server = &server;
            scope.spawn(move || {
                let tries = (0..N_EACH).map(|nth| pod(&format!("p-{thread}-{nth}"), json!({})));
                let codes = tries.map(|it| call(server, Method::POST, PODS, it).0);
                codes
                    .inspect(|code| assert!([201, 403].contains(code)))
                    .filter(|it| *it == 201)
                    .count()
            })
        };
        let threads: Vec<_> = (0..N_THREADS).map(work).collect();
        threads.into_iter().map(|it| it.join().expect("does not panic")).sum::<usize>()
    });
    assert_eq!(made, 5);
    assert_eq!(get(&server, PODS)["items"].as_array().unwrap().len(), 5);
    assert_eq!(used(&server, "few"), json!({"pods": "5"}));
    assert_eq!(used(&server, "many"), json!({"count/pods": "5"}));
}

#[test]
fn updates_that_increase_usage_are_counted() {
    let server = server();
    let hard = json!({"requests.storage": "5Gi", "persistentvolumeclaims": "1",
        "gold.storageclass.storage.k8s.io/requests.storage": "0"});
    quota(&server, "claims", json!({"hard": hard}));
    create(&server, CLAIMS, claim("a", "2Gi"));
    let path = format!("{CLAIMS}/a");
    let grown = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
    patch(&server, &path, grown("4Gi"));
    assert_eq!(used(&server, "claims")["requests.storage"], "4Gi");
    patch(&server, &path, json!({"metadata": {"labels": {"a": "b"}}}));
    assert_eq!(
        said(call_with(&server, Method::PATCH, &path, MERGE, grown("6Gi"))),
        r#"403 Forbidden: persistentvolumeclaims "a" is forbidden: exceeded quota: claims, requested: requests.storage=2Gi, used: requests.storage=4Gi, limited: requests.storage=5Gi"#
    );
    let status = json!({"status": {"allocatedResources": {"storage": "6Gi"}}});
    patch(&server, &format!("{path}/status"), status);
    assert_eq!(used(&server, "claims")["requests.storage"], "6Gi", "it is so already");
    let mut gold = claim("b", "1Gi");
    gold["spec"]["storageClassName"] = "gold".into();
    refused(
        &server,
        Method::POST,
        CLAIMS,
        gold,
        &expect![[
            r#"403 Forbidden: persistentvolumeclaims "b" is forbidden: exceeded quota: claims, requested: gold.storageclass.storage.k8s.io/requests.storage=1Gi,persistentvolumeclaims=1,requests.storage=1Gi, used: gold.storageclass.storage.k8s.io/requests.storage=0,persistentvolumeclaims=1,requests.storage=6Gi, limited: gold.storageclass.storage.k8s.io/requests.storage=0,persistentvolumeclaims=1,requests.storage=5Gi"#
        ]],
    );

    quota(&server, "services", json!({"hard": {"services.nodeports": "1", "services": "9"}}));
    create(
        &server,
        SERVICES,
        json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}),
    );
    let path = format!("{SERVICES}/s");
    patch(&server, &path, json!({"spec": {"type": "NodePort"}}));
    assert_eq!(used(&server, "services"), json!({"services.nodeports": "1", "services": "1"}));
    let more = json!({"spec": {"ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]}});
    assert_eq!(
        said(call_with(&server, Method::PATCH, &path, MERGE, more)),
        r#"403 Forbidden: services "s" is forbidden: exceeded quota: services, requested: services.nodeports=1, used: services.nodeports=1, limited: services.nodeports=1"#
    );
}

#[test]
fn pods_that_enter_a_scope_are_counted() {
    let server = server();
    quota(&server, "short", json!({"hard": {"pods": "0"}, "scopes": ["Terminating"]}));
    quota(&server, "all", json!({"hard": {"cpu": "2"}}));
    create(&server, PODS, pod("a", json!({"requests": {"cpu": "1"}})));
    assert_eq!(used(&server, "short"), json!({"pods": "0"}));
    let path = format!("{PODS}/a");
    let deadline = json!({"spec": {"activeDeadlineSeconds": 60}});
    assert_eq!(
        said(call_with(&server, Method::PATCH, &path, MERGE, deadline)),
        r#"403 Forbidden: pods "a" is forbidden: exceeded quota: short, requested: pods=1, used: pods=0, limited: pods=0"#
    );
    let resized = |cpu: &str| {
        let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}});
        let path = format!("{path}/resize");
        call_with(
            &server,
            Method::PATCH,
            &path,
            MERGE,
            json!({"spec": {"containers": [container]}}),
        )
    };
    assert_eq!(resized("2").0, 200);
    assert_eq!(used(&server, "all"), json!({"cpu": "2"}));
    assert_eq!(
        said(resized("2100m")),
        r#"403 Forbidden: pods "a" is forbidden: exceeded quota: all, requested: cpu=100m, used: cpu=2, limited: cpu=2"#
    );
    assert_eq!(resized("1").0, 200);
    assert_eq!(
        used(&server, "all"),
        json!({"cpu": "2"}),
        "what shrinks is counted by the controller"
    );
}

#[test]
fn objects_of_any_kind_are_counted() {
    let server = server();
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({"metadata": {"name": "crews.example.com"}, "spec": {"group": "example.com",
        "scope": "Namespaced", "names": {"kind": "Crew", "plural": "crews"}, "versions": [
        {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    create(&server, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition);
    let hard = json!({"count/crews.example.com": "1", "count/configmaps": "1", "configmaps": "1",
        "resourcequotas": "2", "count/leases.coordination.k8s.io": "1"});
    quota(&server, "q", json!({"hard": hard}));
    let crews = "/apis/example.com/v1/namespaces/default/crews";
    let crew = |name: &str| json!({"apiVersion": "example.com/v1", "kind": "Crew", "metadata": {"name": name}});
    create(&server, crews, crew("a"));
    refused(
        &server,
        Method::POST,
        crews,
        crew("b"),
        &expect![[
            r#"403 Forbidden: crews.example.com "b" is forbidden: exceeded quota: q, requested: count/crews.example.com=1, used: count/crews.example.com=1, limited: count/crews.example.com=1"#
        ]],
    );
    let maps = "/api/v1/namespaces/default/configmaps";
    create(&server, maps, json!({"metadata": {"name": "a"}}));
    refused(
        &server,
        Method::POST,
        maps,
        json!({"metadata": {"name": "b"}}),
        &expect![[
            r#"403 Forbidden: configmaps "b" is forbidden: exceeded quota: q, requested: configmaps=1,count/configmaps=1, used: configmaps=1,count/configmaps=1, limited: configmaps=1,count/configmaps=1"#
        ]],
    );
    // An update or an apply that makes an object counts it, too.
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease = |name: &str| json!({"metadata": {"name": name}});
    assert_eq!(call(&server, Method::PUT, &format!("{leases}/a"), lease("a")).0, 201);
    assert_eq!(call(&server, Method::PUT, &format!("{leases}/b"), lease("b")).0, 403);
    create(&server, QUOTAS, json!({"metadata": {"name": "second"}}));
    assert_eq!(
        used(&server, "q"),
        json!({"count/crews.example.com": "1", "count/configmaps": "1", "configmaps": "1",
            "resourcequotas": "1", "count/leases.coordination.k8s.io": "1"})
    );
}
