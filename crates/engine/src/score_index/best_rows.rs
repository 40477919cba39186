//! The rows with the highest total, found in the buckets of the shared index.
//!
//! The rows of a bucket may have several totals: that of the bucket's class, and those of the classes of counted rows. Where the counted rows
//! are is not stored by score. A bucket is searched only if a row in it may have a higher total than all that were seen, and only until one is
//! found that has the highest possible one there, which is most often the first.

use loadmaster_framework::NodeRow;
use loadmaster_stdx::Rng;
use smallvec::SmallVec;

use super::counted_rows::CountedRows;
use super::row_index::RowIndex;
use crate::evaluate::class_table::ClassTable;
use crate::evaluate::incremental::Evaluator;

/// After so many attempts to pick a row with the highest total, all of them are listed.
const PICK_ATTEMPTS: usize = 32;

/// The rows of a shared class that have the same class for this combination of keys, if they are feasible.
pub(super) struct Part {
    shared_class: u32,
    /// The class among counted rows; `None` for the rows of the shared class that are not counted.
    counted_class: Option<u32>,
    offset: i64,
    /// No row has a higher total.
    bound: i64,
}

/// The rows with the highest total; none if no row is feasible.
pub(super) struct BestRows<'a> {
    index: &'a RowIndex,
    counted: Option<&'a CountedRows>,
    table: &'a ClassTable,
    pub total: i64,
    /// All of them are among these rows, each once.
    found: SmallVec<[FoundRows<'a>; 8]>,
}

/// Rows of which some have the highest total, or all.
#[derive(Clone, Copy)]
struct FoundRows<'a> {
    rows: &'a [NodeRow],
    all: bool,
}

impl<'a> BestRows<'a> {
    /// The classes must have been filtered and scored. `parts` is scratch space.
    pub fn new(
        index: &'a RowIndex,
        counted: Option<&'a CountedRows>,
        evaluator: &Evaluator,
        parts: &mut Vec<Part>,
    ) -> BestRows<'a> {
        let table = counted.map_or(&index.table, |counted| &counted.all_classes);
        let total = i64::MIN;
        let mut best = BestRows { index, counted, table, total, found: SmallVec::new() };
        match counted {
            None => best.find_uncounted(),
            Some(_) => best.find(evaluator.class_key_len(), parts),
        }
        best
    }

    /// The classes that have rows and are feasible.
    fn feasible_classes(&self) -> impl Iterator<Item = usize> + use<'a> {
        let table = self.table;
        (0..table.len()).filter(|class| table.feasible[*class])
    }

    /// If no rows are counted, all rows of a bucket have the same total.
    fn find_uncounted(&mut self) {
        for class in self.feasible_classes() {
            let highest = self.index.buckets.of_class(class as u32).next();
            let Some((score, rows)) = highest else { continue };
            let total = score + self.table.offsets[class];
            if total > self.total {
                self.total = total;
                self.found.clear();
            }
            if total == self.total {
                self.found.push(FoundRows { rows, all: true });
            }
        }
    }

    fn find(&mut self, stride: usize, parts: &mut Vec<Part>) {
        parts.clear();
        let mut first = 0;
        for class in self.feasible_classes() {
            let Some(part) = self.part(class, stride) else { continue };
            if parts.get(first).is_some_and(|first| part.bound > first.bound) {
                first = parts.len();
            }
            parts.push(part);
        }
        // Most often a row with the highest bound is found at once, and no other part has a higher one.
        let Some(part) = parts.get(first) else { return };
        self.search(part);
        parts[..first].iter().chain(&parts[first + 1..]).for_each(|part| self.search(part));
        self.find_buckets(parts);
    }

    fn part(&self, class: usize, stride: usize) -> Option<Part> {
        let counted_class = class.checked_sub(self.index.table.len()).map(|at| at as u32);
        let shared_class = match (counted_class, self.counted) {
            (Some(at), Some(counted)) => counted.shared_class(at, stride),
            _ => class as u32,
        };
        let offset = self.table.offsets[class];
        let bound = self.index.buckets.highest_score(shared_class)? + offset;
        Some(Part { shared_class, counted_class, offset, bound })
    }

    /// The rows of a part, if they are counted ones.
    fn counted_rows(&self, part: &Part) -> Option<&'a [NodeRow]> {
        part.counted_class.and_then(|class| Some(self.counted?.rows(class)))
    }

    /// What is added to the score of a row of a shared class, if the row is feasible.
    fn offset(&self, row: NodeRow, shared_class: u32) -> Option<i64> {
        let counted = self.counted.and_then(|counted| counted.class(row));
        let class = match counted {
            Some(counted) => self.index.table.len() + counted as usize,
            None => shared_class as usize,
        };
        self.table.feasible[class].then(|| self.table.offsets[class])
    }

    /// The total of a row, if it is feasible.
    fn total(&self, row: NodeRow) -> Option<i64> {
        let (shared_class, score) = self.index.class_and_score(row)?;
        Some(score + self.offset(row, shared_class)?)
    }

    /// Whether no row of a shared class is counted, so that all rows of a bucket have the same total.
    fn has_no_counted(&self, shared_class: u32) -> bool {
        self.counted.is_none_or(|counted| counted.n_counted(shared_class) == 0)
    }

    /// Raises the total to the highest one of a row of this part, if that is higher.
    fn search(&mut self, part: &Part) {
        if self.has_no_counted(part.shared_class) {
            self.total = self.total.max(part.bound);
            return;
        }
        let counted_rows = self.counted_rows(part);
        let mut n_left = counted_rows.map_or(usize::MAX, <[_]>::len);
        for (score, rows) in self.index.buckets.of_class(part.shared_class) {
            if score + part.offset <= self.total {
                return;
            }
            for row in rows {
                if n_left == 0 {
                    // These rows are fewer than those that would have to be searched.
                    let totals = counted_rows.into_iter().flatten();
                    let highest = totals.filter_map(|row| self.total(*row)).max();
                    self.total = self.total.max(highest.unwrap_or(i64::MIN));
                    return;
                }
                n_left -= 1;
                let Some(offset) = self.offset(*row, part.shared_class) else { continue };
                self.total = self.total.max(score + offset);
                // Other rows of the part have no higher score.
                if offset >= part.offset {
                    return;
                }
            }
        }
    }

    /// Finds the buckets with rows that have the highest total.
    fn find_buckets(&mut self, parts: &[Part]) {
        // Of each with its shared class and score, so that none is found twice.
        let mut of_counted = SmallVec::<[(u32, i64, &[NodeRow]); 8]>::new();
        for part in parts.iter().filter(|part| part.bound >= self.total) {
            let (class, score) = (part.shared_class, self.total - part.offset);
            let bucket = self.index.buckets.rows_with(class, score);
            match self.counted_rows(part) {
                _ if bucket.is_empty() => {}
                None => {
                    self.found.push(FoundRows { rows: bucket, all: self.has_no_counted(class) });
                }
                Some(_) if self.has_offset_of_uncounted(part) => {}
                Some(rows) => {
                    let shorter = if rows.len() < bucket.len() { rows } else { bucket };
                    match of_counted.iter_mut().find(|it| (it.0, it.1) == (class, score)) {
                        Some((_, _, known)) => *known = bucket,
                        None => of_counted.push((class, score, shorter)),
                    }
                }
            }
        }
        let of_counted = of_counted.into_iter();
        self.found.extend(of_counted.map(|(_, _, rows)| FoundRows { rows, all: false }));
    }

    /// Whether the rows of the shared class that are not counted have the same totals.
    fn has_offset_of_uncounted(&self, part: &Part) -> bool {
        let class = part.shared_class as usize;
        self.table.feasible[class] && self.table.offsets[class] == part.offset
    }

    fn is_best(&self, row: NodeRow) -> bool {
        self.total(row) == Some(self.total)
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
                    Some(row) if found.all || self.is_best(*row) => return Some(*row),
                    Some(_) => break,
                    None => at -= found.rows.len(),
                }
            }
        }
        let rows: Vec<NodeRow> = self.rows().collect();
        (!rows.is_empty()).then(|| *rng.pick(&rows))
    }
}
