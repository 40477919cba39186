//! `loadmaster up`.

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use crate::process::{Client, Folder, wait_until};

const MANIFESTS: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: web, resources: {requests: {cpu: 100m}}}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: sum}
spec:
  template:
    metadata: {annotations: {loadmaster.io/run-seconds: '1'}}
    spec: {restartPolicy: Never, containers: [{name: sum, image: sum}]}
";

/// The summary without what depends on the speed of the machine, and standard error.
fn stable(text: &str) -> String {
    let summary = text
        .lines()
        .skip_while(|line| !line.starts_with("settled after") && !line.starts_with("2> "));
    let lines = summary.map(|line| match line.split_once("; ") {
        Some((before, _)) if line.starts_with("  decisions") => before.to_owned(),
        _ => match line.strip_prefix("settled after ").and_then(|line| line.split_once(" s: ")) {
            Some((_, rest)) => format!("settled: {rest}"),
            None => line.to_owned(),
        },
    });
    lines.map(|line| line + "\n").collect()
}

#[track_caller]
fn check(manifests: &str, args: &[&str], want: &Expect) {
    let folder = Folder::new().with("app.yaml", manifests);
    let mut all = vec!["up", "-f", "app.yaml"];
    all.extend(args);
    want.assert_eq(&stable(&folder.run(&all)));
}

#[test]
fn manifests_are_created_and_run() {
    check(
        MANIFESTS,
        &["--nodes", "3", "--check", "1"],
        &expect![[r#"
            settled: all pods are assigned (3 assigned)

              pods       3 running, 0 starting, 1 succeeded, 0 failed
              decisions  4
              verified   one in 1 decisions: no difference

              ZONE    NODES  PODS  CPU                    MEMORY
              zone-a      1     1  ░░░░░░░░░░░░░░░░  1 %  ░░░░░░░░░░░░░░░░  0 %
              zone-b      1     1  ░░░░░░░░░░░░░░░░  1 %  ░░░░░░░░░░░░░░░░  0 %
              zone-c      1     1  ░░░░░░░░░░░░░░░░  1 %  ░░░░░░░░░░░░░░░░  0 %

              FULLEST NODES  ZONE    PODS  CPU  MEMORY
              m8-000         zone-a     1  1 %     0 %
              m8-001         zone-b     1  1 %     0 %
              m16-002        zone-c     1  1 %     0 %
            exit 0
        "#]],
    );
}

#[test]
fn pending_pods_give_exit_code_1() {
    let too_large = MANIFESTS.replace("cpu: 100m", "cpu: 500");
    let folder = Folder::new().with("app.yaml", &too_large);
    let text = folder.run(&["up", "-f", ".", "--nodes", "3"]);
    assert!(text.contains("0/3 nodes are available: 3 Insufficient cpu."), "{text}");
    assert!(text.ends_with("exit 1\n"), "{text}");
}

#[test]
fn without_nodes_it_settles_when_every_pod_was_attempted() {
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}\n";
    check(
        pod,
        &["--nodes", "0"],
        &expect![[r#"
            settled: 1 pod pending, all other pods are assigned (0 assigned)

              pods       0 running, 0 starting, 0 succeeded, 0 failed
              decisions  1

              PENDING  FOR EXAMPLE  REASON
                    1  default/a    no nodes available to schedule pods
            exit 1
        "#]],
    );
    check(
        "{apiVersion: v1, kind: Namespace, metadata: {name: empty}}\n",
        &["--nodes", "0"],
        &expect![[r#"
            settled: all pods are assigned (0 assigned)

              pods       0 running, 0 starting, 0 succeeded, 0 failed
              decisions  0
            exit 0
        "#]],
    );
}

/// The secure port accepts the users of the API server, and has a certificate of the same CA.
#[test]
fn the_scheduler_can_be_queried() {
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {nodeSelector: {disk: ssd}, containers: [{name: c, image: i}]}}\n";
    let folder = Folder::new().with("app.yaml", pod);
    let args = ["up", "--stay", "-f", "app.yaml", "--nodes", "2", "--kubeconfig", "kubeconfig"];
    let _up = folder.start(&args, "up.log");
    wait_until("the cluster", || folder.read("up.log").contains("try:").then_some(()));
    let log = folder.read("up.log");
    let server = log.lines().find_map(|line| line.strip_prefix("scheduler:")).unwrap().trim();
    let explain =
        |args: &[&str]| folder.run(&[&["explain", "p", "--server", server], args].concat());
    let user = ["--kubeconfig", "kubeconfig"];
    wait_until("an attempt", || {
        explain(&[&user[..], &["--last"]].concat()).contains("attempt 1 ended").then_some(())
    });
    let text = explain(&user);
    assert!(text.starts_with("default/p fits none of 2 nodes\n"), "{text}");
    let text = explain(&["--insecure-skip-tls-verify"]);
    assert!(text.contains("system:anonymous") && text.ends_with("exit 2\n"), "{text}");
}

#[test]
fn pending_pods_of_other_schedulers_give_exit_code_1() {
    let other = MANIFESTS.replace(
        "spec: {containers: [{name: web",
        "spec: {schedulerName: other, containers: [{name: web",
    );
    let folder = Folder::new().with("app.yaml", &other);
    let text = folder.run(&["up", "-f", ".", "--nodes", "3"]);
    assert!(text.contains("no scheduler named other runs in this cluster"), "{text}");
    assert!(text.contains("3 pods pending, all other pods are assigned (0 assigned)"), "{text}");
    assert!(text.ends_with("exit 1\n"), "{text}");
}

#[test]
fn the_sample_workload_runs_and_decisions_are_verified() {
    let text = Folder::new().run(&["up", "--nodes", "20", "--check", "10"]);
    assert!(text.contains("one in 10 decisions: no difference"), "{text}");
    assert!(text.contains("puzzles/no-such-zone"), "{text}");
    assert!(text.ends_with("exit 1\n"), "{text}");
}

/// 12, 12 and 24 CPUs are guaranteed to the three tenants. Those of `shop` come last and reclaim what `research` has borrowed.
#[test]
fn in_the_sample_of_quotas_each_tenant_ends_at_its_minimum() {
    let folder = Folder::new();
    let args = ["up", "--sample", "quotas", "--stay", "--kubeconfig", "kubeconfig"];
    let _up = folder.start(&args, "up.log");
    wait_until("the cluster", || folder.read("up.log").contains("try:").then_some(()));
    let client = Client::new(folder.path("kubeconfig"));
    let used = |namespace: &str| {
        let quotas = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces";
        let quota = client.get(&format!("{quotas}/{namespace}/elasticquotas/quota")).1;
        quota["status"]["used"]["cpu"].as_str().and_then(|cpu| cpu.parse::<u64>().ok())
    };
    wait_until("research to borrow", || (used("research") > Some(20)).then_some(()));
    wait_until("shop to reclaim", || (used("shop") == Some(24)).then_some(()));
    wait_until("the evictions", || (used("research") == Some(12)).then_some(()));
    assert_eq!(used("batch"), Some(12));
}

/// Two gangs fill the cluster. The controller, which runs in the same process, writes their phases.
#[test]
fn in_the_sample_of_gangs_the_first_two_run() {
    let folder = Folder::new();
    let args = ["up", "--sample", "gangs", "--stay", "--kubeconfig", "kubeconfig"];
    let _up = folder.start(&args, "up.log");
    wait_until("the cluster", || folder.read("up.log").contains("try:").then_some(()));
    let client = Client::new(folder.path("kubeconfig"));
    let status = |name: &str| {
        let groups = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/training/podgroups";
        client.get(&format!("{groups}/{name}")).1["status"].clone()
    };
    for name in ["resnet", "bert"] {
        wait_until(name, || (status(name)["phase"] == "Running").then_some(()));
        assert_eq!(status(name)["running"], 8);
    }
    wait_until("giant", || (status("giant")["phase"] == "Scheduling").then_some(()));
    assert_eq!(status("giant")["running"].as_u64().unwrap_or_default(), 0);
}

#[test]
fn a_sample_has_its_own_manifests() {
    let folder = Folder::new().with("app.yaml", MANIFESTS);
    let text = folder.run(&["up", "--sample", "quotas", "-f", "app.yaml"]);
    assert!(text.contains("cannot be used with"), "{text}");
    assert!(text.ends_with("exit 2\n"), "{text}");
}

/// Metadata of another cluster is removed, and missing namespaces are created.
#[test]
fn objects_of_another_cluster_are_created() {
    let list = r#"{"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-x", "namespace": "shop", "uid": "p", "resourceVersion": "7",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r", "controller": true}]},
            "spec": {"containers": [{"name": "web", "image": "web"}]}},
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web", "namespace": "shop", "uid": "r"},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "web"}]}}}}]}"#;
    let text = stable(&Folder::new().run_with_stdin(&["up", "-f", "-", "--nodes", "2"], list));
    assert!(text.contains("all pods are assigned (2 assigned)"), "{text}");
    assert!(
        text.contains("2> note: not created, because their controllers create them: 1 Pod\n"),
        "{text}"
    );
    assert!(text.contains("2> note: created missing namespaces: shop\n"), "{text}");
}

/// What every cluster has is in a dump, too.
#[test]
fn objects_that_every_cluster_has_are_changed_not_created() {
    let dump = r#"{"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "uid": "1", "labels": {"team": "web",
            "kubernetes.io/metadata.name": "default"}}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}},
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system", "uid": "2", "labels": {
            "kubernetes.io/metadata.name": "kube-system"}}, "spec": {"finalizers": ["kubernetes"]}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "kubernetes", "namespace": "default", "uid": "3",
            "labels": {"component": "apiserver", "provider": "kubernetes"}}, "spec": {"clusterIP": "10.96.0.1",
            "clusterIPs": ["10.96.0.1"], "internalTrafficPolicy": "Cluster", "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
            "sessionAffinity": "None", "type": "ClusterIP"}, "status": {"loadBalancer": {}}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "default", "uid": "4"}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "kube-system", "uid": "5"}},
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "system-node-critical", "uid": "6",
            "generation": 1}, "value": 2000001000, "description": "Used for system critical pods", "preemptionPolicy": "PreemptLowerPriority"},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt", "namespace": "default", "uid": "7"},
            "data": {"ca.crt": "of that cluster"}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "uid": "8"}, "spec": {
            "priorityClassName": "system-node-critical", "priority": 2000001000, "containers": [{"name": "c", "image": "i"}]}}]}"#;
    let folder = Folder::new().with("dump.json", dump);
    let args = ["up", "--stay", "-f", "dump.json", "--nodes", "1", "--kubeconfig", "kubeconfig"];
    let up = folder.start(&args, "up.log");
    wait_until("the cluster", || {
        let log = folder.read("up.log");
        assert!(!log.contains("error"), "{log}");
        log.contains("try:").then_some(())
    });
    let client = Client::new(folder.path("kubeconfig"));
    let get = |path: &str| client.get(path).1;
    assert_eq!(get("/api/v1/namespaces/default")["metadata"]["labels"]["team"], "web");
    let service = get("/api/v1/namespaces/default/services/kubernetes");
    assert_eq!(service["metadata"]["labels"]["component"], "apiserver");
    wait_until("the pod", || {
        let pod = get("/api/v1/namespaces/default/pods/p");
        (pod["spec"]["nodeName"] == "m8-000").then_some(())
    });
    assert_eq!(up.terminate(), Some(0));

    let twice = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n";
    let folder = Folder::new().with("app.yaml", twice);
    expect![[r#"
        2> error: app.yaml:3:1: configmaps "a" already exists
        exit 2
    "#]]
    .assert_eq(&folder.run(&["up", "-f", "app.yaml", "--nodes", "1"]));
}

/// A dump of pods without PriorityClasses keeps the priorities.
#[test]
fn priorities_of_another_cluster_are_kept() {
    let pod = |name: &str, class: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{priority: 1000, {class}containers: [{{name: c, image: i}}]}}\n"
        )
    };
    let pods =
        [pod("a", "priorityClassName: high, "), pod("b", ""), pod("c", "").replace("1000", "7")];
    check(
        &pods.join("---\n"),
        &["--nodes", "1"],
        &expect![[r#"
            settled: all pods are assigned (3 assigned)

              pods       3 running, 0 starting, 0 succeeded, 0 failed
              decisions  3

              ZONE    NODES  PODS  CPU                    MEMORY
              zone-a      1     3  ░░░░░░░░░░░░░░░░  0 %  ░░░░░░░░░░░░░░░░  0 %

              FULLEST NODES  ZONE    PODS  CPU  MEMORY
              m8-000         zone-a     3  0 %     0 %
            2> note: created missing PriorityClasses: high, priority-7
            exit 0
        "#]],
    );
}

/// The simulated CSI driver provisions a volume for each pod.
#[test]
fn a_stateful_set_with_claims_runs() {
    let set = r#"{"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}, "spec": {"replicas": 3,
        "selector": {"matchLabels": {"app": "db"}}, "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [
        {"name": "db", "image": "db", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}}]}}"#;
    let folder = Folder::new().with("app.json", set);
    let text = folder.run(&["up", "-f", "app.json", "--nodes", "3", "--check", "1"]);
    assert!(text.contains("all pods are assigned (3 assigned)"), "{text}");
    assert!(text.contains("one in 1 decisions: no difference"), "{text}");
    assert!(text.ends_with("exit 0\n"), "{text}");
}

/// The claims have other uids than in that cluster.
#[test]
fn volumes_of_another_cluster_are_bound_again() {
    let list = r#"{"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk", "annotations": {
            "pv.kubernetes.io/provisioned-by": "ebs.csi.aws.com"}}, "spec": {"capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Delete", "storageClassName": "gp3",
            "csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"},
            "claimRef": {"namespace": "shop", "name": "data", "uid": "old", "resourceVersion": "123456789"}}},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "shop", "uid": "old",
            "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"accessModes": ["ReadWriteOnce"],
            "storageClassName": "gp3", "volumeName": "disk", "resources": {"requests": {"storage": "1Gi"}}}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop"}, "spec": {
            "containers": [{"name": "web", "image": "web"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}}]}"#;
    let text = stable(&Folder::new().run_with_stdin(&["up", "-f", "-", "--nodes", "2"], list));
    assert!(text.contains("all pods are assigned (1 assigned)"), "{text}");
}

#[test]
fn with_stay_the_cluster_runs_until_it_is_stopped() {
    let lonely = "---\n{apiVersion: v1, kind: Pod, metadata: {name: lonely}, spec: {containers: [{name: c, image: i}]}}\n";
    let folder = Folder::new().with("app.yaml", &format!("{MANIFESTS}{lonely}"));
    let args = ["up", "--stay", "-f", "app.yaml", "--nodes", "2", "--kubeconfig", "kubeconfig"];
    let up = folder.start(&args, "up.log");
    wait_until("the cluster", || folder.read("up.log").contains("try:").then_some(()));
    wait_until("the completion of the Job", || {
        folder.read("up.log").contains(" 1 succeeded").then_some(())
    });
    let explained = folder.run(&["explain", "--kubeconfig", "kubeconfig", "lonely"]);
    assert!(explained.contains("; assigned to m8-00"), "{explained}");
    assert_eq!(up.terminate(), Some(0));
    assert!(folder.read("up.log").contains("all pods are assigned"), "{}", folder.read("up.log"));
}

/// The kubeconfig has an administrator's credentials.
#[cfg(unix)]
#[test]
fn the_kubeconfig_is_private_and_removed_with_the_cluster() {
    use std::os::unix::fs::PermissionsExt as _;
    let refused = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {nodeName: z}}\n";
    let folder = Folder::new().with("app.yaml", MANIFESTS).with("bad.yaml", refused);
    let args = ["up", "--stay", "-f", "app.yaml", "--nodes", "1", "--kubeconfig", "kubeconfig"];
    let up = folder.start(&args, "up.log");
    wait_until("the cluster", || folder.read("up.log").contains("try:").then_some(()));
    let mode = std::fs::metadata(folder.path("kubeconfig")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(up.terminate(), Some(0));
    assert!(!folder.path("kubeconfig").exists(), "it was created, and has no other entries");
    std::fs::create_dir(folder.path("tmp")).unwrap();
    let text = folder.run(&["up", "--nodes", "1", "-f", "bad.yaml"]);
    assert!(text.ends_with("exit 2\n"), "{text}");
    let left: Vec<_> = std::fs::read_dir(folder.path("tmp")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn other_kubeconfig_entries_are_kept() {
    let prod = json!({"apiVersion": "v1", "kind": "Config", "current-context": "prod",
        "clusters": [{"name": "prod", "cluster": {"server": "https://prod.example.com"}}],
        "users": [], "contexts": [{"name": "prod", "context": {"cluster": "prod"}}]});
    let folder = Folder::new()
        .with("app.yaml", MANIFESTS)
        .with("bad.yaml", "kind: Pod\n")
        .with("notes", "to do: everything\n")
        .with("kubeconfig", &prod.to_string());
    let flags = ["--nodes", "1", "--kubeconfig", "kubeconfig", "-f"];
    let read = || serde_json::from_str::<Value>(&folder.read("kubeconfig")).unwrap();
    folder.run(&[&["up"], &flags[..], &["bad.yaml"]].concat());
    assert_eq!(
        folder.read("kubeconfig"),
        prod.to_string(),
        "nothing is changed if the input is invalid"
    );
    let up = folder.start(&[&["up", "--stay"], &flags[..], &["app.yaml"]].concat(), "up.log");
    wait_until("the cluster", || folder.read("up.log").contains("try:").then_some(()));
    let merged = read();
    assert_eq!(merged["current-context"], "loadmaster");
    assert_eq!(
        (&merged["contexts"][0], &merged["contexts"][1]["name"]),
        (&prod["contexts"][0], &json!("loadmaster"))
    );
    assert_eq!(up.terminate(), Some(0));
    assert_eq!(read(), prod);
    for command in ["up", "apiserver"] {
        let text = folder.run(&[command, "--kubeconfig", "notes"]);
        let want = "2> error: notes:1:1: apiVersion: expected a kubeconfig, with apiVersion: v1; the file was not changed\nexit 2\n";
        assert_eq!(text, want, "{command}");
        assert_eq!(folder.read("notes"), "to do: everything\n");
    }
}

/// The definition is created while the cluster runs.
#[test]
fn custom_objects_are_owners_and_namespace_content() {
    let folder = Folder::new().with("app.yaml", MANIFESTS);
    let args = ["up", "--stay", "-f", "app.yaml", "--nodes", "1", "--kubeconfig", "kubeconfig"];
    let _up = folder.start(&args, "up.log");
    wait_until("the cluster", || folder.read("up.log").contains("try:").then_some(()));
    let client = Client::new(folder.path("kubeconfig"));
    let made = |path: &str, object: Value| client.create(path, &object)["metadata"]["uid"].clone();
    let is_gone = |path: &str| client.get(path).0 == 404;
    made(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        json!({"metadata": {"name": "foos.example.com"}, "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"kind": "Foo", "plural": "foos"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}}),
    );
    made("/api/v1/namespaces", json!({"metadata": {"name": "shop"}}));
    let foos = "/apis/example.com/v1/namespaces/shop/foos";
    let foo = |name: &str| json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": name}});
    let uid = made(foos, foo("top"));
    let owner = json!({"apiVersion": "example.com/v1", "kind": "Foo", "name": "top", "uid": uid});
    let maps = "/api/v1/namespaces/shop/configmaps";
    made(maps, json!({"metadata": {"name": "owned", "ownerReferences": [owner]}}));
    assert_eq!(client.delete(&format!("{foos}/top")), 200);
    wait_until("the deletion of the owned object", || {
        is_gone(&format!("{maps}/owned")).then_some(())
    });
    made(foos, foo("last"));
    assert_eq!(client.delete("/api/v1/namespaces/shop"), 200);
    wait_until("the deletion of the namespace", || {
        is_gone("/api/v1/namespaces/shop").then_some(())
    });
    assert!(is_gone(&format!("{foos}/last")));
}

#[test]
fn invalid_input_has_a_position() {
    check(
        "kind: Pod\n",
        &[],
        &expect![[r#"
            2> error: app.yaml:1:1: expected apiVersion and kind, found no apiVersion
            exit 2
        "#]],
    );
    check(
        "{apiVersion: v1, kind: Pot, metadata: {name: a}}\n",
        &[],
        &expect![[r#"
            2> error: app.yaml:1:24: kind: expected a kind of v1, found "Pot"; did you mean "Pod"?
            exit 2
        "#]],
    );
    check(
        &MANIFESTS.replace("cpu: 100m", "cpu: 100 m"),
        &[],
        &expect![[r#"
            2> error: app.yaml:10:77: spec.template.spec.containers[0].resources.requests.cpu: invalid quantity "100 m": expected a number with an optional suffix such as m, Ki, M or e3
            exit 2
        "#]],
    );
    check(
        "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {nodeName: z}}\n",
        &[],
        &expect![[r#"
            2> error: app.yaml:1:56: spec.containers: Required value
            exit 2
        "#]],
    );
    check(
        &MANIFESTS.replace("replicas: 3", "replicas: 3\n  colour: red"),
        &[],
        &expect![[r#"
            2> error: app.yaml:7:11: spec.colour: unknown field
            exit 2
        "#]],
    );
    check(
        &MANIFESTS
            .replace("replicas: 3", "replica: 3\n  colour: red")
            .replace("{restartPolicy", "{restartPolice"),
        &[],
        &expect![[r#"
            2> error: app.yaml:7:11: spec.colour: unknown field
            2> error: app.yaml:6:12: spec.replica: unknown field; did you mean "replicas"?
            2> error: app.yaml:19:27: spec.template.spec.restartPolice: unknown field; did you mean "restartPolicy"?
            exit 2
        "#]],
    );
    check(
        &MANIFESTS
            .replace("cpu: 100m", "cpu: 100 m")
            .replace("---", "---\n{apiVersion: v1, kind: Pot, metadata: {name: a}}\n---\n[\n---"),
        &[],
        &expect![[r#"
            2> error: app.yaml:10:77: spec.template.spec.containers[0].resources.requests.cpu: invalid quantity "100 m": expected a number with an optional suffix such as m, Ki, M or e3
            2> error: app.yaml:12:24: kind: expected a kind of v1, found "Pot"; did you mean "Pod"?
            2> error: app.yaml:14:1: unclosed bracket '['
            exit 2
        "#]],
    );
    let class =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  priorityClassName: high\n";
    check(
        class,
        &[],
        &expect![[r#"
            2> error: app.yaml:1:1: pods "p" is forbidden: no PriorityClass with name high was found
            exit 2
        "#]],
    );
    let selector = MANIFESTS.replace(
        "spec: {containers: [{name: web",
        "spec: {affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone, \
         labelSelector: {matchExpressions: [{key: app, operator: Likes}]}}]}}, containers: [{name: web",
    );
    check(
        &selector,
        &[],
        &expect![[r#"
            2> error: app.yaml:10:162: spec.template.spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector.matchExpressions[0].operator: Invalid value: "Likes": not a valid selector operator
            exit 2
        "#]],
    );
    check(
        MANIFESTS,
        &["--nodes", "many"],
        &expect![[r#"
        2> error: invalid value 'many' for '--nodes <N>': invalid digit found in string
        2> 
        2> For more information, try '--help'.
        exit 2
    "#]],
    );
}

#[test]
fn manifests_are_read_from_standard_input() {
    let text = Folder::new().run_with_stdin(&["up", "-f", "-", "--nodes", "2"], MANIFESTS);
    assert!(text.contains("all pods are assigned"), "{text}");
    assert!(text.ends_with("exit 0\n"), "{text}");
}
