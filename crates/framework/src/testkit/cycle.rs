//! The part of a scheduling and binding cycle after a node was selected, step by step, with one cycle state.

use std::sync::Arc;

use loadmaster_api::Str;
use serde_json::Value;

use crate::api_calls::{PluginStep, PluginStepInput};
use crate::extension_points::{BindResult, Cx, SerialCx};
use crate::node_table::NodeRow;
use crate::pod_info::PodInfo;
use crate::registry::ExtensionPoints;
use crate::result::{PermitResult, PreFilterResult, Rejection};
use crate::state::CycleState;

use super::{BenchResult, PluginTestBench, PluginTestBenchError, status_text};

/// A pod in its scheduling and binding cycle. The cycle state is kept from call to call.
pub struct TestCycle {
    /// The pod, assumed on the selected node.
    pub pod: Arc<PodInfo>,
    /// The cycle state.
    pub state: CycleState,
}

impl PluginTestBench {
    /// Starts a cycle of a pod: runs PreFilter, and Filter on this node, selects the node, and assumes the pod on it.
    ///
    /// # Errors
    ///
    /// When the pod is invalid, there is no such node, or the plugin rejects it.
    pub fn start_cycle(&mut self, pod: impl Into<Value>, node: &str) -> BenchResult<TestCycle> {
        let pod = self.parse_pod(pod)?;
        let row = self.world.nodes().row(node);
        let row = row.ok_or_else(|| PluginTestBenchError(format!("there is no node {node:?}")))?;
        let mut state = CycleState::default();
        self.filter_selected_node(&mut state, &pod, row).map_err(|rejection| {
            PluginTestBenchError(format!("node {node:?}: {}", status_text(Err(rejection))))
        })?;
        state.select_node(row);
        let pod = Arc::new(PodInfo { node_name: Str::new(node), ..pod });
        self.world.add_pod(row, pod.clone());
        Ok(TestCycle { pod, state })
    }

    fn filter_selected_node(
        &mut self,
        state: &mut CycleState,
        pod: &PodInfo,
        row: NodeRow,
    ) -> Result<(), Rejection> {
        let mut is_skipped = false;
        if let Some(point) = &self.points.pre_filter {
            let cx = SerialCx { world: &self.world, cycle: state, states: &mut self.states };
            is_skipped = point.pre_filter(cx, pod)? == PreFilterResult::Skip;
        }
        let (Some(point), Some(node)) = (&self.points.filter, self.world.node(row)) else {
            return Ok(());
        };
        if is_skipped {
            return Ok(());
        }
        point.filter(Cx { world: &self.world, cycle: state, states: &self.states }, pod, node)
    }

    /// The result of Reserve: `Success`, or code and reasons.
    pub fn reserve(&mut self, cycle: &mut TestCycle) -> String {
        self.at(cycle, |points, cx, pod| {
            let (world, node) = (cx.world, &pod.node_name);
            let node = world.nodes().row(node).and_then(|row| world.node(row));
            match (&points.reserve, node) {
                (Some(point), Some(node)) => status_text(point.reserve(cx, pod, node)),
                (None, _) => "Success".into(),
                (_, None) => "the node was deleted".into(),
            }
        })
    }

    /// Calls Unreserve and forgets the pod, as after a failure.
    pub fn unreserve(&mut self, mut cycle: TestCycle) {
        self.at(&mut cycle, |points, cx, pod| {
            if let Some(point) = &points.reserve {
                point.unreserve(cx, pod, &pod.node_name);
            }
        });
        self.world.remove_pod(&cycle.pod.uid);
    }

    /// The result of Permit: `Allow`, `Wait 30s`, or code and reasons.
    pub fn permit(&mut self, cycle: &mut TestCycle) -> String {
        self.at(cycle, |points, cx, pod| {
            let (world, node) = (cx.world, &pod.node_name);
            let node = world.nodes().row(node).and_then(|row| world.node(row));
            match (&points.permit, node) {
                (Some(point), Some(node)) => match point.permit(cx, pod, node) {
                    Ok(PermitResult::Allow) => "Allow".into(),
                    Ok(PermitResult::Wait(time)) => format!("Wait {time:?}"),
                    Err(rejection) => status_text(Err(rejection)),
                },
                (None, _) => "Allow".into(),
                (_, None) => "the node was deleted".into(),
            }
        })
    }

    /// The next step of PreBind.
    pub fn pre_bind(
        &mut self,
        cycle: &mut TestCycle,
        input: PluginStepInput<'_>,
    ) -> PluginStep<()> {
        self.at(cycle, |points, cx, pod| match &points.pre_bind {
            Some(point) => point.pre_bind(cx, pod, &pod.node_name, input),
            None => PluginStep::Done(()),
        })
    }

    /// The next step of Bind.
    pub fn bind(
        &mut self,
        cycle: &mut TestCycle,
        input: PluginStepInput<'_>,
    ) -> PluginStep<BindResult> {
        self.at(cycle, |points, cx, pod| match &points.bind {
            Some(point) => point.bind(cx, pod, &pod.node_name, input),
            None => PluginStep::Done(BindResult::Skip),
        })
    }

    fn at<R>(
        &mut self,
        cycle: &mut TestCycle,
        call: impl FnOnce(&ExtensionPoints, SerialCx<'_>, &Arc<PodInfo>) -> R,
    ) -> R {
        let TestCycle { pod, state } = cycle;
        let cx = SerialCx { world: &self.world, cycle: state, states: &mut self.states };
        let result = call(&self.points, cx, pod);
        self.apply_invalidations();
        result
    }
}
