//! A list of sums.

use std::fmt;

use loadmaster_stdx::PackedList;

/// A list of sums, which are 0 beyond its end. There is a list with a sum for every node for each Service, and few nodes have more than one of
/// its pods: a sum takes two bits as long as all are below 4.
#[derive(Clone, Default)]
pub(super) struct Sums {
    list: PackedList,
    /// Whether one was negative: the list has then for n twice n, and for -n one less than that.
    is_signed: bool,
}

/// Those that are not 0.
impl fmt::Debug for Sums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sums = self.list.not_zero().map(|(at, _)| (at, self.get(at)));
        f.debug_map().entries(sums).finish()
    }
}

impl Sums {
    #[inline]
    pub fn get(&self, at: usize) -> i64 {
        let number = self.list.get(at);
        if self.is_signed { unfold(number) } else { number as i64 }
    }

    /// Adds to a sum, and returns what it was.
    #[inline]
    pub fn add(&mut self, at: usize, amount: i64) -> i64 {
        if !self.is_signed
            && let Some(before) = self.list.try_add(at, amount)
        {
            return before as i64;
        }
        let before = self.get(at);
        self.set(at, before + amount);
        before
    }

    fn set(&mut self, at: usize, sum: i64) {
        if sum < 0 && !self.is_signed {
            self.allow_negative();
        }
        self.list.set(at, if self.is_signed { fold(sum) } else { sum as u64 });
    }

    #[cold]
    fn allow_negative(&mut self) {
        let before = std::mem::take(&mut self.list);
        before.not_zero().for_each(|(at, number)| self.list.set(at, fold(number as i64)));
        self.is_signed = true;
    }
}

/// A small number for one that is near to 0: zigzag, as in protobuf.
fn fold(sum: i64) -> u64 {
    (sum << 1 ^ sum >> 63) as u64
}

fn unfold(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

#[cfg(test)]
mod tests {
    use loadmaster_stdx::Rng;

    use super::*;

    #[test]
    fn a_sum_of_any_size_is_exact() {
        for bits in [2, 7, 8, 9, 15, 16, 17, 31, 40] {
            for may_be_negative in [false, true] {
                let mut rng = Rng::new(bits);
                let (mut sums, mut twin) = (Sums::default(), vec![0; 200]);
                for _ in 0..2_000 {
                    let at = rng.below(150) as usize;
                    let least = if may_be_negative { -(1 << bits >> 2) } else { 0 };
                    let sum = least + rng.below(1 << bits) as i64;
                    assert_eq!(sums.add(at, sum - twin[at]), twin[at], "{bits} bits");
                    twin[at] = sum;
                    assert_eq!(sums.get(at), sum, "{bits} bits");
                }
                let all: Vec<i64> = (0..200).map(|at| sums.get(at)).collect();
                assert_eq!(all, twin, "{bits} bits");
            }
        }
    }

    #[test]
    fn sums_near_to_0_take_few_bits() {
        let mut sums = Sums::default();
        let bits = [3, 4, -8, -9, i64::MAX, i64::MIN].map(|sum| {
            sums.set(1, sum);
            assert_eq!((sums.get(0), sums.get(1), sums.get(2)), (0, sum, 0));
            sums.list.bits()
        });
        assert_eq!(bits, [2, 4, 4, 8, 64, 64]);
        assert_eq!(format!("{sums:?}"), format!("{{1: {}}}", i64::MIN));
    }
}
