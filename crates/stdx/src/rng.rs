//! A seeded random number generator (SplitMix64). Randomness is an input: each user owns a stream that
//! was split from a seed by purpose, so that adding one draw does not shift the others.

/// A stream of random numbers; equal seeds give equal streams on every platform.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A stream that is wholly determined by `seed`.
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// A stream for one purpose, independent of how much this one is used.
    pub fn split(&self, purpose: &str) -> Rng {
        let mut seed = self.0 ^ 0x5851_f42d_4c95_7f2d;
        for byte in purpose.bytes() {
            seed = Rng(seed ^ u64::from(byte)).next_u64();
        }
        Rng(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..n`; `n` must not be 0. (Lemire's multiplication; the bias below 2^-32 is accepted for `n` < 2^32.)
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// Uniform in `low..=high`.
    pub fn range(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low) as u64 + 1) as i64
    }

    /// True once in `n` times on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of `items`, which must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn equal_seeds_give_equal_streams_and_purposes_differ() {
        let mut a = Rng::new(7);
        let mut b = Rng::new(7);
        assert_eq!(a.next_u64(), b.next_u64());
        assert_ne!(a.split("x").next_u64(), a.split("y").next_u64());
    }

    #[test]
    fn below_returns_every_value_in_range_and_no_other() {
        let mut rng = Rng::new(1);
        let mut seen = [0u32; 5];
        for _ in 0..5_000 {
            seen[rng.below(5) as usize] += 1;
        }
        assert!(seen.iter().all(|n| (800..1_200).contains(n)), "{seen:?}");
    }
}
