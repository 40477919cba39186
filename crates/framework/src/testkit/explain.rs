//! The details that a plugin adds to an explanation.

use serde_json::Value;

use crate::extension_points::{Cx, Detail};
use crate::result::PreFilterResult;
use crate::state::CycleState;

use super::{BenchResult, PluginTestBench};

impl PluginTestBench {
    /// The plugin's details about a pod and about each node, after PreFilter and Filter: `pod: wanted=1`, `a: free=3, taken=4`.
    pub fn explain(&mut self, pod: impl Into<Value>) -> BenchResult<Vec<String>> {
        let pod = self.parse_pod(pod)?;
        let Some(point) = self.points.explain.clone() else { return Ok(Vec::new()) };
        let mut cycle = CycleState::default();
        let pre_filter = self.run_pre_filter(&mut cycle, &pod);
        let cx = Cx { world: &self.world, cycle: &cycle, states: &self.states };
        if let (Ok(PreFilterResult::All | PreFilterResult::Nodes(_)), Some(filter)) =
            (&pre_filter, &self.points.filter)
        {
            for node in self.world.node_infos() {
                // What matters is what Filter stores in the cycle state.
                let _ = filter.filter(cx, &pod, node);
            }
        }
        let line = |about: &str, details: Vec<Detail>| {
            let details = details.iter().map(|it| format!("{}={}", it.name, it.value));
            let details: Vec<String> = details.collect();
            (!details.is_empty()).then(|| format!("{about}: {}", details.join(", ")))
        };
        let nodes: Vec<_> = self.world.node_infos().collect();
        let details = point.details_of_nodes(cx, &pod, &nodes);
        let lines = nodes.iter().zip(details).map(|(node, details)| line(node.name(), details));
        Ok([line("pod", point.pod_details(cx, &pod))].into_iter().chain(lines).flatten().collect())
    }
}
