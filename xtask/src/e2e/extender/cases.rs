//! The cases: behaviors of extenders, one pod per case.
//!
//! Every pod prefers the nodes n1, n2 and n3 with scores of 200, 120 and 40, so that it is scheduled on n1 unless an extender changes
//! that: the best score of an extender of weight 1 adds 100. p1 and p2 are for pods that preempt.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::scripted_extender::ResponseBehavior;
use ResponseBehavior::*;

/// The kind of a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// For n1, n2 and n3.
    Plain,
    /// The same, but only an init container requests the resources.
    Init,
    /// For n1, n2 and n3 without a preference; another pod uses nearly all CPU of n1.
    BesideLarge,
    /// For p1 and p2, each with a potential victim. The one on p1 has the lower priority.
    Preempting,
}

/// One case.
pub struct Case {
    /// The name of the pod and of its extenders.
    pub name: &'static str,
    pub shape: Shape,
    /// The extenders' configuration without `urlPrefix`; extender 0 has the name of the case.
    pub extenders: Vec<Value>,
    pub behaviors: BTreeMap<(String, String), ResponseBehavior>,
    /// Whether the pod is expected to be bound.
    pub is_bound: bool,
    /// Resources that its containers request in addition to those managed by its extenders.
    resources: Vec<String>,
    /// Lines of the outcome that only kube-scheduler has, and that only Loadmaster has: an intended deviation. Lines are matched by prefix.
    pub expected_differences: (&'static [&'static str], &'static [&'static str]),
}

/// Cases that share a run of a scheduler.
pub struct Round {
    pub name: &'static str,
    /// Extenders in addition to those of the cases, with the last segment of their `urlPrefix`.
    pub extenders: Vec<(&'static str, Value)>,
    pub cases: Vec<Case>,
}

/// The resource of cases that are bound by an extender. A configuration has at most one binder.
const BINDER: &str = "binder.example.com/it";

fn case(name: &'static str) -> Case {
    Case {
        name,
        shape: Shape::Plain,
        extenders: Vec::new(),
        behaviors: BTreeMap::new(),
        is_bound: true,
        resources: Vec::new(),
        expected_differences: (&[], &[]),
    }
    .extender()
}

impl Case {
    /// The name of one of its extenders.
    pub fn extender_name(&self, at: usize) -> String {
        if at == 0 { self.name.to_owned() } else { format!("{}-{at}", self.name) }
    }

    /// The resources that its containers request.
    pub fn resources(&self) -> impl Iterator<Item = &str> {
        let managed =
            self.extenders.iter().filter_map(|it| it["managedResources"][0]["name"].as_str());
        let own = managed.filter(|name| !name.starts_with("other."));
        own.chain(self.resources.iter().map(String::as_str))
    }

    /// Adds an extender; the following methods configure it.
    fn extender(mut self) -> Case {
        let resource = format!("{}.example.com/it", self.extender_name(self.extenders.len()));
        let config = json!({"weight": 1, "nodeCacheCapable": true, "httpTimeout": "20s"});
        self.extenders.push(config);
        self.manages(&resource, true)
    }

    fn manages(self, resource: &str, ignored: bool) -> Case {
        let managed = json!([{"name": resource, "ignoredByScheduler": ignored}]);
        self.with("managedResources", managed)
    }

    fn with(mut self, key: &str, value: impl Into<Value>) -> Case {
        let at = self.extenders.len() - 1;
        self.extenders[at][key] = value.into();
        self
    }

    fn verb(self, verb: &'static str, act: ResponseBehavior) -> Case {
        let mut case = self.with(&format!("{verb}Verb"), verb);
        let name = case.extender_name(case.extenders.len() - 1);
        case.behaviors.insert((name, verb.to_owned()), act);
        case
    }

    fn filter(self, act: ResponseBehavior) -> Case {
        self.verb("filter", act)
    }

    fn prioritize(self, act: ResponseBehavior) -> Case {
        self.verb("prioritize", act)
    }

    fn preempt(mut self, act: ResponseBehavior) -> Case {
        self.shape = Shape::Preempting;
        self.verb("preempt", act)
    }

    /// The extender is sent whole objects.
    fn whole_objects(self) -> Case {
        self.with("nodeCacheCapable", false)
    }

    fn ignorable(self) -> Case {
        self.with("ignorable", true)
    }

    /// The pod is bound by the extender of the round.
    fn bind(mut self, act: ResponseBehavior) -> Case {
        self.resources.push(BINDER.to_owned());
        self.behaviors.insert(("binder".to_owned(), "bind".to_owned()), act);
        self
    }

    /// The behavior of an extender of the round.
    fn behavior(mut self, extender: &str, verb: &str, act: ResponseBehavior) -> Case {
        self.behaviors.insert((extender.to_owned(), verb.to_owned()), act);
        self
    }

    fn pending(mut self) -> Case {
        self.is_bound = false;
        self
    }

    fn expect_difference(
        mut self,
        upstream: &'static [&'static str],
        ours: &'static [&'static str],
    ) -> Case {
        self.expected_differences = (upstream, ours);
        self
    }
}

fn json_body(body: Value) -> ResponseBehavior {
    Body(body.to_string())
}

/// A `NodeList` with one node.
fn node(name: &str) -> Value {
    json!({"items": [{"metadata": {"name": name}}]})
}

fn scores(of: &[(&str, i64)]) -> ResponseBehavior {
    json_body(of.iter().map(|(host, score)| json!({"Host": host, "Score": score})).collect())
}

/// All rounds.
pub fn rounds() -> Vec<Round> {
    let binder = |ignorable: bool| {
        let managed = json!([{"name": BINDER, "ignoredByScheduler": true}]);
        (
            "binder",
            json!({"bindVerb": "bind", "ignorable": ignorable, "httpTimeout": "1s",
                "managedResources": managed}),
        )
    };
    let everywhere = json!({"filterVerb": "filter", "nodeCacheCapable": true});
    let first: Vec<Case> =
        [filter_answers(), failures(), prioritize(), chains(), preempt(), bind()]
            .into_iter()
            .flatten()
            .collect();
    vec![
        Round {
            name: "each case with its own extenders",
            extenders: vec![binder(false)],
            cases: first,
        },
        Round {
            name: "an extender for all pods, a binder that may fail",
            extenders: vec![("all", everywhere), binder(true)],
            cases: with_extender_for_all_pods(),
        },
    ]
}

fn filter_answers() -> Vec<Case> {
    vec![
        case("names").filter(KeepNodes(&["n2", "n3"])),
        case("whole").whole_objects().filter(KeepNodes(&["n2", "n3"])),
        case("one").filter(KeepNodes(&["n3"])).prioritize(scores(&[("n1", 10)])),
        case("lower-case").filter(json_body(json!({
            "nodenames": ["n2"], "failednodes": {"n1": "no"}, "more": [{}]}))),
        case("more-text").filter(Body("{\"NodeNames\": [\"n2\"]}\n trailing {".to_owned())),
        case("not-called").filter(Status(500)).manages("other.example.com/it", true),
        Case { shape: Shape::Init, ..case("init").filter(KeepNodes(&["n2"])) },
        case("counted")
            .filter(KeepNodes(&["n1", "n2"]))
            .manages("counted.example.com/it", false)
            .pending(),
        case("none").filter(KeepNodes(&[])).pending(),
        case("none-whole").whole_objects().filter(KeepNodes(&[])).pending(),
        case("null").filter(Body("null".to_owned())).pending(),
        case("empty-object").filter(json_body(json!({}))).pending(),
        case("names-of-whole")
            .whole_objects()
            .filter(json_body(json!({"NodeNames": ["n1"]})))
            .pending(),
        case("whole-of-names").filter(json_body(json!({"Nodes": node("n3")}))),
        case("both").filter(json_body(json!({"Nodes": node("n3"), "NodeNames": ["n2"]}))),
        // kube-scheduler counts a duplicate node twice and therefore calls prioritize.
        case("twice")
            .filter(json_body(json!({"NodeNames": ["n2", "n2"]})))
            .prioritize(scores(&[("n2", 1)]))
            .expect_difference(&["called twice/prioritize"], &[]),
        case("failed")
            .filter(json_body(json!({"NodeNames": [],
                "FailedNodes": {"n1": "is blue", "n2": "is blue", "n3": "is green"}})))
            .pending(),
        case("unresolvable")
            .filter(json_body(json!({"NodeNames": [],
                "FailedAndUnresolvableNodes": {"n1": "is old", "n2": "is old"},
                "FailedNodes": {"n2": "is blue", "n3": "is blue"}})))
            .pending(),
        case("failed-unknown")
            .filter(json_body(json!({"NodeNames": [],
                "FailedNodes": {"n1": "is blue", "ghost": "is a ghost"},
                "FailedAndUnresolvableNodes": {"spook": "is a spook"}})))
            .pending(),
        case("failed-and-feasible")
            .filter(json_body(json!({"NodeNames": ["n2"], "FailedNodes": {"n2": "is blue"}}))),
        case("unknown").filter(json_body(json!({"NodeNames": ["n2", "ghost"]}))).pending(),
        case("unknown-ignorable")
            .ignorable()
            .filter(json_body(json!({"NodeNames": ["n2", "ghost"]}))),
        // kube-scheduler uses the message of an Event as a format string.
        case("error")
            .filter(json_body(json!({"NodeNames": ["n1"], "Error": "out of order: 100%"})))
            .pending()
            .expect_difference(
                &["event: out of order: 100%!(NOVERB)"],
                &["event: out of order: 100%"],
            ),
        case("error-ignorable")
            .ignorable()
            .filter(json_body(json!({"NodeNames": ["n2"], "Error": "out of order"}))),
        // kube-scheduler replaces its nodes with those of the response: n1 looks empty, and the unknown node is accepted.
        Case { shape: Shape::BesideLarge, ..case("emptied").whole_objects() }
            .filter(KeepNodes(&["n1", "n2"]))
            .prioritize(scores(&[("n1", 1)]))
            .expect_difference(&["node: n1"], &["node: n2"]),
        case("unknown-whole")
            .whole_objects()
            .filter(json_body(json!({"Nodes": node("ghost")})))
            .expect_difference(
                &["node: ghost", "condition: : ", "event: "],
                &["node: none", "condition: SchedulerError: extender \"", "event: extender \""],
            ),
    ]
}

fn failures() -> Vec<Case> {
    let soon = |case: Case| case.with("httpTimeout", "400ms");
    vec![
        soon(case("late").filter(NoResponse)).pending(),
        soon(case("late-ignorable").ignorable().filter(NoResponse)),
        soon(case("stalled").filter(StallInBody("{\"NodeNames\": ["))).pending(),
        // The response is complete after the first JSON value.
        soon(case("stalled-after").filter(StallInBody("{\"NodeNames\": [\"n2\"]}"))),
        case("cut-after").filter(CloseInBody("{\"NodeNames\": [\"n2\"]}")),
        case("endless").with("httpTimeout", "3s").filter(EndlessBody).pending().expect_difference(
            &[
                "condition: SchedulerError: context deadline exceeded",
                "event: context deadline exceeded",
            ],
            &[
                "condition: SchedulerError: the response is longer than",
                "event: the response is longer than",
            ],
        ),
        case("status-500").filter(Status(500)).pending(),
        case("status-404").filter(Status(404)).pending(),
        case("status-201").filter(Status(201)).pending(),
        case("status-500-ignorable").ignorable().filter(Status(500)),
        case("reset").filter(Reset).pending(),
        case("reset-ignorable").ignorable().filter(Reset),
        case("closed").filter(Close).pending(),
        case("cut").filter(CloseInBody("{\"Er")).pending(),
        case("empty").filter(Body(String::new())).pending(),
        case("half").filter(Body("{\"NodeNames\": [".to_owned())).pending(),
        case("redirected")
            .filter(Redirect)
            .behavior("redirected", "elsewhere", KeepNodes(&["n2"]))
            .expect_difference(
                &["node: n2", "condition: : ", "event: ", "called redirected/elsewhere"],
                &[
                    "node: none",
                    "condition: SchedulerError: failed filter with",
                    "event: failed filter with",
                ],
            ),
        unreadable(case("no-json").filter(Body("<html>".to_owned()))),
        case("no-json-ignorable").ignorable().filter(Body("<html>".to_owned())),
        unreadable(case("list").filter(json_body(json!([1])))),
        unreadable(case("text").filter(json_body(json!("n1")))),
        unreadable(case("names-of-text").filter(json_body(json!({"NodeNames": "n1"})))),
        unreadable(case("names-of-numbers").filter(json_body(json!({"NodeNames": [1]})))),
        unreadable(case("failed-of-numbers").filter(json_body(json!({"FailedNodes": {"n1": 1}})))),
        case("wrong-ignorable").ignorable().filter(json_body(json!({"NodeNames": "n1"}))),
        case("nowhere").filter(KeepNodes(&[])).with("urlPrefix", "http://127.0.0.1:1/x/").pending(),
        case("no-scheme").filter(KeepNodes(&[])).with("urlPrefix", "127.0.0.1").pending(),
    ]
}

/// Fails in both schedulers, with the error messages of different parsers.
fn unreadable(case: Case) -> Case {
    case.pending().expect_difference(&["condition: ", "event: "], &["condition: ", "event: "])
}

fn prioritize() -> Vec<Case> {
    let soon = |case: Case| case.with("httpTimeout", "400ms");
    vec![
        case("scores").prioritize(scores(&[("n1", 0), ("n2", 10), ("n3", 0)])),
        case("scores-whole").whole_objects().prioritize(scores(&[
            ("n1", 0),
            ("n2", 10),
            ("n3", 0),
        ])),
        case("weight").with("weight", 3).prioritize(scores(&[("n2", 1), ("n3", 6)])),
        case("some-scores").prioritize(scores(&[("n3", 10)])),
        case("lower-case-scores")
            .prioritize(json_body(json!([{"host": "n2", "score": 10, "more": 1}]))),
        case("twice-scored").prioritize(scores(&[("n3", 9), ("n3", 9)])),
        case("negative").prioritize(scores(&[("n1", -20), ("n2", -30), ("n3", 0)])),
        case("above").prioritize(scores(&[("n1", 0), ("n2", 10), ("n3", 1000)])),
        case("overflow").prioritize(scores(&[("n1", i64::MAX), ("n2", 0)])),
        case("beyond-64-bits")
            .prioritize(Body(r#"[{"Host":"n3","Score":9223372036854775808}]"#.to_owned())),
        case("fraction").prioritize(Body(r#"[{"Host":"n3","Score":100.5}]"#.to_owned())),
        case("score-text").prioritize(json_body(json!([{"Host": "n3", "Score": "100"}]))),
        case("unknown-scores").prioritize(scores(&[("ghost", 1000), ("n2", 10)])),
        case("scores-null").prioritize(Body("null".to_owned())),
        case("scores-object").prioritize(json_body(json!({}))),
        case("scores-500").prioritize(Status(500)),
        case("scores-reset").prioritize(Reset),
        soon(case("scores-late").prioritize(NoResponse)),
        soon(case("scores-endless").prioritize(EndlessBody)),
    ]
}

fn chains() -> Vec<Case> {
    vec![
        case("two").filter(KeepNodes(&["n2", "n3"])).extender().filter(KeepNodes(&["n3"])),
        case("two-forms")
            .filter(KeepNodes(&["n2", "n3"]))
            .extender()
            .whole_objects()
            .filter(KeepNodes(&["n2", "n3"])),
        case("second-fails").filter(KeepNodes(&["n2"])).extender().filter(Status(500)).pending(),
        case("second-skipped")
            .filter(KeepNodes(&["n2"]))
            .extender()
            .ignorable()
            .filter(Status(500)),
        case("ignorable-last")
            .ignorable()
            .filter(KeepNodes(&["n2"]))
            .extender()
            .filter(KeepNodes(&["n2", "n3"])),
        case("nothing-left")
            .filter(json_body(json!({"NodeNames": [], "FailedNodes": {"n1": "is blue"}})))
            .extender()
            .filter(KeepNodes(&["n1"]))
            .pending(),
        case("both-reject")
            .filter(json_body(json!({"NodeNames": ["n2", "n3"], "FailedNodes": {"n1": "is blue"}})))
            .extender()
            .filter(json_body(json!({"NodeNames": [],
                "FailedAndUnresolvableNodes": {"n1": "is old", "n2": "is old"}})))
            .pending(),
        case("two-scores")
            .prioritize(scores(&[("n2", 5)]))
            .extender()
            .with("weight", 2)
            .prioritize(scores(&[("n2", 5), ("n3", 8)])),
        case("one-scores").prioritize(Status(500)).extender().prioritize(scores(&[("n2", 10)])),
        case("scores-after")
            .filter(KeepNodes(&["n2", "n3"]))
            .extender()
            .prioritize(scores(&[("n1", 100), ("n3", 10)])),
    ]
}

fn preempt() -> Vec<Case> {
    let victims = |of: Value| json_body(json!({"NodeNameToMetaVictims": of}));
    let unknown_pods = json!([{"UID": "unknown"}]);
    vec![
        case("spared").preempt(KeepCandidates(&["p2"])),
        case("spared-whole").whole_objects().preempt(KeepCandidates(&["p2"])),
        case("both-spared").preempt(KeepCandidates(&["p1", "p2"])),
        case("no-candidates").preempt(victims(json!({}))).pending(),
        case("preempt-null").preempt(Body("null".to_owned())).pending(),
        case("unknown-node").preempt(victims(json!({"ghost": {"Pods": unknown_pods}}))).pending(),
        case("unknown-victim").preempt(victims(json!({"p1": {"Pods": unknown_pods}}))).pending(),
        case("unknown-victim-ignorable")
            .ignorable()
            .preempt(victims(json!({"p1": {"Pods": unknown_pods}}))),
        case("no-victims").preempt(victims(json!({"p1": {"Pods": []}}))).pending(),
        case("null-victims-ignorable")
            .ignorable()
            .preempt(victims(json!({"p1": {"Pods": null}})))
            .pending(),
        case("node-not-in-request").preempt(victims(json!({"n1": {"Pods": []}}))).pending(),
        case("preempt-500").preempt(Status(500)).pending(),
        case("preempt-500-ignorable").ignorable().preempt(Status(500)),
        unreadable(case("preempt-text").preempt(json_body(json!("p1")))),
        case("two-preempt")
            .preempt(KeepCandidates(&["p1", "p2"]))
            .extender()
            .preempt(KeepCandidates(&["p2"])),
        case("preempt-then-filter").preempt(KeepCandidates(&["p2"])).filter(KeepNodes(&["p2"])),
        case("rejected-and-preempt")
            .filter(json_body(json!({"NodeNames": []})))
            .preempt(KeepCandidates(&["p2"]))
            .pending(),
    ]
}

fn bind() -> Vec<Case> {
    vec![
        case("bound").bind(Bind),
        case("bind-error").bind(json_body(json!({"Error": "no device is left"}))).pending(),
        case("bind-500").bind(Status(500)).pending(),
        case("bind-late").bind(NoResponse).pending(),
        case("bind-reset").bind(Reset).pending(),
        unreadable(case("bind-no-json").bind(Body("done".to_owned()))),
    ]
}

fn with_extender_for_all_pods() -> Vec<Case> {
    let all = |case: Case, act| case.behavior("all", "filter", act);
    vec![
        all(case("all-called"), KeepNodes(&["n2"])),
        all(case("all-then-own").filter(KeepNodes(&["n3"])), KeepNodes(&["n2", "n3"])),
        all(case("all-fails"), Status(500)).pending(),
        all(case("ignored-bind").bind(Status(500)), KeepNodes(&["n2"])),
        all(
            case("ignored-bind-error").bind(json_body(json!({"Error": "no device is left"}))),
            KeepNodes(&["n2"]),
        ),
        all(case("bound-beside").bind(Bind), KeepNodes(&["n2"])),
    ]
}
