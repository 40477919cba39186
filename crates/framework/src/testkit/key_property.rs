//! Pods with equal keys get equal results: [`PluginTestBench::check_key`] changes a pod in many small ways, and compares the results of
//! the pods whose [key](crate::Incremental::key) the change keeps.
//!
//! A key that leaves out something that Filter or Score reads makes pods share results that are not theirs. Comparing the incremental
//! form with the per-node results of one pod cannot show that.

use std::sync::Arc;

use loadmaster_api::Str;
use serde_json::Value;

use super::pod_changes::{PodVocabulary, pod_changes};
use super::{BenchResult, PerNodeResults, PluginTestBench, PluginTestBenchError, Prepared};
use crate::incremental::PrepareResult;
use crate::pod_info::PodInfo;
use crate::template::PodTemplate;
use crate::world::World;

/// What [`PluginTestBench::check_key`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyReport {
    /// Number of changed pods that are valid.
    pub n_changes: usize,
    /// The changes that keep the key, by [name](super::pod_changes::PodChange).
    pub kept: Vec<String>,
}

impl KeyReport {
    /// Whether the change of this name keeps the key.
    pub fn keeps(&self, change: &str) -> bool {
        self.kept.iter().any(|kept| kept == change)
    }
}

impl PluginTestBench {
    /// Changes each field of a pod in turn ([`pod_changes`]). Wherever the plugin gives the changed pod the key of the original, the
    /// results must be equal too: the statuses and scores of all nodes, and what was prepared from the original's key. Changed pods that
    /// are invalid are skipped. If the pod has no key, nothing is shared and nothing is kept.
    ///
    /// # Errors
    ///
    /// The first change that keeps the key although a result differs; also when the plugin has no incremental form, the pod is
    /// invalid, or the incremental form differs from the pod's own per-node results.
    pub fn check_key(&mut self, pod: impl Into<Value>) -> BenchResult<KeyReport> {
        let pod = pod.into();
        let original = OriginalPod::new(self, &pod)?;
        let report = self.check_changes(&original, &pod);
        original.prepared.release(self);
        report
    }

    /// Whether two pods have equal keys. If so, compares their results as [`PluginTestBench::check_key`] does.
    ///
    /// # Errors
    ///
    /// When the keys are equal although a result differs; also in the other cases of [`PluginTestBench::check_key`].
    pub fn have_equal_keys(
        &mut self,
        pod: impl Into<Value>,
        other: impl Into<Value>,
    ) -> BenchResult<bool> {
        let other = self.parse_pod(other)?;
        let original = OriginalPod::new(self, &pod.into())?;
        let is_equal = original.shares_key(self, &other);
        original.prepared.release(self);
        is_equal
    }

    fn check_changes(&mut self, original: &OriginalPod, pod: &Value) -> BenchResult<KeyReport> {
        let mut report = KeyReport::default();
        let mut vocabulary = PodVocabulary::new(&self.world, pod);
        self.pods.values().for_each(|known| vocabulary.add_pod(known));
        for change in pod_changes(pod, &vocabulary) {
            let Ok(changed) = self.parse_pod(change.pod) else { continue };
            report.n_changes += 1;
            let is_kept = original.shares_key(self, &changed).map_err(|error| {
                PluginTestBenchError(format!("{}: the key is kept, but {error}", change.name))
            })?;
            if !is_kept && let Some(what) = original.why_key_must_be_equal(&changed) {
                return Err(PluginTestBenchError(format!("{}: {what}", change.name)));
            }
            if is_kept {
                report.kept.push(change.name);
            }
        }
        Ok(report)
    }
}

/// The pod that is changed, with its own results.
struct OriginalPod {
    template: Arc<PodTemplate>,
    key_is_of_spec: bool,
    label_keys: Option<Vec<Str>>,
    key_reads_resources: bool,
    prepared: Prepared,
    results: PerNodeResults,
}

impl OriginalPod {
    fn new(bench: &mut PluginTestBench, pod: &Value) -> BenchResult<OriginalPod> {
        if bench.points.incremental.is_none() {
            return Err(PluginTestBenchError("the plugin has no incremental form".into()));
        }
        let pod = bench.parse_pod(pod.clone())?;
        bench.check_incremental(&pod)?;
        let prepared = bench.prepare(&pod);
        let incremental = bench.points.incremental.as_ref();
        Ok(OriginalPod {
            key_is_of_spec: incremental.is_some_and(|it| it.any_key_is_of_spec(&pod.template.spec)),
            key_reads_resources: incremental.is_none_or(|it| it.any_key_reads_resources()),
            label_keys: incremental.and_then(|it| it.any_label_keys(bench.evaluator_cx(), &pod)),
            prepared,
            results: bench.evaluate_per_node(&pod),
            template: pod.template,
        })
    }

    /// What says that the other pod must have this pod's key, if the plugin says so: it differs only in what is not in the spec, or in no
    /// label, request or limit that the key reads. Pods with a node name or a resize have their results per node.
    fn why_key_must_be_equal(&self, other: &PodInfo) -> Option<&'static str> {
        if !other.node_name.is_empty() || other.resized.is_some() {
            return None;
        }
        if self.key_is_of_spec && other.template.spec.id() == self.template.spec.id() {
            return Some("the key depends on more than the spec (key_is_of_spec)");
        }
        let (template, other) = (&self.template, &other.template);
        let read = self.label_keys.as_ref().filter(|_| !other.has_ephemeral_volumes())?;
        if !read.iter().all(|key| other.labels.get(key) == template.labels.get(key)) {
            return None;
        }
        if other.shared_id == template.shared_id {
            return Some("the key depends on more labels (label_keys)");
        }
        let is_equal = other.without_resources_id == template.without_resources_id;
        (is_equal && !self.key_reads_resources)
            .then_some("the key depends on requests or limits (key_reads_resources)")
    }

    /// Whether pods with equal keys may have different results ([`PluginEvaluator::accepts_pod`](crate::PluginEvaluator::accepts_pod)).
    fn depends_on_pod(&self) -> bool {
        matches!(&self.prepared.result, PrepareResult::Evaluator(it) if it.dependencies().pod)
    }

    /// Whether the other pod has this pod's key. If so, compares the results.
    fn shares_key(&self, bench: &PluginTestBench, other: &PodInfo) -> BenchResult<bool> {
        let plugin = bench.points.incremental.as_ref();
        let key = plugin.and_then(|plugin| plugin.any_key(bench.evaluator_cx(), other, None));
        if key.is_none() || key != self.prepared.key {
            return Ok(false);
        }
        let results = bench.evaluate_per_node(other);
        if !self.depends_on_pod() {
            compare_results(&bench.world, &self.results, &results)?;
        }
        bench.compare_prepared(&self.prepared.result, other, &results)?;
        Ok(true)
    }
}

/// Compares the per-node results of the original and of the changed pod.
fn compare_results(world: &World, was: &PerNodeResults, is: &PerNodeResults) -> BenchResult<()> {
    let name = |row| world.node(row).map_or("", |node| node.name());
    for ((row, was), (_, is)) in was.filters.iter().zip(&is.filters) {
        if was != is {
            let text = format!("the status of node {} was {was:?} and is {is:?}", name(*row));
            return Err(PluginTestBenchError(text));
        }
    }
    let (was, is) = (scores_text(world, was), scores_text(world, is));
    if was == is {
        return Ok(());
    }
    Err(PluginTestBenchError(format!("the scores were {was} and are {is}")))
}

fn scores_text(world: &World, results: &PerNodeResults) -> String {
    let scores = match &results.scores {
        Ok(Some(scores)) => scores,
        Ok(None) => return "skipped".into(),
        Err(error) => return format!("an error ({error})"),
    };
    let named = scores.iter().map(|score| {
        let node = world.node(score.row);
        format!("{} {}", node.map_or("", |node| node.name()), score.score)
    });
    format!("[{}]", named.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests;
