//! Stuck plugins.

use loadmaster_framework::{FitError, PostFilter, PostFilterCx, PostFilterResult};
use loadmaster_stdx::Rng;

use super::*;

/// A PostFilter plugin that never finishes by itself.
struct Searching;

const SEARCHING: PluginDef = PluginDef {
    name: "Searching",
    build: |points, _| {
        points.post_filter = Some(Arc::new(Searching));
        Ok(())
    },
    args: None,
};

impl PostFilter for Searching {
    fn post_filter(
        &self,
        cx: PostFilterCx<'_>,
        _: &Arc<PodInfo>,
        _: FitError<'_>,
        _: &mut Rng,
        input: PluginStepInput<'_>,
    ) -> PluginStep<PostFilterResult> {
        match input {
            PluginStepInput::Changed(_) => PluginStep::Done(PostFilterResult {
                rejection: Some(Rejection::unschedulable("found nothing")),
                ..PostFilterResult::default()
            }),
            _ => PluginStep::Wait {
                on: vec![claim()],
                until: cx.now().mono.after(Duration::from_secs(7)),
            },
        }
    }
}

impl Bench {
    /// Advances the clock to one second before a plugin counts as stuck.
    fn advance_to_just_before_stuck(&mut self) {
        self.lines.clear();
        self.advance(59);
        assert!(!self.lines.iter().any(|line| line.contains("stuck")), "{:?}", self.lines);
        self.lines.clear();
    }

    fn delete_pod(&mut self, name: &str) {
        self.apply(EngineEvent::Delete(DeletedObjectKey::Pod(name.into())));
    }
}

#[test]
fn a_stuck_pre_bind_is_reported_once_and_keeps_its_node() {
    let mut bench = Bench::with(EngineOptions { bind_window: 1, ..EngineOptions::default() });
    bench.pod("slow", json!({"pre-bind": "for-ever"}));
    bench.cycle();
    bench.advance_to_just_before_stuck();
    assert_eq!(bench.engine.next_timeout(), Some(MonoTime(70 * SECOND)));
    bench.advance(1);
    bench.check(&expect![[r#"
        stuck: LabelDriven in PreBind, default/slow on "a"
        PluginStuck slow: plugin "LabelDriven" has been running PreBind for 60 s: the pod stays assumed on node "a" and is not bound until it finishes
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    // Other pods are still scheduled.
    bench.pod("web", json!({}));
    assert_eq!(bench.cycle(), CycleResult::Ran);
    bench.check(&expect![[r#"
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 2 assumed, 2 on a"#]]);
    bench.advance(3600);
    bench.check(&expect![[r#"
        stuck: DefaultBinder in Bind, default/web on "a"
        PluginStuck web: plugin "DefaultBinder" has been running Bind for 60 s: the pod stays assumed on node "a" and is not bound until it finishes
        0 active, 0 backing off, 0 unschedulable, 2 assumed, 2 on a"#]]);
    // The plugin finishes after all, and the pod is bound.
    bench.apply(EngineEvent::ObjectChanged { object: claim(), value: Some(json!({})) });
    bench.check(&expect![[r#"
        call pods/slow/binding
        0 active, 0 backing off, 0 unschedulable, 2 assumed, 2 on a"#]]);
}

#[test]
fn a_pod_that_waits_in_pre_bind_does_not_fill_the_bind_window() {
    let mut bench = Bench::with(EngineOptions { bind_window: 1, ..EngineOptions::default() });
    for (name, labels) in
        [("slow", json!({"pre-bind": "for-ever"})), ("web", json!({})), ("db", json!({}))]
    {
        bench.pod(name, labels);
    }
    assert_eq!((bench.cycle(), bench.engine.n_binding_pods()), (CycleResult::Ran, 0));
    assert_eq!((bench.cycle(), bench.engine.n_binding_pods()), (CycleResult::Ran, 1));
    assert_eq!(bench.cycle(), CycleResult::Waiting, "web is being bound");
    // What the first pod waits for happens: it is being bound, too.
    bench.apply(EngineEvent::ObjectChanged { object: claim(), value: Some(json!({})) });
    assert_eq!(bench.engine.n_binding_pods(), 2);
}

#[test]
fn deleting_the_pod_releases_its_resources_and_cancels_the_stuck_plugin() {
    let delete_after = |seconds: u64| {
        let mut bench = Bench::new();
        bench.pod("slow", json!({"pre-bind": "for-ever"}));
        bench.cycle();
        bench.advance_to_just_before_stuck();
        bench.advance(seconds);
        bench.delete_pod("slow");
        bench.advance(seconds);
        assert!(bench.engine.binding_pods().is_empty());
        assert_eq!((bench.engine.n_binding_pods(), bench.engine.n_assumed_pods()), (0, 0));
        bench
    };
    delete_after(1).check(&expect![[r#"
        stuck: LabelDriven in PreBind, default/slow on "a"
        PluginStuck slow: plugin "LabelDriven" has been running PreBind for 60 s: the pod stays assumed on node "a" and is not bound until it finishes
        FailedScheduling slow: the pod was deleted while it was being bound
        0 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
    let mut bench = Bench::new();
    bench.pod("slow", json!({"pre-bind": "for-ever"}));
    bench.cycle();
    bench.delete_pod("slow");
    assert_eq!(bench.engine.binding_pods(), ["slow"]);
    bench.advance(60);
    assert!(bench.engine.binding_pods().is_empty());
    assert_eq!(bench.engine.n_binding_pods(), 0);
}

#[test]
fn deleting_a_pod_bound_by_another_scheduler_cancels_the_stuck_plugin() {
    for stuck_first in [true, false] {
        let mut bench = Bench::new();
        bench.pod("slow", json!({"pre-bind": "for-ever"}));
        bench.cycle();
        bench.set_pod("slow", json!({}), json!({"nodeName": "elsewhere"}), json!({}));
        if stuck_first {
            bench.advance(60);
        }
        assert_eq!(bench.engine.binding_pods(), ["slow"]);
        bench.delete_pod("slow");
        bench.advance(60);
        assert!(bench.engine.binding_pods().is_empty());
        assert_eq!(bench.engine.n_binding_pods(), 0);
    }
}

#[test]
fn a_bind_without_a_reply_is_reported_as_stuck() {
    let mut bench = Bench::new();
    bench.pod("web", json!({}));
    bench.cycle();
    bench.advance_to_just_before_stuck();
    bench.advance(1);
    bench.check(&expect![[r#"
        stuck: DefaultBinder in Bind, default/web on "a"
        PluginStuck web: plugin "DefaultBinder" has been running Bind for 60 s: the pod stays assumed on node "a" and is not bound until it finishes
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    bench.reply(Ok(()));
    bench.check(&expect![[r#"
        Scheduled web: Successfully assigned default/web to a
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
}

#[test]
fn a_plugin_that_finishes_in_time_is_not_reported() {
    let mut bench = Bench::new();
    bench.pod("web", json!({"pre-bind": "wait"}));
    bench.cycle();
    bench.advance_to_just_before_stuck();
    bench.apply(EngineEvent::ObjectChanged { object: claim(), value: Some(json!({})) });
    bench.advance_to_just_before_stuck();
    bench.calls.remove(0);
    bench.reply(Ok(()));
    bench.advance(3600);
    bench.check(&expect![[r#"
        Scheduled web: Successfully assigned default/web to a
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    assert_eq!(bench.engine.next_timeout(), None);
}

#[test]
fn a_stuck_post_filter_is_reported() {
    let profile = json!({"plugins": {"postFilter": {
        "enabled": [{"name": "Searching"}], "disabled": [{"name": "*"}],
    }}});
    let mut bench = Bench::of(EngineOptions::default(), SEARCHING, &profile, json!([]));
    bench.set_pod("db", json!({}), json!({"nodeSelector": {"disk": "ssd"}}), json!({}));
    bench.cycle();
    bench.advance_to_just_before_stuck();
    bench.advance(1);
    bench.advance(60);
    bench.check(&expect![[r#"
        stuck: Searching in PostFilter, default/db on ""
        PluginStuck db: plugin "Searching" has been running PostFilter for 60 s: the pod is not retried until it finishes
        0 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
    bench.apply(EngineEvent::ObjectChanged { object: claim(), value: Some(json!({})) });
    bench.check(&expect![[r#"
        FailedScheduling db: 0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. found nothing
        call pods/db/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:15:20Z","message":"0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. found nothing","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
        0 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"#]]);
}
