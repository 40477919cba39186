//! Selectors and other parameters: lists, pages and watches agree; selectors are read as they are written.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, unused_imports)]
#[path = "../../crates/apiserver/tests/decoders/mod.rs"]
mod decoders;

fuzz_target!(|bytes: &[u8]| decoders::selectors(bytes));
