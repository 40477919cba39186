//! Reads files of a data directory: corrupt ones are rejected, truncated ones are read up to the last complete record.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, unused_imports)]
#[path = "../../crates/apiserver/tests/decoders/mod.rs"]
mod decoders;

fuzz_target!(|bytes: &[u8]| decoders::journal(bytes));
