//! Compiles the structural schema of a custom resource to types for server-side apply.

use serde_json::Value;

use super::types::{
    ANY_SCALAR, Atom, BOOLEAN, DEDUCED, List, ListKind, MapType, Member, NUMERIC, STRING, Scalar,
    TypeRef, Types, UNTYPED,
};
use crate::object::list_entries;
use crate::schema::schema;

impl Types {
    /// The types of a custom resource with this `openAPIV3Schema`, and that of its objects. Without a schema, maps are
    /// granular and lists are owned as a whole. `preserves` is the old `preserveUnknownFields` of the definition.
    pub fn of_resource(root: Option<&Value>, preserves: bool) -> (Types, TypeRef) {
        let mut types = Types::on_built_in();
        let Some(root) = root else { return (types, DEDUCED) };
        let mut atom = types.of_node(root, preserves);
        if let Some(map) = &mut atom.map {
            types.add_identity(map);
        }
        let type_ref = types.add(atom);
        (types, type_ref)
    }

    /// What every object has beside its own fields.
    fn add_identity(&self, map: &mut MapType) {
        for name in ["apiVersion", "kind"] {
            map.fields.insert(name.into(), Member { type_ref: STRING, default: None });
        }
        if let Some(id) = schema().find("meta/v1.ObjectMeta") {
            let member = Member { type_ref: Types::of_built_in(id), default: None };
            map.fields.insert("metadata".into(), member);
        }
    }

    fn of_node(&mut self, node: &Value, preserves: bool) -> Atom {
        let preserves = preserves || node["x-kubernetes-preserve-unknown-fields"] == true;
        let list = |types: &mut Types| types.list(node, preserves);
        match node["type"].as_str().unwrap_or_default() {
            "object" => Atom { map: Some(self.map(node, preserves)), ..Atom::default() },
            "array" => Atom { list: Some(list(self)), ..Atom::default() },
            "" => Atom {
                scalar: Some(Scalar::Any),
                list: Some(list(self)),
                map: Some(self.map(node, preserves)),
            },
            scalar => self.get(scalar_of(scalar, node)).clone(),
        }
    }

    fn inner(&mut self, node: &Value, preserves: bool) -> TypeRef {
        let atom = self.of_node(node, preserves);
        self.add(atom)
    }

    fn list(&mut self, node: &Value, preserves: bool) -> List {
        let element = match &node["items"] {
            items @ Value::Object(_) => self.inner(items, preserves),
            _ => UNTYPED,
        };
        let kind = match node["x-kubernetes-list-type"].as_str() {
            Some("set") => ListKind::Set,
            Some("map") => {
                let keys = list_entries(&node["x-kubernetes-list-map-keys"]).iter();
                ListKind::Keys(keys.filter_map(Value::as_str).map(Box::from).collect())
            }
            _ => ListKind::Atomic,
        };
        List { element, kind }
    }

    fn map(&mut self, node: &Value, preserves: bool) -> MapType {
        let mut map =
            MapType { is_atomic: node["x-kubernetes-map-type"] == "atomic", ..MapType::default() };
        let properties = node["properties"].as_object();
        for (name, property) in properties.into_iter().flatten() {
            let type_ref = self.inner(property, preserves);
            let default = property.get("default").cloned();
            map.fields.insert(name.as_str().into(), Member { type_ref, default });
        }
        if node["x-kubernetes-embedded-resource"] == true {
            self.add_identity(&mut map);
        }
        map.element = match &node["additionalProperties"] {
            inner @ Value::Object(_) => Some(self.inner(inner, preserves)),
            Value::Bool(allows) => allows.then_some(DEDUCED),
            // An object of which nothing is said may hold anything.
            _ => (preserves || map.fields.is_empty()).then_some(DEDUCED),
        };
        map
    }
}

fn scalar_of(name: &str, node: &Value) -> TypeRef {
    match name {
        "integer" | "number" => NUMERIC,
        "boolean" => BOOLEAN,
        "string" if matches!(node["format"].as_str(), None | Some("" | "byte")) => STRING,
        _ => ANY_SCALAR,
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::json;

    use super::super::testkit::paths;
    use super::super::validate::{fields_of, validate};
    use super::*;

    #[track_caller]
    fn check(spec: Value, object: Value, want: &Expect) {
        let root = json!({"type": "object", "properties": {"spec": spec}});
        let (types, type_ref) = Types::of_resource(Some(&root), false);
        let object = json!({"apiVersion": "a/v1", "kind": "K", "metadata": {"labels": {"x": "y"}}, "spec": object});
        want.assert_eq(&match validate(&types, type_ref, &object, false) {
            Ok(()) => paths(&fields_of(&types, type_ref, &object)),
            Err(misfits) => misfits.to_string(),
        });
    }

    #[test]
    fn fields_follow_the_schema() {
        let lists = json!({"type": "object", "properties": {
            "plain": {"type": "array", "items": {"type": "string"}},
            "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
            "keyed": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"],
                "items": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer", "default": 7}}}},
            "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
            "any": {"x-kubernetes-preserve-unknown-fields": true},
            "port": {"x-kubernetes-int-or-string": true},
        }});
        check(
            lists.clone(),
            json!({"plain": ["p"], "set": ["s"], "keyed": [{"a": "k"}], "whole": {"w": "1"}, "any": {"m": {"n": [1]}}, "port": 80}),
            &expect![[
                r#".apiVersion .kind .metadata.labels.x .spec.plain .spec.port .spec.whole .spec.any.m .spec.any.m.n .spec.keyed[a="k",b=7] .spec.keyed[a="k",b=7].a .spec.set[="s"]"#
            ]],
        );
        check(
            lists.clone(),
            json!({"nope": 1}),
            &expect![".spec.nope: field not declared in schema"],
        );
        check(
            lists,
            json!({"set": ["s", "s"]}),
            &expect![[r#".spec.set: duplicate entries for key [="s"]"#]],
        );
    }

    #[test]
    fn without_a_schema_maps_are_granular() {
        let (types, type_ref) = Types::of_resource(None, false);
        let object = json!({"spec": {"a": {"b": 1}, "c": [1, {"d": 2}]}});
        expect![".spec .spec.a .spec.c .spec.a.b"]
            .assert_eq(&paths(&fields_of(&types, type_ref, &object)));
    }
}
