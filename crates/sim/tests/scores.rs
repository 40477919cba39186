//! Scores out of range: a fast decision fails in the same cases and with the same message as per-node evaluation.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::sync::Arc;

use loadmaster_api::{Node, Pod};
use loadmaster_config::{AllFeatureGates, check_configuration_value};
use loadmaster_engine::evaluate::per_node;
use loadmaster_engine::world_loader::build_profiles;
use loadmaster_engine::{Decision, Scheduler};
use loadmaster_framework::incremental::{ClassKey, NodeClasses, ResultDependencies, RowDependency};
use loadmaster_framework::{
    Cx, EvaluatorCx, ExtensionPoints, Failure, Incremental, NodeInfo, NodeRow, PluginDef,
    PluginError, PluginEvaluator, PodInfo, PrepareCx, PrepareResult, Score, World,
};
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

/// Scores a node by its label `score`, without checking the range.
const LABEL_SCORE: PluginDef =
    PluginDef { name: "Labeled", build, args: Some(|args, _| Ok(args.clone())) };

fn build(points: &mut ExtensionPoints, args: &Value) -> Result<(), PluginError> {
    let form = match args["form"].as_str() {
        Some("row") => EvaluationMode::Row,
        Some("class") => EvaluationMode::Class,
        _ => EvaluationMode::OneByOne,
    };
    points.score = Some(Arc::new(LabelScore(form)));
    points.incremental = Some(Arc::new(LabelScore(form)));
    Ok(())
}

/// How the plugin supports incremental evaluation.
#[derive(Clone, Copy)]
enum EvaluationMode {
    OneByOne,
    Row,
    Class,
}

struct LabelScore(EvaluationMode);

impl Score for LabelScore {
    fn score(&self, _: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        Ok(node.labels().get("score").map_or(0, |text| text.parse().unwrap()))
    }
}

impl Incremental for LabelScore {
    type Key = ();

    fn key(&self, _: EvaluatorCx<'_>, _: &PodInfo) -> Option<()> {
        Some(())
    }

    fn prepare(&self, _: &mut PrepareCx<'_>, (): &()) -> PrepareResult {
        match self.0 {
            EvaluationMode::OneByOne => PrepareResult::PerNode,
            form => PrepareResult::Evaluator(Box::new(LabelScore(form))),
        }
    }
}

impl PluginEvaluator for LabelScore {
    fn dependencies(&self) -> ResultDependencies {
        match self.0 {
            EvaluationMode::Class => ResultDependencies {
                class: Some(RowDependency::Node),
                ..ResultDependencies::default()
            },
            _ => ResultDependencies {
                score: Some(RowDependency::Node),
                ..ResultDependencies::default()
            },
        }
    }

    fn score_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> i64 {
        let label = cx.nodes().node(row).and_then(|node| node.metadata.labels.get("score"));
        label.map_or(0, |text| text.parse().unwrap())
    }

    fn class_key_len(&self) -> usize {
        usize::from(self.has_class_scores())
    }

    fn class_key(&self, cx: EvaluatorCx<'_>, row: NodeRow, out: &mut ClassKey) {
        out.push(self.score_row(cx, row));
    }

    fn has_class_scores(&self) -> bool {
        matches!(self.0, EvaluationMode::Class)
    }

    fn score_classes(&self, _: EvaluatorCx<'_>, classes: &NodeClasses<'_>, out: &mut [i64]) {
        classes.feasible().for_each(|class| out[class] = classes.key(class)[0]);
    }
}

/// Schedules a pod with the default plugins and `Labeled`, by full scan, score index and per-node evaluation.
#[track_caller]
fn check(form: &str, nodes: &[Value], want: &str) {
    let registry = loadmaster_plugins::in_tree_registry().with(LABEL_SCORE);
    let gates = AllFeatureGates::default();
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{
            "plugins": {"multiPoint": {"enabled": [{"name": "Labeled"}]}},
            "pluginConfig": [{"name": "Labeled", "args": {"form": form}}],
        }],
    });
    let checked = check_configuration_value(config, &registry, &gates).unwrap();
    let gates = gates.framework_gates();
    let profile = build_profiles(&checked, &gates).swap_remove(0);
    let mut world = World::new(gates);
    for node in nodes {
        world.upsert_node(Arc::new(serde_json::from_value::<Node>(node.clone()).unwrap()));
    }
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "web"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"memory": "1Gi"}}}]},
    }))
    .unwrap();
    let pod = world.parse_pod(&pod).unwrap();
    let mut scheduler = Scheduler::new(Arc::new(profile), Rng::new(1));
    let evaluation = scheduler.evaluate_for_diagnosis(&mut world, &pod);
    let slow = match (&evaluation.failure, evaluation.single_feasible_node()) {
        (Some(failure), _) => failure.clone(),
        (None, Some(row)) => name(&world, row),
        (None, None) => evaluation
            .best_nodes()
            .iter()
            .map(|row| name(&world, *row))
            .collect::<Vec<_>>()
            .join(" "),
    };
    assert_eq!(slow, want, "{form}, per node");
    // The first decision for a template is a full scan, the second one builds the score index.
    for way in ["full scan", "score index", "score index again"] {
        let fast = match scheduler.schedule_pod(&mut world, &pod) {
            Decision::Selected { row, .. } => name(&world, row),
            Decision::Failed(failure) => failure,
            Decision::Unschedulable => "nowhere".to_owned(),
        };
        assert_eq!(fast, want, "{form}, {way}");
        if nodes.len() > 1 {
            let totals = scheduler.feasible_total_scores(&mut world, &pod);
            assert_eq!(
                totals,
                per_node::feasible_total_scores(&evaluation),
                "{form}, totals after {way}"
            );
        }
    }
}

fn name(world: &World, row: NodeRow) -> String {
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
fn out_of_tree_plugin_scores_out_of_range() {
    for form in ["per node", "row", "class"] {
        let nodes = |a: &str, b: &str| [node("a", a, "8", "8Gi"), node("b", b, "8", "8Gi")];
        check(form, &nodes("0", "100"), "b");
        check(form, &nodes("101", "0"), &invalid("Labeled", 101));
        check(form, &nodes("0", "-1"), &invalid("Labeled", -1));
        // Score does not run for a single feasible node.
        check(form, &nodes("101", "0")[..1], "a");
    }
}

#[test]
fn a_memory_overflow_gives_upstreams_error() {
    // 100 * 128 PiB overflows 63 bits: kube-scheduler computes a share of -28 percent. With almost no CPU left the mean is
    // negative, and scoring fails.
    let nodes = [node("a", "0", "110m", "128Pi"), node("b", "0", "8", "8Gi")];
    check("row", &nodes, &invalid("NodeResourcesFit", -9));
}
