//! Feasible rows in buckets by class and row-local score. Updates and random selection among the best rows take time independent
//! of the number of nodes.

use loadmaster_framework::NodeRow;
use loadmaster_stdx::Rng;

use super::class_table::ClassTable;

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

/// The highest total, and the number of rows that have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BestScore {
    pub total: i64,
    /// Number of rows with this total.
    pub n_ties: u64,
}

/// The rows of a class with the highest score.
pub(crate) struct TopBucket<'a> {
    pub total: i64,
    /// Some of these rows may belong to no or another bucket.
    pub rows: &'a [NodeRow],
    /// Number of the rows that belong to this one; at least 1.
    pub n: u64,
    /// The class and score of its rows, if these are counted rows.
    pub counted: Option<(u32, i64)>,
}

impl TopBucket<'_> {
    /// One of its rows; `nth` is a random number below their number.
    fn pick(
        &self,
        nth: u64,
        is_member: impl Fn(NodeRow) -> bool,
        rng: &mut Rng,
    ) -> Option<NodeRow> {
        if self.n == self.rows.len() as u64 {
            return self.rows.get(nth as usize).copied();
        }
        // If many of the rows belong to it, a few attempts find one.
        if self.n * ROWS_PER_MEMBER_MAX >= self.rows.len() as u64 {
            for _ in 0..PICK_ATTEMPTS {
                let row = *rng.pick(self.rows);
                if is_member(row) {
                    return Some(row);
                }
            }
        }
        self.rows.iter().copied().filter(|row| is_member(*row)).nth(nth as usize)
    }
}

/// After so many attempts to find a row that belongs to a bucket, these are counted.
const PICK_ATTEMPTS: usize = 256;

/// They are counted at once if they are fewer than one in this many.
const ROWS_PER_MEMBER_MAX: u64 = 32;

/// The highest total of these buckets.
pub(crate) fn best<'a>(buckets: impl Iterator<Item = TopBucket<'a>>) -> Option<BestScore> {
    let mut best: Option<BestScore> = None;
    for bucket in buckets {
        let (total, n_ties) = (bucket.total, bucket.n);
        match &mut best {
            Some(known) if known.total > total => {}
            Some(known) if known.total == total => known.n_ties += n_ties,
            _ => best = Some(BestScore { total, n_ties }),
        }
    }
    best
}

/// Selects one of the best rows of these buckets at random.
pub(crate) fn pick_best_row<'a>(
    buckets: impl Iterator<Item = TopBucket<'a>>,
    best: BestScore,
    is_member: impl Fn(&TopBucket<'a>, NodeRow) -> bool,
    rng: &mut Rng,
) -> Option<NodeRow> {
    let mut nth = rng.below(best.n_ties);
    for bucket in buckets.filter(|bucket| bucket.total == best.total) {
        if nth < bucket.n {
            return bucket.pick(nth, |row| is_member(&bucket, row), rng);
        }
        nth -= bucket.n;
    }
    None
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

    /// The class and row-local score of a row, if it is in a bucket.
    #[inline]
    pub fn class_and_score(&self, row: NodeRow) -> Option<(u32, i64)> {
        let bucket = self.buckets.get(self.of_row[row.index()].bucket as usize)?;
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

    /// The best bucket of each feasible class. `n_hidden` returns how many of the rows of a class with a score are left out.
    pub fn top_buckets<'a>(
        &'a self,
        table: &'a ClassTable,
        n_hidden: impl Fn(u32, i64) -> u32 + 'a,
    ) -> impl Iterator<Item = TopBucket<'a>> {
        let classes = self.classes.iter().enumerate();
        classes.filter(|(class, _)| table.is_feasible(*class)).filter_map(
            move |(class, buckets)| {
                let mut buckets = buckets.iter().rev().map(|(score, bucket)| {
                    let rows = &self.buckets[*bucket as usize].rows;
                    TopBucket {
                        total: *score + table.offsets[class],
                        rows,
                        n: rows.len() as u64 - u64::from(n_hidden(class as u32, *score)),
                        counted: None,
                    }
                });
                buckets.find(|bucket| bucket.n > 0)
            },
        )
    }
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
        // Without rows that are left out, with few of them, and with nearly all rows of a bucket.
        for hidden in [0..0, 12..15, 20..48] {
            let is_member = |_: &TopBucket<'_>, row: NodeRow| !hidden.contains(&row.index());
            let n_hidden = |class, score| {
                let rows = buckets.rows_with(class, score).iter();
                rows.filter(|row| hidden.contains(&row.index())).count() as u32
            };
            let top = || buckets.top_buckets(&table, n_hidden);
            let best = best(top()).expect("some row");
            let n_ties = 40 - hidden.len() as u64;
            assert_eq!(best, BestScore { total: 7, n_ties });
            let mut rng = Rng::new(3);
            let mut hits = [0u64; 50];
            for _ in 0..1_000 * n_ties {
                let row = pick_best_row(top(), best, is_member, &mut rng).expect("some row");
                hits[row.index()] += 1;
            }
            for (row, n) in hits.into_iter().enumerate() {
                let is_possible = row >= 10 && !hidden.contains(&row);
                let expected = if is_possible { 850..1150 } else { 0..1 };
                assert!(expected.contains(&n), "{hidden:?}: {hits:?}");
            }
        }
    }

    #[test]
    fn a_bucket_whose_rows_are_left_out_is_passed_over() {
        let mut table = ClassTable::default();
        let mut buckets = ScoreBuckets::default();
        buckets.grow(2);
        let class = table.insert_row(&ClassKey::new());
        buckets.insert(NodeRow(0), class, 9);
        buckets.insert(NodeRow(1), class, 4);
        table.feasible = vec![true];
        table.offsets = vec![0];
        let n_hidden = |_, score| u32::from(score == 9);
        let best = best(buckets.top_buckets(&table, n_hidden));
        assert_eq!(best, Some(BestScore { total: 4, n_ties: 1 }));
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
            assert_eq!(super::best(buckets.top_buckets(&table, |_, _| 0)), best);
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
        buckets.remove(NodeRow(0));
        buckets.remove(NodeRow(2));
        buckets.insert(NodeRow(2), class, 1);
        let rows: Vec<_> = buckets.rows().collect();
        assert_eq!(rows, [(NodeRow(1), class, 5), (NodeRow(2), class, 1)]);
        assert_eq!(buckets.class_and_score(NodeRow(0)), None);
    }
}
