//! Selectors and other parameters: the API server neither panics nor blames itself.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../crates/apiserver/tests/decoders/mod.rs"]
mod decoders;

fuzz_target!(|bytes: &[u8]| decoders::selectors(bytes));
