//! Feasible rows in buckets by class and row-local score. Updates take time independent of the number of nodes.

use loadmaster_framework::NodeRow;

/// Where a row is: 8 bytes, because a decision reads this of every changed row, and it is in no cache.
#[derive(Clone, Copy)]
pub(crate) struct BucketPosition {
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
    /// By row; the table must have been grown to the number of rows.
    of_row: Vec<BucketPosition>,
    buckets: Vec<Bucket>,
    /// Empty buckets; they keep their memory.
    free: Vec<u32>,
    /// By class: its buckets with rows, by ascending score.
    classes: Vec<Vec<(i64, u32)>>,
}

impl ScoreBuckets {
    /// Grows the tables to `n_rows` rows.
    pub fn grow(&mut self, n_rows: usize) {
        if self.of_row.len() < n_rows {
            self.of_row.resize(n_rows, BucketPosition::NONE);
        }
    }

    /// Every row in a bucket with its class and row-local score, by row.
    pub fn rows(&self) -> impl Iterator<Item = (NodeRow, u32, i64)> + '_ {
        let rows = (0..self.of_row.len()).map(|at| NodeRow(at as u32));
        rows.filter_map(|row| self.class_and_score(row).map(|(class, score)| (row, class, score)))
    }

    /// The number of the bucket with this row.
    #[inline]
    pub fn bucket(&self, row: NodeRow) -> u32 {
        self.of_row[row.index()].bucket
    }

    /// The class and row-local score of a row, if it is in a bucket.
    #[inline]
    pub fn class_and_score(&self, row: NodeRow) -> Option<(u32, i64)> {
        let bucket = self.buckets.get(self.bucket(row) as usize)?;
        Some((bucket.class, bucket.score))
    }

    /// Adds a row that is in no bucket.
    #[inline]
    pub fn insert(&mut self, row: NodeRow, class: u32, score: i64) {
        let bucket = self.bucket_of(class, score);
        let rows = &mut self.buckets[bucket as usize].rows;
        self.of_row[row.index()] = BucketPosition { bucket, at: rows.len() as u32 };
        rows.push(row);
    }

    /// Gives a row that is in a bucket another score.
    pub fn set_score(&mut self, row: NodeRow, class: u32, score: i64) {
        self.leave_bucket(self.of_row[row.index()]);
        self.insert(row, class, score);
    }

    /// Removes a row.
    pub fn remove(&mut self, row: NodeRow) {
        let position = std::mem::replace(&mut self.of_row[row.index()], BucketPosition::NONE);
        if !position.is_none() {
            self.leave_bucket(position);
        }
    }

    fn leave_bucket(&mut self, position: BucketPosition) {
        let bucket = &mut self.buckets[position.bucket as usize];
        bucket.rows.swap_remove(position.at as usize);
        if let Some(moved) = bucket.rows.get(position.at as usize) {
            self.of_row[moved.index()] = position;
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

    /// The rows of a class with this score.
    pub fn rows_with(&self, class: u32, score: i64) -> &[NodeRow] {
        let known = self.classes.get(class as usize).map_or(&[][..], Vec::as_slice);
        let at = known.binary_search_by_key(&score, |(score, _)| *score);
        at.map_or(&[], |at| &self.buckets[known[at].1 as usize].rows)
    }

    /// The scores that rows of a class have, in descending order, each with these rows.
    pub fn of_class(&self, class: u32) -> impl Iterator<Item = (i64, &[NodeRow])> {
        let known = self.classes.get(class as usize).map_or(&[][..], Vec::as_slice);
        let buckets = known.iter().rev();
        buckets.map(|(score, bucket)| (*score, &*self.buckets[*bucket as usize].rows))
    }

    /// The highest score of a row of a class.
    pub fn highest_score(&self, class: u32) -> Option<i64> {
        Some(self.classes.get(class as usize)?.last()?.0)
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_stdx::Rng;

    use super::*;

    /// Random moves against a plain list of classes and scores: emptied buckets are used again for other classes and scores.
    #[test]
    fn equal_to_a_list() {
        let mut rng = Rng::new(5);
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
            for class in 0..4 {
                let of_class = list.iter().flatten().filter(|it| it.0 == class);
                assert_eq!(buckets.highest_score(class), of_class.map(|it| it.1).max());
                for (score, rows) in buckets.of_class(class) {
                    assert!(rows.iter().all(|row| list[row.index()] == Some((class, score))));
                }
                let n_rows: usize = buckets.of_class(class).map(|(_, rows)| rows.len()).sum();
                assert_eq!(n_rows, list.iter().flatten().filter(|it| it.0 == class).count());
            }
        }
        assert!(buckets.buckets.len() <= 4 * 5, "{}", buckets.buckets.len());
    }

    #[test]
    fn rows_are_moved_and_removed() {
        let mut buckets = ScoreBuckets::default();
        buckets.grow(3);
        let class = 1;
        for row in 0..3 {
            buckets.insert(NodeRow(row), class, 5);
        }
        buckets.remove(NodeRow(0));
        buckets.remove(NodeRow(2));
        buckets.insert(NodeRow(2), class, 1);
        let rows: Vec<_> = buckets.rows().collect();
        assert_eq!(rows, [(NodeRow(1), class, 5), (NodeRow(2), class, 1)]);
        assert_eq!(buckets.class_and_score(NodeRow(0)), None);
    }
}
