//! Compiling and matching label selectors and node selectors never panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use loadmaster_api::selector::CompiledNodeSelector;
use loadmaster_api::{LabelSelector, Labels, NodeSelector, Selector};

fuzz_target!(|bytes: &[u8]| {
    let labels: Labels =
        [("app", "web"), ("generation", "7")].into_iter().map(|(k, v)| (k, v.into())).collect();
    if let Ok(selector) = serde_json::from_slice::<LabelSelector>(bytes)
        && let Ok(selector) = Selector::new(Some(&selector))
    {
        let _ = selector.matches(&labels);
    }
    if let Ok(selector) = serde_json::from_slice::<NodeSelector>(bytes) {
        let _ = CompiledNodeSelector::new(&selector).matches(&labels, "node-1");
    }
});
