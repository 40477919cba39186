//! The two operations on managed fields, update and apply, as in structured-merge-diff.

use loadmaster_stdx::SortCompactly as _;
use serde_json::Value;

use super::compare::{Comparison, compare};
use super::entries::{ManagerId, Owned, Owners};
use super::field_manager::{ApplyError, Conflict, VersionedTypes};
use super::field_set::FieldSet;
use super::merge::merge;
use super::reconcile::reconcile;
use super::remove::remove;
use super::reset_fields::ResetFields;
use super::validate::fields_of;
use super::value;

pub(super) struct Updater<'a> {
    pub versions: &'a dyn VersionedTypes,
    /// The version of the operation's objects.
    pub api_version: &'a str,
    pub reset: &'a ResetFields,
}

impl Updater<'_> {
    /// The fields that an update without a manager sets; they are taken from all managers.
    pub fn update(
        &self,
        live: &Value,
        new: &Value,
        owners: &mut Owners,
    ) -> Result<FieldSet, ApplyError> {
        self.reconcile(owners);
        let changes = self.changes(live, new, owners, None, true)?;
        Ok(self.reset.apply(&changes.added_or_modified()))
    }

    /// The object after an apply, or none if that changes nothing. The applier then owns exactly the fields it
    /// applied.
    pub fn apply(
        &self,
        live: &Value,
        config: &Value,
        owners: &mut Owners,
        manager: &ManagerId,
        force: bool,
    ) -> Result<Option<Value>, ApplyError> {
        self.reconcile(owners);
        let (types, type_ref) = self.form(self.api_version)?;
        let merged = merge(types, type_ref, live, config)
            .map_err(|misfits| ApplyError::Other(format!("failed to merge config: {misfits}")))?;
        let fields = self.reset.apply(&fields_of(types, type_ref, config));
        let owned = Owned { api_version: self.api_version.to_owned(), fields };
        let last = owners.insert(manager.clone(), owned);
        let new = match &last {
            Some(last) if !last.fields.is_empty() => self.pruned(merged, last, owners),
            _ => merged,
        };
        self.changes(live, &new, owners, Some(manager), force)?;
        Ok((!value::equal(live, &new)).then_some(new))
    }

    fn form(&self, api_version: &str) -> Result<(&super::Types, super::TypeRef), ApplyError> {
        self.versions
            .form(api_version)
            .ok_or_else(|| ApplyError::Other(format!("no corresponding type for {api_version}")))
    }

    /// Takes what changed from the managers that are not at work.
    fn changes(
        &self,
        old: &Value,
        new: &Value,
        owners: &mut Owners,
        at_work: Option<&ManagerId>,
        force: bool,
    ) -> Result<Comparison, ApplyError> {
        let own = self.comparison(old, new, self.api_version)?;
        let mut others: Vec<(String, Comparison)> = Vec::new();
        let mut conflicts: Vec<(ManagerId, FieldSet)> = Vec::new();
        let mut taken: Owners = Owners::new();
        owners.retain(|_, owned| self.versions.form(&owned.api_version).is_some());
        for (id, owned) in &*owners {
            if Some(id) == at_work {
                continue;
            }
            let changes = if owned.api_version == self.api_version {
                &own
            } else {
                if !others.iter().any(|(version, _)| *version == owned.api_version) {
                    let convert = |object| self.versions.convert(object, &owned.api_version);
                    let changes =
                        self.comparison(&convert(old), &convert(new), &owned.api_version)?;
                    others.push((owned.api_version.clone(), changes));
                }
                let found = others.iter().find(|(version, _)| *version == owned.api_version);
                found.map_or(&own, |(_, changes)| changes)
            };
            if changes.is_same() {
                continue;
            }
            let conflict = owned.fields.intersection(&changes.added_or_modified());
            let removed = owned.fields.intersection(&changes.removed);
            if conflict.is_empty() && removed.is_empty() {
                continue;
            }
            let fields = owned.fields.difference(&conflict).difference(&removed);
            taken.insert(id.clone(), Owned { api_version: owned.api_version.clone(), fields });
            if !conflict.is_empty() {
                conflicts.push((id.clone(), conflict));
            }
        }
        if !force && !conflicts.is_empty() {
            conflicts.sort_compactly_by_key(|(manager, _)| manager.identifier());
            let all = conflicts.into_iter().flat_map(|(manager, fields)| {
                let paths = fields.paths().into_iter();
                paths.map(move |path| Conflict { manager: manager.clone(), path })
            });
            return Err(ApplyError::Conflicts(all.collect()));
        }
        owners.extend(taken);
        owners.retain(|_, owned| !owned.fields.is_empty());
        Ok(own)
    }

    fn comparison(
        &self,
        old: &Value,
        new: &Value,
        version: &str,
    ) -> Result<Comparison, ApplyError> {
        let (types, type_ref) = self.form(version)?;
        let changes = compare(types, type_ref, old, new).map_err(|misfits| {
            ApplyError::Other(format!("failed to compare objects: {misfits}"))
        })?;
        Ok(changes.mapped(|fields| self.reset.apply(fields)))
    }

    /// Without what the applier applied the last time, does not apply now, and no other manager owns.
    fn pruned(&self, merged: Value, last: &Owned, owners: &Owners) -> Value {
        let Some((types, type_ref)) = self.versions.form(&last.api_version) else {
            return merged;
        };
        let merged = self.versions.convert(&merged, &last.api_version);
        let removed = last.fields.with_named_fields(types, Some(type_ref));
        let mut pruned = remove(types, type_ref, &merged, &removed);
        let mut versions: Vec<&str> = owners.values().map(|it| it.api_version.as_str()).collect();
        versions.sort_unstable();
        versions.dedup();
        // The version it was pruned in comes first.
        versions.sort_compactly_by_key(|version| *version != last.api_version);
        for version in versions {
            pruned = self.with_owned(&merged, pruned, version, owners);
        }
        let pruned = self.versions.convert(&pruned, &last.api_version);
        // What no manager ever owned stays.
        let named = |object: &Value| {
            fields_of(types, type_ref, object).with_named_fields(types, Some(type_ref))
        };
        let removed = named(&merged).difference(&named(&pruned)).intersection(&removed);
        let retained = remove(types, type_ref, &merged, &removed);
        self.versions.convert(&retained, self.api_version)
    }

    /// Puts back what managers own in terms of a version.
    fn with_owned(&self, merged: &Value, pruned: Value, version: &str, owners: &Owners) -> Value {
        let Some((types, type_ref)) = self.versions.form(version) else { return pruned };
        let merged = self.versions.convert(merged, version);
        let pruned = self.versions.convert(&pruned, version);
        let named = |fields: FieldSet| fields.with_named_fields(types, Some(type_ref));
        let owned = owners
            .values()
            .filter(|it| it.api_version == version)
            .fold(FieldSet::default(), |all, it| all.union(&it.fields));
        let retained = named(fields_of(types, type_ref, &pruned)).union(&named(owned));
        let removed = named(fields_of(types, type_ref, &merged)).difference(&retained);
        remove(types, type_ref, &merged, &removed)
    }

    fn reconcile(&self, owners: &mut Owners) {
        owners.retain(|_, owned| self.versions.form(&owned.api_version).is_some());
        for owned in owners.values_mut() {
            if let Some((types, type_ref)) = self.versions.form(&owned.api_version)
                && let Some(fields) = reconcile(types, type_ref, &owned.fields)
            {
                owned.fields = fields;
            }
        }
    }
}
