//! What Filter and preemption found on a node is used again until something changes that it depends on: an engine that forgets it before
//! every cycle does the same.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use loadmaster_framework::incremental::{
    EvaluatorCx, FilterScope, PluginEvaluator, PrepareCx, ResultDependencies, RowDependency,
};
use loadmaster_framework::{Filter, Incremental, NodeRow, PrepareResult};
use loadmaster_stdx::Rng;

use super::*;

const N_NODES: u64 = 16;
const HOSTNAME: &str = "kubernetes.io/hostname";

/// Counts the calls of Filter. Rejects nodes with the label `closed`.
struct CountCalls(&'static AtomicUsize);

/// By the engine that uses results again, and by the other one.
static CALLS: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

const COUNT_CALLS: [PluginDef; 2] = [
    PluginDef { name: "CountCalls", build: |points, _| build(points, &CALLS[0]), args: None },
    PluginDef { name: "CountCalls", build: |points, _| build(points, &CALLS[1]), args: None },
];

fn build(points: &mut ExtensionPoints, calls: &'static AtomicUsize) -> Result<(), PluginError> {
    let plugin = Arc::new(CountCalls(calls));
    points.filter = Some(plugin.clone());
    points.incremental = Some(plugin);
    Ok(())
}

impl Filter for CountCalls {
    fn filter(&self, _: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        self.0.fetch_add(1, Ordering::Relaxed);
        match node.labels().contains_key("closed") {
            true => Err(Rejection::unresolvable(format!("{} is closed", node.name()))),
            false => Ok(()),
        }
    }
}

impl Incremental for CountCalls {
    type Key = ();

    fn key(&self, _: EvaluatorCx<'_>, _: &PodInfo) -> Option<()> {
        Some(())
    }

    fn prepare(&self, _: &mut PrepareCx<'_>, (): &()) -> PrepareResult {
        PrepareResult::Evaluator(Box::new(IsOpen))
    }
}

struct IsOpen;

impl PluginEvaluator for IsOpen {
    fn dependencies(&self) -> ResultDependencies {
        ResultDependencies { filter: Some(RowDependency::Node), ..ResultDependencies::default() }
    }

    fn filter_scope(&self) -> FilterScope {
        FilterScope::Node
    }

    fn filter_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> bool {
        cx.nodes().node(row).is_some_and(|node| !node.metadata.labels.contains_key("closed"))
    }
}

/// Two engines that get the same events.
struct Twins {
    /// The second one forgets results.
    engines: [Bench; 2],
    rng: Rng,
    /// The pods of the API server, by uid.
    pods: BTreeMap<String, Value>,
    n_pods: u32,
    n_victims: usize,
}

impl Twins {
    fn new(seed: u64) -> Twins {
        // Before the plugins of `multiPoint`.
        let profile = json!({"plugins": {"filter": {"enabled": [{"name": "CountCalls"}]}}});
        let engine = |plugin| Bench::of(EngineOptions::default(), plugin, &profile, json!([]));
        let engines = COUNT_CALLS.map(engine);
        let rng = Rng::new(seed);
        let mut twins = Twins { engines, rng, pods: BTreeMap::new(), n_pods: 0, n_victims: 0 };
        for nth in 0..N_NODES {
            twins.set_node(nth, &json!({}), false);
            for _ in 0..4 {
                twins.add_low_pod(nth);
            }
        }
        twins
    }

    fn apply(&mut self, event: &EngineEvent) {
        self.engines.iter_mut().for_each(|it| it.apply(event.clone()));
    }

    fn set_node(&mut self, nth: u64, labels: &Value, is_cordoned: bool) {
        let mut node = json!({
            "metadata": {"name": format!("n{nth}"), "labels": {HOSTNAME: format!("n{nth}"), "zone": format!("z{}", nth % 3)}},
            "spec": {"unschedulable": is_cordoned},
            "status": {"allocatable": {"cpu": if nth % 5 == 4 { "3" } else { "4" }, "memory": "8Gi", "pods": "10"}},
        });
        for (key, value) in labels.as_object().unwrap() {
            node["metadata"]["labels"][key] = value.clone();
        }
        let node: Node = serde_json::from_value(node).unwrap();
        self.apply(&EngineEvent::Upsert(ApiObject::Node(Arc::new(node))));
    }

    fn set_pod(&mut self, pod: Value) {
        let parsed: Pod = serde_json::from_value(pod.clone()).unwrap();
        self.apply(&EngineEvent::Upsert(ApiObject::Pod(Box::new(parsed))));
        self.pods.insert(pod["metadata"]["uid"].as_str().unwrap().to_owned(), pod);
    }

    fn delete_pod(&mut self, uid: &str) {
        if self.pods.remove(uid).is_some() {
            self.apply(&EngineEvent::Delete(DeletedObjectKey::Pod(uid.into())));
        }
    }

    fn pod(&mut self, app: &str, priority: u64, cpu: &str) -> Value {
        self.n_pods += 1;
        let name = format!("{app}-{}", self.n_pods);
        json!({
            "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": app}},
            "spec": {"priority": priority, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
            "status": {"phase": "Pending"},
        })
    }

    fn add_low_pod(&mut self, nth: u64) {
        let (priority, app) = (self.rng.below(3), *self.rng.pick(&["low", "guarded"]));
        let mut pod = self.pod(app, priority, "1");
        pod["spec"]["nodeName"] = json!(format!("n{nth}"));
        pod["status"]["startTime"] = self.start_time();
        let container = &mut pod["spec"]["containers"][0];
        if self.rng.one_in(3) {
            container["ports"] = json!([{"hostPort": 80}]);
        }
        if self.rng.one_in(3) {
            container["resources"]["requests"]["memory"] = json!("512Mi");
        }
        self.set_pod(pod);
    }

    fn start_time(&mut self) -> Value {
        json!(format!("2026-01-01T00:00:{:02}Z", self.rng.below(60)))
    }

    fn add_preemptor(&mut self) {
        let (priority, cpu) =
            (10 + u64::from(self.rng.one_in(4)), *self.rng.pick(&["2", "2", "2", "2500m"]));
        let kind = self.rng.below(20);
        // Pods of a kind keep apart from each other, not from others.
        let app = ["apart", "zone-apart", "zone", "spread", "high"][kind.min(4) as usize];
        let mut pod = self.pod(app, priority, cpu);
        let selector = json!({"matchLabels": {"app": app}});
        let term = |key| json!([{"topologyKey": key, "labelSelector": selector}]);
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        match kind {
            0 => pod["spec"]["affinity"]["podAntiAffinity"][required] = term(HOSTNAME),
            1 => pod["spec"]["affinity"]["podAntiAffinity"][required] = term("zone"),
            2 => pod["spec"]["nodeSelector"] = json!({"zone": "z1"}),
            3 => {
                let constraint = json!({"maxSkew": 1, "topologyKey": "zone",
                    "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector});
                pod["spec"]["topologySpreadConstraints"] = json!([constraint]);
            }
            // They fit on no node: too much of what pods use, of what they may use up, and of nothing that a node has.
            4 => pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("5"),
            5 => {
                let requests = json!({"cpu": "5", "memory": "7Gi"});
                pod["spec"]["containers"][0]["resources"]["requests"] = requests;
            }
            6 => {
                let requests = json!({"cpu": "3500m", "example.com/gpu": "1"});
                pod["spec"]["containers"][0]["resources"]["requests"] = requests;
            }
            7 => pod["spec"]["containers"][0]["ports"] = json!([{"hostPort": 80}]),
            8 => pod["spec"]["nodeSelector"] = json!({"zone": "z9"}),
            _ => {}
        }
        self.set_pod(pod);
    }

    fn set_budget(&mut self) {
        let budget = json!({
            "metadata": {"name": "guarded", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "guarded"}}},
            "status": {"disruptionsAllowed": self.rng.below(3)},
        });
        let budget = Arc::new(serde_json::from_value(budget).unwrap());
        self.apply(&EngineEvent::Upsert(ApiObject::PodDisruptionBudget(budget)));
    }

    /// Replies to the oldest call, and does what it asks for.
    fn reply(&mut self) {
        let Some(call) = self.engines[0].calls.first().cloned() else { return };
        self.engines.iter_mut().for_each(|it| it.reply(Ok(())));
        let uid = call.request.name.to_string();
        match (call.request.verb, call.request.subresource.as_str()) {
            (Verb::Delete, "") => {
                self.n_victims += 1;
                self.delete_pod(&uid);
            }
            (Verb::Create, "binding") => {
                let Some(mut pod) = self.pods.get(&uid).cloned() else { return };
                let body = call.request.body.unwrap();
                pod["spec"]["nodeName"] = body["target"]["name"].clone();
                pod["status"]["startTime"] = self.start_time();
                self.set_pod(pod);
            }
            _ => {}
        }
    }

    fn change_something(&mut self) {
        let nth = self.rng.below(N_NODES);
        let assigned = self.pods.values().filter(|pod| !pod["spec"]["nodeName"].is_null());
        let assigned: Vec<String> =
            assigned.map(|pod| pod["metadata"]["uid"].as_str().unwrap().to_owned()).collect();
        match self.rng.below(12) {
            0 => self.set_budget(),
            1 => {
                let is_closed = self.rng.one_in(2);
                let labels = if is_closed { json!({"closed": "yes"}) } else { json!({}) };
                let is_cordoned = self.rng.one_in(3);
                self.set_node(nth, &labels, is_cordoned);
            }
            2 | 3 => {
                let uid = self.rng.pick(&assigned).clone();
                let mut pod = self.pods[&uid].clone();
                pod["status"]["startTime"] = self.start_time();
                self.set_pod(pod);
            }
            4 => {
                let uid = self.rng.pick(&assigned).clone();
                self.delete_pod(&uid);
                self.add_low_pod(nth);
            }
            5 => self.engines.iter_mut().for_each(|it| it.advance(11)),
            6..9 => self.add_preemptor(),
            _ => (0..4).for_each(|_| self.reply()),
        }
    }

    fn cycle(&mut self, at: &str) {
        self.engines[1].engine.forget_diagnoses();
        self.engines.iter_mut().for_each(|it| {
            it.cycle();
        });
        let [lines, fresh] = self.engines.each_ref().map(|it| it.lines.join("\n"));
        assert_eq!(lines, fresh, "{at}");
        self.engines.iter_mut().for_each(|it| it.lines.clear());
    }
}

#[test]
fn results_that_are_used_again_equal_fresh_ones() {
    let mut n_victims = 0;
    for seed in 0..6 {
        let mut twins = Twins::new(seed);
        for step in 0..400 {
            twins.change_something();
            twins.cycle(&format!("seed {seed}, step {step}"));
        }
        n_victims += twins.n_victims;
    }
    assert!(n_victims > 200, "{n_victims} victims");
    let [used_again, fresh] = CALLS.each_ref().map(|calls| calls.load(Ordering::Relaxed));
    assert!(used_again * 5 < fresh * 4, "{used_again} calls of Filter instead of {fresh}");
}

#[test]
fn a_cluster_without_nodes_has_a_message_of_its_own() {
    let mut bench = Bench::new();
    bench.apply(EngineEvent::Delete(DeletedObjectKey::Node("a".into())));
    bench.pod("web", json!({}));
    bench.cycle();
    assert_eq!(bench.lines[0], "FailedScheduling web: no nodes available to schedule pods");
}
