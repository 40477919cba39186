//! Objects of kinds that only plugins know: custom resources, and built-in kinds that the scheduler itself does not read.
//!
//! A plugin asks for a kind when it is built ([`crate::Points::watch`]) and gets a typed slot; at every point
//! [`crate::Cx::objects`] shows what is there. Objects that do not decode are left out and reported once. Nothing is promised about
//! the order between kinds: a pod may be known before the object it names, and the other way round.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use loadmaster_api::Str;
use serde::de::DeserializeOwned;
use serde_json::Value;
use smallvec::SmallVec;

use crate::args::{self, FieldError};
use crate::event::EventResource;
use crate::request::ObjectRef;

/// Group, version and plural name of a kind; written `foos.v1.example.com`, as upstream does.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvr {
    /// Empty for the core group.
    pub group: Str,
    /// Such as `v1alpha1`.
    pub version: Str,
    /// The plural name, such as `podgroups`.
    pub resource: Str,
}

impl Gvr {
    /// For example `Gvr::new("scheduling.x-k8s.io", "v1alpha1", "podgroups")`.
    pub fn new(group: &str, version: &str, resource: &str) -> Gvr {
        Gvr { group: group.into(), version: version.into(), resource: resource.into() }
    }

    /// What events about objects of this kind are called. Kinds that upstream has a name for go by that name.
    pub fn event_resource(&self) -> EventResource {
        match (&*self.group, &*self.resource) {
            ("", "persistentvolumes") => EventResource::PersistentVolume,
            ("", "persistentvolumeclaims") => EventResource::PersistentVolumeClaim,
            ("storage.k8s.io", "csinodes") => EventResource::CsiNode,
            ("storage.k8s.io", "csidrivers") => EventResource::CsiDriver,
            ("storage.k8s.io", "volumeattachments") => EventResource::VolumeAttachment,
            ("storage.k8s.io", "csistoragecapacities") => EventResource::CsiStorageCapacity,
            ("storage.k8s.io", "storageclasses") => EventResource::StorageClass,
            ("resource.k8s.io", "resourceclaims") => EventResource::ResourceClaim,
            ("resource.k8s.io", "resourceslices") => EventResource::ResourceSlice,
            ("resource.k8s.io", "deviceclasses") => EventResource::DeviceClass,
            ("scheduling.k8s.io", "podgroups") => EventResource::PodGroup,
            _ => EventResource::Other(self.to_string().into()),
        }
    }

    /// Whether the object is of this kind, in whatever version.
    pub fn is_of(&self, object: &ObjectRef) -> bool {
        self.group == object.group && self.resource == object.resource
    }
}

impl fmt::Display for Gvr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.resource, self.version, self.group)
    }
}

/// Whether a scheduler can do without a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Presence {
    /// Where the server does not have it, or does not let us read it, the plugin sees no objects; [`Objects::is_there`] says so.
    Optional,
    /// No pod is scheduled until all objects have been read; meanwhile `readyz` says what is missing, and asking goes on.
    Required,
}

/// A kind that a plugin watches.
#[derive(Clone)]
pub struct Watch {
    /// Which one.
    pub kind: Gvr,
    /// Whether pods wait for it.
    pub presence: Presence,
    /// Answers that are kept may hang on it: those of a plugin with an incremental form.
    pub is_kept: bool,
    shape: Shape,
}

type Typed = Arc<dyn Any + Send + Sync>;

/// How an object becomes a value of one type.
#[derive(Clone, Copy)]
struct Shape {
    id: TypeId,
    decode: fn(&Value) -> Result<Typed, FieldError>,
}

fn decode<T: DeserializeOwned + Send + Sync + 'static>(value: &Value) -> Result<Typed, FieldError> {
    args::decode::<T>(value).map(|typed| Arc::new(typed) as Typed)
}

impl Watch {
    /// Objects of this kind as values of the type.
    pub fn new<T: DeserializeOwned + Send + Sync + 'static>(kind: Gvr, presence: Presence) -> Self {
        let shape = Shape { id: TypeId::of::<T>(), decode: decode::<T> };
        Watch { kind, presence, is_kept: false, shape }
    }
}

/// The place of a kind's objects, as values of one type.
pub struct ObjectSlot<T>(Gvr, PhantomData<fn() -> T>);

impl<T> ObjectSlot<T> {
    pub(crate) fn new(kind: Gvr) -> Self {
        ObjectSlot(kind, PhantomData)
    }

    /// The kind.
    pub fn kind(&self) -> &Gvr {
        &self.0
    }
}

impl<T> Clone for ObjectSlot<T> {
    fn clone(&self) -> Self {
        ObjectSlot(self.0.clone(), PhantomData)
    }
}

/// One object, in every type that some plugin reads it in.
pub struct ObjectInfo {
    /// Empty for kinds without namespaces.
    pub namespace: Str,
    /// Its name.
    pub name: Str,
    shapes: SmallVec<[Typed; 1]>,
}

impl ObjectInfo {
    /// The object as a value of this type; `None` when no plugin asked for it in this type, or it did not decode.
    pub fn get<T: 'static>(&self) -> Option<&T> {
        self.shapes.iter().find_map(|typed| typed.downcast_ref())
    }
}

impl fmt::Debug for ObjectInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The objects of one kind, in the order of namespace and name.
pub struct Objects<'a, T> {
    table: Option<&'a Table>,
    shape: PhantomData<fn() -> T>,
}

impl<'a, T: 'static> Objects<'a, T> {
    /// Whether the server has the kind and all its objects have been read.
    pub fn is_there(&self) -> bool {
        self.table.is_some_and(|table| table.is_there)
    }

    /// An object; the namespace is empty for kinds without namespaces.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&'a T> {
        self.table?.by_namespace.get(namespace)?.get(name)?.get()
    }

    /// All objects.
    pub fn iter(&self) -> impl Iterator<Item = (&'a ObjectInfo, &'a T)> + use<'a, T> {
        let all = self.table.into_iter().flat_map(|table| table.by_namespace.values());
        all.flat_map(BTreeMap::values).filter_map(|info| Some((&**info, info.get()?)))
    }

    /// The objects of a namespace.
    pub fn in_namespace(
        &self,
        namespace: &str,
    ) -> impl Iterator<Item = (&'a ObjectInfo, &'a T)> + use<'a, T> {
        let here = self.table.and_then(|table| table.by_namespace.get(namespace));
        let here = here.into_iter().flat_map(BTreeMap::values);
        here.filter_map(|info| Some((&**info, info.get()?)))
    }
}

struct Table {
    kind: Gvr,
    presence: Presence,
    is_kept: bool,
    shapes: SmallVec<[Shape; 1]>,
    is_there: bool,
    by_namespace: BTreeMap<Str, BTreeMap<Str, Arc<ObjectInfo>>>,
    /// Objects that did not decode, and why: said once.
    refused: BTreeMap<(Str, Str), String>,
}

/// What news of an object came to.
#[derive(Clone, Debug)]
pub struct ObjectChange {
    /// Its kind.
    pub kind: Gvr,
    /// As it was; `None` when it is new.
    pub old: Option<Arc<ObjectInfo>>,
    /// As it is; `None` when it is gone, or cannot be read any more.
    pub new: Option<Arc<ObjectInfo>>,
}

/// What [`ObjectStore::change`] found.
#[derive(Debug, Default)]
pub struct Changed {
    /// `None` when nothing changed that a plugin sees.
    pub change: Option<ObjectChange>,
    /// Why the object, or one plugin's view of it, is left out. Not repeated while it stays so.
    pub trouble: Option<String>,
    /// Answers that are kept may hang on it.
    pub is_kept: bool,
}

/// All objects that plugins watch.
#[derive(Default)]
pub struct ObjectStore {
    tables: Vec<Table>,
}

impl ObjectStore {
    /// Keeps objects of one more kind, or the same in one more type.
    pub fn watch(&mut self, watch: &Watch) {
        let known = self.tables.iter().position(|table| table.kind == watch.kind);
        let at = known.unwrap_or_else(|| {
            self.tables.push(Table::new(watch.kind.clone()));
            self.tables.len() - 1
        });
        let table = &mut self.tables[at];
        table.presence = table.presence.max(watch.presence);
        table.is_kept |= watch.is_kept;
        if !table.shapes.iter().any(|shape| shape.id == watch.shape.id) {
            table.shapes.push(watch.shape);
        }
    }

    /// The kinds that are watched, and whether pods wait for them.
    pub fn kinds(&self) -> impl Iterator<Item = (&Gvr, Presence)> {
        self.tables.iter().map(|table| (&table.kind, table.presence))
    }

    /// What a slot shows.
    pub fn view<T: 'static>(&self, slot: &ObjectSlot<T>) -> Objects<'_, T> {
        let table = self.tables.iter().find(|table| table.kind == slot.0);
        Objects { table, shape: PhantomData }
    }

    /// All objects of a kind have been read, or the server does not have it. `false` when that is no news.
    pub fn set_there(&mut self, group: &str, resource: &str, is_there: bool) -> bool {
        let is_it =
            |table: &&mut Table| &*table.kind.group == group && &*table.kind.resource == resource;
        let mut is_news = false;
        for table in self.tables.iter_mut().filter(is_it) {
            is_news |= table.is_there != is_there;
            table.is_there = is_there;
        }
        is_news
    }

    /// Takes news of an object: as it is now, or `None` when it is gone.
    pub fn change(&mut self, object: &ObjectRef, value: Option<&Value>) -> Changed {
        match self.tables.iter_mut().find(|table| table.kind.is_of(object)) {
            Some(table) => table.change(object, value),
            None => Changed::default(),
        }
    }
}

impl Table {
    fn new(kind: Gvr) -> Table {
        Table {
            kind,
            presence: Presence::Optional,
            is_kept: false,
            shapes: SmallVec::new(),
            is_there: false,
            by_namespace: BTreeMap::new(),
            refused: BTreeMap::new(),
        }
    }

    fn change(&mut self, object: &ObjectRef, value: Option<&Value>) -> Changed {
        let (new, trouble) = match value {
            Some(value) => self.read(object, value),
            None => {
                self.refused.remove(&(object.namespace.clone(), object.name.clone()));
                (None, None)
            }
        };
        let old = match &new {
            Some(info) => {
                let here = self.by_namespace.entry(object.namespace.clone()).or_default();
                here.insert(object.name.clone(), info.clone())
            }
            None => self.remove(object),
        };
        let is_change = old.is_some() || new.is_some();
        let change = is_change.then(|| ObjectChange { kind: self.kind.clone(), old, new });
        Changed { change, trouble, is_kept: self.is_kept }
    }

    fn read(
        &mut self,
        object: &ObjectRef,
        value: &Value,
    ) -> (Option<Arc<ObjectInfo>>, Option<String>) {
        let mut shapes = SmallVec::new();
        let mut refusal = None;
        for shape in &self.shapes {
            match (shape.decode)(value) {
                Ok(typed) => shapes.push(typed),
                Err(error) => refusal = Some(error.to_string()),
            }
        }
        let (namespace, name) = (object.namespace.clone(), object.name.clone());
        let key = (namespace.clone(), name.clone());
        let trouble = match refusal {
            Some(why) if self.refused.get(&key) == Some(&why) => None,
            Some(why) => {
                let slash = if namespace.is_empty() { "" } else { "/" };
                let text = format!("{} {namespace}{slash}{name} is left out: {why}", self.kind);
                self.refused.insert(key, why);
                Some(text)
            }
            None => {
                self.refused.remove(&key);
                None
            }
        };
        let info = (!shapes.is_empty()).then(|| Arc::new(ObjectInfo { namespace, name, shapes }));
        (info, trouble)
    }

    fn remove(&mut self, object: &ObjectRef) -> Option<Arc<ObjectInfo>> {
        let here = self.by_namespace.get_mut(&object.namespace)?;
        let old = here.remove(&object.name);
        if here.is_empty() {
            self.by_namespace.remove(&object.namespace);
        }
        old
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Deserialize)]
    struct Foo {
        size: u32,
    }

    fn foos() -> Gvr {
        Gvr::new("example.com", "v1", "foos")
    }

    fn foo(namespace: &str, name: &str) -> ObjectRef {
        ObjectRef {
            group: "example.com".into(),
            resource: "foos".into(),
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    #[test]
    fn names() {
        assert_eq!(foos().to_string(), "foos.v1.example.com");
        assert_eq!(foos().event_resource().name(), "foos.v1.example.com");
        assert_eq!(Gvr::new("", "v1", "configmaps").event_resource().name(), "configmaps.v1.");
        let claims = Gvr::new("", "v1", "persistentvolumeclaims").event_resource();
        assert_eq!(claims, EventResource::PersistentVolumeClaim);
    }

    #[test]
    fn one_object_in_two_types() {
        let mut store = ObjectStore::default();
        store.watch(&Watch::new::<Foo>(foos(), Presence::Optional));
        store.watch(&Watch::new::<Value>(foos(), Presence::Required));
        store.watch(&Watch::new::<Foo>(foos(), Presence::Optional));
        assert_eq!(
            store.kinds().map(|(_, presence)| presence).collect::<Vec<_>>(),
            [Presence::Required]
        );
        let (typed, dynamic) = (ObjectSlot::<Foo>::new(foos()), ObjectSlot::<Value>::new(foos()));
        for (namespace, name, size) in [("b", "x", 1), ("a", "y", 2), ("a", "x", 3)] {
            store.change(&foo(namespace, name), Some(&json!({"size": size})));
        }
        let sizes: Vec<u32> = store.view(&typed).iter().map(|(_, foo)| foo.size).collect();
        assert_eq!(sizes, [3, 2, 1], "ordered by namespace and name");
        let names: Vec<&str> =
            store.view(&typed).in_namespace("a").map(|(info, _)| info.name.as_str()).collect();
        assert_eq!(names, ["x", "y"]);
        assert_eq!(store.view(&dynamic).get("b", "x"), Some(&json!({"size": 1})));
        assert!(store.view(&typed).get("b", "y").is_none());
        // Of no interest to the one, it stays for the other; said once.
        let odd = json!({"size": "large"});
        let trouble = store.change(&foo("b", "x"), Some(&odd)).trouble.unwrap();
        assert!(trouble.starts_with("foos.v1.example.com b/x is left out: size: "), "{trouble}");
        assert!(store.change(&foo("b", "x"), Some(&odd)).trouble.is_none());
        assert!(store.view(&typed).get("b", "x").is_none());
        assert_eq!(store.view(&dynamic).get("b", "x"), Some(&odd));
    }

    #[test]
    fn news() {
        let mut store = ObjectStore::default();
        store.watch(&Watch::new::<Foo>(foos(), Presence::Optional));
        let mut told = |name: &str, value: Option<Value>| {
            let changed = store.change(&foo("", name), value.as_ref());
            let change = changed.change.map(|it| (it.old.is_some(), it.new.is_some()));
            (change, changed.trouble.is_some())
        };
        let good = || Some(json!({"size": 1}));
        assert_eq!(told("a", good()), (Some((false, true)), false));
        assert_eq!(told("a", good()), (Some((true, true)), false));
        assert_eq!(told("a", Some(json!({}))), (Some((true, false)), true));
        assert_eq!(told("a", Some(json!({}))), (None, false));
        assert_eq!(told("a", None), (None, false));
        assert_eq!(told("a", Some(json!([]))), (None, true));
        assert_eq!(told("a", good()), (Some((false, true)), false));
        assert_eq!(told("a", None), (Some((true, false)), false));
        let other = ObjectRef { group: "other".into(), ..foo("", "a") };
        assert!(store.change(&other, good().as_ref()).change.is_none());
    }

    #[test]
    fn presence() {
        let mut store = ObjectStore::default();
        let slot = ObjectSlot::<Foo>::new(foos());
        assert!(!store.view(&slot).is_there());
        store.watch(&Watch::new::<Foo>(foos(), Presence::Optional));
        assert!(store.set_there("example.com", "foos", true));
        assert!(!store.set_there("example.com", "foos", true), "no news");
        assert!(store.view(&slot).is_there());
        assert!(!store.set_there("example.com", "bars", true));
    }
}
