//! The plugin's state: which volumes are free or reserved, what is assumed of claims and volumes, and the storage capacities.
//!
//! An assumed object replaces the one from the API server until that one changes, or the pod is unreserved (upstream's
//! `passiveAssumeCache`). Volumes and capacities are indexed by class and, where they require a value of a node label, by that value, so
//! that a node looks only at those that it may have access to.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::selector::{CompiledNodeSelector, Selector};
use loadmaster_api::storage::{ClaimReference, SELECTED_NODE, StorageMeta};
use loadmaster_api::{
    CsiStorageCapacity, Labels, NodeSelector, PersistentVolume, PersistentVolumeClaim, Quantity,
    Str,
};
use loadmaster_stdx::Map;
use smallvec::SmallVec;

/// Namespace and name of a claim.
pub(super) type ClaimId = (Str, Str);

pub(super) fn claim_id(claim: &PersistentVolumeClaim) -> ClaimId {
    (claim.metadata.namespace.clone(), claim.metadata.name.clone())
}

/// What matching reads of a volume that is not bound.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct UnboundVolume {
    pub name: Str,
    pub capacity: Quantity,
    pub access_modes: Vec<Str>,
    pub volume_mode: Str,
    pub attributes_class: Str,
    pub labels: Labels,
    /// `spec.storageClassName`, by which scores are grouped, whatever the annotation says.
    pub class_name: Str,
    pub node_affinity: Option<CompiledNodeSelector>,
}

impl UnboundVolume {
    pub fn new(volume: &PersistentVolume) -> UnboundVolume {
        let spec = &volume.spec;
        UnboundVolume {
            name: volume.metadata.name.clone(),
            capacity: volume.capacity(),
            access_modes: spec.access_modes.clone(),
            volume_mode: mode_or_filesystem(spec.volume_mode.as_ref()),
            attributes_class: spec.volume_attributes_class_name.clone().unwrap_or_default(),
            labels: volume.metadata.labels.clone(),
            class_name: spec.storage_class_name.clone(),
            node_affinity: spec.required_node_affinity.as_deref().map(CompiledNodeSelector::new),
        }
    }

    /// Whether the node affinity allows a node with these labels (upstream's `CheckNodeAffinity`).
    pub fn allows(&self, labels: &Labels) -> bool {
        self.node_affinity.as_ref().is_none_or(|affinity| affinity.matches(labels, "") == Ok(true))
    }

    /// The node labels that [`UnboundVolume::allows`] reads; one may repeat.
    pub fn node_labels(&self) -> impl Iterator<Item = &Str> {
        self.node_affinity.iter().flat_map(CompiledNodeSelector::label_keys)
    }
}

/// The volume mode, which is `Filesystem` when absent.
pub(super) fn mode_or_filesystem(mode: Option<&Str>) -> Str {
    mode.cloned().unwrap_or_else(|| Str::new("Filesystem"))
}

/// A CSIStorageCapacity that has a limit and a topology.
#[derive(Debug)]
pub(super) struct Capacity {
    /// The size of the largest volume, in bytes.
    pub limit: i64,
    /// In bytes; 0 when only the largest volume is known.
    pub capacity: i64,
    topology: Selector,
}

impl Capacity {
    /// Whether nodes with these labels have access.
    pub fn is_accessible(&self, labels: &Labels) -> bool {
        self.topology.matches(labels)
    }
}

/// Things by the value of a node label that they require, and those that require none.
#[derive(Clone, Debug)]
pub(super) struct ByNodeLabel<K, T> {
    by_value: BTreeMap<Str, Map<Str, BTreeMap<K, T>>>,
    others: BTreeMap<K, T>,
}

impl<K, T> Default for ByNodeLabel<K, T> {
    fn default() -> Self {
        ByNodeLabel { by_value: BTreeMap::new(), others: BTreeMap::new() }
    }
}

/// A node label of which a node must have one of these values.
pub(super) type RequiredValues = (Str, SmallVec<[Str; 1]>);

impl<K: Ord + Clone, T: Clone> ByNodeLabel<K, T> {
    fn insert(&mut self, required: Option<&RequiredValues>, key: K, value: T) {
        let Some((label, values)) = required else {
            self.others.insert(key, value);
            return;
        };
        let by_value = self.by_value.entry(label.clone()).or_default();
        for label_value in values {
            let bucket = by_value.entry(label_value.clone()).or_default();
            bucket.insert(key.clone(), value.clone());
        }
    }

    fn remove(&mut self, required: Option<&RequiredValues>, key: &K) {
        let Some((label, values)) = required else {
            self.others.remove(key);
            return;
        };
        let Some(by_value) = self.by_value.get_mut(label) else { return };
        for label_value in values {
            if let Some(bucket) = by_value.get_mut(label_value) {
                bucket.remove(key);
                if bucket.is_empty() {
                    by_value.remove(label_value);
                }
            }
        }
        if by_value.is_empty() {
            self.by_value.remove(label);
        }
    }

    /// The maps with what a node with these labels may have access to.
    pub fn buckets<'a>(&'a self, labels: &'a Labels) -> impl Iterator<Item = &'a BTreeMap<K, T>> {
        let own = self.by_value.iter().filter_map(|(label, by_value)| {
            labels.get(label).and_then(|value| by_value.get(value))
        });
        own.chain(Some(&self.others).filter(|others| !others.is_empty()))
    }
}

/// Free volumes by size and name.
pub(super) type FreeVolumes = ByNodeLabel<(Quantity, Str), Arc<UnboundVolume>>;

/// Capacities by namespace and name.
pub(super) type Capacities = ByNodeLabel<(Str, Str), Arc<Capacity>>;

/// What there is of one storage class.
#[derive(Clone, Debug, Default)]
pub(super) struct ClassStorage {
    /// Available, and reserved for nobody.
    pub volumes: FreeVolumes,
    pub capacities: Capacities,
    /// How many of them read each node label.
    node_labels: BTreeMap<Str, usize>,
    /// Changes with what may concern all nodes, for evaluators that compare claims with single nodes. What concerns a few nodes is announced
    /// for these nodes instead.
    pub version: u64,
}

impl ClassStorage {
    /// The node labels that free volumes and capacities read.
    pub fn node_labels(&self) -> impl Iterator<Item = &Str> {
        self.node_labels.keys()
    }

    fn count_node_labels<'a>(&mut self, labels: impl Iterator<Item = &'a Str>, is_added: bool) {
        for label in labels {
            let n = self.node_labels.entry(label.clone()).or_default();
            *n = if is_added { *n + 1 } else { n.saturating_sub(1) };
            if *n == 0 {
                self.node_labels.remove(label);
            }
        }
    }
}

/// The nodes that a change concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Concerned {
    /// Nodes of which the label has one of these values, in the storage of a class.
    Nodes(Str, RequiredValues),
    /// All nodes, in the storage of a class.
    All(Str),
}

#[derive(Clone, Debug)]
struct AssumedVolume {
    resource_version: Box<str>,
    claim: ClaimReference,
}

#[derive(Clone, Debug)]
struct AssumedClaim {
    resource_version: Box<str>,
    selected_node: Str,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct AssumeCache {
    classes: Map<Str, ClassStorage>,
    /// Names of the volumes that are bound to a claim or reserved for it.
    reserved: Map<ClaimId, SmallVec<[Str; 1]>>,
    volumes: Map<Str, AssumedVolume>,
    claims: Map<ClaimId, AssumedClaim>,
    last_version: u64,
}

/// Where a volume is in the index.
enum Entry {
    Free {
        class: Str,
        required: Option<RequiredValues>,
        volume: Arc<UnboundVolume>,
    },
    Reserved(ClaimId),
    /// It is neither available nor reserved, or being deleted.
    Unusable,
}

impl AssumeCache {
    /// The storage of a class, if there is any.
    pub fn class(&self, class: &str) -> Option<&ClassStorage> {
        self.classes.get(class)
    }

    /// Announces that what concerns all nodes changed in a class.
    pub fn change_version(&mut self, class: &Str) {
        self.last_version += 1;
        self.classes.entry(class.clone()).or_default().version = self.last_version;
    }

    /// The node that was selected for a claim, or is assumed to be.
    pub fn selected_node<'a>(&'a self, claim: &'a PersistentVolumeClaim) -> Option<&'a Str> {
        match self.assumed_claim(&claim.metadata) {
            Some(assumed) => Some(&assumed.selected_node),
            None => claim.metadata.annotations.get(SELECTED_NODE),
        }
    }

    /// How many claims and volumes are assumed to be other than the API server says.
    pub fn n_assumed(&self) -> usize {
        self.claims.len() + self.volumes.len()
    }

    fn assumed_claim(&self, claim: &StorageMeta) -> Option<&AssumedClaim> {
        let assumed = self.claims.get(&(claim.namespace.clone(), claim.name.clone()))?;
        (assumed.resource_version == claim.resource_version).then_some(assumed)
    }

    /// The claim to which a volume is bound, for which it is reserved, or assumed to be.
    pub fn claim_of<'a>(&'a self, volume: &'a PersistentVolume) -> Option<&'a ClaimReference> {
        let assumed = self.volumes.get(&volume.metadata.name);
        match assumed.filter(|it| it.resource_version == volume.metadata.resource_version) {
            Some(assumed) => Some(&assumed.claim),
            None => volume.spec.claim_ref.as_deref(),
        }
    }

    /// Names of the volumes whose claim reference has this namespace and name, sorted.
    pub fn reserved_for(&self, claim: &ClaimId) -> &[Str] {
        self.reserved.get(claim).map_or(&[], SmallVec::as_slice)
    }

    /// Assumes that a volume is bound to a claim.
    pub fn assume_volume(
        &mut self,
        volume: &PersistentVolume,
        claim: ClaimReference,
    ) -> Option<Concerned> {
        let was = self.remove(volume);
        let resource_version = volume.metadata.resource_version.clone();
        let assumed = AssumedVolume { resource_version, claim };
        self.volumes.insert(volume.metadata.name.clone(), assumed);
        self.insert(volume).or(was)
    }

    /// Takes back what was assumed of this version of a volume.
    pub fn restore_volume(&mut self, volume: &PersistentVolume) -> Option<Concerned> {
        let name = &volume.metadata.name;
        let known = self.volumes.get(name)?;
        if known.resource_version != volume.metadata.resource_version {
            return None;
        }
        let was = self.remove(volume);
        self.volumes.remove(name);
        self.insert(volume).or(was)
    }

    /// Assumes that a node was selected for a claim.
    pub fn assume_claim(&mut self, claim: &PersistentVolumeClaim, selected_node: Str) {
        let resource_version = claim.metadata.resource_version.clone();
        self.claims.insert(claim_id(claim), AssumedClaim { resource_version, selected_node });
    }

    /// Takes back what was assumed of a claim if it has this version. Returns whether something was.
    pub fn restore_claim(&mut self, claim: &ClaimId, resource_version: &str) -> bool {
        let known = self.claims.get(claim);
        let is_known = known.is_some_and(|known| *known.resource_version == *resource_version);
        is_known && self.claims.remove(claim).is_some()
    }

    /// A claim changed: nothing is assumed of another version of it.
    pub fn change_claim(
        &mut self,
        old: Option<&PersistentVolumeClaim>,
        new: Option<&PersistentVolumeClaim>,
    ) {
        let Some(claim) = new.or(old) else { return };
        let id = claim_id(claim);
        let known = self.claims.get(&id);
        let is_old = |known: &AssumedClaim| {
            new.is_none_or(|new| new.metadata.resource_version != known.resource_version)
        };
        if known.is_some_and(is_old) {
            self.claims.remove(&id);
        }
    }

    /// A volume changed. Returns what is concerned: before and after the change.
    pub fn change_volume(
        &mut self,
        old: Option<&PersistentVolume>,
        new: Option<&PersistentVolume>,
    ) -> [Option<Concerned>; 2] {
        let was = old.and_then(|old| self.remove(old));
        if let Some(volume) = new.or(old) {
            let known = self.volumes.get(&volume.metadata.name);
            let is_old = |known: &AssumedVolume| {
                new.is_none_or(|new| new.metadata.resource_version != known.resource_version)
            };
            if known.is_some_and(is_old) {
                self.volumes.remove(&volume.metadata.name);
            }
        }
        let is = new.and_then(|new| self.insert(new));
        if was == is { [is, None] } else { [was, is] }
    }

    /// A capacity changed. Returns what is concerned: before and after the change.
    pub fn change_capacity(
        &mut self,
        old: Option<&CsiStorageCapacity>,
        new: Option<&CsiStorageCapacity>,
    ) -> [Option<Concerned>; 2] {
        let was = old.and_then(|old| self.put_capacity(old, false));
        let is = new.and_then(|new| self.put_capacity(new, true));
        if was == is { [is, None] } else { [was, is] }
    }

    fn put_capacity(&mut self, capacity: &CsiStorageCapacity, insert: bool) -> Option<Concerned> {
        let limit = capacity.volume_limit()?.value();
        // As upstream, a topology that cannot be read gives access to no node.
        let topology = Selector::new(Some(capacity.node_topology.as_deref()?)).ok()?;
        let required = topology.required_values();
        let required = required.map(|(key, values)| (key.clone(), SmallVec::from(values)));
        let StorageMeta { namespace, name, .. } = &capacity.metadata;
        let id = (namespace.clone(), name.clone());
        let class = &capacity.storage_class_name;
        let storage = self.classes.entry(class.clone()).or_default();
        storage.count_node_labels(topology.keys(), insert);
        if insert {
            let bytes = capacity.capacity.map_or(0, |capacity| capacity.value());
            let stored = Arc::new(Capacity { limit, capacity: bytes, topology });
            storage.capacities.insert(required.as_ref(), id, stored);
        } else {
            storage.capacities.remove(required.as_ref(), &id);
        }
        Some(Concerned::new(class, required))
    }

    fn entry(&self, volume: &PersistentVolume) -> Entry {
        if let Some(claim) = self.claim_of(volume) {
            return Entry::Reserved((claim.namespace.clone(), claim.name.clone()));
        }
        if volume.status.phase != "Available" || volume.metadata.deletion_timestamp.is_some() {
            return Entry::Unusable;
        }
        let required = volume.spec.required_node_affinity.as_deref().and_then(required_values);
        let class = volume.class().clone();
        Entry::Free { class, required, volume: Arc::new(UnboundVolume::new(volume)) }
    }

    /// Adds a volume to the index. Returns what is concerned if it is free.
    fn insert(&mut self, volume: &PersistentVolume) -> Option<Concerned> {
        match self.entry(volume) {
            Entry::Free { class, required, volume } => {
                let storage = self.classes.entry(class.clone()).or_default();
                storage.count_node_labels(volume.node_labels(), true);
                let key = (volume.capacity, volume.name.clone());
                storage.volumes.insert(required.as_ref(), key, volume);
                Some(Concerned::new(&class, required))
            }
            Entry::Reserved(claim) => {
                let names = self.reserved.entry(claim).or_default();
                let name = &volume.metadata.name;
                if let Err(at) = names.binary_search_by(|known| known.as_str().cmp(name.as_str())) {
                    names.insert(at, name.clone());
                }
                None
            }
            Entry::Unusable => None,
        }
    }

    /// Removes a volume from the index. Returns what is concerned if it was free.
    fn remove(&mut self, volume: &PersistentVolume) -> Option<Concerned> {
        match self.entry(volume) {
            Entry::Free { class, required, volume } => {
                let storage = self.classes.get_mut(&class)?;
                storage.count_node_labels(volume.node_labels(), false);
                let key = (volume.capacity, volume.name.clone());
                storage.volumes.remove(required.as_ref(), &key);
                Some(Concerned::new(&class, required))
            }
            Entry::Reserved(claim) => {
                let names = self.reserved.get_mut(&claim)?;
                names.retain(|known| *known != volume.metadata.name);
                if names.is_empty() {
                    self.reserved.remove(&claim);
                }
                None
            }
            Entry::Unusable => None,
        }
    }
}

impl Concerned {
    fn new(class: &Str, required: Option<RequiredValues>) -> Concerned {
        match required {
            Some(required) => Concerned::Nodes(class.clone(), required),
            None => Concerned::All(class.clone()),
        }
    }
}

/// A node label that the only term of a selector requires, and its values. The node's own label if there is one, because few nodes have
/// equal values.
fn required_values(selector: &NodeSelector) -> Option<RequiredValues> {
    let [term] = &*selector.node_selector_terms else { return None };
    let is_in = |operator: &Str| *operator == "In";
    let all = || term.match_expressions.iter().filter(|it| is_in(&it.operator));
    let own = all().find(|it| it.key == "kubernetes.io/hostname");
    let requirement = own.or_else(|| all().next())?;
    let mut values: SmallVec<[Str; 1]> = requirement.values.iter().cloned().collect();
    values.sort();
    values.dedup();
    Some((requirement.key.clone(), values))
}

#[cfg(test)]
mod tests;
