//! Cached evaluations see every change of an assigned pod: [`PluginTestBench::check_assigned_pod`] changes a pod on a node in many small
//! ways, and compares.

use std::sync::Arc;

use loadmaster_api::Str;
use serde_json::Value;

use super::incremental_history::CachedEvaluation;
use super::pod_changes::{PodVocabulary, pod_changes};
use super::{BenchResult, PluginTestBench, PluginTestBenchError};
use crate::pod_info::PodInfo;

impl PluginTestBench {
    /// Adds a pod to a node and changes each of its fields in turn ([`pod_changes`]); in the end the pod is deleted. Meanwhile the
    /// evaluators of the incoming pods are cached and updated as the engine does. After every change their results are compared with
    /// those of Filter and Score. The pod keeps its uid; with another node name it is on that node, or on none. Changed pods that are
    /// invalid are skipped. Returns the number of changes.
    ///
    /// # Errors
    ///
    /// The first difference, with the name of the change; also when the plugin has no incremental form, or a pod is invalid.
    pub fn check_assigned_pod(
        &mut self,
        node: &str,
        pod: impl Into<Value>,
        incoming: impl IntoIterator<Item = Value>,
    ) -> BenchResult<usize> {
        if self.points.incremental.is_none() {
            return Err(PluginTestBenchError("the plugin has no incremental form".into()));
        }
        let pod: Value = pod.into();
        let uid = self.add_assigned_pod(node, pod.clone())?.uid.clone();
        let mut cached = Vec::new();
        for pod in incoming {
            let pod = self.parse_pod(pod)?;
            cached.push(CachedEvaluation::new(self, pod));
        }
        let mut n_changes = 0;
        for change in pod_changes(&pod, &PodVocabulary::new(&self.world, &pod)) {
            let Ok(changed) = self.parse_pod(change.pod) else { continue };
            let node_name = match &changed.node_name {
                name if name.is_empty() => Str::new(node),
                name => name.clone(),
            };
            match self.world.nodes().row(&node_name) {
                Some(row) => {
                    let changed = PodInfo { uid: uid.clone(), node_name, ..changed };
                    self.assign_pod(row, Arc::new(changed));
                }
                None => self.delete_pod(&uid),
            }
            self.check_cached(&mut cached, &change.name)?;
            n_changes += 1;
        }
        self.delete_pod(&uid);
        self.check_cached(&mut cached, "the assigned pod deleted")?;
        cached.into_iter().for_each(|cached| cached.release(self));
        Ok(n_changes)
    }

    fn check_cached(&mut self, cached: &mut [CachedEvaluation], change: &str) -> BenchResult<()> {
        for (at, cached) in cached.iter_mut().enumerate() {
            cached.check(self).map_err(|error| {
                PluginTestBenchError(format!("{change}: incoming pod {at}: {error}"))
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::incremental::{ResultDependencies, RowDependency};
    use crate::testkit::{PodBuilder, node, pod};
    use crate::{
        Cx, EvaluatorCx, ExtensionPoints, Failure, Incremental, NodeInfo, NodeRow, PluginDef,
        PluginError, PluginEvaluator, PrepareCx, PrepareResult, Score,
    };

    /// Scores by the number of pods on the node that are being deleted.
    struct Terminating {
        /// What the evaluator says that it reads.
        reads: RowDependency,
    }

    fn n_terminating(node: NodeInfo<'_>) -> i64 {
        node.pods().filter(|pod| pod.terminating).count() as i64
    }

    impl Score for Terminating {
        fn score(&self, _: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
            Ok(n_terminating(node))
        }
    }

    impl Incremental for Terminating {
        type Key = ();

        fn key(&self, _: EvaluatorCx<'_>, _: &PodInfo) -> Option<()> {
            Some(())
        }

        fn prepare(&self, _: &mut PrepareCx<'_>, (): &()) -> PrepareResult {
            PrepareResult::Evaluator(Box::new(Terminating { reads: self.reads }))
        }
    }

    impl PluginEvaluator for Terminating {
        fn dependencies(&self) -> ResultDependencies {
            ResultDependencies { score: Some(self.reads), ..ResultDependencies::default() }
        }

        fn score_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> i64 {
            cx.world.node(row).map_or(0, n_terminating)
        }
    }

    fn build<const READS_PODS: bool>(
        points: &mut ExtensionPoints,
        _: &Value,
    ) -> Result<(), PluginError> {
        let reads = if READS_PODS { RowDependency::Pods } else { RowDependency::Node };
        points.score = Some(Arc::new(Terminating { reads }));
        points.incremental = Some(Arc::new(Terminating { reads }));
        Ok(())
    }

    fn check<const READS_PODS: bool>(assigned: PodBuilder) -> BenchResult<usize> {
        let def = PluginDef { name: "Terminating", build: build::<READS_PODS>, args: None };
        let mut bench = PluginTestBench::new(&def, json!({})).unwrap();
        bench.node(node("a")).unwrap();
        bench.node(node("b")).unwrap();
        bench.check_assigned_pod("a", assigned, [pod("incoming").into()])
    }

    #[test]
    fn a_dependency_that_is_left_out_is_an_error_that_names_the_change() {
        let assigned = || pod("assigned").label("app", "web");
        assert!(check::<true>(assigned()).unwrap() > 50);
        assert_eq!(
            check::<false>(assigned()).unwrap_err().to_string(),
            "/metadata/deletionTimestamp = \"2026-01-01T00:00:00Z\": incoming pod 0: a: incremental score 0, per node 1"
        );
    }

    #[test]
    fn the_plugin_must_have_an_incremental_form() {
        let build = |_: &mut ExtensionPoints, _: &Value| Ok(());
        let def = PluginDef { name: "Nothing", build, args: None };
        let mut bench = PluginTestBench::new(&def, json!({})).unwrap();
        let error = bench.check_assigned_pod("a", pod("assigned"), []).unwrap_err();
        assert_eq!(error.to_string(), "the plugin has no incremental form");
    }
}
