//! JSON.

use serde::Deserialize;
use serde::de::Error as _;

/// As `serde_json::from_slice`, with the decoder of `serde_json::from_str`: the program has one decoder of each type then, and whether the text is UTF-8 is
/// checked once, not in each string.
///
/// # Errors
///
/// When the text is not UTF-8, wherever that is; otherwise as `serde_json::from_str`.
pub fn from_slice<'de, T: Deserialize<'de>>(text: &'de [u8]) -> serde_json::Result<T> {
    let text = std::str::from_utf8(text).map_err(serde_json::Error::custom)?;
    serde_json::from_str(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_decoded_as_by_serde_json_and_bytes_that_are_no_text_are_an_error() {
        #[track_caller]
        fn check(text: &[u8], want: &str) {
            let found = match from_slice::<serde_json::Value>(text) {
                Ok(value) => value.to_string(),
                Err(error) => format!("error: {error}"),
            };
            assert_eq!(found, want);
        }
        check("{\"a\": [1, \"ä\"]}".as_bytes(), "{\"a\":[1,\"ä\"]}");
        check(b"[1] 2", "error: trailing characters at line 1 column 5");
        check(b"\"a\xff\"", "error: invalid utf-8 sequence of 1 bytes from index 2");
    }
}
