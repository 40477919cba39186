//! Feasible rows in buckets by class and row-local score. Updates and random selection among the best rows take time independent
//! of the number of nodes.

use loadmaster_framework::NodeRow;
use loadmaster_stdx::Rng;

use super::incremental::ClassTable;

/// Where a row is: 8 bytes, because a decision reads this of every changed row, and it is in no cache.
#[derive(Clone, Copy)]
struct BucketPosition {
    bucket: u32,
    /// Position in its bucket.
    at: u32,
}

impl BucketPosition {
    const NONE: BucketPosition = BucketPosition { bucket: u32::MAX, at: 0 };

    fn is_none(self) -> bool {
        self.bucket == u32::MAX
    }
}

/// The rows of one class with one score.
struct Bucket {
    class: u32,
    score: i64,
    rows: Vec<NodeRow>,
}

/// Rows by class and score.
#[derive(Default)]
pub(crate) struct ScoreBuckets {
    of_row: Vec<BucketPosition>,
    buckets: Vec<Bucket>,
    /// Empty buckets; they keep their memory.
    free: Vec<u32>,
    /// By class: its buckets with rows, by ascending score.
    classes: Vec<Vec<(i64, u32)>>,
}

/// The highest total, and the number of rows that have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BestScore {
    pub total: i64,
    /// Number of rows with this total.
    pub n_ties: u64,
}

impl ScoreBuckets {
    /// Grows the tables to `n_rows` rows.
    pub fn grow(&mut self, n_rows: usize) {
        if self.of_row.len() < n_rows {
            self.of_row.resize(n_rows, BucketPosition::NONE);
        }
    }

    /// The class and row-local score of a row, if it is in a bucket.
    pub fn class_and_score(&self, row: NodeRow) -> Option<(u32, i64)> {
        let position = self.of_row[row.index()];
        let bucket = self.buckets.get(position.bucket as usize)?;
        Some((bucket.class, bucket.score))
    }

    /// Adds a row that is in no bucket.
    pub fn insert(&mut self, row: NodeRow, class: u32, score: i64) {
        let bucket = self.bucket_of(class, score);
        let rows = &mut self.buckets[bucket as usize].rows;
        self.of_row[row.index()] = BucketPosition { bucket, at: rows.len() as u32 };
        rows.push(row);
    }

    /// Removes a row.
    pub fn remove(&mut self, row: NodeRow) {
        let position = std::mem::replace(&mut self.of_row[row.index()], BucketPosition::NONE);
        if position.is_none() {
            return;
        }
        let bucket = &mut self.buckets[position.bucket as usize];
        bucket.rows.swap_remove(position.at as usize);
        if let Some(moved) = bucket.rows.get(position.at as usize) {
            self.of_row[moved.index()].at = position.at;
        }
        if bucket.rows.is_empty() {
            let class = &mut self.classes[bucket.class as usize];
            if let Ok(at) = class.binary_search_by_key(&bucket.score, |(score, _)| *score) {
                class.remove(at);
            }
            self.free.push(position.bucket);
        }
    }

    /// The bucket for this class and score, which gets its first row now if it is new.
    fn bucket_of(&mut self, class: u32, score: i64) -> u32 {
        if self.classes.len() <= class as usize {
            self.classes.resize_with(class as usize + 1, Vec::new);
        }
        let known = &mut self.classes[class as usize];
        match known.binary_search_by_key(&score, |(score, _)| *score) {
            Ok(at) => known[at].1,
            Err(at) => {
                let bucket = self.free.pop().unwrap_or_else(|| {
                    self.buckets.push(Bucket { class, score, rows: Vec::new() });
                    self.buckets.len() as u32 - 1
                });
                let Bucket { class: old_class, score: old_score, .. } =
                    &mut self.buckets[bucket as usize];
                (*old_class, *old_score) = (class, score);
                known.insert(at, (score, bucket));
                bucket
            }
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
        let rows = (0..self.of_row.len()).map(|at| NodeRow(at as u32));
        let placed = rows.filter_map(|row| Some((row, self.class_and_score(row)?)));
        placed
            .filter(|(_, (class, _))| is_feasible(table, *class as usize))
            .map(|(row, (class, score))| (row, score + table.offsets[class as usize]))
    }

    fn top_buckets<'a>(
        &'a self,
        table: &'a ClassTable,
    ) -> impl Iterator<Item = (i64, i64, &'a Vec<NodeRow>)> + 'a {
        let classes =
            self.classes.iter().enumerate().filter(|(class, _)| is_feasible(table, *class));
        classes.filter_map(|(class, buckets)| {
            let (score, bucket) = buckets.last()?;
            Some((*score, table.offsets[class], &self.buckets[*bucket as usize].rows))
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
        buckets.grow(50);
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

    /// Random moves against a plain list of classes and scores: emptied buckets are used again for other classes and scores.
    #[test]
    fn equal_to_a_list() {
        let mut rng = Rng::new(5);
        let mut table = ClassTable::default();
        for class in 0..4 {
            table.insert_row(&ClassKey::from_slice(&[class]));
        }
        table.feasible = vec![true, true, false, true];
        table.offsets = vec![0, 2, 9, 1];
        let mut buckets = ScoreBuckets::default();
        buckets.grow(12);
        let mut list: [Option<(u32, i64)>; 12] = [None; 12];
        for _ in 0..5_000 {
            let at = rng.below(12) as usize;
            let row = NodeRow(at as u32);
            if list[at].take().is_some() {
                buckets.remove(row);
            }
            if rng.below(4) > 0 {
                let (class, score) = (rng.below(4) as u32, rng.below(5) as i64 - 1);
                list[at] = Some((class, score));
                buckets.insert(row, class, score);
            }
            for (at, known) in list.iter().enumerate() {
                assert_eq!(buckets.class_and_score(NodeRow(at as u32)), *known);
            }
            let feasible =
                list.iter().flatten().filter(|(class, _)| table.feasible[*class as usize]);
            let totals = feasible.map(|(class, score)| score + table.offsets[*class as usize]);
            let best = totals.clone().max().map(|total| BestScore {
                total,
                n_ties: totals.filter(|other| *other == total).count() as u64,
            });
            assert_eq!(buckets.best(&table), best);
        }
        assert!(buckets.buckets.len() <= 4 * 5, "{}", buckets.buckets.len());
    }

    #[test]
    fn rows_are_moved_and_removed() {
        let mut table = ClassTable::default();
        let mut buckets = ScoreBuckets::default();
        buckets.grow(3);
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
