//! The rows with the highest total: found block by block while the totals are in a cache of the processor, so that one of them is selected
//! without reading the totals of other blocks again.

use loadmaster_stdx::Rng;
use pulp::Arch;

use super::row_blocks::ROWS_PER_BLOCK;

/// The highest total of the members of the set in each block of rows.
#[derive(Default)]
pub(crate) struct HighestTotals {
    by_block: Vec<HighestOfBlock>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HighestOfBlock {
    total: i64,
    /// Number of members with this total.
    n_members: usize,
}

/// A row that was selected from those with the highest total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SelectedRow {
    /// The position in the set.
    pub at: usize,
    pub total: i64,
    /// Number of rows with this total.
    pub n_ties: u64,
}

impl HighestTotals {
    /// To be called when the set or totals changed.
    pub fn clear(&mut self) {
        self.by_block.clear();
    }

    /// Adds the next block.
    pub fn push_block(&mut self, set: &[u8], totals: &[i64]) {
        self.by_block.push(Arch::new().dispatch(
            #[inline(always)]
            || highest_of_block(set, totals),
        ));
    }

    /// One of the members with the highest total at random; `None` if there is no member. The set and the totals are those of the blocks that
    /// were added since the last [`HighestTotals::clear`]; if there are none, all are added.
    pub fn select(&mut self, set: &[u8], totals: &[i64], rng: &mut Rng) -> Option<SelectedRow> {
        let blocks = set.chunks(ROWS_PER_BLOCK).zip(totals.chunks(ROWS_PER_BLOCK));
        if self.by_block.is_empty() {
            blocks.clone().for_each(|(set, totals)| self.push_block(set, totals));
        }
        let with_members = self.by_block.iter().filter(|block| block.n_members > 0);
        let total = with_members.map(|block| block.total).max()?;
        let of_block =
            |block: &HighestOfBlock| if block.total == total { block.n_members } else { 0 };
        let n_ties = self.by_block.iter().map(of_block).sum::<usize>() as u64;
        let mut n_before = rng.below(n_ties) as usize;
        let nth = self.by_block.iter().position(|block| {
            let n_members = of_block(block);
            let is_here = n_before < n_members;
            n_before -= if is_here { 0 } else { n_members };
            is_here
        })?;
        let (set, totals) = blocks.clone().nth(nth)?;
        let rows = set.iter().zip(totals).enumerate();
        let mut best = rows.filter(|(_, (member, its))| **member != 0 && **its == total);
        let (at, _) = best.nth(n_before)?;
        Some(SelectedRow { at: nth * ROWS_PER_BLOCK + at, total, n_ties })
    }
}

/// In two loops without branches, which the compiler vectorizes.
#[inline(always)]
fn highest_of_block(set: &[u8], totals: &[i64]) -> HighestOfBlock {
    let mut highest = i64::MIN;
    for (member, total) in set.iter().zip(totals) {
        let total = if *member == 0 { i64::MIN } else { *total };
        highest = if total > highest { total } else { highest };
    }
    let mut n_members = 0;
    for (member, total) in set.iter().zip(totals) {
        n_members += i64::from(*total == highest) & i64::from(*member);
    }
    HighestOfBlock { total: highest, n_members: n_members as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All positions with the highest total, in order.
    fn best_of(set: &[u8], totals: &[i64]) -> Vec<usize> {
        let members = (0..set.len()).filter(|at| set[*at] != 0);
        let highest = members.clone().map(|at| totals[at]).max();
        members.filter(|at| Some(totals[*at]) == highest).collect()
    }

    #[test]
    fn one_of_the_best_rows_is_selected() {
        let mut rng = Rng::new(4);
        let mut highest = HighestTotals::default();
        for n_rows in (0..200).chain([5_000, 3 * ROWS_PER_BLOCK]) {
            let n_totals = [1, 2, 1 << 40][rng.below(3) as usize];
            let n_members = rng.below(4);
            let set: Vec<u8> = (0..n_rows).map(|_| u8::from(rng.below(3) < n_members)).collect();
            let totals: Vec<i64> = (0..n_rows).map(|_| rng.below(n_totals) as i64 - 1).collect();
            let best = best_of(&set, &totals);
            highest.clear();
            if rng.one_in(2) {
                for (set, totals) in set.chunks(ROWS_PER_BLOCK).zip(totals.chunks(ROWS_PER_BLOCK)) {
                    highest.push_block(set, totals);
                }
            }
            for seed in 0..10 {
                // The one of its number, as if all were listed.
                let want = (!best.is_empty()).then(|| {
                    let at = *Rng::new(seed).pick(&best);
                    SelectedRow { at, total: totals[at], n_ties: best.len() as u64 }
                });
                assert_eq!(highest.select(&set, &totals, &mut Rng::new(seed)), want, "{n_rows}");
            }
        }
    }
}
