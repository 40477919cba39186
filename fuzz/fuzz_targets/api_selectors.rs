//! Parses selectors and other query parameters: lists, pages and watches agree; a formatted selector parses to the same selector.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, unused_imports)]
#[path = "../../crates/apiserver/tests/decoders/mod.rs"]
mod decoders;

fuzz_target!(|bytes: &[u8]| decoders::selectors(bytes));
