//! Kubelets against the embedded API server.

mod stages;

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use loadmaster_api::document::Document;
use serde_json::{Value, json};

use super::*;
use crate::kind::{Key, Kind};
use crate::request::{ControllerRequest, ControllerResponse, DeleteOptions, Patch};
use crate::testkit::ControllerBench;

fn bench(n_nodes: usize) -> ControllerBench {
    let nodes = node_template::nodes_from_templates(&[], n_nodes).unwrap();
    let mut bench = ControllerBench::new(kubelet_controllers(KubeletOptions {
        nodes,
        ..KubeletOptions::default()
    }));
    bench.run_until_idle();
    bench
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A pod on a node, with annotations and more of its spec.
fn pod(bench: &mut ControllerBench, name: &str, annotations: Value, more: Value) {
    let mut manifest = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "default", "name": name, "annotations": annotations},
        "spec": {"nodeName": "node-0", "containers": [{"name": "c", "image": "i"}]}});
    for (field, value) in more["spec"].as_object().into_iter().flatten() {
        manifest["spec"][field] = value.clone();
    }
    for (field, value) in more["metadata"].as_object().into_iter().flatten() {
        manifest["metadata"][field] = value.clone();
    }
    bench.create(manifest);
}

/// Phase, conditions that are true, and the states of all containers.
fn shown(bench: &ControllerBench, name: &str) -> String {
    let Some(pod) = bench.get::<Pod>("default", name) else { return "deleted".to_owned() };
    let status = serde_json::to_value(pod.status).unwrap();
    let list = |name: &str| status[name].as_array().cloned().unwrap_or_default();
    let is_true =
        |it: &Value| (it["status"] == "True").then(|| it["type"].as_str().unwrap().to_owned());
    let conditions: Vec<String> = list("conditions").iter().filter_map(is_true).collect();
    let state = |it: &Value| {
        let (kind, state) = it["state"].as_object().unwrap().iter().next().unwrap();
        let code = state["exitCode"].as_i64().map(|code| code.to_string()).unwrap_or_default();
        let n = it["restartCount"]
            .as_i64()
            .filter(|n| *n > 0)
            .map(|n| format!("x{n}"))
            .unwrap_or_default();
        format!("{}{code}{n}", &kind[..4])
    };
    let containers: Vec<String> =
        list("initContainerStatuses").iter().chain(&list("containerStatuses")).map(state).collect();
    let phase = status["phase"].as_str().unwrap();
    format!("{phase} {} {}", conditions.join(","), containers.join(","))
}

const READY: &str = "Running PodReadyToStartContainers,Initialized,Ready,ContainersReady runn";

#[test]
fn nodes_are_created_once_and_stay_ready() {
    let mut bench = bench(3);
    let nodes = bench.list::<Node>();
    let names: Vec<_> = nodes.iter().filter_map(|node| node.metadata.name.as_deref()).collect();
    assert_eq!(names, ["node-0", "node-1", "node-2"]);
    let is_ready = |node: &Node| {
        let conditions = node.status.as_ref().unwrap().conditions.clone().unwrap();
        conditions.iter().any(|it| it.type_ == "Ready" && it.status == "True")
    };
    assert!(nodes.iter().all(is_ready));
    let addresses: std::collections::BTreeSet<_> =
        nodes.iter().filter_map(node::address_of).collect();
    assert_eq!(addresses.len(), 3);

    // The node lifecycle controller has lost its patience, wrongly.
    let unknown = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    bench.send_as_client(&ControllerRequest::patch_status(
        Key::new(Kind::Node, "", "node-1"),
        Patch::Strategic(unknown),
    ));
    bench.run_until_idle();
    assert!(is_ready(&bench.get::<Node>("", "node-1").unwrap()));

    let node = bench.get::<Node>("", "node-2").unwrap();
    bench.send_as_client(&ControllerRequest::delete(&node));
    bench.advance_time(seconds(30));
    assert!(bench.get::<Node>("", "node-2").is_none(), "it stays away");
}

#[test]
fn extended_resources_in_the_capacity_become_allocatable() {
    let mut bench = bench(1);
    let mut check = |change: Value, want: &[(&str, &str)]| {
        let key = Key::new(Kind::Node, "", "node-0");
        let patch = Patch::Strategic(json!({"status": change}));
        bench.send_as_client(&ControllerRequest::patch_status(key, patch));
        bench.run_until_idle();
        let status = bench.get::<Node>("", "node-0").unwrap().status.unwrap();
        let allocatable = status.allocatable.unwrap();
        let native = ["cpu", "memory", "ephemeral-storage", "pods"];
        let found: Vec<(&str, &str)> = allocatable
            .iter()
            .filter(|(name, _)| !native.contains(&name.as_str()))
            .map(|(name, amount)| (name.as_str(), amount.0.as_str()))
            .collect();
        assert_eq!(found, want, "{change}");
        assert_eq!(allocatable["cpu"].0, "32");
    };
    let foo = "example.com/foo";
    check(json!({"capacity": {foo: "5"}}), &[(foo, "5")]);
    check(json!({"allocatable": {foo: "4"}}), &[(foo, "4")]);
    check(json!({"capacity": {"hugepages-2Mi": "1Gi", "x.kubernetes.io/y": "1"}}), &[(foo, "4")]);
    check(json!({"capacity": {foo: null}}), &[]);
}

#[test]
fn leases_are_renewed_and_statuses_reported() {
    let mut bench = bench(5);
    let start = bench.now();
    bench.sent.clear();
    bench.advance_time(seconds(600));
    let n = |want: fn(&ControllerRequest) -> bool| bench.sent.iter().filter(|it| want(it)).count();
    let n_leases =
        n(|it| matches!(it, ControllerRequest::Patch { key, .. } if key.kind == Kind::Lease));
    let n_statuses =
        n(|it| matches!(it, ControllerRequest::Patch { key, .. } if key.kind == Kind::Node));
    // 5 nodes, each 10 to 10.4 s, and the first one sooner; each 240 to 300 s.
    assert!((285..=310).contains(&n_leases), "{n_leases}");
    assert!((10..=13).contains(&n_statuses), "{n_statuses}");
    assert_eq!(n_leases + n_statuses, bench.sent.len());
    for lease in bench.list::<Lease>() {
        let spec = lease.spec.unwrap();
        let age = spec.renew_time.unwrap().0.duration_until(bench.now()).as_secs();
        assert!((0..=10).contains(&age), "{age}");
        assert_eq!(lease.metadata.owner_references.unwrap()[0].kind, "Node");
    }
    assert!(start < bench.now());
}

#[test]
fn a_pod_runs_and_is_deleted() {
    let mut bench = bench(1);
    pod(&mut bench, "a", json!({}), json!({}));
    pod(&mut bench, "b", json!({}), json!({"spec": {"hostNetwork": true}}));
    bench.run_until_idle();
    assert_eq!(shown(&bench, "a"), "Pending  ");
    bench.advance_time(seconds(1));
    assert_eq!(shown(&bench, "a"), READY);
    let status = |name: &str| bench.get::<Pod>("default", name).unwrap().status.unwrap();
    let (a, b, node) = (status("a"), status("b"), bench.get::<Node>("", "node-0").unwrap());
    let host = node::address_of(&node).unwrap();
    assert_eq!(
        (a.host_ip.as_deref(), b.host_ip.as_deref(), b.pod_ip.as_deref()),
        (Some(host), Some(host), Some(host))
    );
    assert!(a.pod_ip.as_deref().is_some_and(|ip| ip.starts_with("10.") && ip != host));
    assert_eq!(a.start_time.unwrap().0, bench.now());

    // Somebody marks it as not ready, as the node lifecycle controller does.
    let patch = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    bench.send_as_client(&ControllerRequest::patch_status(
        Key::new(Kind::Pod, "default", "a"),
        Patch::Strategic(patch),
    ));
    bench.run_until_idle();
    assert_eq!(shown(&bench, "a"), READY);

    bench.send_as_client(&ControllerRequest::delete(&bench.get::<Pod>("default", "a").unwrap()));
    bench.run_until_idle();
    assert_eq!(shown(&bench, "a"), "deleted");
}

#[test]
fn pods_terminate_according_to_their_annotations() {
    let mut bench = bench(1);
    let never = json!({"spec": {"restartPolicy": "Never"}});
    let on_failure = json!({"spec": {"restartPolicy": "OnFailure"}});
    let job = json!({"metadata": {"ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u",
        "controller": true}]}, "spec": {"restartPolicy": "Never"}});
    let deadline = json!({"spec": {"activeDeadlineSeconds": 3}});
    pod(&mut bench, "good", json!({"loadmaster.io/run-seconds": "2"}), never.clone());
    let bad = json!({"loadmaster.io/run-seconds": "2", "loadmaster.io/exit-code": "3"});
    pod(&mut bench, "bad", bad.clone(), never);
    pod(&mut bench, "loop", bad, on_failure);
    pod(&mut bench, "job", json!({}), job);
    pod(&mut bench, "late", json!({}), deadline);
    bench.advance_time(seconds(2));
    assert_eq!(shown(&bench, "good"), READY);
    bench.advance_time(seconds(1));
    assert_eq!(shown(&bench, "good"), "Succeeded Initialized term0");
    assert_eq!(shown(&bench, "bad"), "Failed Initialized term3");
    assert_eq!(shown(&bench, "loop"), "Running PodReadyToStartContainers,Initialized wait");
    bench.advance_time(seconds(1));
    assert_eq!(shown(&bench, "late"), "Failed Initialized term143");
    bench.advance_time(seconds(9));
    assert_eq!(shown(&bench, "loop"), format!("{READY}x1"));
    bench.advance_time(seconds(2));
    assert_eq!(shown(&bench, "loop"), "Running PodReadyToStartContainers,Initialized waitx1");
    bench.advance_time(seconds(19));
    assert_eq!(shown(&bench, "loop"), "Running PodReadyToStartContainers,Initialized waitx1");
    bench.advance_time(seconds(1));
    assert_eq!(shown(&bench, "loop"), format!("{READY}x2"));
    assert_eq!(
        shown(&bench, "job"),
        "Succeeded Initialized term0",
        "31 s are enough for every Job's pod"
    );
}

#[test]
fn init_containers_run_one_after_another() {
    let mut bench = bench(1);
    let inits = json!({"spec": {"initContainers": [{"name": "x", "image": "i"},
        {"name": "side", "image": "i", "restartPolicy": "Always"}, {"name": "y", "image": "i"}]}});
    pod(
        &mut bench,
        "a",
        json!({"loadmaster.io/init-seconds": "2", "loadmaster.io/start-seconds": "0"}),
        inits,
    );
    bench.run_until_idle();
    assert_eq!(shown(&bench, "a"), "Pending PodReadyToStartContainers runn,wait,wait,wait");
    bench.advance_time(seconds(2));
    assert_eq!(shown(&bench, "a"), "Pending PodReadyToStartContainers term0,runn,runn,wait");
    bench.advance_time(seconds(2));
    let running = READY.replace(" runn", " term0,runn,term0,runn");
    assert_eq!(shown(&bench, "a"), running);
}

/// `kubectl debug` waits until its container runs.
#[test]
fn ephemeral_containers_run_until_the_pod_ends() {
    let mut bench = bench(1);
    pod(
        &mut bench,
        "a",
        json!({"loadmaster.io/run-seconds": "60"}),
        json!({"spec": {"restartPolicy": "Never"}}),
    );
    bench.advance_time(seconds(5));
    let path = "/api/v1/namespaces/default/pods/a";
    let mut changed = bench.http("GET", path, &Value::Null).1;
    changed["spec"]["ephemeralContainers"] = json!([{"name": "debugger", "image": "busybox"}]);
    let (code, answer) = bench.http("PUT", &format!("{path}/ephemeralcontainers"), &changed);
    assert_eq!(code, 200, "{answer}");
    let state = |bench: &ControllerBench| {
        let status = bench.get::<Pod>("default", "a").unwrap().status.unwrap();
        let status = &status.ephemeral_container_statuses.unwrap()[0];
        assert_eq!((status.name.as_str(), status.image.as_str()), ("debugger", "busybox"));
        serde_json::to_value(&status.state)
            .unwrap()
            .as_object()
            .unwrap()
            .keys()
            .next()
            .unwrap()
            .clone()
    };
    bench.run_until_idle();
    assert_eq!(state(&bench), "running");
    let n_sent = bench.sent.len();
    bench.advance_time(seconds(5));
    assert_eq!(bench.sent[n_sent..].iter().filter(|it| it.kind() == Kind::Pod).count(), 0);
    bench.advance_time(seconds(60));
    assert_eq!(state(&bench), "terminated");
}

#[test]
fn deletion_respects_stop_seconds_and_grace_period() {
    let mut bench = bench(1);
    pod(&mut bench, "slow", json!({"loadmaster.io/stop-seconds": "7"}), json!({}));
    pod(&mut bench, "stuck", json!({"loadmaster.io/stop-seconds": "99"}), json!({}));
    let hook = |name: &str, seconds: u8| json!({"name": name, "image": "i", "lifecycle": {"preStop": {"sleep": {"seconds": seconds}}}});
    let hooks = json!([hook("a", 3), hook("b", 7)]);
    pod(&mut bench, "sleeper", json!({}), json!({"spec": {"containers": hooks}}));
    pod(
        &mut bench,
        "held",
        json!({}),
        json!({"metadata": {"finalizers": ["a.b/c"]}, "spec": {"restartPolicy": "Never"}}),
    );
    bench.advance_time(seconds(1));
    for name in ["slow", "stuck", "sleeper", "held"] {
        let pod = bench.get::<Pod>("default", name).unwrap();
        bench.send_as_client(&ControllerRequest::delete(&pod));
    }
    bench.advance_time(seconds(6));
    assert_eq!(
        (shown(&bench, "slow"), shown(&bench, "stuck"), shown(&bench, "sleeper")),
        (READY.to_owned(), READY.to_owned(), format!("{READY},runn"))
    );
    assert_eq!(
        shown(&bench, "held"),
        "Failed Initialized term143",
        "the owner of the finalizer sees its final status"
    );
    bench.advance_time(seconds(1));
    assert_eq!((&*shown(&bench, "slow"), &*shown(&bench, "sleeper")), ("deleted", "deleted"));
    bench.advance_time(seconds(23));
    assert_eq!(shown(&bench, "stuck"), "deleted", "its grace period is over");
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    bench.send_as_client(&ControllerRequest::patch(Key::new(Kind::Pod, "default", "held"), patch));
    bench.run_until_idle();
    assert_eq!(shown(&bench, "held"), "deleted");
}

#[test]
fn only_managed_nodes_are_simulated() {
    let managed = ManagedNodes { selector: Some(parse_label_selector("fake=yes").unwrap()) };
    let mut bench = ControllerBench::new(kubelet_controllers(KubeletOptions {
        managed,
        ..KubeletOptions::default()
    }));
    let node = |name: &str, labels: Value, annotations: Value| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels, "annotations": annotations}});
    bench.create(node("real", json!({}), json!({})));
    bench.create(node("labelled", json!({"fake": "yes"}), json!({})));
    bench.create(node("annotated", json!({}), json!({"kwok.x-k8s.io/node": "fake"})));
    bench.run_until_idle();
    let address = |bench: &ControllerBench, name: &str| {
        bench.get::<Node>("", name).as_ref().and_then(node::address_of).map(str::to_owned)
    };
    assert!(address(&bench, "labelled").is_some() && address(&bench, "annotated").is_some());
    assert_eq!(address(&bench, "real"), None);
    pod(&mut bench, "a", json!({}), json!({"spec": {"nodeName": "real"}}));
    bench.advance_time(seconds(5));
    assert_eq!(shown(&bench, "a"), "Pending  ");
    // Whoever adopts the node adopts its pods.
    let label = Patch::Merge(json!({"metadata": {"labels": {"fake": "yes"}}}));
    bench.send_as_client(&ControllerRequest::patch(Key::new(Kind::Node, "", "real"), label));
    bench.run_until_idle();
    assert_eq!(shown(&bench, "a"), READY);
}

#[test]
fn a_restart_changes_nothing() {
    let mut bench = bench(2);
    for n in 0..20 {
        pod(&mut bench, &format!("p{n}"), json!({}), json!({}));
    }
    bench.advance_time(seconds(2));
    let ips = |bench: &ControllerBench| -> Vec<_> {
        bench.list::<Pod>().into_iter().map(|pod| pod.status.unwrap().pod_ip.unwrap()).collect()
    };
    let before = ips(&bench);
    assert_eq!(before.iter().collect::<std::collections::BTreeSet<_>>().len(), 20);
    let nodes = node_template::nodes_from_templates(&[], 2).unwrap();
    bench.restart(kubelet_controllers(KubeletOptions { nodes, ..KubeletOptions::default() }));
    bench.sent.clear();
    bench.run_until_idle();
    let others: Vec<_> = bench.sent.iter().filter(|it| it.kind() != Kind::Lease).collect();
    assert_eq!((others.as_slice(), ips(&bench)), (&[][..], before));
}

#[test]
fn a_forced_deletion_needs_no_kubelet() {
    let mut bench = bench(1);
    pod(&mut bench, "a", json!({}), json!({}));
    bench.advance_time(seconds(1));
    let options = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
    bench.send_as_client(&ControllerRequest::Delete {
        key: Key::new(Kind::Pod, "default", "a"),
        options,
    });
    bench.run_until_idle();
    assert_eq!(shown(&bench, "a"), "deleted");
}

#[test]
fn selectors() {
    #[track_caller]
    fn check(text: &str, want: Result<&str, &str>) {
        let shown = parse_label_selector(text).map(|it| {
            let all = it.match_expressions.unwrap();
            let one =
                |it: &k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement| {
                    format!(
                        "{} {} {}",
                        it.key,
                        it.operator,
                        it.values.clone().unwrap_or_default().join(",")
                    )
                };
            all.iter().map(one).collect::<Vec<_>>().join("; ")
        });
        match (shown, want) {
            (Err(error), Err(want)) => assert!(error.contains(want), "{error}"),
            (shown, want) => assert_eq!(shown, want.map(str::to_owned).map_err(str::to_owned)),
        }
    }
    check("a=b,c==d, e!=f ,g,!h", Ok("a In b; c In d; e NotIn f; g Exists ; h DoesNotExist "));
    check("", Err("\"\""));
    check("a=b c", Err("a=b c"));
    check("a in (b)", Err("a in (b)"));
    assert_eq!(Document::new("x", "").decode_all::<Value>().unwrap(), Vec::<Value>::new());
}
