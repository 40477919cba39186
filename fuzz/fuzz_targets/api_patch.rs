//! Applies patches of all types to stored objects: the result equals that of a dry run, can be encoded in JSON and protobuf, and is
//! idempotent.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, unused_imports)]
#[path = "../../crates/apiserver/tests/decoders/mod.rs"]
mod decoders;

fuzz_target!(|bytes: &[u8]| decoders::patch(bytes));
