use expect_test::{Expect, expect};
use serde_json::json;

use super::*;

fn complaints(spec: &Value, value: Value, old: Option<Value>) -> String {
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    let schema = StructuralSchema::read(&schema).expect("a schema");
    let old = old.map(|old| json!({"spec": old}));
    let value = json!({"spec": value});
    let mut causes = validate(&schema, &value, old.as_ref(), "");
    validate_list_uniqueness(&schema, &value, "", &mut causes);
    validate_embedded_objects(&schema, &value, "", &mut causes);
    causes.iter().map(|it| format!("{}: {}\n", it.field, it.message)).collect()
}

#[track_caller]
fn check(spec: Value, value: Value, want: &Expect) {
    want.assert_eq(complaints(&spec, value, None).trim_end());
}

#[test]
fn types() {
    check(
        json!({"type": "integer"}),
        json!("a"),
        &expect![[
            r#"spec: Invalid value: "string": spec in body must be of type integer: "string""#
        ]],
    );
    check(
        json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}),
        json!({"a": ["x", 1, null]}),
        &expect![[r#"
            spec.a[1]: Invalid value: "integer": spec.a[1] in body must be of type string: "integer"
            spec.a[2]: Invalid value: "null": spec.a[2] in body must be of type string: "null""#]],
    );
    check(json!({"x-kubernetes-int-or-string": true}), json!("a"), &expect![""]);
    check(
        json!({"x-kubernetes-int-or-string": true}),
        json!(true),
        &expect![[
            r#"spec: Invalid value: "boolean": spec in body must be of type integer,string: "boolean""#
        ]],
    );
    check(json!({"type": "number"}), json!(1), &expect![""]);
    check(json!({"type": "integer"}), json!(1.0), &expect![""]);
    check(json!({"type": "string", "nullable": true}), json!(null), &expect![""]);
    check(
        json!({"type": "integer", "format": "int32"}),
        json!(3_000_000_000_u64),
        &expect![[
            r#"<nil>: Invalid value: "": Checked value must be of type integer with format int32 in spec"#
        ]],
    );
}

#[test]
fn bounds() {
    check(
        json!({"type": "object", "required": ["b"], "properties": {
            "a": {"type": "integer", "minimum": 2, "maximum": 9, "exclusiveMaximum": true, "multipleOf": 5},
            "b": {"type": "string"}}}),
        json!({"a": 1}),
        &expect![[r#"
            spec.a: Invalid value: 1: spec.a in body should be a multiple of 5
            spec.a: Invalid value: 1: spec.a in body should be greater than or equal to 2
            spec.b: Required value"#]],
    );
    check(
        json!({"type": "integer", "maximum": 9, "exclusiveMaximum": true}),
        json!(9),
        &expect!["spec: Invalid value: 9: spec in body should be less than 9"],
    );
    check(
        json!({"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^a"}),
        json!("bb"),
        &expect![[r#"spec: Invalid value: "bb": spec in body should match '^a'"#]],
    );
    check(
        json!({"type": "string", "maxLength": 3}),
        json!("abcd"),
        &expect!["spec: Too long: may not be more than 3 bytes"],
    );
    check(
        json!({"type": "array", "maxItems": 1, "items": {"type": "integer"}}),
        json!([1, 2]),
        &expect!["spec: Too many: 2: must have at most 1 item"],
    );
    check(
        json!({"type": "string", "enum": ["A", "B"]}),
        json!("C"),
        &expect![[r#"spec: Unsupported value: "C": supported values: "A", "B""#]],
    );
    check(
        json!({"type": "string", "format": "date-time"}),
        json!("today"),
        &expect![[
            r#"spec: Invalid value: "today": spec in body must be of type date-time: "today""#
        ]],
    );
}

#[test]
fn alternatives() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}]});
    check(
        schema.clone(),
        json!({}),
        &expect![[r#"
            <nil>: Invalid value: "": "spec" must validate one and only one schema (oneOf). Found none valid
            spec.a: Required value"#]],
    );
    check(
        schema,
        json!({"a": "", "b": ""}),
        &expect![[
            r#"<nil>: Invalid value: "": "spec" must validate one and only one schema (oneOf). Found 2 valid alternatives"#
        ]],
    );
    check(
        json!({"type": "integer", "not": {"minimum": 3}}),
        json!(4),
        &expect![[r#"<nil>: Invalid value: "": "spec" must not validate the schema (not)"#]],
    );
}

#[test]
fn lists_and_embedded_objects() {
    check(
        json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}),
        json!(["a", "b", "a", "a"]),
        &expect![[r#"spec[2]: Duplicate value: "a""#]],
    );
    check(
        json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"],
            "items": {"type": "object", "properties": {"n": {"type": "string"}}}}),
        json!([{"n": "a"}, {"n": "a"}]),
        &expect![[r#"spec[1]: Duplicate value: {"n":"a"}"#]],
    );
    check(
        json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
        json!({"kind": ""}),
        &expect![[r#"
            spec.apiVersion: Required value
            spec.kind: Invalid value: "": must not be empty"#]],
    );
}

#[test]
fn unchanged_parts_are_not_validated() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 1},
        "b": {"type": "integer"}, "l": {"type": "array", "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["n"], "items": {"type": "object", "properties": {
                "n": {"type": "string"}, "v": {"type": "integer", "maximum": 3}}}}}});
    let old = json!({"a": "long", "b": 1, "l": [{"n": "x", "v": 9}]});
    let new = json!({"a": "long", "b": 2, "l": [{"n": "y", "v": 1}, {"n": "x", "v": 9}]});
    assert_eq!(complaints(&schema, new, Some(old.clone())), "");
    let worse = json!({"a": "longer", "b": 1, "l": [{"n": "x", "v": 8}]});
    let messages = complaints(&schema, worse, Some(old));
    assert_eq!(messages.lines().count(), 2, "{messages}");
}
