//! Structural schemas: the part of OpenAPI v3 that CustomResourceDefinitions use.

use std::collections::BTreeMap;

use loadmaster_stdx::Map;
use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

/// One node of a schema (`JSONSchemaProps`).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StructuralSchema {
    /// `object`, `array`, `string`, `integer`, `number`, `boolean`, or empty.
    #[serde(rename = "type")]
    pub kind: String,
    pub format: String,
    pub title: String,
    pub description: String,
    pub default: Option<Value>,
    pub nullable: bool,
    pub maximum: Option<f64>,
    pub exclusive_maximum: bool,
    pub minimum: Option<f64>,
    pub exclusive_minimum: bool,
    pub multiple_of: Option<f64>,
    pub max_length: Option<i64>,
    pub min_length: Option<i64>,
    pub pattern: Pattern,
    pub max_items: Option<i64>,
    pub min_items: Option<i64>,
    pub unique_items: bool,
    pub max_properties: Option<i64>,
    pub min_properties: Option<i64>,
    pub required: Vec<String>,
    #[serde(rename = "enum")]
    pub allowed: Vec<Value>,
    pub all_of: Vec<StructuralSchema>,
    pub any_of: Vec<StructuralSchema>,
    pub one_of: Vec<StructuralSchema>,
    pub not: Option<Box<StructuralSchema>>,
    pub properties: BTreeMap<String, StructuralSchema>,
    pub additional_properties: Option<Additional>,
    items: Option<Items>,
    #[serde(rename = "x-kubernetes-preserve-unknown-fields")]
    pub preserves_unknown: Option<bool>,
    #[serde(rename = "x-kubernetes-embedded-resource")]
    pub is_embedded: bool,
    #[serde(rename = "x-kubernetes-int-or-string")]
    pub is_int_or_string: bool,
    #[serde(rename = "x-kubernetes-list-type")]
    pub list_type: Option<String>,
    #[serde(rename = "x-kubernetes-list-map-keys")]
    pub list_keys: Vec<String>,
    #[serde(rename = "x-kubernetes-map-type")]
    pub map_type: Option<String>,
    #[serde(rename = "x-kubernetes-validations")]
    pub rules: Vec<ValidationRule>,
    // What JSON schema has and a definition may not use.
    pub id: String,
    #[serde(rename = "$ref")]
    pub reference: Option<String>,
    pub additional_items: Option<Value>,
    pub pattern_properties: Option<Value>,
    pub definitions: Option<Value>,
    pub dependencies: Option<Value>,
    pub external_docs: Option<Value>,
    pub example: Option<Value>,
}

/// `additionalProperties`: what the fields without a schema of their own are.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Additional {
    Allowed(bool),
    Of(Box<StructuralSchema>),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Items {
    All(Box<StructuralSchema>),
    Each(#[expect(dead_code, reason = "tells lists from schemas")] Vec<Value>),
}

/// The entries of a list by their keys.
pub type Known<'a> = Map<Vec<&'a Value>, &'a Value>;

/// A regular expression as it was written, and compiled if it can be.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "String")]
pub struct Pattern {
    pub text: String,
    pub compiled: Option<Regex>,
}

impl From<String> for Pattern {
    fn from(text: String) -> Pattern {
        let compiled = Regex::new(&text).ok().filter(|_| !text.is_empty());
        Pattern { text, compiled }
    }
}

/// An entry of `x-kubernetes-validations`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ValidationRule {
    /// In CEL, over `self` and perhaps `oldSelf`.
    pub rule: String,
    pub message: String,
    /// In CEL; its text replaces `message`.
    pub message_expression: String,
    pub reason: Option<String>,
    /// Where a failure is reported, below the place of the rule.
    pub field_path: String,
    pub optional_old_self: Option<bool>,
}

impl StructuralSchema {
    /// Reads a schema.
    ///
    /// # Errors
    ///
    /// When a keyword has a value of a wrong type.
    pub fn read(value: &Value) -> Result<StructuralSchema, serde_json::Error> {
        StructuralSchema::deserialize(value)
    }

    /// The schema of the entries of a list.
    pub fn items(&self) -> Option<&StructuralSchema> {
        match &self.items {
            Some(Items::All(schema)) => Some(schema),
            _ => None,
        }
    }

    /// Whether each entry has a schema of its own, which definitions may not say.
    pub fn has_tuple_items(&self) -> bool {
        matches!(self.items, Some(Items::Each(_)))
    }

    /// Whether `items` is there in any form.
    pub fn has_items(&self) -> bool {
        self.items.is_some()
    }

    /// The schema of fields that are not among the properties.
    pub fn additional(&self) -> Option<&StructuralSchema> {
        match &self.additional_properties {
            Some(Additional::Of(schema)) => Some(schema),
            _ => None,
        }
    }

    /// The schema of a field.
    pub fn field(&self, name: &str) -> Option<&StructuralSchema> {
        self.properties.get(name).or_else(|| self.additional())
    }

    /// Whether unknown fields stay.
    pub fn preserves_unknown_fields(&self) -> bool {
        self.preserves_unknown == Some(true)
    }

    /// Whether an entry of the list can be found again in an older version of it.
    pub fn is_map_list(&self) -> bool {
        self.list_type.as_deref() == Some("map")
    }

    /// The keys of an entry of a list of type map; absent ones are null.
    pub fn keys_of<'a>(&self, entry: &'a Value) -> Vec<&'a Value> {
        self.list_keys.iter().map(|key| &entry[key.as_str()]).collect()
    }

    /// The entries of an older list by their keys; none of a list whose entries cannot be found again.
    pub fn known_entries<'a>(&self, old: Option<&'a Value>) -> Known<'a> {
        let entries = old.filter(|_| self.is_map_list()).and_then(Value::as_array);
        // The first of those with the same keys counts.
        entries.into_iter().flatten().rev().map(|it| (self.keys_of(it), it)).collect()
    }

    /// The entry of an older list that has the keys of a new entry.
    pub fn find_old_entry<'a>(&self, entry: &'a Value, known: &Known<'a>) -> Option<&'a Value> {
        if known.is_empty() { None } else { known.get(&self.keys_of(entry)).copied() }
    }

    /// Visits this node and all below, those of junctors included.
    pub fn visit(&self, run: &mut impl FnMut(&StructuralSchema)) {
        run(self);
        let lists = [&self.all_of, &self.any_of, &self.one_of];
        let nested = lists.into_iter().flatten().chain(self.not.as_deref());
        let nested = nested.chain(self.properties.values()).chain(self.items());
        nested.chain(self.additional()).for_each(|schema| schema.visit(run));
    }
}

/// Fields every object has, whatever its schema says.
pub const META_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];
