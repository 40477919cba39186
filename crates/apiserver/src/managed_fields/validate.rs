//! Validates a value against its type, and lists its fields.

use std::collections::{BTreeMap, BTreeSet};

use loadmaster_stdx::SortCompactly as _;
use serde_json::Value;

use super::field_path::PathElement;
use super::field_set::FieldSet;
use super::types::{List, ListKind, MapType, Scalar, TypeRef, TypedForm, Types};
use super::value;

/// A value that does not match its type: path and upstream's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeMismatch {
    path: String,
    what: String,
}

impl TypeMismatch {
    pub(super) fn new(what: impl Into<String>) -> TypeMismatch {
        TypeMismatch { path: String::new(), what: what.into() }
    }

    pub(super) fn under(mut self, element: &PathElement) -> TypeMismatch {
        self.path.insert_str(0, &element.to_string());
        self
    }
}

/// All that is wrong with a value; not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeMismatches(pub(super) Vec<TypeMismatch>);

impl std::fmt::Display for TypeMismatches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |it: &TypeMismatch| match it.path.as_str() {
            "" => it.what.clone(),
            path => format!("{path}: {}", it.what),
        };
        if let [only] = self.0.as_slice() {
            return f.write_str(&text(only));
        }
        f.write_str("errors:")?;
        self.0.iter().try_for_each(|it| write!(f, "\n  {}", text(it)))
    }
}

/// The path element of an entry of a list with keys or a set.
pub(super) fn element_of(types: &Types, list: &List, entry: &Value) -> Result<PathElement, String> {
    let keys = match &list.kind {
        ListKind::Atomic => return Err("invalid indexing of non-associative list".to_owned()),
        ListKind::Set => return element_of_set(entry),
        ListKind::Keys(keys) => keys,
    };
    let members = match entry {
        Value::Object(members) => members,
        Value::Null => {
            return Err("associative list with keys may not have a null element".to_owned());
        }
        _ => return Err("associative list with keys may not have non-map elements".to_owned()),
    };
    let fields = types.get(list.element).map.as_ref().map(|map| &map.fields);
    let mut found: Vec<(Box<str>, Value)> = Vec::with_capacity(keys.len());
    for key in keys {
        let default = || fields.and_then(|fields| fields.get(key)?.default.as_ref());
        if let Some(value) = members.get(&**key).or_else(default) {
            found.push((key.clone(), value.clone()));
        }
    }
    if found.is_empty() {
        let names: Vec<String> = keys.iter().map(|key| format!("{key:?}")).collect();
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
            names.join(" ")
        ));
    }
    found.sort_compactly_by(|a, b| a.0.cmp(&b.0));
    Ok(PathElement::Key(found))
}

fn element_of_set(entry: &Value) -> Result<PathElement, String> {
    let why = match entry {
        Value::Object(_) => "associative list without keys has an element that's a map type",
        Value::Array(_) => "not supported: associative list with lists as elements",
        Value::Null => "associative list without keys has an element that's an explicit null",
        _ => return Ok(PathElement::Value(entry.clone())),
    };
    Err(why.to_owned())
}

/// What a scalar may not hold, if it does.
pub(super) fn check_scalar(scalar: Scalar, value: Option<&Value>) -> Option<String> {
    let value = value?;
    let (fits, wanted) = match scalar {
        Scalar::Numeric => (value.is_number(), "numeric (int or float)"),
        Scalar::String => (value.is_string(), "string"),
        Scalar::Boolean => (value.is_boolean(), "boolean"),
        Scalar::Any => (!value.is_array() && !value.is_object(), "any scalar"),
    };
    let is_bad = !fits && !value.is_null();
    is_bad.then(|| format!("expected {wanted}, got {}", described(scalar, value)))
}

fn described(scalar: Scalar, found: &Value) -> String {
    match (scalar, found) {
        (Scalar::Numeric, Value::String(_)) => "string".to_owned(),
        (Scalar::Numeric, Value::Bool(_)) => "bool".to_owned(),
        (Scalar::Numeric, Value::Array(_)) => "[]interface {}".to_owned(),
        (Scalar::Numeric, Value::Object(_)) => "map[string]interface {}".to_owned(),
        (Scalar::String, _) => {
            format!("&value.valueUnstructured{{Value:{}}}", value::to_go_syntax(found))
        }
        _ => format!("&{{{}}}", value::to_go_text(found)),
    }
}

/// Checks a value against its type.
///
/// # Errors
///
/// With all that is wrong. Entries with one key may occur several times only if `duplicates` says so.
pub(super) fn validate(
    types: &Types,
    type_ref: TypeRef,
    value: &Value,
    duplicates: bool,
) -> Result<(), TypeMismatches> {
    let mut misfits = Vec::new();
    Validator { types, duplicates }.value(type_ref, value, &mut misfits);
    if misfits.is_empty() { Ok(()) } else { Err(TypeMismatches(misfits)) }
}

struct Validator<'a> {
    types: &'a Types,
    duplicates: bool,
}

impl Validator<'_> {
    fn value(&self, type_ref: TypeRef, value: &Value, out: &mut Vec<TypeMismatch>) {
        let atom = self.types.get(type_ref);
        match atom.for_value(Some(value)).of(atom) {
            Some(TypedForm::Scalar(scalar)) => {
                out.extend(check_scalar(scalar, Some(value)).map(TypeMismatch::new));
            }
            Some(TypedForm::List(list)) => match value {
                Value::Array(entries) => self.entries(list, entries, out),
                Value::Null => {}
                _ => out.push(TypeMismatch::new(format!(
                    "expected list, got &{{{}}}",
                    value::to_go_text(value)
                ))),
            },
            Some(TypedForm::Map(map)) => self.members(map, value, out),
            None => out.push(TypeMismatch::new("schema error: invalid atom: inlined")),
        }
    }

    fn entries(&self, list: &List, entries: &[Value], out: &mut Vec<TypeMismatch>) {
        let mut seen: BTreeSet<PathElement> = BTreeSet::new();
        for (index, entry) in entries.iter().enumerate() {
            let element = if list.kind == ListKind::Atomic {
                PathElement::Index(i64::try_from(index).unwrap_or(i64::MAX))
            } else {
                match element_of(self.types, list, entry) {
                    Ok(element) => element,
                    Err(why) => {
                        out.push(TypeMismatch::new(format!("element {index}: {why}")));
                        return;
                    }
                }
            };
            let is_checked = list.kind != ListKind::Atomic && !self.duplicates;
            if is_checked && !seen.insert(element.clone()) {
                out.push(TypeMismatch::new(format!("duplicate entries for key {element}")));
            }
            self.below(list.element, entry, &element, out);
        }
    }

    fn members(&self, map: &MapType, value: &Value, out: &mut Vec<TypeMismatch>) {
        let members = match value {
            Value::Object(members) => members,
            Value::Null => return,
            _ => {
                let text = value::to_go_text(value);
                out.push(TypeMismatch::new(format!("expected map, got &{{{text}}}")));
                return;
            }
        };
        for (name, value) in members {
            let element = PathElement::field(name);
            match map.type_of(name) {
                Some(type_ref) => self.below(type_ref, value, &element, out),
                None => {
                    out.push(TypeMismatch::new("field not declared in schema").under(&element));
                    return;
                }
            }
        }
    }

    fn below(
        &self,
        type_ref: TypeRef,
        value: &Value,
        element: &PathElement,
        out: &mut Vec<TypeMismatch>,
    ) {
        let mut misfits = Vec::new();
        self.value(type_ref, value, &mut misfits);
        out.extend(misfits.into_iter().map(|it| it.under(element)));
    }
}

/// The fields an object has: its leaves, the entries of its lists, the keys of its maps.
pub(super) fn fields_of(types: &Types, type_ref: TypeRef, value: &Value) -> FieldSet {
    let mut walker = Fields { types, path: Vec::new(), out: FieldSet::default() };
    walker.value(type_ref, value);
    walker.out
}

struct Fields<'a> {
    types: &'a Types,
    path: Vec<PathElement>,
    out: FieldSet,
}

impl Fields<'_> {
    fn value(&mut self, type_ref: TypeRef, value: &Value) {
        let types = self.types;
        let atom = types.get(type_ref);
        match (atom.for_value(Some(value)).of(atom), value) {
            (Some(TypedForm::Scalar(_)), _) => self.out.insert(&self.path),
            (Some(TypedForm::List(List { kind: ListKind::Atomic, .. })), _) => {
                self.out.insert(&self.path);
            }
            (Some(TypedForm::Map(map)), _) if map.is_atomic => self.out.insert(&self.path),
            (Some(TypedForm::List(list)), Value::Array(entries)) => self.entries(list, entries),
            (Some(TypedForm::Map(map)), Value::Object(members)) => {
                for (name, value) in members {
                    let Some(type_ref) = map.type_of(name) else { continue };
                    self.path.push(PathElement::field(name));
                    self.value(type_ref, value);
                    let is_empty =
                        value.is_null() || value.as_object().is_some_and(|it| it.is_empty());
                    if is_empty || !map.fields.contains_key(&**name) {
                        self.out.insert(&self.path);
                    }
                    self.path.pop();
                }
            }
            _ => {}
        }
    }

    fn entries(&mut self, list: &List, entries: &[Value]) {
        // In the order of the set, into which they then go one behind the other.
        let mut known: BTreeMap<PathElement, Vec<&Value>> = BTreeMap::new();
        for entry in entries {
            if let Ok(element) = element_of(self.types, list, entry) {
                known.entry(element).or_default().push(entry);
            }
        }
        for (element, same) in known {
            self.path.push(element);
            // Of entries with one key only that they are there.
            if let [entry] = same.as_slice() {
                self.value(list.element, entry);
            }
            self.out.insert(&self.path);
            self.path.pop();
        }
    }
}
