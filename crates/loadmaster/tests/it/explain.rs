//! `loadmaster explain`.

use expect_test::{Expect, expect};

use crate::process::Folder;

const CLUSTER: &str = r#"{"apiVersion": "v1", "kind": "List", "items": [
{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": {"topology.kubernetes.io/zone": "x"}},
 "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}}},
{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "b"},
 "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}}},
{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "c"},
 "spec": {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]},
 "status": {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "10"}}},
{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "d"}, "spec": {"unschedulable": true},
 "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}}},
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "old", "namespace": "default", "uid": "1"},
 "spec": {"nodeName": "a", "containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]},
 "status": {"phase": "Running"}},
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default", "uid": "2"},
 "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}},
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "huge", "namespace": "shop", "uid": "3"},
 "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "32"}}}]}}
]}"#;

#[track_caller]
fn check(args: &[&str], want: &Expect) {
    let folder = Folder::new().with("cluster.json", CLUSTER);
    let mut all = vec!["explain"];
    all.extend(args);
    want.assert_eq(&folder.run(&all));
}

#[test]
fn extenders_are_named_but_not_called() {
    let config = r#"{"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", "extenders": [
        {"urlPrefix": "http://all", "filterVerb": "f", "bindVerb": "b"},
        {"urlPrefix": "http://gpu", "filterVerb": "f", "managedResources": [{"name": "e.com/gpu"}]}]}"#;
    let folder = Folder::new().with("cluster.json", CLUSTER).with("config.json", config);
    let text = folder.run(&["explain", "web", "--from", "cluster.json", "--config", "config.json"]);
    let notes: Vec<&str> = text.lines().filter(|line| line.contains("extender")).collect();
    assert_eq!(
        notes,
        [
            "2> note: extender http://all is not called here, but the scheduler would call it (filter, bind)"
        ]
    );
}

#[test]
fn table_output() {
    check(
        &["web", "--from", "cluster.json"],
        &expect![[r#"
            default/web fits 2 of 4 nodes; best: b
              profile default-scheduler

                                                        Node
                                            Node   Resources
                                Taint  Resources    Balanced
              NODE  TOTAL  Toleration        Fit  Allocation
              b       452         300         81          71
              a       426         300         55          71
              score 0 for all nodes: DynamicResources, ImageLocality

              NODES  REJECTED BY        PREEMPTION   REASON
                  1  NodeUnschedulable  cannot help  node(s) were unschedulable
                     d
                  1  TaintToleration    cannot help  node(s) had untolerated taint(s)
                     c: taints=[gpu=yes:NoSchedule]
            exit 0
        "#]],
    );
    check(
        &["huge", "-n", "shop", "--from", "cluster.json"],
        &expect![[r#"
            shop/huge fits none of 4 nodes
              0/4 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were
              unschedulable, 2 Insufficient cpu.
              profile default-scheduler
              NodeResourcesFit: needs=32 cpu, too much for 3 of 4 nodes; b is nearest, with
                4 of 4 free

              NODES  REJECTED BY        PREEMPTION   REASON
                  2  NodeResourcesFit   cannot help  Insufficient cpu
                     a: needs=32 cpu, 2 of 4 free
                     b: needs=32 cpu, 4 of 4 free
                  1  NodeUnschedulable  cannot help  node(s) were unschedulable
                     d
                  1  TaintToleration    cannot help  node(s) had untolerated taint(s)
                     c: taints=[gpu=yes:NoSchedule]

              preemption: 0/4 nodes are available: 4 Preemption is not helpful for
              scheduling.

              would fit after one of these changes:
              - lower its request of cpu from 32 to 4 (fits on b)
              - add a toleration of gpu=yes:NoSchedule (fits on c)
            exit 1
        "#]],
    );
    check(
        &["default/old", "--from", "cluster.json", "--all"],
        &expect![[r#"
            default/old fits 2 of 4 nodes; best: a, b
              profile default-scheduler; assigned to a, explained as if it were pending

                                                        Node
                                            Node   Resources
                                Taint  Resources    Balanced
              NODE  TOTAL  Toleration        Fit  Allocation
              a       435         300         73          62
              b       435         300         73          62
              score 0 for all nodes: DynamicResources, ImageLocality

              NODE  REJECTED BY        PREEMPTION   REASON
              c     TaintToleration    cannot help  node(s) had untolerated taint(s)
                TaintToleration: taints=[gpu=yes:NoSchedule]
              d     NodeUnschedulable  cannot help  node(s) were unschedulable
            exit 0
        "#]],
    );
}

#[test]
fn json_and_yaml_output() {
    check(
        &["default/web", "--from", "cluster.json", "-o", "json"],
        &expect![[r#"
            {
              "pod": "default/web",
              "profile": "default-scheduler",
              "nodes": [
                {
                  "name": "a",
                  "filter": {
                    "code": "Success"
                  },
                  "scores": {
                    "TaintToleration": 300,
                    "NodeResourcesFit": 55,
                    "DynamicResources": 0,
                    "NodeResourcesBalancedAllocation": 71,
                    "ImageLocality": 0
                  },
                  "total": 426
                },
                {
                  "name": "b",
                  "filter": {
                    "code": "Success"
                  },
                  "scores": {
                    "TaintToleration": 300,
                    "NodeResourcesFit": 81,
                    "DynamicResources": 0,
                    "NodeResourcesBalancedAllocation": 71,
                    "ImageLocality": 0
                  },
                  "total": 452
                },
                {
                  "name": "c",
                  "filter": {
                    "code": "UnschedulableAndUnresolvable",
                    "plugin": "TaintToleration",
                    "reasons": [
                      "node(s) had untolerated taint(s)"
                    ]
                  },
                  "scores": {},
                  "details": {
                    "TaintToleration": {
                      "taints": [
                        "gpu=yes:NoSchedule"
                      ]
                    }
                  }
                },
                {
                  "name": "d",
                  "filter": {
                    "code": "UnschedulableAndUnresolvable",
                    "plugin": "NodeUnschedulable",
                    "reasons": [
                      "node(s) were unschedulable"
                    ]
                  },
                  "scores": {}
                }
              ],
              "best": [
                "b"
              ],
              "message": ""
            }
            exit 0
        "#]],
    );
    check(
        &["shop/huge", "--from", "cluster.json", "-o", "yaml"],
        &expect![[r#"
            pod: shop/huge
            profile: default-scheduler
            details:
              NodeResourcesFit:
                needs: 32 cpu, too much for 3 of 4 nodes; b is nearest, with 4 of 4 free
            nodes:
            - name: a
              filter:
                code: UnschedulableAndUnresolvable
                plugin: NodeResourcesFit
                reasons:
                - Insufficient cpu
              scores: {}
              details:
                NodeResourcesFit:
                  needs: 32 cpu, 2 of 4 free
            - name: b
              filter:
                code: UnschedulableAndUnresolvable
                plugin: NodeResourcesFit
                reasons:
                - Insufficient cpu
              scores: {}
              details:
                NodeResourcesFit:
                  needs: 32 cpu, 4 of 4 free
            - name: c
              filter:
                code: UnschedulableAndUnresolvable
                plugin: TaintToleration
                reasons:
                - node(s) had untolerated taint(s)
              scores: {}
              details:
                TaintToleration:
                  taints:
                  - gpu=yes:NoSchedule
            - name: d
              filter:
                code: UnschedulableAndUnresolvable
                plugin: NodeUnschedulable
                reasons:
                - node(s) were unschedulable
              scores: {}
              details:
                NodeResourcesFit:
                  needs: 32 cpu, 4 of 4 free
            best: []
            message: "0/4 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable, 2 Insufficient cpu."
            preemption:
              candidates: {}
              best: []
              message: "preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling."
            counterfactual:
              proposals:
              - changes:
                - change: lowerRequest
                  resource: cpu
                  from: 32000
                  to: 4000
                node: b
              - changes:
                - change: addToleration
                  key: gpu
                  value: "yes"
                  effect: NoSchedule
                node: c
            exit 1
        "#]],
    );
}

/// Two nodes full of pods with low priority, one node where preemption cannot help, and two pending pods.
const FULL: &str = r#"{"apiVersion": "v1", "kind": "List", "items": [
{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}, "status": {"allocatable": {"cpu": "2", "pods": "10"}}},
{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "b"}, "status": {"allocatable": {"cpu": "2", "pods": "10"}}},
{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "c"}, "status": {"allocatable": {"cpu": "1", "pods": "10"}}},
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p1", "namespace": "x", "uid": "1", "labels": {"app": "db"}},
 "spec": {"nodeName": "a", "priority": 5, "containers": [{"resources": {"requests": {"cpu": "1"}}}]}},
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p2", "namespace": "x", "uid": "2", "labels": {"app": "db"}},
 "spec": {"nodeName": "a", "containers": [{"resources": {"requests": {"cpu": "1"}}}]}},
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p3", "namespace": "x", "uid": "3"},
 "spec": {"nodeName": "b", "priority": 5, "containers": [{"resources": {"requests": {"cpu": "2"}}}]}},
{"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "db", "namespace": "x"},
 "spec": {"selector": {"matchLabels": {"app": "db"}}}, "status": {"disruptionsAllowed": 1}},
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "high", "namespace": "x", "uid": "4"},
 "spec": {"priority": 9, "containers": [{"resources": {"requests": {"cpu": "2"}}}]}},
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "low", "namespace": "x", "uid": "5"},
 "spec": {"priority": -9, "containers": [{"resources": {"requests": {"cpu": "2"}}}]}}
]}"#;

#[test]
fn preemption_candidates_and_victims() {
    let folder = Folder::new().with("full.json", FULL);
    let check = |args: &[&str], want: &Expect| {
        let args = [&["explain", "-n", "x", "--from", "full.json"], args].concat();
        want.assert_eq(&folder.run(&args));
    };
    check(
        &["high"],
        &expect![[r#"
            x/high fits none of 3 nodes
              0/3 nodes are available: 3 Insufficient cpu.
              profile default-scheduler
              NodeResourcesFit: needs=2 cpu, too much for 3 of 3 nodes; c is nearest, with 1
                of 1 free

              NODES  REJECTED BY       PREEMPTION   REASON
                  2  NodeResourcesFit  helps        Insufficient cpu
                     a, b: needs=2 cpu, 0 of 2 free
                  1  NodeResourcesFit  cannot help  Insufficient cpu
                     c: needs=2 cpu, 1 of 1 free

              preemption is possible on 2 nodes; best: b
              NODE  VICTIMS  PDB VIOLATIONS  FOR EXAMPLE
              b           1               0  x/p3
              a           2               1  x/p1, x/p2

              would fit after one of these changes:
              - lower its request of cpu from 2 to 1 (fits on c)
              - add a node like a
            exit 1
        "#]],
    );
    check(
        &["low"],
        &expect![[r#"
            x/low fits none of 3 nodes
              0/3 nodes are available: 3 Insufficient cpu.
              profile default-scheduler
              NodeResourcesFit: needs=2 cpu, too much for 3 of 3 nodes; c is nearest, with 1
                of 1 free

              NODES  REJECTED BY       PREEMPTION     REASON
                  2  NodeResourcesFit  does not help  Insufficient cpu
                     a, b: needs=2 cpu, 0 of 2 free
                  1  NodeResourcesFit  cannot help    Insufficient cpu
                     c: needs=2 cpu, 1 of 1 free

              preemption: 0/3 nodes are available: 1 Preemption is not helpful for
              scheduling, 2 No preemption victims found for incoming pod.

              would fit after one of these changes:
              - lower its request of cpu from 2 to 1 (fits on c)
              - add a node like a
            exit 1
        "#]],
    );
    check(
        &["high", "-o", "yaml"],
        &expect![[r#"
            pod: x/high
            profile: default-scheduler
            details:
              NodeResourcesFit:
                needs: 2 cpu, too much for 3 of 3 nodes; c is nearest, with 1 of 1 free
            nodes:
            - name: a
              filter:
                code: Unschedulable
                plugin: NodeResourcesFit
                reasons:
                - Insufficient cpu
              scores: {}
              details:
                NodeResourcesFit:
                  needs: 2 cpu, 0 of 2 free
            - name: b
              filter:
                code: Unschedulable
                plugin: NodeResourcesFit
                reasons:
                - Insufficient cpu
              scores: {}
              details:
                NodeResourcesFit:
                  needs: 2 cpu, 0 of 2 free
            - name: c
              filter:
                code: UnschedulableAndUnresolvable
                plugin: NodeResourcesFit
                reasons:
                - Insufficient cpu
              scores: {}
              details:
                NodeResourcesFit:
                  needs: 2 cpu, 1 of 1 free
            best: []
            message: "0/3 nodes are available: 3 Insufficient cpu."
            preemption:
              candidates:
                a:
                  victims:
                  - x/p1
                  - x/p2
                  pdbViolations: 1
                b:
                  victims:
                  - x/p3
                  pdbViolations: 0
              best:
              - b
              message: ""
            counterfactual:
              proposals:
              - changes:
                - change: lowerRequest
                  resource: cpu
                  from: 2000
                  to: 1000
                node: c
              - changes:
                - change: addNode
                  like: a
                node: a-copy
            exit 1
        "#]],
    );
    check(
        &["low", "-o", "yaml"],
        &expect![[r#"
            pod: x/low
            profile: default-scheduler
            details:
              NodeResourcesFit:
                needs: 2 cpu, too much for 3 of 3 nodes; c is nearest, with 1 of 1 free
            nodes:
            - name: a
              filter:
                code: Unschedulable
                plugin: NodeResourcesFit
                reasons:
                - Insufficient cpu
              scores: {}
              details:
                NodeResourcesFit:
                  needs: 2 cpu, 0 of 2 free
            - name: b
              filter:
                code: Unschedulable
                plugin: NodeResourcesFit
                reasons:
                - Insufficient cpu
              scores: {}
              details:
                NodeResourcesFit:
                  needs: 2 cpu, 0 of 2 free
            - name: c
              filter:
                code: UnschedulableAndUnresolvable
                plugin: NodeResourcesFit
                reasons:
                - Insufficient cpu
              scores: {}
              details:
                NodeResourcesFit:
                  needs: 2 cpu, 1 of 1 free
            best: []
            message: "0/3 nodes are available: 3 Insufficient cpu."
            preemption:
              candidates: {}
              best: []
              message: "preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling, 2 No preemption victims found for incoming pod."
            counterfactual:
              proposals:
              - changes:
                - change: lowerRequest
                  resource: cpu
                  from: 2000
                  to: 1000
                node: c
              - changes:
                - change: addNode
                  like: a
                node: a-copy
            exit 1
        "#]],
    );
}

#[test]
fn invalid_input() {
    check(
        &["web", "--from", "nowhere.json"],
        &expect![[r#"
        2> error: reading nowhere.json: No such file or directory (os error 2)
        exit 2
    "#]],
    );
    check(
        &["nobody", "--from", "cluster.json"],
        &expect![[r#"
        2> error: pod "default/nobody" is not among the 3 pods
        exit 2
    "#]],
    );
    check(
        &["default/web", "-n", "shop", "--from", "cluster.json"],
        &expect![[r#"
        2> error: pod default/web: does not match --namespace "shop"
        exit 2
    "#]],
    );
    let folder = Folder::new()
        .with("cluster.json", &CLUSTER.replace(r#""nodeName": "a""#, r#""nodeName": "z""#));
    expect![[r#"
        2> error: cluster.json:12:23: items[4].spec.nodeName: expected one of the 4 nodes, found "z"
        exit 2
    "#]]
    .assert_eq(&folder.run(&["explain", "web", "--from", "cluster.json"]));
    let folder = Folder::new()
        .with("cluster.json", &CLUSTER.replace(r#""cpu": "32""#, r#""cpu": "32 cores""#));
    expect![[r#"
        2> error: cluster.json:17:77: items[6].spec.containers[0].resources.requests.cpu: invalid quantity "32 cores": expected a number with an optional suffix such as m, Ki, M or e3
        exit 2
    "#]].assert_eq(&folder.run(&["explain", "web", "--from", "cluster.json"]));
}

#[test]
fn all_errors_of_the_files_are_printed() {
    let broken = CLUSTER
        .replace(r#""cpu": "32""#, r#""cpu": "32 cores""#)
        .replace(r#""key": "gpu""#, r#""key": 7"#)
        .replace(
            r#""kind": "Pod", "metadata": {"name": "web""#,
            r#""kind": "Pot", "metadata": {"name": "web""#,
        );
    let more = "apiVersion: v1\nmetadata: {name: x}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: [y]}\n";
    let folder = Folder::new().with("cluster.json", &broken).with("more.yaml", more);
    expect![[r#"
        2> error: cluster.json:7:30: items[2].spec.taints[0].key: expected a string, found integer `7`
        2> error: cluster.json:14:30: items[5].kind: expected a kind of v1, found "Pot"; did you mean "Pod"?
        2> error: cluster.json:17:77: items[6].spec.containers[0].resources.requests.cpu: invalid quantity "32 cores": expected a number with an optional suffix such as m, Ki, M or e3
        2> error: more.yaml:1:1: expected apiVersion and kind, found no kind
        2> error: more.yaml:6:18: metadata.name: expected a string, found sequence
        exit 2
    "#]].assert_eq(&folder.run(&[
        "explain",
        "web",
        "--from",
        "cluster.json",
        "--from",
        "more.yaml",
    ]));
    expect![[r#"
        2> error: reading a.json: No such file or directory (os error 2)
        2> error: reading b.json: No such file or directory (os error 2)
        exit 2
    "#]]
    .assert_eq(&folder.run(&["explain", "web", "--from", "a.json", "--from", "b.json"]));
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    use std::process::{Command, Stdio};
    let folder = Folder::new().with("cluster.json", CLUSTER);
    drop(folder.run(&["explain", "web", "--from", "cluster.json"]));
    let mut child = Command::new(env!("CARGO_BIN_EXE_loadmaster"))
        .args(["completion", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0));
}
