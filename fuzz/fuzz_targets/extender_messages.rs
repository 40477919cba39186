//! Decoding requests and responses of extenders never panics.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/extender-server/tests/it/arbitrary_bytes.rs"]
mod arbitrary_bytes;

fuzz_target!(|bytes: &[u8]| arbitrary_bytes::check(bytes));
