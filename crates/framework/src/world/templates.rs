//! Interned templates: equal pods share one.

mod without_resources;

use std::hash::BuildHasher as _;
use std::sync::Arc;

use hashbrown::HashTable;
use loadmaster_api::{InternedPodSpec, Labels, Pod};
use loadmaster_stdx::hash::SeededHashBuilder;
use loadmaster_stdx::{Map, Set};

use self::without_resources::WithoutResources;
use super::contributions::ContributionClassId;
use super::key_versions::KeyVersions;
use crate::feature_gates::FeatureGates;
use crate::template::{
    PodTemplate, SharedSpec, SharedTemplate, SharedTemplateId, SharedTemplateKey, SpecId,
    TemplateError, TemplateId,
};

/// Number of templates below which unused ones are not looked for.
const SWEEP_MIN: usize = 1024;

/// All templates that a pod has or recently had. Pods whose labels differ have a template each, which is small; the parsed part is shared.
#[derive(Default)]
pub(super) struct Templates {
    /// Indexes in `slots`, by shared part and labels.
    table: HashTable<u32>,
    /// By [`TemplateId::index`].
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    next_serial: u32,
    /// By what determines them.
    shared: HashTable<Arc<SharedTemplate>>,
    last_shared_id: u64,
    /// The specs that templates share, with their ids.
    specs: Map<InternedPodSpec, SpecId>,
    last_spec_id: u64,
    without_resources: WithoutResources,
    hasher: SeededHashBuilder,
    /// Number of templates at which unused ones are dropped.
    sweep_at: usize,
}

struct Slot {
    template: Arc<PodTemplate>,
    /// Set when the first pod with the template is assigned.
    class: Option<ContributionClassId>,
}

impl Templates {
    /// The template of a pod. Adds the classes of templates that were dropped because no pod has them to `dropped`.
    ///
    /// # Errors
    ///
    /// When a selector in the pod is invalid.
    pub fn of_pod(
        &mut self,
        pod: &Pod,
        gates: &FeatureGates,
        versions: &mut KeyVersions,
        dropped: &mut Vec<ContributionClassId>,
    ) -> Result<Arc<PodTemplate>, TemplateError> {
        // Looked up before anything is parsed or copied: most pods of a cluster share their template with others.
        let shared = self.shared_template(pod, gates, versions)?;
        let labels = &pod.metadata.labels;
        let hash = self.hash(shared.shared_id, labels);
        let Templates { table, slots, .. } = self;
        let is_it = |at: &u32| {
            template_at(slots, *at)
                .is_some_and(|it| it.shared_id == shared.shared_id && it.labels == *labels)
        };
        if let Some(at) = table.find(hash, is_it)
            && let Some(known) = template_at(slots, *at)
        {
            return Ok(known.clone());
        }
        if self.table.len() >= self.sweep_at.max(SWEEP_MIN) {
            self.sweep(dropped);
        }
        Ok(self.insert(hash, PodTemplate::new(labels.clone(), shared)))
    }

    fn shared_template(
        &mut self,
        pod: &Pod,
        gates: &FeatureGates,
        versions: &mut KeyVersions,
    ) -> Result<Arc<SharedTemplate>, TemplateError> {
        let key = SharedTemplateKey::of(pod);
        let hash = self.hasher.hash_one(&key);
        let known =
            self.shared.find(hash, |known| key == SharedTemplateKey::of_template(known)).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let id = SharedTemplateId(self.last_shared_id + 1);
        let namespace_id = versions.namespace_id(&pod.metadata.namespace);
        let spec = self.shared_spec(&pod.spec.shared);
        let without = self.without_resources.id_of(pod, namespace_id);
        let shared = Arc::new(SharedTemplate::new(id, without, namespace_id, pod, spec, gates)?);
        self.last_shared_id = id.0;
        let hash_of = |known: &Arc<SharedTemplate>| {
            self.hasher.hash_one(SharedTemplateKey::of_template(known))
        };
        self.shared.insert_unique(hash, shared.clone(), hash_of);
        Ok(shared)
    }

    /// The spec with its id.
    fn shared_spec(&mut self, spec: &InternedPodSpec) -> SharedSpec {
        let id = *self.specs.entry_ref(spec).or_insert_with(|| {
            self.last_spec_id += 1;
            SpecId(self.last_spec_id)
        });
        SharedSpec::new(id, spec.clone())
    }

    fn hash(&self, shared: SharedTemplateId, labels: &Labels) -> u64 {
        self.hasher.hash_one((shared, labels))
    }

    fn insert(&mut self, hash: u64, mut fresh: PodTemplate) -> Arc<PodTemplate> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.next_serial = self.next_serial.wrapping_add(1);
        fresh.id = TemplateId { index, serial: self.next_serial };
        let template = Arc::new(fresh);
        self.slots[index as usize] = Some(Slot { template: template.clone(), class: None });
        let Templates { table, slots, hasher, .. } = self;
        let hash_of = |at: &u32| {
            template_at(slots, *at).map_or(0, |it| hasher.hash_one((it.shared_id, &it.labels)))
        };
        table.insert_unique(hash, index, hash_of);
        template
    }

    /// Whether more than one pod that exists has this template.
    pub fn has_several_pods(template: &Arc<PodTemplate>) -> bool {
        // The slot and a pod have a reference each.
        Arc::strong_count(template) > 2
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
    fn sweep(&mut self, classes: &mut Vec<ContributionClassId>) {
        let Templates { table, slots, free, hasher, .. } = self;
        for (at, slot) in slots.iter_mut().enumerate() {
            // A single reference means that no pod has this template.
            let is_unused = |slot: &mut Slot| Arc::strong_count(&slot.template) == 1;
            if let Some(removed) = slot.take_if(is_unused) {
                let hash = hasher.hash_one((removed.template.shared_id, &removed.template.labels));
                if let Ok(entry) = table.find_entry(hash, |known| *known as usize == at) {
                    entry.remove();
                }
                free.push(at as u32);
                classes.extend(removed.class);
            }
        }
        self.shared.retain(|shared| Arc::strong_count(shared) > 1);
        let used: Set<SpecId> = self.shared.iter().map(|shared| shared.spec.id()).collect();
        self.specs.retain(|_, id| used.contains(id));
        let used = self.shared.iter().map(|shared| shared.without_resources_id).collect();
        self.without_resources.retain(&used);
        self.give_memory_back();
        self.sweep_at = 2 * self.table.len();
    }

    /// After a large part of the pods has gone.
    fn give_memory_back(&mut self) {
        let Templates { table, slots, shared, hasher, .. } = self;
        if table.len() < table.capacity() / 4 {
            let hash_of = |at: &u32| {
                template_at(slots, *at).map_or(0, |it| hasher.hash_one((it.shared_id, &it.labels)))
            };
            table.shrink_to(2 * table.len(), hash_of);
        }
        if shared.len() < shared.capacity() / 4 {
            let hash_of = |known: &Arc<SharedTemplate>| {
                hasher.hash_one(SharedTemplateKey::of_template(known))
            };
            shared.shrink_to(2 * shared.len(), hash_of);
        }
    }
}

fn template_at(slots: &[Option<Slot>], index: u32) -> Option<&Arc<PodTemplate>> {
    slots.get(index as usize)?.as_ref().map(|slot| &slot.template)
}
