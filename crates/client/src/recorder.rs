//! Writes Events, never in the way of anything else: over a lane and at a pace of their own, and dropped when too many wait.
//!
//! [`Series`] decides what is written, and owns no clock: as upstream, an event that repeats within six minutes becomes a series; its
//! first repetition is written, later ones are counted and written every half hour and at the end. The texts of a series'
//! repetitions are not kept, so that only an event of the same text is a repetition. (Upstream compares the regarded object's version
//! instead of the text. A pod's version changes with the message in its condition, which is the text of its event.)
//!
//! A note of up to 1,024 bytes is what the API server takes; who makes it cuts it.

mod body;
mod driver;
mod series;

use loadmaster_api::Str;

pub use driver::{Recorder, RecorderOptions, RecorderStats};
pub use series::{Event, Series, Write};

/// Which object an Event is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reference {
    /// Such as `v1`.
    pub api_version: Str,
    /// Such as `Pod`.
    pub kind: Str,
    /// Empty for kinds without namespaces.
    pub namespace: Str,
    /// Its name.
    pub name: Box<str>,
    /// Its uid.
    pub uid: Box<str>,
}

/// Something worth an Event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Notice {
    /// What it is about.
    pub regarding: Reference,
    /// What else had a part in it.
    pub related: Option<Reference>,
    /// Whether something went wrong.
    pub is_warning: bool,
    /// Why, in one word: `Scheduled`.
    pub reason: Str,
    /// What was done, in one word: `Binding`. Without one the Event is written through core/v1, as upstream does for `LeaderElection`.
    pub action: Str,
    /// For people.
    pub note: String,
    /// Who says so: a profile's schedulerName.
    pub controller: Str,
}

impl Notice {
    /// What upstream says of a lease: `became leader` or `stopped leading`.
    pub fn of_lease(lease: Reference, identity: &str, what: &str, controller: &str) -> Notice {
        Notice {
            regarding: lease,
            related: None,
            is_warning: false,
            reason: "LeaderElection".into(),
            action: Str::default(),
            note: format!("{identity} {what}"),
            controller: controller.into(),
        }
    }
}
