//! An index of feasible rows: class and row-local score -> rows, with moves and uniform picks that do not depend on the number
//! of nodes.

use std::collections::BTreeMap;

use loadmaster_framework::Row;
use loadmaster_stdx::Rng;

use super::incremental::ClassTable;

/// Where a row stands.
#[derive(Clone, Copy)]
struct Place {
    class: u32,
    /// Position in its bucket.
    at: u32,
    score: i64,
}

const NOWHERE: u32 = u32::MAX;

/// Rows by class and score.
#[derive(Default)]
pub(crate) struct Buckets {
    of_row: Vec<Place>,
    /// By class: rows by score; buckets are never empty.
    classes: Vec<BTreeMap<i64, Vec<Row>>>,
}

/// The best rows of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Best {
    pub total: i64,
    /// Rows that share it.
    pub n_ties: u64,
}

impl Buckets {
    /// Forgets all rows.
    pub fn clear(&mut self, n_rows: usize) {
        self.classes.clear();
        self.of_row.clear();
        self.grow(n_rows);
    }

    /// Makes room for rows up to this number.
    pub fn grow(&mut self, n_rows: usize) {
        if self.of_row.len() < n_rows {
            self.of_row.resize(n_rows, Place { class: NOWHERE, at: 0, score: 0 });
        }
    }

    /// The class and score of a row, if it is in the index.
    pub fn get(&self, row: Row) -> Option<(u32, i64)> {
        let place = self.of_row[row.index()];
        (place.class != NOWHERE).then_some((place.class, place.score))
    }

    /// Adds a row that is not in the index.
    pub fn insert(&mut self, row: Row, class: u32, score: i64) {
        if self.classes.len() <= class as usize {
            self.classes.resize_with(class as usize + 1, BTreeMap::new);
        }
        let bucket = self.classes[class as usize].entry(score).or_default();
        self.of_row[row.index()] = Place { class, at: bucket.len() as u32, score };
        bucket.push(row);
    }

    /// Takes a row out.
    pub fn remove(&mut self, row: Row) {
        let place = std::mem::replace(
            &mut self.of_row[row.index()],
            Place { class: NOWHERE, at: 0, score: 0 },
        );
        if place.class == NOWHERE {
            return;
        }
        let class = &mut self.classes[place.class as usize];
        let Some(bucket) = class.get_mut(&place.score) else { return };
        bucket.swap_remove(place.at as usize);
        if let Some(moved) = bucket.get(place.at as usize) {
            self.of_row[moved.index()].at = place.at;
        }
        if bucket.is_empty() {
            class.remove(&place.score);
        }
    }

    /// The highest total over feasible classes.
    pub fn best(&self, table: &ClassTable) -> Option<Best> {
        let mut best: Option<Best> = None;
        for (score, offset, rows) in self.tops(table) {
            let total = score + offset;
            match &mut best {
                Some(known) if known.total > total => {}
                Some(known) if known.total == total => known.n_ties += rows.len() as u64,
                _ => best = Some(Best { total, n_ties: rows.len() as u64 }),
            }
        }
        best
    }

    /// One of the best rows, each with the same chance.
    pub fn pick(&self, table: &ClassTable, best: Best, rng: &mut Rng) -> Option<Row> {
        let mut nth = rng.below(best.n_ties);
        for (score, offset, rows) in self.tops(table) {
            if score + offset != best.total {
                continue;
            }
            match rows.get(nth as usize) {
                Some(row) => return Some(*row),
                None => nth -= rows.len() as u64,
            }
        }
        None
    }

    /// Every feasible row with its total, by row.
    pub fn totals<'a>(&'a self, table: &'a ClassTable) -> impl Iterator<Item = (Row, i64)> + 'a {
        let rows = self.of_row.iter().enumerate();
        rows.filter(|(_, place)| is_feasible(table, place.class as usize))
            .map(|(at, place)| (Row(at as u32), place.score + table.offsets[place.class as usize]))
    }

    fn tops<'a>(
        &'a self,
        table: &'a ClassTable,
    ) -> impl Iterator<Item = (i64, i64, &'a Vec<Row>)> + 'a {
        let classes =
            self.classes.iter().enumerate().filter(|(class, _)| is_feasible(table, *class));
        classes.filter_map(|(class, buckets)| {
            let (score, rows) = buckets.last_key_value()?;
            Some((*score, table.offsets[class], rows))
        })
    }
}

fn is_feasible(table: &ClassTable, class: usize) -> bool {
    table.feasible.get(class).copied().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadmaster_framework::prepare::Words;

    #[test]
    fn every_best_row_is_picked_equally_often() {
        let mut table = ClassTable::default();
        let mut buckets = Buckets::default();
        buckets.clear(50);
        for row in 0..50u32 {
            let class = table.enter(&Words::from_slice(&[i64::from(row % 3)]));
            buckets.insert(Row(row), class, if row < 10 { 3 } else { 7 });
        }
        table.feasible = vec![true; 3];
        table.offsets = vec![0; 3];
        let best = buckets.best(&table).expect("some row");
        assert_eq!(best, Best { total: 7, n_ties: 40 });
        let mut rng = Rng::new(3);
        let mut hits = [0u32; 50];
        for _ in 0..40_000 {
            hits[buckets.pick(&table, best, &mut rng).expect("some row").index()] += 1;
        }
        assert!(hits[..10].iter().all(|n| *n == 0), "{hits:?}");
        assert!(hits[10..].iter().all(|n| (850..1150).contains(n)), "{hits:?}");
    }

    #[test]
    fn rows_move_and_leave() {
        let mut table = ClassTable::default();
        let mut buckets = Buckets::default();
        buckets.clear(3);
        let class = table.enter(&Words::new());
        for row in 0..3 {
            buckets.insert(Row(row), class, 5);
        }
        table.feasible = vec![true];
        table.offsets = vec![100];
        buckets.remove(Row(0));
        buckets.remove(Row(2));
        buckets.insert(Row(2), class, 1);
        let totals: Vec<_> = buckets.totals(&table).collect();
        assert_eq!(totals, [(Row(1), 105), (Row(2), 101)]);
        assert_eq!(buckets.get(Row(0)), None);
    }
}
