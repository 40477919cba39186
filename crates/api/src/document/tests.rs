use std::collections::BTreeMap;

use expect_test::{Expect, expect};
use proptest::prelude::*;
use serde::Deserialize;

use super::*;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "printed only")]
struct Config {
    kind: String,
    #[serde(default)]
    weight: i32,
    #[serde(default)]
    on: bool,
    #[serde(default)]
    items: Vec<Item>,
    #[serde(default)]
    labels: BTreeMap<String, u8>,
    #[serde(default)]
    time: Option<crate::Timestamp>,
}

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "printed only")]
struct Item {
    name: String,
    cpu: Option<crate::Quantity>,
    effect: Option<Effect>,
}

#[derive(Debug, Deserialize)]
enum Effect {
    NoSchedule,
}

/// Decodes `text` as a `Config`; the error if there is one.
#[track_caller]
fn check(text: &str, want: &Expect) {
    let got = match Document::new("f", text).decode::<Config>() {
        Ok(config) => format!("{config:?}"),
        Err(error) => error.to_string(),
    };
    want.assert_eq(&got);
}

#[track_caller]
fn check_value(text: &str, want: &Expect) {
    let got = match Document::new("f", text).decode_value() {
        Ok(value) => value.to_string(),
        Err(error) => error.to_string(),
    };
    want.assert_eq(&got);
}

#[test]
fn several_typed_values() {
    #[track_caller]
    fn check(text: &str, want: &str) {
        let all = Document::new("f", text).decode_all::<Config>();
        let kinds = all.map(|all| all.into_iter().map(|it| it.kind).collect::<Vec<_>>().join(" "));
        assert_eq!(kinds.unwrap_or_else(|error| error.to_string()), want);
    }
    check("", "");
    check("---\n# nothing\n---\nkind: a\n---\nkind: b\n", "a b");
    check("{\"kind\": \"a\"}\n{\"kind\": \"b\"} ", "a b");
    check("kind: a\n---\nkind: [b]\n", "f:3:7: kind: expected a string");
    check("{\"kind\": \"a\"}\n{\"kind\": 5}", "f:2:10: kind: expected a string, found integer `5`");
}

#[test]
fn json_errors() {
    check(
        r#"{"kind": "a", "weight": "b"}"#,
        &expect![[r#"f:1:25: weight: expected i32, found string "b""#]],
    );
    check(
        "{\n  \"kind\": \"ä\", \"items\": [{\"name\": \"x\"},\n {\"name\": 5}]}",
        &expect!["f:3:11: items[1].name: expected a string, found integer `5`"],
    );
    check(
        r#"{"kind": "a", "items": [{"name": "x", "cpu": "1x"}]}"#,
        &expect![[
            r#"f:1:46: items[0].cpu: invalid quantity "1x": expected a number with an optional suffix such as m, Ki, M or e3"#
        ]],
    );
    check(
        r#"{"kind": "a", "items": [{"name": "x", "effect": "No"}]}"#,
        &expect!["f:1:49: items[0].effect: unknown variant `No`, expected `NoSchedule`"],
    );
    check(
        r#"{"kind": "a", "labels": {"a.b/c": 1, "d.e/f": 256}}"#,
        &expect!["f:1:47: labels[d.e/f]: expected u8, found integer `256`"],
    );
    check(
        r#"{"kind": "a", "time": "now"}"#,
        &expect![[
            r#"f:1:23: time: expected a time such as 2026-01-31T12:00:00Z, found string "now""#
        ]],
    );
    check(
        r#"{"kind": "a", "kindd": "b"}"#,
        &expect![
            "f:1:15: kindd: unknown field `kindd`, expected one of `kind`, `weight`, `on`, `items`, `labels`, `time`"
        ],
    );
    check(r#"{"kind": "a", "kind": "b"}"#, &expect!["f:1:20: duplicate field `kind`"]);
    check("{\"weight\": 5,\n \"on\": true}", &expect!["f:1:1: missing field `kind`"]);
    check(
        "{\"kind\": \"ä\",\n \"ä\" 5}",
        &expect![
            "f:2:5: ä: unknown field `ä`, expected one of `kind`, `weight`, `on`, `items`, `labels`, `time`"
        ],
    );
    check(r#"{"kind": "a""#, &expect!["f:1:12: EOF while parsing an object"]);
    check(r#"{"kind": "a"} {"kind": "b"}"#, &expect!["f:1:15: expected the end, found more text"]);
    check("[]", &expect!["f:1:1: expected struct Config, found sequence"]);
}

#[test]
fn yaml_errors() {
    check("kind: a\nweight: b\n", &expect![[r#"f:2:9: weight: expected i32, found "b""#]]);
    check(
        "# ä\nkind: a\nitems:\n- name: x\n- name: [5]\n",
        &expect!["f:5:9: items[1].name: expected a string"],
    );
    check(
        "kind: a\nitems:\n- {name: x, cpu: 1x}\n",
        &expect![[
            r#"f:3:18: items[0].cpu: invalid quantity "1x": expected a number with an optional suffix such as m, Ki, M or e3"#
        ]],
    );
    check(
        "kind: a\nitems:\n- name: x\n  effect: No\n",
        &expect!["f:4:11: items[0].effect: unknown variant `No`, expected one of NoSchedule"],
    );
    check(
        "kind: a\nitems:\n- name: x\n  effect: NoScheduled\n",
        &expect![
            "f:4:11: items[0].effect: unknown variant `NoScheduled`, expected one of NoSchedule"
        ],
    );
    check(
        "kind: a\nlabels:\n  a.b/c: 1\n  d.e/f: 256\n",
        &expect![[r#"f:4:10: labels[d.e/f]: expected u8, found "256""#]],
    );
    check(
        "kind: a\ntime: now\n",
        &expect![[
            r#"f:2:7: time: expected a time such as 2026-01-31T12:00:00Z, found string "now""#
        ]],
    );
    check(
        "kind: a\nkindd: b\n",
        &expect![
            "f:2:1: kindd: unknown field `kindd`, expected one of kind, weight, on, items, labels, time"
        ],
    );
    check("kind: a\nkind: b\n", &expect![[r#"f:2:1: duplicate key "kind""#]]);
    check("weight: 5\non: true\n", &expect!["f:1:1: missing field `kind`"]);
    check("kind: a\nitems:\n  name: x\n", &expect!["f:3:3: items: expected a list"]);
    check("kind: a\n  b: [\n", &expect!["f:2:4: mapping values are not allowed in this context"]);
    check("kind: ~\n", &expect!["f:1:7: kind: expected a string, found null"]);
    check("kind: a\n---\nkind: b\n", &expect!["f:3:1: expected the end, found another document"]);
    check("kind: a\nitems: *b\n", &expect!["f:2:8: alias references unknown anchor"]);
    check("- a\n", &expect!["f:1:1: expected a map"]);
    check("", &expect!["f:1:1: expected a document, found nothing"]);
    check("---\n# nothing\n...\n", &expect!["f:1:1: expected a document, found nothing"]);
    check(
        "\u{feff}---\n\n---\nkind: a\nweight: b\n",
        &expect![[r#"f:5:9: weight: expected i32, found "b""#]],
    );
    check("kind: a\nitems: &x\n- name: [5]\n", &expect!["f:3:9: items[0].name: expected a string"]);
}

#[test]
fn yaml_as_upstream_reads_it() {
    check(
        "on: yes\nkind: 1.0\nweight: 0777\n",
        &expect![[
            r#"Config { kind: "1.0", weight: 511, on: true, items: [], labels: {}, time: None }"#
        ]],
    );
    check(
        "{kind: a, weight: 3}",
        &expect![[
            r#"Config { kind: "a", weight: 3, on: false, items: [], labels: {}, time: None }"#
        ]],
    );
    check(
        r#"{"kind": "a", "weight": 3,}"#,
        &expect![[
            r#"Config { kind: "a", weight: 3, on: false, items: [], labels: {}, time: None }"#
        ]],
    );
    check(
        "---\n# first\nkind: a\n---\n",
        &expect![[
            r#"Config { kind: "a", weight: 0, on: false, items: [], labels: {}, time: None }"#
        ]],
    );
    check(
        "%YAML 1.2\n---\nkind: |\n  ---\n  a\n...\n",
        &expect![[
            r#"Config { kind: "---\na\n", weight: 0, on: false, items: [], labels: {}, time: None }"#
        ]],
    );
    check(
        "x: &x {name: b}\n",
        &expect![
            "f:1:1: x: unknown field `x`, expected one of kind, weight, on, items, labels, time"
        ],
    );
    check(
        "kind: a\nitems: [&x {name: b, cpu: 1}, {<<: *x, cpu: 2}]\n",
        &expect![[
            r#"Config { kind: "a", weight: 0, on: false, items: [Item { name: "b", cpu: Some(1), effect: None }, Item { name: "b", cpu: Some(2), effect: None }], labels: {}, time: None }"#
        ]],
    );
}

#[test]
fn values() {
    check_value(
        "a: [1, yes, off, 0777, 0o17, 1_000, ~, .5, 1e3, '5', 2024-01-01]",
        &expect![[r#"{"a":[1,true,false,511,15,1000,null,0.5,1000.0,"5","2024-01-01"]}"#]],
    );
    check_value(
        "a: .inf",
        &expect!["f:1:4: a: non-finite float `.inf` rejected by the configured policy"],
    );
    check_value("a:\n  b: 1\n  b: 2\n", &expect![[r#"f:3:3: a: duplicate key "b""#]]);
    check_value("{\"a\": {\"b\": 1,\n  \"b\": 2}}", &expect![[r#"f:2:7: a.b: duplicate key "b""#]]);
    check_value("1: a\ntrue: b\n", &expect![[r#"{"1":"a","true":"b"}"#]]);
    check_value(
        r#"{"a": 18446744073709551616, "b": -9223372036854775808}"#,
        &expect![[r#"{"a":1.8446744073709552e+19,"b":-9223372036854775808}"#]],
    );
}

#[test]
fn nesting_is_limited() {
    check_value(&"[".repeat(100_000), &expect!["f:1:128: recursion limit exceeded"]);
    check_value(
        &"- ".repeat(10_000),
        &expect!["f:1:129: expected at most 64 levels of maps and lists"],
    );
    check_value(&"{a: ".repeat(300), &expect!["f:1:1021: recursion limit exceeded"]);
    check_value(
        &format!("a:\n{}", (1..400).map(|n| format!("{}a:\n", " ".repeat(n))).collect::<String>()),
        &expect!["f:65:65: expected at most 64 levels of maps and lists"],
    );
}

#[test]
fn aliases_are_limited() {
    let bomb = (1..40).fold("a0: &a0 [x, x, x, x]\n".to_owned(), |text, n| {
        let m = n - 1;
        format!("{text}a{n}: &a{n} [*a{m}, *a{m}, *a{m}, *a{m}]\n")
    });
    check_value(&bomb, &expect!["f:2:9: expected fewer or smaller anchors and aliases"]);
}

#[track_caller]
fn check_path(text: &str, segments: &[FieldPathSegment]) {
    let path: FieldPath = text.parse().unwrap();
    assert_eq!(path.segments(), segments);
    assert_eq!(path.to_string(), text);
}

#[test]
fn paths() {
    let field = |name: &str| FieldPathSegment::Field(name.to_owned());
    check_path("", &[]);
    check_path("a", &[field("a")]);
    check_path("[3]", &[FieldPathSegment::Index(3)]);
    check_path("a.5.b", &[field("a"), field("5"), field("b")]);
    check_path("items[17].b", &[field("items"), FieldPathSegment::Index(17), field("b")]);
    check_path("labels[a.b/c].d", &[field("labels"), field("a.b/c"), field("d")]);
    check_path(r#"[""][0]["a\"]\\"]"#, &[field(""), FieldPathSegment::Index(0), field("a\"]\\")]);
    for text in [
        ".a",
        "a.",
        "a..b",
        "a[",
        "a[]",
        "a[1]b",
        "a]",
        "[\"a",
        "[\"a\"",
        "a[99999999999999999999]",
    ] {
        assert!(text.parse::<FieldPath>().is_err(), "{text}");
    }
}

/// Positions of `path` in a JSON and a YAML text of the same value.
#[track_caller]
fn check_locate(path: &str, json: Option<(usize, usize)>, yaml: Option<(usize, usize)>) {
    let path: FieldPath = path.parse().unwrap();
    let text = "{\n  \"a\": {\"b.c/d\": [1, {\"\\u0065\": \"x\\\"y\"}, \"]\"]},\n  \"f\": null}\n{\"g\": 1}";
    assert_eq!(Document::new("f", text).locate(&path), json);
    let text = "---\n# first\na: # here\n  b.c/d:\n  - 1\n  - e: \"x\"\n  - ']'\nf:\n---\ng: 1\n";
    assert_eq!(Document::new("f", text).locate(&path), yaml);
}

#[test]
fn locating() {
    check_locate("", Some((1, 1)), Some((3, 1)));
    check_locate("a", Some((2, 8)), Some((4, 3)));
    check_locate("a[b.c/d]", Some((2, 18)), Some((5, 5)));
    check_locate("a[b.c/d][0]", Some((2, 19)), Some((5, 5)));
    check_locate("a[b.c/d][1].e", Some((2, 33)), Some((6, 8)));
    check_locate("a[b.c/d][2]", Some((2, 42)), Some((7, 5)));
    check_locate("a[b.c/d][3]", Some((2, 18)), Some((5, 5)));
    check_locate("a.x.y", Some((2, 8)), Some((4, 3)));
    check_locate("f", Some((3, 8)), Some((8, 2)));
    let document = Document::new("f", "{\"a\": 1}\n {\"b\": 2}");
    assert_eq!(document.locate_in_part(1, &FieldPath::ROOT.field("b")), Some((2, 8)));
    assert_eq!(document.locate_in_part(2, &FieldPath::ROOT), None);
    let document = Document::new("f", "a: 1\n---\n---\nb: 2\n");
    assert_eq!(document.locate_in_part(1, &FieldPath::ROOT.field("b")), Some((4, 4)));
    assert_eq!(Document::new("f", "").locate(&FieldPath::ROOT), None);
}

#[test]
fn reading() {
    let read = |bytes: &[u8], bytes_max| match Document::from_reader("f", bytes, bytes_max) {
        Ok(document) => document.text().to_owned(),
        Err(error) => error.to_string(),
    };
    assert_eq!(read(b"abc", None), "abc");
    assert_eq!(read(b"abc", Some(3)), "abc");
    assert_eq!(read(b"abcd", Some(3)), "f is too large: expected at most 3 bytes");
    assert_eq!(read(b"a\n\xc3\xa4b\xff", None), "f:2:3: expected text in UTF-8");
    assert!(Document::read("/nonexistent", None).unwrap_err().to_string().contains("/nonexistent"));
}

/// Texts near YAML and JSON.
fn near_yaml() -> impl Strategy<Value = String> {
    const TOKENS: &[&str] = &[
        "{", "}", "[", "]", "\"", "'", ": ", ", ", "- ", "\n", "\n---\n", "\n...\n", "&a ", "*a",
        "!!str ", "<<: ", "| ", "> ", "#", "? ", "%", "\\", "\\u00", "a", "1", "e", ".", "  ",
        "\t", "ä", "\u{2028}", "\u{feff}", "kind", "items", "null", "\r", "@", "`",
    ];
    prop::collection::vec(prop::sample::select(TOKENS), 0..40).prop_map(|tokens| tokens.concat())
}

#[test]
fn several_values() {
    fn check(text: &str, want: &Expect) {
        let document = Document::new("f", text);
        let values = document.decode_values_or_errors();
        let lines = values.iter().map(|it| match it {
            Ok(value) => format!("{value}\n"),
            Err(error) => format!("{error}\n"),
        });
        want.assert_eq(&lines.collect::<String>());
        assert_eq!(document.decode_values(), values.into_iter().collect());
    }
    check(
        "a: 1\n---\n# nothing\n---\n- b\n",
        &expect![[r#"
        {"a":1}
        ["b"]
    "#]],
    );
    check(
        "{\"a\": 1}\n[2] ",
        &expect![[r#"
        {"a":1}
        [2]
    "#]],
    );
    check("", &expect![""]);
    check(
        "a: 1\n---\na: 1\na: 2\n---\n[\n---\nb: 1\n",
        &expect![[r#"
            {"a":1}
            f:4:1: duplicate key "a"
            f:6:1: unclosed bracket '['
            {"b":1}
        "#]],
    );
    check(
        "{\"a\": 1}\n{\"a\":",
        &expect![[r#"
        {"a":1}
        f:2:5: EOF while parsing a value
    "#]],
    );
}

proptest! {
    #[test]
    fn no_text_panics(text in prop_oneof![near_yaml(), any::<String>()], path in near_yaml()) {
        let document = Document::new("f", text);
        let value = document.decode_value();
        if let (Ok(value), Ok(values)) = (&value, document.decode_values()) {
            prop_assert_eq!(&[value.clone()][..], &values[..]);
        }
        let _ = document.decode::<Config>();
        if let Ok(path) = path.parse::<FieldPath>() {
            let _ = document.locate(&path);
            prop_assert_eq!(path.to_string().parse::<FieldPath>().unwrap(), path);
        }
        if value.is_ok() {
            prop_assert!(document.locate(&FieldPath::ROOT).is_some());
        }
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(document) = Document::from_reader("f", &bytes[..], None) {
            let _ = document.decode_value();
        }
    }
}
