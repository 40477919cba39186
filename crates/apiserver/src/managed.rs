//! Who owns which field: what server-side apply and `metadata.managedFields` stand on. Pure: values in, values out.
//!
//! A [`Set`] of field paths is what a manager owns. [`Types`] says where lists have keys and what is merged as a whole.
//! An object is turned into the set of its fields, compared with another one, merged with one, or loses fields of a set;
//! [`manager`] puts these together into the two operations there are: apply and update. Behaviour is that of
//! structured-merge-diff 6 and of apimachinery's `managedfields`.

mod compare;
mod entries;
mod last_applied;
mod manager;
mod merge;
mod path;
mod reconcile;
mod remove;
mod reset;
mod scale;
mod set;
mod structural;
#[cfg(test)]
mod testkit;
mod types;
mod updater;
mod value;
mod walk;

pub use manager::{
    Conflict, Failure, FieldManager, Versions, is_reset, message, set_managed_fields,
};
pub use path::PathElement;
pub use reset::Reset;
pub use scale::{ScaleFields, Scaled};
pub use set::Set;
pub use types::{TypeRef, Types, built_in};
