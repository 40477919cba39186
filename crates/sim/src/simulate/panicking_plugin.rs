//! A plugin that accepts everything, and panics at random at every extension point, by the seed of the run.

use std::cell::RefCell;
use std::sync::Arc;

use loadmaster_engine::Profile;
use loadmaster_engine::guard::silence_caught_panics;
use loadmaster_framework::api_calls::{PluginStep, PluginStepInput};
use loadmaster_framework::cluster_event::QueueingHintArgs;
use loadmaster_framework::extension_points::{NodeScore, PreBindPreFlight};
use loadmaster_framework::incremental::{
    ClassKey, Incremental, PluginEvaluator, PrepareResult, ResultDependencies, RowDependency,
};
use loadmaster_framework::{
    ActionType, ClusterEvent, Cx, EvaluatorCx, EventResource, ExtensionPoints, Failure, Filter,
    FitError, NodeInfo, NodeRow, Permit, PermitResult, PluginDef, PluginError, PluginStateSlot,
    PodInfo, PostBind, PostFilter, PostFilterCx, PostFilterResult, PreBind, PreEnqueue, PreFilter,
    PreFilterResult, PreScore, PreScoreResult, PrepareCx, QueueingHint, Registry, Rejection,
    Reserve, Score, SerialCx,
};
use loadmaster_stdx::Rng;
use serde_json::Value;

use super::simulated_profiles::profile_with_plugins;
use loadmaster_engine::world_loader::DefaultProfileError;

thread_local! {
    /// Decides when the plugin panics on this thread; `None` when it never does.
    static PANIC_RNG: RefCell<Option<Rng>> = const { RefCell::new(None) };
}

/// From now on the plugin panics by this random stream, or never.
pub(super) fn set_panic_rng(rng: Option<Rng>) {
    PANIC_RNG.set(rng);
}

/// Panics with a probability of one in `one_in`.
fn maybe_panic(one_in: u64) {
    let panics = PANIC_RNG.with_borrow_mut(|rng| rng.as_mut().is_some_and(|it| it.one_in(one_in)));
    assert!(!panics, "injected panic");
}

/// `one_in` of calls that are made once per attempt, and once per node.
const PER_POD: u64 = 60;
const PER_NODE: u64 = 600;

pub(super) const NAME: &str = "Panicking";
pub(super) const PANICKING: PluginDef = PluginDef { name: NAME, build, args: None };

/// The default profile with the plugin. After this call caught panics are no longer reported on stderr.
pub fn profile_with_panicking_plugin(registry: &Registry) -> Result<Profile, DefaultProfileError> {
    silence_caught_panics();
    profile_with_plugins(&registry.clone().with(PANICKING), &[NAME])
}

struct PanickingPlugin {
    /// Number of reserved pods; a panic resets it.
    reserved: PluginStateSlot<u32>,
}

fn build(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(PanickingPlugin { reserved: points.plugin_state_slot(0) });
    points.sum_pods(|pod| {
        maybe_panic(PER_NODE);
        Some(pod.template.namespace.clone())
    });
    points.pre_enqueue = Some(plugin.clone());
    points.pre_filter = Some(plugin.clone());
    points.filter = Some(plugin.clone());
    points.post_filter = Some(plugin.clone());
    points.pre_score = Some(plugin.clone());
    points.score = Some(plugin.clone());
    points.reserve = Some(plugin.clone());
    points.permit = Some(plugin.clone());
    points.pre_bind = Some(plugin.clone());
    points.post_bind = Some(plugin.clone());
    points.incremental = Some(plugin);
    let hint = |_: &QueueingHintArgs<'_>| {
        maybe_panic(PER_POD);
        Ok(QueueingHint::Skip)
    };
    points.register_event(
        ClusterEvent::new(EventResource::Node, ActionType::ADD),
        Some(Arc::new(hint)),
    );
    Ok(())
}

impl PreEnqueue for PanickingPlugin {
    fn pre_enqueue(&self, _: Cx<'_>, _: &PodInfo) -> Result<(), Rejection> {
        maybe_panic(PER_POD);
        Ok(())
    }
}

impl PreFilter for PanickingPlugin {
    fn pre_filter(&self, _: SerialCx<'_>, _: &PodInfo) -> Result<PreFilterResult, Rejection> {
        maybe_panic(PER_POD);
        Ok(PreFilterResult::All)
    }
}

impl Filter for PanickingPlugin {
    fn filter(&self, _: Cx<'_>, _: &PodInfo, _: NodeInfo<'_>) -> Result<(), Rejection> {
        maybe_panic(PER_NODE);
        Ok(())
    }
}

impl PostFilter for PanickingPlugin {
    fn post_filter(
        &self,
        _: PostFilterCx<'_>,
        _: &Arc<PodInfo>,
        _: FitError<'_>,
        _: &mut Rng,
        _: PluginStepInput<'_>,
    ) -> PluginStep<PostFilterResult> {
        maybe_panic(PER_POD);
        PluginStep::Fail(Rejection::unschedulable("nothing to be done"))
    }
}

impl PreScore for PanickingPlugin {
    fn pre_score(
        &self,
        _: SerialCx<'_>,
        _: &PodInfo,
        _: &[NodeInfo<'_>],
    ) -> Result<PreScoreResult, Failure> {
        maybe_panic(PER_POD);
        Ok(PreScoreResult::Ready)
    }
}

impl Score for PanickingPlugin {
    fn score(&self, _: Cx<'_>, _: &PodInfo, _: NodeInfo<'_>) -> Result<i64, Failure> {
        maybe_panic(PER_NODE);
        Ok(0)
    }

    fn normalize(&self, _: Cx<'_>, _: &PodInfo, _: &mut [NodeScore]) -> Result<(), Failure> {
        maybe_panic(PER_POD);
        Ok(())
    }
}

impl Reserve for PanickingPlugin {
    fn reserve(
        &self,
        cx: SerialCx<'_>,
        _: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        if let Some(n) = cx.states.get_mut(self.reserved) {
            *n += 1;
        }
        maybe_panic(PER_POD);
        Ok(())
    }

    fn unreserve(&self, cx: SerialCx<'_>, _: &Arc<PodInfo>, _: &str) {
        maybe_panic(PER_POD);
        if let Some(n) = cx.states.get_mut(self.reserved) {
            *n = n.saturating_sub(1);
        }
    }
}

impl Permit for PanickingPlugin {
    fn permit(
        &self,
        _: SerialCx<'_>,
        _: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<PermitResult, Rejection> {
        maybe_panic(PER_POD);
        Ok(PermitResult::Allow)
    }
}

impl PreBind for PanickingPlugin {
    fn pre_flight(&self, _: Cx<'_>, _: &PodInfo, _: &str) -> Result<PreBindPreFlight, Rejection> {
        maybe_panic(PER_POD);
        Ok(PreBindPreFlight::Work { parallel: true })
    }

    fn pre_bind(
        &self,
        _: SerialCx<'_>,
        _: &Arc<PodInfo>,
        _: &str,
        _: PluginStepInput<'_>,
    ) -> PluginStep<()> {
        maybe_panic(PER_POD);
        PluginStep::Done(())
    }
}

impl PostBind for PanickingPlugin {
    fn post_bind(&self, _: SerialCx<'_>, _: &Arc<PodInfo>, _: &str) {
        maybe_panic(PER_POD);
    }
}

impl Incremental for PanickingPlugin {
    /// Whether the priority is even.
    type Key = bool;

    fn key(&self, _: EvaluatorCx<'_>, pod: &PodInfo) -> Option<bool> {
        maybe_panic(PER_POD);
        Some(pod.template.priority() % 2 == 0)
    }

    /// Some pods are evaluated incrementally, the others per node.
    fn prepare(&self, _: &mut PrepareCx<'_>, is_even: &bool) -> PrepareResult {
        maybe_panic(PER_POD);
        match is_even {
            true => PrepareResult::Evaluator(Box::new(PanickingEvaluator)),
            false => PrepareResult::PerNode,
        }
    }
}

struct PanickingEvaluator;

impl PluginEvaluator for PanickingEvaluator {
    fn dependencies(&self) -> ResultDependencies {
        let pods = Some(RowDependency::Pods);
        ResultDependencies {
            filter: pods,
            score: pods,
            class: pods,
            ..ResultDependencies::default()
        }
    }

    fn filter_row(&self, _: EvaluatorCx<'_>, _: NodeRow) -> bool {
        maybe_panic(PER_NODE);
        true
    }

    fn score_row(&self, _: EvaluatorCx<'_>, _: NodeRow) -> i64 {
        maybe_panic(PER_NODE);
        0
    }

    fn class_key_len(&self) -> usize {
        1
    }

    fn class_key(&self, _: EvaluatorCx<'_>, _: NodeRow, out: &mut ClassKey) {
        maybe_panic(PER_NODE);
        out.push(0);
    }
}
