//! `loadmaster explain` of several pods.

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use crate::process::Folder;

/// A pod in a namespace; `owner` is `KIND/NAME`.
fn pod(namespace: &str, name: &str, owner: &str, spec: Value) -> Value {
    let app = name.split('-').next();
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": spec,
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": app}}});
    if let Some((kind, owner)) = owner.split_once('/') {
        pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": kind, "name": owner,
            "uid": owner, "controller": true}]);
    }
    pod
}

fn requesting(cpu: &str) -> Value {
    json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]})
}

fn cluster() -> String {
    let node = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "status": {"allocatable": {"cpu": "4", "memory": "16Gi", "pods": "110"}}})
    };
    let deployment = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d", "controller": true}]);
    let mut assigned = requesting("1");
    assigned["nodeName"] = json!("a");
    let mut gated = requesting("1");
    gated["schedulingGates"] = json!([{"name": "example.com/quota"}]);
    let mut foreign = requesting("1");
    foreign["schedulerName"] = json!("batch-scheduler");
    let items = vec![
        node("a"),
        node("b"),
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {"name": "web-7d", "namespace": "shop", "ownerReferences": deployment},
            "spec": {"selector": {"matchLabels": {"app": "web"}}}}),
        pod("shop", "web-7d-1", "ReplicaSet/web-7d", assigned),
        pod("shop", "web-7d-2", "ReplicaSet/web-7d", requesting("5")),
        pod("shop", "web-7d-3", "ReplicaSet/web-7d", requesting("5")),
        pod("shop", "db-0", "StatefulSet/db", requesting("5")),
        pod("shop", "once-x", "Job/once", gated),
        pod("batch", "foreign", "", foreign),
        pod("batch", "small", "", requesting("1")),
    ];
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

#[track_caller]
fn check(args: &[&str], want: &Expect) {
    let folder = Folder::new().with("cluster.json", &cluster());
    let args = [&["explain", "--from", "cluster.json"], args].concat();
    want.assert_eq(&folder.run(&args));
}

#[test]
fn pending_pods_are_grouped_by_reason() {
    check(
        &["--pending"],
        &expect![[r#"
        6 pods without a node

          PODS  REASON
             3  0/2 nodes are available: 2 Insufficient cpu.
                pods: shop/db-0, shop/web-7d-2, shop/web-7d-3
                would fit after one of these changes:
                - lower its request of cpu from 5 to 4 (fits on b)
             1  fits on some node, but is not scheduled yet
                pods: batch/small
             1  no profile has its scheduler name, batch-scheduler
                pods: batch/foreign
             1  waiting for scheduling gates: [example.com/quota]
                pods: shop/once-x
        exit 1
    "#]],
    );
    check(
        &["--pending", "-n", "batch"],
        &expect![[r#"
        2 pods without a node

          PODS  REASON
             1  fits on some node, but is not scheduled yet
                pods: batch/small
             1  no profile has its scheduler name, batch-scheduler
                pods: batch/foreign
        exit 1
    "#]],
    );
    check(
        &["--pending", "-n", "nowhere"],
        &expect![[r#"
        no pod is selected
        exit 0
    "#]],
    );
}

#[test]
fn pods_of_objects_and_by_labels() {
    check(
        &["deploy/web", "-n", "shop"],
        &expect![[r#"
        2 of 3 pods without a node

          PODS  REASON
             2  0/2 nodes are available: 2 Insufficient cpu.
                pods: shop/web-7d-2, shop/web-7d-3
                would fit after one of these changes:
                - lower its request of cpu from 5 to 4 (fits on b)
        exit 1
    "#]],
    );
    check(
        &["sts/db", "job/once", "-n", "shop", "-o", "name"],
        &expect![[r#"
        pod/db-0
        pod/once-x
        exit 1
    "#]],
    );
    check(
        &["-A", "-l", "app in (small, foreign)", "-o", "name"],
        &expect![[r#"
            pod/foreign
            pod/small
            exit 1
        "#]],
    );
    check(
        &["rs/web-7d", "pod/db-0", "-n", "shop", "-o", "name"],
        &expect![[r#"
        pod/db-0
        pod/web-7d-1
        pod/web-7d-2
        pod/web-7d-3
        exit 1
    "#]],
    );
    check(
        &["pod/db-0", "-n", "shop", "-o", "name"],
        &expect![[r#"
        pod/db-0
        exit 1
    "#]],
    );
    check(
        &["-l", "app=small", "-n", "batch", "-o", "wide"],
        &expect![[r#"
            1 pod without a node

            batch/small fits 2 of 2 nodes; best: b
              profile default-scheduler

                                                        Node
                                            Node   Resources
                                Taint  Resources    Balanced
              NODE  TOTAL  Toleration        Fit  Allocation
              b       454         300         86          68
              a       442         300         73          69
              score 0 for all nodes: DynamicResources, ImageLocality
            exit 0
        "#]],
    );
}

#[test]
fn several_pods_in_json_and_yaml() {
    let folder = Folder::new().with("cluster.json", &cluster());
    let text = folder.run(&["explain", "--from", "cluster.json", "--pending", "-o", "json"]);
    let json: Value = serde_json::from_str(text.split("exit").next().unwrap()).unwrap();
    let items = json["items"].as_array().unwrap();
    let shown = items.iter().map(|it| format!("{}: {}", it["pod"], it["message"]));
    expect![[r#"
        "batch/foreign": "no profile has its scheduler name, batch-scheduler"
        "batch/small": ""
        "shop/db-0": "0/2 nodes are available: 2 Insufficient cpu."
        "shop/once-x": "waiting for scheduling gates: [example.com/quota]"
        "shop/web-7d-2": "0/2 nodes are available: 2 Insufficient cpu."
        "shop/web-7d-3": "0/2 nodes are available: 2 Insufficient cpu.""#]]
    .assert_eq(&shown.collect::<Vec<_>>().join("\n"));
    check(
        &["job/once", "-n", "shop", "-o", "yaml"],
        &expect![[r#"
        items:
        - pod: shop/once-x
          message: "waiting for scheduling gates: [example.com/quota]"
        exit 1
    "#]],
    );
}

#[test]
fn selections_that_are_not_valid() {
    check(
        &[],
        &expect![[r#"
            2> error: the following required arguments were not provided:
            2>   <[NAMESPACE/]POD | KIND/NAME>...
            2> 
            2> Usage: loadmaster explain --from <FILE> <[NAMESPACE/]POD | KIND/NAME>...
            2> 
            2> For more information, try '--help'.
            exit 2
        "#]],
    );
    check(
        &["deploy/none", "-n", "shop"],
        &expect![[r#"
        2> error: Deployment "none" has no pods here
        exit 2
    "#]],
    );
    check(
        &["-l", "app in small"],
        &expect![[r#"
            2> error: invalid value 'app in small' for '--selector <SELECTOR>': found 'small' expected: '('
            2> 
            2> For more information, try '--help'.
            exit 2
        "#]],
    );
    let text = Folder::new().run(&["explain", "--pending", "--server", "https://127.0.0.1:1"]);
    expect![[r#"
        2> error: with --server one pod is explained, by its name
        exit 2
    "#]]
    .assert_eq(&text);
}
