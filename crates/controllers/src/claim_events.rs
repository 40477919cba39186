//! Events about claims that wait: each is recorded once, although the claim is reconciled many times.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::kind::Key;
use crate::result_builder::ReconcileResultBuilder;

/// An Event about a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimEvent {
    is_warning: bool,
    reason: &'static str,
    text: String,
}

impl ClaimEvent {
    /// Of type Normal.
    pub fn normal(reason: &'static str, text: impl Into<String>) -> ClaimEvent {
        ClaimEvent { is_warning: false, reason, text: text.into() }
    }

    /// Of type Warning.
    pub fn warning(reason: &'static str, text: impl Into<String>) -> ClaimEvent {
        ClaimEvent { is_warning: true, reason, text: text.into() }
    }
}

/// The last Event about each waiting claim.
#[derive(Debug, Default)]
pub(crate) struct ClaimEvents {
    last: BTreeMap<Key, ClaimEvent>,
}

impl ClaimEvents {
    /// Records why a claim waits, unless that was its last Event; None: it does not wait.
    pub fn record(
        &mut self,
        claim: &PersistentVolumeClaim,
        event: Option<ClaimEvent>,
        writes: &mut ReconcileResultBuilder,
    ) {
        let key = Key::from_object(claim);
        let Some(event) = event else { return self.forget(&key) };
        if self.last.get(&key) == Some(&event) {
            return;
        }
        if event.is_warning {
            writes.warning(claim, event.reason, event.text.clone());
        } else {
            writes.event(claim, event.reason, event.text.clone());
        }
        self.last.insert(key, event);
    }

    /// The claim no longer waits, or is deleted.
    pub fn forget(&mut self, claim: &Key) {
        self.last.remove(claim);
    }
}
