//! Parsing and validating a KubeSchedulerConfiguration never panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use loadmaster_api::document::Document;
use loadmaster_config::{AllFeatureGates, check_configuration};

fuzz_target!(|text: &str| {
    let registry = loadmaster_plugins::in_tree_registry();
    if let Err(errors) = check_configuration(&Document::new("fuzz", text), &registry, &AllFeatureGates::default()) {
        let _: Vec<String> = errors.iter().map(ToString::to_string).collect();
    }
});
