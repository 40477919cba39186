use expect_test::{Expect, expect};
use serde_json::json;

use super::*;

fn crd() -> Value {
    json!({"metadata": {"name": "gangs.e.io"}, "spec": {"group": "e.io", "scope": "Namespaced",
        "names": {"plural": "gangs", "singular": "gang", "kind": "Gang", "listKind": "GangList"},
        "conversion": {"strategy": "None"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
            {"type": "object", "properties": {"spec": {"type": "object"}}}}}]}, "status": {"storedVersions": ["v1"]}})
}

fn lines(causes: &[Cause]) -> String {
    let line = |it: &Cause| format!("{}: {}", it.field, it.message);
    causes.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Complaints about a definition with one value changed; null takes it away.
#[track_caller]
fn check(at: &str, value: Value, want: &Expect) {
    let mut crd = crd();
    let (parent, field) = at.rsplit_once('/').expect("a path");
    let parent = crd.pointer_mut(parent).expect("a place");
    match parent {
        Value::Array(list) => list.push(value),
        Value::Object(members) if value.is_null() => drop(members.remove(field)),
        other => other[field] = value,
    }
    want.assert_eq(&lines(&validate_definition_create(&crd)));
}

#[track_caller]
fn check_spec(spec: Value, want: &Expect) {
    check("/spec/versions/0/schema/openAPIV3Schema/properties/spec", spec, want);
}

#[test]
fn a_good_definition() {
    assert_eq!(lines(&validate_definition_create(&crd())), "");
}

#[test]
fn names_and_versions() {
    check(
        "/metadata/name",
        json!("gang"),
        &expect![[
            r#"metadata.name: Invalid value: "gang": must be spec.names.plural+"."+spec.group"#
        ]],
    );
    check(
        "/spec/scope",
        json!("Galaxy"),
        &expect![[
            r#"spec.scope: Unsupported value: "Galaxy": supported values: "Cluster", "Namespaced""#
        ]],
    );
    check(
        "/spec/names/kind",
        json!("Ga ng"),
        &expect![[
            r#"spec.names.kind: Invalid value: "Ga ng": may have mixed case, but should otherwise match: a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"#
        ]],
    );
    check(
        "/spec/versions/0/storage",
        json!(false),
        &expect![[
            r#"spec.versions: Invalid value: [{"Name":"v1","Served":true,"Storage":false,"Deprecated":false,"DeprecationWarning":null,"Schema":null,"Subresources":null,"AdditionalPrinterColumns":null,"SelectableFields":null}]: must have exactly one version marked as storage version"#
        ]],
    );
    check(
        "/spec/versions/0/schema",
        Value::Null,
        &expect!["spec.versions[0].schema.openAPIV3Schema: Required value"],
    );
    check(
        "/spec/conversion/strategy",
        json!("Webhook"),
        &expect![[
            r#"spec.conversion.strategy: Invalid value: "Webhook": conversion webhooks are not called by this server"#
        ]],
    );
}

#[test]
fn columns_and_subresources() {
    check(
        "/spec/versions/0/additionalPrinterColumns",
        json!([{"name": "A", "type": "text", "jsonPath": "spec"}]),
        &expect![[r#"
            spec.additionalPrinterColumns[0].type: Invalid value: "text": must be one of boolean,date,integer,number,string
            spec.additionalPrinterColumns[0].JSONPath: Invalid value: "spec": must be a simple json path starting with ."#]],
    );
    check(
        "/spec/versions/0/subresources",
        json!({"scale": {"specReplicasPath": ".status.n", "statusReplicasPath": ""}}),
        &expect![[r#"
            spec.subresources.scale.specReplicasPath: Invalid value: ".status.n": should be a json path under .spec
            spec.subresources.scale.statusReplicasPath: Required value"#]],
    );
    check(
        "/spec/versions/0/selectableFields",
        json!([{"jsonPath": ".spec.none"}, {"jsonPath": ".spec"}]),
        &expect![[r#"
            spec.selectableFields[0].jsonPath: Invalid value: ".spec.none": is an invalid path: does not refer to a valid field
            spec.selectableFields[1].jsonPath: Invalid value: ".spec": must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed."#]],
    );
}

#[test]
fn schemas_are_structural() {
    check_spec(
        json!({"properties": {"a": {"type": "string"}}}),
        &expect![
            "spec.validation.openAPIV3Schema.properties[spec].type: Required value: must not be empty for specified object fields"
        ],
    );
    check_spec(
        json!({"type": "array"}),
        &expect![
            "spec.validation.openAPIV3Schema.properties[spec].items: Required value: must be specified"
        ],
    );
    check_spec(
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "anyOf": [{"properties": {"b": {"type": "string"}}}]}),
        &expect![
            "spec.validation.openAPIV3Schema.properties[spec].anyOf[0].properties[b].type: Forbidden: must be empty to be structural"
        ],
    );
    check_spec(
        json!({"type": "strin"}),
        &expect![[
            r#"spec.validation.openAPIV3Schema.properties[spec].type: Unsupported value: "strin": supported values: "array", "boolean", "integer", "number", "object", "string""#
        ]],
    );
    check_spec(
        json!({"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true}),
        &expect![""],
    );
    check_spec(
        json!({"type": "string", "default": 1}),
        &expect![[
            r#"spec.validation.openAPIV3Schema.properties[spec].default: Invalid value: "integer":  in body must be of type string: "integer""#
        ]],
    );
    check_spec(
        json!({"type": "array", "x-kubernetes-list-type": "map", "items": {"type": "object", "properties": {"n": {"type": "string"}}},
            "x-kubernetes-list-map-keys": ["n"]}),
        &expect![
            "spec.validation.openAPIV3Schema.properties[spec].items.properties[n].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"
        ],
    );
    check_spec(
        json!({"type": "string", "pattern": "("}),
        &expect![[
            r#"spec.validation.openAPIV3Schema.properties[spec].pattern: Invalid value: "(": must be a valid regular expression, but isn't: error parsing regexp: unclosed group"#
        ]],
    );
}

#[test]
fn rules_have_to_compile() {
    check_spec(
        json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self.a > 1"}]}),
        &expect![[r#"
            spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule: Invalid value: {"Rule":"self.a \u003e 1","Message":"","MessageExpression":"","Reason":null,"FieldPath":"","OptionalOldSelf":null}: compilation failed: ERROR: <input>:1:5: type 'int' does not support field selection
             | self.a > 1
             | ....^"#]],
    );
    check_spec(
        json!({"type": "array", "items": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > oldSelf"}]}}),
        &expect![[
            r#"spec.validation.openAPIV3Schema.properties[spec].items.x-kubernetes-validations[0].rule: Invalid value: "self > oldSelf": oldSelf cannot be used on the uncorrelatable portion of the schema within spec.validation.openAPIV3Schema.properties[spec]"#
        ]],
    );
    check_spec(
        json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self > 1", "reason": "Bad", "fieldPath": ".x"}]}),
        &expect![[r#"
            spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].reason: Unsupported value: "Bad": supported values: "FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"
            spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].fieldPath: Invalid value: ".x": must be a valid path"#]],
    );
}

#[test]
fn immutable_fields() {
    let mut old = crd();
    old["status"] = json!({"conditions": [{"type": "Established", "status": "True"}], "storedVersions": ["v1"]});
    let mut new = old.clone();
    new["spec"]["scope"] = "Cluster".into();
    new["spec"]["names"]["kind"] = "Band".into();
    new["spec"]["versions"][0]["name"] = "v2".into();
    let messages = lines(&validate_definition_update(&old, &new));
    expect![[r#"
        spec.scope: Invalid value: "Cluster": field is immutable
        spec.names.kind: Invalid value: "Band": field is immutable
        status.storedVersions[0]: Invalid value: "v1": missing from spec.versions; v1 was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in v1 and removes v1 from status.storedVersions"#]]
    .assert_eq(&messages);
}
