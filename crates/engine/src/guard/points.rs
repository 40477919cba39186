//! Extension points with the guard around them.

use std::cmp::Ordering;
use std::sync::Arc;

use loadmaster_framework::event::EventWithHint;
use loadmaster_framework::points::{Bound, PreFlight};
use loadmaster_framework::preemption::Preview;
use loadmaster_framework::request::{Input, Step};
use loadmaster_framework::{
    Bind, Code, Cx, CycleState, Failure, Filter, Hint, HintFn, NodeInfo, Permit, Permitted,
    PodInfo, PostBind, PostFilter, PostFiltered, PreBind, PreEnqueue, PreFilter, PreFiltered,
    PreScore, PreScored, QueueSort, QueuedPodInfo, Rejection, Reserve, Score, SerialCx, Sign,
    Unfit, World,
};
use loadmaster_stdx::Rng;

use super::{Site, Who, stopwatch, timed, timed_hint};

/// A plugin at one point, whose panics become what the point says when it fails.
pub(crate) struct Guarded<T: ?Sized> {
    who: Who,
    point: Arc<T>,
}

/// A point that can be wrapped.
pub(crate) trait Guard {
    /// The same point, guarded if it is called by itself.
    fn guarded(who: Who, point: Arc<Self>) -> Arc<Self>;
}

macro_rules! guard {
    ($($point:ident),*) => {
        $(impl Guard for dyn $point {
            fn guarded(who: Who, point: Arc<Self>) -> Arc<Self> {
                Arc::new(Guarded { who, point })
            }
        })*
    };
}

guard!(
    PreEnqueue, QueueSort, PreFilter, PostFilter, PreScore, Reserve, Permit, PreBind, Bind,
    PostBind
);

macro_rules! called_in_sections {
    ($($point:ident),*) => {
        $(impl Guard for dyn $point {
            fn guarded(_: Who, point: Arc<Self>) -> Arc<Self> {
                point
            }
        })*
    };
}

called_in_sections!(Filter, Score, Sign);

/// What a point answers.
pub(crate) trait Answer {
    /// Instead of what the plugin would have said.
    fn failed(failure: Failure) -> Self;
    /// Its status code; `None` while it goes on.
    fn code(&self) -> Option<Code>;
}

impl Answer for () {
    fn failed(_: Failure) {}
    fn code(&self) -> Option<Code> {
        Some(Code::Success)
    }
}

impl<T: Yes> Answer for Result<T, Rejection> {
    fn failed(failure: Failure) -> Self {
        Err(failure.into())
    }
    fn code(&self) -> Option<Code> {
        Some(self.as_ref().map_or_else(Rejection::code, Yes::code))
    }
}

impl<T: Yes> Answer for Result<T, Failure> {
    fn failed(failure: Failure) -> Self {
        Err(failure)
    }
    fn code(&self) -> Option<Code> {
        Some(self.as_ref().map_or(Code::Error, Yes::code))
    }
}

impl<T: Yes> Answer for Step<T> {
    fn failed(failure: Failure) -> Self {
        Step::Fail(failure.into())
    }
    fn code(&self) -> Option<Code> {
        match self {
            Step::Call(_) | Step::AskExtenders(_) | Step::Wait { .. } => None,
            Step::Done(answer) => Some(answer.code()),
            Step::Fail(rejection) => Some(rejection.code()),
        }
    }
}

/// An answer that is neither a rejection nor a failure.
pub(crate) trait Yes {
    /// Its status code.
    fn code(&self) -> Code {
        Code::Success
    }
}

impl Yes for () {}
impl Yes for PreFlight {
    fn code(&self) -> Code {
        if *self == PreFlight::Skip { Code::Skip } else { Code::Success }
    }
}
impl Yes for PreFiltered {
    fn code(&self) -> Code {
        if *self == PreFiltered::Skip { Code::Skip } else { Code::Success }
    }
}
impl Yes for PreScored {
    fn code(&self) -> Code {
        if *self == PreScored::Skip { Code::Skip } else { Code::Success }
    }
}
impl Yes for Permitted {
    fn code(&self) -> Code {
        if *self == Permitted::Allow { Code::Success } else { Code::Wait }
    }
}
impl Yes for Bound {
    fn code(&self) -> Code {
        if *self == Bound::Skip { Code::Skip } else { Code::Success }
    }
}
impl Yes for PostFiltered {
    fn code(&self) -> Code {
        self.rejection.as_ref().map_or(Code::Success, Rejection::code)
    }
}

impl<T: ?Sized> Guarded<T> {
    /// One step of a point that goes on when an answer comes: its owner knows how long it takes.
    fn step<R: Answer>(&self, site: Site, work: impl FnOnce(&T) -> R) -> R {
        self.who.call(site, || work(&self.point)).unwrap_or_else(R::failed)
    }

    fn call<R: Answer>(&self, site: Site, work: impl FnOnce(&T) -> R) -> R {
        let began = stopwatch().map(|watch| watch());
        let answer = self.step(site, work);
        if let (Some(began), Some(code)) = (began, answer.code()) {
            timed(|| self.who.clone(), site, code, began);
        }
        answer
    }
}

impl PreEnqueue for Guarded<dyn PreEnqueue> {
    fn pre_enqueue(&self, cx: Cx<'_>, pod: &PodInfo) -> Result<(), Rejection> {
        self.call(Site::PreEnqueue, |point| point.pre_enqueue(cx, pod))
    }
}

impl QueueSort for Guarded<dyn QueueSort> {
    fn compare(&self, a: &QueuedPodInfo, b: &QueuedPodInfo) -> Ordering {
        let said = self.who.call(Site::QueueSort, || self.point.compare(a, b));
        // Of two that are equal the queue takes the one that came first.
        said.unwrap_or(Ordering::Equal)
    }
}

impl PreFilter for Guarded<dyn PreFilter> {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFiltered, Rejection> {
        self.call(Site::PreFilter, |point| point.pre_filter(cx, pod))
    }

    fn add_pod(
        &self,
        cycle: &mut CycleState,
        world: &World,
        pod: &PodInfo,
        other: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Failure> {
        self.call(Site::AddPod, |point| point.add_pod(cycle, world, pod, other, node))
    }

    fn remove_pod(
        &self,
        cycle: &mut CycleState,
        world: &World,
        pod: &PodInfo,
        other: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Failure> {
        self.call(Site::RemovePod, |point| point.remove_pod(cycle, world, pod, other, node))
    }
}

impl PostFilter for Guarded<dyn PostFilter> {
    fn post_filter(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        unfit: Unfit<'_>,
        rng: &mut Rng,
        input: Input<'_>,
    ) -> Step<PostFiltered> {
        self.call(Site::PostFilter, |point| point.post_filter(cx, pod, unfit, rng, input))
    }

    fn preview(&self, cx: Cx<'_>, pod: &Arc<PodInfo>, unfit: Unfit<'_>) -> Option<Preview> {
        let said = self.who.call(Site::PostFilter, || self.point.preview(cx, pod, unfit));
        said.unwrap_or_else(|failure| {
            Some(Preview { rejection: Some(failure.into()), ..Preview::default() })
        })
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
    ) -> Result<PreScored, Failure> {
        self.call(Site::PreScore, |point| point.pre_score(cx, pod, nodes))
    }
}

impl Reserve for Guarded<dyn Reserve> {
    fn reserve(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        self.call(Site::Reserve, |point| point.reserve(cx, pod, node))
    }

    fn unreserve(&self, cx: SerialCx<'_>, pod: &Arc<PodInfo>, node: &str) {
        self.call(Site::Unreserve, |point| point.unreserve(cx, pod, node));
    }
}

impl Permit for Guarded<dyn Permit> {
    fn permit(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<Permitted, Rejection> {
        self.call(Site::Permit, |point| point.permit(cx, pod, node))
    }
}

impl PreBind for Guarded<dyn PreBind> {
    fn pre_flight(&self, cx: Cx<'_>, pod: &PodInfo, node: &str) -> Result<PreFlight, Rejection> {
        self.call(Site::PreFlight, |point| point.pre_flight(cx, pod, node))
    }

    fn pre_bind(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        node: &str,
        input: Input<'_>,
    ) -> Step<()> {
        self.step(Site::PreBind, |point| point.pre_bind(cx, pod, node, input))
    }
}

impl Bind for Guarded<dyn Bind> {
    fn bind(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        node: &str,
        input: Input<'_>,
    ) -> Step<Bound> {
        self.step(Site::Bind, |point| point.bind(cx, pod, node, input))
    }
}

impl PostBind for Guarded<dyn PostBind> {
    fn post_bind(&self, cx: SerialCx<'_>, pod: &Arc<PodInfo>, node: &str) {
        self.call(Site::PostBind, |point| point.post_bind(cx, pod, node));
    }
}

/// The same event, with the guard around its hint.
pub(crate) fn event(who: Who, registered: EventWithHint) -> EventWithHint {
    let EventWithHint { event, hint } = registered;
    let hint = hint.map(|hint| -> HintFn {
        Arc::new(move |question| {
            let began = stopwatch().map(|watch| watch());
            let said = who.call(Site::QueueingHint, || hint(question)).unwrap_or_else(Err);
            if let Some(began) = began {
                let code = match &said {
                    Ok(Hint::Queue) => Code::Success,
                    Ok(Hint::Skip) => Code::Skip,
                    Err(_) => Code::Error,
                };
                timed_hint(&who, question.event, code, began);
            }
            said
        })
    });
    EventWithHint { event, hint }
}
