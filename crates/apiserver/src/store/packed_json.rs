//! Packed JSON: objects compressed with an earlier version of the same table as dictionary.
//!
//! Objects of a table resemble each other: names of fields, managed fields, most of a template. A version is packed with LZ4
//! whose dictionary is one such version, the base, which takes a pod of five kilobytes to less than one. It costs some
//! microseconds a write and a read, little beside decoding the JSON.

use std::sync::Arc;

use lz4_flex::block::{compress_with_dict, decompress_into_with_dict};

/// Shorter texts stay as they are: leases are renewed all the time, and there is little to gain.
const PACKED_BYTES_MIN: usize = 1024;
/// Longer ones are no base: each write would have to read all of it.
const BASE_BYTES_MAX: usize = 16 << 10;
/// So many versions share a base; then the next one becomes the base, since what is typical of a table changes.
const N_PACKED_MAX: u32 = 256;

/// A text, never changed.
#[derive(Clone, Debug)]
pub(super) enum PackedJson {
    Plain(Arc<[u8]>),
    Packed { bytes: Box<[u8]>, n_plain: u32, base: Arc<[u8]> },
}

impl PackedJson {
    /// How many bytes the text has.
    pub fn len(&self) -> usize {
        match self {
            PackedJson::Plain(bytes) => bytes.len(),
            PackedJson::Packed { n_plain, .. } => *n_plain as usize,
        }
    }

    /// How many bytes of memory it takes, without the base, which it shares.
    pub fn n_stored(&self) -> usize {
        match self {
            PackedJson::Plain(bytes) => bytes.len(),
            PackedJson::Packed { bytes, .. } => bytes.len(),
        }
    }

    /// Writes the text to the beginning of `out`, which must be large enough. If the memory were damaged, `out` would
    /// not be JSON, and its reader would report that.
    pub fn write(&self, out: &mut [u8]) {
        match self {
            PackedJson::Plain(bytes) => out[..bytes.len()].copy_from_slice(bytes),
            PackedJson::Packed { bytes, n_plain, base } => {
                let n = decompress_into_with_dict(bytes, &mut out[..*n_plain as usize], base);
                debug_assert_eq!(n.ok(), Some(*n_plain as usize), "the text was packed here");
            }
        }
    }
}

/// Packs the texts of a table.
#[derive(Debug, Default)]
pub(super) struct Packer {
    base: Arc<[u8]>,
    n_packed: u32,
}

impl Packer {
    /// The text, packed if that makes it shorter.
    pub fn pack(&mut self, text: PackedJson) -> PackedJson {
        let PackedJson::Plain(plain) = &text else { return text };
        if plain.len() < PACKED_BYTES_MIN {
            return text;
        }
        let is_due = self.base.is_empty() || self.n_packed >= N_PACKED_MAX;
        if is_due && plain.len() <= BASE_BYTES_MAX {
            (self.base, self.n_packed) = (Arc::clone(plain), 0);
            return text;
        }
        self.n_packed = self.n_packed.saturating_add(1);
        let packed = compress_with_dict(plain, &self.base);
        match u32::try_from(plain.len()) {
            Ok(n_plain) if packed.len() < plain.len() => {
                PackedJson::Packed { bytes: packed.into(), n_plain, base: Arc::clone(&self.base) }
            }
            _ => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_stdx::Rng;

    use super::*;

    fn read(text: &PackedJson) -> Vec<u8> {
        let mut out = vec![0; text.len()];
        text.write(&mut out);
        out
    }

    /// Texts of a table whose objects resemble each other more or less.
    fn some_text(rng: &mut Rng) -> Vec<u8> {
        let n_words = rng.below(4_000);
        let varied = rng.below(1_000).max(1);
        (0..n_words)
            .flat_map(|i| format!("\"w{}\":{},", i % 97, rng.below(varied)).into_bytes())
            .collect()
    }

    #[test]
    fn packed_texts_round_trip() {
        let mut rng = Rng::new(7);
        let mut packer = Packer::default();
        let plain: Vec<Vec<u8>> = (0..2_000).map(|_| some_text(&mut rng)).collect();
        let texts: Vec<PackedJson> =
            plain.iter().map(|it| packer.pack(PackedJson::Plain(it.as_slice().into()))).collect();
        for (plain, text) in plain.iter().zip(&texts) {
            assert_eq!(&read(text), plain);
            assert!(text.n_stored() <= plain.len());
        }
        assert!(texts.iter().any(|it| matches!(it, PackedJson::Packed { .. })));
    }

    #[test]
    fn similar_versions_are_compressed() {
        let text = |i: u64| {
            let words: String = (0..300).map(|word| format!("\"field{word}\":{word},")).collect();
            format!("{{\"name\":\"web-{i}\",{words}}}").into_bytes()
        };
        let mut packer = Packer::default();
        let texts: Vec<PackedJson> =
            (0..1_000).map(|i| packer.pack(PackedJson::Plain(text(i).into()))).collect();
        let plain: usize = texts.iter().map(PackedJson::len).sum();
        let stored: usize = texts.iter().map(PackedJson::n_stored).sum();
        assert!(stored * 20 < plain, "{stored} of {plain} bytes");
    }

    #[test]
    fn short_and_incompressible_texts_are_not_packed() {
        let mut rng = Rng::new(1);
        let mut noise = || (0..2_000).map(|_| rng.below(256) as u8).collect::<Vec<u8>>();
        let mut packer = Packer::default();
        for plain in [vec![b'a'; 100], noise(), noise(), noise()] {
            let text = packer.pack(PackedJson::Plain(plain.as_slice().into()));
            assert!(matches!(text, PackedJson::Plain(_)));
            assert_eq!(read(&text), plain);
        }
    }
}
