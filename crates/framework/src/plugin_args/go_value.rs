//! Decodes a JSON value as Go does: a known field that is null counts as absent, while an unknown one is an error whatever its value; null
//! in a list or map is an empty value; a list is no object.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{Deserializer, Error as _, IntoDeserializer, Unexpected, Visitor};
use serde_json::{Error, Value};

/// A value to decode.
#[derive(Clone, Copy, Debug)]
pub(super) struct GoValue<'de>(pub &'de Value);

/// What is expected where a struct is decoded.
const AN_OBJECT: &str = "an object";

type Members<'de> = Vec<(&'de str, GoValue<'de>)>;

fn visit_members<'de, V: Visitor<'de>>(
    members: Members<'de>,
    visitor: V,
) -> Result<V::Value, Error> {
    visitor.visit_map(MapDeserializer::new(members.into_iter()))
}

impl<'de> Deserializer<'de> for GoValue<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(elements) => {
                visitor.visit_seq(SeqDeserializer::new(elements.iter().map(GoValue)))
            }
            Value::Object(members) => {
                let members = members.iter().map(|(name, value)| (name.as_str(), GoValue(value)));
                visit_members(members.collect(), visitor)
            }
            scalar => scalar.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visit_members(Vec::new(), visitor),
            Value::Object(members) => {
                let is_absent =
                    |name: &str, value: &Value| value.is_null() && fields.contains(&name);
                let members = members.iter().filter(|(name, value)| !is_absent(name, value));
                let members = members.map(|(name, value)| (name.as_str(), GoValue(value)));
                visit_members(members.collect(), visitor)
            }
            // serde would take the elements of a list for the fields, and would name the Rust type in the error.
            Value::Array(_) => Err(Error::invalid_type(Unexpected::Seq, &AN_OBJECT)),
            Value::Bool(value) => Err(Error::invalid_type(Unexpected::Bool(*value), &AN_OBJECT)),
            Value::String(text) => Err(Error::invalid_type(Unexpected::Str(text), &AN_OBJECT)),
            Value::Number(number) => {
                let float = || Unexpected::Float(number.as_f64().unwrap_or_default());
                let found = number.as_i64().map_or_else(float, Unexpected::Signed);
                Err(Error::invalid_type(found, &AN_OBJECT))
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.0.is_null() {
            visit_members(Vec::new(), visitor)
        } else {
            self.deserialize_any(visitor)
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.0.is_null() { visitor.visit_str("") } else { self.deserialize_any(visitor) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str bytes byte_buf unit unit_struct seq tuple tuple_struct
        identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, Error> for GoValue<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use expect_test::{Expect, expect};
    use serde::Deserialize;
    use serde_json::{Map, json};

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Outer {
        number: i32,
        flag: Option<bool>,
        names: Vec<String>,
        labels: BTreeMap<String, String>,
        inner: Vec<Inner>,
        maps: Vec<Map<String, Value>>,
        any: Value,
    }

    impl Default for Outer {
        fn default() -> Self {
            Outer {
                number: 7,
                flag: None,
                names: Vec::new(),
                labels: BTreeMap::new(),
                inner: Vec::new(),
                maps: Vec::new(),
                any: Value::Null,
            }
        }
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Inner {
        name: String,
    }

    #[track_caller]
    fn check(value: &Value, want: &Expect) {
        match Outer::deserialize(GoValue(value)) {
            Ok(decoded) => want.assert_eq(&format!("{decoded:?}")),
            Err(error) => want.assert_eq(&error.to_string()),
        }
    }

    #[test]
    fn null_is_absent_only_where_the_field_is_known() {
        check(
            &json!({"number": null, "flag": null, "names": null, "labels": null, "inner": null, "maps": null}),
            &expect![
                "Outer { number: 7, flag: None, names: [], labels: {}, inner: [], maps: [], any: Null }"
            ],
        );
        check(
            &json!({"numbers": null}),
            &expect![
                "unknown field `numbers`, expected one of `number`, `flag`, `names`, `labels`, `inner`, `maps`, `any`"
            ],
        );
        check(
            &json!({"inner": [{"names": null}]}),
            &expect!["unknown field `names`, expected `name`"],
        );
        check(
            &json!({"names": [null, "a"], "labels": {"a": null}, "inner": [null, {"name": null}], "maps": [null], "any": {"a": null}}),
            &expect![[
                r#"Outer { number: 7, flag: None, names: ["", "a"], labels: {"a": ""}, inner: [Inner { name: "" }, Inner { name: "" }], maps: [{}], any: Object {"a": Null} }"#
            ]],
        );
    }

    #[test]
    fn a_list_is_no_object() {
        check(&json!([]), &expect!["invalid type: sequence, expected an object"]);
        check(&json!({"inner": [["a"]]}), &expect!["invalid type: sequence, expected an object"]);
        check(&json!({"number": "7"}), &expect![[r#"invalid type: string "7", expected i32"#]]);
        check(
            &json!({"number": 1, "flag": 0}),
            &expect!["invalid type: integer `0`, expected a boolean"],
        );
        check(&json!(5), &expect!["invalid type: integer `5`, expected an object"]);
    }
}
