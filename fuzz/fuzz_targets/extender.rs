//! No bytes panic the readers of extenders' messages, on either side of the wire.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/extender-server/tests/it/any_bytes.rs"]
mod any_bytes;

fuzz_target!(|bytes: &[u8]| any_bytes::check(bytes));
