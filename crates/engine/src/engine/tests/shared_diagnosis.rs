//! Pods with equal keys share a diagnosis, unless it names the pod.

use std::sync::atomic::{AtomicUsize, Ordering};

use loadmaster_framework::incremental::{
    ClassKey, EvaluatorCx, PluginEvaluator, PrepareCx, ResultDependencies, RowDependency,
};
use loadmaster_framework::{Incremental, NodeRow, PreFilter, PreFilterResult, PrepareResult};

use super::*;

/// Rejects all pods in PreFilter, with a message that the argument `namesPod` determines.
struct RejectAll {
    names_pod: bool,
}

const REJECT_ALL: PluginDef =
    PluginDef { name: "RejectAll", build: |points, _| build(points, false), args: None };
const REJECT_BY_NAME: PluginDef =
    PluginDef { name: "RejectAll", build: |points, _| build(points, true), args: None };

/// Calls of PreFilter by the plugin that names pods, and by the other one.
static CALLS: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

fn build(points: &mut ExtensionPoints, names_pod: bool) -> Result<(), PluginError> {
    let plugin = Arc::new(RejectAll { names_pod });
    points.pre_filter = Some(plugin.clone());
    points.incremental = Some(plugin);
    points.register_no_events();
    Ok(())
}

impl PreFilter for RejectAll {
    fn pre_filter(&self, _: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        CALLS[usize::from(self.names_pod)].fetch_add(1, Ordering::Relaxed);
        Err(match self.names_pod {
            true => Rejection::unschedulable(format!("Pod {} is rejected", pod.name)),
            false => Rejection::unschedulable("rejected"),
        })
    }
}

impl Incremental for RejectAll {
    type Key = ();

    fn key(&self, _: EvaluatorCx<'_>, _: &PodInfo) -> Option<()> {
        Some(())
    }

    fn prepare(&self, _: &mut PrepareCx<'_>, (): &()) -> PrepareResult {
        PrepareResult::Evaluator(Box::new(NoNode))
    }
}

struct NoNode;

impl PluginEvaluator for NoNode {
    fn dependencies(&self) -> ResultDependencies {
        ResultDependencies { class: Some(RowDependency::Node), ..ResultDependencies::default() }
    }

    fn class_key_len(&self) -> usize {
        1
    }

    fn class_key(&self, _: EvaluatorCx<'_>, _: NodeRow, out: &mut ClassKey) {
        out.push(0);
    }

    fn filter_class(&self, _: EvaluatorCx<'_>, _: &[i64]) -> bool {
        false
    }
}

/// The lines of two pods, and the number of calls of PreFilter.
fn attempts(plugin: PluginDef, names_pod: bool) -> (Vec<String>, usize) {
    let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": "RejectAll"}]},
        "postFilter": {"disabled": [{"name": "*"}]}}});
    let mut bench = Bench::of(EngineOptions::default(), plugin, &profile, json!([]));
    bench.pod("first", json!({}));
    bench.pod("second", json!({}));
    bench.cycle();
    bench.cycle();
    let calls = CALLS[usize::from(names_pod)].load(Ordering::Relaxed);
    let lines = std::mem::take(&mut bench.lines).into_iter();
    (lines.filter(|line| line.starts_with("FailedScheduling")).collect(), calls)
}

#[test]
fn a_message_without_the_pods_name_is_shared() {
    let (lines, calls) = attempts(REJECT_ALL, false);
    let texts = ["first", "second"]
        .map(|pod| format!("FailedScheduling {pod}: 0/1 nodes are available: rejected."));
    assert_eq!((lines, calls), (texts.to_vec(), 1));
}

#[test]
fn a_message_that_names_the_pod_is_not() {
    let (lines, calls) = attempts(REJECT_BY_NAME, true);
    let texts = ["first", "second"].map(|pod| {
        format!("FailedScheduling {pod}: 0/1 nodes are available: Pod {pod} is rejected.")
    });
    assert_eq!((lines, calls), (texts.to_vec(), 2));
}
