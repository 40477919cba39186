//! PostFilter on the bench, with a Filter that considers only CPU.

use std::sync::Arc;

use loadmaster_stdx::Rng;
use serde_json::Value;

use crate::api_calls::{PluginStep, PluginStepInput};
use crate::extension_points::{DryRunCx, FilterRunner, FitError, PostFilterCx, SerialCx};
use crate::node_info::NodeInfo;
use crate::node_table::NodeRow;
use crate::pod_info::PodInfo;
use crate::preemption::nodes_where_preemption_might_help;
use crate::resources::RESOURCE_CPU;
use crate::result::{Code, Failure, Rejection};
use crate::state::CycleState;
use crate::time::MonoTime;
use crate::world::World;

use super::{BenchResult, PluginTestBench};

/// A Filter that considers only CPU; a node with too little allocatable CPU is `UnschedulableAndUnresolvable`.
pub struct CpuOnlyFilter;

impl FilterRunner for CpuOnlyFilter {
    fn run_filters_with_nominated_pods(
        &self,
        cx: DryRunCx<'_>,
        pod: &PodInfo,
        row: NodeRow,
    ) -> Result<(), Rejection> {
        let node = cx.world().node(row);
        let node = node.ok_or_else(|| Rejection::unresolvable("there is no such node"))?;
        let wanted = pod.requests().resources.cpu_milli;
        if wanted > node.allocatable(RESOURCE_CPU) {
            Err(Rejection::unresolvable("Insufficient cpu"))
        } else if wanted > node.allocatable(RESOURCE_CPU) - node.requested(RESOURCE_CPU) {
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

impl CpuOnlyFilter {
    /// The status code of every node, by row.
    pub fn node_codes(&self, mut cx: DryRunCx<'_>, pod: &PodInfo) -> Vec<(NodeRow, Code)> {
        let rows: Vec<NodeRow> = cx.world().nodes().rows().collect();
        let code = |row| match self.run_filters_with_nominated_pods(cx.reborrow(), pod, row) {
            Ok(()) => (row, Code::Success),
            Err(rejection) => (row, rejection.code()),
        };
        rows.into_iter().map(code).collect()
    }
}

impl PluginTestBench {
    /// The result of the first call of PostFilter, after PreFilter, as `nominates a; evicts p1 p2; clears the nomination of n1; <code> <reasons>`.
    pub fn post_filter(&mut self, pod: Value, seed: u64) -> BenchResult<String> {
        let pod = Arc::new(self.parse_pod(pod)?);
        let Some(point) = self.points.post_filter.clone() else { return Ok("Success".into()) };
        let mut cycle = CycleState::default();
        if let Some(pre_filter) = &self.points.pre_filter {
            let (world, states) = (&self.world, &mut self.states);
            // A rejection by PreFilter is one of the reasons for PostFilter.
            let _ = pre_filter.pre_filter(SerialCx { world, cycle: &mut cycle, states }, &pod);
        }
        let cx = DryRunCx::new(&mut self.world, &cycle, &self.states);
        let node_codes = CpuOnlyFilter.node_codes(cx, &pod);
        let fit_error = FitError {
            node_codes: &node_codes,
            rows_where_preemption_might_help: &nodes_where_preemption_might_help(&node_codes),
            filter_runner: &CpuOnlyFilter,
            has_preempting_extenders: false,
        };
        let cx = PostFilterCx::new(&mut self.world, &mut cycle, &mut self.states);
        let step =
            point.post_filter(cx, &pod, fit_error, &mut Rng::new(seed), PluginStepInput::Start);
        self.apply_invalidations();
        let done = match step {
            PluginStep::Done(done) => done,
            PluginStep::Fail(rejection) => return Ok(super::status_text(Err(rejection))),
            PluginStep::Call(request) => return Ok(format!("calls {request:?}")),
            PluginStep::Wait { on, until } => {
                return Ok(format!(
                    "waits for {on:?} until {:?}",
                    until.since(MonoTime::default())
                ));
            }
            PluginStep::CallExtenders(candidates) => {
                return Ok(format!("calls extenders with {} candidates", candidates.len()));
            }
        };
        let mut lines = Vec::new();
        match done.nominated_node.as_deref() {
            None => {}
            Some("") => lines.push("clears".to_owned()),
            Some(node) => lines.push(format!("nominates {node}")),
        }
        let names = |pods: &mut dyn Iterator<Item = &Arc<PodInfo>>| {
            pods.map(|pod| &*pod.name).collect::<Vec<_>>().join(" ")
        };
        for (action, names) in [
            ("evicts", names(&mut done.victims_to_evict())),
            ("clears the nomination of", names(&mut done.cleared_nominations.iter())),
        ] {
            if !names.is_empty() {
                lines.push(format!("{action} {names}"));
            }
        }
        lines.extend(done.rejection.map(|rejection| super::status_text(Err(rejection))));
        Ok(lines.join("; "))
    }
}
