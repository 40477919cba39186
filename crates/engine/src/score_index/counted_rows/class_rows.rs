//! A small part of the rows, by class.

use loadmaster_framework::NodeRow;

use crate::evaluate::row_map::RowMap;

/// Rows by class.
#[derive(Default)]
pub(super) struct ClassRows {
    positions: RowMap<Position>,
    classes: Vec<Vec<NodeRow>>,
}

#[derive(Clone, Copy)]
struct Position {
    class: u32,
    /// Where the row is among those of the class.
    at: u32,
}

impl ClassRows {
    /// The class of a row.
    #[inline]
    pub fn class(&self, row: NodeRow) -> Option<u32> {
        self.positions.get(row).map(|position| position.class)
    }

    /// The rows of a class.
    pub fn rows(&self, class: u32) -> &[NodeRow] {
        self.classes.get(class as usize).map_or(&[], Vec::as_slice)
    }

    /// Adds a row to a class, and removes it from the one that it has.
    pub fn set(&mut self, row: NodeRow, class: u32) {
        let rows = super::element(&mut self.classes, class);
        let position = Position { class, at: rows.len() as u32 };
        rows.push(row);
        match self.positions.get_mut(row) {
            Some(known) => {
                let before = std::mem::replace(known, position);
                self.leave(before);
            }
            None => self.positions.insert(row, position),
        }
    }

    /// Removes a row from its class.
    pub fn remove(&mut self, row: NodeRow) {
        if let Some(before) = self.positions.remove(row) {
            self.leave(before);
        }
    }

    fn leave(&mut self, Position { class, at }: Position) {
        let rows = &mut self.classes[class as usize];
        rows.swap_remove(at as usize);
        if let Some(moved) = rows.get(at as usize)
            && let Some(position) = self.positions.get_mut(*moved)
        {
            position.at = at;
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
        let mut rng = Rng::new(3);
        let (mut rows, mut twin) = (ClassRows::default(), BTreeMap::new());
        for _ in 0..2_000 {
            let (row, class) = (NodeRow(rng.below(100) as u32), rng.below(4) as u32);
            if rng.one_in(2) {
                rows.remove(row);
                twin.remove(&row);
            } else {
                rows.set(row, class);
                twin.insert(row, class);
            }
            assert_eq!(rows.class(row), twin.get(&row).copied());
            let mut of_class = rows.rows(class).to_vec();
            of_class.sort_unstable();
            let expected = twin.iter().filter(|(_, known)| **known == class).map(|(row, _)| *row);
            assert_eq!(of_class, expected.collect::<Vec<_>>());
        }
    }
}
