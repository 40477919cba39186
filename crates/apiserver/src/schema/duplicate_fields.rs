//! Finds duplicate fields of a JSON text, which parsers accept and strict field validation reports.

use std::cell::RefCell;
use std::fmt;

use loadmaster_stdx::Set;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// Upstream's messages about duplicate fields: `duplicate field "spec.x"`. None for invalid JSON.
pub fn duplicate_fields(json: &[u8]) -> Vec<String> {
    let found = RefCell::new(Vec::new());
    // The decoder reports what is wrong with the text.
    let Ok(text) = std::str::from_utf8(json) else { return Vec::new() };
    let mut reader = serde_json::Deserializer::from_str(text);
    let _ = Node { path: String::new(), found: &found }.deserialize(&mut reader);
    found.into_inner()
}

struct Node<'a> {
    path: String,
    found: &'a RefCell<Vec<String>>,
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let mut seen: Set<String> = Set::default();
        while let Some(name) = members.next_key::<String>()? {
            let dot = if self.path.is_empty() { "" } else { "." };
            let path = format!("{}{dot}{name}", self.path);
            if !seen.insert(name) {
                self.found.borrow_mut().push(format!("duplicate field {path:?}"));
            }
            members.next_value_seed(Node { path, found: self.found })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let mut at = 0;
        let entry = |at| Node { path: format!("{}[{at}]", self.path), found: self.found };
        while entries.next_element_seed(entry(at))?.is_some() {
            at += 1;
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_fields_are_found() {
        let json =
            br#"{"a": 1, "spec": {"b": 1, "l": [{"c": 1}, {"c": 1, "c": 2}], "b": {}}, "a": null}"#;
        let want = [r#"spec.l[1].c"#, "spec.b", "a"].map(|it| format!("duplicate field {it:?}"));
        assert_eq!(duplicate_fields(json), want);
        assert!(duplicate_fields(b"{").is_empty());
        assert!(duplicate_fields(br#"{"a": [1, "x", true, 1.5]}"#).is_empty());
    }
}
