//! Interned templates: equal pods share one.

use std::sync::Arc;

use loadmaster_api::PodSpec;
use loadmaster_stdx::{Map, Set};

use super::contributions::ContributionClassId;
use crate::template::{PodTemplate, SharedSpec, SpecId, SpecKey, TemplateId, TemplateKey};

/// Number of templates below which unused ones are not looked for.
const SWEEP_MIN: usize = 1024;

/// All templates that a pod has or recently had.
#[derive(Default)]
pub(super) struct Templates {
    ids: Map<Arc<PodTemplate>, TemplateId>,
    /// By [`TemplateId::index`].
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    next_serial: u32,
    /// The specs that templates share.
    specs: Set<SharedSpec>,
    last_spec_id: u64,
    /// Number of templates at which unused ones are dropped.
    sweep_at: usize,
}

struct Slot {
    template: Arc<PodTemplate>,
    /// Set when the first pod with the template is assigned.
    class: Option<ContributionClassId>,
}

impl Templates {
    pub fn get(&self, key: &TemplateKey<'_>) -> Option<&Arc<PodTemplate>> {
        self.ids.get_key_value(key).map(|(known, _)| known)
    }

    /// The spec of these pods that templates share.
    pub fn shared_spec(&mut self, pods: &PodSpec) -> SharedSpec {
        if let Some(known) = self.specs.get(&SpecKey(pods)) {
            return known.clone();
        }
        self.last_spec_id += 1;
        let spec = SharedSpec::new(SpecId(self.last_spec_id), pods);
        self.specs.insert(spec.clone());
        spec
    }

    /// Adds a new template; returns it with its id, and the classes of templates that were dropped because no pod has them.
    pub fn insert(
        &mut self,
        mut fresh: PodTemplate,
    ) -> (Arc<PodTemplate>, Vec<ContributionClassId>) {
        let dropped =
            if self.ids.len() >= self.sweep_at.max(SWEEP_MIN) { self.sweep() } else { Vec::new() };
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.next_serial = self.next_serial.wrapping_add(1);
        fresh.id = TemplateId { index, serial: self.next_serial };
        let template = Arc::new(fresh);
        self.ids.insert(template.clone(), template.id);
        self.slots[index as usize] = Some(Slot { template: template.clone(), class: None });
        (template, dropped)
    }

    /// The class of a template's pods, if one was assigned before. `None` also for a template of another world.
    pub fn class(&self, id: TemplateId) -> Option<ContributionClassId> {
        self.slots.get(id.index as usize)?.as_ref()?.class
    }

    pub fn set_class(&mut self, id: TemplateId, class: ContributionClassId) {
        if let Some(slot) = self.slots.get_mut(id.index as usize).and_then(Option::as_mut) {
            slot.class = Some(class);
        }
    }

    /// Forgets all classes; returns the templates that had one.
    pub fn clear_classes(&mut self) -> Vec<Arc<PodTemplate>> {
        let slots = self.slots.iter_mut().flatten();
        slots.filter_map(|slot| slot.class.take().map(|_| slot.template.clone())).collect()
    }

    /// Drops the templates that no pod has.
    fn sweep(&mut self) -> Vec<ContributionClassId> {
        let mut classes = Vec::new();
        for (at, slot) in self.slots.iter_mut().enumerate() {
            // Two references, here and in `ids`, mean that no pod has this template.
            let is_unused = |slot: &mut Slot| Arc::strong_count(&slot.template) == 2;
            if let Some(removed) = slot.take_if(is_unused) {
                self.ids.remove(&removed.template);
                self.free.push(at as u32);
                classes.extend(removed.class);
            }
        }
        // Gives memory back after a large part of the pods has gone.
        if self.ids.len() < self.ids.capacity() / 4 {
            self.ids.shrink_to(2 * self.ids.len());
        }
        self.specs.retain(|spec| !spec.is_unused());
        self.sweep_at = 2 * self.ids.len();
        classes
    }
}
