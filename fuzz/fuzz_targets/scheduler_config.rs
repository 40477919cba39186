//! Parsing and validating a KubeSchedulerConfiguration never panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use loadmaster_api::document::Document;
use loadmaster_config::{Gates, check};

fuzz_target!(|text: &str| {
    let registry = loadmaster_plugins::in_tree();
    if let Err(errors) = check(&Document::new("fuzz", text), &registry, &Gates::default()) {
        let _: Vec<String> = errors.iter().map(ToString::to_string).collect();
    }
});
