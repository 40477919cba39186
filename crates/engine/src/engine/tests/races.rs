//! Races that another scheduler wins are counted once, whatever is heard first.

use super::*;

impl Bench {
    /// The API server refuses the oldest call; an answer without a code never came.
    fn refuse(&mut self, code: u16, message: &str) {
        let call = self.calls.remove(0);
        let reply = Err(ApiError { code, message: message.to_owned() });
        self.apply(Event::Replied { call: call.id, reply });
    }

    /// A pod that somebody placed: with the default scheduler's name, and a few CPUs.
    fn assigned(&mut self, name: &str, node: &str, cpu: &str) {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "other", "uid": name},
            "spec": {
                "schedulerName": "rival", "nodeName": node,
                "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
            },
        }))
        .unwrap();
        self.apply(Event::Set(Object::Pod(Box::new(pod))));
    }

    /// Our pod is on this node, say the news.
    fn is_on(&mut self, name: &str, labels: Value, node: &str) {
        self.set_pod(name, labels, json!({"nodeName": node}), json!({}));
    }

    /// Races lost and Events of them.
    fn lost(&mut self) -> String {
        self.calls.clear();
        let said = std::mem::take(&mut self.said).into_iter();
        said.filter(|line| line.contains("LostRace")).collect::<Vec<_>>().join("\n")
    }
}

const ASSIGNED: &str = "pod web is already assigned to node \"b\"";

/// What is said of a pod `web` with these labels (`pre-bind: wait` holds it before its bind), put on `a` by us, after these.
#[track_caller]
fn check(labels: Value, events: &[&str], want: &Expect) {
    let mut bench = Bench::new();
    bench.node("b", "0");
    bench.pod("web", labels.clone());
    bench.cycle();
    for event in events {
        // The last call is the bind, if there is one.
        bench.calls = bench.calls.split_off(bench.calls.len().saturating_sub(1));
        match *event {
            "on a" => bench.is_on("web", labels.clone(), "a"),
            "on b" => bench.is_on("web", labels.clone(), "b"),
            "assigned" => bench.refuse(409, ASSIGNED),
            "unknown" => bench.refuse(0, "no answer"),
            "bound" => bench.answer(Ok(())),
            "allowed" => bench.apply(Event::Permit {
                uid: "web".into(),
                plugin: None,
                verdict: Verdict::Allow,
            }),
            "again" => {
                bench.pass(30);
                bench.cycle();
            }
            other => panic!("{other}"),
        }
    }
    want.assert_eq(&bench.lost());
}

#[test]
fn a_bind_that_is_refused_is_a_race_once_the_pod_is_known_to_be_bound() {
    let lost = expect![[
        "LostRace bind: pod default/web was bound to node b by somebody else while it was on its way to node a"
    ]];
    check(json!({}), &["assigned", "on b"], &lost);
    check(json!({}), &["on b", "assigned"], &lost);
    check(json!({}), &["assigned", "on b", "on b"], &lost);
    let same_node = expect![[
        "LostRace bind: pod default/web was bound to node a by somebody else while it was on its way to node a"
    ]];
    check(json!({}), &["assigned", "on a"], &same_node);
    check(json!({}), &["on a", "assigned"], &same_node);
    check(json!({}), &["on a", "on a", "assigned"], &same_node);
    // Deleted, or replaced by another one of that name.
    check(json!({}), &["assigned"], &expect![""]);
}

#[test]
fn our_own_bind_is_no_race() {
    let none = expect![""];
    check(json!({}), &["bound", "on a"], &none);
    check(json!({}), &["on a", "bound"], &none);
    check(json!({}), &["unknown", "on a"], &none);
    check(json!({}), &["on a", "unknown"], &none);
    check(json!({}), &["unknown", "again", "on a", "bound"], &none);
    check(json!({"reserve": "no"}), &[], &none);
}

#[test]
fn a_pod_bound_before_we_asked_for_it_was_lost() {
    let lost = expect![[r#"
        LostRace web: pod default/web was bound to node b by somebody else while it was on its way to node a
        LostRace pod: pod default/web was bound to node b by somebody else while it was on its way to node a"#]];
    check(json!({"permit": "wait"}), &["on b"], &lost);
    check(json!({"pre-bind": "wait"}), &["on b"], &lost);
    // It goes on to its bind, which is refused: that was this race.
    check(json!({"permit": "wait"}), &["on b", "allowed", "assigned"], &lost);
    let same_node = expect![[r#"
        LostRace web: pod default/web was bound to node a by somebody else while it was on its way to node a
        LostRace pod: pod default/web was bound to node a by somebody else while it was on its way to node a"#]];
    check(json!({"permit": "wait"}), &["on a", "allowed", "assigned"], &same_node);
    let waited = expect![
        "LostRace pod: pod default/web was bound to node b by somebody else while it waited for a node"
    ];
    check(json!({"reserve": "no"}), &["on b"], &waited);
    check(json!({}), &["unknown", "on b"], &waited);
}

#[test]
fn a_pod_that_was_never_tried_is_no_race() {
    let mut bench = Bench::new();
    bench.pod("web", json!({}));
    bench.is_on("web", json!({}), "a");
    expect![""].assert_eq(&bench.lost());
}

/// What is said when a pod of another scheduler comes to `a`, which has two CPUs, while so many of ours are on their way there.
#[track_caller]
fn check_room(n_ours: u32, n_confirmed: u32, theirs: &[&str], want: &Expect) {
    let mut bench = Bench::new();
    for nth in 0..n_ours {
        bench.pod(&format!("web-{nth}"), json!({}));
        bench.cycle();
    }
    for nth in 0..n_confirmed {
        bench.is_on(&format!("web-{nth}"), json!({}), "a");
    }
    for (nth, cpu) in theirs.iter().enumerate() {
        bench.assigned(&format!("rival-{nth}"), "a", cpu);
        bench.assigned(&format!("rival-{nth}"), "a", cpu);
    }
    want.assert_eq(&bench.lost());
}

#[test]
fn room_is_lost_to_a_pod_that_came_first() {
    check_room(
        1,
        0,
        &["2"],
        &expect![[r#"
            LostRace web-0: node a has too little cpu for pod default/web-0, which was on its way there, and pod other/rival-0 of scheduler rival, which came first
            LostRace room: node a has too little cpu for pod default/web-0, which was on its way there, and pod other/rival-0 of scheduler rival, which came first"#]],
    );
    // Of several of ours the last one; a pod is told once, and each race counted.
    check_room(
        2,
        1,
        &["1", "1"],
        &expect![[r#"
            LostRace web-1: node a has too little cpu for pod default/web-1, which was on its way there, and pod other/rival-0 of scheduler rival, which came first
            LostRace room: node a has too little cpu for pod default/web-1, which was on its way there, and pod other/rival-0 of scheduler rival, which came first
            LostRace room: node a has too little cpu for pod default/web-1, which was on its way there, and pod other/rival-1 of scheduler rival, which came first"#]],
    );
    check_room(
        1,
        0,
        &["100m", "0", "0", "0", "0", "0", "0", "0", "0", "0"],
        &expect![[r#"
            LostRace web-0: node a has too little pods for pod default/web-0, which was on its way there, and pod other/rival-9 of scheduler rival, which came first
            LostRace room: node a has too little pods for pod default/web-0, which was on its way there, and pod other/rival-9 of scheduler rival, which came first"#]],
    );
}

#[test]
fn room_that_is_enough_or_nobody_of_ours_wanted_is_not_lost() {
    let none = expect![""];
    check_room(1, 0, &["1"], &none);
    check_room(2, 0, &["0"], &none);
    check_room(0, 0, &["2", "2"], &none);
    // They came second: the other scheduler lost.
    check_room(1, 1, &["2"], &none);
}
