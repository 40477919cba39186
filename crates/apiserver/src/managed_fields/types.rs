//! Types for server-side apply: which lists have keys or are sets, and what is atomic.
//!
//! One form serves the types of Kubernetes ([`built_in`]) and those of custom resources ([`Types::of_resource`]).

use std::sync::LazyLock;

use loadmaster_stdx::Map;
use serde_json::Value;

use crate::schema::{self, ApplyStrategy, Schema, Shape, TypeId, schema};

/// A type in [`Types`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeRef(u32);

/// Types that refer to each other.
#[derive(Clone, Debug)]
pub struct Types {
    /// Types that come before these.
    base: Option<&'static Types>,
    atoms: Vec<Atom>,
}

/// What a value may be; several at once when the type leaves it open.
#[derive(Clone, Debug, Default)]
pub(super) struct Atom {
    pub scalar: Option<Scalar>,
    pub list: Option<List>,
    pub map: Option<MapType>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    Numeric,
    String,
    Boolean,
    Any,
}

#[derive(Clone, Debug)]
pub(super) struct List {
    pub element: TypeRef,
    pub kind: ListKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ListKind {
    Atomic,
    Set,
    Keys(Vec<Box<str>>),
}

/// A struct, a map, or a struct that takes more than its fields.
#[derive(Clone, Debug, Default)]
pub(super) struct MapType {
    pub fields: Map<Box<str>, Member>,
    /// What other names hold; none when there may be no others.
    pub element: Option<TypeRef>,
    pub is_atomic: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Member {
    pub type_ref: TypeRef,
    /// What an entry of a list has as its key when it does not say.
    pub default: Option<Value>,
}

impl MapType {
    pub fn type_of(&self, name: &str) -> Option<TypeRef> {
        self.fields.get(name).map(|it| it.type_ref).or(self.element)
    }
}

// The types every schema has, at these places.
pub(super) const NUMERIC: TypeRef = TypeRef(0);
pub(super) const STRING: TypeRef = TypeRef(1);
pub(super) const BOOLEAN: TypeRef = TypeRef(2);
pub(super) const ANY_SCALAR: TypeRef = TypeRef(3);
/// Anything, owned as a whole.
pub(super) const UNTYPED: TypeRef = TypeRef(4);
/// Anything; maps are granular, lists are owned as a whole.
pub(super) const DEDUCED: TypeRef = TypeRef(5);

/// The types of Kubernetes.
pub fn built_in() -> &'static Types {
    static BUILT_IN: LazyLock<Types> = LazyLock::new(|| Types::of_schema(schema()));
    &BUILT_IN
}

impl Types {
    /// The types every schema has.
    pub(super) fn new() -> Types {
        let scalar = |scalar| Atom { scalar: Some(scalar), ..Atom::default() };
        let open = |element, is_atomic| Atom {
            scalar: Some(Scalar::Any),
            list: Some(List { element: UNTYPED, kind: ListKind::Atomic }),
            map: Some(MapType { element: Some(element), is_atomic, ..MapType::default() }),
        };
        let scalars = [Scalar::Numeric, Scalar::String, Scalar::Boolean, Scalar::Any];
        let mut atoms: Vec<Atom> = scalars.into_iter().map(scalar).collect();
        atoms.extend([open(UNTYPED, true), open(DEDUCED, false)]);
        Types { base: None, atoms }
    }

    /// Room for types that refer to those of Kubernetes.
    pub(super) fn on_built_in() -> Types {
        Types { base: Some(built_in()), atoms: Vec::new() }
    }

    fn n_base(&self) -> usize {
        self.base.map_or(0, |base| base.atoms.len())
    }

    pub(super) fn get(&self, TypeRef(at): TypeRef) -> &Atom {
        match self.base {
            Some(base) if (at as usize) < base.atoms.len() => base.get(TypeRef(at)),
            _ => &self.atoms[at as usize - self.n_base()],
        }
    }

    pub(super) fn add(&mut self, atom: Atom) -> TypeRef {
        let at = self.n_base() + self.atoms.len();
        self.atoms.push(atom);
        TypeRef(u32::try_from(at).unwrap_or(u32::MAX))
    }

    /// The place of a type of Kubernetes in [`built_in`] and in [`Types::of_resource`].
    pub fn of_built_in(id: TypeId) -> TypeRef {
        // Two places each: as it is, and owned as a whole.
        TypeRef(DEDUCED.0 + 1 + 2 * u32::try_from(id.index()).unwrap_or(u32::MAX))
    }

    fn of_schema(schema: &Schema) -> Types {
        let mut types = Types::new();
        for (_, it) in schema.types() {
            for is_atomic in [it.is_atomic, true] {
                types.add(Atom {
                    map: Some(MapType { is_atomic, ..MapType::default() }),
                    ..Atom::default()
                });
            }
        }
        for (id, it) in schema.types() {
            let fields = types.members(schema, it);
            let at = Types::of_built_in(id).0 as usize;
            for atom in &mut types.atoms[at..at + 2] {
                if let Some(map) = &mut atom.map {
                    map.fields.clone_from(&fields);
                }
            }
        }
        types
    }

    fn members(&mut self, schema: &Schema, of: &schema::Type) -> Map<Box<str>, Member> {
        let mut members = Map::default();
        if of.is_kind {
            for name in ["apiVersion", "kind"] {
                members.insert(name.into(), Member { type_ref: STRING, default: None });
            }
        }
        for field in &of.fields {
            if let (Shape::Object(inner), true) = (&field.shape, field.is_inline) {
                members.extend(self.members(schema, schema.get(*inner)));
                continue;
            }
            let type_ref = self.of_shape(&field.shape, field.topology);
            members.insert(field.name.into(), Member { type_ref, default: field.default_value() });
        }
        members
    }

    fn of_shape(&mut self, shape: &Shape, topology: ApplyStrategy) -> TypeRef {
        let is_atomic = topology == ApplyStrategy::Atomic;
        match shape {
            Shape::Int32 | Shape::Int64 | Shape::Double => NUMERIC,
            Shape::String | Shape::Bytes | Shape::Duration => STRING,
            Shape::Bool => BOOLEAN,
            Shape::Time | Shape::MicroTime | Shape::Quantity | Shape::IntOrString => ANY_SCALAR,
            Shape::Raw => UNTYPED,
            Shape::Json(_) => DEDUCED,
            Shape::Fields => {
                let map = MapType { element: Some(DEDUCED), ..MapType::default() };
                self.add(Atom { map: Some(map), ..Atom::default() })
            }
            Shape::Object(id) => {
                let TypeRef(at) = Types::of_built_in(*id);
                TypeRef(at + u32::from(is_atomic))
            }
            Shape::List(inner) | Shape::Wrapped(inner) => {
                let element = self.of_shape(inner, ApplyStrategy::Default);
                let kind = match topology {
                    ApplyStrategy::Default | ApplyStrategy::Atomic => ListKind::Atomic,
                    ApplyStrategy::Set => ListKind::Set,
                    ApplyStrategy::Keys(keys) => {
                        ListKind::Keys(keys.split(',').map(Box::from).collect())
                    }
                };
                self.add(Atom { list: Some(List { element, kind }), ..Atom::default() })
            }
            Shape::Map(inner) => {
                let element = Some(self.of_shape(inner, ApplyStrategy::Default));
                let map = MapType { element, is_atomic, ..MapType::default() };
                self.add(Atom { map: Some(map), ..Atom::default() })
            }
        }
    }
}

impl Atom {
    /// What is left of the type for a value: the form that the value has, if it may have it.
    pub fn for_value(&self, value: Option<&Value>) -> ValueForm {
        let (mut scalar, mut list, mut map) =
            (self.scalar.is_some(), self.list.is_some(), self.map.is_some());
        match value {
            Some(Value::Array(_)) if list => (scalar, map) = (false, false),
            Some(Value::Object(_)) if map => (scalar, list) = (false, false),
            Some(Value::String(_) | Value::Number(_) | Value::Bool(_)) if scalar => {
                (list, map) = (false, false);
            }
            _ => {}
        }
        ValueForm { scalar, list, map }
    }
}

/// Which forms of an [`Atom`] come into question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ValueForm {
    pub scalar: bool,
    pub list: bool,
    pub map: bool,
}

/// An [`Atom`] in one form.
#[derive(Clone, Copy, Debug)]
pub(super) enum TypedForm<'a> {
    Map(&'a MapType),
    Scalar(Scalar),
    List(&'a List),
}

impl ValueForm {
    /// Maps before scalars before lists, as structured-merge-diff decides.
    pub fn of(self, atom: &Atom) -> Option<TypedForm<'_>> {
        let map = atom.map.as_ref().filter(|_| self.map).map(TypedForm::Map);
        let scalar = || atom.scalar.filter(|_| self.scalar).map(TypedForm::Scalar);
        let list = || atom.list.as_ref().filter(|_| self.list).map(TypedForm::List);
        map.or_else(scalar).or_else(list)
    }
}
