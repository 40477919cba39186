//! Numbers of rows by score.

/// Numbers of rows by score; there are few different scores.
#[derive(Default)]
pub(super) struct ScoreCounts(Vec<(i64, u32)>);

impl ScoreCounts {
    /// Number of rows with a score.
    pub fn get(&self, score: i64) -> u32 {
        self.position(score).map_or(0, |at| self.0[at].1)
    }

    /// The highest score, and the number of rows that have it.
    pub fn highest(&self) -> Option<(i64, u32)> {
        self.0.last().copied()
    }

    /// Counts a row.
    pub fn add(&mut self, score: i64) {
        match self.position(score) {
            Ok(at) => self.0[at].1 += 1,
            Err(at) => self.0.insert(at, (score, 1)),
        }
    }

    /// Does not count a row any more that was counted with this score.
    pub fn remove(&mut self, score: i64) {
        let Ok(at) = self.position(score) else {
            debug_assert!(false, "no row was counted with score {score}");
            return;
        };
        self.0[at].1 -= 1;
        if self.0[at].1 == 0 {
            self.0.remove(at);
        }
    }

    /// Where a score is, or would be.
    fn position(&self, score: i64) -> Result<usize, usize> {
        self.0.binary_search_by_key(&score, |(score, _)| *score)
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
        let (mut counts, mut twin) = (ScoreCounts::default(), BTreeMap::<i64, u32>::new());
        for _ in 0..5_000 {
            let score = rng.below(6) as i64 - 2;
            match twin.get_mut(&score) {
                Some(n) if rng.one_in(2) => {
                    counts.remove(score);
                    *n -= 1;
                }
                _ => {
                    counts.add(score);
                    *twin.entry(score).or_default() += 1;
                }
            }
            twin.retain(|_, n| *n > 0);
            assert_eq!(counts.get(score), twin.get(&score).copied().unwrap_or(0));
            assert_eq!(counts.highest(), twin.last_key_value().map(|(score, n)| (*score, *n)));
        }
    }
}
