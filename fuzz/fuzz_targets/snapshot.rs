//! Reading cluster files in JSON or YAML never panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use loadmaster_api::document::Document;
use loadmaster_api::snapshot::Snapshot;

fuzz_target!(|text: &str| {
    if let Err(error) = Snapshot::read(&[Document::new("fuzz", text)]) {
        let _ = error.to_string();
    }
});
