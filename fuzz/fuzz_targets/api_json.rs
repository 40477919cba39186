//! Bodies of objects, as JSON and YAML: what is made is the same when it is made from itself, in JSON and in protobuf.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, unused_imports)]
#[path = "../../crates/apiserver/tests/decoders/mod.rs"]
mod decoders;

fuzz_target!(|bytes: &[u8]| decoders::json_body(bytes));
