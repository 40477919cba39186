//! Reserve, Unreserve and PreBind.

use std::time::Duration;

use expect_test::{Expect, expect};
use loadmaster_framework::api_calls::{ApiRequest, PluginStep, PluginStepInput};
use loadmaster_framework::testkit::TestCycle;

use super::*;

/// A step: the request, the wait, `done`, or the failure.
fn shown(step: PluginStep<()>) -> String {
    match step {
        PluginStep::Call(ApiRequest { verb, resource, namespace, name, body, .. }) => {
            let body = body.unwrap();
            let (meta, claim) = (&body["metadata"], &body["spec"]["claimRef"]);
            format!(
                "{verb:?} {resource} {namespace}/{name} {} {} {claim}",
                meta["resourceVersion"], meta["annotations"]
            )
        }
        PluginStep::Wait { on, until } => {
            let on: Vec<String> =
                on.iter().map(|it| format!("{}/{}", it.resource, it.name)).collect();
            format!("wait for {} until {:?}", on.join(" "), Duration::from_nanos(until.0))
        }
        PluginStep::Done(()) => "done".to_owned(),
        PluginStep::Fail(rejection) => {
            format!("{} {}", rejection.code().name(), rejection.message())
        }
        PluginStep::CallExtenders(_) => unreachable!(),
    }
}

struct Binding {
    bench: PluginTestBench,
    cycle: TestCycle,
}

impl Binding {
    /// Reserves the volumes of a pod with these claims.
    fn new(mut bench: PluginTestBench, claims: &[&str], node: &str) -> Binding {
        let mut cycle = bench.start_cycle(pod_with(claims), node).unwrap();
        assert_eq!(bench.reserve(&mut cycle), "Success");
        Binding { bench, cycle }
    }

    #[track_caller]
    fn check(&mut self, input: PluginStepInput<'_>, want: &Expect) {
        want.assert_eq(&shown(self.bench.pre_bind(&mut self.cycle, input)));
    }

    /// The API server updated the object, which has this version now.
    #[track_caller]
    fn check_reply(&mut self, version: &str, want: &Expect) {
        let object = json!({"metadata": {"resourceVersion": version}});
        self.check(PluginStepInput::Reply(Ok(&object)), want);
    }
}

fn selected(node: &str) -> Value {
    json!({"metadata": {"resourceVersion": "6", "annotations": {"volume.kubernetes.io/selected-node": node}}})
}

fn bound_to(volume: &str, node: &str) -> Value {
    let annotations = json!({"volume.kubernetes.io/selected-node": node, "pv.kubernetes.io/bind-completed": "yes"});
    json!({"metadata": {"resourceVersion": "9", "annotations": annotations}, "spec": {"volumeName": volume}})
}

fn waits() -> Expect {
    expect!["wait for persistentvolumeclaims/data until 1s"]
}

#[test]
fn provisioning() {
    let mut bench = bench();
    claim(
        &mut bench,
        "data",
        "wait",
        json!({"metadata": {"annotations": {"note": "kept"}, "managedFields": [{}]}}),
    );
    let mut binding = Binding::new(bench, &["data"], "a1");
    binding.check(
        PluginStepInput::Start,
        &expect![[
            r#"Update persistentvolumeclaims default/data "5" {"note":"kept","volume.kubernetes.io/selected-node":"a1"} null"#
        ]],
    );
    binding.check_reply("6", &waits());
    // The update is not yet reported; then it is, then a volume is provisioned, which is reported last.
    binding.check(PluginStepInput::Deadline, &waits());
    claim(&mut binding.bench, "data", "wait", selected("a1"));
    binding.check(PluginStepInput::Changed(None), &waits());
    claim(&mut binding.bench, "data", "wait", bound_to("pv", "a1"));
    binding.check(
        PluginStepInput::Changed(None),
        &expect!["wait for persistentvolumes/pv persistentvolumeclaims/data until 1s"],
    );
    volume(&mut binding.bench, "pv", "wait", on(HOSTNAME, &["a1"]));
    binding.check(PluginStepInput::Changed(None), &expect!["done"]);
}

#[test]
fn static_binding() {
    let mut bench = bench();
    claim(&mut bench, "data", "static", json!({}));
    volume(&mut bench, "pv", "static", json!({}));
    let mut binding = Binding::new(bench, &["data"], "a1");
    binding.check(
        PluginStepInput::Start,
        &expect![[
            r#"Update persistentvolumes /pv "7" {"pv.kubernetes.io/bound-by-controller":"yes"} {"apiVersion":"v1","kind":"PersistentVolumeClaim","name":"data","namespace":"default","resourceVersion":"5","uid":"uid-data"}"#
        ]],
    );
    // All pods that wait are checked at the same times.
    binding.bench.advance_time(Duration::from_millis(300));
    let wait = expect!["wait for persistentvolumes/pv persistentvolumeclaims/data until 1s"];
    binding.check_reply("8", &wait);
    let claim_ref = json!({"namespace": "default", "name": "data", "uid": "uid-data"});
    let reserved = json!({"metadata": {"resourceVersion": "8"}, "spec": {"claimRef": claim_ref}});
    volume(&mut binding.bench, "pv", "static", reserved);
    binding.check(PluginStepInput::Changed(None), &wait);
    claim(&mut binding.bench, "data", "static", bound_to("pv", ""));
    binding.check(PluginStepInput::Changed(None), &expect!["done"]);
}

/// Another scheduler, or the user, binds the claim while PreBind waits.
#[test]
fn a_claim_that_is_bound_to_another_volume() {
    check_static_failure(
        |bench| {
            let claim_ref = json!({"namespace": "default", "name": "data", "uid": "uid-data"});
            let reserved =
                json!({"metadata": {"resourceVersion": "8"}, "spec": {"claimRef": claim_ref}});
            volume(bench, "pv", "static", reserved);
            volume(bench, "other", "static", on(HOSTNAME, &["b1"]));
            claim(bench, "data", "static", bound_to("other", ""));
        },
        &expect![[
            r#"Error binding volumes: pv "other" node affinity doesn't match node "a1": no matching NodeSelectorTerms"#
        ]],
    );
}

#[test]
fn a_second_pod_with_the_claim_writes_what_the_first_one_does() {
    let mut bench = bench();
    claim(&mut bench, "data", "static", json!({}));
    volume(&mut bench, "pv", "static", json!({}));
    let want = expect![[
        r#"Update persistentvolumes /pv "7" {"pv.kubernetes.io/bound-by-controller":"yes"} {"apiVersion":"v1","kind":"PersistentVolumeClaim","name":"data","namespace":"default","resourceVersion":"5","uid":"uid-data"}"#
    ]];
    let mut first = Binding::new(bench, &["data"], "a1");
    first.check(PluginStepInput::Start, &want);
    let mut second = Binding::new(first.bench, &["data"], "a1");
    second.check(PluginStepInput::Start, &want);
}

#[test]
fn a_volume_that_the_user_reserved_gets_the_uid_only() {
    let mut bench = bench();
    claim(&mut bench, "data", "static", json!({}));
    let claim_ref = json!({"namespace": "default", "name": "data"});
    volume(&mut bench, "pv", "static", json!({"spec": {"claimRef": claim_ref}}));
    let mut binding = Binding::new(bench, &["data"], "a1");
    binding.check(
        PluginStepInput::Start,
        &expect![[
            r#"Update persistentvolumes /pv "7" null {"apiVersion":"v1","kind":"PersistentVolumeClaim","name":"data","namespace":"default","resourceVersion":"5","uid":"uid-data"}"#
        ]],
    );
}

#[test]
fn a_volume_that_the_controller_bound_first_is_not_written() {
    let mut bench = bench();
    claim(&mut bench, "data", "static", json!({}));
    let claim_ref = json!({"namespace": "default", "name": "data", "uid": "uid-data"});
    volume(
        &mut bench,
        "pv",
        "static",
        json!({"spec": {"claimRef": claim_ref}, "status": {"phase": "Bound"}}),
    );
    let mut binding = Binding::new(bench, &["data"], "a1");
    binding.check(
        PluginStepInput::Start,
        &expect!["wait for persistentvolumes/pv persistentvolumeclaims/data until 1s"],
    );
}

#[test]
fn volumes_are_written_before_claims() {
    let mut bench = bench();
    claim(&mut bench, "data", "wait", json!({}));
    claim(&mut bench, "local", "static", json!({}));
    volume(&mut bench, "pv", "static", json!({}));
    let mut binding = Binding::new(bench, &["data", "local"], "a1");
    let step = binding.bench.pre_bind(&mut binding.cycle, PluginStepInput::Start);
    assert!(shown(step).starts_with("Update persistentvolumes /pv"));
    binding.check_reply(
        "8",
        &expect![[
            r#"Update persistentvolumeclaims default/data "5" {"volume.kubernetes.io/selected-node":"a1"} null"#
        ]],
    );
}

/// What PreBind returns for a claim that was written, after this change of the bench.
#[track_caller]
fn check_failure(change: impl FnOnce(&mut PluginTestBench), want: &Expect) {
    let mut bench = bench();
    claim(&mut bench, "data", "wait", json!({}));
    let mut binding = Binding::new(bench, &["data"], "a1");
    binding.bench.pre_bind(&mut binding.cycle, PluginStepInput::Start);
    binding.check_reply("6", &waits());
    claim(&mut binding.bench, "data", "wait", selected("a1"));
    change(&mut binding.bench);
    binding.check(PluginStepInput::Changed(None), want);
}

fn delete(bench: &mut PluginTestBench, kind: StorageKind, namespace: &str, name: &str) {
    bench.delete_object(&kind.gvr(), namespace, name);
}

#[test]
fn failures_of_provisioning() {
    check_failure(|_| {}, &waits());
    check_failure(
        |bench| claim(bench, "data", "wait", selected("")),
        &expect![[r#"Error binding volumes: provisioning failed for PVC "data""#]],
    );
    check_failure(
        |bench| {
            let reset = json!({"metadata": {"resourceVersion": "7"}});
            claim(bench, "data", "wait", reset);
        },
        &expect![[r#"Error binding volumes: selectedNode annotation reset for PVC "data""#]],
    );
    check_failure(
        |bench| {
            let annotations =
                json!({"volume.kubernetes.io/storage-provisioner": "csi.example.com"});
            let reset = json!({"metadata": {"resourceVersion": "7", "annotations": annotations}});
            claim(bench, "data", "wait", reset);
        },
        &expect![[r#"Error binding volumes: provisioning failed for PVC "data""#]],
    );
    check_failure(
        |bench| delete(bench, StorageKind::PersistentVolumeClaim, "default", "data"),
        &expect![[
            r#"Error binding volumes: failed to check provisioning pvc: persistentvolumeclaims "default/data" not found"#
        ]],
    );
    check_failure(
        |bench| bench.delete_node("a1"),
        &expect![[r#"Error binding volumes: failed to get node "a1": node "a1" not found"#]],
    );
    check_failure(
        |bench| {
            claim(bench, "data", "wait", bound_to("pv", "a1"));
            volume(bench, "pv", "wait", on(ZONE, &["b"]));
        },
        &expect![[
            r#"Error binding volumes: pv "pv" node affinity doesn't match node "a1": no matching NodeSelectorTerms"#
        ]],
    );
    check_failure(
        |bench| bench.advance_time(Duration::from_secs(600)),
        &expect!["Error binding volumes: context deadline exceeded"],
    );
}

/// The same for a volume that was written.
#[track_caller]
fn check_static_failure(change: impl FnOnce(&mut PluginTestBench), want: &Expect) {
    let mut bench = bench();
    claim(&mut bench, "data", "static", json!({}));
    volume(&mut bench, "pv", "static", json!({}));
    let mut binding = Binding::new(bench, &["data"], "a1");
    binding.bench.pre_bind(&mut binding.cycle, PluginStepInput::Start);
    let object = json!({"metadata": {"resourceVersion": "8"}});
    binding.bench.pre_bind(&mut binding.cycle, PluginStepInput::Reply(Ok(&object)));
    change(&mut binding.bench);
    binding.check(PluginStepInput::Changed(None), want);
}

#[test]
fn failures_of_static_binding() {
    check_static_failure(
        |bench| delete(bench, StorageKind::PersistentVolume, "", "pv"),
        &expect![[
            r#"Error binding volumes: failed to check binding: persistentvolumes "pv" not found"#
        ]],
    );
    check_static_failure(
        |bench| delete(bench, StorageKind::PersistentVolumeClaim, "default", "data"),
        &expect![[
            r#"Error binding volumes: failed to check binding: persistentvolumeclaims "default/data" not found"#
        ]],
    );
    check_static_failure(
        |bench| volume(bench, "pv", "static", json!({"metadata": {"resourceVersion": "9"}})),
        &expect![[r#"Error binding volumes: ClaimRef got reset for pv "pv""#]],
    );
}

#[test]
fn a_failed_update() {
    let mut bench = bench();
    claim(&mut bench, "data", "wait", json!({}));
    let mut binding = Binding::new(bench, &["data"], "a1");
    binding.bench.pre_bind(&mut binding.cycle, PluginStepInput::Start);
    binding.check(
        PluginStepInput::Reply(Err((409, "Operation cannot be fulfilled"))),
        &expect!["Error Operation cannot be fulfilled"],
    );
}

/// The nodes on which the pod fits.
fn feasible(bench: &mut PluginTestBench, pod: PodBuilder) -> Vec<String> {
    let lines = bench.filter(pod).unwrap();
    lines.iter().filter_map(|line| line.strip_suffix(" Success").map(str::to_owned)).collect()
}

#[test]
fn the_selected_node_is_assumed_until_the_claim_changes() {
    let mut bench = bench();
    claim(&mut bench, "data", "wait", json!({}));
    let other = || pod_with(&["data"]).set_field("/metadata/name", "web-1");
    let Binding { mut bench, cycle } = Binding::new(bench, &["data"], "a1");
    assert_eq!(feasible(&mut bench, other()), ["a1"]);
    bench.unreserve(cycle);
    assert_eq!(feasible(&mut bench, other()), ["a1", "a2", "b1"]);
    let Binding { mut bench, .. } = Binding::new(bench, &["data"], "a1");
    claim(&mut bench, "data", "wait", json!({}));
    assert_eq!(feasible(&mut bench, other()), ["a1"], "the same version again");
    claim(&mut bench, "data", "wait", selected("b1"));
    assert_eq!(feasible(&mut bench, other()), ["b1"]);
}

#[test]
fn an_assumed_volume_is_taken_until_it_changes() {
    let mut bench = bench();
    claim(&mut bench, "data", "static", json!({}));
    claim(&mut bench, "other", "static", json!({}));
    volume(&mut bench, "pv", "static", on(HOSTNAME, &["a1"]));
    let other = || pod_with(&["other"]).set_field("/metadata/name", "web-1");
    let same = || pod_with(&["data"]).set_field("/metadata/name", "web-1");
    assert_eq!(feasible(&mut bench, other()), ["a1"]);
    let Binding { mut bench, cycle } = Binding::new(bench, &["data"], "a1");
    assert!(feasible(&mut bench, other()).is_empty());
    assert_eq!(feasible(&mut bench, same()), ["a1"]);
    bench.unreserve(cycle);
    assert_eq!(feasible(&mut bench, other()), ["a1"]);
    let Binding { mut bench, .. } = Binding::new(bench, &["data"], "a1");
    let mut newer = on(HOSTNAME, &["a1"]);
    newer["metadata"] = json!({"resourceVersion": "8"});
    volume(&mut bench, "pv", "static", newer);
    assert_eq!(feasible(&mut bench, other()), ["a1"]);
}

#[test]
fn bound_claims_need_no_binding() {
    let mut bench = bench();
    bound_claim(&mut bench, "data", "pv");
    volume(&mut bench, "pv", "wait", json!({}));
    let mut cycle = bench.start_cycle(pod_with(&["data"]), "a1").unwrap();
    assert_eq!(bench.reserve(&mut cycle), "Success");
    let plugin = bench.extension_points().pre_bind.clone().unwrap();
    let cx = bench.evaluator_cx();
    let cx = Cx { world: cx.world, cycle: &cycle.state, states: cx.states };
    let pre_flight = plugin.pre_flight(cx, &cycle.pod, "a1").unwrap();
    assert_eq!(pre_flight, loadmaster_framework::extension_points::PreBindPreFlight::Skip);
}
