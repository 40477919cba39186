//! The cluster in memory, with the in-tree plugins.

use std::fmt::Write;
use std::sync::Arc;

use expect_test::{Expect, expect};
use loadmaster_api::Str;
use loadmaster_api::document::Document;
use loadmaster_api::snapshot::Snapshot;
use loadmaster_config::Gates;
use loadmaster_sim::cluster::{Change, Cluster, Kind, Millis, Options, Outcome, sample};
use loadmaster_sim::load;

fn cluster(seed: u64, manifests: &str) -> Cluster {
    let registry = loadmaster_plugins::in_tree();
    let gates = Gates::default();
    let checked = loadmaster_config::check_default(&registry, &gates).unwrap();
    let gates = gates.framework();
    let profiles = load::profiles(&checked, &registry, &gates).unwrap();
    let options = Options { seed, check_every: 1, backoff_ms: (1_000, 10_000), ticks: || 0 };
    let mut cluster = Cluster::new(profiles.into_iter().map(Arc::new).collect(), gates, options);
    if !manifests.is_empty() {
        let snapshot = Snapshot::read(&[Document::new("test.yaml", manifests)]).unwrap();
        cluster.load(snapshot).unwrap();
    }
    cluster
}

/// Runs to a time of the cluster, and says what was decided on the way.
fn run(cluster: &mut Cluster, until_ms: Millis) -> String {
    let mut log = String::new();
    loop {
        while cluster.decide_next() {
            let recent = cluster.recent().next_back().unwrap();
            let what = match &recent.outcome {
                Outcome::Placed { node, .. } => node.to_string(),
                Outcome::TurnedDown(why) => why.message.clone(),
            };
            writeln!(log, "{:>5} {} -> {what}", recent.at_ms, recent.pod.full_name()).unwrap();
        }
        match cluster.due_ms() {
            Some(due_ms) if due_ms <= until_ms => cluster.advance(due_ms),
            _ => break,
        }
    }
    cluster.advance(until_ms.min(1_000_000));
    let tally = cluster.tally();
    writeln!(
        log,
        "{} running, {} starting, {} unschedulable, {} gated, {} in backoff, {} succeeded, {} deleted",
        tally.running,
        tally.starting,
        tally.unschedulable,
        tally.gated,
        tally.backoff,
        tally.succeeded,
        tally.deleted
    )
    .unwrap();
    assert_eq!(cluster.disagreements().count(), 0);
    assert!(cluster.errors().is_empty());
    log
}

#[track_caller]
fn check(manifests: &str, until_ms: Millis, want: &Expect) -> Cluster {
    let mut cluster = cluster(1, manifests);
    want.assert_eq(&run(&mut cluster, until_ms));
    cluster
}

const TWO_NODES: &str = "
{apiVersion: v1, kind: Node, metadata: {name: a, labels: {kubernetes.io/hostname: a}}, status: {allocatable: {cpu: 2, memory: 4Gi, pods: 10}}}
---
{apiVersion: v1, kind: Node, metadata: {name: b, labels: {kubernetes.io/hostname: b}}, status: {allocatable: {cpu: 2, memory: 4Gi, pods: 10}}}
---
";

fn on_two_nodes(manifests: &str) -> String {
    format!("{TWO_NODES}{manifests}")
}

#[test]
fn a_deployment_replaces_its_pods() {
    let manifests = on_two_nodes(
        "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, resources: {requests: {cpu: 500m}}}]}
",
    );
    let mut cluster = check(
        &manifests,
        3_000,
        &expect![[r#"
                0 shop/web-648cfcc886-2pwtk -> b
                0 shop/web-648cfcc886-cbbsx -> a
            2 running, 0 starting, 0 unschedulable, 0 gated, 0 in backoff, 0 succeeded, 0 deleted
        "#]],
    );
    let pods: Vec<_> = cluster.world().node_infos().flat_map(|node| node.pods()).collect();
    let owner = pods[0].template.controller.clone().unwrap();
    assert_eq!((&*owner.kind, &*owner.api_version), ("ReplicaSet", "apps/v1"));
    let hash = pods[0].template.labels.get("pod-template-hash").unwrap().clone();
    assert_eq!(&*owner.name, format!("web-{hash}"));

    cluster.remove_node("a");
    expect![[r#"
         3000 shop/web-648cfcc886-mtmqd -> b
        2 running, 0 starting, 0 unschedulable, 0 gated, 0 in backoff, 0 succeeded, 1 deleted
    "#]]
    .assert_eq(&run(&mut cluster, 6_000));

    let (namespace, name) = (Str::new("shop"), Str::new("web"));
    let scale = |replicas| Change::Scale {
        kind: Kind::Deployment,
        namespace: namespace.clone(),
        name: name.clone(),
        replicas,
    };
    cluster.apply(scale(5)).unwrap();
    expect![[r#"
         6000 shop/web-648cfcc886-wfznr -> b
         6000 shop/web-648cfcc886-8xcm7 -> b
         6000 shop/web-648cfcc886-jkpkl -> 0/1 nodes are available: 1 Insufficient cpu.
        4 running, 0 starting, 1 unschedulable, 0 gated, 0 in backoff, 0 succeeded, 1 deleted
    "#]]
    .assert_eq(&run(&mut cluster, 9_000));
    cluster.apply(scale(1)).unwrap();
    expect![[r#"
        1 running, 0 starting, 0 unschedulable, 0 gated, 0 in backoff, 0 succeeded, 5 deleted
    "#]]
    .assert_eq(&run(&mut cluster, 12_000));
}

#[test]
fn a_job_makes_room() {
    let manifests = on_two_nodes(
        "
apiVersion: batch/v1
kind: Job
metadata: {name: sum, labels: {loadmaster.io/run-seconds: '5'}}
spec:
  parallelism: 3
  completions: 5
  template: {spec: {containers: [{name: main, resources: {requests: {cpu: 1500m}}}]}}
",
    );
    check(
        &manifests,
        Millis::MAX,
        &expect![[r#"
            0 default/sum-z49jg -> b
            0 default/sum-bnmht -> a
            0 default/sum-l8xf9 -> 0/2 nodes are available: 2 Insufficient cpu.
         6356 default/sum-l8xf9 -> a
         6356 default/sum-vrcdn -> 0/2 nodes are available: 2 Insufficient cpu.
         6370 default/sum-7cpb4 -> b
         7356 default/sum-vrcdn -> 0/2 nodes are available: 2 Insufficient cpu.
        12138 default/sum-vrcdn -> a
        0 running, 0 starting, 0 unschedulable, 0 gated, 0 in backoff, 5 succeeded, 0 deleted
    "#]],
    );
}

#[test]
fn a_stateful_set_counts() {
    let manifests = on_two_nodes(
        "
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 3
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: db}}}
",
    );
    let cluster = check(
        &manifests,
        3_000,
        &expect![[r#"
                0 default/db-0 -> b
                0 default/db-1 -> a
                0 default/db-2 -> 0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules.
            2 running, 0 starting, 1 unschedulable, 0 gated, 0 in backoff, 0 succeeded, 0 deleted
        "#]],
    );
    let pod = cluster.world().node_infos().flat_map(|node| node.pods()).next().unwrap();
    let labels: Vec<String> =
        pod.template.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    expect!["app=db apps.kubernetes.io/pod-index=1 controller-revision-hash=db-d7f74d6dd statefulset.kubernetes.io/pod-name=db-1"].assert_eq(&labels.join(" "));
}

#[test]
fn the_queue_goes_by_priority_and_gates_hold() {
    let pod = |name: &str, spec: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{{spec}}}}}\n---\n"
        )
    };
    let manifests = on_two_nodes(&[
        "{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high}, value: 10}\n---\n",
        &pod("first", ""),
        &pod("urgent", "priorityClassName: high"),
        &pod("gated", "schedulingGates: [{name: example.com/quota}]"),
        &pod("elsewhere", "schedulerName: other"),
        &pod("second", ""),
    ]
    .concat());
    let cluster = check(
        &manifests,
        3_000,
        &expect![[r#"
            0 default/urgent -> b
            0 default/first -> a
            0 default/second -> a
        3 running, 0 starting, 1 unschedulable, 1 gated, 0 in backoff, 0 succeeded, 0 deleted
    "#]],
    );
    let pending: Vec<String> = cluster
        .pending()
        .into_iter()
        .map(|group| format!("{} {}", group.example, group.message))
        .collect();
    expect![[r#"
        default/elsewhere no profile is called "other"
        default/gated waiting for scheduling gates: [example.com/quota]"#]]
    .assert_eq(&pending.join("\n"));
}

#[test]
fn a_new_node_wakes_pods() {
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: big}, spec: {containers: [{name: main, resources: \
               {requests: {cpu: 4}}}]}}";
    let mut cluster = check(
        &on_two_nodes(pod),
        60_000,
        &expect![[r#"
            0 default/big -> 0/2 nodes are available: 2 Insufficient cpu.
        0 running, 0 starting, 1 unschedulable, 0 gated, 0 in backoff, 0 succeeded, 0 deleted
    "#]],
    );
    let node = "{apiVersion: v1, kind: Node, metadata: {name: c}, status: {allocatable: {cpu: 8, pods: 10}}}";
    let mut objects = Snapshot::read(&[Document::new("node.yaml", node)]).unwrap();
    cluster.set_node(objects.nodes.remove(0).object);
    expect![[r#"
        60000 default/big -> c
        1 running, 0 starting, 0 unschedulable, 0 gated, 0 in backoff, 0 succeeded, 0 deleted
    "#]]
    .assert_eq(&run(&mut cluster, 63_000));
}

#[test]
fn pods_that_are_there_are_adopted() {
    let manifests = on_two_nodes(
        "
apiVersion: apps/v1
kind: ReplicaSet
metadata:
  name: web-abc
  uid: u1
  ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: u0, controller: true}]
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, uid: u0}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {}}
---
apiVersion: v1
kind: Pod
metadata:
  name: web-abc-12345
  labels: {app: web}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-abc, uid: u1, controller: true}]
spec: {nodeName: a}
",
    );
    check(
        &manifests,
        3_000,
        &expect![[r#"
            0 default/web-abc-hg4sl -> b
        2 running, 0 starting, 0 unschedulable, 0 gated, 0 in backoff, 0 succeeded, 0 deleted
    "#]],
    );
}

#[test]
fn equal_seeds_give_equal_runs() {
    let history = |seed| {
        let mut cluster = cluster(seed, "");
        let mut sample = sample::workload(20).unwrap();
        sample::nodes(20).for_each(|node| cluster.set_node(node));
        cluster.load(std::mem::take(&mut sample.objects)).unwrap();
        sample.arrivals.into_iter().for_each(|(at_ms, change)| cluster.at(at_ms, change));
        run(&mut cluster, Millis::MAX)
    };
    let first = history(7);
    assert_eq!(first, history(7));
    assert_ne!(first, history(8));
}
