//! Values of some rows.

use loadmaster_framework::NodeRow;

/// Number of rows of a block.
const BLOCK: usize = u64::BITS as usize;

/// Values of a small part of the rows. For 64 rows each: which of them have one, and these values by row. A lookup reads one or two cache
/// lines, and hashes nothing.
pub(crate) struct RowMap<T> {
    blocks: Vec<Block<T>>,
}

struct Block<T> {
    members: u64,
    values: Vec<T>,
}

impl<T> Default for RowMap<T> {
    fn default() -> Self {
        RowMap { blocks: Vec::new() }
    }
}

impl<T> Block<T> {
    /// Where the value of the row with this bit is, or would be.
    #[inline]
    fn position(&self, bit: u64) -> usize {
        (self.members & (bit - 1)).count_ones() as usize
    }
}

fn block_and_bit(row: NodeRow) -> (usize, u64) {
    (row.index() / BLOCK, 1 << (row.index() % BLOCK))
}

impl<T> RowMap<T> {
    /// The value of a row.
    #[inline]
    pub fn get(&self, row: NodeRow) -> Option<&T> {
        let (block, bit) = block_and_bit(row);
        let block = self.blocks.get(block).filter(|block| block.members & bit != 0)?;
        block.values.get(block.position(bit))
    }

    /// The value of a row.
    #[inline]
    pub fn get_mut(&mut self, row: NodeRow) -> Option<&mut T> {
        let (block, bit) = block_and_bit(row);
        let block = self.blocks.get_mut(block).filter(|block| block.members & bit != 0)?;
        let at = block.position(bit);
        block.values.get_mut(at)
    }

    /// Gives a row without a value one.
    pub fn insert(&mut self, row: NodeRow, value: T) {
        let (block, bit) = block_and_bit(row);
        if self.blocks.len() <= block {
            self.blocks.resize_with(block + 1, || Block { members: 0, values: Vec::new() });
        }
        let block = &mut self.blocks[block];
        let at = block.position(bit);
        debug_assert!(block.members & bit == 0, "the row has a value");
        block.members |= bit;
        block.values.insert(at, value);
    }

    /// Removes the value of a row.
    pub fn remove(&mut self, row: NodeRow) -> Option<T> {
        let (block, bit) = block_and_bit(row);
        let block = self.blocks.get_mut(block).filter(|block| block.members & bit != 0)?;
        block.members &= !bit;
        let at = block.position(bit);
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
        for value in 0..10_000 {
            let row = NodeRow(rng.below(200) as u32);
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
            let other = NodeRow(rng.below(300) as u32);
            assert_eq!(map.get(other), twin.get(&other));
        }
    }
}
