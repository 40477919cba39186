//! The amounts of a node that nearly all pods are filtered and scored by.

use std::fmt;
use std::ops::{Index, IndexMut};
use std::sync::OnceLock;

/// An amount that every node has. Units: milli-CPU, bytes, pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeAmount {
    /// Allocatable milli-CPU.
    AllocatableCpu,
    /// Allocatable bytes of memory.
    AllocatableMemory,
    /// Allocatable number of pods.
    AllocatablePods,
    /// Milli-CPU that its pods request.
    RequestedCpu,
    /// Bytes of memory that its pods request.
    RequestedMemory,
    /// Requested milli-CPU with a default for containers without a request (upstream's `NonZeroRequested`); used by scores.
    NonzeroCpu,
    /// The same for memory, in bytes.
    NonzeroMemory,
    /// Number of its pods.
    Pods,
}

impl NodeAmount {
    pub(crate) const COUNT: usize = 8;
}

/// The amounts of one node: a cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub struct NodeAmounts([i64; NodeAmount::COUNT]);

impl Index<NodeAmount> for NodeAmounts {
    type Output = i64;

    #[inline]
    fn index(&self, amount: NodeAmount) -> &i64 {
        &self.0[amount as usize]
    }
}

impl IndexMut<NodeAmount> for NodeAmounts {
    #[inline]
    fn index_mut(&mut self, amount: NodeAmount) -> &mut i64 {
        &mut self.0[amount as usize]
    }
}

/// The amounts of all nodes, twice: those of a node side by side, for decisions that read all of them of the few nodes whose pods changed,
/// and which are in no cache of the processor; and columns, for scans of all nodes with SIMD.
///
/// A pod that is added changes one line of the former and five of the latter, so columns are written only before they are read.
#[derive(Clone, Default)]
pub struct AllAmounts {
    rows: Vec<NodeAmounts>,
    columns: Columns,
    /// The rows whose sums changed since they were written to `columns`; one may be listed more than once. All, if as many are listed as
    /// there are.
    changed: Vec<u32>,
    /// `columns` with these changes, if one was read.
    current: OnceLock<Columns>,
}

/// The rows: when columns were written changes nothing that can be read.
impl fmt::Debug for AllAmounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows.fmt(f)
    }
}

type Columns = [Vec<i64>; NodeAmount::COUNT];

/// What is summed over the pods of a node.
const SUMS: [NodeAmount; 5] = [
    NodeAmount::RequestedCpu,
    NodeAmount::RequestedMemory,
    NodeAmount::NonzeroCpu,
    NodeAmount::NonzeroMemory,
    NodeAmount::Pods,
];

impl AllAmounts {
    /// The amounts of each node, by row.
    #[inline]
    pub fn rows(&self) -> &[NodeAmounts] {
        &self.rows
    }

    /// One amount of every node, by row. If pods were added or removed since [`World::update_columns`](crate::World::update_columns), all
    /// columns are copied first.
    pub fn column(&self, amount: NodeAmount) -> &[i64] {
        let columns = match self.changed.is_empty() {
            true => &self.columns,
            false => self.current.get_or_init(|| {
                let mut columns = self.columns.clone();
                write_changed(&mut columns, &self.changed, &self.rows);
                columns
            }),
        };
        &columns[amount as usize]
    }

    /// Writes what changed since the last time to the columns. To be called before a scan of all nodes.
    #[inline(never)]
    pub(crate) fn update_columns(&mut self) {
        if self.changed.is_empty() {
            return;
        }
        match self.current.take() {
            Some(current) => self.columns = current,
            None => write_changed(&mut self.columns, &self.changed, &self.rows),
        }
        self.changed.clear();
    }

    /// Adds a row.
    pub(crate) fn push(&mut self) {
        self.update_columns();
        self.rows.push(NodeAmounts::default());
        self.columns.iter_mut().for_each(|column| column.push(0));
    }

    /// Sets an amount of the node in a row.
    pub(crate) fn set(&mut self, at: usize, amount: NodeAmount, value: i64) {
        self.update_columns();
        self.rows[at][amount] = value;
        self.columns[amount as usize][at] = value;
    }

    /// Adds to [`SUMS`] of the node in a row. Wraps on overflow as upstream, so that every addition can be reverted.
    #[inline]
    pub(crate) fn add(&mut self, at: usize, more: [(NodeAmount, i64); SUMS.len()]) {
        if self.current.get().is_some() {
            self.update_columns();
        }
        let row = &mut self.rows[at];
        for (sum, more) in more {
            debug_assert!(SUMS.contains(&sum), "{sum:?} is not written to its column");
            row[sum] = row[sum].wrapping_add(more);
        }
        if self.changed.len() < self.rows.len() {
            self.changed.push(at as u32);
        }
    }
}

/// Writes the sums of the changed rows to their columns.
fn write_changed(columns: &mut Columns, changed: &[u32], rows: &[NodeAmounts]) {
    for sum in SUMS {
        let column = &mut columns[sum as usize];
        if changed.len() == rows.len() {
            column.iter_mut().zip(rows).for_each(|(to, row)| *to = row[sum]);
            continue;
        }
        for at in changed {
            column[*at as usize] = rows[*at as usize][sum];
        }
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_stdx::Rng;

    use super::*;

    const ALL: [NodeAmount; NodeAmount::COUNT] = [
        NodeAmount::AllocatableCpu,
        NodeAmount::AllocatableMemory,
        NodeAmount::AllocatablePods,
        NodeAmount::RequestedCpu,
        NodeAmount::RequestedMemory,
        NodeAmount::NonzeroCpu,
        NodeAmount::NonzeroMemory,
        NodeAmount::Pods,
    ];

    #[test]
    fn rows_and_columns_are_equal() {
        for n_rows_max in [1, 3, 20] {
            let mut rng = Rng::new(3);
            let (mut amounts, mut twin) = (AllAmounts::default(), Vec::new());
            for _ in 0..5_000 {
                if twin.len() < n_rows_max && rng.one_in(50) || twin.is_empty() {
                    amounts.push();
                    twin.push([0i64; NodeAmount::COUNT]);
                }
                let at = rng.below(twin.len() as u64) as usize;
                // Sums that overflow are among them.
                let value = |rng: &mut Rng| rng.below(u64::MAX) as i64;
                match rng.below(8) {
                    0 => {
                        let which = rng.below(NodeAmount::COUNT as u64) as usize;
                        twin[at][which] = value(&mut rng);
                        amounts.set(at, ALL[which], twin[at][which]);
                    }
                    1 => amounts.update_columns(),
                    2 => {
                        let which = rng.below(NodeAmount::COUNT as u64) as usize;
                        let column: Vec<i64> = twin.iter().map(|row| row[which]).collect();
                        assert_eq!(amounts.column(ALL[which]), column, "{:?}", ALL[which]);
                    }
                    _ => {
                        let more = SUMS.map(|sum| (sum, value(&mut rng)));
                        amounts.add(at, more);
                        for (sum, more) in more {
                            let sum = &mut twin[at][sum as usize];
                            *sum = sum.wrapping_add(more);
                        }
                    }
                }
                assert_eq!(ALL.map(|amount| amounts.rows()[at][amount]), twin[at], "row {at}");
            }
            assert!(amounts.changed.len() <= n_rows_max);
            for (at, want) in twin.iter().enumerate() {
                assert_eq!(ALL.map(|amount| amounts.rows()[at][amount]), *want, "row {at}");
                let columns = ALL.map(|amount| amounts.column(amount)[at]);
                assert_eq!(columns, *want, "columns, row {at}");
            }
        }
    }
}
