//! Node classes by the values of a few labels, for results that depend on these labels and on nothing else of a node: which volumes
//! are accessible from it, for example, or how much capacity is left in its zone.
//!
//! Such a result is computed once per class and decision, for a node that has these labels only. It may read a plugin's state,
//! whose changes then need not be announced.

use loadmaster_api::{Labels, Str};

use crate::incremental::{ClassKey, PrepareCx};
use crate::label_columns::{LabelColumn, LabelKeyId, LabelValueId};
use crate::node_row::NodeRow;
use crate::node_table::NodeTable;

/// With more labels than this, or more values of one label, nodes are evaluated one by one.
const LABELS_MAX: usize = 4;
const VALUES_MAX: usize = 256;

/// The class keys of nodes by the values of some labels.
#[derive(Clone, Debug)]
pub struct LabelClasses(Box<[LabelKeyId]>);

impl LabelClasses {
    /// Classes by these labels, which get columns. `None` where few nodes would share a class, as with `kubernetes.io/hostname`: a
    /// row-local result is then cheaper.
    pub fn new(cx: &mut PrepareCx<'_>, labels: &[Str]) -> Option<LabelClasses> {
        let few = labels.iter().take(LABELS_MAX);
        let keys: Option<Box<[LabelKeyId]>> = few.map(|label| cx.try_label_column(label)).collect();
        keys.filter(|_| LabelClasses::are_few(cx.world().nodes(), labels)).map(LabelClasses)
    }

    /// Whether [`LabelClasses::new`] returns classes by these labels now. An evaluator for which that changed is
    /// [stale](crate::PluginEvaluator::is_stale).
    pub fn are_few(nodes: &NodeTable, labels: &[Str]) -> bool {
        let columns = nodes.labels();
        let is_shared = |column: &LabelColumn| {
            column.n_values() <= VALUES_MAX && 2 * column.n_values() <= nodes.len()
        };
        let column = |label: &Str| Some(columns.column(columns.id(label)?));
        labels.len() <= LABELS_MAX && labels.iter().all(|it| column(it).is_some_and(is_shared))
    }

    /// Length of a class key. Without labels all nodes are in one class, whose key is not empty either, because a class without a key is
    /// not filtered.
    pub fn key_len(&self) -> usize {
        self.0.len().max(1)
    }

    /// Appends the class key of a row.
    pub fn class_key(&self, nodes: &NodeTable, row: NodeRow, out: &mut ClassKey) {
        let columns = nodes.labels();
        out.extend(self.0.iter().map(|key| i64::from(columns.column(*key).value(row).0)));
        if self.0.is_empty() {
            out.push(0);
        }
    }

    /// The labels of the nodes of a class, of those that make it.
    pub fn labels(&self, nodes: &NodeTable, class_key: &[i64]) -> Labels {
        let columns = self.0.iter().map(|key| nodes.labels().column(*key));
        let pair = |(column, value): (&LabelColumn, &i64)| {
            let value = u32::try_from(*value).map_or(LabelValueId::MISSING, LabelValueId);
            let text = value.is_present().then(|| column.value_text(value));
            text.map(|text| (column.key().clone(), text.clone()))
        };
        columns.zip(class_key).filter_map(pair).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::World;
    use crate::state::PluginStates;

    fn add_node(world: &mut World, name: &str, labels: &serde_json::Value) -> NodeRow {
        let node = json!({"metadata": {"name": name, "labels": labels}});
        world.upsert_node(Arc::new(serde_json::from_value(node).unwrap()))
    }

    fn classes(world: &mut World, labels: &[&str]) -> Option<LabelClasses> {
        let labels: Vec<Str> = labels.iter().map(|label| Str::new(label)).collect();
        let classes =
            LabelClasses::new(&mut PrepareCx::new(world, &PluginStates::default()), &labels);
        assert_eq!(classes.is_some(), LabelClasses::are_few(world.nodes(), &labels));
        classes
    }

    #[test]
    fn nodes_with_equal_values_are_one_class() {
        let mut world = World::default();
        let mut rows = Vec::new();
        for (name, zone, rack) in
            [("a", "x", "1"), ("b", "x", "1"), ("c", "x", "2"), ("d", "y", "1"), ("e", "y", "2")]
        {
            rows.push(add_node(
                &mut world,
                name,
                &json!({"zone": zone, "rack": rack, "host": name}),
            ));
        }
        rows.push(add_node(&mut world, "f", &json!({"rack": "1"})));
        let classes = classes(&mut world, &["rack", "zone"]).unwrap();
        assert_eq!(classes.key_len(), 2);
        let nodes = world.nodes();
        let labels_of = |row: &NodeRow| {
            let mut key = ClassKey::new();
            classes.class_key(nodes, *row, &mut key);
            let labels = classes.labels(nodes, &key);
            let pairs = labels.iter().map(|(key, value)| format!("{key}={value}"));
            pairs.collect::<Vec<_>>().join(" ")
        };
        let all: Vec<String> = rows.iter().map(labels_of).collect();
        let want = [
            "rack=1 zone=x",
            "rack=1 zone=x",
            "rack=2 zone=x",
            "rack=1 zone=y",
            "rack=2 zone=y",
            "rack=1",
        ];
        assert_eq!(all, want);
    }

    #[test]
    fn a_label_of_which_each_node_has_its_own_value_makes_no_classes() {
        let mut world = World::default();
        for name in ["a", "b", "c", "d"] {
            add_node(&mut world, name, &json!({"host": name, "zone": "x"}));
        }
        assert!(classes(&mut world, &["host"]).is_none());
        assert!(classes(&mut world, &["host", "zone"]).is_none());
        assert!(classes(&mut world, &["zone", "of no node"]).is_some());
        assert!(classes(&mut world, &["1", "2", "3", "4", "5"]).is_none());
        let all = classes(&mut world, &[]).unwrap();
        let mut key = ClassKey::new();
        all.class_key(world.nodes(), NodeRow(0), &mut key);
        assert_eq!((key.len(), all.labels(world.nodes(), &key).len()), (all.key_len(), 0));
    }
}
