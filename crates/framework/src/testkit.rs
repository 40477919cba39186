//! A small bench for one plugin: a world from builders ([`node`], [`pod`]) or a few lines of JSON, the plugin's points called as the engine calls them, and
//! its incremental form held against its one-node methods.
//!
//! ```
//! use loadmaster_framework::testkit::{Bench, node, pod};
//! # use loadmaster_framework::{PluginDef, Registry};
//! # fn demo(def: &PluginDef) -> Result<(), loadmaster_framework::testkit::BenchError> {
//! let mut bench = Bench::new(def, serde_json::json!({}))?;
//! bench.node(node("a"))?;
//! assert_eq!(bench.filter(pod("web"))?, ["a Success"]);
//! # Ok(())
//! # }
//! ```

mod build;
pub mod kept;
pub mod room;

use std::fmt;
use std::sync::Arc;

use loadmaster_api::{Extra, Namespace, Node, Pod, Str};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::args::{self, FieldError};
use crate::event::{ClusterEvent, EventObject, Hint, HintQuestion};
use crate::gates::FeatureGates;
use crate::node::NodeInfo;
use crate::objects::Gvr;
use crate::pod::PodInfo;
use crate::points::{Cx, NodeScore, SerialCx};
use crate::prepare::{Classes, Prepared, Run, Words, in_range};
use crate::registry::{PluginDef, Points};
use crate::request::ObjectRef;
use crate::result::{PreFiltered, PreScored, Rejection};
use crate::state::{CycleState, PluginStates};
use crate::table::Row;
use crate::world::World;

/// One plugin in a world of its own.
pub struct Bench {
    /// Nodes, pods and sums; free to be changed by the test.
    pub world: World,
    points: Points,
    states: PluginStates,
}

/// What a test handed in does not fit, or the incremental form says something else than the one-node methods.
#[derive(Debug)]
pub struct BenchError(pub String);

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BenchError {}

impl From<FieldError> for BenchError {
    fn from(error: FieldError) -> Self {
        BenchError(error.to_string())
    }
}

pub use build::{NodeBuilder, PodBuilder, node, pod};

type Answer<T> = Result<T, BenchError>;

impl Bench {
    /// The plugin with these arguments, as a configuration gives them, under the default gates.
    pub fn new(def: &PluginDef, args: Value) -> Answer<Bench> {
        Bench::with_gates(def, args, FeatureGates::default())
    }

    /// The same under other gates.
    pub fn with_gates(def: &PluginDef, args: Value, gates: FeatureGates) -> Answer<Bench> {
        let args = match def.args {
            Some(complete) => complete(&args, &gates).map_err(|errors| {
                let texts: Vec<String> = errors.iter().map(FieldError::to_string).collect();
                BenchError(texts.join("; "))
            })?,
            None => args,
        };
        let mut points = Points::following(gates.clone(), 0, PluginStates::default());
        (def.build)(&mut points, &args).map_err(|error| BenchError(error.to_string()))?;
        let (_, states) = points.take_slots();
        let mut world = World::new(gates);
        points.watches().for_each(|watch| world.watch(&watch));
        Ok(Bench { world, points, states })
    }

    /// Adds or replaces a node.
    pub fn node(&mut self, node: impl Into<Value>) -> Answer<Row> {
        let node: Value = node.into();
        let extra = Extra::of_value(&node, self.points.needs().nodes);
        let node = Node { extra, ..read(&node)? };
        Ok(self.world.set_node(Arc::new(node)))
    }

    /// Adds or replaces a namespace.
    pub fn namespace(&mut self, namespace: Value) -> Answer<()> {
        let namespace: Namespace = read(&namespace)?;
        self.world.set_namespace(Arc::new(namespace));
        Ok(())
    }

    /// Puts a pod on a node. Its namespace is `default` unless it says otherwise.
    pub fn assigned(&mut self, node: &str, pod: impl Into<Value>) -> Answer<Arc<PodInfo>> {
        let row = self.world.nodes().row(node);
        let row = row.ok_or_else(|| BenchError(format!("there is no node {node:?}")))?;
        let pod = Arc::new(PodInfo { node_name: Str::new(node), ..self.pod(pod)? });
        self.world.add_pod(row, pod.clone());
        Ok(pod)
    }

    /// A pod that is nowhere yet.
    pub fn pod(&mut self, pod: impl Into<Value>) -> Answer<PodInfo> {
        let pod: Value = pod.into();
        let extra = Extra::of_value(&pod, self.points.needs().pods);
        let mut pod = Pod { extra, ..read(&pod)? };
        if pod.metadata.namespace.is_empty() {
            pod.metadata.namespace = Str::new("default");
        }
        self.world.parse(&pod).map_err(|error| BenchError(error.to_string()))
    }

    /// Adds or replaces an object of a kind that the plugin watches.
    pub fn object(&mut self, kind: &Gvr, object: Value) -> Answer<()> {
        let name = |field: &str| object["metadata"][field].as_str().unwrap_or_default().into();
        let reference = ObjectRef {
            group: kind.group.clone(),
            resource: kind.resource.clone(),
            namespace: name("namespace"),
            name: name("name"),
        };
        self.world.set_there(&kind.group, &kind.resource, true);
        match self.world.change_object(&reference, Some(&object)).trouble {
            Some(trouble) => Err(BenchError(trouble)),
            None => Ok(()),
        }
    }

    /// Publishes a value to the plugin, as a service does.
    pub fn publish(&mut self, value: &Value) -> Answer<()> {
        let receiver = self.points.receiver();
        let receiver = receiver.ok_or_else(|| BenchError("the plugin takes none".into()))?;
        Ok(receiver(&mut self.states, Some(value))?)
    }

    /// The plugin's points.
    pub fn points(&self) -> &Points {
        &self.points
    }

    /// What PreEnqueue says: `Success`, or code and reasons.
    pub fn pre_enqueue(&mut self, pod: impl Into<Value>) -> Answer<String> {
        let pod = self.pod(pod)?;
        let Some(point) = &self.points.pre_enqueue else { return Ok("Success".into()) };
        let cycle = CycleState::default();
        let cx = Cx { world: &self.world, cycle: &cycle, states: &self.states };
        Ok(verdict(point.pre_enqueue(cx, &pod)))
    }

    /// What PreFilter says: `All`, `Skip`, `Nodes [a b]`, or code and reasons.
    pub fn pre_filter(&mut self, pod: impl Into<Value>) -> Answer<String> {
        let pod = self.pod(pod)?;
        Ok(match self.run_pre_filter(&mut CycleState::default(), &pod) {
            Ok(PreFiltered::All) => "All".into(),
            Ok(PreFiltered::Skip) => "Skip".into(),
            Ok(PreFiltered::Nodes(names)) => {
                #[expect(clippy::disallowed_methods, reason = "sorted below")]
                let mut names: Vec<&str> = names.iter().map(Str::as_str).collect();
                names.sort_unstable();
                format!("Nodes {names:?}").replace('"', "").replace(',', "")
            }
            Err(rejection) => verdict(Err(rejection)),
        })
    }

    /// Per node, in the order of rows: its name and what PreFilter and Filter say. Also checks the incremental form.
    pub fn filter(&mut self, pod: impl Into<Value>) -> Answer<Vec<String>> {
        let pod = self.pod(pod)?;
        self.check_incremental(&pod)?;
        let verdicts = self.one_by_one(&pod);
        let lines = verdicts.filters.iter().map(|(row, verdict)| {
            let name = self.world.node(*row).map_or("", |node| node.name());
            format!("{name} {verdict}")
        });
        Ok(lines.collect())
    }

    /// Per node this plugin does not turn down, its name and normalised score; empty when PreScore skips. Also checks the
    /// incremental form.
    pub fn score(&mut self, pod: impl Into<Value>) -> Answer<Vec<(String, i64)>> {
        let pod = self.pod(pod)?;
        self.check_incremental(&pod)?;
        let verdicts = self.one_by_one(&pod);
        let named = verdicts.scores?.unwrap_or_default().into_iter();
        Ok(named
            .map(|s| (self.world.node(s.row).map_or("", |node| node.name()).to_owned(), s.score))
            .collect())
    }

    /// What the plugin says to an event about a pod it rejected: `Queue`, `Skip`, `Unregistered` or the error.
    pub fn hint(
        &mut self,
        event: ClusterEvent,
        pod: Value,
        old: Option<EventObject<'_>>,
        new: Option<EventObject<'_>>,
    ) -> Answer<String> {
        let pod = self.pod(pod)?;
        let Some(events) = &self.points.events else { return Ok("Queue".into()) };
        let question = HintQuestion { pod: &pod, event: &event, old, new, world: &self.world };
        let mut answer = "Unregistered";
        for registered in events.iter().filter(|registered| registered.event.matches(&event)) {
            match registered.hint.as_ref().map_or(Ok(Hint::Queue), |hint| hint(&question)) {
                Ok(Hint::Queue) => return Ok("Queue".into()),
                Ok(Hint::Skip) => answer = "Skip",
                Err(failure) => return Ok(format!("Error {failure}")),
            }
        }
        Ok(answer.into())
    }

    /// The fragments of the pod's signature as one JSON object, or `null`.
    pub fn sign(&mut self, pod: Value) -> Answer<Value> {
        let pod = self.pod(pod)?;
        let Some(point) = &self.points.sign else { return Ok(Value::Null) };
        Ok(match point.sign(&pod) {
            Ok(fragments) => fragments.into_iter().map(|f| (f.key.to_owned(), f.value)).collect(),
            Err(_) => Value::Null,
        })
    }

    /// Holds the incremental form against the one-node methods on every node.
    pub fn check_incremental(&mut self, pod: &PodInfo) -> Answer<()> {
        let Some(prepare) = self.points.prepare.clone() else { return Ok(()) };
        let prepared = prepare.prepare(&mut self.world, pod);
        let naive = self.one_by_one(pod);
        match prepared {
            Prepared::OneByOne => Ok(()),
            Prepared::Rejected(rejection) => {
                let want = verdict(Err(rejection));
                match naive.filters.iter().find(|(_, verdict)| *verdict != want) {
                    None => Ok(()),
                    Some((_, verdict)) => {
                        Err(BenchError(format!("prepare: {want}, one by one: {verdict}")))
                    }
                }
            }
            Prepared::Skip => compare(&self.world, &naive, |_| true, |_| 0),
            Prepared::Run(mut run) => {
                let outcome = self.compare_run(&*run, &naive);
                run.release(&mut self.world);
                outcome
            }
        }
    }

    fn compare_run(&self, run: &dyn Run, naive: &OneByOne) -> Answer<()> {
        let answer = RunAnswer::new(&self.world, run);
        compare(&self.world, naive, |row| answer.passes(row), |row| answer.score(row))
    }

    fn run_pre_filter(
        &self,
        cycle: &mut CycleState,
        pod: &PodInfo,
    ) -> Result<PreFiltered, Rejection> {
        let Some(point) = &self.points.pre_filter else { return Ok(PreFiltered::All) };
        let mut states = self.states.clone();
        point.pre_filter(SerialCx { world: &self.world, cycle, states: &mut states }, pod)
    }

    fn one_by_one(&self, pod: &PodInfo) -> OneByOne {
        let mut cycle = CycleState::default();
        let pre = self.run_pre_filter(&mut cycle, pod);
        let cx = Cx { world: &self.world, cycle: &cycle, states: &self.states };
        let mut filters = Vec::new();
        let mut feasible = Vec::new();
        for node in self.world.node_infos() {
            let answer = match (&pre, &self.points.filter) {
                (Err(rejection), _) => Err(rejection.clone()),
                (Ok(PreFiltered::Nodes(names)), _) if !names.contains(node.name()) => {
                    Err(Rejection::unresolvable("not in the PreFilter result"))
                }
                (Ok(PreFiltered::Skip), _) | (_, None) => Ok(()),
                (_, Some(filter)) => filter.filter(cx, pod, node),
            };
            if answer.is_ok() {
                feasible.push(node);
            }
            filters.push((node.row(), verdict(answer)));
        }
        let scores = self.score_one_by_one(&mut cycle, pod, &feasible);
        OneByOne { filters, scores }
    }

    fn score_one_by_one(
        &self,
        cycle: &mut CycleState,
        pod: &PodInfo,
        feasible: &[NodeInfo<'_>],
    ) -> Answer<Option<Vec<NodeScore>>> {
        let failed = |failure: crate::result::Failure| BenchError(failure.to_string());
        if let Some(point) = &self.points.pre_score {
            let mut states = self.states.clone();
            let cx = SerialCx { world: &self.world, cycle, states: &mut states };
            if point.pre_score(cx, pod, feasible).map_err(failed)? == PreScored::Skip {
                return Ok(None);
            }
        }
        let Some(point) = &self.points.score else { return Ok(None) };
        let cx = Cx { world: &self.world, cycle, states: &self.states };
        let mut scores = Vec::new();
        for node in feasible {
            scores.push(NodeScore {
                row: node.row(),
                score: point.score(cx, pod, *node).map_err(failed)?,
            });
        }
        point.normalize(cx, pod, &mut scores).map_err(failed)?;
        Ok(Some(scores))
    }
}

struct OneByOne {
    filters: Vec<(Row, String)>,
    scores: Answer<Option<Vec<NodeScore>>>,
}

/// What a run says about every row: the parts put together as the engine does.
struct RunAnswer {
    passes: Vec<u8>,
    local: Vec<i64>,
    class_of: Vec<Option<usize>>,
    class_passes: Vec<bool>,
    class_scores: Vec<i64>,
}

impl RunAnswer {
    fn new(world: &World, run: &dyn Run) -> RunAnswer {
        let nodes = world.nodes();
        let mut passes = nodes.columns().live.clone();
        run.filter_all(nodes, &mut passes);
        let mut local = vec![0; passes.len()];
        let all_in_range = run.score_all(nodes, &passes, 1, &mut local).is_ok();
        let mut rows_in_range = true;
        let mut words: Vec<Words> = Vec::new();
        let mut rows: Vec<u32> = Vec::new();
        let mut class_of = vec![None; passes.len()];
        for row in nodes.rows() {
            assert_eq!(
                passes[row.index()] != 0,
                run.filter_row(nodes, row),
                "filter_all and filter_row differ"
            );
            if passes[row.index()] == 0 {
                continue;
            }
            let score = run.score_row(nodes, row);
            rows_in_range &= in_range(score).is_ok();
            assert!(!all_in_range || local[row.index()] == score, "score_all and score_row differ");
            local[row.index()] = score;
            let mut mine = Words::new();
            run.class_row(world, row, &mut mine);
            assert_eq!(mine.len(), run.n_words(), "class_row pushes n_words words");
            let class = words.iter().position(|known| *known == mine).unwrap_or_else(|| {
                words.push(mine);
                rows.push(0);
                words.len() - 1
            });
            rows[class] += 1;
            class_of[row.index()] = Some(class);
        }
        assert_eq!(all_in_range, rows_in_range, "score_all says whether all scores are in range");
        let class_passes: Vec<bool> =
            words.iter().map(|words| run.class_filter(world, words)).collect();
        let mut class_scores = vec![0; words.len()];
        if run.scores_classes() {
            let classes = Classes {
                words: &words.concat(),
                stride: run.n_words(),
                offset: 0,
                n_words: run.n_words(),
                rows: &rows,
                feasible: &class_passes,
            };
            run.class_score(world, &classes, &mut class_scores);
        }
        RunAnswer { passes, local, class_of, class_passes, class_scores }
    }

    fn passes(&self, row: Row) -> bool {
        self.passes[row.index()] != 0
            && self.class_of[row.index()].is_some_and(|class| self.class_passes[class])
    }

    fn score(&self, row: Row) -> i64 {
        let class = self.class_of[row.index()].map_or(0, |class| self.class_scores[class]);
        self.local[row.index()] + class
    }
}

fn compare(
    world: &World,
    naive: &OneByOne,
    passes: impl Fn(Row) -> bool,
    score: impl Fn(Row) -> i64,
) -> Answer<()> {
    let name = |row: Row| world.node(row).map_or("", |node| node.name());
    for (row, verdict) in &naive.filters {
        if passes(*row) != (verdict == "Success") {
            let text =
                format!("{}: incremental {}, one by one {verdict}", name(*row), passes(*row));
            return Err(BenchError(text));
        }
    }
    let Ok(scores) = &naive.scores else { return Ok(()) };
    let feasible = naive.filters.iter().filter(|(_, verdict)| verdict == "Success");
    for (row, _) in feasible {
        let found =
            scores.as_ref().and_then(|scores| scores.iter().find(|score| score.row == *row));
        let want = found.map_or(0, |score| score.score);
        if score(*row) != want {
            let text =
                format!("{}: incremental score {}, one by one {want}", name(*row), score(*row));
            return Err(BenchError(text));
        }
    }
    Ok(())
}

fn verdict(answer: Result<(), Rejection>) -> String {
    match answer {
        Ok(()) => "Success".into(),
        Err(rejection) => format!("{} {}", rejection.code().name(), rejection.message()),
    }
}

fn read<T: DeserializeOwned>(value: &Value) -> Answer<T> {
    Ok(args::decode(value)?)
}
