//! Feasible rows in buckets by class and row-local score. Updates and random selection among the best rows take time independent
//! of the number of nodes.

use std::collections::BTreeMap;

use loadmaster_framework::NodeRow;
use loadmaster_stdx::Rng;

use super::incremental::ClassTable;

/// The bucket of a row, and its position there.
#[derive(Clone, Copy)]
struct BucketPosition {
    class: u32,
    /// Position in its bucket.
    at: u32,
    score: i64,
}

const NO_CLASS: u32 = u32::MAX;

/// Rows by class and score.
#[derive(Default)]
pub(crate) struct ScoreBuckets {
    of_row: Vec<BucketPosition>,
    /// By class: rows by score; buckets are never empty.
    classes: Vec<BTreeMap<i64, Vec<NodeRow>>>,
}

/// The highest total, and the number of rows that have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BestScore {
    pub total: i64,
    /// Number of rows with this total.
    pub n_ties: u64,
}

impl ScoreBuckets {
    /// Removes all rows.
    pub fn clear(&mut self, n_rows: usize) {
        self.classes.clear();
        self.of_row.clear();
        self.grow(n_rows);
    }

    /// Grows the tables to `n_rows` rows.
    pub fn grow(&mut self, n_rows: usize) {
        if self.of_row.len() < n_rows {
            self.of_row.resize(n_rows, BucketPosition { class: NO_CLASS, at: 0, score: 0 });
        }
    }

    /// The class and row-local score of a row, if it is in a bucket.
    pub fn class_and_score(&self, row: NodeRow) -> Option<(u32, i64)> {
        let position = self.of_row[row.index()];
        (position.class != NO_CLASS).then_some((position.class, position.score))
    }

    /// Adds a row that is in no bucket.
    pub fn insert(&mut self, row: NodeRow, class: u32, score: i64) {
        if self.classes.len() <= class as usize {
            self.classes.resize_with(class as usize + 1, BTreeMap::new);
        }
        let bucket = self.classes[class as usize].entry(score).or_default();
        self.of_row[row.index()] = BucketPosition { class, at: bucket.len() as u32, score };
        bucket.push(row);
    }

    /// Removes a row.
    pub fn remove(&mut self, row: NodeRow) {
        let position = std::mem::replace(
            &mut self.of_row[row.index()],
            BucketPosition { class: NO_CLASS, at: 0, score: 0 },
        );
        if position.class == NO_CLASS {
            return;
        }
        let class = &mut self.classes[position.class as usize];
        let Some(bucket) = class.get_mut(&position.score) else { return };
        bucket.swap_remove(position.at as usize);
        if let Some(moved) = bucket.get(position.at as usize) {
            self.of_row[moved.index()].at = position.at;
        }
        if bucket.is_empty() {
            class.remove(&position.score);
        }
    }

    /// The highest total over feasible classes.
    pub fn best(&self, table: &ClassTable) -> Option<BestScore> {
        let mut best: Option<BestScore> = None;
        for (score, offset, rows) in self.top_buckets(table) {
            let total = score + offset;
            match &mut best {
                Some(known) if known.total > total => {}
                Some(known) if known.total == total => known.n_ties += rows.len() as u64,
                _ => best = Some(BestScore { total, n_ties: rows.len() as u64 }),
            }
        }
        best
    }

    /// Selects one of the best rows at random.
    pub fn pick_best_row(
        &self,
        table: &ClassTable,
        best: BestScore,
        rng: &mut Rng,
    ) -> Option<NodeRow> {
        let mut nth = rng.below(best.n_ties);
        for (score, offset, rows) in self.top_buckets(table) {
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
    pub fn total_scores<'a>(
        &'a self,
        table: &'a ClassTable,
    ) -> impl Iterator<Item = (NodeRow, i64)> + 'a {
        let rows = self.of_row.iter().enumerate();
        rows.filter(|(_, position)| is_feasible(table, position.class as usize)).map(
            |(at, position)| {
                (NodeRow(at as u32), position.score + table.offsets[position.class as usize])
            },
        )
    }

    fn top_buckets<'a>(
        &'a self,
        table: &'a ClassTable,
    ) -> impl Iterator<Item = (i64, i64, &'a Vec<NodeRow>)> + 'a {
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
    use loadmaster_framework::incremental::ClassKey;

    #[test]
    fn every_best_row_is_picked_equally_often() {
        let mut table = ClassTable::default();
        let mut buckets = ScoreBuckets::default();
        buckets.clear(50);
        for row in 0..50u32 {
            let class = table.insert_row(&ClassKey::from_slice(&[i64::from(row % 3)]));
            buckets.insert(NodeRow(row), class, if row < 10 { 3 } else { 7 });
        }
        table.feasible = vec![true; 3];
        table.offsets = vec![0; 3];
        let best = buckets.best(&table).expect("some row");
        assert_eq!(best, BestScore { total: 7, n_ties: 40 });
        let mut rng = Rng::new(3);
        let mut hits = [0u32; 50];
        for _ in 0..40_000 {
            hits[buckets.pick_best_row(&table, best, &mut rng).expect("some row").index()] += 1;
        }
        assert!(hits[..10].iter().all(|n| *n == 0), "{hits:?}");
        assert!(hits[10..].iter().all(|n| (850..1150).contains(n)), "{hits:?}");
    }

    #[test]
    fn rows_are_moved_and_removed() {
        let mut table = ClassTable::default();
        let mut buckets = ScoreBuckets::default();
        buckets.clear(3);
        let class = table.insert_row(&ClassKey::new());
        for row in 0..3 {
            buckets.insert(NodeRow(row), class, 5);
        }
        table.feasible = vec![true];
        table.offsets = vec![100];
        buckets.remove(NodeRow(0));
        buckets.remove(NodeRow(2));
        buckets.insert(NodeRow(2), class, 1);
        let totals: Vec<_> = buckets.total_scores(&table).collect();
        assert_eq!(totals, [(NodeRow(1), 105), (NodeRow(2), 101)]);
        assert_eq!(buckets.class_and_score(NodeRow(0)), None);
    }
}
