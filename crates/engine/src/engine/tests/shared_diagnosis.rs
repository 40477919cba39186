//! Pods with equal keys share a diagnosis, unless it names the pod, or a plugin reads more of the pod.

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

/// Rejects pods of low priority, although all pods have one key.
struct RejectLowPriority;

const REJECT_LOW_PRIORITY: PluginDef =
    PluginDef { name: "RejectAll", build: build_of_priority, args: None };

/// Calls of its PreFilter.
static CALLS_OF_PRIORITY: AtomicUsize = AtomicUsize::new(0);

fn build_of_priority(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    points.pre_filter = Some(Arc::new(RejectLowPriority));
    points.incremental = Some(Arc::new(RejectLowPriority));
    points.register_no_events();
    Ok(())
}

impl PreFilter for RejectLowPriority {
    fn pre_filter(&self, _: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        CALLS_OF_PRIORITY.fetch_add(1, Ordering::Relaxed);
        match pod.template.priority() {
            priority if priority > 0 => Ok(PreFilterResult::All),
            priority => Err(Rejection::unschedulable(format!("priority {priority}"))),
        }
    }
}

impl Incremental for RejectLowPriority {
    type Key = ();

    fn key(&self, _: EvaluatorCx<'_>, _: &PodInfo) -> Option<()> {
        Some(())
    }

    fn prepare(&self, _: &mut PrepareCx<'_>, (): &()) -> PrepareResult {
        PrepareResult::Evaluator(Box::new(RejectLowPriority))
    }
}

impl PluginEvaluator for RejectLowPriority {
    fn dependencies(&self) -> ResultDependencies {
        ResultDependencies { pod: true, ..ResultDependencies::default() }
    }

    fn accepts_pod(&self, _: EvaluatorCx<'_>, pod: &PodInfo) -> bool {
        pod.template.priority() > 0
    }
}

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

fn bench_with(plugin: PluginDef) -> Bench {
    let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": "RejectAll"}]},
        "postFilter": {"disabled": [{"name": "*"}]}}});
    Bench::of(EngineOptions::default(), plugin, &profile, json!([]))
}

/// The lines of two pods, and the number of calls of PreFilter.
fn attempts(plugin: PluginDef, names_pod: bool) -> (Vec<String>, usize) {
    let mut bench = bench_with(plugin);
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

#[test]
fn a_plugin_that_reads_more_than_its_key_shares_by_template() {
    let mut bench = bench_with(REJECT_LOW_PRIORITY);
    for (name, priority) in [("low", -1), ("as-low", -1), ("zero", 0), ("high", 1)] {
        bench.set_pod(name, json!({}), json!({"priority": priority}), json!({}));
    }
    for _ in 0..4 {
        bench.cycle();
    }
    let mut lines = std::mem::take(&mut bench.lines);
    lines.retain(|line| line.starts_with("FailedScheduling"));
    lines.sort();
    let failed = |pod: &str, priority: i32| {
        format!("FailedScheduling {pod}: 0/1 nodes are available: priority {priority}.")
    };
    assert_eq!(lines, [failed("as-low", -1), failed("low", -1), failed("zero", 0)]);
    assert_eq!(CALLS_OF_PRIORITY.load(Ordering::Relaxed), 2, "one for each template that failed");
}
