//! Random choices.

use loadmaster_stdx::Rng;
use serde_json::Value;

/// A random number generator with what the generators of this module need.
pub struct Dice(Rng);

impl Dice {
    pub fn new(rng: Rng) -> Dice {
        Dice(rng)
    }

    /// True with this probability in percent.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.0.below(100) < percent
    }

    /// Uniform in `low..=high`.
    pub fn range(&mut self, low: i64, high: i64) -> i64 {
        self.0.range(low, high)
    }

    pub fn pick<T: Copy>(&mut self, pool: &[T]) -> T {
        *self.0.pick(pool)
    }

    /// `low` to `high` different items in random order.
    pub fn some<T: Copy>(&mut self, pool: &[T], low: i64, high: i64) -> Vec<T> {
        let mut rest = pool.to_vec();
        let n = self.range(low, high).min(pool.len() as i64);
        (0..n).map(|_| rest.swap_remove(self.0.below(rest.len() as u64) as usize)).collect()
    }

    /// Each item with this probability in percent.
    pub fn each<T: Copy>(&mut self, pool: &[T], percent: u64) -> Vec<T> {
        pool.iter().filter(|_| self.percent(percent)).copied().collect()
    }

    /// Sets a field with this probability in percent.
    pub fn put(
        &mut self,
        object: &mut Value,
        percent: u64,
        field: &str,
        draw: impl FnOnce(&mut Self) -> Value,
    ) {
        if self.percent(percent) {
            object[field] = draw(self);
        }
    }
}
