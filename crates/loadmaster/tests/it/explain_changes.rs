//! What `loadmaster explain` says would make a pod fit, and why it does not.

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use crate::process::Folder;

fn node(name: &str, zone: &str, cpu: &str, more: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone}},
        "spec": more, "status": {"allocatable": {"cpu": cpu, "memory": "16Gi", "pods": "110"}}})
}

fn pod(name: &str, app: &str, cpu: &str, more: Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "labels": {"app": app}},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}]}});
    for (key, value) in more.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod
}

fn of_replica_set(mut pod: Value, name: &str) -> Value {
    pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name,
        "uid": name, "controller": true}]);
    pod
}

/// Three nodes, one of them tainted, with pods of a ReplicaSet on the others.
fn cluster(pending: Value) -> String {
    let taints = json!({"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]});
    let on = |name: &str, node: &str| {
        of_replica_set(pod(name, "batch", "1500m", json!({"nodeName": node})), "batch")
    };
    let items = vec![
        node("a", "zone-a", "4", json!({})),
        node("b", "zone-b", "4", json!({})),
        node("c", "zone-b", "8", taints),
        on("batch-1", "a"),
        on("batch-2", "a"),
        on("batch-3", "b"),
        pending,
    ];
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

#[track_caller]
fn check(pending: Value, args: &[&str], want: &Expect) {
    let name = format!("shop/{}", pending["metadata"]["name"].as_str().unwrap());
    let folder = Folder::new().with("cluster.json", &cluster(pending));
    let args = [&["explain", &name, "--from", "cluster.json"], args].concat();
    want.assert_eq(&folder.run(&args));
}

#[test]
fn requests_taints_other_workloads_and_nodes() {
    check(
        pod("web", "web", "3", json!({})),
        &[],
        &expect![[r#"
            shop/web fits none of 3 nodes
              0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient
              cpu.
              profile default-scheduler
              NodeResourcesFit: needs=3 cpu, too much for 2 of 3 nodes; b is nearest, with
                2500m of 4 free

              NODES  REJECTED BY       PREEMPTION     REASON
                  2  NodeResourcesFit  does not help  Insufficient cpu
                     a: needs=3 cpu, 1 of 4 free
                     b: needs=3 cpu, 2500m of 4 free
                  1  TaintToleration   cannot help    node(s) had untolerated taint(s)
                     c: taints=[gpu=yes:NoSchedule]

              preemption: 0/3 nodes are available: 1 Preemption is not helpful for
              scheduling, 2 No preemption victims found for incoming pod.

              would fit after one of these changes:
              - lower its request of cpu from 3 to 2500m (fits on b)
              - add a toleration of gpu=yes:NoSchedule (fits on c)
              - add a node like a
              - add a node like b
              - scale ReplicaSet shop/batch down by 2 (fits on a)
            exit 1
        "#]],
    );
    check(
        pod("web", "web", "6", json!({})),
        &[],
        &expect![[r#"
        shop/web fits none of 3 nodes
          0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient
          cpu.
          profile default-scheduler
          NodeResourcesFit: needs=6 cpu, too much for 2 of 3 nodes; b is nearest, with
            2500m of 4 free

          NODES  REJECTED BY       PREEMPTION   REASON
              2  NodeResourcesFit  cannot help  Insufficient cpu
                 a: needs=6 cpu, 1 of 4 free
                 b: needs=6 cpu, 2500m of 4 free
              1  TaintToleration   cannot help  node(s) had untolerated taint(s)
                 c: taints=[gpu=yes:NoSchedule]

          preemption: 0/3 nodes are available: 3 Preemption is not helpful for
          scheduling.

          would fit after one of these changes:
          - lower its request of cpu from 6 to 2500m (fits on b)
          - add a toleration of gpu=yes:NoSchedule (fits on c)
        exit 1
    "#]],
    );
}

#[test]
fn labels_constraints_and_affinity() {
    let selector =
        json!({"nodeSelector": {"disk": "ssd", "topology.kubernetes.io/zone": "zone-b"}});
    check(
        pod("web", "web", "1", selector),
        &[],
        &expect![[r#"
            shop/web fits none of 3 nodes
              0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 node(s) didn't
              match Pod's node affinity/selector.
              profile default-scheduler

              NODES  REJECTED BY      PREEMPTION   REASON
                  2  NodeAffinity     cannot help  node(s) didn't match Pod's node
                                                   affinity/selector
                     a: unmatched=nodeSelector disk=ssd, the node has no disk; nodeSelector
                       topology.kubernetes.io/zone=zone-b, the node has
                       topology.kubernetes.io/zone=zone-a
                     b: unmatched=nodeSelector disk=ssd, the node has no disk
                  1  TaintToleration  cannot help  node(s) had untolerated taint(s)
                     c: taints=[gpu=yes:NoSchedule]

              preemption: 0/3 nodes are available: 3 Preemption is not helpful for
              scheduling.

              would fit after one of these changes:
              - remove disk=ssd from its nodeSelector (fits on b)
            exit 1
        "#]],
    );
    let apart = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {"matchLabels": {"app": "batch"}}}]}});
    check(
        pod("web", "web", "1", json!({"affinity": apart})),
        &[],
        &expect![[r#"
            shop/web fits none of 3 nodes
              0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 node(s) didn't
              match pod anti-affinity rules.
              profile default-scheduler

              NODES  REJECTED BY       PREEMPTION     REASON
                  2  InterPodAffinity  does not help  node(s) didn't match pod anti-affinity
                                                      rules
                     a: antiAffinity=term 1 (app=batch) has shop/batch-1, shop/batch-2 in
                       topology.kubernetes.io/zone=zone-a
                     b: antiAffinity=term 1 (app=batch) has shop/batch-3 in
                       topology.kubernetes.io/zone=zone-b
                  1  TaintToleration   cannot help    node(s) had untolerated taint(s)
                     c: taints=[gpu=yes:NoSchedule]

              preemption: 0/3 nodes are available: 1 Preemption is not helpful for
              scheduling, 2 No preemption victims found for incoming pod.

              would fit after one of these changes:
              - remove term 1 (topology.kubernetes.io/zone) of its pod anti-affinity (fits
                on a)
              - scale ReplicaSet shop/batch down by 2 (fits on a)
            exit 1
        "#]],
    );
    let spread = json!([{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}}}]);
    check(
        pod("web", "web", "1", json!({"topologySpreadConstraints": spread})),
        &[],
        &expect![[r#"
            shop/web fits none of 3 nodes
              0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 node(s) didn't
              match pod topology spread constraints (missing required label).
              profile default-scheduler

              NODES  REJECTED BY        PREEMPTION   REASON
                  2  PodTopologySpread  cannot help  node(s) didn't match pod topology
                                                     spread constraints (missing required
                                                     label)
                     a, b: constraints=constraint 1 (rack, maxSkew 1, app=web): the node has
                       no rack
                  1  TaintToleration    cannot help  node(s) had untolerated taint(s)
                     c: taints=[gpu=yes:NoSchedule]

              preemption: 0/3 nodes are available: 3 Preemption is not helpful for
              scheduling.

              would fit after one of these changes:
              - remove its topology spread constraint 1 (rack) (fits on a)
            exit 1
        "#]],
    );
}

#[test]
fn two_changes_and_none() {
    let zone = json!({"nodeSelector": {"topology.kubernetes.io/zone": "zone-x"}});
    check(
        pod("web", "web", "6", zone),
        &["--all"],
        &expect![[r#"
        shop/web fits none of 3 nodes
          0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 node(s) didn't
          match Pod's node affinity/selector.
          profile default-scheduler
          NodeResourcesFit: needs=6 cpu, too much for 2 of 3 nodes; b is nearest, with
            2500m of 4 free

          NODE  REJECTED BY      PREEMPTION   REASON
          a     NodeAffinity     cannot help  node(s) didn't match Pod's node
                                              affinity/selector
            NodeAffinity: unmatched=nodeSelector topology.kubernetes.io/zone=zone-x, the
              node has topology.kubernetes.io/zone=zone-a; NodeResourcesFit: needs=6
              cpu, 1 of 4 free
          b     NodeAffinity     cannot help  node(s) didn't match Pod's node
                                              affinity/selector
            NodeAffinity: unmatched=nodeSelector topology.kubernetes.io/zone=zone-x, the
              node has topology.kubernetes.io/zone=zone-b; NodeResourcesFit: needs=6
              cpu, 2500m of 4 free
          c     TaintToleration  cannot help  node(s) had untolerated taint(s)
            TaintToleration: taints=[gpu=yes:NoSchedule]; NodeAffinity:
              unmatched=nodeSelector topology.kubernetes.io/zone=zone-x, the node has
              topology.kubernetes.io/zone=zone-b

          preemption: 0/3 nodes are available: 3 Preemption is not helpful for
          scheduling.

          would fit after two changes together, one of these pairs:
          - lower its request of cpu from 6 to 2500m, and remove
            topology.kubernetes.io/zone=zone-x from its nodeSelector (fits on b)
          - add a toleration of gpu=yes:NoSchedule, and remove
            topology.kubernetes.io/zone=zone-x from its nodeSelector (fits on c)
        exit 1
    "#]],
    );
    let far = json!({"nodeSelector": {"x": "1", "y": "2", "z": "3"}});
    check(
        pod("web", "web", "1", far),
        &[],
        &expect![[r#"
            shop/web fits none of 3 nodes
              0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 node(s) didn't
              match Pod's node affinity/selector.
              profile default-scheduler

              NODES  REJECTED BY      PREEMPTION   REASON
                  2  NodeAffinity     cannot help  node(s) didn't match Pod's node
                                                   affinity/selector
                     a, b: unmatched=nodeSelector x=1, the node has no x; nodeSelector y=2,
                       the node has no y; nodeSelector z=3, the node has no z
                  1  TaintToleration  cannot help  node(s) had untolerated taint(s)
                     c: taints=[gpu=yes:NoSchedule]

              preemption: 0/3 nodes are available: 3 Preemption is not helpful for
              scheduling.

              no one or two changes were found that would make it fit
            exit 1
        "#]],
    );
}

#[test]
fn changes_in_json() {
    let pending = pod("web", "web", "6", json!({}));
    let folder = Folder::new().with("cluster.json", &cluster(pending));
    let text = folder.run(&["explain", "shop/web", "--from", "cluster.json", "-o", "json"]);
    let json: Value = serde_json::from_str(text.split("exit").next().unwrap()).unwrap();
    expect![[r#"
        {
          "proposals": [
            {
              "changes": [
                {
                  "change": "lowerRequest",
                  "from": 6000,
                  "resource": "cpu",
                  "to": 2500
                }
              ],
              "node": "b"
            },
            {
              "changes": [
                {
                  "change": "addToleration",
                  "effect": "NoSchedule",
                  "key": "gpu",
                  "value": "yes"
                }
              ],
              "node": "c"
            }
          ]
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&json["counterfactual"]).unwrap());
}
