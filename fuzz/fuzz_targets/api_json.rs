//! Decodes objects from JSON and YAML: encoding and decoding a created object, in JSON and protobuf, gives the same object.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, unused_imports)]
#[path = "../../crates/apiserver/tests/decoders/mod.rs"]
mod decoders;

fuzz_target!(|bytes: &[u8]| decoders::json_body(bytes));
