//! KWOK's stages in files of users, and what fake kubelets do by them.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/controllers/tests/decoders/mod.rs"]
mod decoders;

fuzz_target!(|bytes: &[u8]| decoders::stages(bytes));
