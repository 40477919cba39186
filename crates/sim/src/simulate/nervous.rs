//! A plugin that has no opinion, and panics now and then: at each point, in its turn, by the seed of the run.

use std::cell::RefCell;
use std::sync::Arc;

use loadmaster_config::{Gates, check_value};
use loadmaster_engine::Profile;
use loadmaster_engine::guard::quiet_caught_panics;
use loadmaster_framework::event::HintQuestion;
use loadmaster_framework::points::{NodeScore, PreFlight};
use loadmaster_framework::prepare::{Prepare, Prepared, Reads, RowPart, Run, Words};
use loadmaster_framework::request::{Input, Step};
use loadmaster_framework::{
    Action, ClusterEvent, Cx, EventResource, Failure, Filter, Hint, NodeInfo, NodeTable, Permit,
    Permitted, PluginDef, PluginError, PodInfo, Points, PostBind, PostFilter, PostFiltered,
    PreBind, PreEnqueue, PreFilter, PreFiltered, PreScore, PreScored, Registry, Rejection, Reserve,
    Row, Score, SerialCx, StateSlot, Unfit, World,
};
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use crate::load::{DefaultProfileError, profiles};

thread_local! {
    /// By what chance the plugin panics on this thread, where a run goes on; `None` while it is calm.
    static NERVES: RefCell<Option<Rng>> = const { RefCell::new(None) };
}

/// From now on the plugin panics by this chance, or not at all.
pub(super) fn upset(chance: Option<Rng>) {
    NERVES.set(chance);
}

/// Panics once in so many calls.
fn tremble(one_in: u64) {
    let panics =
        NERVES.with_borrow_mut(|nerves| nerves.as_mut().is_some_and(|it| it.one_in(one_in)));
    assert!(!panics, "nerves");
}

/// Calls that are made once an attempt, and once a node.
const POD: u64 = 60;
const NODE: u64 = 600;

const NERVOUS: PluginDef = PluginDef { name: "Nervous", build, args: None };

/// The default profile with the plugin. From then on panics that are caught are not reported on stderr.
pub fn profile(registry: &Registry) -> Result<Profile, DefaultProfileError> {
    quiet_caught_panics();
    let registry = registry.clone().with(NERVOUS);
    let gates = Gates::default();
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "Nervous"}]}}}],
    });
    let checked = check_value(config, &registry, &gates).map_err(DefaultProfileError::Config)?;
    let mut profiles = profiles(&checked, &registry, &gates.framework())?;
    Ok(profiles.swap_remove(0))
}

struct Nervous {
    /// Pods that it has reserved for; a panic makes it forget them.
    reserved: StateSlot<u32>,
}

fn build(points: &mut Points, _: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(Nervous { reserved: points.state(0) });
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
    points.prepare = Some(plugin);
    let hint = |_: &HintQuestion<'_>| {
        tremble(POD);
        Ok(Hint::Skip)
    };
    points.wake_on(ClusterEvent::new(EventResource::Node, Action::ADD), Some(Arc::new(hint)));
    Ok(())
}

impl PreEnqueue for Nervous {
    fn pre_enqueue(&self, _: Cx<'_>, _: &PodInfo) -> Result<(), Rejection> {
        tremble(POD);
        Ok(())
    }
}

impl PreFilter for Nervous {
    fn pre_filter(&self, _: SerialCx<'_>, _: &PodInfo) -> Result<PreFiltered, Rejection> {
        tremble(POD);
        Ok(PreFiltered::All)
    }
}

impl Filter for Nervous {
    fn filter(&self, _: Cx<'_>, _: &PodInfo, _: NodeInfo<'_>) -> Result<(), Rejection> {
        tremble(NODE);
        Ok(())
    }
}

impl PostFilter for Nervous {
    fn post_filter(
        &self,
        _: SerialCx<'_>,
        _: &Arc<PodInfo>,
        _: Unfit<'_>,
        _: &mut Rng,
        _: Input<'_>,
    ) -> Step<PostFiltered> {
        tremble(POD);
        Step::Fail(Rejection::unschedulable("nothing to be done"))
    }
}

impl PreScore for Nervous {
    fn pre_score(
        &self,
        _: SerialCx<'_>,
        _: &PodInfo,
        _: &[NodeInfo<'_>],
    ) -> Result<PreScored, Failure> {
        tremble(POD);
        Ok(PreScored::Ready)
    }
}

impl Score for Nervous {
    fn score(&self, _: Cx<'_>, _: &PodInfo, _: NodeInfo<'_>) -> Result<i64, Failure> {
        tremble(NODE);
        Ok(0)
    }

    fn normalize(&self, _: Cx<'_>, _: &PodInfo, _: &mut [NodeScore]) -> Result<(), Failure> {
        tremble(POD);
        Ok(())
    }
}

impl Reserve for Nervous {
    fn reserve(
        &self,
        cx: SerialCx<'_>,
        _: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        if let Some(n) = cx.states.get_mut(self.reserved) {
            *n += 1;
        }
        tremble(POD);
        Ok(())
    }

    fn unreserve(&self, cx: SerialCx<'_>, _: &Arc<PodInfo>, _: &str) {
        tremble(POD);
        if let Some(n) = cx.states.get_mut(self.reserved) {
            *n = n.saturating_sub(1);
        }
    }
}

impl Permit for Nervous {
    fn permit(
        &self,
        _: SerialCx<'_>,
        _: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<Permitted, Rejection> {
        tremble(POD);
        Ok(Permitted::Allow)
    }
}

impl PreBind for Nervous {
    fn pre_flight(&self, _: Cx<'_>, _: &PodInfo, _: &str) -> Result<PreFlight, Rejection> {
        tremble(POD);
        Ok(PreFlight::Work { parallel: true })
    }

    fn pre_bind(&self, _: SerialCx<'_>, _: &Arc<PodInfo>, _: &str, _: Input<'_>) -> Step<()> {
        tremble(POD);
        Step::Done(())
    }
}

impl PostBind for Nervous {
    fn post_bind(&self, _: SerialCx<'_>, _: &Arc<PodInfo>, _: &str) {
        tremble(POD);
    }
}

impl Prepare for Nervous {
    /// Some pods are asked about in parts, others node by node.
    fn prepare(&self, _: &mut World, pod: &PodInfo) -> Prepared {
        tremble(POD);
        match pod.template.id.0 % 2 {
            0 => Prepared::Run(Box::new(NervousRun)),
            _ => Prepared::OneByOne,
        }
    }
}

struct NervousRun;

impl Run for NervousRun {
    fn reads(&self) -> Reads {
        let pods = Some(RowPart::Pods);
        Reads { filter: pods, score: pods, class: pods, node_set: false }
    }

    fn filter_row(&self, _: &NodeTable, _: Row) -> bool {
        tremble(NODE);
        true
    }

    fn score_row(&self, _: &NodeTable, _: Row) -> i64 {
        tremble(NODE);
        0
    }

    fn n_words(&self) -> usize {
        1
    }

    fn class_row(&self, _: &World, _: Row, out: &mut Words) {
        tremble(NODE);
        out.push(0);
    }

    fn release(&mut self, _: &mut World) {
        tremble(POD);
    }
}
