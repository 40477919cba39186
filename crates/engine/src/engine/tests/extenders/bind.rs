//! Extenders with a bind verb.

use super::*;

#[test]
fn an_extender_binds() {
    let check = |ignorable: bool, answer: Value, want: Expect| {
        let config = json!([extender(json!({"bindVerb": "b", "ignorable": ignorable}))]);
        let mut bench = Bench::extended(EngineOptions::default(), config);
        bench.pod("web", json!({}));
        bench.cycle();
        bench.extender_replies(0, answer);
        bench.check(&want);
    };
    check(
        false,
        json!({}),
        expect![[r#"
        0 bind web: a
        Scheduled web: Successfully assigned default/web to a
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]],
    );
    check(
        false,
        json!({"Error": "no such pod"}),
        expect![[r#"
        0 bind web: a
        FailedScheduling web: no such pod
        call pods/web/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"no such pod","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
        0 active, 1 backing off, 0 unschedulable, 0 assumed, 0 on a"#]],
    );
    check(
        false,
        json!("EOF"),
        expect![[r#"
        0 bind web: a
        FailedScheduling web: EOF
        call pods/web/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:20Z","message":"EOF","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
        0 active, 1 backing off, 0 unschedulable, 0 assumed, 0 on a"#]],
    );
    check(
        true,
        json!("EOF"),
        expect![[r#"
        0 bind web: a
        call pods/web/binding
        0 active, 0 backing off, 0 unschedulable, 1 assumed, 1 on a"#]],
    );
}

#[test]
fn an_extender_bind_without_a_reply_times_out() {
    let config = json!([extender(json!({"bindVerb": "b", "httpTimeout": "1s"}))]);
    let mut bench = Bench::extended(EngineOptions::default(), config);
    bench.pod("web", json!({}));
    bench.cycle();
    bench.advance(6);
    bench.check(&expect![[r#"
        0 bind web: a
        FailedScheduling web: no reply from the extender
        call pods/web/status {"conditions":[{"lastTransitionTime":"2023-11-14T22:13:26Z","message":"no reply from the extender","observedGeneration":1,"reason":"SchedulerError","status":"False","type":"PodScheduled"}]}
        0 active, 1 backing off, 0 unschedulable, 0 assumed, 0 on a"#]]);
    bench.extender_replies(0, json!({}));
    bench.check(&expect!["0 active, 1 backing off, 0 unschedulable, 0 assumed, 0 on a"]);
}
