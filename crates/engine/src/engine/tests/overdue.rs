//! Plugins that do not come to an end.

use loadmaster_framework::{PostFilter, PostFiltered, Unfit};
use loadmaster_stdx::Rng;

use super::*;

/// Looks for room without end.
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
        _: SerialCx<'_>,
        _: &Arc<PodInfo>,
        _: Unfit<'_>,
        _: &mut Rng,
        input: Input<'_>,
    ) -> Step<PostFiltered> {
        match input {
            Input::Changed(_) => Step::Done(PostFiltered {
                rejection: Some(Rejection::unschedulable("found nothing")),
                ..PostFiltered::default()
            }),
            _ => Step::Wait { on: vec![claim()], timeout: Duration::from_secs(7) },
        }
    }
}

impl Bench {
    /// As many seconds as a plugin may take before it is named, less one.
    fn almost(&mut self) {
        self.said.clear();
        self.pass(59);
        assert!(!self.said.iter().any(|line| line.contains("overdue")), "{:?}", self.said);
        self.said.clear();
    }

    fn is_gone(&mut self, name: &str) {
        self.apply(Event::Gone(Name::Pod(name.into())));
    }
}

#[test]
fn a_pre_bind_without_an_end_is_named_once_and_keeps_its_pod() {
    let mut bench = Bench::with(Options { bind_window: 1, ..Options::default() });
    bench.pod("slow", json!({"pre-bind": "for-ever"}));
    bench.cycle();
    bench.pod("web", json!({}));
    assert_eq!(bench.cycle(), Cycled::Waiting, "the window is full");
    bench.almost();
    assert_eq!(bench.engine.deadline(), Some(Mono(70 * SECOND)));
    bench.pass(1);
    bench.check(&expect![[r#"
        overdue: Obedient in PreBind, default/slow on "a"
        PluginOverdue slow: plugin "Obedient" has not finished PreBind for 60 s: the pod keeps node "a" until it has, and is not bound before
        1 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    // Others go on.
    assert_eq!(bench.cycle(), Cycled::Ran);
    bench.check(&expect![[r#"
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 2 assumed, 2 on a"#]]);
    bench.pass(3600);
    bench.check(&expect![[r#"
        overdue: DefaultBinder in Bind, default/web on "a"
        PluginOverdue web: plugin "DefaultBinder" has not finished Bind for 60 s: the pod keeps node "a" until it has, and is not bound before
        0 active, 0 backing off, 0 unschedulable, 2 assumed, 2 on a"#]]);
    // It ends after all, and the pod is bound.
    bench.apply(Event::Changed { object: claim(), value: Some(json!({})) });
    bench.check(&expect![[r#"
        call pods/slow/binding
        0 active, 0 backing off, 0 unschedulable, 2 assumed, 2 on a"#]]);
}

#[test]
fn who_deletes_the_pod_frees_its_room_and_ends_the_plugin_s_work() {
    let gone_later = |seconds: u64| {
        let mut bench = Bench::new();
        bench.pod("slow", json!({"pre-bind": "for-ever"}));
        bench.cycle();
        bench.almost();
        bench.pass(seconds);
        bench.is_gone("slow");
        bench.pass(seconds);
        assert!(bench.engine.binding_pods().is_empty());
        assert_eq!((bench.engine.n_binding(), bench.engine.n_assumed()), (0, 0));
        bench
    };
    gone_later(1).check(&expect![[r#"
        overdue: Obedient in PreBind, default/slow on "a"
        PluginOverdue slow: plugin "Obedient" has not finished PreBind for 60 s: the pod keeps node "a" until it has, and is not bound before
        FailedScheduling slow: the pod was deleted while it was being bound
        0 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
    let mut bench = Bench::new();
    bench.pod("slow", json!({"pre-bind": "for-ever"}));
    bench.cycle();
    bench.is_gone("slow");
    assert_eq!(bench.engine.binding_pods(), ["slow"]);
    bench.pass(60);
    assert!(bench.engine.binding_pods().is_empty());
    assert_eq!(bench.engine.n_binding(), 0);
}

#[test]
fn a_pod_that_somebody_else_bound_meanwhile_is_given_up_too_when_it_goes() {
    for overdue_first in [true, false] {
        let mut bench = Bench::new();
        bench.pod("slow", json!({"pre-bind": "for-ever"}));
        bench.cycle();
        bench.set_pod("slow", json!({}), json!({"nodeName": "elsewhere"}), json!({}));
        if overdue_first {
            bench.pass(60);
        }
        assert_eq!(bench.engine.binding_pods(), ["slow"]);
        bench.is_gone("slow");
        bench.pass(60);
        assert!(bench.engine.binding_pods().is_empty());
        assert_eq!(bench.engine.n_binding(), 0);
    }
}

#[test]
fn a_bind_without_an_answer_is_named() {
    let mut bench = Bench::new();
    bench.pod("web", json!({}));
    bench.cycle();
    bench.almost();
    bench.pass(1);
    bench.check(&expect![[r#"
        overdue: DefaultBinder in Bind, default/web on "a"
        PluginOverdue web: plugin "DefaultBinder" has not finished Bind for 60 s: the pod keeps node "a" until it has, and is not bound before
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    bench.answer(Ok(()));
    bench.check(&expect![[r#"
        Scheduled web: Successfully assigned default/web to a
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
}

#[test]
fn one_that_ends_in_time_is_not_named() {
    let mut bench = Bench::new();
    bench.pod("web", json!({"pre-bind": "wait"}));
    bench.cycle();
    bench.almost();
    bench.apply(Event::Changed { object: claim(), value: Some(json!({})) });
    bench.almost();
    bench.calls.remove(0);
    bench.answer(Ok(()));
    bench.pass(3600);
    bench.check(&expect![[r#"
        Scheduled web: Successfully assigned default/web to a
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]]);
    assert_eq!(bench.engine.deadline(), None);
}

#[test]
fn a_post_filter_without_an_end_is_named() {
    let profile = json!({"plugins": {"postFilter": {
        "enabled": [{"name": "Searching"}], "disabled": [{"name": "*"}],
    }}});
    let mut bench = Bench::of(Options::default(), SEARCHING, &profile, json!([]));
    bench.set_pod("db", json!({}), json!({"nodeSelector": {"disk": "ssd"}}), json!({}));
    bench.cycle();
    bench.almost();
    bench.pass(1);
    bench.pass(60);
    bench.check(&expect![[r#"
        overdue: Searching in PostFilter, default/db on ""
        PluginOverdue db: plugin "Searching" has not finished PostFilter for 60 s: the pod is not tried again until it has
        0 active, 0 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
    bench.apply(Event::Changed { object: claim(), value: Some(json!({})) });
    bench.check(&expect![[r#"
        FailedScheduling db: 0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. found nothing
        call pods/db/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:15:20Z","message":"0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. found nothing","observedGeneration":1,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}
        0 active, 0 backing off, 1 unschedulable, 0 assumed, 0 on a"#]]);
}
