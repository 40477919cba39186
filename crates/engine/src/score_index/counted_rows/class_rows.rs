//! A part of the rows, by class.

use std::cell::OnceCell;

use loadmaster_framework::NodeRow;
use loadmaster_stdx::{Map, PackedList};

/// The classes of some rows.
#[derive(Default)]
pub(super) struct ClassRows {
    /// By row: 0 if it has no class, else one more than that. There is such a list for each Service, and a decision reads a few places of one.
    classes: PackedList,
    /// Empty until it is asked for: the rows with the highest total are most often found without them.
    lists: OnceCell<RowLists>,
}

/// The rows of each class.
#[derive(Default)]
struct RowLists {
    rows: Vec<Vec<NodeRow>>,
    /// Where a row is among those of its class.
    positions: Map<NodeRow, u32>,
}

impl ClassRows {
    /// These rows, ascending, with their classes.
    pub fn new(rows: &[(NodeRow, u32)]) -> ClassRows {
        let len = rows.last().map_or(0, |(row, _)| row.index() + 1);
        let max = rows.iter().map(|(_, class)| u64::from(*class) + 1).max().unwrap_or(0);
        let mut classes = PackedList::zeros(len, max);
        for (row, class) in rows {
            classes.set(row.index(), u64::from(*class) + 1);
        }
        ClassRows { classes, lists: OnceCell::new() }
    }

    /// The rows that have a class, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (NodeRow, u32)> + '_ {
        self.classes.not_zero().map(|(at, number)| (NodeRow(at as u32), number as u32 - 1))
    }

    /// The class of a row.
    #[inline]
    pub fn class(&self, row: NodeRow) -> Option<u32> {
        (self.classes.get(row.index()) as u32).checked_sub(1)
    }

    /// The rows of a class.
    pub fn rows(&self, class: u32) -> &[NodeRow] {
        let lists = self.lists.get_or_init(|| RowLists::new(self.iter()));
        lists.rows.get(class as usize).map_or(&[], Vec::as_slice)
    }

    /// Gives a row a class, or none.
    pub fn set(&mut self, row: NodeRow, class: Option<u32>) {
        let before = self.class(row);
        self.classes.set(row.index(), class.map_or(0, |class| u64::from(class) + 1));
        if let Some(lists) = self.lists.get_mut() {
            lists.set(row, before, class);
        }
    }
}

impl RowLists {
    /// Gives a row another class.
    #[inline(never)]
    fn set(&mut self, row: NodeRow, before: Option<u32>, class: Option<u32>) {
        if let Some(before) = before {
            self.remove(row, before);
        }
        if let Some(class) = class {
            self.add(row, class);
        }
    }

    fn new(rows: impl Iterator<Item = (NodeRow, u32)>) -> RowLists {
        let mut lists = RowLists::default();
        rows.for_each(|(row, class)| lists.add(row, class));
        lists
    }

    fn add(&mut self, row: NodeRow, class: u32) {
        let rows = super::element(&mut self.rows, class);
        self.positions.insert(row, rows.len() as u32);
        rows.push(row);
    }

    fn remove(&mut self, row: NodeRow, class: u32) {
        let Some(at) = self.positions.remove(&row) else { return };
        let rows = &mut self.rows[class as usize];
        rows.swap_remove(at as usize);
        if let Some(moved) = rows.get(at as usize) {
            self.positions.insert(*moved, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use loadmaster_stdx::Rng;

    use super::*;

    #[test]
    fn equal_to_a_map() {
        for n_changes in [0, 100, 2_000] {
            let mut rng = Rng::new(3);
            let (mut rows, mut twin) = (ClassRows::default(), BTreeMap::new());
            let mut change = |rows: &mut ClassRows, twin: &mut BTreeMap<_, _>| {
                let (row, class) = (NodeRow(rng.below(100) as u32), rng.below(4) as u32);
                let class = rng.one_in(2).then_some(class);
                rows.set(row, class);
                assert_eq!(rows.class(row), class);
                match class {
                    Some(class) => twin.insert(row, class),
                    None => twin.remove(&row),
                };
            };
            // The lists are made of what there is when they are asked for first.
            for _ in 0..n_changes {
                change(&mut rows, &mut twin);
            }
            for nth in 0..500 {
                change(&mut rows, &mut twin);
                let class = nth % 4;
                let mut of_class = rows.rows(class).to_vec();
                of_class.sort_unstable();
                let expected = twin.iter().filter(|(_, known)| **known == class);
                assert_eq!(of_class, expected.map(|(row, _)| *row).collect::<Vec<_>>());
            }
            let all: Vec<_> = twin.into_iter().collect();
            let made_at_once = ClassRows::new(&all);
            assert_eq!(made_at_once.iter().collect::<Vec<_>>(), all);
            for row in (0..100).map(NodeRow) {
                assert_eq!(made_at_once.class(row), rows.class(row));
            }
        }
    }
}
