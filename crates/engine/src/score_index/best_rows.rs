//! The rows with the highest total, found in the buckets of the shared index.
//!
//! The rows of a bucket may have several totals: that of the bucket's class, and those of the classes of counted rows. Where the counted rows
//! are is not stored by score. A bucket is searched only if a row in it may have a higher total than all that were seen, and only until one is
//! found that has the highest possible one there, which is most often the first.

use loadmaster_framework::NodeRow;
use loadmaster_stdx::Rng;
use smallvec::SmallVec;

use super::classes::Classes;
use super::counted_rows::CountedRows;

/// After so many attempts to pick a row with the highest total, all of them are listed.
const PICK_ATTEMPTS: usize = 32;

/// The rows of a shared class that have the same class for this combination of keys, if they are feasible.
pub(super) struct Part {
    class: u32,
    shared_class: u32,
    /// No row has a higher total.
    bound: i64,
}

/// The rows with the highest total; none if no row is feasible.
pub(super) struct BestRows<'a> {
    classes: Classes<'a>,
    pub total: i64,
    /// All of them are among these rows, each once. Few are held in place, because they are copied when this is returned.
    found: SmallVec<[FoundRows<'a>; 3]>,
}

/// Rows of which some have the highest total, or all.
#[derive(Clone, Copy)]
struct FoundRows<'a> {
    rows: &'a [NodeRow],
    all: bool,
    shared_class: u32,
    /// In the shared index.
    score: i64,
}

impl<'a> BestRows<'a> {
    /// The classes must have been filtered and scored. `parts` is scratch space.
    pub fn new(classes: Classes<'a>, parts: &mut Vec<Part>) -> BestRows<'a> {
        let mut best = BestRows { classes, total: i64::MIN, found: SmallVec::new() };
        match classes.counted {
            None => best.find_uncounted(),
            Some(counted) => best.find(counted, parts),
        }
        best
    }

    /// If no rows are counted, all rows of a bucket have the same total.
    #[inline(never)]
    fn find_uncounted(&mut self) {
        let table = self.classes.table;
        let classes = table.feasible.iter().zip(&table.offsets).enumerate();
        for (class, (_, offset)) in classes.filter(|(_, (feasible, _))| **feasible) {
            let shared_class = class as u32;
            let highest = self.classes.index.buckets.of_class(shared_class).next();
            let Some((score, rows)) = highest else { continue };
            let total = score + offset;
            if total > self.total {
                self.total = total;
                self.found.clear();
            }
            if total == self.total {
                self.found.push(FoundRows { rows, all: true, shared_class, score });
            }
        }
    }

    fn find(&mut self, counted: &'a CountedRows, parts: &mut Vec<Part>) {
        parts.clear();
        let (mut first, mut highest) = (0, i64::MIN);
        let table = self.classes.table;
        let classes = table.feasible.iter().zip(&table.offsets).zip(counted.shared_classes());
        for (class, ((feasible, offset), shared_class)) in classes.enumerate() {
            if !feasible {
                continue;
            }
            let (class, shared_class) = (class as u32, *shared_class);
            let highest_score = self.classes.index.buckets.highest_score(shared_class);
            let Some(bound) = highest_score.map(|score| score + offset) else { continue };
            if bound > highest {
                (first, highest) = (parts.len(), bound);
            }
            parts.push(Part { class, shared_class, bound });
        }
        // Most often a row with the highest bound is found at once, and no other part has a higher one.
        let Some(part) = parts.get(first) else { return };
        self.search(counted, part);
        if self.total < highest {
            for (at, part) in parts.iter().enumerate() {
                if part.bound > self.total && at != first {
                    self.search(counted, part);
                }
            }
        }
        self.find_buckets(counted, parts);
    }

    /// The class of a part among counted rows; `None` if it is that of the rows that are not counted.
    fn counted_class(&self, part: &Part) -> Option<u32> {
        part.class.checked_sub(self.classes.n_shared() as u32)
    }

    /// What is added to the scores of its rows in the shared index.
    fn part_offset(&self, part: &Part) -> i64 {
        self.classes.table.offsets[part.class as usize]
    }

    /// Raises the total to the highest one of a row of this part, whose bound is higher.
    fn search(&mut self, counted: &CountedRows, part: &Part) {
        if counted.n_counted(part.shared_class) == 0 {
            self.total = part.bound;
            return;
        }
        let counted_class = self.counted_class(part);
        let mut n_left = counted_class.map_or(usize::MAX, |class| counted.n_rows(class));
        let part_offset = self.part_offset(part);
        for (score, rows) in self.classes.index.buckets.of_class(part.shared_class) {
            if score + part_offset <= self.total {
                return;
            }
            for row in rows {
                if n_left == 0 {
                    // The rows of the part are fewer than those that would have to be searched.
                    return self.search_listed(counted_class.map_or(&[], |it| counted.rows(it)));
                }
                n_left -= 1;
                let Some(offset) = self.classes.offset(*row, part.shared_class) else { continue };
                self.total = self.total.max(score + offset);
                // Other rows of the part have no higher score.
                if offset >= part_offset {
                    return;
                }
            }
        }
    }

    /// Raises the total to the highest one of these rows, if that is higher.
    fn search_listed(&mut self, rows: &[NodeRow]) {
        let highest = rows.iter().filter_map(|row| self.classes.total(*row)).max();
        self.total = self.total.max(highest.unwrap_or(i64::MIN));
    }

    /// Finds the buckets with rows that have the highest total.
    fn find_buckets(&mut self, counted: &'a CountedRows, parts: &[Part]) {
        for part in parts.iter().filter(|part| part.bound >= self.total) {
            let (shared_class, score) = (part.shared_class, self.total - self.part_offset(part));
            let bucket = self.classes.index.buckets.rows_with(shared_class, score);
            if bucket.is_empty() {
                continue;
            }
            let (rows, all) = match self.counted_class(part) {
                None => (bucket, counted.n_counted(shared_class) == 0),
                Some(_) if self.has_offset_of_uncounted(part) => continue,
                Some(counted_class) => {
                    let is_shorter = counted.n_rows(counted_class) < bucket.len();
                    (if is_shorter { counted.rows(counted_class) } else { bucket }, false)
                }
            };
            // Several classes of counted rows may have the same offset, and so the same bucket.
            let mut found = self.found.iter_mut();
            match found.find(|it| (it.shared_class, it.score) == (shared_class, score)) {
                Some(known) => known.rows = bucket,
                None => self.found.push(FoundRows { rows, all, shared_class, score }),
            }
        }
    }

    /// Whether the rows of the shared class that are not counted have the same totals.
    fn has_offset_of_uncounted(&self, part: &Part) -> bool {
        let (table, shared) = (self.classes.table, part.shared_class as usize);
        table.feasible[shared] && table.offsets[shared] == self.part_offset(part)
    }

    fn is_best(&self, row: NodeRow) -> bool {
        self.classes.total(row) == Some(self.total)
    }

    /// The same for a row that is in no cache of the processor: what is read of it comes from memory at the same time.
    fn is_cold_row_best(&self, row: NodeRow) -> bool {
        self.classes.preload(row);
        self.is_best(row)
    }

    /// The rows with the highest total.
    pub fn rows(&self) -> impl Iterator<Item = NodeRow> + '_ {
        self.found.iter().flat_map(|found| found.rows).copied().filter(|row| self.is_best(*row))
    }

    /// One of them at random.
    pub fn pick(&self, rng: &mut Rng) -> Option<NodeRow> {
        let n_found: usize = self.found.iter().map(|found| found.rows.len()).sum();
        if n_found == 0 {
            return None;
        }
        for _ in 0..PICK_ATTEMPTS {
            let mut at = rng.below(n_found as u64) as usize;
            for found in &self.found {
                match found.rows.get(at) {
                    Some(row) if found.all || self.is_cold_row_best(*row) => return Some(*row),
                    Some(_) => break,
                    None => at -= found.rows.len(),
                }
            }
        }
        self.pick_listed(rng)
    }

    #[cold]
    fn pick_listed(&self, rng: &mut Rng) -> Option<NodeRow> {
        let rows: Vec<NodeRow> = self.rows().collect();
        (!rows.is_empty()).then(|| *rng.pick(&rows))
    }
}
