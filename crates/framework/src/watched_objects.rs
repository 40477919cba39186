//! Objects of kinds that plugins watch: custom resources, and built-in kinds that the scheduler itself does not read.
//!
//! A plugin requests a kind when it is built ([`crate::ExtensionPoints::watch`]) and gets a typed slot; at every extension point
//! [`crate::Cx::objects`] lists the objects. Objects that fail to decode are ignored and logged once. There is no order between
//! events of different kinds: a pod may be seen before an object that it refers to, and the other way round.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use loadmaster_api::Str;
use serde::de::DeserializeOwned;
use serde_json::Value;
use smallvec::SmallVec;

use crate::api_calls::ObjectRef;
use crate::event_resource::EventResource;
use crate::plugin_args::{self, FieldError};

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

    /// The resource of cluster events about this kind; upstream's name if it has one.
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

    /// Whether the object is of this kind, in any version.
    pub fn matches(&self, object: &ObjectRef) -> bool {
        self.group == object.group && self.resource == object.resource
    }
}

impl fmt::Display for Gvr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.resource, self.version, self.group)
    }
}

/// Whether the scheduler requires a watched kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WatchRequirement {
    /// If the API server does not serve the kind or denies access, the plugin sees no objects and [`ObjectLister::has_synced`] is
    /// `false`.
    Optional,
    /// No pod is scheduled until the initial list is complete; until then `/readyz` fails with the missing kind, and the list is
    /// retried.
    Required,
}

/// A kind that a plugin watches.
#[derive(Clone)]
pub struct ObjectWatch {
    /// The kind.
    pub kind: Gvr,
    /// Whether scheduling waits for the initial list.
    pub requirement: WatchRequirement,
    /// Whether a plugin with an incremental form watches the kind, so that a change invalidates cached evaluations.
    pub used_by_incremental: bool,
    readers: Readers,
    shape: TypedDecoder,
}

/// What of a plugin's incremental form reads the objects of a kind.
#[derive(Clone)]
enum Readers {
    /// Evaluators may read any object for any node.
    Evaluators,
    /// Evaluators read an object only for the nodes that this function names.
    EvaluatorsOfNodes(NodesOfObject),
    /// Only keys do.
    Keys,
}

/// Names the nodes that an object concerns.
type NodesOfObject = Arc<dyn Fn(&ObjectInfo) -> Vec<Str> + Send + Sync>;

type Typed = Arc<dyn Any + Send + Sync>;

/// Decodes an object into one type.
#[derive(Clone, Copy)]
struct TypedDecoder {
    id: TypeId,
    decode: fn(&Value) -> Result<Typed, FieldError>,
}

fn decode<T: DeserializeOwned + Send + Sync + 'static>(value: &Value) -> Result<Typed, FieldError> {
    plugin_args::decode_json_value::<T>(value).map(|typed| Arc::new(typed) as Typed)
}

impl ObjectWatch {
    /// Watches a kind, with its objects decoded into the type.
    pub fn new<T: DeserializeOwned + Send + Sync + 'static>(
        kind: Gvr,
        presence: WatchRequirement,
    ) -> Self {
        let shape = TypedDecoder { id: TypeId::of::<T>(), decode: decode::<T> };
        let readers = Readers::Evaluators;
        ObjectWatch { kind, requirement: presence, used_by_incremental: false, readers, shape }
    }

    /// The same for a kind whose objects are read by [keys](crate::Incremental::key), not by evaluators.
    pub fn in_keys<T: DeserializeOwned + Send + Sync + 'static>(
        kind: Gvr,
        presence: WatchRequirement,
    ) -> Self {
        ObjectWatch { readers: Readers::Keys, ..ObjectWatch::new::<T>(kind, presence) }
    }

    /// The same for a kind whose objects each concern only these nodes.
    pub fn per_node<T: DeserializeOwned + Send + Sync + 'static>(
        kind: Gvr,
        presence: WatchRequirement,
        nodes: fn(&T) -> Vec<Str>,
    ) -> Self {
        let of_object =
            move |info: &ObjectInfo| info.decoded_as::<T>().map(nodes).unwrap_or_default();
        let readers = Readers::EvaluatorsOfNodes(Arc::new(of_object));
        ObjectWatch { readers, ..ObjectWatch::new::<T>(kind, presence) }
    }
}

/// Gives access to the objects of a kind, decoded into one type.
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

/// One object, decoded into every type that some plugin requested.
pub struct ObjectInfo {
    /// Empty for kinds without namespaces.
    pub namespace: Str,
    /// Its name.
    pub name: Str,
    /// Volumes and claims, of which there are most, have two.
    shapes: SmallVec<[Typed; 2]>,
}

impl ObjectInfo {
    /// The object decoded into this type; `None` when no plugin requested the type, or decoding failed.
    pub fn decoded_as<T: 'static>(&self) -> Option<&T> {
        self.shapes.iter().find_map(|typed| typed.downcast_ref())
    }
}

impl fmt::Debug for ObjectInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The objects of one kind, ordered by namespace and name.
pub struct ObjectLister<'a, T> {
    table: Option<&'a Table>,
    shape: PhantomData<fn() -> T>,
}

impl<'a, T: 'static> ObjectLister<'a, T> {
    /// Whether the initial list is complete (upstream's informer `HasSynced`).
    pub fn has_synced(&self) -> bool {
        self.table.is_some_and(|table| table.is_there)
    }

    /// An object; the namespace is empty for kinds without namespaces.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&'a T> {
        self.table?.by_namespace.get(namespace)?.get(name)?.decoded_as()
    }

    /// All objects.
    pub fn iter(&self) -> impl Iterator<Item = (&'a ObjectInfo, &'a T)> + use<'a, T> {
        let all = self.table.into_iter().flat_map(|table| table.by_namespace.values());
        all.flat_map(BTreeMap::values).filter_map(|info| Some((&**info, info.decoded_as()?)))
    }

    /// The objects of a namespace.
    pub fn in_namespace(
        &self,
        namespace: &str,
    ) -> impl Iterator<Item = (&'a ObjectInfo, &'a T)> + use<'a, T> {
        let here = self.table.and_then(|table| table.by_namespace.get(namespace));
        let here = here.into_iter().flat_map(BTreeMap::values);
        here.filter_map(|info| Some((&**info, info.decoded_as()?)))
    }
}

struct Table {
    kind: Gvr,
    presence: WatchRequirement,
    invalidation: Invalidation,
    shapes: SmallVec<[TypedDecoder; 1]>,
    is_there: bool,
    by_namespace: BTreeMap<Str, BTreeMap<Str, Arc<ObjectInfo>>>,
    /// Objects that failed to decode, with the error that was logged.
    decode_errors: BTreeMap<(Str, Str), String>,
}

/// What a change of an object of one kind invalidates.
#[derive(Clone, Default)]
enum Invalidation {
    /// No plugin with an incremental form watches the kind.
    #[default]
    None,
    /// The keys of pods.
    Keys,
    /// Keys, and what was computed for the nodes that the object concerned before, or concerns now.
    Nodes(Vec<NodesOfObject>),
    All,
}

impl Invalidation {
    fn add(&mut self, watch: &ObjectWatch) {
        if !watch.used_by_incremental {
            return;
        }
        match (&watch.readers, &mut *self) {
            (_, Invalidation::All) | (Readers::Keys, Invalidation::Nodes(_)) => {}
            (Readers::Keys, _) => *self = Invalidation::Keys,
            (Readers::EvaluatorsOfNodes(nodes), Invalidation::Nodes(all)) => {
                all.push(nodes.clone())
            }
            (Readers::EvaluatorsOfNodes(nodes), _) => {
                *self = Invalidation::Nodes(vec![nodes.clone()]);
            }
            (Readers::Evaluators, _) => *self = Invalidation::All,
        }
    }
}

/// A change of an object that plugins see.
#[derive(Clone, Debug)]
pub struct ObjectChange {
    /// The object's kind.
    pub kind: Gvr,
    /// Before the change; `None` when it was added.
    pub old: Option<Arc<ObjectInfo>>,
    /// After the change; `None` when it was deleted or fails to decode.
    pub new: Option<Arc<ObjectInfo>>,
}

/// The result of [`ObjectStore::update`].
#[derive(Debug, Default)]
pub struct ObjectUpdate {
    /// `None` when plugins see no change.
    pub change: Option<ObjectChange>,
    /// Why the object is ignored, by some or all plugins. Set once, not for later updates with the same error.
    pub decode_error: Option<String>,
    /// What the change invalidates.
    pub invalidated: Invalidated,
}

/// What a change of one object invalidates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Invalidated {
    /// No incremental form reads the object.
    #[default]
    Nothing,
    /// The keys of pods in the object's namespace; of all pods if it has none.
    Keys,
    /// All keys, and what evaluators computed for these nodes.
    Nodes(Vec<Str>),
    /// All keys and evaluators.
    Everything,
}

/// All objects that plugins watch.
#[derive(Default)]
pub struct ObjectStore {
    tables: Vec<Table>,
}

impl ObjectStore {
    /// Starts storing the objects of a kind, decoded into one more type.
    pub fn watch(&mut self, watch: &ObjectWatch) {
        let known = self.tables.iter().position(|table| table.kind == watch.kind);
        let at = known.unwrap_or_else(|| {
            self.tables.push(Table::new(watch.kind.clone()));
            self.tables.len() - 1
        });
        let table = &mut self.tables[at];
        table.presence = table.presence.max(watch.requirement);
        table.invalidation.add(watch);
        if !table.shapes.iter().any(|shape| shape.id == watch.shape.id) {
            table.shapes.push(watch.shape);
        }
    }

    /// Whether objects of the kind that are already stored need not be decoded again for this watch.
    pub fn can_watch(&self, watch: &ObjectWatch) -> bool {
        let known = self.tables.iter().find(|table| table.kind == watch.kind);
        known.is_none_or(|table| table.shapes.iter().any(|shape| shape.id == watch.shape.id))
    }

    /// The watched kinds, and whether scheduling waits for their initial lists.
    pub fn watched_kinds(&self) -> impl Iterator<Item = (&Gvr, WatchRequirement)> {
        self.tables.iter().map(|table| (&table.kind, table.presence))
    }

    /// All objects with their kinds, by kind, namespace and name.
    pub fn iter(&self) -> impl Iterator<Item = (&Gvr, &Arc<ObjectInfo>)> {
        self.tables.iter().flat_map(|table| {
            let objects = table.by_namespace.values().flat_map(BTreeMap::values);
            objects.map(|object| (&table.kind, object))
        })
    }

    /// The objects of a slot's kind.
    pub fn lister<T: 'static>(&self, slot: &ObjectSlot<T>) -> ObjectLister<'_, T> {
        let table = self.tables.iter().find(|table| table.kind == slot.0);
        ObjectLister { table, shape: PhantomData }
    }

    /// Sets whether the initial list of a kind is complete. Returns whether that changed.
    pub fn set_synced(&mut self, group: &str, resource: &str, is_there: bool) -> bool {
        let is_it =
            |table: &&mut Table| &*table.kind.group == group && &*table.kind.resource == resource;
        let mut is_changed = false;
        for table in self.tables.iter_mut().filter(is_it) {
            is_changed |= table.is_there != is_there;
            table.is_there = is_there;
        }
        is_changed
    }

    /// Handles a watch event: the object as it is now, or `None` when it was deleted.
    pub fn update(&mut self, object: &ObjectRef, value: Option<&Value>) -> ObjectUpdate {
        match self.tables.iter_mut().find(|table| table.kind.matches(object)) {
            Some(table) => table.change(object, value),
            None => ObjectUpdate::default(),
        }
    }
}

impl Table {
    fn new(kind: Gvr) -> Table {
        Table {
            kind,
            presence: WatchRequirement::Optional,
            invalidation: Invalidation::None,
            shapes: SmallVec::new(),
            is_there: false,
            by_namespace: BTreeMap::new(),
            decode_errors: BTreeMap::new(),
        }
    }

    fn change(&mut self, object: &ObjectRef, value: Option<&Value>) -> ObjectUpdate {
        let (new, trouble) = match value {
            Some(value) => self.read(object, value),
            None => {
                self.decode_errors.remove(&(object.namespace.clone(), object.name.clone()));
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
        let invalidated = match &self.invalidation {
            Invalidation::None => Invalidated::Nothing,
            Invalidation::Keys => Invalidated::Keys,
            Invalidation::All => Invalidated::Everything,
            Invalidation::Nodes(all) => {
                let infos = [old.as_deref(), new.as_deref()];
                let infos = infos.into_iter().flatten();
                let names = infos.flat_map(|info| all.iter().flat_map(|nodes| nodes(info)));
                let mut names: Vec<Str> = names.collect();
                names.sort();
                names.dedup();
                Invalidated::Nodes(names)
            }
        };
        let change = is_change.then(|| ObjectChange { kind: self.kind.clone(), old, new });
        let invalidated = if is_change { invalidated } else { Invalidated::Nothing };
        ObjectUpdate { change, decode_error: trouble, invalidated }
    }

    fn read(
        &mut self,
        object: &ObjectRef,
        value: &Value,
    ) -> (Option<Arc<ObjectInfo>>, Option<String>) {
        let mut shapes = SmallVec::new();
        let mut error_text = None;
        for shape in &self.shapes {
            match (shape.decode)(value) {
                Ok(typed) => shapes.push(typed),
                Err(error) => error_text = Some(error.to_string()),
            }
        }
        let (namespace, name) = (object.namespace.clone(), object.name.clone());
        let key = (namespace.clone(), name.clone());
        let trouble = match error_text {
            Some(why) if self.decode_errors.get(&key) == Some(&why) => None,
            Some(why) => {
                let slash = if namespace.is_empty() { "" } else { "/" };
                let text = format!("{} {namespace}{slash}{name} is ignored: {why}", self.kind);
                self.decode_errors.insert(key, why);
                Some(text)
            }
            None => {
                self.decode_errors.remove(&key);
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
    fn gvr_and_event_resource_names() {
        assert_eq!(foos().to_string(), "foos.v1.example.com");
        assert_eq!(foos().event_resource().name(), "foos.v1.example.com");
        assert_eq!(Gvr::new("", "v1", "configmaps").event_resource().name(), "configmaps.v1.");
        let claims = Gvr::new("", "v1", "persistentvolumeclaims").event_resource();
        assert_eq!(claims, EventResource::PersistentVolumeClaim);
    }

    #[test]
    fn one_object_in_two_types() {
        let mut store = ObjectStore::default();
        store.watch(&ObjectWatch::new::<Foo>(foos(), WatchRequirement::Optional));
        store.watch(&ObjectWatch::new::<Value>(foos(), WatchRequirement::Required));
        store.watch(&ObjectWatch::new::<Foo>(foos(), WatchRequirement::Optional));
        assert_eq!(
            store.watched_kinds().map(|(_, presence)| presence).collect::<Vec<_>>(),
            [WatchRequirement::Required]
        );
        let (typed, dynamic) = (ObjectSlot::<Foo>::new(foos()), ObjectSlot::<Value>::new(foos()));
        for (namespace, name, size) in [("b", "x", 1), ("a", "y", 2), ("a", "x", 3)] {
            store.update(&foo(namespace, name), Some(&json!({"size": size})));
        }
        let sizes: Vec<u32> = store.lister(&typed).iter().map(|(_, foo)| foo.size).collect();
        assert_eq!(sizes, [3, 2, 1], "ordered by namespace and name");
        let names: Vec<&str> =
            store.lister(&typed).in_namespace("a").map(|(info, _)| info.name.as_str()).collect();
        assert_eq!(names, ["x", "y"]);
        assert_eq!(store.lister(&dynamic).get("b", "x"), Some(&json!({"size": 1})));
        assert!(store.lister(&typed).get("b", "y").is_none());
        // It decodes into one type only, and stays visible in that type; the error is reported once.
        let odd = json!({"size": "large"});
        let trouble = store.update(&foo("b", "x"), Some(&odd)).decode_error.unwrap();
        assert!(trouble.starts_with("foos.v1.example.com b/x is ignored: size: "), "{trouble}");
        assert!(store.update(&foo("b", "x"), Some(&odd)).decode_error.is_none());
        assert!(store.lister(&typed).get("b", "x").is_none());
        assert_eq!(store.lister(&dynamic).get("b", "x"), Some(&odd));
    }

    #[test]
    fn updates_return_old_and_new_object() {
        let mut store = ObjectStore::default();
        store.watch(&ObjectWatch::new::<Foo>(foos(), WatchRequirement::Optional));
        let mut update = |name: &str, value: Option<Value>| {
            let changed = store.update(&foo("", name), value.as_ref());
            let change = changed.change.map(|it| (it.old.is_some(), it.new.is_some()));
            (change, changed.decode_error.is_some())
        };
        let good = || Some(json!({"size": 1}));
        assert_eq!(update("a", good()), (Some((false, true)), false));
        assert_eq!(update("a", good()), (Some((true, true)), false));
        assert_eq!(update("a", Some(json!({}))), (Some((true, false)), true));
        assert_eq!(update("a", Some(json!({}))), (None, false));
        assert_eq!(update("a", None), (None, false));
        assert_eq!(update("a", Some(json!([]))), (None, true));
        assert_eq!(update("a", good()), (Some((false, true)), false));
        assert_eq!(update("a", None), (Some((true, false)), false));
        let other = ObjectRef { group: "other".into(), ..foo("", "a") };
        assert!(store.update(&other, good().as_ref()).change.is_none());
    }

    /// What a change of an object invalidates when plugins with an incremental form watch its kind in these ways.
    #[track_caller]
    fn check_invalidated(watches: &[ObjectWatch], want: &Invalidated) {
        let mut store = ObjectStore::default();
        for watch in watches {
            store.watch(&ObjectWatch { used_by_incremental: true, ..watch.clone() });
        }
        let object = json!({"size": 1});
        assert_eq!(store.update(&foo("ns", "x"), Some(&object)).invalidated, *want);
        assert_eq!(store.update(&foo("ns", "x"), None).invalidated, *want);
        assert_eq!(store.update(&foo("ns", "x"), None).invalidated, Invalidated::Nothing);
    }

    #[test]
    fn a_change_invalidates_what_reads_the_object() {
        let optional = WatchRequirement::Optional;
        let keys = ObjectWatch::in_keys::<Foo>(foos(), optional);
        let nodes = ObjectWatch::per_node::<Foo>(foos(), optional, |foo| {
            vec![format!("node-{}", foo.size).into()]
        });
        let all = ObjectWatch::new::<Foo>(foos(), optional);
        let node = || Invalidated::Nodes(vec!["node-1".into()]);
        check_invalidated(std::slice::from_ref(&keys), &Invalidated::Keys);
        check_invalidated(std::slice::from_ref(&nodes), &node());
        check_invalidated(&[keys.clone(), nodes.clone()], &node());
        check_invalidated(&[nodes.clone(), keys.clone()], &node());
        check_invalidated(&[nodes, all.clone()], &Invalidated::Everything);
        check_invalidated(&[all, keys], &Invalidated::Everything);
        let mut store = ObjectStore::default();
        store.watch(&ObjectWatch::in_keys::<Foo>(foos(), optional));
        let update = store.update(&foo("", "x"), Some(&json!({"size": 1})));
        assert_eq!(update.invalidated, Invalidated::Nothing, "no incremental form");
    }

    #[test]
    fn has_synced_after_the_initial_list() {
        let mut store = ObjectStore::default();
        let slot = ObjectSlot::<Foo>::new(foos());
        assert!(!store.lister(&slot).has_synced());
        store.watch(&ObjectWatch::new::<Foo>(foos(), WatchRequirement::Optional));
        assert!(store.set_synced("example.com", "foos", true));
        assert!(!store.set_synced("example.com", "foos", true), "unchanged");
        assert!(store.lister(&slot).has_synced());
        assert!(!store.set_synced("example.com", "bars", true));
    }
}
