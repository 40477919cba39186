//! The registry of served resources: the built-in ones, and those of established definitions.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};
#[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
use std::sync::{Mutex, PoisonError, RwLock};

use loadmaster_stdx::SortCompactly as _;
use serde_json::Value;

use super::definition;
use super::{CurrentCustomResourceVersion, json_path::Path};
use crate::object::metadata_text;
use crate::schema::{Kind, Kinds};
use crate::store::{Store, TableId};

/// The served resources, and the definitions they come from.
pub struct Registry {
    served: RwLock<Arc<Kinds>>,
    #[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
    state: Mutex<State>,
}

/// Guarded by one lock, so that definitions are looked at one after the other.
#[derive(Default)]
pub struct State {
    definitions: BTreeMap<String, Definition>,
    /// Tables outlive definitions: a definition that is created again uses the same table.
    tables: BTreeMap<String, TableId>,
}

struct Definition {
    revision: u64,
    kinds: Vec<Kind>,
    slots: Vec<String>,
}

/// The changes after all definitions were processed.
#[derive(Default)]
pub struct RegistryChanges {
    /// Tables whose watches end: their definition was deleted or serves something else.
    pub ended: Vec<TableId>,
    /// Tables whose objects are selected by other fields now.
    pub reindexed: Vec<(TableId, Arc<[Path]>)>,
}

impl Registry {
    #[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
    pub fn new(built_in: Kinds) -> Registry {
        Registry { served: RwLock::new(Arc::new(built_in)), state: Mutex::new(State::default()) }
    }

    /// All served resources.
    pub fn kinds(&self) -> Arc<Kinds> {
        Arc::clone(&self.served.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks the processing of definitions.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of the definition of a table's objects.
    pub fn definition_of(&self, table: TableId) -> Option<String> {
        let state = self.lock();
        let owns = |it: &&String| {
            state.definitions[*it].kinds.first().is_some_and(|kind| kind.table == Some(table))
        };
        state.definitions.keys().find(owns).cloned()
    }

    /// Serves what the definitions say, which come with their revisions.
    pub fn serve(
        &self,
        state: &mut State,
        all: &[(u64, Value)],
        store: &mut Store,
    ) -> RegistryChanges {
        let mut changes = RegistryChanges::default();
        let removed =
            |name: &String| !all.iter().any(|(_, crd)| metadata_text(crd, "name") == name.as_str());
        let removed: Vec<String> =
            state.definitions.keys().filter(|it| removed(it)).cloned().collect();
        for definition in removed.iter().filter_map(|name| state.definitions.remove(name)) {
            changes.ended.extend(definition.kinds.first().and_then(|it| it.table));
        }
        for (revision, crd) in all {
            let name = metadata_text(crd, "name").to_owned();
            let is_known = state.definitions.get(&name).is_some_and(|it| it.revision == *revision);
            if is_known || !definition::has_condition(crd, "Established") {
                continue;
            }
            let table = *state.tables.entry(name.clone()).or_insert_with(|| store.add_table(&name));
            let old = state.definitions.remove(&name);
            let live = |api_version: &str| -> Option<CurrentCustomResourceVersion> {
                let mut kinds = old.iter().flat_map(|it| &it.kinds);
                kinds.find(|it| it.api_version() == api_version)?.custom.clone()
            };
            let kinds = definition::served_kinds(crd, table, live);
            let slots =
                kinds.first().and_then(|it| it.custom.as_ref()).map(|it| it.get().slots.clone());
            let names: Vec<String> =
                slots.iter().flat_map(|it| it.iter()).map(Path::to_string).collect();
            let is_new = old.is_none() && !store.is_empty(table);
            if let Some(slots) = slots.as_ref().filter(|_| is_new) {
                // A restart: who wrote these may have selected by other fields.
                changes.reindexed.push((table, Arc::clone(slots)));
            }
            if let Some(old) = &old {
                if shape(&old.kinds) != shape(&kinds) {
                    changes.ended.push(table);
                }
                if let (Some(slots), true) = (slots, old.slots != names) {
                    changes.reindexed.push((table, slots));
                }
            }
            let revision = *revision;
            state.definitions.insert(name, Definition { revision, kinds, slots: names });
        }
        let mut custom: Vec<&Definition> = state.definitions.values().collect();
        custom.sort_compactly_by_key(|it| it.kinds.first().map(|kind| (kind.group, kind.resource)));
        let custom = custom.into_iter().flat_map(|it| it.kinds.iter().cloned());
        let served = Arc::new(self.kinds().with_custom(custom));
        *self.served.write().unwrap_or_else(PoisonError::into_inner) = served;
        changes
    }
}

/// What a watcher relies on.
fn shape(kinds: &[Kind]) -> Vec<(&'static str, &'static str, bool)> {
    kinds.iter().map(|it| (it.version, it.kind, it.is_namespaced)).collect()
}
