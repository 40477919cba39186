//! No text panics the quantity parser, and what it accepts it prints so that it reads the same again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use loadmaster_api::Quantity;

fuzz_target!(|text: &str| {
    if let Ok(quantity) = Quantity::parse(text) {
        let _ = (quantity.value(), quantity.milli_value());
        // The amount: whole units may be others, since upstream rounds what is spelt in one way up and what is spelt in another away
        // from zero (`-1e-99` has 1, and `-1n`, as which it is printed, -1).
        let again = Quantity::parse(&quantity.to_string()).expect("what was printed");
        assert_eq!(again, quantity, "{text:?}");
        assert_eq!(again.to_string(), quantity.to_string(), "{text:?}");
    }
});
