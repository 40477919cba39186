//! What extenders may do, one case a pod.
//!
//! Nodes n1, n2 and n3 are wanted by every pod with scores of 200, 120 and 40 above the rest, so that it goes to n1 unless an
//! extender says otherwise: the best score of an extender of weight 1 adds 100. p1 and p2 are for pods that preempt.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::script::Act;
use Act::*;

/// What a pod is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// For n1, n2 and n3.
    Plain,
    /// The same, and only an init container names resources.
    Init,
    /// For n1, n2 and n3, of which n1 has another pod on nearly all its CPU; it prefers none.
    BesideLarge,
    /// For p1 and p2, each with a pod that must go first. That of p1 has the lower priority.
    Preempting,
}

/// One case.
pub struct Case {
    /// Of the pod, and of its extenders.
    pub name: &'static str,
    pub shape: Shape,
    /// What stands in the configuration, without `urlPrefix`; extender number 0 has the name of the case.
    pub extenders: Vec<Value>,
    pub acts: BTreeMap<(String, String), Act>,
    /// Whether the pod should get a node. For how long one waits, and for what.
    pub is_bound: bool,
    /// What its containers name besides what its own extenders manage.
    resources: Vec<String>,
    /// Lines of the outcome that only kube-scheduler's has, and only ours: a deviation that we keep. A line matches by its start.
    pub differs: (&'static [&'static str], &'static [&'static str]),
}

/// Cases that share a run of a scheduler.
pub struct Round {
    pub name: &'static str,
    /// Extenders beside those of the cases, with the last part of their `urlPrefix`.
    pub extenders: Vec<(&'static str, Value)>,
    pub cases: Vec<Case>,
}

/// Named by the cases that are bound by an extender. A configuration has one binder at most.
const BINDER: &str = "binder.example.com/it";

fn case(name: &'static str) -> Case {
    Case {
        name,
        shape: Shape::Plain,
        extenders: Vec::new(),
        acts: BTreeMap::new(),
        is_bound: true,
        resources: Vec::new(),
        differs: (&[], &[]),
    }
    .extender()
}

impl Case {
    /// The name of one of its extenders.
    pub fn extender_name(&self, at: usize) -> String {
        if at == 0 { self.name.to_owned() } else { format!("{}-{at}", self.name) }
    }

    /// The resources that its containers name.
    pub fn resources(&self) -> impl Iterator<Item = &str> {
        let managed =
            self.extenders.iter().filter_map(|it| it["managedResources"][0]["name"].as_str());
        let own = managed.filter(|name| !name.starts_with("other."));
        own.chain(self.resources.iter().map(String::as_str))
    }

    /// One more; what follows is about it.
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

    fn verb(self, verb: &'static str, act: Act) -> Case {
        let mut case = self.with(&format!("{verb}Verb"), verb);
        let name = case.extender_name(case.extenders.len() - 1);
        case.acts.insert((name, verb.to_owned()), act);
        case
    }

    fn filter(self, act: Act) -> Case {
        self.verb("filter", act)
    }

    fn prioritize(self, act: Act) -> Case {
        self.verb("prioritize", act)
    }

    fn preempt(mut self, act: Act) -> Case {
        self.shape = Shape::Preempting;
        self.verb("preempt", act)
    }

    /// Is sent whole objects.
    fn whole(self) -> Case {
        self.with("nodeCacheCapable", false)
    }

    fn ignorable(self) -> Case {
        self.with("ignorable", true)
    }

    /// Bound by the extender of the round.
    fn bind(mut self, act: Act) -> Case {
        self.resources.push(BINDER.to_owned());
        self.acts.insert(("binder".to_owned(), "bind".to_owned()), act);
        self
    }

    /// For an extender of the round.
    fn act(mut self, extender: &str, verb: &str, act: Act) -> Case {
        self.acts.insert((extender.to_owned(), verb.to_owned()), act);
        self
    }

    fn pending(mut self) -> Case {
        self.is_bound = false;
        self
    }

    fn differs(mut self, upstream: &'static [&'static str], ours: &'static [&'static str]) -> Case {
        self.differs = (upstream, ours);
        self
    }
}

fn say(body: Value) -> Act {
    Say(body.to_string())
}

/// A `NodeList` of one.
fn node(name: &str) -> Value {
    json!({"items": [{"metadata": {"name": name}}]})
}

fn scores(of: &[(&str, i64)]) -> Act {
    say(of.iter().map(|(host, score)| json!({"Host": host, "Score": score})).collect())
}

/// All of them.
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
            name: "each with extenders of its own",
            extenders: vec![binder(false)],
            cases: first,
        },
        Round {
            name: "an extender for all pods, a binder that may fail",
            extenders: vec![("all", everywhere), binder(true)],
            cases: beside_one_for_all(),
        },
    ]
}

fn filter_answers() -> Vec<Case> {
    vec![
        case("names").filter(Keep(&["n2", "n3"])),
        case("whole").whole().filter(Keep(&["n2", "n3"])),
        case("one").filter(Keep(&["n3"])).prioritize(scores(&[("n1", 10)])),
        case("lower-case").filter(say(json!({
            "nodenames": ["n2"], "failednodes": {"n1": "no"}, "more": [{}]}))),
        case("more-text").filter(Say("{\"NodeNames\": [\"n2\"]}\n trailing {".to_owned())),
        case("not-asked").filter(Status(500)).manages("other.example.com/it", true),
        Case { shape: Shape::Init, ..case("init").filter(Keep(&["n2"])) },
        case("counted")
            .filter(Keep(&["n1", "n2"]))
            .manages("counted.example.com/it", false)
            .pending(),
        case("none").filter(Keep(&[])).pending(),
        case("none-whole").whole().filter(Keep(&[])).pending(),
        case("null").filter(Say("null".to_owned())).pending(),
        case("empty-object").filter(say(json!({}))).pending(),
        case("names-of-whole").whole().filter(say(json!({"NodeNames": ["n1"]}))).pending(),
        case("whole-of-names").filter(say(json!({"Nodes": node("n3")}))),
        case("both").filter(say(json!({"Nodes": node("n3"), "NodeNames": ["n2"]}))),
        // A node named twice counts as two there, so that scores are asked for.
        case("twice")
            .filter(say(json!({"NodeNames": ["n2", "n2"]})))
            .prioritize(scores(&[("n2", 1)]))
            .differs(&["asked twice/prioritize"], &[]),
        case("failed")
            .filter(say(json!({"NodeNames": [],
                "FailedNodes": {"n1": "is blue", "n2": "is blue", "n3": "is green"}})))
            .pending(),
        case("unresolvable")
            .filter(say(json!({"NodeNames": [],
                "FailedAndUnresolvableNodes": {"n1": "is old", "n2": "is old"},
                "FailedNodes": {"n2": "is blue", "n3": "is blue"}})))
            .pending(),
        case("failed-unknown")
            .filter(say(json!({"NodeNames": [],
                "FailedNodes": {"n1": "is blue", "ghost": "is a ghost"},
                "FailedAndUnresolvableNodes": {"spook": "is a spook"}})))
            .pending(),
        case("failed-and-kept")
            .filter(say(json!({"NodeNames": ["n2"], "FailedNodes": {"n2": "is blue"}}))),
        case("unknown").filter(say(json!({"NodeNames": ["n2", "ghost"]}))).pending(),
        case("unknown-ignorable").ignorable().filter(say(json!({"NodeNames": ["n2", "ghost"]}))),
        // The message of an Event is taken for a format there.
        case("error")
            .filter(say(json!({"NodeNames": ["n1"], "Error": "out of order: 100%"})))
            .pending()
            .differs(&["event: out of order: 100%!(NOVERB)"], &["event: out of order: 100%"]),
        case("error-ignorable")
            .ignorable()
            .filter(say(json!({"NodeNames": ["n2"], "Error": "out of order"}))),
        // The objects of the answer take the place of the known ones there: n1 looks empty, and the unknown node is a node.
        Case { shape: Shape::BesideLarge, ..case("emptied").whole() }
            .filter(Keep(&["n1", "n2"]))
            .prioritize(scores(&[("n1", 1)]))
            .differs(&["node: n1"], &["node: n2"]),
        case("unknown-whole").whole().filter(say(json!({"Nodes": node("ghost")}))).differs(
            &["node: ghost", "condition: : ", "event: "],
            &["node: none", "condition: SchedulerError: extender \"", "event: extender \""],
        ),
    ]
}

fn failures() -> Vec<Case> {
    let soon = |case: Case| case.with("httpTimeout", "400ms");
    vec![
        soon(case("late").filter(Silence)).pending(),
        soon(case("late-ignorable").ignorable().filter(Silence)),
        soon(case("stalled").filter(Stall("{\"NodeNames\": ["))).pending(),
        // What follows the first value is not waited for.
        soon(case("stalled-after").filter(Stall("{\"NodeNames\": [\"n2\"]}"))),
        case("cut-after").filter(Cut("{\"NodeNames\": [\"n2\"]}")),
        case("endless").with("httpTimeout", "3s").filter(Endless).pending().differs(
            &[
                "condition: SchedulerError: context deadline exceeded",
                "event: context deadline exceeded",
            ],
            &[
                "condition: SchedulerError: the answer is longer than",
                "event: the answer is longer than",
            ],
        ),
        case("status-500").filter(Status(500)).pending(),
        case("status-404").filter(Status(404)).pending(),
        case("status-201").filter(Status(201)).pending(),
        case("status-500-ignorable").ignorable().filter(Status(500)),
        case("reset").filter(Reset).pending(),
        case("reset-ignorable").ignorable().filter(Reset),
        case("closed").filter(Close).pending(),
        case("cut").filter(Cut("{\"Er")).pending(),
        case("empty").filter(Say(String::new())).pending(),
        case("half").filter(Say("{\"NodeNames\": [".to_owned())).pending(),
        case("redirected").filter(Redirect).act("redirected", "elsewhere", Keep(&["n2"])).differs(
            &["node: n2", "condition: : ", "event: ", "asked redirected/elsewhere"],
            &[
                "node: none",
                "condition: SchedulerError: failed filter with",
                "event: failed filter with",
            ],
        ),
        unreadable(case("no-json").filter(Say("<html>".to_owned()))),
        case("no-json-ignorable").ignorable().filter(Say("<html>".to_owned())),
        unreadable(case("list").filter(say(json!([1])))),
        unreadable(case("text").filter(say(json!("n1")))),
        unreadable(case("names-of-text").filter(say(json!({"NodeNames": "n1"})))),
        unreadable(case("names-of-numbers").filter(say(json!({"NodeNames": [1]})))),
        unreadable(case("failed-of-numbers").filter(say(json!({"FailedNodes": {"n1": 1}})))),
        case("wrong-ignorable").ignorable().filter(say(json!({"NodeNames": "n1"}))),
        case("nowhere").filter(Keep(&[])).with("urlPrefix", "http://127.0.0.1:1/x/").pending(),
        case("no-scheme").filter(Keep(&[])).with("urlPrefix", "127.0.0.1").pending(),
    ]
}

/// Fails everywhere, in the words of another parser.
fn unreadable(case: Case) -> Case {
    case.pending().differs(&["condition: ", "event: "], &["condition: ", "event: "])
}

fn prioritize() -> Vec<Case> {
    let soon = |case: Case| case.with("httpTimeout", "400ms");
    vec![
        case("scores").prioritize(scores(&[("n1", 0), ("n2", 10), ("n3", 0)])),
        case("scores-whole").whole().prioritize(scores(&[("n1", 0), ("n2", 10), ("n3", 0)])),
        case("weight").with("weight", 3).prioritize(scores(&[("n2", 1), ("n3", 6)])),
        case("some-scores").prioritize(scores(&[("n3", 10)])),
        case("lower-case-scores").prioritize(say(json!([{"host": "n2", "score": 10, "more": 1}]))),
        case("twice-scored").prioritize(scores(&[("n3", 9), ("n3", 9)])),
        case("negative").prioritize(scores(&[("n1", -20), ("n2", -30), ("n3", 0)])),
        case("above").prioritize(scores(&[("n1", 0), ("n2", 10), ("n3", 1000)])),
        case("overflow").prioritize(scores(&[("n1", i64::MAX), ("n2", 0)])),
        case("beyond-64-bits")
            .prioritize(Say(r#"[{"Host":"n3","Score":9223372036854775808}]"#.to_owned())),
        case("fraction").prioritize(Say(r#"[{"Host":"n3","Score":100.5}]"#.to_owned())),
        case("score-text").prioritize(say(json!([{"Host": "n3", "Score": "100"}]))),
        case("unknown-scores").prioritize(scores(&[("ghost", 1000), ("n2", 10)])),
        case("scores-null").prioritize(Say("null".to_owned())),
        case("scores-object").prioritize(say(json!({}))),
        case("scores-500").prioritize(Status(500)),
        case("scores-reset").prioritize(Reset),
        soon(case("scores-late").prioritize(Silence)),
        soon(case("scores-endless").prioritize(Endless)),
    ]
}

fn chains() -> Vec<Case> {
    vec![
        case("two").filter(Keep(&["n2", "n3"])).extender().filter(Keep(&["n3"])),
        case("two-forms")
            .filter(Keep(&["n2", "n3"]))
            .extender()
            .whole()
            .filter(Keep(&["n2", "n3"])),
        case("second-fails").filter(Keep(&["n2"])).extender().filter(Status(500)).pending(),
        case("second-skipped").filter(Keep(&["n2"])).extender().ignorable().filter(Status(500)),
        case("ignorable-last")
            .ignorable()
            .filter(Keep(&["n2"]))
            .extender()
            .filter(Keep(&["n2", "n3"])),
        case("nothing-left")
            .filter(say(json!({"NodeNames": [], "FailedNodes": {"n1": "is blue"}})))
            .extender()
            .filter(Keep(&["n1"]))
            .pending(),
        case("both-refuse")
            .filter(say(json!({"NodeNames": ["n2", "n3"], "FailedNodes": {"n1": "is blue"}})))
            .extender()
            .filter(say(json!({"NodeNames": [],
                "FailedAndUnresolvableNodes": {"n1": "is old", "n2": "is old"}})))
            .pending(),
        case("two-scores")
            .prioritize(scores(&[("n2", 5)]))
            .extender()
            .with("weight", 2)
            .prioritize(scores(&[("n2", 5), ("n3", 8)])),
        case("one-scores").prioritize(Status(500)).extender().prioritize(scores(&[("n2", 10)])),
        case("scores-after")
            .filter(Keep(&["n2", "n3"]))
            .extender()
            .prioritize(scores(&[("n1", 100), ("n3", 10)])),
    ]
}

fn preempt() -> Vec<Case> {
    let victims = |of: Value| say(json!({"NodeNameToMetaVictims": of}));
    let strangers = json!([{"UID": "somebody"}]);
    vec![
        case("spared").preempt(Spare(&["p2"])),
        case("spared-whole").whole().preempt(Spare(&["p2"])),
        case("both-spared").preempt(Spare(&["p1", "p2"])),
        case("no-candidates").preempt(victims(json!({}))).pending(),
        case("preempt-null").preempt(Say("null".to_owned())).pending(),
        case("unknown-node").preempt(victims(json!({"ghost": {"Pods": strangers}}))).pending(),
        case("unknown-victim").preempt(victims(json!({"p1": {"Pods": strangers}}))).pending(),
        case("unknown-victim-ignorable")
            .ignorable()
            .preempt(victims(json!({"p1": {"Pods": strangers}}))),
        case("no-victims").preempt(victims(json!({"p1": {"Pods": []}}))).pending(),
        case("null-victims-ignorable")
            .ignorable()
            .preempt(victims(json!({"p1": {"Pods": null}})))
            .pending(),
        case("node-not-asked").preempt(victims(json!({"n1": {"Pods": []}}))).pending(),
        case("preempt-500").preempt(Status(500)).pending(),
        case("preempt-500-ignorable").ignorable().preempt(Status(500)),
        unreadable(case("preempt-text").preempt(say(json!("p1")))),
        case("two-preempt").preempt(Spare(&["p1", "p2"])).extender().preempt(Spare(&["p2"])),
        case("preempt-then-filter").preempt(Spare(&["p2"])).filter(Keep(&["p2"])),
        case("refused-and-preempt")
            .filter(say(json!({"NodeNames": []})))
            .preempt(Spare(&["p2"]))
            .pending(),
    ]
}

fn bind() -> Vec<Case> {
    vec![
        case("bound").bind(Bind),
        case("bind-error").bind(say(json!({"Error": "no device is left"}))).pending(),
        case("bind-500").bind(Status(500)).pending(),
        case("bind-late").bind(Silence).pending(),
        case("bind-reset").bind(Reset).pending(),
        unreadable(case("bind-no-json").bind(Say("done".to_owned()))),
    ]
}

fn beside_one_for_all() -> Vec<Case> {
    let all = |case: Case, act| case.act("all", "filter", act);
    vec![
        all(case("all-asked"), Keep(&["n2"])),
        all(case("all-then-own").filter(Keep(&["n3"])), Keep(&["n2", "n3"])),
        all(case("all-fails"), Status(500)).pending(),
        all(case("ignored-bind").bind(Status(500)), Keep(&["n2"])),
        all(
            case("ignored-bind-error").bind(say(json!({"Error": "no device is left"}))),
            Keep(&["n2"]),
        ),
        all(case("bound-beside").bind(Bind), Keep(&["n2"])),
    ]
}
