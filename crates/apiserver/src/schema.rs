//! The API types of Kubernetes: a table of every type behind the served resources, from `types.txt`, and the
//! resources, from `kinds.txt`. Both are written by `conformance/cmd/schema` from upstream.
//!
//! One table drives decoding ([`decode`]), protobuf, strategic merge patch, OpenAPI and discovery, so that they cannot
//! disagree.

mod decode;
mod duplicate_fields;
mod kinds;

use std::sync::LazyLock;

use loadmaster_stdx::Map;
use serde_json::Value;

pub use decode::{DecodeError, Decoded, decode, json_type_name, zero_value};
pub use duplicate_fields::duplicate_fields;
pub use kinds::{Kind, Kinds, NO_BACKEND, Subresource, api_version, intern};

/// A type in the [`Schema`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TypeId(usize);

impl TypeId {
    /// Its place in the order of [`Schema::types`].
    pub fn index(self) -> usize {
        self.0
    }
}

/// All types.
#[derive(Debug)]
pub struct Schema {
    types: Vec<Type>,
    by_name: Map<&'static str, TypeId>,
}

/// A struct of upstream's.
#[derive(Debug)]
pub struct Type {
    /// Group, version and Go name, such as `core/v1.Pod`.
    pub name: &'static str,
    /// Merged as a whole by server-side apply.
    pub is_atomic: bool,
    /// Has `apiVersion` and `kind`, which are not among its fields here.
    pub is_kind: bool,
    /// In Go's order, which is that of JSON output.
    pub fields: Vec<Field>,
}

/// A field of a struct.
#[derive(Debug)]
pub struct Field {
    /// In JSON; `-` for an inlined struct.
    pub name: &'static str,
    /// In protobuf; 0 if the type has no protobuf form.
    pub number: u32,
    /// What it holds.
    pub shape: Shape,
    /// A pointer in Go, so that absent and zero differ.
    pub is_pointer: bool,
    /// Left out of JSON when empty.
    pub omits_empty: bool,
    /// Left out of JSON when zero, structs included.
    pub omits_zero: bool,
    /// OpenAPI calls it required.
    pub is_required: bool,
    /// The fields of the inlined struct stand in this one's JSON.
    pub is_inline: bool,
    /// How server-side apply merges it.
    pub topology: ApplyStrategy,
    /// The JSON of its default in OpenAPI. Where it is a key of a list, an entry without it has this one.
    pub default: Option<&'static str>,
    /// The values that it may have, where upstream lists them.
    pub enum_values: Vec<&'static str>,
    /// How a strategic merge patch changes it.
    pub patch: PatchStrategy,
    /// A strategic merge patch may name the keys that stay (`$retainKeys`).
    pub retains_keys: bool,
}

/// What a field holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    String,
    Bool,
    Int32,
    Int64,
    Double,
    /// Base64 in JSON.
    Bytes,
    Time,
    MicroTime,
    Duration,
    Quantity,
    IntOrString,
    /// Any object, kept as its bytes (`RawExtension`).
    Raw,
    /// A set of field paths (`FieldsV1`).
    Fields,
    /// Any JSON, by one of the names that `apiextensions` has for it.
    Json(&'static str),
    Object(TypeId),
    List(Box<Shape>),
    Map(Box<Shape>),
    /// A list that protobuf puts into a message of its own.
    Wrapped(Box<Shape>),
}

/// How server-side apply sees a list or map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyStrategy {
    /// Lists are atomic, maps and structs granular.
    Default,
    Atomic,
    Set,
    /// A list whose entries are distinguished by these fields, separated by commas.
    Keys(&'static str),
}

/// How a strategic merge patch treats a list or struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchStrategy {
    /// Lists are replaced, structs merged.
    Default,
    Replace,
    /// A list of plain values that grows.
    Merge,
    /// A list whose entries are distinguished by this field.
    MergeBy(&'static str),
}

impl Field {
    /// Its default in OpenAPI.
    pub fn default_value(&self) -> Option<Value> {
        self.default.and_then(|json| serde_json::from_str(json).ok())
    }
}

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| Schema::parse(include_str!("schema/types.txt")));

/// The types of Kubernetes 1.36.
pub fn schema() -> &'static Schema {
    &SCHEMA
}

impl Schema {
    fn parse(text: &'static str) -> Schema {
        let lines = || text.lines().filter(|line| !line.starts_with('#'));
        let mut by_name = Map::default();
        for (at, line) in lines().filter(|line| !line.starts_with(' ')).enumerate() {
            by_name.insert(line.split(' ').next().unwrap_or(line), TypeId(at));
        }
        let mut types: Vec<Type> = Vec::with_capacity(by_name.len());
        for line in lines() {
            if let Some(field) = line.strip_prefix(' ') {
                if let Some(last) = types.last_mut() {
                    last.fields.extend(parse_field(field, &by_name));
                }
                continue;
            }
            let mut words = line.split(' ');
            let name = words.next().unwrap_or_default();
            let (mut is_atomic, mut is_kind) = (false, false);
            for flag in words {
                is_atomic |= flag == "atomic";
                is_kind |= flag == "kind";
            }
            types.push(Type { name, is_atomic, is_kind, fields: Vec::new() });
        }
        Schema { types, by_name }
    }

    /// A type.
    pub fn get(&self, id: TypeId) -> &Type {
        &self.types[id.0]
    }

    /// A type by its name, such as `core/v1.Pod`.
    pub fn find(&self, name: &str) -> Option<TypeId> {
        self.by_name.get(name).copied()
    }

    /// The type of a kind, such as (`apps`, `v1`, `Deployment`).
    pub fn find_kind(&self, group: &str, version: &str, kind: &str) -> Option<TypeId> {
        let package = match group {
            "" => "core",
            "internal.apiserver.k8s.io" => "apiserverinternal",
            _ => group.split('.').next().unwrap_or(group),
        };
        let own = self.find(&format!("{package}/{version}.{kind}"));
        own.or_else(|| self.find(&format!("meta/v1.{kind}")))
    }

    /// A field by its JSON name, through inlined structs.
    pub fn field(&self, id: TypeId, name: &str) -> Option<&Field> {
        self.get(id).fields.iter().find_map(|field| match (&field.shape, field.is_inline) {
            (Shape::Object(inner), true) => self.field(*inner, name),
            _ => (field.name == name).then_some(field),
        })
    }

    /// The JSON names of the fields that may stand beside the one at `path`, such as `spec.containers[0].imag`. Empty if no type of this
    /// table has the parent.
    pub fn names_beside(&self, id: TypeId, path: &str) -> Vec<&'static str> {
        let (parents, _) = path.rsplit_once('.').unwrap_or_default();
        let parents = parents.split('.').filter(|it| !it.is_empty());
        let owner =
            parents.map(|it| it.split('[').next().unwrap_or(it)).try_fold(id, |id, name| {
                let mut shape = &self.field(id, name)?.shape;
                while let Shape::List(inner) | Shape::Wrapped(inner) = shape {
                    shape = inner;
                }
                if let Shape::Object(id) = shape { Some(*id) } else { None }
            });
        owner.map(|id| self.field_names(id)).unwrap_or_default()
    }

    fn field_names(&self, id: TypeId) -> Vec<&'static str> {
        let names = self.get(id).fields.iter().flat_map(|field| match field.shape {
            Shape::Object(inner) if field.is_inline => self.field_names(inner),
            _ => vec![field.name],
        });
        names.collect()
    }

    /// All types in the order of their names.
    pub fn types(&self) -> impl Iterator<Item = (TypeId, &Type)> {
        self.types.iter().enumerate().map(|(at, it)| (TypeId(at), it))
    }
}

fn parse_field(line: &'static str, by_name: &Map<&'static str, TypeId>) -> Option<Field> {
    let mut words = line.split(' ');
    let name = words.next()?;
    let number = words.next()?.parse().ok()?;
    let shape = parse_shape(words.next()?, by_name)?;
    let mut field = Field {
        name,
        number,
        shape,
        is_pointer: false,
        omits_empty: false,
        omits_zero: false,
        is_required: false,
        is_inline: false,
        topology: ApplyStrategy::Default,
        default: None,
        enum_values: Vec::new(),
        patch: PatchStrategy::Default,
        retains_keys: false,
    };
    for flag in words {
        match flag.split_once('=').unwrap_or((flag, "")) {
            ("ptr", _) => field.is_pointer = true,
            ("omit", _) => field.omits_empty = true,
            ("omitzero", _) => field.omits_zero = true,
            ("req", _) => field.is_required = true,
            ("inline", _) => field.is_inline = true,
            ("atomic", _) => field.topology = ApplyStrategy::Atomic,
            ("set", _) => field.topology = ApplyStrategy::Set,
            ("map", keys) => field.topology = ApplyStrategy::Keys(keys),
            ("default", json) => field.default = Some(json),
            ("enum", values) => field.enum_values = values.split(',').collect(),
            ("replace", _) => field.patch = PatchStrategy::Replace,
            ("merge", "") => field.patch = PatchStrategy::Merge,
            ("merge", key) => field.patch = PatchStrategy::MergeBy(key),
            ("retain", _) => field.retains_keys = true,
            _ => return None,
        }
    }
    Some(field)
}

fn parse_shape(word: &'static str, by_name: &Map<&'static str, TypeId>) -> Option<Shape> {
    let boxed = |rest: &'static str| parse_shape(rest, by_name).map(Box::new);
    Some(match word {
        "string" => Shape::String,
        "bool" => Shape::Bool,
        "int32" => Shape::Int32,
        "int64" => Shape::Int64,
        "double" => Shape::Double,
        "bytes" => Shape::Bytes,
        "time" => Shape::Time,
        "microtime" => Shape::MicroTime,
        "duration" => Shape::Duration,
        "quantity" => Shape::Quantity,
        "intorstring" => Shape::IntOrString,
        "raw" => Shape::Raw,
        "fields" => Shape::Fields,
        _ => {
            if let Some(name) = word.strip_prefix("json:") {
                Shape::Json(name)
            } else if let Some(rest) = word.strip_prefix("wrapped[]") {
                Shape::Wrapped(boxed(rest)?)
            } else if let Some(rest) = word.strip_prefix("[]") {
                Shape::List(boxed(rest)?)
            } else if let Some(rest) = word.strip_prefix("{}") {
                Shape::Map(boxed(rest)?)
            } else {
                Shape::Object(*by_name.get(word)?)
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_parsed() {
        let text = include_str!("schema/types.txt");
        let n_fields = text.lines().filter(|line| line.starts_with(' ')).count();
        let n_types = text.lines().filter(|line| !line.starts_with([' ', '#'])).count();
        assert_eq!(schema().types.len(), n_types);
        assert_eq!(schema().types.iter().map(|it| it.fields.len()).sum::<usize>(), n_fields);
    }

    #[test]
    fn fields_are_found_through_inlined_structs() {
        let volume = schema().find("core/v1.Volume").expect("a type");
        let field = schema().field(volume, "emptyDir").expect("a field");
        assert_eq!((field.number, field.is_pointer), (2, true));
        let spec = schema().find("core/v1.PodSpec").expect("a type");
        let field = schema().field(spec, "containers").expect("a field");
        assert_eq!(
            (field.topology, field.patch),
            (ApplyStrategy::Keys("name"), PatchStrategy::MergeBy("name"))
        );
    }

    #[test]
    fn names_beside_a_field() {
        let check = |path: &str, name: &str, want: bool| {
            let pod = schema().find_kind("", "v1", "Pod").expect("a type");
            assert_eq!(schema().names_beside(pod, path).contains(&name), want, "{path} {name}");
        };
        check("spek", "spec", true);
        check("spec.containers[0].imag", "image", true);
        check("spec.containers[0].ports[1].nam", "hostPort", true);
        check("spec.volumes[0].emptydir", "emptyDir", true);
        check("spec.containers[0].imag", "nodeName", false);
        check("spec.unknown.imag", "image", false);
        check("metadata.labels.a", "name", false);
    }

    #[test]
    fn fields_have_defaults_and_enum_values() {
        let check = |type_name: &str, name: &str, default: Option<Value>, values: &[&str]| {
            let id = schema().find(type_name).expect("a type");
            let field = schema().field(id, name).expect("a field");
            assert_eq!(field.default_value(), default, "{type_name} {name}");
            assert_eq!(field.enum_values, values, "{type_name} {name}");
        };
        check("core/v1.ServicePort", "protocol", Some("TCP".into()), &["SCTP", "TCP", "UDP"]);
        check("core/v1.Toleration", "operator", None, &["Equal", "Exists", "Gt", "Lt"]);
        let kinds = ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File"];
        let kinds = [&kinds[..], &["FileOrCreate", "Socket"]].concat();
        check("core/v1.HostPathVolumeSource", "type", None, &kinds);
        check("core/v1.Pod", "spec", Some(serde_json::json!({})), &[]);
        for field in schema().types.iter().flat_map(|it| &it.fields) {
            assert_eq!(field.default.is_some(), field.default_value().is_some(), "{}", field.name);
        }
    }
}
