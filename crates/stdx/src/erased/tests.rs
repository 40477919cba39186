use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeOwned, DeserializeSeed as _, IgnoredAny};
use serde_json::Value;

use super::{Erased, decode_erased, decode_with};

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Record {
    name: String,
    #[serde(default)]
    count: Option<u8>,
    #[serde(default)]
    shapes: Vec<Form>,
    #[serde(default)]
    labels: BTreeMap<String, f64>,
    #[serde(default)]
    pair: (i64, bool),
    #[serde(default)]
    wrapped: Wrapped,
}

#[derive(Debug, Default, Deserialize, PartialEq)]
struct Wrapped(char);

#[derive(Debug, Deserialize, PartialEq)]
enum Form {
    Point,
    Circle(u32),
    Line(i32, i32),
    Box { width: u32 },
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(untagged)]
enum Either {
    Number(i64),
    Record(Box<Record>),
    Text(String),
}

/// Erased or not, a type is read alike, and errors are the same with their positions.
#[track_caller]
fn check<T: DeserializeOwned + Debug + PartialEq>(text: &str, is_ok: bool) {
    let mut direct = serde_json::Deserializer::from_str(text);
    let direct = T::deserialize(&mut direct).map_err(|error| error.to_string());
    let mut erased = serde_json::Deserializer::from_str(text);
    let erased = decode_erased(PhantomData::<T>, &mut erased).map_err(|error| error.to_string());
    assert_eq!(erased, direct, "{text}");
    assert_eq!(direct.is_ok(), is_ok, "{text}: {direct:?}");
    let Ok(value) = serde_json::from_str::<Value>(text) else { return };
    let direct = T::deserialize(&value).map_err(|error| error.to_string());
    let erased = decode_erased(PhantomData::<T>, &value).map_err(|error| error.to_string());
    assert_eq!(erased, direct, "{value}");
    let erased = Erased::<T>::deserialize(&value).map_err(|error| error.to_string());
    assert_eq!(erased.map(|Erased(value)| value), direct, "{value}");
    let erased = decode_with(PhantomData::<T>, |seed| seed.deserialize(&value));
    assert_eq!(erased.map_err(|error| error.to_string()), direct.map(Some), "{value}");
}

#[test]
fn a_seed_that_is_not_decoded_has_no_value() {
    assert_eq!(decode_with(PhantomData::<u8>, |_| Ok::<_, String>(())), Ok(None));
    assert_eq!(decode_with(PhantomData::<u8>, |_| Err("no")), Err("no"));
}

#[test]
fn values_and_errors_are_those_of_the_decoder() {
    for text in [
        r#"{"name": "a"}"#,
        r#"{"name": "a\n", "count": 255, "shapes": ["Point", {"Circle": 3}, {"Line": [1, -2]}, {"Box": {"width": 4}}]}"#,
        r#"{"name": "a", "count": null, "labels": {"x": 1, "y": 2.5}, "pair": [-1, true], "wrapped": "c"}"#,
    ] {
        check::<Record>(text, true);
    }
    for text in [
        "",
        "{",
        "null",
        "7",
        r#"{"count": 1}"#,
        r#"{"name": 7}"#,
        r#"{"name": null}"#,
        r#"{"name": "a", "name": "b"}"#,
        r#"{"name": "a", "other": 1}"#,
        r#"{"name": "a", "count": 256}"#,
        r#"{"name": "a", "count": 1.5}"#,
        r#"{"name": "a", "shapes": [7]}"#,
        r#"{"name": "a", "shapes": ["Square"]}"#,
        r#"{"name": "a", "shapes": ["Circle"]}"#,
        r#"{"name": "a", "shapes": [{"Line": [1]}]}"#,
        r#"{"name": "a", "shapes": [{"Box": {"width": -4}}]}"#,
        r#"{"name": "a", "shapes": [{"Box": {}}]}"#,
        r#"{"name": "a", "labels": {"x": "1"}}"#,
        r#"{"name": "a", "labels": {"x": 1 "y": 2}}"#,
        r#"{"name": "a", "pair": [1]}"#,
        r#"{"name": "a", "wrapped": "cc"}"#,
        "{\"name\": \"a\",\n \"labels\": {\"x\": 1,}}",
    ] {
        check::<Record>(text, false);
    }
}

/// serde would read a structure from a list of its fields, Go does not.
#[test]
fn a_list_is_not_a_structure() {
    for text in ["[]", r#"["a", 1, [], {}, [1, false], "x"]"#] {
        let value: Value = serde_json::from_str(text).unwrap();
        let error = decode_erased(PhantomData::<Record>, &value).unwrap_err().to_string();
        assert_eq!(error, "invalid type: sequence, expected struct Record");
    }
}

#[test]
fn shapes_that_are_known_late() {
    for (text, is_ok) in [
        ("7", true),
        (r#""a""#, true),
        (r#"{"name": "a", "shapes": ["Point"]}"#, true),
        (r#"{"name": 7}"#, false),
        ("[true]", false),
    ] {
        check::<Either>(text, is_ok);
    }
    for text in
        [r#"{"a": [1, -1, 1.5, "b", null, true, {"c": {}}], "d": 18446744073709551615}"#, "0"]
    {
        check::<Value>(text, true);
        check::<IgnoredAny>(text, true);
    }
    check::<i64>("-9223372036854775808", true);
    check::<u64>("18446744073709551615", true);
    check::<u64>("18446744073709551616", false);
    check::<()>("null", true);
    check::<()>("1", false);
}

/// An error that a type makes of a decoder's error has its text.
#[test]
fn an_error_can_be_shown_on_its_way() {
    #[derive(Debug)]
    struct Shown;
    impl<'de> Deserialize<'de> for Shown {
        fn deserialize<D: serde::Deserializer<'de>>(decoder: D) -> Result<Shown, D::Error> {
            let inner = Vec::<u8>::deserialize(decoder);
            let inner = inner.map_err(|error| format!("no bytes: {error}"));
            inner.map(|_| Shown).map_err(serde::de::Error::custom)
        }
    }
    let mut decoder = serde_json::Deserializer::from_str("[1, 2, true]");
    let error = decode_erased(PhantomData::<Shown>, &mut decoder).unwrap_err();
    let want = "no bytes: invalid type: boolean `true`, expected u8 at line 1 column 11";
    assert_eq!(error.to_string(), want);
}
