//! Field ownership for server-side apply (`metadata.managedFields`). Pure functions over JSON values.
//!
//! A [`FieldSet`] of field paths is what a manager owns. [`Types`] says where lists have keys and what is merged as a whole.
//! An object is turned into the set of its fields, compared with another one, merged with one, or loses fields of a set;
//! [`field_manager`] combines these into the two operations: apply and update. Behaviour is that of
//! structured-merge-diff 6 and of apimachinery's `managedfields`.

mod compare;
mod custom_types;
mod entries;
mod field_manager;
mod field_path;
mod field_set;
mod last_applied;
mod merge;
mod reconcile;
mod remove;
mod reset_fields;
mod scale;
#[cfg(test)]
mod testkit;
mod types;
mod updater;
mod validate;
mod value;

pub use field_manager::{
    ApplyError, Conflict, FieldManager, VersionedTypes, conflict_message, is_managed_fields_reset,
    set_managed_fields,
};
pub use field_path::PathElement;
pub use field_set::FieldSet;
pub use reset_fields::ResetFields;
pub use scale::{ManagedFieldsList, ScaleManagedFields};
pub use types::{TypeRef, Types, built_in};
