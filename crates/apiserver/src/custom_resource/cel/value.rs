//! Values that rules work with.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine as _;
use jiff::{SignedDuration, Timestamp};
use loadmaster_api::Quantity;
use loadmaster_stdx::CollectByInsertion as _;
use serde_json::Value;

use super::super::structural::{META_FIELDS, StructuralSchema};

/// A value.
#[derive(Clone, Debug)]
pub enum Val {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Arc<str>),
    Bytes(Arc<[u8]>),
    List(Arc<List>),
    Map(Arc<BTreeMap<CelMapKey, Val>>),
    Time(Timestamp),
    Duration(SignedDuration),
    Optional(Option<Arc<Val>>),
    Quantity(Arc<Quantity>),
    Url(Arc<str>),
    Ip(IpAddr),
    /// An address and how many of its bits count.
    Cidr(IpAddr, u8),
    /// The type of a value, by name.
    Type(&'static str),
}

/// A list; those of type set and map are equal in any order.
#[derive(Clone, Debug, Default)]
pub struct List {
    pub entries: Vec<Val>,
    pub identity: ListEntryIdentity,
}

/// What tells the entries of a list apart.
#[derive(Clone, Debug, Default)]
pub enum ListEntryIdentity {
    #[default]
    Place,
    Value,
    Keys(Vec<CelMapKey>),
}

/// A key of a map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CelMapKey {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Text(Arc<str>),
}

impl CelMapKey {
    pub fn text(text: &str) -> CelMapKey {
        CelMapKey::Text(text.into())
    }

    pub fn to_value(&self) -> Val {
        match self {
            CelMapKey::Bool(it) => Val::Bool(*it),
            CelMapKey::Int(it) => Val::Int(*it),
            CelMapKey::Uint(it) => Val::Uint(*it),
            CelMapKey::Text(it) => Val::Text(Arc::clone(it)),
        }
    }
}

impl Val {
    pub fn text(text: impl Into<Arc<str>>) -> Val {
        Val::Text(text.into())
    }

    pub fn list(entries: Vec<Val>) -> Val {
        Val::List(Arc::new(List { entries, identity: ListEntryIdentity::Place }))
    }

    pub fn some(value: Val) -> Val {
        Val::Optional(Some(Arc::new(value)))
    }

    /// The key this value is; whole doubles are keys, too.
    pub fn to_map_key(&self) -> Option<CelMapKey> {
        match self {
            Val::Bool(it) => Some(CelMapKey::Bool(*it)),
            Val::Int(it) => Some(CelMapKey::Int(*it)),
            Val::Uint(it) => Some(i64::try_from(*it).map_or(CelMapKey::Uint(*it), CelMapKey::Int)),
            Val::Double(it) if it.fract() == 0.0 => Some(CelMapKey::Int(*it as i64)),
            Val::Text(it) => Some(CelMapKey::Text(Arc::clone(it))),
            _ => None,
        }
    }

    /// What `type()` says of it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Val::Null => "null_type",
            Val::Bool(_) => "bool",
            Val::Int(_) => "int",
            Val::Uint(_) => "uint",
            Val::Double(_) => "double",
            Val::Text(_) => "string",
            Val::Bytes(_) => "bytes",
            Val::List(_) => "list",
            Val::Map(_) => "map",
            Val::Time(_) => "google.protobuf.Timestamp",
            Val::Duration(_) => "google.protobuf.Duration",
            Val::Optional(_) => "optional_type",
            Val::Quantity(_) => "kubernetes.Quantity",
            Val::Url(_) => "kubernetes.URL",
            Val::Ip(_) => "net.IP",
            Val::Cidr(..) => "net.CIDR",
            Val::Type(_) => "type",
        }
    }

    /// Roughly what it costs to look at all of it.
    pub fn cost(&self) -> u64 {
        match self {
            Val::Text(it) => 1 + it.len() as u64 / 10,
            Val::Bytes(it) => 1 + it.len() as u64 / 10,
            Val::List(it) => 1 + it.entries.len() as u64,
            Val::Map(it) => 1 + it.len() as u64,
            _ => 1,
        }
    }

    /// What it costs to look at all of it, and at all within.
    pub fn deep_cost(&self) -> u64 {
        match self {
            Val::List(it) => 1 + it.entries.iter().map(Val::deep_cost).sum::<u64>(),
            Val::Map(it) => 1 + it.values().map(|value| 1 + value.deep_cost()).sum::<u64>(),
            other => other.cost(),
        }
    }

    /// A value by its schema; without one, what JSON says.
    pub fn from_json(value: &Value, schema: Option<&StructuralSchema>) -> Val {
        match value {
            Value::Null => Val::Null,
            Value::Bool(it) => Val::Bool(*it),
            Value::Number(n) => {
                let is_number = schema.is_some_and(|it| it.kind == "number");
                match n.as_i64() {
                    Some(n) if !is_number => Val::Int(n),
                    _ => Val::Double(n.as_f64().unwrap_or(f64::NAN)),
                }
            }
            Value::String(text) => of_text(text, schema.map_or("", |it| it.format.as_str())),
            Value::Array(entries) => {
                let items = schema.and_then(StructuralSchema::items);
                let entries = entries.iter().map(|it| Val::from_json(it, items)).collect();
                Val::List(Arc::new(List { entries, identity: identity(schema) }))
            }
            Value::Object(members) => {
                let is_struct = schema.is_some_and(|it| it.additional().is_none());
                let field = |(name, value): (&String, &Value)| {
                    if !is_struct {
                        let inner = schema.and_then(StructuralSchema::additional);
                        return Some((CelMapKey::text(name), Val::from_json(value, inner)));
                    }
                    let inner = schema?.properties.get(name)?;
                    Some((
                        CelMapKey::text(&escape_field_name(name)),
                        Val::from_json(value, Some(inner)),
                    ))
                };
                Val::Map(Arc::new(members.iter().filter_map(field).collect_by_insertion()))
            }
        }
    }

    /// A whole object: its metadata has a name only.
    pub fn from_json_object(value: &Value, schema: &StructuralSchema) -> Val {
        let Val::Map(fields) = Val::from_json(value, Some(schema)) else { return Val::Null };
        let mut fields = Arc::unwrap_or_clone(fields);
        for name in META_FIELDS {
            let Some(value) = value.get(name) else { continue };
            let shown = match value {
                Value::Object(metadata) => {
                    let names = ["name", "generateName"].into_iter();
                    let named = names.filter_map(|it| {
                        Some((CelMapKey::text(it), Val::from_json(metadata.get(it)?, None)))
                    });
                    Val::Map(Arc::new(named.collect_by_insertion()))
                }
                other => Val::from_json(other, None),
            };
            fields.insert(CelMapKey::text(name), shown);
        }
        Val::Map(Arc::new(fields))
    }
}

fn of_text(text: &str, format: &str) -> Val {
    let parsed = match format {
        "date-time" => text.parse().ok().map(Val::Time),
        "date" => format!("{text}T00:00:00Z").parse().ok().map(Val::Time),
        "duration" => super::library::parse_duration(text).map(Val::Duration),
        "byte" => {
            let decoded = base64::engine::general_purpose::STANDARD.decode(text).ok();
            decoded.map(|it| Val::Bytes(it.into()))
        }
        _ => None,
    };
    parsed.unwrap_or_else(|| Val::text(text))
}

fn identity(schema: Option<&StructuralSchema>) -> ListEntryIdentity {
    let Some(schema) = schema else { return ListEntryIdentity::Place };
    match schema.list_type.as_deref() {
        Some("set") => ListEntryIdentity::Value,
        Some("map") => ListEntryIdentity::Keys(
            schema.list_keys.iter().map(|it| CelMapKey::text(&escape_field_name(it))).collect(),
        ),
        _ => ListEntryIdentity::Place,
    }
}

const RESERVED: [&str; 22] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
    "",
];

/// How rules name a field whose name is no identifier.
pub fn escape_field_name(name: &str) -> String {
    if RESERVED.contains(&name) && !name.is_empty() {
        return format!("__{name}__");
    }
    let underscores = name.replace("__", "__underscores__");
    underscores.replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__")
}

impl List {
    /// What tells an entry from others, in a form that has an order; equal values have equal forms.
    fn name(&self, entry: &Val) -> String {
        let mut name = String::new();
        match (&self.identity, entry) {
            (ListEntryIdentity::Keys(keys), Val::Map(fields)) => {
                for key in keys {
                    fields.get(key).unwrap_or(&Val::Null).write_name(&mut name);
                }
            }
            _ => entry.write_name(&mut name),
        }
        name
    }

    /// Two lists in one; in sets and maps the second one's entries replace those of the first.
    pub fn joined(&self, other: &List) -> List {
        let mut entries = self.entries.clone();
        if matches!(self.identity, ListEntryIdentity::Place) {
            entries.extend_from_slice(&other.entries);
            return List { entries, identity: ListEntryIdentity::Place };
        }
        let mut places: BTreeMap<String, usize> = entries
            .iter()
            .enumerate()
            .rev()
            .map(|(at, it)| (self.name(it), at))
            .collect_by_insertion();
        for entry in &other.entries {
            match places.entry(self.name(entry)) {
                Entry::Occupied(place) => entries[*place.get()] = entry.clone(),
                Entry::Vacant(place) => {
                    place.insert(entries.len());
                    entries.push(entry.clone());
                }
            }
        }
        List { entries, identity: self.identity.clone() }
    }
}

impl PartialEq for List {
    fn eq(&self, other: &List) -> bool {
        if self.entries.len() != other.entries.len() {
            return false;
        }
        if matches!(self.identity, ListEntryIdentity::Place) {
            return self.entries == other.entries;
        }
        let known: BTreeMap<String, &Val> =
            other.entries.iter().map(|it| (self.name(it), it)).collect_by_insertion();
        self.entries.iter().all(|it| known.get(&self.name(it)).is_some_and(|other| *other == it))
    }
}

impl Val {
    /// Writes a form in which equal values are equal: numbers are one whatever their type.
    fn write_name(&self, out: &mut String) {
        let written = match self {
            Val::Int(it) => write!(out, "n{it};"),
            Val::Uint(it) => write!(out, "n{it};"),
            Val::Double(it) if it.fract() == 0.0 && it.abs() < 1e18 => {
                write!(out, "n{};", *it as i64)
            }
            Val::Double(it) => write!(out, "n{it};"),
            Val::List(list) => {
                out.push('[');
                list.entries.iter().for_each(|it| it.write_name(out));
                write!(out, "]")
            }
            Val::Map(map) => {
                out.push('{');
                for (key, value) in &**map {
                    key.to_value().write_name(out);
                    value.write_name(out);
                }
                write!(out, "}}")
            }
            other => write!(out, "{other:?};"),
        };
        // A text takes everything.
        debug_assert!(written.is_ok());
    }
}

impl PartialEq for Val {
    fn eq(&self, other: &Val) -> bool {
        match (self, other) {
            (Val::Null, Val::Null) => true,
            (Val::Bytes(a), Val::Bytes(b)) => a == b,
            (Val::List(a), Val::List(b)) => a == b,
            (Val::Map(a), Val::Map(b)) => a == b,
            (Val::Optional(a), Val::Optional(b)) => a == b,
            (Val::Url(a), Val::Url(b)) => a == b,
            (Val::Ip(a), Val::Ip(b)) => a == b,
            (Val::Cidr(a, n), Val::Cidr(b, m)) => a == b && n == m,
            (Val::Type(a), Val::Type(b)) => a == b,
            _ => self.compare(other) == Some(Ordering::Equal),
        }
    }
}

impl Val {
    /// The order of two values; none if they have none.
    pub fn compare(&self, other: &Val) -> Option<Ordering> {
        match (self, other) {
            (Val::Bool(a), Val::Bool(b)) => Some(a.cmp(b)),
            (Val::Int(a), Val::Int(b)) => Some(a.cmp(b)),
            (Val::Uint(a), Val::Uint(b)) => Some(a.cmp(b)),
            (Val::Int(a), Val::Uint(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
            (Val::Uint(a), Val::Int(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
            (Val::Double(a), Val::Double(b)) => a.partial_cmp(b),
            (Val::Double(a), Val::Int(b)) => a.partial_cmp(&(*b as f64)),
            (Val::Int(a), Val::Double(b)) => (*a as f64).partial_cmp(b),
            (Val::Double(a), Val::Uint(b)) => a.partial_cmp(&(*b as f64)),
            (Val::Uint(a), Val::Double(b)) => (*a as f64).partial_cmp(b),
            (Val::Text(a), Val::Text(b)) => Some(a.cmp(b)),
            (Val::Bytes(a), Val::Bytes(b)) => Some(a.cmp(b)),
            (Val::Time(a), Val::Time(b)) => Some(a.cmp(b)),
            (Val::Duration(a), Val::Duration(b)) => Some(a.cmp(b)),
            (Val::Quantity(a), Val::Quantity(b)) => Some(a.cmp(b)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_that_are_no_identifiers() {
        assert_eq!(escape_field_name("a-b.c/d"), "a__dash__b__dot__c__slash__d");
        assert_eq!(escape_field_name("a__b"), "a__underscores__b");
        assert_eq!(escape_field_name("namespace"), "__namespace__");
    }

    #[test]
    fn lists_of_type_map_and_set_are_equal_in_any_order() {
        let schema = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}}});
        let schema = StructuralSchema::read(&schema).expect("a schema");
        let val = |value: Value| Val::from_json(&value, Some(&schema));
        let (a, b) = (json!({"k": "a", "v": 1}), json!({"k": "b", "v": 2}));
        assert_eq!(val(json!([a, b])), val(json!([b, a])));
        let (Val::List(one), Val::List(two)) =
            (val(json!([a, b])), val(json!([{"k": "a", "v": 3}])))
        else {
            panic!("lists");
        };
        assert_eq!(one.joined(&two).entries.len(), 2);
        let set =
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "number"}});
        let set = StructuralSchema::read(&set).expect("a schema");
        let of = |numbers: Vec<i64>| Val::from_json(&json!(numbers), Some(&set));
        let (up, down) = (of((0..50_000).collect()), of((0..50_000).rev().collect()));
        assert_eq!(up, down);
        assert_ne!(up, of((1..50_001).collect()));
        assert_ne!(Val::from_json(&json!([1, 2]), None), Val::from_json(&json!([2, 1]), None));
    }

    #[test]
    fn numbers_are_equal_across_types() {
        assert_eq!(Val::Int(1), Val::Double(1.0));
        assert_eq!(Val::Uint(1), Val::Int(1));
        assert_ne!(Val::Int(1), Val::text("1"));
    }
}
