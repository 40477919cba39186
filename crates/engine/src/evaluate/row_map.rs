//! Values of some rows.

use loadmaster_framework::NodeRow;

/// Number of words of a block.
const WORDS: usize = 4;

/// Number of rows of a block.
const BLOCK: usize = WORDS * u64::BITS as usize;

/// Values of a small part of the rows. For 256 rows each: which of them have one, and these values by row. A lookup hashes nothing, and what
/// it reads is small enough to stay in caches. So few rows because an insertion moves the values behind it, which are in no cache if the map
/// has not been used for a while.
pub(crate) struct RowMap<T> {
    blocks: Vec<Block<T>>,
}

/// A cache line.
#[repr(align(64))]
struct Block<T> {
    /// A bit for each row that has a value.
    members: [u64; WORDS],
    /// By word: number of values before it.
    n_before: [u16; WORDS],
    values: Vec<T>,
}

/// Where a row is.
struct Place {
    block: usize,
    word: usize,
    bit: u64,
}

impl<T> Default for RowMap<T> {
    fn default() -> Self {
        RowMap { blocks: Vec::new() }
    }
}

impl Place {
    fn new(row: NodeRow) -> Place {
        let at = row.index();
        let (word, bit) = (at / u64::BITS as usize % WORDS, at % u64::BITS as usize);
        Place { block: at / BLOCK, word, bit: 1 << bit }
    }
}

impl<T> Block<T> {
    const EMPTY: Block<T> = Block { members: [0; WORDS], n_before: [0; WORDS], values: Vec::new() };

    /// Where the value of a row is.
    #[inline]
    fn position(&self, place: &Place) -> Option<usize> {
        (self.members[place.word] & place.bit != 0).then(|| self.position_before(place))
    }

    /// Where the value of a row is, or would be.
    #[inline]
    fn position_before(&self, place: &Place) -> usize {
        let before = self.members[place.word] & (place.bit - 1);
        usize::from(self.n_before[place.word]) + before.count_ones() as usize
    }
}

impl<T> RowMap<T> {
    /// The value of a row.
    #[inline]
    pub fn get(&self, row: NodeRow) -> Option<&T> {
        let place = Place::new(row);
        let block = self.blocks.get(place.block)?;
        block.values.get(block.position(&place)?)
    }

    /// The value of a row.
    #[inline]
    pub fn get_mut(&mut self, row: NodeRow) -> Option<&mut T> {
        let place = Place::new(row);
        let block = self.blocks.get_mut(place.block)?;
        let at = block.position(&place)?;
        block.values.get_mut(at)
    }

    /// Gives a row without a value one.
    pub fn insert(&mut self, row: NodeRow, value: T) {
        let place = Place::new(row);
        if self.blocks.len() <= place.block {
            self.blocks.resize_with(place.block + 1, || Block::EMPTY);
        }
        let block = &mut self.blocks[place.block];
        debug_assert!(block.position(&place).is_none(), "the row has a value");
        let at = block.position_before(&place);
        block.members[place.word] |= place.bit;
        block.n_before[place.word + 1..].iter_mut().for_each(|n| *n += 1);
        block.values.insert(at, value);
    }

    /// Removes the value of a row.
    pub fn remove(&mut self, row: NodeRow) -> Option<T> {
        let place = Place::new(row);
        let block = self.blocks.get_mut(place.block)?;
        let at = block.position(&place)?;
        block.members[place.word] &= !place.bit;
        block.n_before[place.word + 1..].iter_mut().for_each(|n| *n -= 1);
        Some(block.values.remove(at))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use loadmaster_stdx::Rng;

    use super::*;

    #[test]
    fn equal_to_a_map() {
        let mut rng = Rng::new(11);
        let (mut map, mut twin) = (RowMap::default(), BTreeMap::new());
        for value in 0..50_000 {
            let row = NodeRow(rng.below(2_000) as u32);
            match rng.below(3) {
                0 => assert_eq!(map.remove(row), twin.remove(&row)),
                _ => match map.get_mut(row) {
                    Some(known) => {
                        *known = value;
                        assert!(twin.insert(row, value).is_some());
                    }
                    None => {
                        map.insert(row, value);
                        assert!(twin.insert(row, value).is_none());
                    }
                },
            }
            let other = NodeRow(rng.below(3_000) as u32);
            assert_eq!(map.get(other), twin.get(&other));
        }
    }
}
