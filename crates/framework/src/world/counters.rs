//! The topology counters of a world, and what its assigned pods add to them.

use std::collections::BTreeSet;
use std::hash::Hash;
use std::sync::Arc;

use loadmaster_api::Str;

use super::World;
use super::contributions::{ContributionClassId, Contributions, Sums};
use crate::label_columns::LabelKeyId;
use crate::node_table::NodeRow;
use crate::pod_info::PodInfo;
use crate::template::PodTemplate;
use crate::topology_counter::{TopologyCounterId, TopologyCounterSpec};

impl World {
    /// The counter for this spec, created and filled if it does not exist. Release it with [`World::release_topology_counter`].
    pub fn acquire_topology_counter<C: TopologyCounterSpec + Hash + Eq>(
        &mut self,
        spec: C,
    ) -> TopologyCounterId {
        if let Some(id) = self.counters.reuse(&spec) {
            return id;
        }
        let label_keys = spec.label_keys();
        if !self.contributions.reads_labels(&label_keys) {
            self.split_contributions(label_keys);
        }
        let keys: Vec<LabelKeyId> =
            spec.topology_keys().iter().map(|key| self.nodes.ensure_label_column(key)).collect();
        let id = self.counters.create(spec, &self.nodes);
        for key in keys {
            self.counters.ensure_domains(id, key, &self.nodes);
        }
        let (contributions, mut sums) = self.contributions_and_sums();
        contributions.fill_counter(id, &mut sums);
        let dropped = self.counters.drop_idle();
        if !dropped.is_empty() {
            self.contributions.forget_counters(&dropped);
        }
        id
    }

    /// The rows of all pods that one of these counters counts, in no order, and perhaps others; rows may repeat.
    pub fn rows_counted_by(
        &self,
        counters: &[TopologyCounterId],
    ) -> impl Iterator<Item = NodeRow> + '_ {
        self.contributions.rows_counted_by(counters)
    }

    /// Releases a counter; it stays for a while in case it is acquired again.
    pub fn release_topology_counter(&mut self, id: TopologyCounterId) {
        self.counters.release(id);
    }

    pub(super) fn count_pods_of(&mut self, row: NodeRow, sign: i64) {
        let class = |pod: &Arc<PodInfo>| {
            self.templates.class(pod.template.id).map(|class| (class, pod.terminating))
        };
        let pods: Vec<_> = self.nodes.pods(row).iter().filter_map(class).collect();
        let (contributions, mut sums) = self.contributions_and_sums();
        for (class, terminating) in pods {
            contributions.move_pod(class, row, terminating, sign, &mut sums);
        }
    }

    pub(super) fn class_of(&mut self, template: &PodTemplate) -> ContributionClassId {
        if let Some(class) = self.templates.class(template.id) {
            return class;
        }
        let (contributions, mut sums) = self.contributions_and_sums();
        let class = contributions.add_template(template, &mut sums);
        self.templates.set_class(template.id, class);
        class
    }

    /// Counters are about to read more labels: splits contribution classes whose pods differ in these.
    fn split_contributions(&mut self, more: Vec<Str>) {
        let specs = self.counters.ids().into_iter().map(|id| self.counters.spec(id));
        let label_keys: BTreeSet<Str> =
            specs.flat_map(|spec| spec.label_keys()).chain(more).collect();
        self.contributions.reset(label_keys);
        for template in self.templates.clear_classes() {
            self.class_of(&template);
        }
        for row in self.nodes.rows() {
            for pod in self.nodes.pods(row) {
                if let Some(class) = self.templates.class(pod.template.id) {
                    self.contributions.restore_pod(class, row, pod.terminating);
                }
            }
        }
    }

    pub(super) fn contributions_and_sums(&mut self) -> (&mut Contributions, Sums<'_>) {
        let next_seq = self.next_change_seq();
        let (counters, nodes) = (&mut self.counters, &mut self.nodes);
        (&mut self.contributions, Sums { counters, nodes, cluster: &self.cluster, next_seq })
    }
}
