//! Types of expressions, and the signatures of all functions.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use super::super::structural::StructuralSchema;
use super::value::escape_field_name;
use loadmaster_stdx::CollectByInsertion as _;

/// A type.
#[derive(Clone, Debug, PartialEq)]
pub enum Ty {
    /// Not known before run time.
    Dyn,
    /// `int`, `string`, `bool`, `kubernetes.Quantity`, ..
    Plain(&'static str),
    List(Box<Ty>),
    Map(Box<Ty>, Box<Ty>),
    Optional(Box<Ty>),
    /// `type(..)`
    Type,
    Object(Arc<ObjectType>),
    /// A parameter of a signature.
    Param(char),
}

/// The fields of an object, by the names that rules use.
#[derive(Debug, PartialEq)]
pub struct ObjectType {
    name: String,
    fields: BTreeMap<String, Ty>,
}

pub const BOOL_TYPE: Ty = Ty::Plain("bool");
pub const STRING_TYPE: Ty = Ty::Plain("string");

impl ObjectType {
    pub fn get(&self, name: &str) -> Option<&Ty> {
        self.fields.get(name)
    }
}

impl Ty {
    pub fn list(of: Ty) -> Ty {
        Ty::List(Box::new(of))
    }

    /// The type of values of a schema; none if rules cannot see them.
    pub fn of_schema(schema: &StructuralSchema, name: &str) -> Option<Ty> {
        if schema.is_int_or_string || schema.nullable {
            return Some(Ty::Dyn);
        }
        Some(match schema.kind.as_str() {
            "boolean" => BOOL_TYPE,
            "integer" => Ty::Plain("int"),
            "number" => Ty::Plain("double"),
            "string" => match schema.format.as_str() {
                "byte" => Ty::Plain("bytes"),
                "duration" => Ty::Plain("google.protobuf.Duration"),
                "date" | "date-time" => Ty::Plain("google.protobuf.Timestamp"),
                _ => STRING_TYPE,
            },
            "array" => Ty::list(Ty::of_schema(schema.items()?, &format!("{name}.@idx"))?),
            "object" => match schema.additional() {
                Some(values) => {
                    let values = Ty::of_schema(values, &format!("{name}.@elem"))?;
                    Ty::Map(Box::new(STRING_TYPE), Box::new(values))
                }
                None => Ty::Object(Arc::new(ObjectType::of_schema(schema, name))),
            },
            _ => return None,
        })
    }

    /// The type of whole objects.
    pub fn of_object_schema(schema: &StructuralSchema, name: &str) -> Ty {
        let mut own = ObjectType::of_schema(schema, name);
        let names = ["name", "generateName"].map(|it| (it.to_owned(), STRING_TYPE));
        let metadata = ObjectType { name: format!("{name}.metadata"), fields: names.into() };
        own.fields.insert("apiVersion".to_owned(), STRING_TYPE);
        own.fields.insert("kind".to_owned(), STRING_TYPE);
        own.fields.insert("metadata".to_owned(), Ty::Object(Arc::new(metadata)));
        Ty::Object(Arc::new(own))
    }
}

impl ObjectType {
    fn of_schema(schema: &StructuralSchema, name: &str) -> ObjectType {
        let typed = |(field, inner): (&String, &StructuralSchema)| {
            let path = format!("{name}.{field}");
            let ty = match inner.is_embedded {
                true => Ty::of_object_schema(inner, &path),
                false => Ty::of_schema(inner, &path)?,
            };
            Some((escape_field_name(field), ty))
        };
        let fields = schema.properties.iter().filter_map(typed).collect_by_insertion();
        ObjectType { name: name.to_owned(), fields }
    }
}

impl fmt::Display for Ty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ty::Dyn => f.write_str("dyn"),
            Ty::Plain("google.protobuf.Timestamp") => f.write_str("timestamp"),
            Ty::Plain("google.protobuf.Duration") => f.write_str("duration"),
            Ty::Plain("null_type") => f.write_str("null"),
            Ty::Plain(name) => f.write_str(name),
            Ty::List(of) => write!(f, "list({of})"),
            Ty::Map(key, value) => write!(f, "map({key}, {value})"),
            Ty::Optional(of) => write!(f, "optional_type({of})"),
            Ty::Type => f.write_str("type"),
            Ty::Object(fields) => f.write_str(&fields.name),
            Ty::Param(name) => write!(f, "{name}"),
        }
    }
}

/// What a function takes and gives.
pub struct Signature {
    /// Called as `target.name(..)`; the target is the first of `takes`.
    is_member: bool,
    takes: Vec<Ty>,
    gives: Ty,
}

/// All functions by name.
static SIGNATURES: LazyLock<BTreeMap<&'static str, Vec<Signature>>> = LazyLock::new(|| {
    let mut all: BTreeMap<&'static str, Vec<Signature>> = BTreeMap::new();
    for line in include_str!("signatures.txt").lines() {
        if let Some((name, signature)) = parse(line) {
            all.entry(name).or_default().push(signature);
        }
    }
    all
});

/// Reads `string.contains (string) bool`, or `size (string) int`.
fn parse(line: &'static str) -> Option<(&'static str, Signature)> {
    let (name, rest) = line.split_once(" (")?;
    let (takes, gives) = rest.rsplit_once(") ")?;
    let mut types = Vec::new();
    let mut rest = takes.trim();
    while !rest.is_empty() {
        let (ty, after) = parse_type(rest)?;
        types.push(ty);
        rest = after.trim_start_matches([',', ' ']);
    }
    let (gives, _) = parse_type(gives)?;
    match name.strip_prefix('.') {
        Some(name) => Some((name, Signature { is_member: true, takes: types, gives })),
        None => Some((name, Signature { is_member: false, takes: types, gives })),
    }
}

const PLAIN: [(&str, &str); 14] = [
    ("bool", "bool"),
    ("bytes", "bytes"),
    ("cidr", "net.CIDR"),
    ("double", "double"),
    ("duration", "google.protobuf.Duration"),
    ("int", "int"),
    ("ip", "net.IP"),
    ("null", "null_type"),
    ("quantity", "kubernetes.Quantity"),
    ("string", "string"),
    ("timestamp", "google.protobuf.Timestamp"),
    ("uint", "uint"),
    ("url", "kubernetes.URL"),
    ("type", "type"),
];

fn parse_type(text: &'static str) -> Option<(Ty, &'static str)> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let inner = |rest: &'static str| {
        let (ty, rest) = parse_type(rest)?;
        Some((Box::new(ty), rest))
    };
    Some(match name {
        "dyn" => (Ty::Dyn, rest),
        "type" => (Ty::Type, rest),
        "list" => {
            let (of, rest) = inner(rest.strip_prefix('<')?)?;
            (Ty::List(of), rest.strip_prefix('>')?)
        }
        "optional" => {
            let (of, rest) = inner(rest.strip_prefix('<')?)?;
            (Ty::Optional(of), rest.strip_prefix('>')?)
        }
        "map" => {
            let (key, rest) = inner(rest.strip_prefix('<')?)?;
            let (value, rest) = inner(rest.strip_prefix(", ")?)?;
            (Ty::Map(key, value), rest.strip_prefix('>')?)
        }
        _ if name.len() == 1 => (Ty::Param(name.chars().next()?), rest),
        _ => (Ty::Plain(PLAIN.iter().find(|(short, _)| *short == name)?.1), rest),
    })
}

/// Whether there is a function of this name.
pub fn is_function(name: &str) -> bool {
    SIGNATURES.contains_key(name)
}

/// What a call gives; none if no signature fits.
pub fn call_result_type(name: &str, target: Option<&Ty>, args: &[Ty]) -> Option<Ty> {
    let given: Vec<&Ty> = target.into_iter().chain(args).collect();
    let fitting = SIGNATURES.get(name)?.iter().filter_map(|it| {
        if it.is_member != target.is_some() || it.takes.len() != given.len() {
            return None;
        }
        let mut bound = BTreeMap::new();
        let fits =
            it.takes.iter().zip(&given).all(|(wanted, given)| fit(wanted, given, &mut bound));
        fits.then(|| filled(&it.gives, &bound))
    });
    // Of several that fit something unknown, what they give is unknown.
    let mut results: Vec<Ty> = Vec::new();
    fitting.for_each(|ty| {
        if !results.contains(&ty) {
            results.push(ty);
        }
    });
    match results.len() {
        0 => None,
        1 => results.pop(),
        _ => Some(Ty::Dyn),
    }
}

fn fit(wanted: &Ty, given: &Ty, bound: &mut BTreeMap<char, Ty>) -> bool {
    match (wanted, given) {
        (Ty::Param(name), given) => match bound.get(name).cloned() {
            None => {
                bound.insert(*name, given.clone());
                true
            }
            Some(known) => {
                let joined = common_type(&known, given);
                joined.inspect(|ty| drop(bound.insert(*name, ty.clone()))).is_some()
            }
        },
        (Ty::Dyn, _) | (_, Ty::Dyn) => true,
        (Ty::List(wanted), Ty::List(given)) | (Ty::Optional(wanted), Ty::Optional(given)) => {
            fit(wanted, given, bound)
        }
        (Ty::Map(key, value), Ty::Map(given_key, given_value)) => {
            fit(key, given_key, bound) && fit(value, given_value, bound)
        }
        (Ty::Type, Ty::Type) => true,
        _ => wanted == given,
    }
}

/// The type of what is of one or the other type; none if they have nothing in common.
pub fn common_type(a: &Ty, b: &Ty) -> Option<Ty> {
    const NULL: Ty = Ty::Plain("null_type");
    match (a, b) {
        _ if a == b => Some(a.clone()),
        (Ty::Dyn, _) | (_, Ty::Dyn) => Some(Ty::Dyn),
        (Ty::List(a), Ty::List(b)) => Some(Ty::list(common_type(a, b)?)),
        (Ty::Optional(a), Ty::Optional(b)) => Some(Ty::Optional(Box::new(common_type(a, b)?))),
        (Ty::Map(k, v), Ty::Map(l, w)) => {
            Some(Ty::Map(Box::new(common_type(k, l)?), Box::new(common_type(v, w)?)))
        }
        (it @ Ty::Object(_), null) | (null, it @ Ty::Object(_)) if *null == NULL => {
            Some(it.clone())
        }
        _ => None,
    }
}

fn filled(ty: &Ty, bound: &BTreeMap<char, Ty>) -> Ty {
    let inner = |ty: &Ty| Box::new(filled(ty, bound));
    match ty {
        Ty::Param(name) => bound.get(name).cloned().unwrap_or(Ty::Dyn),
        Ty::List(of) => Ty::List(inner(of)),
        Ty::Optional(of) => Ty::Optional(inner(of)),
        Ty::Map(key, value) => Ty::Map(inner(key), inner(value)),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signature_is_parsed() {
        for line in include_str!("signatures.txt").lines() {
            assert!(parse(line).is_some(), "{line}");
        }
    }

    #[test]
    fn signatures_fit_types() {
        let (int, list) = (Ty::Plain("int"), Ty::list(Ty::Plain("int")));
        assert_eq!(call_result_type("_+_", None, &[int.clone(), int.clone()]), Some(int.clone()));
        assert_eq!(call_result_type("_+_", None, &[int.clone(), STRING_TYPE]), None);
        assert_eq!(call_result_type("sum", Some(&list), &[]), Some(int.clone()));
        assert_eq!(call_result_type("@in", None, &[STRING_TYPE, list.clone()]), None);
        assert_eq!(call_result_type("_[_]", None, &[list, int.clone()]), Some(int.clone()));
        assert_eq!(call_result_type("_==_", None, &[int, Ty::Dyn]), Some(BOOL_TYPE));
        assert_eq!(
            call_result_type("size", None, &[Ty::Dyn]).map(|it| it.to_string()).as_deref(),
            Some("int")
        );
    }
}
