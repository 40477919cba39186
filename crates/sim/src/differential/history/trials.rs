//! Some pods are scheduled in a trial of the world, which is undone: later decisions must not be affected.

use std::sync::Arc;

use loadmaster_engine::Decision;
use loadmaster_engine::evaluate::per_node;
use loadmaster_framework::NodeRow;
use loadmaster_framework::world::Trial;

use super::{Compared, History};

impl History {
    /// Compares the totals in the trial with per-node evaluation of the same world.
    pub(super) fn schedule_pods_in_a_trial(&mut self) -> Compared {
        let mut pods = Vec::new();
        for _ in 0..self.rng.range(1, 4) {
            let Some(pod) = self.new_pod() else { continue };
            let parsed = self.cluster.world.parse_pod(&pod).ok();
            pods.extend(parsed.map(|info| (pod, Arc::new(info))));
        }
        let evicted = self.any_assigned().map(|at| self.cluster.assigned[at].metadata.uid.clone());
        let start = self.scheduler.next_start_node_index();
        let mut different = None;
        let mut trial = Trial::new(&mut self.cluster.world);
        if let Some(uid) = evicted {
            trial.evict(&uid);
        }
        for (pod, info) in pods {
            if info.resized.is_none() && !trial.nominates_any_pod() {
                let fast = self.scheduler.feasible_total_scores(trial.world_mut(), &info);
                let states = &mut self.profile.states.clone();
                let world = trial.world_mut();
                let slow = per_node::evaluate_per_node(&self.profile, world, states, &info);
                let slow = per_node::feasible_total_scores(&slow);
                self.report.compared_nodes += trial.nodes().len() as u64;
                // A single feasible node is selected without scoring, so that it may have any total.
                let rows = |totals: &[(NodeRow, i64)]| {
                    totals.iter().map(|(row, _)| *row).collect::<Vec<_>>()
                };
                if rows(&fast) != rows(&slow) || slow.len() > 1 && fast != slow {
                    different = Some((pod, fast, slow));
                    break;
                }
            }
            let decision = self.scheduler.schedule_pod(trial.world_mut(), &info);
            if let Decision::Selected { row, .. } = decision {
                trial.assume(row, info);
            }
        }
        trial.undo();
        self.scheduler.set_next_start_node_index(start);
        match different {
            None => Ok(()),
            Some((pod, fast, slow)) => {
                Err(self.difference(&pod, "totals in a trial", &fast, &slow))
            }
        }
    }
}
