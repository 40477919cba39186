//! The last changes of a counter.

use std::array;

/// So many are remembered: most often there are one or two between two decisions that read a counter. Where pods are deleted, too, four
/// were too few: scans of all changes took 2 % of the instructions of a decision.
const N_REMEMBERED: usize = 8;

/// Sequence numbers of the last changes of the world that changed a sum.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentChanges {
    /// The last one first; the first `n` of them are remembered.
    seqs: [u64; N_REMEMBERED],
    n: usize,
    /// All changes from this number on are remembered.
    known_since: u64,
}

impl RecentChanges {
    /// A sum changes in this change, which is not before the last one.
    pub fn add(&mut self, seq: u64) {
        if self.last() == Some(seq) {
            return;
        }
        if self.n == N_REMEMBERED {
            self.known_since = self.seqs[N_REMEMBERED - 1] + 1;
        } else {
            self.n += 1;
        }
        let before = self.seqs;
        self.seqs = array::from_fn(|at| if at == 0 { seq } else { before[at - 1] });
    }

    /// Sums may change in this change, and may have changed in others before it.
    pub fn add_unknown(&mut self, seq: u64) {
        self.add(seq);
        self.n = 1;
        self.known_since = seq + 1;
    }

    /// The last one, or a later one; `None` if there was none.
    pub fn last(&self) -> Option<u64> {
        self.seqs[..self.n].first().copied()
    }

    /// Those from this number on, the last one first; `None` if there are more than are remembered.
    pub fn since(&self, then: u64) -> Option<&[u64]> {
        if then < self.known_since {
            return None;
        }
        let changes = &self.seqs[..self.n];
        let n = changes.iter().position(|seq| *seq < then).unwrap_or(changes.len());
        changes.get(..n)
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_stdx::Rng;

    use super::*;

    #[test]
    fn known_changes_are_those_that_were_added() {
        let mut rng = Rng::new(5);
        let (mut recent, mut all) = (RecentChanges::default(), Vec::new());
        let mut unknown_until = 0;
        let mut n_known = 0;
        for seq in 0..5_000 {
            match rng.below(20) {
                0..5 => {
                    recent.add(seq);
                    all.push(seq);
                    recent.add(seq);
                }
                5 => {
                    recent.add_unknown(seq);
                    all.push(seq);
                    unknown_until = seq + 1;
                }
                _ => {}
            }
            assert_eq!(recent.last(), all.last().copied());
            let then = seq.saturating_sub(rng.below(30));
            let mut want: Vec<u64> = all.iter().copied().filter(|it| *it >= then).collect();
            want.reverse();
            let is_known = then >= unknown_until && want.len() <= N_REMEMBERED;
            assert_eq!(recent.since(then), is_known.then_some(&want[..]), "from {then} to {seq}");
            n_known += usize::from(is_known);
        }
        assert!((1_000..4_500).contains(&n_known), "{n_known}");
    }
}
