//! No text panics the quantity parser, and what it accepts it prints so that it reads the same again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use loadmaster_api::Quantity;

fuzz_target!(|text: &str| {
    if let Ok(quantity) = Quantity::parse(text) {
        let _ = (quantity.value(), quantity.milli_value());
        let again = Quantity::parse(&quantity.to_string());
        assert_eq!(again.map(|q| q.value()).ok(), Some(quantity.value()), "{text:?}");
    }
});
