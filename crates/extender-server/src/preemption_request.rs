//! The request of preempt.

use std::collections::BTreeMap;

use loadmaster_extender::messages::{
    ExtenderPreemptionArgs, ExtenderPreemptionResult, MetaPod, MetaVictims,
};

use crate::{Error, Object};

/// The request of preempt: an unschedulable pod and the candidate nodes with their victims.
#[derive(Clone, Debug)]
pub struct PreemptionRequest {
    /// The preemptor.
    pub pod: Object,
    /// The candidates by node name.
    pub candidates: BTreeMap<String, CandidateNodeVictims>,
}

/// The victims on a candidate node.
#[derive(Clone, Debug)]
pub struct CandidateNodeVictims {
    /// The uids of the victims.
    pub victims: Vec<String>,
    /// The victims as objects, unless the extender is `nodeCacheCapable`.
    pub pods: Option<Vec<Object>>,
    /// How many of these evictions violate a PodDisruptionBudget.
    pub num_pdb_violations: i64,
}

impl PreemptionRequest {
    /// Keeps the candidates for which `keep` returns true. `keep` may change the victims, but the scheduler ignores the whole
    /// response
    /// if a candidate has no victims or one that is not on the node.
    pub fn retain_candidates(
        mut self,
        mut keep: impl FnMut(&Object, &str, &mut CandidateNodeVictims) -> bool,
    ) -> ExtenderPreemptionResult {
        let pod = self.pod;
        self.candidates.retain(|node, candidate| keep(&pod, node, candidate));
        let meta = |candidate: CandidateNodeVictims| MetaVictims {
            pods: candidate.victims.into_iter().map(|uid| MetaPod { uid }).collect(),
            num_pdb_violations: candidate.num_pdb_violations,
        };
        let remaining = self.candidates.into_iter().map(|(node, it)| (node, meta(it)));
        ExtenderPreemptionResult { node_name_to_meta_victims: remaining.collect() }
    }
}

impl TryFrom<ExtenderPreemptionArgs<Object>> for PreemptionRequest {
    type Error = Error;

    fn try_from(args: ExtenderPreemptionArgs<Object>) -> Result<PreemptionRequest, Error> {
        let pod = args.pod.ok_or_else(|| Error::new("arg or pod is nil"))?;
        let named = args.node_name_to_meta_victims.into_iter().map(|(node, victims)| {
            let uids = victims.pods.into_iter().map(|pod| pod.uid).collect();
            let n = victims.num_pdb_violations;
            (node, CandidateNodeVictims { victims: uids, pods: None, num_pdb_violations: n })
        });
        let mut candidates: BTreeMap<_, _> = named.collect();
        candidates.extend(args.node_name_to_victims.into_iter().map(|(node, victims)| {
            let uids = victims.pods.iter().map(|pod| pod.uid().to_owned()).collect();
            let n = victims.num_pdb_violations;
            (
                node,
                CandidateNodeVictims {
                    victims: uids,
                    pods: Some(victims.pods),
                    num_pdb_violations: n,
                },
            )
        }));
        Ok(PreemptionRequest { pod, candidates })
    }
}
