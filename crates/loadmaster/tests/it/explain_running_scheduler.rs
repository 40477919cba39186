//! `loadmaster explain --server` with a running scheduler: the API server, `loadmaster run` and `loadmaster explain` are separate
//! processes.

use expect_test::expect;
use serde_json::{Value, json};

use crate::process::wait_until;
use crate::running_scheduler::TestCluster;

fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]},
    });
    for (key, value) in spec.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod
}

/// Two nodes; `web` is feasible, `db` is unschedulable, `gated` is gated.
fn cluster() -> TestCluster {
    let cluster = TestCluster::start(|client| {
        for name in ["a", "b"] {
            let status = json!({"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}});
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status});
            client.create("/api/v1/nodes", &node);
        }
        let pods = "/api/v1/namespaces/default/pods";
        client.create(pods, &pod("web", json!({})));
        client.create(pods, &pod("db", json!({"nodeSelector": {"disk": "ssd"}})));
        let gates = json!({"schedulingGates": [{"name": "example.com/quota"}]});
        client.create(pods, &pod("gated", gates));
    });
    cluster.wait_for_attempt("default/db");
    wait_until("web to be assigned", || {
        cluster.explain(&["default/web", "--last"]).contains(" is assigned to ").then_some(())
    });
    cluster
}

/// The text without times, and with a fixed name for the randomly selected node.
fn stable(text: &str) -> String {
    let words = text.split(' ').map(|word| match word.trim_end().trim_end_matches([':', '"']) {
        time if time.len() == 20 && time.ends_with('Z') => word.replace(time, "TIME"),
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ").replace("assigned to b", "assigned to a")
}

#[test]
fn a_running_scheduler_explains_pods_and_dumps_its_state() {
    let mut cluster = cluster();
    let all: Vec<String> = [
        &["default/db"][..],
        &["default/db", "--last"],
        &["gated", "--last", "-n", "default"],
        &["default/web"],
        &["default/web", "--last"],
        &["default/nobody", "--last"],
    ]
    .map(|args| stable(&cluster.explain(args)))
    .into();
    expect![[r#"
        default/db fits none of 2 nodes
          0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.
          profile default-scheduler

          NODES  REJECTED BY   PREEMPTION   REASON
              2  NodeAffinity  cannot help  node(s) didn't match Pod's node
                                            affinity/selector
                 a, b: unmatched=nodeSelector disk=ssd, the node has no disk

          preemption: 0/2 nodes are available: 2 Preemption is not helpful for
          scheduling.
        exit 1

        default/db is in unschedulablePods since TIME
          waits for NodeAffinity: NodeAdd|UpdateNodeLabel, NodeUpdateNodeTaint
          1 attempt so far; profile default-scheduler

        attempt 1 ended at TIME: unschedulable
          0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.
          preemption: 0/2 nodes are available: 2 Preemption is not helpful for
          scheduling.

          NODES  REJECTED BY   PREEMPTION   REASON
              2  NodeAffinity  cannot help  node(s) didn't match Pod's node
                                            affinity/selector
                 a, b
        exit 0

        default/gated is gated by PreEnqueue since TIME
          gated by SchedulingGates: waiting for scheduling gates: [example.com/quota]
          waits for SchedulingGates: PodUpdatePodSchedulingGatesEliminated
          0 attempts so far; profile default-scheduler
        exit 1

        default/web is already assigned to a: only unassigned pods can be explained
        exit 1

        default/web is assigned to a
          its attempts are not stored any more; profile default-scheduler
        exit 1

        2> error: pod default/nobody is not pending in this scheduler
        exit 2
    "#]]
    .assert_eq(&all.join("\n"));
    let json = cluster.explain(&["default/db", "-o", "json"]);
    assert!(json.contains("\"code\": \"UnschedulableAndUnresolvable\""), "{json}");
    let yaml = cluster.explain(&["default/db", "--last", "-o", "yaml"]);
    assert!(yaml.contains("rejectedNodes:"), "{yaml}");
    let unknown = cluster.folder.run(&["explain", "default/db", "--server", &cluster.server]);
    assert!(
        unknown.contains("--certificate-authority") && unknown.ends_with("exit 2\n"),
        "{unknown}"
    );

    cluster.scheduler.signal("USR2");
    let log = || cluster.folder.read("run.log");
    wait_until("the dump", || log().contains("\"Dump of scheduling queue\"").then_some(()));
    let log = log();
    assert!(
        log.contains("\tNode name: b\n\tDeleted: false\n\tRequested Resources: &{MilliCPU:"),
        "{log}"
    );
    assert!(log.contains("activeQ:0; backoffQ:0; unschedulablePods:2"), "{log}");
    assert!(log.contains("name: db, namespace: default, uid: "), "{log}");
    assert!(!log.contains("Cache mismatch"), "{log}");
    assert!(!cluster.scheduler.has_ended());
}
