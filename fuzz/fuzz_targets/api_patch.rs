//! Patches of all kinds on stored objects: as in a dry run, readable in both forms, the same when done again.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, unused_imports)]
#[path = "../../crates/apiserver/tests/decoders/mod.rs"]
mod decoders;

fuzz_target!(|bytes: &[u8]| decoders::patch(bytes));
