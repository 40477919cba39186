//! PostFilter on the bench, where only CPU is scarce.

use std::sync::Arc;

use loadmaster_stdx::Rng;
use serde_json::Value;

use crate::node::NodeInfo;
use crate::pod::PodInfo;
use crate::points::{Cx, Feasibility, SerialCx, Unfit};
use crate::request::{Input, Step};
use crate::resources::CPU;
use crate::result::{Code, Failure, Rejection};
use crate::state::CycleState;
use crate::table::Row;
use crate::world::World;

use super::{Answer, Bench};

/// A pod fits where its CPU does; a node that would be too small for it alone is beyond help.
pub struct CpuOnly;

impl Feasibility for CpuOnly {
    fn fits(&self, _cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let wanted = pod.requests().resources.cpu_milli;
        if wanted > node.allocatable(CPU) {
            Err(Rejection::unresolvable("Insufficient cpu"))
        } else if wanted > node.allocatable(CPU) - node.requested(CPU) {
            Err(Rejection::unschedulable("Insufficient cpu"))
        } else {
            Ok(())
        }
    }

    fn add_pod(
        &self,
        _cycle: &mut CycleState,
        _world: &World,
        _pod: &PodInfo,
        _other: &Arc<PodInfo>,
        _node: NodeInfo<'_>,
    ) -> Result<(), Failure> {
        Ok(())
    }

    fn remove_pod(
        &self,
        _cycle: &mut CycleState,
        _world: &World,
        _pod: &PodInfo,
        _other: &Arc<PodInfo>,
        _node: NodeInfo<'_>,
    ) -> Result<(), Failure> {
        Ok(())
    }
}

impl CpuOnly {
    /// What it says of every node, by row.
    pub fn verdicts(&self, cx: Cx<'_>, pod: &PodInfo) -> Vec<(Row, Code)> {
        let code = |node: NodeInfo<'_>| match self.fits(cx, pod, node) {
            Ok(()) => Code::Success,
            Err(rejection) => rejection.code(),
        };
        cx.world.node_infos().map(|node| (node.row(), code(node))).collect()
    }
}

impl Bench {
    /// What PostFilter does when it is called first, as `nominates a; evicts p1 p2; takes the nomination of n1; <code> <reasons>`.
    pub fn post_filter(&mut self, pod: Value, seed: u64) -> Answer<String> {
        let pod = Arc::new(self.pod(pod)?);
        let Some(point) = self.points.post_filter.clone() else { return Ok("Success".into()) };
        let mut cycle = CycleState::default();
        let verdicts =
            CpuOnly.verdicts(Cx { world: &self.world, cycle: &cycle, states: &self.states }, &pod);
        let unfit = Unfit { verdicts: &verdicts, feasibility: &CpuOnly, extenders: false };
        let cx = SerialCx { world: &self.world, cycle: &mut cycle, states: &mut self.states };
        let step = point.post_filter(cx, &pod, unfit, &mut Rng::new(seed), Input::Start);
        let done = match step {
            Step::Done(done) => done,
            Step::Fail(rejection) => return Ok(super::verdict(Err(rejection))),
            Step::Call(request) => return Ok(format!("calls {request:?}")),
            Step::Wait { on, .. } => return Ok(format!("waits for {on:?}")),
            Step::AskExtenders(candidates) => {
                return Ok(format!("asks extenders about {} candidates", candidates.len()));
            }
        };
        let mut said = Vec::new();
        match done.nominated_node.as_deref() {
            None => {}
            Some("") => said.push("clears".to_owned()),
            Some(node) => said.push(format!("nominates {node}")),
        }
        let names = |pods: &mut dyn Iterator<Item = &Arc<PodInfo>>| {
            pods.map(|pod| &*pod.name).collect::<Vec<_>>().join(" ")
        };
        for (what, names) in [
            ("evicts", names(&mut done.to_evict())),
            ("takes the nomination of", names(&mut done.denominated.iter())),
        ] {
            if !names.is_empty() {
                said.push(format!("{what} {names}"));
            }
        }
        said.extend(done.rejection.map(|rejection| super::verdict(Err(rejection))));
        Ok(said.join("; "))
    }
}
