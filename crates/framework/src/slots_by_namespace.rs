//! Which slots of a list have something of a namespace, so that the others are not looked at.

use std::collections::BTreeSet;

use loadmaster_api::Str;
use loadmaster_stdx::Map;

/// Numbers of slots by namespace; `None` is for what belongs to no single one.
#[derive(Default)]
pub(crate) struct SlotsByNamespace(Map<Option<Str>, BTreeSet<u32>>);

impl SlotsByNamespace {
    /// The slots of a namespace, ascending.
    pub fn get(&self, namespace: Option<&Str>) -> impl Iterator<Item = u32> + use<'_> {
        self.0.get(&namespace.cloned()).into_iter().flatten().copied()
    }

    pub fn insert(&mut self, namespace: Option<&Str>, slot: u32) {
        self.0.entry(namespace.cloned()).or_default().insert(slot);
    }

    pub fn remove(&mut self, namespace: Option<&Str>, slot: u32) {
        let namespace = namespace.cloned();
        let Some(slots) = self.0.get_mut(&namespace) else { return };
        slots.remove(&slot);
        if slots.is_empty() {
            self.0.remove(&namespace);
        }
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}
