//! Lifecycles that stages define.

use super::*;

fn staged(stages: &str) -> ControllerBench {
    let stages = stage::Stage::from_document(&Document::new("stages", stages)).unwrap();
    let nodes = node_template::nodes_from_templates(&[], 1).unwrap();
    let mut bench = ControllerBench::new(kubelet_controllers(KubeletOptions {
        nodes,
        stages,
        ..KubeletOptions::default()
    }));
    bench.run_until_idle();
    bench
}

/// Written after KWOK's fast stages for pods.
const STAGES: &str = r#"
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-ready}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchLabels: {staged: "yes"}
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
    - {key: .status.podIP, operator: DoesNotExist}
  delay:
    durationMilliseconds: 500
    durationFrom: {expressionFrom: '.metadata.annotations["pod-ready.stage.kwok.x-k8s.io/delay"]'}
  next:
    finalizers: {add: [{value: kwok.x-k8s.io/fake}]}
    event: {type: Normal, reason: Created, message: 'Created {{ .metadata.name }}'}
    statusTemplate: |
      {{ $now := Now }}
      conditions:
      - {type: Initialized, status: "True", lastTransitionTime: {{ $now | Quote }}}
      - {type: Ready, status: "True", lastTransitionTime: {{ $now | Quote }}}
      containerStatuses:
      {{ range .spec.containers }}
      - image: {{ .image | Quote }}
        imageID: ""
        name: {{ .name | Quote }}
        ready: true
        restartCount: 0
        state:
          running:
            startedAt: {{ $now | Quote }}
      {{ end }}
      hostIP: {{ NodeIPWith .spec.nodeName | Quote }}
      podIP: {{ PodIPWith .spec.nodeName ( or .spec.hostNetwork false ) ( or .metadata.uid "" ) ( or .metadata.name "" ) ( or .metadata.namespace "" ) | Quote }}
      phase: Running
      startTime: {{ $now | Quote }}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-delete}
spec:
  resourceRef: {kind: Pod}
  selector:
    matchExpressions:
    - jq: {key: .metadata.deletionTimestamp, operator: Exists}
  delay: {durationMilliseconds: 1000}
  steps:
  - finalizers: {remove: [{value: kwok.x-k8s.io/fake}]}
  - delete: true
"#;

#[test]
fn stages_respect_their_delays() {
    let mut bench = staged(STAGES);
    let yes = json!({"metadata": {"labels": {"staged": "yes"}}});
    pod(&mut bench, "a", json!({}), yes.clone());
    pod(&mut bench, "b", json!({"pod-ready.stage.kwok.x-k8s.io/delay": "2s"}), yes);
    pod(&mut bench, "c", json!({}), json!({}));
    bench.advance_time(Duration::from_millis(499));
    assert_eq!(shown(&bench, "a"), "Pending  ");
    bench.advance_time(Duration::from_millis(1));
    assert_eq!(shown(&bench, "a"), "Running Initialized,Ready runn");
    let a = bench.get::<Pod>("default", "a").unwrap();
    assert_eq!(a.metadata.finalizers, Some(vec!["kwok.x-k8s.io/fake".to_owned()]));
    let node = bench.get::<Node>("", "node-0").unwrap();
    let status = a.status.clone().unwrap();
    assert_eq!(status.host_ip.as_deref(), node::address_of(&node));
    assert!(status.pod_ip.is_some_and(|ip| ip.starts_with("10.")));
    let events = bench.list::<k8s_openapi::api::core::v1::Event>();
    assert_eq!(
        events.iter().filter_map(|it| it.message.as_deref()).collect::<Vec<_>>(),
        ["Created a"]
    );
    bench.advance_time(seconds(2));
    assert_eq!(
        (shown(&bench, "b").as_str(), shown(&bench, "c").as_str()),
        ("Running Initialized,Ready runn", "Pending  ")
    );

    bench.send_as_client(&ControllerRequest::delete(&a));
    bench.advance_time(Duration::from_millis(999));
    assert_eq!(shown(&bench, "a"), "Running Initialized,Ready runn");
    bench.advance_time(Duration::from_millis(1));
    assert_eq!(shown(&bench, "a"), "deleted");
}

#[test]
fn a_failed_step_is_retried() {
    let mut n = 0;
    let refuse = move |request: &ControllerRequest| {
        n += usize::from(
            matches!(request, ControllerRequest::Patch { subresource: "status", key, .. } if key.kind == Kind::Pod),
        );
        let busy = ControllerResponse::Rejected {
            status: 500,
            reason: String::new(),
            message: String::new(),
            retry_after: None,
        };
        (n == 1).then_some(busy)
    };
    let mut bench = staged(STAGES).with_faults(refuse);
    pod(&mut bench, "a", json!({}), json!({"metadata": {"labels": {"staged": "yes"}}}));
    bench.advance_time(Duration::from_millis(500));
    assert_eq!(shown(&bench, "a"), "Pending  ");
    bench.advance_time(Duration::from_millis(50));
    assert_eq!(
        shown(&bench, "a"),
        "Running Initialized,Ready runn",
        "without waiting for the delay once more"
    );
}

#[test]
fn nodes_have_stages_too() {
    let stages = r#"
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: node-initialize}
spec:
  resourceRef: {kind: Node}
  selector:
    matchExpressions:
    - {key: '.status.conditions.[] | select( .type == "Ready" ) | .status', operator: NotIn, values: ["True"]}
  next:
    statusTemplate: |
      {{ $now := Now }}
      conditions:
      {{ range NodeConditions }}
      - lastHeartbeatTime: {{ $now | Quote }}
        lastTransitionTime: {{ $now | Quote }}
        message: {{ .message | Quote }}
        reason: {{ .reason | Quote }}
        status: {{ .status | Quote }}
        type: {{ .type  | Quote}}
      {{ end }}
      addresses:
      {{ with .status.addresses }}
      {{ YAML . 1 }}
      {{ else }}
      {{ with NodeIP }}
      - {address: {{ . | Quote }}, type: InternalIP}
      {{ end }}
      {{ end }}
      allocatable:
      {{ with .status.allocatable }}
      {{ YAML . 1 }}
      {{ else }}
        cpu: 1k
      {{ end }}
      phase: Running
"#;
    let bench = staged(stages);
    let node = bench.get::<Node>("", "node-0").unwrap();
    assert!(node::address_of(&node).is_some());
    let status = serde_json::to_value(node.status).unwrap();
    assert_eq!(
        (&status["phase"], &status["allocatable"]["cpu"]),
        (&json!("Running"), &json!("32"))
    );
    assert_eq!(status["conditions"].as_array().unwrap().len(), 5);
}

#[test]
fn bad_stages() {
    #[track_caller]
    fn check(edit: (&str, &str), want: &str) {
        let text = STAGES.trim_start().replacen(edit.0, edit.1, 1);
        let error = stage::Stage::from_document(&Document::new("s", text)).unwrap_err().to_string();
        assert_eq!(error, want);
    }
    check(("kind: Stage", "kind: Stages"), r#"s:2:7: kind: expected Stage, found "Stages""#);
    check(
        ("kind: Pod}", "kind: Foo}"),
        r#"s:5:16: spec.resourceRef: expected a Pod or a Node of v1, found "v1 Foo""#,
    );
    check(
        ("operator: DoesNotExist}", "operator: Like}"),
        "s:9:52: spec.selector.matchExpressions[0].operator: unknown variant `Like`, expected one of In, NotIn, Exists, DoesNotExist",
    );
    check(
        ("operator: DoesNotExist}", "operator: In}"),
        "s:9:7: spec.selector.matchExpressions[0].values: expected values for In",
    );
    check(
        ("key: .status.podIP", "key: podIP"),
        r#"s:10:13: spec.selector.matchExpressions[1].key: expected a path such as .a.b, found "podIP""#,
    );
    check(("{{ end }}", ""), "s:18:7: spec.next.statusTemplate: line 6: range without end");
    check(
        ("PodIPWith", "PodIPFrom"),
        r#"s:18:7: spec.next.statusTemplate: line 17: there is no function "PodIPFrom""#,
    );
    check(
        ("  next:", "  steps: []\n  next:"),
        "s:14:10: spec.steps: expected either next or steps",
    );
    check(
        ("delay:", "delays:"),
        "s:11:3: spec.delays: unknown field `delays`, expected one of resourceRef, selector, weight, weightFrom, delay, next, steps, immediateNextStage",
    );
}
