//! Names of nodes by row, and the list of the feasible nodes of a pod.

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_extender::NodeNames;
use loadmaster_framework::{NodeRow, World};

/// The feasible nodes of a pod.
#[derive(Debug)]
pub struct FeasibleNodes {
    /// Ascending.
    pub rows: Vec<NodeRow>,
    /// Their names, in the same order.
    pub names: Arc<NodeNames>,
}

/// Names of nodes by row, and the last list of feasible nodes, which many pods have in common.
#[derive(Default)]
pub(crate) struct RowNames {
    /// Node names, by row.
    names: Vec<Str>,
    last: Option<Arc<FeasibleNodes>>,
}

impl RowNames {
    pub fn of(&mut self, world: &World, rows: Vec<NodeRow>) -> Arc<FeasibleNodes> {
        if self.names.len() < world.nodes().n_rows() {
            self.names.resize(world.nodes().n_rows(), Str::default());
        }
        let mut is_renamed = false;
        for row in &rows {
            let name = world.node(*row).map_or("", |node| node.name());
            // The row may have belonged to another node before.
            if self.names[row.index()].as_str() != name {
                self.names[row.index()] = Str::new(name);
                is_renamed = true;
            }
        }
        if let Some(last) = self.last.as_ref().filter(|last| !is_renamed && last.rows == rows) {
            return last.clone();
        }
        let names = rows.iter().map(|row| self.names[row.index()].clone()).collect();
        let nodes = Arc::new(FeasibleNodes { rows, names: Arc::new(names) });
        self.last = Some(nodes.clone());
        nodes
    }
}
