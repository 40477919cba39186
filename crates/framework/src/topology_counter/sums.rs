//! A list of small numbers.

use std::fmt;

/// A list of sums, which are 0 beyond its end. There is a list with a sum for every node for each Service, and few nodes have more than one of
/// its pods: a sum takes two bits as long as all are below 4, so that more of these lists stay in caches, and then one, two or eight bytes.
#[derive(Clone)]
pub(super) enum Sums {
    Bits2(Vec<u64>),
    I8(Vec<i8>),
    I16(Vec<i16>),
    I64(Vec<i64>),
}

/// Number of sums of two bits in a word.
const PER_WORD: usize = u64::BITS as usize / 2;

impl Default for Sums {
    fn default() -> Self {
        Sums::Bits2(Vec::new())
    }
}

/// Those that are not 0.
impl fmt::Debug for Sums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sums = (0..self.len()).map(|at| (at, self.get(at)));
        f.debug_map().entries(sums.filter(|(_, sum)| *sum != 0)).finish()
    }
}

impl Sums {
    fn len(&self) -> usize {
        match self {
            Sums::Bits2(words) => PER_WORD * words.len(),
            Sums::I8(sums) => sums.len(),
            Sums::I16(sums) => sums.len(),
            Sums::I64(sums) => sums.len(),
        }
    }

    #[inline]
    pub fn get(&self, at: usize) -> i64 {
        match self {
            Sums::Bits2(words) => {
                let word = words.get(at / PER_WORD).copied().unwrap_or(0);
                (word >> (at % PER_WORD * 2) & 3) as i64
            }
            Sums::I8(sums) => sums.get(at).copied().map_or(0, i64::from),
            Sums::I16(sums) => sums.get(at).copied().map_or(0, i64::from),
            Sums::I64(sums) => sums.get(at).copied().unwrap_or(0),
        }
    }

    pub fn set(&mut self, at: usize, sum: i64) {
        let is_set = match self {
            Sums::Bits2(words) => {
                (0..4).contains(&sum) && {
                    let shift = at % PER_WORD * 2;
                    let word = extended_to(words, at / PER_WORD);
                    *word = *word & !(3 << shift) | (sum as u64) << shift;
                    true
                }
            }
            Sums::I8(sums) => i8::try_from(sum).map(|sum| *extended_to(sums, at) = sum).is_ok(),
            Sums::I16(sums) => i16::try_from(sum).map(|sum| *extended_to(sums, at) = sum).is_ok(),
            Sums::I64(sums) => {
                *extended_to(sums, at) = sum;
                true
            }
        };
        if !is_set {
            self.widen();
            self.set(at, sum);
        }
    }

    /// The same sums with more bits each.
    fn widen(&mut self) {
        *self = match self {
            Sums::Bits2(_) => Sums::I8((0..self.len()).map(|at| self.get(at) as i8).collect()),
            Sums::I8(sums) => Sums::I16(sums.iter().copied().map(i16::from).collect()),
            Sums::I16(_) | Sums::I64(_) => {
                Sums::I64((0..self.len()).map(|at| self.get(at)).collect())
            }
        };
    }
}

/// The number at an index of a list, to which as many zeros are appended as it takes.
fn extended_to<T: Clone + Default>(list: &mut Vec<T>, at: usize) -> &mut T {
    if list.len() <= at {
        list.resize(at + 1, T::default());
    }
    &mut list[at]
}

#[cfg(test)]
mod tests {
    use loadmaster_stdx::Rng;

    use super::*;

    #[test]
    fn a_sum_of_any_size_is_exact() {
        for bits in [2, 7, 8, 9, 15, 16, 17, 31, 40] {
            let mut rng = Rng::new(bits);
            let (mut sums, mut twin) = (Sums::default(), vec![0; 200]);
            for _ in 0..2_000 {
                let at = rng.below(150) as usize;
                twin[at] = rng.below(1 << bits) as i64 - (1 << bits >> 2) * (rng.below(2) as i64);
                sums.set(at, twin[at]);
                assert_eq!(sums.get(at), twin[at], "{bits} bits");
            }
            let all: Vec<i64> = (0..200).map(|at| sums.get(at)).collect();
            assert_eq!(all, twin, "{bits} bits");
        }
    }

    #[test]
    fn sums_take_as_many_bits_as_the_largest_needs() {
        let mut sums = Sums::default();
        let mut set_and_name = |sum: i64| {
            sums.set(70, sum);
            match &sums {
                Sums::Bits2(words) => ("bits", words.len()),
                Sums::I8(sums) => ("i8", sums.len()),
                Sums::I16(sums) => ("i16", sums.len()),
                Sums::I64(sums) => ("i64", sums.len()),
            }
        };
        assert_eq!(set_and_name(3), ("bits", 3));
        assert_eq!(set_and_name(4), ("i8", 96));
        assert_eq!(set_and_name(-128), ("i8", 96));
        assert_eq!(set_and_name(-129), ("i16", 96));
        assert_eq!(set_and_name(1 << 40), ("i64", 96));
        assert_eq!(format!("{sums:?}"), format!("{{70: {}}}", 1_i64 << 40));
    }

    #[test]
    fn a_negative_sum_takes_a_byte() {
        let mut sums = Sums::default();
        sums.set(0, 2);
        sums.set(1, -1);
        assert_eq!((sums.get(0), sums.get(1), sums.get(2)), (2, -1, 0));
    }
}
