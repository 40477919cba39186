//! Parses schemas of CustomResourceDefinitions, and prunes, defaults and validates an object with them.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, unused_imports)]
#[path = "../../crates/apiserver/tests/decoders/mod.rs"]
mod decoders;

fuzz_target!(|bytes: &[u8]| decoders::schemas(bytes));
