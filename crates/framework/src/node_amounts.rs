//! The amounts of a node that nearly all pods are filtered and scored by.

use std::ops::{Index, IndexMut};

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
#[derive(Clone, Debug, Default)]
pub struct AllAmounts {
    rows: Vec<NodeAmounts>,
    columns: [Vec<i64>; NodeAmount::COUNT],
}

impl AllAmounts {
    /// The amounts of each node, by row.
    #[inline]
    pub fn rows(&self) -> &[NodeAmounts] {
        &self.rows
    }

    /// One amount of every node, by row.
    #[inline]
    pub fn column(&self, amount: NodeAmount) -> &[i64] {
        &self.columns[amount as usize]
    }

    /// Adds a row.
    pub(crate) fn push(&mut self) {
        self.rows.push(NodeAmounts::default());
        self.columns.iter_mut().for_each(|column| column.push(0));
    }

    /// Sets an amount of the node in a row.
    pub(crate) fn set(&mut self, at: usize, amount: NodeAmount, value: i64) {
        self.rows[at][amount] = value;
        self.columns[amount as usize][at] = value;
    }

    /// Adds to an amount of the node in a row. Wraps on overflow as upstream, so that every addition can be reverted.
    #[inline]
    pub(crate) fn add(&mut self, at: usize, amount: NodeAmount, more: i64) {
        self.set(at, amount, self.rows[at][amount].wrapping_add(more));
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
        let mut rng = Rng::new(3);
        let (mut amounts, mut twin) = (AllAmounts::default(), Vec::new());
        for _ in 0..5_000 {
            if twin.len() < 20 && rng.below(50) == 0 || twin.is_empty() {
                amounts.push();
                twin.push([0i64; NodeAmount::COUNT]);
            }
            let at = rng.below(twin.len() as u64) as usize;
            let which = rng.below(NodeAmount::COUNT as u64) as usize;
            // Sums that overflow are among them.
            let value = rng.below(u64::MAX) as i64;
            if rng.below(2) == 0 {
                amounts.set(at, ALL[which], value);
                twin[at][which] = value;
            } else {
                amounts.add(at, ALL[which], value);
                twin[at][which] = twin[at][which].wrapping_add(value);
            }
        }
        for (at, want) in twin.iter().enumerate() {
            assert_eq!(ALL.map(|amount| amounts.rows()[at][amount]), *want, "row {at}");
            assert_eq!(ALL.map(|amount| amounts.column(amount)[at]), *want, "columns, row {at}");
        }
    }
}
