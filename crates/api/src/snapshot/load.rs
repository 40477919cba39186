//! The visitors: one pass over a document, from the text straight into the lean types.
//!
//! An object's type is known once `apiVersion` and `kind` have been read, which usually come first; what is
//! needed of fields in front of them is kept aside as plain values. A list of `kubectl` has its `items`
//! before its `kind`, so items are read before it is known that they are some.

use std::fmt;
use std::vec;

use loadmaster_stdx::{decode_erased, did_you_mean};
use serde::Deserialize;
use serde::de::value::{BorrowedStrDeserializer, MapAccessDeserializer};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_path_to_error::Track;

use super::kinds::{self, KindHandling, SnapshotKind};
use super::{ObjectOrigin, ObjectWithOrigin, Snapshot};
use crate::document::FieldPath;
use crate::interned_str::Str;
use crate::meta::ObjectMeta;
use crate::node::Node;
use crate::pod::Pod;

/// `apiVersion` and `kind`.
pub(super) type TypeMeta = (Str, Str);

/// A mistake that no decoder knows of. Its path begins at the object.
pub(super) struct Problem {
    pub(super) path: FieldPath,
    pub(super) text: String,
}

/// Where objects go, and what went wrong.
pub(super) struct Loader {
    pub(super) snapshot: Snapshot,
    /// The current object.
    pub(super) origin: ObjectOrigin,
    pub(super) problem: Option<Problem>,
    /// The first item worth reading, if only an error is sought that is known to be there.
    pub(super) resume_at: Option<ObjectOrigin>,
    /// An item has no kind of its own and that of its list had not been read yet.
    pub(super) needs_type: bool,
    /// What an item says before its type ends the pass: kept aside as plain values, it may be nested as deep as the limit on the
    /// whole text allows, which a pass over one item does not know.
    pub(super) type_comes_first: bool,
}

impl Loader {
    pub(super) fn new() -> Loader {
        let (snapshot, origin) = (Snapshot::default(), ObjectOrigin::new(0, 0));
        Loader {
            snapshot,
            origin,
            problem: None,
            resume_at: None,
            needs_type: false,
            type_comes_first: false,
        }
    }

    /// Ends the pass. The first problem counts: others follow from it.
    fn fail<E: Error>(&mut self, path: FieldPath, text: impl Into<String>) -> E {
        let text = text.into();
        self.problem.get_or_insert(Problem { path, text });
        E::custom("")
    }

    fn skip(&mut self, api_version: &str, kind: &str, is_custom: bool) {
        let mut name = kind.to_owned();
        if is_custom {
            name = format!("{kind}.{}", kinds::group_of(api_version));
        }
        *self.snapshot.skipped.entry(name).or_default() += 1;
    }
}

/// Reads an object, or a list of objects.
pub(super) struct ObjectSeed<'l> {
    pub(super) loader: &'l mut Loader,
    /// What the object is: for an item if it does not say so itself, else for certain.
    pub(super) implied: Option<&'l TypeMeta>,
    /// Whether it stands in a list.
    pub(super) is_item: bool,
}

impl<'de> DeserializeSeed<'de> for ObjectSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

/// The keys that matter at the top of an object, whatever its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    ApiVersion,
    Kind,
    Items,
    /// A field of some kind that the snapshot contains.
    Field(&'static str),
    Other,
}

const FIELDS: [&str; 6] =
    ["metadata", "spec", "status", "value", "globalDefault", "preemptionPolicy"];

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Key, D::Error> {
        struct KeyVisitor;
        impl Visitor<'_> for KeyVisitor {
            type Value = Key;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a field name")
            }
            fn visit_str<E: Error>(self, name: &str) -> Result<Key, E> {
                Ok(match name {
                    "apiVersion" => Key::ApiVersion,
                    "kind" => Key::Kind,
                    "items" => Key::Items,
                    _ => match FIELDS.iter().find(|field| **field == name) {
                        Some(field) => Key::Field(field),
                        None => Key::Other,
                    },
                })
            }
        }
        deserializer.deserialize_identifier(KeyVisitor)
    }
}

/// What is known of an object before its type is.
#[derive(Default)]
struct Head {
    api_version: Option<Str>,
    kind: Option<Str>,
    early: Vec<(&'static str, Value)>,
    /// A key that has been taken, but not its value.
    pending: Option<&'static str>,
    has_items: bool,
}

impl<'de> Visitor<'de> for ObjectSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let ObjectSeed { loader, implied, is_item } = self;
        let head = read_head(loader, &mut map, implied, is_item)?;
        let (version, kind) = match (&head.api_version, &head.kind) {
            (Some(version), Some(kind)) if !version.is_empty() && !kind.is_empty() => {
                (version.clone(), kind.clone())
            }
            (version, kind) => {
                loader.needs_type = is_item;
                let text = missing_type(version.as_deref(), kind.as_deref());
                return Err(loader.fail(FieldPath::ROOT, text));
            }
        };
        let (wrong, text) = match kinds::class_of(&version, &kind) {
            KindHandling::Keep(_) | KindHandling::Skip { .. } if head.has_items => {
                ("kind", format!("expected a list, since there are items, found {kind:?}"))
            }
            KindHandling::Keep(kept) => return keep(loader, kept, head, map),
            KindHandling::Skip { is_custom } => {
                loader.skip(&version, &kind, is_custom);
                return drain(head, map);
            }
            KindHandling::List if is_item && kinds::is_custom(&version) => {
                loader.skip(&version, &kind, true);
                return drain(head, map);
            }
            KindHandling::List if is_item => {
                ("kind", format!("expected no list in a list, found {kind:?}"))
            }
            KindHandling::List => return read_list(loader, (version, kind), &head, map),
            KindHandling::WrongVersion { expected } => {
                ("apiVersion", format!("expected {expected:?} for a {kind}, found {version:?}"))
            }
            KindHandling::Unknown => {
                let suggestion = did_you_mean(&kind, kinds::kinds_of(&version));
                ("kind", format!("expected a kind of {version}, found {kind:?}{suggestion}"))
            }
        };
        Err(loader.fail(FieldPath::ROOT.field(wrong), text))
    }
}

fn missing_type(version: Option<&str>, kind: Option<&str>) -> &'static str {
    let is_missing = |text: Option<&str>| text.is_none_or(str::is_empty);
    match (is_missing(version), is_missing(kind)) {
        (true, true) => "expected apiVersion and kind, found neither",
        (true, false) => "expected apiVersion and kind, found no apiVersion",
        _ => "expected apiVersion and kind, found no kind",
    }
}

/// Reads on until it is clear what the object is, or its end.
fn read_head<'de, A: MapAccess<'de>>(
    loader: &mut Loader,
    map: &mut A,
    implied: Option<&TypeMeta>,
    is_item: bool,
) -> Result<Head, A::Error> {
    let mut head = Head::default();
    if let (Some((version, kind)), false) = (implied, is_item) {
        head.api_version = Some(version.clone());
        head.kind = Some(kind.clone());
    }
    while head.api_version.is_none() || head.kind.is_none() {
        let Some(key) = map.next_key::<Key>()? else { break };
        match key {
            Key::ApiVersion => head.api_version = map.next_value()?,
            Key::Kind => head.kind = map.next_value()?,
            // Items of a typed list have no type of their own, or begin with it.
            Key::Field(name) if implied.is_some() => {
                head.pending = Some(name);
                break;
            }
            Key::Field(_) if loader.type_comes_first => {
                return Err(loader.fail(FieldPath::ROOT, "expected apiVersion and kind first"));
            }
            Key::Field(name) => head.early.push((name, map.next_value()?)),
            Key::Items if !is_item => {
                head.has_items = true;
                map.next_value_seed(Items { loader: &mut *loader, implied: None })?;
            }
            Key::Items | Key::Other => {
                map.next_value::<IgnoredAny>()?;
            }
        }
    }
    if let Some((version, kind)) = implied {
        head.api_version.get_or_insert_with(|| version.clone());
        head.kind.get_or_insert_with(|| kind.clone());
    }
    Ok(head)
}

/// Reads what follows the type of a list.
fn read_list<'de, A: MapAccess<'de>>(
    loader: &mut Loader,
    (version, kind): TypeMeta,
    head: &Head,
    mut map: A,
) -> Result<(), A::Error> {
    let implied = kinds::item_kind(&kind).map(|item| (version.clone(), Str::new(item)));
    let mut has_items = head.has_items;
    while let Some(key) = map.next_key::<Key>()? {
        if key == Key::Items {
            has_items = true;
            map.next_value_seed(Items { loader: &mut *loader, implied: implied.as_ref() })?;
        } else {
            map.next_value::<IgnoredAny>()?;
        }
    }
    // A custom resource may be called AllowList without being one.
    if !has_items && kinds::is_custom(&version) {
        loader.skip(&version, &kind, true);
    }
    Ok(())
}

/// The items of a list.
struct Items<'l> {
    loader: &'l mut Loader,
    implied: Option<&'l TypeMeta>,
}

impl<'de> DeserializeSeed<'de> for Items<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_none<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Items { loader, implied } = self;
        let list = loader.origin;
        for index in 0.. {
            loader.origin = list.at(index);
            if loader.resume_at.is_some_and(|origin| loader.origin.is_before(origin)) {
                if items.next_element::<IgnoredAny>()?.is_none() {
                    break;
                }
                continue;
            }
            let seed = ObjectSeed { loader: &mut *loader, implied, is_item: true };
            if items.next_element_seed(seed)?.is_none() {
                break;
            }
        }
        loader.origin = list;
        Ok(())
    }
}

/// Passes over an object.
fn drain<'de, A: MapAccess<'de>>(head: Head, mut map: A) -> Result<(), A::Error> {
    if head.pending.is_some() {
        map.next_value::<IgnoredAny>()?;
    }
    while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
    Ok(())
}

/// Reads the rest of an object and adds it to the snapshot.
fn keep<'de, A: MapAccess<'de>>(
    loader: &mut Loader,
    kept: SnapshotKind,
    head: Head,
    map: A,
) -> Result<(), A::Error> {
    let Loader { snapshot, problem, origin, .. } = loader;
    let rest =
        Rest { early: head.early.into_iter(), value: None, pending: head.pending, map, problem };
    let has_name = match kept {
        SnapshotKind::Node => {
            let mut node = Node::deserialize(MapAccessDeserializer::new(rest))?;
            if node.status.allocatable.is_empty() {
                node.status.allocatable = node.status.capacity.clone();
            }
            add(&mut snapshot.nodes, *origin, node, |node| &mut node.metadata, false)
        }
        SnapshotKind::Pod => {
            let pod = Pod::deserialize(MapAccessDeserializer::new(rest))?;
            if matches!(&*pod.status.phase, "Succeeded" | "Failed") {
                snapshot.n_finished_pods += 1;
                return Ok(());
            }
            add(&mut snapshot.pods, *origin, pod, |pod| &mut pod.metadata, true)
        }
        SnapshotKind::Namespace => {
            read(&mut snapshot.namespaces, *origin, rest, |x| &mut x.metadata, false)?
        }
        SnapshotKind::Service => {
            read(&mut snapshot.services, *origin, rest, |x| &mut x.metadata, true)?
        }
        SnapshotKind::ReplicationController => {
            read(&mut snapshot.replication_controllers, *origin, rest, |x| &mut x.metadata, true)?
        }
        SnapshotKind::ReplicaSet => {
            read(&mut snapshot.replica_sets, *origin, rest, |x| &mut x.metadata, true)?
        }
        SnapshotKind::StatefulSet => {
            read(&mut snapshot.stateful_sets, *origin, rest, |x| &mut x.metadata, true)?
        }
        SnapshotKind::Deployment => {
            read(&mut snapshot.deployments, *origin, rest, |x| &mut x.metadata, true)?
        }
        SnapshotKind::Job => read(&mut snapshot.jobs, *origin, rest, |x| &mut x.metadata, true)?,
        SnapshotKind::PodDisruptionBudget => {
            read(&mut snapshot.disruption_budgets, *origin, rest, |x| &mut x.metadata, true)?
        }
        SnapshotKind::PriorityClass => {
            read(&mut snapshot.priority_classes, *origin, rest, |x| &mut x.metadata, false)?
        }
    };
    if has_name {
        return Ok(());
    }
    Err(loader.fail(FieldPath::ROOT.field("metadata").field("name"), "expected a name, found none"))
}

fn read<'de, T: Deserialize<'de>, A: MapAccess<'de>>(
    all: &mut Vec<ObjectWithOrigin<T>>,
    origin: ObjectOrigin,
    rest: Rest<'_, A>,
    metadata: impl Fn(&mut T) -> &mut ObjectMeta,
    is_namespaced: bool,
) -> Result<bool, A::Error> {
    let object = T::deserialize(MapAccessDeserializer::new(rest))?;
    Ok(add(all, origin, object, metadata, is_namespaced))
}

/// Adds an object; says whether it has a name.
fn add<T>(
    all: &mut Vec<ObjectWithOrigin<T>>,
    origin: ObjectOrigin,
    mut object: T,
    metadata: impl Fn(&mut T) -> &mut ObjectMeta,
    is_namespaced: bool,
) -> bool {
    let metadata = metadata(&mut object);
    if is_namespaced && metadata.namespace.is_empty() {
        metadata.namespace = Str::new("default");
    }
    let has_name = !metadata.name.is_empty();
    all.push(ObjectWithOrigin { object, origin });
    has_name
}

/// The fields of an object from its first on: those read before its type was known, then the others.
struct Rest<'p, A> {
    early: vec::IntoIter<(&'static str, Value)>,
    /// The value of the early field whose key was taken last.
    value: Option<(&'static str, Value)>,
    pending: Option<&'static str>,
    map: A,
    problem: &'p mut Option<Problem>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Rest<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        let name = match self.early.next() {
            Some((name, value)) => {
                self.value = Some((name, value));
                name
            }
            None => match self.pending.take() {
                Some(name) => name,
                None => return self.map.next_key_seed(seed),
            },
        };
        seed.deserialize(BorrowedStrDeserializer::new(name)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        let Some((name, value)) = self.value.take() else { return self.map.next_value_seed(seed) };
        // The outer decoder has passed this value, so the path within it is found here.
        let mut track = Track::new();
        let tracked = serde_path_to_error::Deserializer::new(value, &mut track);
        let result = decode_erased(seed, tracked);
        result.map_err(|error| {
            let path = FieldPath::ROOT.field(name).join(&FieldPath::from(&track.path()));
            let text = crate::document::json_error_text(&error);
            self.problem.get_or_insert(Problem { path, text });
            A::Error::custom("")
        })
    }
}
