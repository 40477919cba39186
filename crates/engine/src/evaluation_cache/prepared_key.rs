//! The result of preparing one key of one plugin.

use loadmaster_framework::EvaluatorCx;
use loadmaster_framework::incremental::EvaluatorKey;
use loadmaster_framework::topology_counter::TopologyCounterId;

use crate::evaluate::incremental::Prepared;
use crate::guard::{self, ExtensionPoint};

/// What a plugin prepared for one key.
pub(super) struct PreparedKey {
    pub plugin: usize,
    pub key: EvaluatorKey,
    pub result: Prepared,
    pub counters: Vec<TopologyCounterId>,
    /// Sequence number of the world's next change at that time.
    pub prepared_at: u64,
    /// Number of cached combinations with this key.
    pub users: u32,
}

impl PreparedKey {
    /// Whether the evaluator may still be used.
    pub fn is_valid(&self, cx: EvaluatorCx<'_>) -> bool {
        if self.prepared_at < cx.world.evaluators_valid_since() {
            return false;
        }
        let Prepared::Evaluator(evaluator) = &self.result else { return true };
        guard::set_current_plugin(self.plugin, ExtensionPoint::Prepare);
        !evaluator.is_stale(cx)
    }
}
