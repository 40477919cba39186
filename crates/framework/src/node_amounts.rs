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

    /// The unit of its column: KiB for memory, which is what nodes report.
    const fn column_unit(self) -> i64 {
        match self {
            NodeAmount::AllocatableMemory
            | NodeAmount::RequestedMemory
            | NodeAmount::NonzeroMemory => 1024,
            _ => 1,
        }
    }

    /// An amount in the unit of its column. `None` if that is not exact, or not in `0..2^30`.
    #[inline]
    pub fn in_column(self, amount: i64) -> Option<i32> {
        let unit = self.column_unit();
        let is_exact = amount % unit == 0 && (0..COLUMN_END).contains(&(amount / unit));
        is_exact.then_some((amount / unit) as i32)
    }

    /// A request in the unit of the column, rounded up and at most `i32::MAX`. Of the free amounts in the column, it is above the same ones.
    #[inline]
    pub fn request_in_column(self, wanted: i64) -> i32 {
        let unit = self.column_unit();
        let rounded_up = wanted / unit + i64::from(wanted % unit > 0);
        rounded_up.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
    }
}

/// Amounts in columns are below this, so that the sum of two is no overflow.
const COLUMN_END: i64 = 1 << 30;

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
/// A pod that is added changes one line of the former and one of each of the latter, so columns are written only before they are read.
#[derive(Clone, Default)]
pub struct AllAmounts {
    rows: Vec<NodeAmounts>,
    columns: AmountColumns,
    /// The rows whose sums changed since they were written to `columns`; one may be listed more than once. All, if as many are listed as
    /// there are.
    changed: Vec<u32>,
    /// `columns` with these changes, if they were read.
    current: OnceLock<AmountColumns>,
}

/// The amounts of all nodes in 32-bit integers, column by column: a scan of a million nodes waits for memory, and a vector has twice as many
/// amounts of 32 bits as of 64. Units: milli-CPU, KiB, pods.
#[derive(Clone, Default)]
pub struct AmountColumns {
    columns: [Vec<i32>; NodeAmount::COUNT],
    exact: Vec<u8>,
}

impl AmountColumns {
    /// One amount of every node, by row, in `0..2^30`; any such number where [`AmountColumns::exact`] is 0.
    #[inline]
    pub fn of(&self, amount: NodeAmount) -> &[i32] {
        &self.columns[amount as usize]
    }

    /// By row: 1 for a node all of whose amounts are exactly those in the columns ([`NodeAmount::in_column`]), with CPU and memory above 0;
    /// 0 for others, such as one with a pod that requests 500M of memory, which is no multiple of 1 KiB.
    #[inline]
    pub fn exact(&self) -> &[u8] {
        &self.exact
    }

    fn push(&mut self) {
        self.columns.iter_mut().for_each(|column| column.push(0));
        self.exact.push(0);
    }

    fn write(&mut self, at: usize, row: &NodeAmounts) {
        let mut is_exact =
            row[NodeAmount::AllocatableCpu] > 0 && row[NodeAmount::AllocatableMemory] > 0;
        for (amount, column) in NodeAmount::ALL.into_iter().zip(&mut self.columns) {
            let value = amount.in_column(row[amount]);
            is_exact &= value.is_some();
            column[at] = value.unwrap_or(0);
        }
        self.exact[at] = u8::from(is_exact);
    }

    /// Writes the changed rows; all, if as many changed as there are.
    fn write_changed(&mut self, changed: &[u32], rows: &[NodeAmounts]) {
        if changed.len() == rows.len() {
            rows.iter().enumerate().for_each(|(at, row)| self.write(at, row));
        } else {
            changed.iter().for_each(|at| self.write(*at as usize, &rows[*at as usize]));
        }
    }
}

/// The rows: when columns were written changes nothing that can be read.
impl fmt::Debug for AllAmounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows.fmt(f)
    }
}

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

    /// The columns. If pods were added or removed since [`World::update_columns`](crate::World::update_columns), all are copied first.
    pub fn columns(&self) -> &AmountColumns {
        if self.changed.is_empty() {
            return &self.columns;
        }
        self.current.get_or_init(|| {
            let mut columns = self.columns.clone();
            columns.write_changed(&self.changed, &self.rows);
            columns
        })
    }

    /// Writes what changed since the last time to the columns. To be called before a scan of all nodes.
    #[inline(never)]
    pub(crate) fn update_columns(&mut self) {
        if self.changed.is_empty() {
            return;
        }
        match self.current.take() {
            Some(current) => self.columns = current,
            None => self.columns.write_changed(&self.changed, &self.rows),
        }
        self.changed.clear();
    }

    /// Adds a row.
    pub(crate) fn push(&mut self) {
        self.update_columns();
        self.rows.push(NodeAmounts::default());
        self.columns.push();
    }

    /// Sets an amount of the node in a row.
    pub(crate) fn set(&mut self, at: usize, amount: NodeAmount, value: i64) {
        self.update_columns();
        self.rows[at][amount] = value;
        self.columns.write(at, &self.rows[at]);
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

#[cfg(test)]
mod tests {
    use loadmaster_stdx::Rng;

    use super::*;

    const ALL: [NodeAmount; NodeAmount::COUNT] = NodeAmount::ALL;

    /// What the columns should have of a row.
    fn in_columns(row: &[i64; NodeAmount::COUNT]) -> ([i32; NodeAmount::COUNT], bool) {
        let mut is_exact = row[0] > 0 && row[1] > 0;
        let columns = ALL.map(|amount| {
            let value = amount.in_column(row[amount as usize]);
            is_exact &= value.is_some();
            value.unwrap_or(0)
        });
        (columns, is_exact)
    }

    fn row_of(columns: &AmountColumns, at: usize) -> ([i32; NodeAmount::COUNT], bool) {
        (ALL.map(|amount| columns.of(amount)[at]), columns.exact()[at] == 1)
    }

    #[test]
    fn amounts_in_columns() {
        let check = |amount: NodeAmount, value: i64, want: Option<i32>, request: i32| {
            assert_eq!(amount.in_column(value), want, "{amount:?} {value}");
            assert_eq!(amount.request_in_column(value), request, "{amount:?} {value}");
        };
        use NodeAmount::{AllocatableMemory, Pods, RequestedCpu};
        check(RequestedCpu, 0, Some(0), 0);
        check(RequestedCpu, 1500, Some(1500), 1500);
        check(RequestedCpu, (1 << 30) - 1, Some((1 << 30) - 1), (1 << 30) - 1);
        check(RequestedCpu, 1 << 30, None, 1 << 30);
        check(RequestedCpu, i64::MAX, None, i32::MAX);
        check(Pods, -1, None, -1);
        check(AllocatableMemory, 16 << 30, Some(16 << 20), 16 << 20);
        check(AllocatableMemory, 500_000_000, None, 488_282);
        check(AllocatableMemory, 1, None, 1);
        check(AllocatableMemory, 1 << 40, None, 1 << 30);
        check(AllocatableMemory, i64::MIN, None, i32::MIN);
    }

    #[test]
    fn rows_and_columns_are_equal() {
        for n_rows_max in [1, 3, 20] {
            let mut rng = Rng::new(3);
            let (mut amounts, mut twin) = (AllAmounts::default(), Vec::new());
            let mut n_exact = 0;
            for _ in 0..5_000 {
                if twin.len() < n_rows_max && rng.one_in(50) || twin.is_empty() {
                    amounts.push();
                    twin.push([0i64; NodeAmount::COUNT]);
                }
                let at = rng.below(twin.len() as u64) as usize;
                // Amounts that columns do not have are among them, and half of those of memory are no multiple of 1 KiB.
                let value = |rng: &mut Rng| match rng.one_in(20) {
                    true => rng.below(u64::MAX) as i64,
                    false => rng.below(1 << 10) as i64 * 512,
                };
                match rng.below(8) {
                    0 => {
                        let which = rng.below(NodeAmount::COUNT as u64) as usize;
                        twin[at][which] = value(&mut rng);
                        amounts.set(at, ALL[which], twin[at][which]);
                    }
                    1 => amounts.update_columns(),
                    2 => {
                        let columns = amounts.columns();
                        for (at, row) in twin.iter().enumerate() {
                            assert_eq!(row_of(columns, at), in_columns(row), "row {at}");
                            n_exact += u64::from(columns.exact()[at]);
                        }
                    }
                    _ => {
                        // Sums that overflow are among them.
                        let more = SUMS.map(|sum| {
                            let before = twin[at][sum as usize];
                            (sum, value(&mut rng).wrapping_sub(before))
                        });
                        amounts.add(at, more);
                        for (sum, more) in more {
                            let sum = &mut twin[at][sum as usize];
                            *sum = sum.wrapping_add(more);
                        }
                    }
                }
                assert_eq!(ALL.map(|amount| amounts.rows()[at][amount]), twin[at], "row {at}");
            }
            assert!(n_exact > 10, "{n_exact}");
            assert!(amounts.changed.len() <= n_rows_max);
            for (at, want) in twin.iter().enumerate() {
                assert_eq!(ALL.map(|amount| amounts.rows()[at][amount]), *want, "row {at}");
                assert_eq!(row_of(amounts.columns(), at), in_columns(want), "columns, row {at}");
            }
        }
    }
}
