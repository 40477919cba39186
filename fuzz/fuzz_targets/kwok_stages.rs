//! Parses KWOK Stages, and runs simulated kubelets with them.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/controllers/tests/decoders/mod.rs"]
mod decoders;

fuzz_target!(|bytes: &[u8]| decoders::stages(bytes));
