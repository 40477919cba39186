//! Scores out of range: a fast decision fails exactly where, and with the words with which, asking one by one does.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::sync::Arc;

use loadmaster_api::{Node, Pod};
use loadmaster_config::{Gates, check_value};
use loadmaster_engine::evaluate::one_by_one;
use loadmaster_engine::{Decision, Scheduler};
use loadmaster_framework::prepare::{Classes, Reads, RowPart, Words};
use loadmaster_framework::{
    Cx, Failure, NodeInfo, NodeTable, PluginDef, PluginError, PodInfo, Points, Prepare, Prepared,
    Row, Run, Score, World,
};
use loadmaster_sim::load::profiles;
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

/// Scores a node by its label `score`, whatever that is.
const LABELED: PluginDef =
    PluginDef { name: "Labeled", build, args: Some(|args, _| Ok(args.clone())) };

fn build(points: &mut Points, args: &Value) -> Result<(), PluginError> {
    let form = match args["form"].as_str() {
        Some("row") => Form::Row,
        Some("class") => Form::Class,
        _ => Form::OneByOne,
    };
    points.score = Some(Arc::new(Labeled(form)));
    points.prepare = Some(Arc::new(Labeled(form)));
    Ok(())
}

/// How the plugin answers fast decisions.
#[derive(Clone, Copy)]
enum Form {
    OneByOne,
    Row,
    Class,
}

struct Labeled(Form);

impl Score for Labeled {
    fn score(&self, _: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        Ok(node.labels().get("score").map_or(0, |text| text.parse().unwrap()))
    }
}

impl Prepare for Labeled {
    fn prepare(&self, _: &mut World, _: &PodInfo) -> Prepared {
        match self.0 {
            Form::OneByOne => Prepared::OneByOne,
            form => Prepared::Run(Box::new(Labeled(form))),
        }
    }
}

impl Run for Labeled {
    fn reads(&self) -> Reads {
        match self.0 {
            Form::Class => Reads { class: Some(RowPart::Node), ..Reads::default() },
            _ => Reads { score: Some(RowPart::Node), ..Reads::default() },
        }
    }

    fn score_row(&self, nodes: &NodeTable, row: Row) -> i64 {
        let label = nodes.node(row).and_then(|node| node.metadata.labels.get("score"));
        label.map_or(0, |text| text.parse().unwrap())
    }

    fn n_words(&self) -> usize {
        usize::from(self.scores_classes())
    }

    fn class_row(&self, world: &World, row: Row, out: &mut Words) {
        out.push(self.score_row(world.nodes(), row));
    }

    fn scores_classes(&self) -> bool {
        matches!(self.0, Form::Class)
    }

    fn class_score(&self, _: &World, classes: &Classes<'_>, out: &mut [i64]) {
        classes.feasible().for_each(|class| out[class] = classes.words(class)[0]);
    }
}

/// Decides a pod by the default plugins and `Labeled`, in every way.
#[track_caller]
fn check(form: &str, nodes: &[Value], want: &str) {
    let registry = loadmaster_plugins::in_tree().with(LABELED);
    let gates = Gates::default();
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{
            "plugins": {"multiPoint": {"enabled": [{"name": "Labeled"}]}},
            "pluginConfig": [{"name": "Labeled", "args": {"form": form}}],
        }],
    });
    let checked = check_value(config, &registry, &gates).unwrap();
    let gates = gates.framework();
    let profile = profiles(&checked, &registry, &gates).unwrap().swap_remove(0);
    let mut world = World::new(gates);
    for node in nodes {
        world.set_node(Arc::new(serde_json::from_value::<Node>(node.clone()).unwrap()));
    }
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "web"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"memory": "1Gi"}}}]},
    }))
    .unwrap();
    let pod = world.parse(&pod).unwrap();
    let mut scheduler = Scheduler::new(Arc::new(profile), Rng::new(1));
    let evaluation = scheduler.evaluate(&world, &pod);
    let slow = match (&evaluation.failure, evaluation.only_feasible()) {
        (Some(failure), _) => failure.clone(),
        (None, Some(row)) => name(&world, row),
        (None, None) => {
            evaluation.best().iter().map(|row| name(&world, *row)).collect::<Vec<_>>().join(" ")
        }
    };
    assert_eq!(slow, want, "{form}, one by one");
    // The first decision about a template is a pass, the second one makes an index.
    for way in ["pass", "index", "index again"] {
        let fast = match scheduler.decide(&mut world, &pod) {
            Decision::Place { row, .. } => name(&world, row),
            Decision::Failed(failure) => failure,
            Decision::Unschedulable => "nowhere".to_owned(),
        };
        assert_eq!(fast, want, "{form}, {way}");
        if nodes.len() > 1 {
            let totals = scheduler.totals(&mut world, &pod);
            assert_eq!(totals, one_by_one::totals(&evaluation), "{form}, totals after {way}");
        }
    }
}

fn name(world: &World, row: Row) -> String {
    world.node(row).map_or("", |node| node.name()).to_owned()
}

fn node(name: &str, score: &str, cpu: &str, memory: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"score": score}},
        "status": {"allocatable": {"cpu": cpu, "memory": memory, "pods": 110}},
    })
}

fn invalid(plugin: &str, score: i64) -> String {
    format!(
        "applying score defaultWeights on Score plugins: plugin {plugin:?} returns an invalid score {score}, it should in the range of \
         [0, 100] after normalizing"
    )
}

#[test]
fn a_plugin_of_ones_own() {
    for form in ["one by one", "row", "class"] {
        let nodes = |a: &str, b: &str| [node("a", a, "8", "8Gi"), node("b", b, "8", "8Gi")];
        check(form, &nodes("0", "100"), "b");
        check(form, &nodes("101", "0"), &invalid("Labeled", 101));
        check(form, &nodes("0", "-1"), &invalid("Labeled", -1));
        // Nobody is asked for the score of an only node.
        check(form, &nodes("101", "0")[..1], "a");
    }
}

#[test]
fn a_node_whose_memory_overflows_upstreams_arithmetic() {
    // A hundred times 128 PiB is more than 63 bits hold: kube-scheduler computes a share of -28 percent. With hardly any
    // processor left beside it the mean is negative, and it fails.
    let nodes = [node("a", "0", "110m", "128Pi"), node("b", "0", "8", "8Gi")];
    check("row", &nodes, &invalid("NodeResourcesFit", -9));
}
