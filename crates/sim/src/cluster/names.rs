//! Names that controllers give: as upstream's controllers form them, but drawn from a counter, so that a run can be repeated.

/// The letters of generated names: no vowels and nothing that looks alike (upstream's `util/rand`).
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LEN: usize = 5;
const N_SUFFIXES: u64 = 27u64.pow(SUFFIX_LEN as u32);

/// Shares no factor with `N_SUFFIXES`, so that the first `N_SUFFIXES` suffixes of an owner all differ.
const STRIDE: u64 = 5_813_459;

/// The five letters behind the name of an owner's pod number `nth`.
pub(super) fn suffix(owner_hash: u32, nth: u64) -> String {
    let at = (u64::from(owner_hash) + nth.wrapping_mul(STRIDE)) % N_SUFFIXES;
    let digits = (0..SUFFIX_LEN as u32).map(|place| at / 27u64.pow(place) % 27);
    digits.map(|digit| char::from(ALPHABET[digit as usize])).collect()
}

/// What stands in `pod-template-hash`: a hash's decimal digits in the safe letters, as upstream's `SafeEncodeString` does.
pub(super) fn encode(hash: u32) -> String {
    hash.to_string().bytes().map(|digit| char::from(ALPHABET[usize::from(digit) % 27])).collect()
}

/// FNV-1a over 32 bits, as upstream hashes templates.
pub(super) fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// A uid made of a number that is never used twice in a cluster.
pub(super) fn uid(n: u64) -> String {
    format!("00000000-0000-4000-8000-{n:012x}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn suffixes_of_one_owner_differ() {
        let all: BTreeSet<String> = (0..20_000).map(|nth| suffix(hash("web"), nth)).collect();
        assert_eq!(all.len(), 20_000);
        assert!(all.iter().all(|suffix| suffix.len() == SUFFIX_LEN));
    }

    #[test]
    fn hashes_are_fnv_1a() {
        assert_eq!(hash(""), 0x811c_9dc5);
        assert_eq!(hash("a"), 0xe40c_292c);
        assert_eq!(encode(1029), "546f");
    }
}
