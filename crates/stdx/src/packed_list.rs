//! A list of small numbers.

use std::iter;

/// A list of numbers, which are 0 beyond its end. Each takes two bits as long as all are below 4, then 4, 8, 16, 32 or 64 bits: of many
/// such lists, more stay in caches of the processor.
#[derive(Clone)]
pub struct PackedList {
    words: Vec<u64>,
    /// Two to this power is the number of bits of a number: from 1 to 6.
    log2_bits: u32,
    /// The largest number with so many bits.
    max: u64,
}

/// Two to this power is the number of bits of a word.
const LOG2_WORD_BITS: u32 = u64::BITS.ilog2();

impl Default for PackedList {
    fn default() -> Self {
        PackedList::with_log2_bits(1)
    }
}

impl PackedList {
    fn with_log2_bits(log2_bits: u32) -> PackedList {
        let max = u64::MAX >> (u64::BITS - (1 << log2_bits));
        PackedList { words: Vec::new(), log2_bits, max }
    }

    /// A list of zeros, with space for numbers up to `max`.
    pub fn zeros(len: usize, max: u64) -> PackedList {
        let log2_bits = (1..LOG2_WORD_BITS).find(|log2_bits| max >> (1 << log2_bits) == 0);
        let mut list = PackedList::with_log2_bits(log2_bits.unwrap_or(LOG2_WORD_BITS));
        list.words = vec![0; (len << list.log2_bits).div_ceil(u64::BITS as usize)];
        list
    }

    /// The number at this index.
    #[inline]
    pub fn get(&self, at: usize) -> u64 {
        let (word, shift) = self.place(at);
        self.words.get(word).map_or(0, |word| word >> shift & self.max)
    }

    /// Replaces the number at this index.
    #[inline]
    pub fn set(&mut self, at: usize, number: u64) {
        while number > self.max {
            self.widen();
        }
        let (word, shift) = self.place(at);
        if self.words.len() <= word {
            if number == 0 {
                return;
            }
            self.words.resize(word + 1, 0);
        }
        let word = &mut self.words[word];
        *word = *word & !(self.max << shift) | number << shift;
    }

    /// Adds to the number at this index, and returns what it was. Changes nothing and returns `None` if the sum is negative or takes more bits
    /// than numbers have now, or if no number was set at this index or a higher one.
    #[inline]
    pub fn try_add(&mut self, at: usize, amount: i64) -> Option<u64> {
        let (word, shift) = self.place(at);
        let word = self.words.get_mut(word)?;
        let before = *word >> shift & self.max;
        let after = before.checked_add_signed(amount).filter(|after| *after <= self.max)?;
        *word ^= (before ^ after) << shift;
        Some(before)
    }

    /// The numbers that are not 0, with their indices in ascending order.
    pub fn not_zero(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let (log2_bits, max) = (self.log2_bits, self.max);
        let words = self.words.iter().enumerate().filter(|(_, word)| **word != 0);
        words.flat_map(move |(at, word)| {
            let first = at << (LOG2_WORD_BITS - log2_bits);
            let mut rest = *word;
            iter::from_fn(move || {
                let nth = (rest != 0).then(|| rest.trailing_zeros() >> log2_bits)?;
                let shift = nth << log2_bits;
                let number = rest >> shift & max;
                rest &= !(max << shift);
                Some((first + nth as usize, number))
            })
        })
    }

    /// The number of bits that each number takes.
    pub fn bits(&self) -> u32 {
        1 << self.log2_bits
    }

    /// The word with the number at this index, and where it begins there.
    #[inline]
    fn place(&self, at: usize) -> (usize, u32) {
        let word = at >> (LOG2_WORD_BITS - self.log2_bits);
        (word, (at << self.log2_bits) as u32 % u64::BITS)
    }

    /// Gives each number twice as many bits.
    #[cold]
    fn widen(&mut self) {
        let mut wider = PackedList::with_log2_bits(self.log2_bits + 1);
        let halves = self.words.iter().flat_map(|word| [word & u64::from(u32::MAX), word >> 32]);
        wider.words = halves.map(|half| spread(half, self.bits())).collect();
        *self = wider;
    }
}

/// Half a word with numbers of so many bits, as a word with twice as many bits for each.
fn spread(half: u64, bits: u32) -> u64 {
    let mut word = half;
    let mut group = u64::BITS / 4;
    while group >= bits {
        // Groups of so many bits, and as many zeros between them.
        let mask = u64::MAX / ((1 << group) + 1);
        word = (word | word << group) & mask;
        group /= 2;
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    #[test]
    fn equal_to_a_list_of_wide_numbers() {
        for bits in [1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 63] {
            let mut rng = Rng::new(bits);
            let (mut list, mut twin) = (PackedList::default(), vec![0; 200]);
            list.set(150, 1);
            twin[150] = 1;
            for _ in 0..2_000 {
                let at = rng.below(150) as usize;
                twin[at] = rng.below(1 << bits);
                list.set(at, twin[at]);
                assert_eq!(list.get(at), twin[at], "{bits} bits");
                let (at, amount) = (rng.below(150) as usize, rng.below(7) as i64 - 3);
                let after = twin[at].checked_add_signed(amount).filter(|it| *it <= list.max);
                assert_eq!(list.try_add(at, amount), after.map(|_| twin[at]), "{bits} bits");
                twin[at] = after.unwrap_or(twin[at]);
            }
            let all: Vec<u64> = (0..200).map(|at| list.get(at)).collect();
            assert_eq!(all, twin, "{bits} bits");
            let not_zero = (0..).zip(twin).filter(|(_, number)| *number != 0);
            assert!(list.not_zero().eq(not_zero), "{bits} bits");
        }
    }

    #[test]
    fn numbers_take_as_many_bits_as_the_largest_needs() {
        let mut list = PackedList::default();
        let largest = [3, 4, 15, 16, 255, 256, 1 << 16, 1 << 32, u64::MAX];
        let bits = largest.map(|number| {
            list.set(70, number);
            assert_eq!(list.get(70), number);
            list.bits()
        });
        assert_eq!(bits, [2, 4, 4, 8, 8, 16, 32, 64, 64]);
        assert_eq!(largest.map(|number| PackedList::zeros(71, number).bits()), bits);
    }

    #[test]
    fn a_list_of_zeros_has_space_for_its_numbers() {
        for len in [0, 1, 31, 32, 33, 100] {
            let mut list = PackedList::zeros(len, 3);
            let n_words = list.words.len();
            (0..len).for_each(|at| list.set(at, at as u64 % 4));
            assert!((0..len).all(|at| list.get(at) == at as u64 % 4), "{len}");
            assert_eq!((list.words.len(), list.get(len)), (n_words, 0), "{len}");
        }
    }
}
