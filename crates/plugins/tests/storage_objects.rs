//! No storage object panics the volume plugins: good ones, and good ones that were changed at random. The same function is a fuzz
//! target.

mod decoders;

use loadmaster_stdx::Rng;

/// Changes of each seed.
const N_CHANGES: usize = 150;

const WORDS: &[&str] = &[
    "null",
    "[]",
    "{}",
    "-1",
    "\"\"",
    "\"9223372036854775807\"",
    "\"-5Gi\"",
    "\"1e30\"",
    "\"data\"",
    "\"pv\"",
    "\"NotIn\"",
    "\"Gt\"",
    "\"WaitForFirstConsumer\"",
    "__",
    ",",
];

#[test]
fn storage_objects() {
    let seeds = [
        include_str!("../../../fuzz/seeds/storage_objects/bound"),
        include_str!("../../../fuzz/seeds/storage_objects/capacity"),
        include_str!("../../../fuzz/seeds/storage_objects/disks"),
        include_str!("../../../fuzz/seeds/storage_objects/limits"),
        include_str!("../../../fuzz/seeds/storage_objects/static"),
    ];
    let rng = Rng::new(7);
    for (nth, seed) in seeds.iter().enumerate() {
        assert_eq!(decoders::storage_documents(seed.as_bytes()), seed.lines().count());
        let mut rng = rng.split(&nth.to_string());
        for _ in 0..N_CHANGES {
            let mut bytes = seed.as_bytes().to_vec();
            for _ in 0..=rng.below(3) {
                change(&mut bytes, &mut rng);
            }
            decoders::storage_documents(&bytes);
        }
    }
}

/// A word in the place of a JSON value or anywhere, a cut, or a byte.
fn change(bytes: &mut Vec<u8>, rng: &mut Rng) {
    let at = rng.below(bytes.len() as u64 + 1) as usize;
    let word = rng.pick(WORDS).bytes();
    match rng.below(6) {
        0 if at < bytes.len() => bytes[at] = rng.next_u64() as u8,
        1 => {
            let end = (at + 1 + rng.below(8) as usize).min(bytes.len());
            bytes.drain(at..end);
        }
        2 => drop(bytes.splice(at..at, word)),
        _ => {
            let value = bytes[at..].windows(2).position(|pair| pair == b": ");
            let Some(start) = value.map(|found| at + found + 2) else { return };
            let is_end = |byte: &u8| b",}\n".contains(byte);
            let end = bytes[start..].iter().position(is_end).map_or(bytes.len(), |it| start + it);
            bytes.splice(start..end, word);
        }
    }
}
