//! Files of a data folder: damaged ones are refused, cut ones give what was whole.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, unused_imports)]
#[path = "../../crates/apiserver/tests/decoders/mod.rs"]
mod decoders;

fuzz_target!(|bytes: &[u8]| decoders::journal(bytes));
