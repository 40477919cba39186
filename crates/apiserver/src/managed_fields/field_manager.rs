//! The field manager: updates `metadata.managedFields` on writes, and merges applied configurations (upstream's
//! `managedfields.FieldManager`).

use std::sync::LazyLock;

use loadmaster_stdx::SortCompactly as _;
use serde_json::{Map, Value};

use super::entries::{self, ManagedFields, ManagerId, Operation, Owned};
use super::field_path::PathElement;
use super::field_set::FieldSet;
use super::last_applied;
use super::reset_fields::ResetFields;
use super::types::{TypeRef, Types};
use super::updater::Updater;
use super::validate::{TypeMismatches, validate};
use crate::object::{meta_mut, metadata_text};

/// The API versions of a kind: types and conversion.
pub trait VersionedTypes {
    /// The type of the kind's objects in a version such as `apps/v1`; none if it is not one of the kind's.
    fn form(&self, api_version: &str) -> Option<(&Types, TypeRef)>;

    /// An object of any version in one that has a [`VersionedTypes::form`].
    fn convert(&self, object: &Value, api_version: &str) -> Value;

    /// An empty object of a version.
    fn nothing(&self, api_version: &str) -> Value;
}

/// Why a configuration cannot be applied.
#[derive(Clone, Debug)]
pub enum ApplyError {
    /// Other managers own fields that would change.
    Conflicts(Vec<Conflict>),
    /// The client's configuration is invalid.
    Invalid(String),
    /// An error that upstream does not classify.
    Other(String),
}

/// A field that another manager owns.
#[derive(Clone, Debug)]
pub struct Conflict {
    pub(super) manager: ManagerId,
    pub(super) path: Vec<PathElement>,
}

impl Conflict {
    /// The field, such as `.spec.replicas`.
    pub fn field(&self) -> String {
        self.path.iter().map(ToString::to_string).collect()
    }

    /// The owner, as in upstream's message.
    pub fn owner(&self) -> String {
        let ManagerId { name, operation, api_version, subresource } = &self.manager;
        let mut text = format!("{name:?}");
        if !subresource.is_empty() {
            text.push_str(&format!(" with subresource {subresource:?}"));
        }
        if *operation == Operation::Update {
            text.push_str(&format!(" using {api_version}"));
        }
        text
    }
}

/// Upstream's message about conflicts, of which there is at least one.
pub fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [only] = conflicts {
        let (owner, field) = (only.owner(), only.field());
        return format!("Apply failed with 1 conflict: conflict with {owner}: {field}");
    }
    let mut lines = Vec::new();
    let mut last = None;
    for conflict in conflicts {
        if last != Some(&conflict.manager) {
            lines.push(format!("conflicts with {}:", conflict.owner()));
            last = Some(&conflict.manager);
        }
        lines.push(format!("- {}", conflict.field()));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

/// Field ownership of one write.
pub struct FieldManager<'a> {
    pub versions: &'a dyn VersionedTypes,
    /// The version of the request.
    pub api_version: &'a str,
    pub kind: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    pub reset: ResetFields,
    /// As `metadata` spells it.
    pub now: String,
}

/// How many updating managers are kept separate, as upstream's `DefaultMaxUpdateManagers`.
const N_UPDATERS_MAX: usize = 10;

/// The manager that the oldest others are merged into.
const ANCIENT: &str = "ancient-changes";

/// The owner of fields that were set before managed fields were tracked.
const BEFORE: &str = "before-first-apply";

/// Whether a client resets the managed fields of an object.
pub fn is_managed_fields_reset(managed_fields: &Value) -> bool {
    match managed_fields.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([Value::Object(only)]) => only.is_empty(),
        _ => false,
    }
}

impl FieldManager<'_> {
    /// `metadata.managedFields` after an update to a new state; none if there are none. `live` is
    /// [`VersionedTypes::nothing`] when the object is created.
    pub fn update(&self, live: &Value, new: &Value, manager: &str) -> Option<Value> {
        let mut managed = self.before_update(live, new);
        // The owners of an existing object without managed fields are unknown.
        let is_untracked = managed.owners.is_empty() && !metadata_text(live, "uid").is_empty();
        if !is_untracked {
            // As upstream: what cannot be kept is dropped.
            self.track(live, new, &mut managed, manager).ok()?;
        }
        managed.write()
    }

    /// The managed fields before an update: the client's, if it sends valid ones, or those of the object.
    fn before_update(&self, live: &Value, new: &Value) -> ManagedFields {
        let given = &new["metadata"]["managedFields"];
        if self.subresource.is_empty() {
            if is_managed_fields_reset(given) {
                return ManagedFields::default();
            }
            if let Ok(managed) = ManagedFields::read(given)
                && !managed.owners.is_empty()
            {
                return managed;
            }
        }
        ManagedFields::of(live).unwrap_or_default()
    }

    fn track(
        &self,
        live: &Value,
        new: &Value,
        managed: &mut ManagedFields,
        manager: &str,
    ) -> Result<(), ApplyError> {
        let set =
            self.updater().update(live, new, &mut managed.owners)?.difference(system_fields());
        if !set.is_empty() {
            let id = self.id(manager, Operation::Update);
            let known = managed.owners.remove(&id).map_or_else(FieldSet::default, |it| it.fields);
            let owned =
                Owned { api_version: self.api_version.to_owned(), fields: known.union(&set) };
            managed.owners.insert(id.clone(), owned);
            managed.times.insert(id, self.now.clone());
        }
        cap(managed);
        Ok(())
    }

    /// The object after `config` was applied to it, with its managed fields and before defaulting.
    ///
    /// # Errors
    ///
    /// When another manager owns a field that would change and this is not forced, or when `config` is invalid.
    pub fn apply(
        &self,
        live: &Value,
        config: &Value,
        manager: &str,
        force: bool,
    ) -> Result<Value, ApplyError> {
        let text = |name: &str| config[name].as_str().unwrap_or_default();
        if text("apiVersion") != self.api_version || text("kind") != self.kind {
            let found = group_version_kind(text("apiVersion"), text("kind"));
            return Err(ApplyError::Invalid(format!("invalid object type: {found}")));
        }
        let books = ManagedFields::of(live).map_err(|error: entries::ManagedFieldsError| {
            ApplyError::Other(format!("failed to decode managed fields: {error}"))
        })?;
        let mut applied = self.applied(live, config, books.clone(), manager, force);
        if manager == last_applied::MANAGER
            && let Err(ApplyError::Conflicts(conflicts)) = applied
        {
            // What client-side apply set belongs to kubectl already.
            let allowed = self.form().and_then(|(types, type_ref)| {
                last_applied::unchanged_since(types, type_ref, live, self.api_version)
            });
            applied = match allowed {
                None => Err(ApplyError::Conflicts(conflicts)),
                Some(allowed) => {
                    let left: Vec<Conflict> =
                        conflicts.into_iter().filter(|it| !allowed.contains(&it.path)).collect();
                    if left.is_empty() {
                        self.applied(live, config, books, manager, true)
                    } else {
                        Err(ApplyError::Conflicts(left))
                    }
                }
            };
        }
        let mut object = applied?;
        if manager == last_applied::MANAGER {
            last_applied::follow(&mut object, config);
        }
        Ok(object)
    }

    fn applied(
        &self,
        live: &Value,
        config: &Value,
        mut managed: ManagedFields,
        manager: &str,
        force: bool,
    ) -> Result<Value, ApplyError> {
        if managed.owners.is_empty() {
            self.track(&self.versions.nothing(self.api_version), live, &mut managed, BEFORE)?;
        }
        if config["metadata"]["managedFields"].is_array() {
            return Err(ApplyError::Invalid("metadata.managedFields must be nil".to_owned()));
        }
        let (types, type_ref) = self
            .form()
            .ok_or_else(|| ApplyError::Other(format!("no corresponding type for {}", self.kind)))?;
        let misfit = |which: &str, object: &Value, misfits: &TypeMismatches| {
            let name = self.described(object);
            ApplyError::Other(format!("failed to create typed {which} object ({name}): {misfits}"))
        };
        validate(types, type_ref, config, false).map_err(|it| misfit("patch", config, &it))?;
        validate(types, type_ref, live, true).map_err(|it| misfit("live", live, &it))?;
        let id = self.id(manager, Operation::Apply);
        let new = self.updater().apply(live, config, &mut managed.owners, &id, force)?;
        if let Some(owned) = managed.owners.get_mut(&id) {
            owned.fields = owned.fields.difference(system_fields());
        }
        managed.owners.retain(|_, owned| !owned.fields.is_empty());
        if new.is_some() {
            managed.times.insert(id, self.now.clone());
        }
        let mut object = new.unwrap_or_else(|| live.clone());
        set_managed_fields(&mut object, managed.write());
        Ok(object)
    }

    fn form(&self) -> Option<(&Types, TypeRef)> {
        self.versions.form(self.api_version)
    }

    fn updater(&self) -> Updater<'_> {
        Updater { versions: self.versions, api_version: self.api_version, reset: &self.reset }
    }

    fn id(&self, manager: &str, operation: Operation) -> ManagerId {
        ManagerId {
            name: if manager.is_empty() { "unknown" } else { manager }.to_owned(),
            operation,
            api_version: match operation {
                Operation::Apply => String::new(),
                Operation::Update => self.api_version.to_owned(),
            },
            subresource: self.subresource.to_owned(),
        }
    }

    /// An object as errors name it: where it is, and what.
    pub fn described(&self, object: &Value) -> String {
        format!(
            "{}/{}; {}",
            metadata_text(object, "namespace"),
            metadata_text(object, "name"),
            self.group_version_kind_text()
        )
    }

    /// The kind and its version as errors name them.
    pub fn group_version_kind_text(&self) -> String {
        group_version_kind(self.api_version, self.kind)
    }
}

/// Sets or removes `metadata.managedFields`.
pub fn set_managed_fields(object: &mut Value, list: Option<Value>) {
    match list {
        Some(list) => drop(meta_mut(object).insert("managedFields".to_owned(), list)),
        None => drop(object.get_mut("metadata").and_then(Value::as_object_mut).map(remove_list)),
    }
}

fn remove_list(metadata: &mut Map<String, Value>) {
    metadata.remove("managedFields");
}

/// `apps/v1, Kind=Deployment`, as Go prints it.
fn group_version_kind(api_version: &str, kind: &str) -> String {
    let slash = if api_version.contains('/') { "" } else { "/" };
    format!("{slash}{api_version}, Kind={kind}")
}

/// Fields that no manager owns: identity and system metadata.
fn system_fields() -> &'static FieldSet {
    const METADATA: &[&str] = &[
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ];
    static FIELDS: LazyLock<FieldSet> = LazyLock::new(|| {
        let top = ["apiVersion", "kind", "metadata"].map(|name| FieldSet::of(&[name]));
        let metadata = METADATA.iter().map(|name| FieldSet::of(&["metadata", name]));
        top.into_iter().chain(metadata).fold(FieldSet::default(), |all, it| all.union(&it))
    });
    &FIELDS
}

/// Merges the managers with the oldest updates into one per version when there are too many.
fn cap(managed: &mut ManagedFields) {
    let mut updaters: Vec<ManagerId> =
        managed.owners.keys().filter(|id| !id.is_applier()).cloned().collect();
    let mut n_left = updaters.len();
    if n_left <= N_UPDATERS_MAX {
        return;
    }
    updaters.sort_compactly_by_key(|id| (managed.times.get(id).cloned(), id.identifier()));
    let mut firsts: Vec<ManagerId> = Vec::new();
    for id in updaters {
        if n_left <= N_UPDATERS_MAX {
            return;
        }
        let bucket =
            ManagerId { name: ANCIENT.to_owned(), subresource: String::new(), ..id.clone() };
        let Some(first) = firsts.iter().find(|it| it.api_version == id.api_version) else {
            firsts.push(id);
            continue;
        };
        if !managed.owners.contains_key(&bucket)
            && let Some(owned) = managed.owners.remove(first)
        {
            managed.owners.insert(bucket.clone(), owned);
        }
        if let Some(owned) = managed.owners.remove(&id)
            && let Some(known) = managed.owners.get_mut(&bucket)
        {
            known.fields = known.fields.union(&owned.fields);
        }
        n_left -= 1;
        match managed.times.get(&id).cloned() {
            Some(time) => drop(managed.times.insert(bucket, time)),
            None => drop(managed.times.remove(&bucket)),
        }
    }
}
