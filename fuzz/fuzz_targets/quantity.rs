//! Parsing a quantity never panics, and a formatted quantity parses to the same quantity.
#![no_main]

use libfuzzer_sys::fuzz_target;
use loadmaster_api::Quantity;

fuzz_target!(|text: &str| {
    if let Ok(quantity) = Quantity::parse(text) {
        let _ = (quantity.value(), quantity.milli_value());
        // Only the amounts are equal: values in whole units may differ, because upstream rounds some notations up and others away
        // from
        // zero (`-1e-99` has the value 1, but `-1n`, as it is formatted, -1).
        let again = Quantity::parse(&quantity.to_string()).expect("a formatted quantity");
        assert_eq!(again, quantity, "{text:?}");
        assert_eq!(again.to_string(), quantity.to_string(), "{text:?}");
    }
});
