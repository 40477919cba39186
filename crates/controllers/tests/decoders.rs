//! No file of stages panics the kubelets: good ones, and good ones that were changed at random. The same function is a fuzz
//! target.

#[path = "decoders/mod.rs"]
mod decoders;

use loadmaster_stdx::Rng;

/// Changes of each seed.
const N_CHANGES: usize = 300;

const WORDS: &[&str] = &[
    "{{ end }}",
    "{{ range . }}",
    "{{ else }}",
    "$x := ",
    " | ",
    "9223372036854775808",
    "- ",
    "'",
    "null",
    "[]",
    "\n",
];

#[test]
fn stages() {
    let seeds = [
        include_str!("../../../fuzz/seeds/kwok_stages/pods"),
        include_str!("../../../fuzz/seeds/kwok_stages/nodes"),
        include_str!("../../../fuzz/seeds/kwok_stages/jitter"),
    ];
    let rng = Rng::new(7);
    for (nth, seed) in seeds.iter().enumerate() {
        decoders::stages(seed.as_bytes());
        let mut rng = rng.split(&nth.to_string());
        for _ in 0..N_CHANGES {
            let mut bytes = seed.as_bytes().to_vec();
            for _ in 0..=rng.below(3) {
                change(&mut bytes, &mut rng);
            }
            decoders::stages(&bytes);
        }
    }
}

/// A byte, a cut, or a word.
fn change(bytes: &mut Vec<u8>, rng: &mut Rng) {
    let at = rng.below(bytes.len() as u64 + 1) as usize;
    match rng.below(3) {
        0 if at < bytes.len() => bytes[at] = rng.next_u64() as u8,
        1 => {
            let end = (at + 1 + rng.below(8) as usize).min(bytes.len());
            bytes.drain(at..end);
        }
        _ => drop(bytes.splice(at..at, rng.pick(WORDS).bytes())),
    }
}
