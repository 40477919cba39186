//! Guarded forms of the extension points.

use std::cmp::Ordering;
use std::sync::Arc;

use loadmaster_framework::api_calls::{PluginStep, PluginStepInput};
use loadmaster_framework::cluster_event::ClusterEventWithHint;
use loadmaster_framework::extension_points::{BindResult, PreBindPreFlight};
use loadmaster_framework::pod_sums::PodSumsDef;
use loadmaster_framework::preemption::PreemptionPreview;
use loadmaster_framework::{
    Bind, Code, Cx, CycleState, DryRunCx, Failure, Filter, FitError, NodeInfo, NodeRow, Permit,
    PermitResult, PodInfo, PostBind, PostFilter, PostFilterCx, PostFilterResult, PreBind,
    PreEnqueue, PreFilter, PreFilterResult, PreScore, PreScoreResult, QueueSort, QueuedPodInfo,
    QueueingHint, QueueingHintFn, Rejection, Reserve, Score, SerialCx, Sign, World,
};
use loadmaster_stdx::Rng;

use super::{
    ExtensionPoint, PluginRef, catch_plugin_panic, record_execution, record_hint_execution,
    stopwatch,
};

/// A plugin at one extension point. Its panics become errors of that extension point.
pub(crate) struct Guarded<T: ?Sized> {
    plugin: PluginRef,
    point: Arc<T>,
}

/// An extension point that can be guarded.
pub(crate) trait Guard {
    /// The guarded form of the extension point; unchanged if its callers use [`super::catch_plugin_panic`].
    fn guarded(plugin: PluginRef, point: Arc<Self>) -> Arc<Self>;
}

macro_rules! guard {
    ($($point:ident),*) => {
        $(impl Guard for dyn $point {
            fn guarded(plugin: PluginRef, point: Arc<Self>) -> Arc<Self> {
                Arc::new(Guarded { plugin, point })
            }
        })*
    };
}

guard!(
    PreEnqueue, QueueSort, PreFilter, PostFilter, PreScore, Reserve, Permit, PreBind, Bind,
    PostBind
);

macro_rules! unguarded {
    ($($point:ident),*) => {
        $(impl Guard for dyn $point {
            fn guarded(_: PluginRef, point: Arc<Self>) -> Arc<Self> {
                point
            }
        })*
    };
}

unguarded!(Filter, Score, Sign);

/// The return type of an extension point.
pub(crate) trait PointResult {
    /// The result after a panic.
    fn from_panic(failure: Failure) -> Self;
    /// Its status code; `None` while it is not finished.
    fn code(&self) -> Option<Code>;
}

impl PointResult for () {
    fn from_panic(_: Failure) {}
    fn code(&self) -> Option<Code> {
        Some(Code::Success)
    }
}

impl<T: SuccessCode> PointResult for Result<T, Rejection> {
    fn from_panic(failure: Failure) -> Self {
        Err(failure.into())
    }
    fn code(&self) -> Option<Code> {
        Some(self.as_ref().map_or_else(Rejection::code, SuccessCode::code))
    }
}

impl<T: SuccessCode> PointResult for Result<T, Failure> {
    fn from_panic(failure: Failure) -> Self {
        Err(failure)
    }
    fn code(&self) -> Option<Code> {
        Some(self.as_ref().map_or(Code::Error, SuccessCode::code))
    }
}

impl<T: SuccessCode> PointResult for PluginStep<T> {
    fn from_panic(failure: Failure) -> Self {
        PluginStep::Fail(failure.into())
    }
    fn code(&self) -> Option<Code> {
        match self {
            PluginStep::Call(_) | PluginStep::CallExtenders(_) | PluginStep::Wait { .. } => None,
            PluginStep::Done(answer) => Some(answer.code()),
            PluginStep::Fail(rejection) => Some(rejection.code()),
        }
    }
}

/// A result that is neither a rejection nor an error.
pub(crate) trait SuccessCode {
    /// Its status code.
    fn code(&self) -> Code {
        Code::Success
    }
}

impl SuccessCode for () {}
impl SuccessCode for PreBindPreFlight {
    fn code(&self) -> Code {
        if *self == PreBindPreFlight::Skip { Code::Skip } else { Code::Success }
    }
}
impl SuccessCode for PreFilterResult {
    fn code(&self) -> Code {
        if *self == PreFilterResult::Skip { Code::Skip } else { Code::Success }
    }
}
impl SuccessCode for PreScoreResult {
    fn code(&self) -> Code {
        if *self == PreScoreResult::Skip { Code::Skip } else { Code::Success }
    }
}
impl SuccessCode for PermitResult {
    fn code(&self) -> Code {
        if *self == PermitResult::Allow { Code::Success } else { Code::Wait }
    }
}
impl SuccessCode for BindResult {
    fn code(&self) -> Code {
        if *self == BindResult::Skip { Code::Skip } else { Code::Success }
    }
}
impl SuccessCode for PostFilterResult {
    fn code(&self) -> Code {
        self.rejection.as_ref().map_or(Code::Success, Rejection::code)
    }
}

impl<T: ?Sized> Guarded<T> {
    /// One step of an extension point that may wait for replies: the engine measures its total duration.
    fn step<R: PointResult>(
        &self,
        extension_point: ExtensionPoint,
        work: impl FnOnce(&T) -> R,
    ) -> R {
        self.plugin.call(extension_point, || work(&self.point)).unwrap_or_else(R::from_panic)
    }

    fn call<R: PointResult>(
        &self,
        extension_point: ExtensionPoint,
        work: impl FnOnce(&T) -> R,
    ) -> R {
        let began = stopwatch().map(|stopwatch| stopwatch());
        let answer = self.step(extension_point, work);
        if let (Some(began), Some(code)) = (began, answer.code()) {
            record_execution(|| self.plugin.clone(), extension_point, code, began);
        }
        answer
    }
}

impl PreEnqueue for Guarded<dyn PreEnqueue> {
    fn pre_enqueue(&self, cx: Cx<'_>, pod: &PodInfo) -> Result<(), Rejection> {
        self.call(ExtensionPoint::PreEnqueue, |point| point.pre_enqueue(cx, pod))
    }
}

impl QueueSort for Guarded<dyn QueueSort> {
    fn compare(&self, cx: Cx<'_>, a: &QueuedPodInfo, b: &QueuedPodInfo) -> Ordering {
        let result = self.plugin.call(ExtensionPoint::QueueSort, || self.point.compare(cx, a, b));
        // The queue orders equal pods by arrival.
        result.unwrap_or(Ordering::Equal)
    }

    fn sort_key(&self, pod: &QueuedPodInfo) -> Option<[i64; 2]> {
        let key = self.plugin.call(ExtensionPoint::QueueSort, || self.point.sort_key(pod));
        key.unwrap_or_default()
    }
}

impl PreFilter for Guarded<dyn PreFilter> {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        self.call(ExtensionPoint::PreFilter, |point| point.pre_filter(cx, pod))
    }

    fn add_pod(
        &self,
        cycle: &mut CycleState,
        world: &World,
        pod: &PodInfo,
        other: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Failure> {
        self.call(ExtensionPoint::AddPod, |point| point.add_pod(cycle, world, pod, other, node))
    }

    fn remove_pod(
        &self,
        cycle: &mut CycleState,
        world: &World,
        pod: &PodInfo,
        other: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Failure> {
        self.call(ExtensionPoint::RemovePod, |point| {
            point.remove_pod(cycle, world, pod, other, node)
        })
    }
}

impl PostFilter for Guarded<dyn PostFilter> {
    fn post_filter(
        &self,
        cx: PostFilterCx<'_>,
        pod: &Arc<PodInfo>,
        fit_error: FitError<'_>,
        rng: &mut Rng,
        input: PluginStepInput<'_>,
    ) -> PluginStep<PostFilterResult> {
        self.call(ExtensionPoint::PostFilter, |point| {
            point.post_filter(cx, pod, fit_error, rng, input)
        })
    }

    fn preview(
        &self,
        cx: DryRunCx<'_>,
        pod: &Arc<PodInfo>,
        fit_error: FitError<'_>,
    ) -> Option<PreemptionPreview> {
        let result =
            self.plugin.call(ExtensionPoint::PostFilter, || self.point.preview(cx, pod, fit_error));
        result.unwrap_or_else(|failure| {
            Some(PreemptionPreview {
                rejection: Some(failure.into()),
                ..PreemptionPreview::default()
            })
        })
    }

    fn reads_cycle_state(&self, rows_where_preemption_might_help: &[NodeRow]) -> bool {
        let reads = || self.point.reads_cycle_state(rows_where_preemption_might_help);
        // A plugin that panics does so again in PostFilter, or needs nothing.
        catch_plugin_panic(reads).unwrap_or(true)
    }

    fn counts_as_preemption(&self) -> bool {
        self.point.counts_as_preemption()
    }
}

impl PreScore for Guarded<dyn PreScore> {
    fn pre_score(
        &self,
        cx: SerialCx<'_>,
        pod: &PodInfo,
        nodes: &[NodeInfo<'_>],
    ) -> Result<PreScoreResult, Failure> {
        self.call(ExtensionPoint::PreScore, |point| point.pre_score(cx, pod, nodes))
    }
}

impl Reserve for Guarded<dyn Reserve> {
    fn reserve(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        self.call(ExtensionPoint::Reserve, |point| point.reserve(cx, pod, node))
    }

    fn unreserve(&self, cx: SerialCx<'_>, pod: &Arc<PodInfo>, node: &str) {
        self.call(ExtensionPoint::Unreserve, |point| point.unreserve(cx, pod, node));
    }
}

impl Permit for Guarded<dyn Permit> {
    fn permit(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<PermitResult, Rejection> {
        self.call(ExtensionPoint::Permit, |point| point.permit(cx, pod, node))
    }
}

impl PreBind for Guarded<dyn PreBind> {
    fn pre_flight(
        &self,
        cx: Cx<'_>,
        pod: &PodInfo,
        node: &str,
    ) -> Result<PreBindPreFlight, Rejection> {
        self.call(ExtensionPoint::PreBindPreFlight, |point| point.pre_flight(cx, pod, node))
    }

    fn pre_bind(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        node: &str,
        input: PluginStepInput<'_>,
    ) -> PluginStep<()> {
        self.step(ExtensionPoint::PreBind, |point| point.pre_bind(cx, pod, node, input))
    }
}

impl Bind for Guarded<dyn Bind> {
    fn bind(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        node: &str,
        input: PluginStepInput<'_>,
    ) -> PluginStep<BindResult> {
        self.step(ExtensionPoint::Bind, |point| point.bind(cx, pod, node, input))
    }
}

impl PostBind for Guarded<dyn PostBind> {
    fn post_bind(&self, cx: SerialCx<'_>, pod: &Arc<PodInfo>, node: &str) {
        self.call(ExtensionPoint::PostBind, |point| point.post_bind(cx, pod, node));
    }
}

/// Guards the functions with which a plugin sums pods.
pub(crate) fn guard_pod_sums(plugin: PluginRef, sums: &PodSumsDef) -> PodSumsDef {
    sums.clone().guarded(Arc::new(move |call| {
        // A panic is recorded, and the pod does not count.
        let _ = plugin.call(ExtensionPoint::PodSums, call);
    }))
}

/// The event registration with a guarded hint.
pub(crate) fn guard_hint(
    plugin: PluginRef,
    registered: ClusterEventWithHint,
) -> ClusterEventWithHint {
    let ClusterEventWithHint { event, hint, ignores_priority } = registered;
    let hint = hint.map(|hint| -> QueueingHintFn {
        Arc::new(move |question| {
            let began = stopwatch().map(|stopwatch| stopwatch());
            let result =
                plugin.call(ExtensionPoint::QueueingHint, || hint(question)).unwrap_or_else(Err);
            if let Some(began) = began {
                let code = match &result {
                    Ok(QueueingHint::Queue) => Code::Success,
                    Ok(QueueingHint::Skip) => Code::Skip,
                    Err(_) => Code::Error,
                };
                record_hint_execution(&plugin, question.event, code, began);
            }
            result
        })
    });
    ClusterEventWithHint { event, hint, ignores_priority }
}
