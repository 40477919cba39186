use expect_test::{Expect, expect};
use proptest::prelude::*;
use serde_json::Value;

use super::*;

mod splits;

/// Reads texts as files f0, f1 and so on; says what is in them, or what is wrong.
fn read(texts: &[&str]) -> Result<Snapshot, SnapshotError> {
    let document = |(nth, text): (usize, &&str)| Document::new(format!("f{nth}"), *text);
    Snapshot::read(&texts.iter().enumerate().map(document).collect::<Vec<_>>())
}

#[track_caller]
fn check_all(texts: &[&str], want: &Expect) {
    want.assert_eq(&match read(texts) {
        Ok(snapshot) => describe(&snapshot),
        Err(error) => error.to_string(),
    });
}

#[track_caller]
fn check(text: &str, want: &Expect) {
    check_all(&[text], want);
}

fn describe(snapshot: &Snapshot) -> String {
    let mut all = Vec::new();
    let mut add = |kind: &str, meta: &ObjectMeta, origin: ObjectOrigin| {
        let ObjectOrigin { document, part, item } = origin;
        let item = if item == ObjectOrigin::NO_ITEM { "-".to_owned() } else { item.to_string() };
        let name = format!("{}/{}", meta.namespace, meta.name);
        all.push(format!("{kind} {} @{document}.{part}.{item}", name.trim_start_matches('/')));
    };
    snapshot.nodes.iter().for_each(|x| add("Node", &x.metadata, x.origin));
    snapshot.pods.iter().for_each(|x| add("Pod", &x.metadata, x.origin));
    snapshot.namespaces.iter().for_each(|x| add("Namespace", &x.metadata, x.origin));
    snapshot.services.iter().for_each(|x| add("Service", &x.metadata, x.origin));
    snapshot.replication_controllers.iter().for_each(|x| add("RC", &x.metadata, x.origin));
    snapshot.replica_sets.iter().for_each(|x| add("ReplicaSet", &x.metadata, x.origin));
    snapshot.stateful_sets.iter().for_each(|x| add("StatefulSet", &x.metadata, x.origin));
    snapshot.deployments.iter().for_each(|x| add("Deployment", &x.metadata, x.origin));
    snapshot.jobs.iter().for_each(|x| add("Job", &x.metadata, x.origin));
    snapshot.disruption_budgets.iter().for_each(|x| add("PDB", &x.metadata, x.origin));
    snapshot.priority_classes.iter().for_each(|x| add("PriorityClass", &x.metadata, x.origin));
    if snapshot.n_finished_pods > 0 {
        all.push(format!("{} finished", snapshot.n_finished_pods));
    }
    all.extend(snapshot.skipped.iter().map(|(kind, count)| format!("{count} {kind}")));
    all.join(", ")
}

/// As kubectl prints it: keys sorted, so that items come before the kind of the list.
const KUBECTL: &str = r#"{
    "apiVersion": "v1",
    "items": [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"creationTimestamp": "2026-01-02T03:04:05Z", "labels": {"kubernetes.io/hostname": "a"}, "name": "a"},
            "spec": {"taints": [{"effect": "NoSchedule", "key": "k"}]},
            "status": {"capacity": {"cpu": "4", "memory": "8Gi"}}
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "shop", "creationTimestamp": null},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "100m"}}}], "nodeName": "a"},
            "status": {"phase": "Running"}
        },
        {
            "apiVersion": "v1",
            "data": {"spec": "x"},
            "kind": "ConfigMap",
            "metadata": {"name": "m", "namespace": "shop"}
        },
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "description": "d",
            "globalDefault": true,
            "kind": "PriorityClass",
            "metadata": {"name": "high"},
            "preemptionPolicy": "Never",
            "value": 7
        }
    ],
    "kind": "List",
    "metadata": {"resourceVersion": ""}
}"#;

#[test]
fn a_list_of_kubectl() {
    check(
        KUBECTL,
        &expect!["Node a @0.0.0, Pod shop/p @0.0.1, PriorityClass high @0.0.3, 1 ConfigMap"],
    );
    let snapshot = read(&[KUBECTL]).unwrap();
    assert_eq!(snapshot.nodes[0].status.allocatable, snapshot.nodes[0].status.capacity);
    assert_eq!(snapshot.nodes[0].spec.taints[0].key, "k");
    assert_eq!(snapshot.pods[0].spec.node_name, "a");
    let class = &snapshot.priority_classes[0].object;
    assert_eq!((class.value, class.global_default), (7, true));
    assert_eq!(class.preemption_policy.as_deref(), Some("Never"));
    let path = "spec.containers[0].resources.requests.cpu".parse().unwrap();
    assert_eq!(snapshot.locate(snapshot.pods[0].origin, &path), Some((15, 85)));
    let error =
        snapshot.error_at(snapshot.nodes[0].origin, &"spec.taints[0].key".parse().unwrap(), "x");
    assert_eq!(error.to_string(), "f0:8:65: items[0].spec.taints[0].key: x");
}

#[test]
fn shapes_of_files() {
    let node = |name: &str| {
        format!("{{\"apiVersion\":\"v1\",\"kind\":\"Node\",\"metadata\":{{\"name\":\"{name}\"}}}}")
    };
    check(&node("a"), &expect!["Node a @0.0.-"]);
    check(&format!("{} {}\n", node("a"), node("b")), &expect!["Node a @0.0.-, Node b @0.1.-"]);
    check_all(&[&node("a"), &node("b")], &expect!["Node a @0.0.-, Node b @1.0.-"]);
    // As the API server sends it: the type first, items without one.
    check(
        r#"{"kind":"NodeList","apiVersion":"v1","metadata":{},"items":[{"metadata":{"name":"a"}},{"spec":{},"metadata":{"name":"b"}}]}"#,
        &expect!["Node a @0.0.0, Node b @0.0.1"],
    );
    // The same with sorted keys.
    check(
        r#"{"apiVersion":"v1","items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}],"kind":"NodeList"}"#,
        &expect!["Node a @0.0.0, Node b @0.0.1"],
    );
    check(
        r#"{"kind":"NodeList","apiVersion":"v1","items":[{"kind":"Node","metadata":{"name":"a"}},{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"}}]}"#,
        &expect!["Node a @0.0.0, Pod default/b @0.0.1"],
    );
    check(
        r#"{"kind":"NodeList","items":[{"metadata":{"name":"a"}}],"apiVersion":"v1"}"#,
        &expect!["Node a @0.0.0"],
    );
    check(
        r#"{"kind":"ConfigMapList","apiVersion":"v1","items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}"#,
        &expect!["2 ConfigMap"],
    );
    check(
        r#"{"kind":"GadgetList","apiVersion":"example.com/v1","items":[{"spec":5}]}"#,
        &expect!["1 Gadget.example.com"],
    );
    check(
        r#"{"kind":"AllowList","apiVersion":"example.com/v1","spec":{}}"#,
        &expect!["1 AllowList.example.com"],
    );
    check(r#"{"kind":"List","apiVersion":"v1","items":null}"#, &expect![[""]]);
    check("apiVersion: v1\nkind: List\n", &expect![[""]]);
    check(
        "---\n# one\napiVersion: v1\nkind: Node\nmetadata: {name: a}\n---\n---\nmetadata:\n  name: b\nstatus: {}\nkind: Node\napiVersion: v1\n",
        &expect!["Node a @0.0.-, Node b @0.1.-"],
    );
    check(
        "apiVersion: v1\nitems:\n- metadata:\n    name: b\nkind: PodList\n",
        &expect!["Pod default/b @0.0.0"],
    );
}

#[test]
fn kinds() {
    let object = |version: &str, kind: &str| {
        format!("- {{apiVersion: {version}, kind: {kind}, metadata: {{name: x}}}}\n")
    };
    let mut text = "apiVersion: v1\nkind: List\nitems:\n".to_owned();
    for (version, kind) in [
        ("v1", "Node"),
        ("v1", "Pod"),
        ("v1", "Namespace"),
        ("v1", "Service"),
        ("v1", "ReplicationController"),
        ("apps/v1", "ReplicaSet"),
        ("apps/v1", "StatefulSet"),
        ("apps/v1", "Deployment"),
        ("batch/v1", "Job"),
        ("policy/v1", "PodDisruptionBudget"),
        ("scheduling.k8s.io/v1", "PriorityClass"),
        ("v1", "Secret"),
        ("v1", "Secret"),
        ("apps/v1", "DaemonSet"),
        ("storage.k8s.io/v1", "StorageClass"),
        ("rbac.authorization.k8s.io/v1", "Role"),
        ("batch.volcano.sh/v1alpha1", "Job"),
        ("autoscaling/v2", "HorizontalPodAutoscaler"),
        ("snapshot.storage.k8s.io/v1", "VolumeSnapshot"),
        ("example.com/v1", "PodList"),
    ] {
        text += &object(version, kind);
    }
    check(
        &text,
        &expect![
            "Node x @0.0.0, Pod default/x @0.0.1, Namespace x @0.0.2, Service default/x @0.0.3, RC default/x @0.0.4, ReplicaSet default/x @0.0.5, StatefulSet default/x @0.0.6, Deployment default/x @0.0.7, Job default/x @0.0.8, PDB default/x @0.0.9, PriorityClass x @0.0.10, 1 DaemonSet, 1 HorizontalPodAutoscaler, 1 Job.batch.volcano.sh, 1 PodList.example.com, 1 Role, 2 Secret, 1 StorageClass, 1 VolumeSnapshot.snapshot.storage.k8s.io"
        ],
    );
    for (version, kind, want) in [
        (
            "v2",
            "Pod",
            expect![[r#"f0:4:16: items[0].apiVersion: expected "v1" for a Pod, found "v2""#]],
        ),
        (
            "extensions/v1beta1",
            "Deployment",
            expect![[
                r#"f0:4:16: items[0].apiVersion: expected "apps/v1" for a Deployment, found "extensions/v1beta1""#
            ]],
        ),
        (
            "v1",
            "Deployment",
            expect![[
                r#"f0:4:16: items[0].apiVersion: expected "apps/v1" for a Deployment, found "v1""#
            ]],
        ),
        (
            "policy/v1beta1",
            "PodDisruptionBudget",
            expect![[
                r#"f0:4:16: items[0].apiVersion: expected "policy/v1" for a PodDisruptionBudget, found "policy/v1beta1""#
            ]],
        ),
        (
            "v1",
            "Pods",
            expect![[
                r#"f0:4:26: items[0].kind: expected a kind of v1, found "Pods"; did you mean "Pod"?"#
            ]],
        ),
        (
            "apps/v1",
            "Pod",
            expect![[r#"f0:4:16: items[0].apiVersion: expected "v1" for a Pod, found "apps/v1""#]],
        ),
        (
            "foo/v1",
            "Bar",
            expect![[r#"f0:4:30: items[0].kind: expected a kind of foo/v1, found "Bar""#]],
        ),
        (
            "scheduling.k8s.io/v1",
            "Other",
            expect![[
                r#"f0:4:44: items[0].kind: expected a kind of scheduling.k8s.io/v1, found "Other""#
            ]],
        ),
        (
            "v1",
            "PodList",
            expect![[r#"f0:4:26: items[0].kind: expected no list in a list, found "PodList""#]],
        ),
        (
            "v1",
            "List",
            expect![[r#"f0:4:26: items[0].kind: expected no list in a list, found "List""#]],
        ),
        (
            "apps/v1",
            "List",
            expect![[r#"f0:4:16: items[0].apiVersion: expected "v1" for a List, found "apps/v1""#]],
        ),
    ] {
        check(&format!("apiVersion: v1\nkind: List\nitems:\n{}", object(version, kind)), &want);
    }
}

#[test]
fn defaults() {
    let snapshot = read(&["{apiVersion: v1, kind: Pod, metadata: {name: a}}\n---\n{apiVersion: v1, kind: Node, metadata: {name: a}, status: {capacity: {cpu: 1}, allocatable: {cpu: 500m}}}\n"]).unwrap();
    assert_eq!(snapshot.pods[0].metadata.namespace, "default");
    assert_eq!(snapshot.nodes[0].metadata.namespace, "");
    assert_eq!(snapshot.nodes[0].status.allocatable.get("cpu").unwrap().milli_value(), 500);
    let pod = |name: &str, phase: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, status: {{phase: {phase}}}}}\n"
        )
    };
    let pods: String = ["Pending", "Running", "Succeeded", "Failed", "Unknown"]
        .map(|phase| pod(&phase.to_lowercase(), phase))
        .concat();
    check(
        &pods,
        &expect![
            "Pod default/pending @0.0.-, Pod default/running @0.1.-, Pod default/unknown @0.4.-, 2 finished"
        ],
    );
}

#[test]
fn unusable_files() {
    check_all(&[], &expect!["expected at least one file with Kubernetes objects, found none"]);
    check("", &expect!["f0:1:1: expected Kubernetes objects, found nothing"]);
    check_all(
        &[KUBECTL, "# nothing\n"],
        &expect!["f1:1:1: expected Kubernetes objects, found nothing"],
    );
    check("[]", &expect!["f0:1:1: expected a Kubernetes object, found sequence"]);
    check("5", &expect!["f0:1:1: expected a map"]);
    check("null", &expect!["f0:1:1: expected apiVersion and kind, found neither"]);
    check("{}", &expect!["f0:1:1: expected apiVersion and kind, found neither"]);
    check(
        "{\"apiVersion\": \"v1\",\n \"kind\": \"Node\",",
        &expect!["f0:2:16: EOF while parsing a value"],
    );
    check(
        "apiVersion: v1\nkind: Node\n metadata: a\n",
        &expect![[
            r#"f0:2:7: kind: expected a kind of v1, found "Node metadata"; did you mean "Node"?"#
        ]],
    );
    check(
        "kind: Node\nmetadata: {name: a}\n",
        &expect!["f0:1:1: expected apiVersion and kind, found no apiVersion"],
    );
    check(
        "apiVersion: v1\nkind: ''\n",
        &expect!["f0:1:1: expected apiVersion and kind, found no kind"],
    );
    check("apiVersion: v1\nkind: [Node]\n", &expect!["f0:2:7: kind: expected a string"]);
    check("apiVersion: v1\nitems: {}\nkind: List\n", &expect!["f0:2:8: items: expected a list"]);
    check(
        "apiVersion: v1\nitems: [{apiVersion: v1, kind: Node, metadata: {name: a}}]\nkind: Pod\n",
        &expect![[r#"f0:3:7: kind: expected a list, since there are items, found "Pod""#]],
    );
    check(
        "apiVersion: v1\nitems: [{metadata: {name: a}}]\nkind: List\n",
        &expect!["f0:2:9: items[0]: expected apiVersion and kind, found neither"],
    );
    check(
        "apiVersion: v1\nkind: List\nitems: [null]\n",
        &expect!["f0:3:9: items[0]: expected apiVersion and kind, found neither"],
    );
    check(
        "apiVersion: v1\nkind: Node\nmetadata: {}\n",
        &expect!["f0:3:11: metadata.name: expected a name, found none"],
    );
}

/// The same fault in JSON and in YAML; `{}` stands for fields of a pod in a list.
#[track_caller]
fn check_fault(json: &str, json_want: &Expect, yaml: &str, yaml_want: &Expect) {
    let good = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}"#;
    let bad = format!("{{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\n{json}}}");
    check(
        &format!("{{\"apiVersion\":\"v1\",\"items\":[\n{good},\n{bad}],\"kind\":\"List\"}}"),
        json_want,
    );
    let yaml = yaml.replace('\n', "\n  ");
    check(
        &format!(
            "apiVersion: v1\nkind: List\nitems:\n- {good}\n- apiVersion: v1\n  kind: Pod\n  {yaml}"
        ),
        yaml_want,
    );
}

#[test]
fn errors_have_positions() {
    check_fault(
        r#""metadata":{"name":"b"},"spec":{"priority":"x"}"#,
        &expect![[r#"f0:4:44: items[1].spec.priority: expected i32, found string "x""#]],
        "metadata: {name: b}\nspec:\n  priority: x\n",
        &expect![[r#"f0:9:15: items[1].spec.priority: expected i32, found "x""#]],
    );
    check_fault(
        r#""metadata":{"name":"b"},"spec":{"containers":[{},{"resources":{"requests":{"nvidia.com/gpu":"1x"}}}]}"#,
        &expect![[
            r#"f0:4:93: items[1].spec.containers[1].resources.requests[nvidia.com/gpu]: invalid quantity "1x": expected a number with an optional suffix such as m, Ki, M or e3"#
        ]],
        "metadata: {name: b}\nspec:\n  containers:\n  - {}\n  - resources:\n      requests:\n        nvidia.com/gpu: 1x\n",
        &expect![[
            r#"f0:13:27: items[1].spec.containers[1].resources.requests[nvidia.com/gpu]: invalid quantity "1x": expected a number with an optional suffix such as m, Ki, M or e3"#
        ]],
    );
    check_fault(
        r#""metadata":{"name":"b","creationTimestamp":"yesterday"}"#,
        &expect![[
            r#"f0:4:44: items[1].metadata.creationTimestamp: expected a time such as 2026-01-31T12:00:00Z, found string "yesterday""#
        ]],
        "metadata:\n  name: b\n  creationTimestamp: yesterday\n",
        &expect![[
            r#"f0:9:24: items[1].metadata.creationTimestamp: expected a time such as 2026-01-31T12:00:00Z, found string "yesterday""#
        ]],
    );
    check_fault(
        r#""metadata":{"name":"b","labels":{"a":{}}}"#,
        &expect!["f0:4:38: items[1].metadata.labels.a: expected a string, found map"],
        "metadata:\n  name: b\n  labels: {a: {}}\n",
        &expect!["f0:9:17: items[1].metadata.labels.a: expected a string"],
    );
    check_fault(
        r#""metadata":{"name":""}"#,
        &expect!["f0:4:20: items[1].metadata.name: expected a name, found none"],
        "metadata:\n  name:\n",
        &expect!["f0:8:9: items[1].metadata.name: expected a name, found none"],
    );
    check_fault(
        r#""metadata":{"name":"a"}"#,
        &expect![[
            r#"f0:4:20: items[1].metadata.name: expected one pod "default/a", found a second; the first is at f0:2:1"#
        ]],
        "metadata:\n  name: a\n",
        &expect![[
            r#"f0:8:11: items[1].metadata.name: expected one pod "default/a", found a second; the first is at f0:4:3"#
        ]],
    );
    check_fault(
        r#""metadata":{"name":"b"},"metadata":{"name":"c"}"#,
        &expect!["f0:4:34: items[1]: duplicate field `metadata`"],
        "metadata:\n  name: b\nmetadata:\n  name: c\n",
        &expect![[r#"f0:9:3: items[1]: duplicate key "metadata""#]],
    );
}

#[test]
fn errors_before_the_kind_have_positions() {
    check(
        "{\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"a\"},\n\"spec\":{\"taints\":[{\"key\":5}]},\"kind\":\"Node\"}",
        &expect!["f0:2:26: spec.taints[0].key: expected a string, found integer `5`"],
    );
    check(
        "apiVersion: v1\nmetadata: {name: a}\nspec:\n  taints:\n  - key: []\nkind: Node\n",
        &expect!["f0:5:10: spec.taints[0].key: expected a string, found sequence"],
    );
    check(
        "{\"apiVersion\":\"scheduling.k8s.io/v1\",\"globalDefault\":1,\"kind\":\"PriorityClass\"}",
        &expect!["f0:1:54: globalDefault: expected a boolean, found integer `1`"],
    );
}

#[test]
fn references() {
    let pod = "---\n{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {nodeName: b}}\n";
    check(pod, &expect!["Pod default/p @0.0.-"]);
    check_all(
        &["{apiVersion: v1, kind: Node, metadata: {name: a}}\n", pod],
        &expect![[r#"f1:2:67: spec.nodeName: expected one of the 1 nodes, found "b""#]],
    );
    check_all(
        &["{apiVersion: v1, kind: Node, metadata: {name: b}}\n", pod],
        &expect!["Node b @0.0.-, Pod default/p @1.0.-"],
    );
    check_all(
        &[
            "{apiVersion: v1, kind: Node, metadata: {name: b}}\n",
            "# x\n{apiVersion: v1, kind: Node, metadata: {name: b}}",
        ],
        &expect![[
            r#"f1:2:47: metadata.name: expected one node "b", found a second; the first is at f0:1:1"#
        ]],
    );
}

#[test]
fn nulls_are_taken_as_absent() {
    let text = r#"{"apiVersion":"v1","kind":"List","items":[
        {"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":null,"labels":null,"ownerReferences":null,"creationTimestamp":null},
         "spec":{"nodeName":null,"affinity":null,"tolerations":null,"containers":[{"name":"c","resources":{"requests":null},"ports":null}],"nodeSelector":null},
         "status":{"phase":null,"conditions":null}},
        {"apiVersion":"v1","kind":"Node","metadata":{"name":"n"},"spec":{"taints":null},"status":{"capacity":null,"images":null}}]}"#;
    check(text, &expect!["Node n @0.0.1, Pod default/a @0.0.0"]);
}

/// Puts `null` and `[]` in the place of fields whose type in Go is no list, as their paths below an object of the kind say.
#[test]
fn nulls_are_zero_values_and_lists_are_no_objects() {
    let kinds = [
        (
            "v1",
            "Node",
            "metadata spec spec.unschedulable spec.taints[] spec.taints[].key status status.images[] status.images[].sizeBytes status.images[].names[] status.declaredFeatures[]",
        ),
        (
            "v1",
            "Pod",
            "metadata metadata.ownerReferences[] metadata.ownerReferences[].name metadata.ownerReferences[].uid metadata.ownerReferences[].kind metadata.ownerReferences[].apiVersion metadata.ownerReferences[].controller spec spec.hostNetwork spec.hostUsers spec.priority spec.affinity spec.affinity.nodeAffinity spec.affinity.podAffinity spec.resources spec.schedulingGates[] spec.schedulingGates[].name spec.containers[] spec.containers[].resources spec.containers[].ports[] spec.containers[].ports[].hostPort spec.containers[].restartPolicyRules[] spec.containers[].restartPolicyRules[].action spec.volumes[] spec.volumes[].ephemeral spec.volumes[].persistentVolumeClaim spec.volumes[].persistentVolumeClaim.claimName spec.topologySpreadConstraints[] spec.topologySpreadConstraints[].maxSkew spec.topologySpreadConstraints[].labelSelector spec.topologySpreadConstraints[].matchLabelKeys[] spec.tolerations[] status status.conditions[] status.conditions[].type status.containerStatuses[]",
        ),
        ("v1", "Namespace", "metadata"),
        ("v1", "Service", "metadata spec spec.selector"),
        ("v1", "ReplicationController", "metadata spec spec.selector"),
        (
            "apps/v1",
            "ReplicaSet",
            "metadata spec spec.replicas spec.selector spec.template spec.template.metadata spec.template.spec",
        ),
        (
            "apps/v1",
            "StatefulSet",
            "metadata spec spec.selector spec.selector.matchExpressions[] spec.selector.matchExpressions[].values[]",
        ),
        ("apps/v1", "Deployment", "metadata spec spec.template"),
        ("batch/v1", "Job", "metadata spec spec.parallelism spec.template"),
        (
            "policy/v1",
            "PodDisruptionBudget",
            "metadata spec spec.selector status status.disruptionsAllowed status.disruptedPods",
        ),
        ("scheduling.k8s.io/v1", "PriorityClass", "metadata value globalDefault preemptionPolicy"),
    ];
    for (version, kind, places) in kinds {
        for place in places.split(' ') {
            let object = |leaf: Value| {
                let mut value = leaf;
                for segment in place.rsplit('.') {
                    let name = segment.trim_end_matches("[]");
                    if segment.ends_with("[]") {
                        value = Value::Array(vec![value]);
                    }
                    value = Value::Object([(name.to_owned(), value)].into_iter().collect());
                }
                value["apiVersion"] = version.into();
                value["kind"] = kind.into();
                if place != "metadata" && value["metadata"].is_null() {
                    value["metadata"] = serde_json::json!({});
                }
                if let Some(metadata) = value["metadata"].as_object_mut() {
                    metadata.insert("name".to_owned(), "x".into());
                }
                value.to_string()
            };
            let null = read(&[&object(Value::Null)]);
            match place {
                // Without metadata there is no name.
                "metadata" => {
                    let text = null.unwrap_err().to_string();
                    assert!(
                        text.ends_with("expected a name, found none"),
                        "{kind} {place}: {text}"
                    );
                }
                _ => assert!(null.is_ok(), "{kind} {place}: {:?}", null.err()),
            }
            let list = read(&[&object(Value::Array(Vec::new()))]).map(|_| ());
            let text = list.expect_err(&format!("{kind} {place}")).to_string();
            assert!(
                text.contains("expected ") && text.contains("found sequence"),
                "{kind} {place}: {text}"
            );
        }
    }
}
