//! The objects that plugins watch, as the engine received them.

use std::collections::BTreeMap;

use loadmaster_api::Str;
use loadmaster_framework::World;
use loadmaster_framework::api_calls::ObjectRef;
use serde_json::Value;

use crate::fake_api_server::{FakeApiServer, WatchedKind};

/// By group and resource, and by namespace and name.
#[derive(Clone, Default)]
pub(super) struct WatchedObjects(BTreeMap<(Str, Str), BTreeMap<Str, (ObjectRef, Value)>>);

impl WatchedObjects {
    /// What the API server has.
    pub fn of_server(api_server: &FakeApiServer) -> WatchedObjects {
        let mut all = WatchedObjects::default();
        for (kind, name, value) in api_server.all_custom_objects() {
            all.update(&kind.object_ref(name), Some(value));
        }
        all
    }

    /// An object changed, or was deleted.
    pub fn update(&mut self, object: &ObjectRef, value: Option<&Value>) {
        let kind = (object.group.clone(), object.resource.clone());
        let name = match object.namespace.is_empty() {
            true => object.name.clone(),
            false => Str::new(&format!("{}/{}", object.namespace, object.name)),
        };
        let objects = self.0.entry(kind).or_default();
        match value {
            Some(value) => drop(objects.insert(name, (object.clone(), value.clone()))),
            None => drop(objects.remove(&name)),
        }
    }

    /// An object by its name, or `namespace/name`.
    pub fn get(&self, kind: &WatchedKind, name: &str) -> Option<&Value> {
        let (group, resource) = kind.group_resource();
        Some(&self.0.get(&(group.into(), resource.into()))?.get(name)?.1)
    }

    pub fn named(&self, kind: &WatchedKind) -> impl Iterator<Item = (&Str, &Value)> + use<'_> {
        let (group, resource) = kind.group_resource();
        let objects = self.0.get(&(group.into(), resource.into())).into_iter().flatten();
        objects.map(|(name, (_, value))| (name, value))
    }

    pub fn of_kind(&self, kind: &WatchedKind) -> impl Iterator<Item = &Value> + use<'_> {
        self.named(kind).map(|(_, value)| value)
    }

    /// Adds the objects that are wanted to a world.
    pub fn add_to(&self, world: &mut World, is_wanted: impl Fn(&ObjectRef) -> bool) {
        let all = self.0.values().flat_map(BTreeMap::values);
        for (object, value) in all.filter(|(object, _)| is_wanted(object)) {
            world.update_watched_object(object, Some(value));
        }
    }
}
