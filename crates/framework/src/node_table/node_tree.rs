//! Nodes by zone, and the order in which they are searched when only some feasible nodes are needed (upstream's `nodeTree`).

use loadmaster_api::{Labels, Node, Str};

use super::NodeRow;

/// Region and zone of a node. The deprecated labels take precedence, as in upstream's `GetZoneKey`.
type Zone = [Str; 2];

const LABELS: [[&str; 2]; 2] = [
    ["failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"],
    ["failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"],
];

/// Nodes by zone; zones and the nodes in a zone are in the order in which they were added.
#[derive(Clone, Debug, Default)]
pub struct NodeTree {
    zones: Vec<(Zone, Vec<NodeRow>)>,
    version: u64,
}

impl NodeTree {
    /// Changes whenever [`NodeTree::rows`] may.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// All nodes: the first of each zone, then the second of each, and so on.
    pub fn rows(&self) -> Vec<NodeRow> {
        let longest = self.zones.iter().map(|(_, rows)| rows.len()).max().unwrap_or(0);
        let round = |nth: usize| self.zones.iter().filter_map(move |(_, rows)| rows.get(nth));
        (0..longest).flat_map(round).copied().collect()
    }

    pub(super) fn insert(&mut self, row: NodeRow, node: &Node) {
        self.version += 1;
        let zone = zone_of(node);
        match self.zones.iter_mut().find(|(known, _)| *known == zone) {
            Some((_, rows)) => rows.push(row),
            None => self.zones.push((zone, vec![row])),
        }
    }

    /// Moves the node to the end of its new zone, if its zone changed.
    pub(super) fn replace(&mut self, row: NodeRow, old: &Node, new: &Node) {
        if zone_of(old) != zone_of(new) {
            self.remove(row, old);
            self.insert(row, new);
        }
    }

    pub(super) fn remove(&mut self, row: NodeRow, node: &Node) {
        self.version += 1;
        let zone = zone_of(node);
        if let Some((_, rows)) = self.zones.iter_mut().find(|(known, _)| *known == zone) {
            rows.retain(|known| *known != row);
        }
        self.zones.retain(|(_, rows)| !rows.is_empty());
    }
}

fn zone_of(node: &Node) -> Zone {
    let labels = &node.metadata.labels;
    LABELS.map(|names| names.iter().find_map(|name| value(labels, name)).unwrap_or_default())
}

fn value(labels: &Labels, name: &str) -> Option<Str> {
    labels.get(name).cloned()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use crate::node_table::NodeTable;

    use super::*;

    fn node(name: &str, labels: &serde_json::Value) -> Arc<Node> {
        let node = json!({"metadata": {"name": name, "labels": labels}});
        Arc::new(serde_json::from_value(node).unwrap())
    }

    fn zone(zone: &str) -> serde_json::Value {
        json!({"topology.kubernetes.io/zone": zone})
    }

    #[track_caller]
    fn check(table: &NodeTable, want: &[&str]) {
        let rows = table.node_tree().rows();
        let names: Vec<&str> = rows.iter().map(|row| table.node(*row).unwrap().name()).collect();
        assert_eq!(names, want);
    }

    #[test]
    fn nodes_alternate_between_zones() {
        let mut table = NodeTable::default();
        for (name, labels) in [
            ("a1", zone("a")),
            ("a2", zone("a")),
            ("b1", zone("b")),
            ("a3", zone("a")),
            ("none", json!({})),
            ("b2", zone("b")),
        ] {
            table.insert(node(name, &labels));
        }
        check(&table, &["a1", "b1", "none", "a2", "b2", "a3"]);
        let row = |table: &NodeTable, name: &str| table.row(name).unwrap();
        let before = table.node_tree().version();
        // Another label of the same zone changes nothing.
        table.replace(
            row(&table, "a1"),
            node("a1", &json!({"topology.kubernetes.io/zone": "a", "x": "y"})),
        );
        assert_eq!(table.node_tree().version(), before);
        table.replace(row(&table, "a1"), node("a1", &zone("b")));
        check(&table, &["a2", "b1", "none", "a3", "b2", "a1"]);
        table.remove(row(&table, "none"));
        table.remove(row(&table, "a2"));
        table.remove(row(&table, "a3"));
        check(&table, &["b1", "b2", "a1"]);
        // A zone that is added again is the last one.
        table.insert(node("a4", &zone("a")));
        check(&table, &["b1", "a4", "b2", "a1"]);
    }

    #[test]
    fn deprecated_zone_labels_win_and_regions_count() {
        let mut table = NodeTable::default();
        let both = json!({"topology.kubernetes.io/zone": "a", "failure-domain.beta.kubernetes.io/zone": "b"});
        table.insert(node("1", &zone("b")));
        table.insert(node("2", &both));
        table.insert(node(
            "3",
            &json!({"topology.kubernetes.io/zone": "b", "topology.kubernetes.io/region": "r"}),
        ));
        check(&table, &["1", "3", "2"]);
    }
}
