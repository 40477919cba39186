//! The volumes of a pod on one node: found, to be bound or to be provisioned (upstream's `FindPodVolumes`).

use std::sync::Arc;

use loadmaster_api::selector::{CompiledNodeSelector, Requirement, Selector};
use loadmaster_api::storage::TopologySelectorTerm;
use loadmaster_api::{
    CsiNode, LabelSelector, Labels, Node, NodeSelector, PersistentVolumeClaim, Quantity, Str,
};
use loadmaster_framework::watched_objects::ObjectLister;
use loadmaster_framework::{Failure, Reason, Rejection};
use loadmaster_stdx::Map;
use loadmaster_stdx::SortCompactly as _;
use smallvec::SmallVec;

use super::assume_cache::{AssumeCache, UnboundVolume};
use super::claims::{BoundVolume, DelayedClaim, PodClaims};

pub(super) const REASON_NODE_CONFLICT: &str =
    "node(s) didn't match PersistentVolume's node affinity";
pub(super) const REASON_BIND_CONFLICT: &str =
    "node(s) didn't find available persistent volumes to bind";
pub(super) const REASON_NOT_ENOUGH_SPACE: &str = "node(s) did not have enough free storage";
pub(super) const REASON_VOLUME_NOT_EXIST: &str =
    "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";

/// The provisioner of a class that does not provision.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// A pod's claims, ready to be compared with nodes.
#[derive(Debug)]
pub(super) struct CompiledClaims {
    bound: Vec<CompiledVolume>,
    delayed: Vec<CompiledClaim>,
    /// The claims without a selected node, the smallest first.
    by_size: Vec<usize>,
    /// The first of them whose selector is invalid fails Filter on every node.
    invalid_selector: Option<Failure>,
}

#[derive(Debug)]
enum CompiledVolume {
    Missing,
    Restricted(CompiledNodeSelector),
    InTree {
        plugin: &'static str,
        affinity: Option<CompiledNodeSelector>,
        translated: Result<Option<CompiledNodeSelector>, String>,
    },
}

#[derive(Debug)]
struct CompiledClaim {
    claim: DelayedClaim,
    selector: Option<Selector>,
    request: Quantity,
    topologies: Option<Vec<Selector>>,
}

/// What Filter finds for a pod on a node.
#[derive(Debug, Default)]
pub(super) struct NodeVolumes {
    conflicts: Conflicts,
    /// The volumes to bind, with the index of their claims.
    pub bindings: SmallVec<[(usize, Arc<UnboundVolume>); 1]>,
    /// The claims to provision a volume for, with the capacity that is left, in bytes, if it is tracked.
    pub provisions: SmallVec<[(usize, Option<i64>); 1]>,
}

/// Why the node is rejected, in the order of upstream's reasons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Conflicts {
    node: bool,
    bind: bool,
    space: bool,
    volume_not_exist: bool,
}

impl NodeVolumes {
    /// Whether the pod fits on the node.
    pub fn is_feasible(&self) -> bool {
        self.conflicts == Conflicts::default()
    }

    /// The rejection, if the pod does not fit.
    pub fn rejection(&self) -> Option<Rejection> {
        let Conflicts { node, bind, space, volume_not_exist } = self.conflicts;
        let all = [
            (node, REASON_NODE_CONFLICT),
            (bind, REASON_BIND_CONFLICT),
            (space, REASON_NOT_ENOUGH_SPACE),
            (volume_not_exist, REASON_VOLUME_NOT_EXIST),
        ];
        let reasons =
            all.into_iter().filter(|(is_so, _)| *is_so).map(|(_, text)| Reason::Text(text));
        (!self.is_feasible()).then(|| Rejection::Unresolvable(reasons.collect()))
    }
}

/// The first claim with an invalid selector is reported by name, which needs the objects.
pub(super) fn compile(claims: PodClaims, objects: &[&PersistentVolumeClaim]) -> CompiledClaims {
    let compile_affinity = |affinity: &NodeSelector| CompiledNodeSelector::new(affinity);
    let bound = claims.bound.iter().map(|volume| match volume {
        BoundVolume::Missing => CompiledVolume::Missing,
        BoundVolume::Restricted(affinity) => CompiledVolume::Restricted(compile_affinity(affinity)),
        BoundVolume::InTree { plugin, affinity, translated } => CompiledVolume::InTree {
            plugin,
            affinity: affinity.as_ref().map(compile_affinity),
            translated: match translated {
                Ok(affinity) => Ok(affinity.as_ref().map(compile_affinity)),
                Err(error) => Err(format!("could not translate pv: {error}")),
            },
        },
    });
    let bound = bound.collect();
    let mut delayed = Vec::with_capacity(claims.delayed.len());
    let mut invalid_selectors: Map<usize, Failure> = Map::default();
    for (at, claim) in claims.delayed.into_iter().enumerate() {
        let selector = claim.selector.as_deref().map(|selector| Selector::new(Some(selector)));
        let selector = selector.transpose().unwrap_or_else(|error| {
            let name = objects.get(at).map_or_else(String::new, |claim| {
                format!("{}/{}", claim.metadata.namespace, claim.metadata.name)
            });
            let text = format!("error creating internal label selector for claim: {name}: {error}");
            invalid_selectors.insert(at, Failure::new(text));
            None
        });
        let topologies = compile_topologies(&claim.allowed_topologies);
        let request = claim.request.unwrap_or_default();
        delayed.push(CompiledClaim { request, selector, topologies, claim });
    }
    let mut by_size: Vec<usize> =
        (0..delayed.len()).filter(|at| delayed[*at].claim.selected_node.is_none()).collect();
    by_size.sort_compactly_by(|a, b| delayed[*a].request.cmp(&delayed[*b].request));
    let invalid_selector = by_size.iter().find_map(|at| invalid_selectors.remove(at));
    CompiledClaims { bound, delayed, by_size, invalid_selector }
}

/// What a pod's volumes are compared with.
#[derive(Clone, Copy)]
pub(super) struct NodeCx<'a> {
    pub cache: &'a AssumeCache,
    pub node: &'a Node,
    pub csi_node: Option<&'a CsiNode>,
}

impl<'a> NodeCx<'a> {
    pub fn new(
        cache: &'a AssumeCache,
        node: &'a Node,
        csi_nodes: &ObjectLister<'a, CsiNode>,
    ) -> NodeCx<'a> {
        NodeCx { cache, node, csi_node: csi_nodes.get("", node.name()) }
    }

    fn storage(&self) -> StorageCx<'a> {
        StorageCx { cache: self.cache, labels: &self.node.metadata.labels }
    }
}

/// What claims that are bound now are compared with: of a node its labels only.
#[derive(Clone, Copy)]
pub(super) struct StorageCx<'a> {
    pub cache: &'a AssumeCache,
    pub labels: &'a Labels,
}

impl CompiledClaims {
    /// Whether claims are bound when the pod is scheduled.
    pub fn has_delayed(&self) -> bool {
        !self.delayed.is_empty()
    }

    /// Whether Filter fails on every node, with a text that names the claim.
    pub fn has_invalid_selector(&self) -> bool {
        self.invalid_selector.is_some()
    }

    /// A delayed claim.
    pub fn claim(&self, index: usize) -> &DelayedClaim {
        &self.delayed[index].claim
    }

    /// The node labels that [`CompiledClaims::find_delayed`] reads, in order.
    pub fn node_labels<'a>(&'a self, cache: &'a AssumeCache) -> SmallVec<[&'a Str; 4]> {
        let mut labels = SmallVec::new();
        for CompiledClaim { claim, topologies, .. } in &self.delayed {
            labels.extend(claim.reserved.iter().flat_map(|volume| volume.node_labels()));
            labels.extend(topologies.iter().flatten().flat_map(Selector::keys));
            labels.extend(cache.class(&claim.class).into_iter().flat_map(|it| it.node_labels()));
        }
        labels.sort_unstable();
        labels.dedup();
        labels
    }

    /// The versions of the storage of the delayed claims' classes.
    pub fn storage_versions<'a>(
        &'a self,
        cache: &'a AssumeCache,
    ) -> impl Iterator<Item = u64> + 'a {
        let classes = self.delayed.iter().map(|it| cache.class(&it.claim.class));
        classes.map(|storage| storage.map_or(0, |storage| storage.version))
    }

    /// Finds the volumes for a node.
    ///
    /// # Errors
    ///
    /// When a bound in-tree volume cannot be translated, or the selector of a claim is invalid.
    pub fn find(&self, cx: NodeCx<'_>) -> Result<NodeVolumes, Failure> {
        let conflicts = self.check_bound(cx)?;
        if self.is_other_node_selected(cx.node.name()) {
            let conflicts = Conflicts { bind: true, ..conflicts };
            return Ok(NodeVolumes { conflicts, ..NodeVolumes::default() });
        }
        if let Some(failure) = &self.invalid_selector {
            return Err(failure.clone());
        }
        let mut found = self.find_delayed(cx.storage());
        found.conflicts.node |= conflicts.node;
        found.conflicts.volume_not_exist |= conflicts.volume_not_exist;
        Ok(found)
    }

    /// Whether nothing but the claims that are bound now can reject the node. `false` if a bound in-tree volume cannot be translated.
    pub fn passes_but_for_delayed(&self, cx: NodeCx<'_>) -> bool {
        self.check_bound(cx).is_ok_and(|conflicts| conflicts == Conflicts::default())
            && !self.is_other_node_selected(cx.node.name())
    }

    /// Whether a claim's volume is to be provisioned for another node.
    fn is_other_node_selected(&self, node: &str) -> bool {
        let mut selected = self.delayed.iter().filter_map(|it| it.claim.selected_node.as_ref());
        selected.any(|name| name != node)
    }

    /// Finds the volumes of the claims that are bound now, for nodes with these labels, one of which was selected if any was.
    pub fn find_delayed(&self, cx: StorageCx<'_>) -> NodeVolumes {
        let mut found = NodeVolumes::default();
        let is_selected = |at: &usize| self.delayed[*at].claim.selected_node.is_some();
        let mut to_provision: SmallVec<[usize; 4]> =
            (0..self.delayed.len()).filter(is_selected).collect();
        for at in &self.by_size {
            match self.find_volume(cx, *at, &found) {
                Some(volume) => found.bindings.push((*at, volume)),
                None => to_provision.push(*at),
            }
        }
        self.check_provisions(cx, &to_provision, &mut found);
        found
    }

    /// Upstream's `checkBoundClaims`: the first volume that is not accessible says why.
    fn check_bound(&self, cx: NodeCx<'_>) -> Result<Conflicts, Failure> {
        for volume in &self.bound {
            let affinity = match volume {
                CompiledVolume::Missing => {
                    return Ok(Conflicts { volume_not_exist: true, ..Conflicts::default() });
                }
                CompiledVolume::Restricted(affinity) => Some(affinity),
                CompiledVolume::InTree { plugin, affinity, translated } => {
                    if cx.csi_node.is_some_and(|node| node.is_migrated(plugin)) {
                        let translated = translated.as_ref();
                        translated.map_err(|error| Failure::new(error.clone()))?.as_ref()
                    } else {
                        affinity.as_ref()
                    }
                }
            };
            let labels = &cx.node.metadata.labels;
            if affinity.is_some_and(|affinity| affinity.matches(labels, "") != Ok(true)) {
                return Ok(Conflicts { node: true, ..Conflicts::default() });
            }
        }
        Ok(Conflicts::default())
    }

    /// Upstream's `FindMatchingVolume`: a volume that is reserved for the claim, else the smallest that fits. Of equally large ones, the
    /// first by name.
    fn find_volume(
        &self,
        cx: StorageCx<'_>,
        at: usize,
        found: &NodeVolumes,
    ) -> Option<Arc<UnboundVolume>> {
        let compiled = &self.delayed[at];
        let is_chosen = |volume: &UnboundVolume| {
            found.bindings.iter().any(|(_, chosen)| chosen.name == volume.name)
        };
        let reserved = &compiled.claim.reserved;
        if let Some(volume) = reserved.iter().find(|it| !is_chosen(it) && compiled.accepts(it)) {
            return volume.allows(cx.labels).then(|| volume.clone());
        }
        let volumes = &cx.cache.class(&compiled.claim.class)?.volumes;
        let from = (compiled.request, Str::default());
        let fits = |volume: &UnboundVolume| {
            !is_chosen(volume) && compiled.accepts_free(volume) && volume.allows(cx.labels)
        };
        let smallest = volumes
            .buckets(cx.labels)
            .filter_map(|bucket| bucket.range(from.clone()..).find(|(_, volume)| fits(volume)));
        smallest.min_by(|(one, _), (other, _)| one.cmp(other)).map(|(_, volume)| volume.clone())
    }

    /// Upstream's `checkVolumeProvisions`: the first claim that no volume can be provisioned for says why.
    fn check_provisions(&self, cx: StorageCx<'_>, claims: &[usize], found: &mut NodeVolumes) {
        for at in claims {
            let claim = &self.delayed[*at].claim;
            let provisions = !claim.provisioner.is_empty() && claim.provisioner != NO_PROVISIONER;
            let topologies = self.delayed[*at].topologies.as_ref();
            let is_allowed =
                topologies.is_none_or(|all| all.iter().any(|it| it.matches(cx.labels)));
            if !provisions || !is_allowed {
                found.conflicts.bind = true;
                found.provisions.clear();
                return;
            }
            let Ok(capacity) = free_capacity(claim, cx) else {
                found.conflicts.space = true;
                found.provisions.clear();
                return;
            };
            found.provisions.push((*at, capacity));
        }
    }
}

impl CompiledClaim {
    /// What holds for every volume that can be bound to the claim.
    fn accepts(&self, volume: &UnboundVolume) -> bool {
        volume.capacity >= self.request
            && volume.volume_mode == self.claim.volume_mode
            && volume.attributes_class == self.claim.attributes_class
    }

    /// The same for one that is not reserved for it.
    fn accepts_free(&self, volume: &UnboundVolume) -> bool {
        let has_mode = |mode: &Str| volume.access_modes.contains(mode);
        self.accepts(volume)
            && self.selector.as_ref().is_none_or(|selector| selector.matches(&volume.labels))
            && self.claim.access_modes.iter().all(has_mode)
    }
}

/// The allowed topologies as selectors, of which a node must match one (upstream's `MatchTopologySelectorTerms`); `None` without terms,
/// which allow every node. A term that cannot be read, or has no requirement, allows none.
fn compile_topologies(terms: &[TopologySelectorTerm]) -> Option<Vec<Selector>> {
    let compile = |term: &TopologySelectorTerm| {
        let requirements = term.match_label_expressions.iter().map(|it| Requirement {
            key: it.key.clone(),
            operator: Str::new("In"),
            values: it.values.clone(),
        });
        let match_expressions: Vec<Requirement> = requirements.collect();
        let is_empty = match_expressions.is_empty();
        let selector = LabelSelector { match_expressions, ..LabelSelector::default() };
        Selector::new(Some(&selector)).ok().filter(|_| !is_empty)
    };
    (!terms.is_empty()).then(|| terms.iter().filter_map(compile).collect())
}

/// Upstream's `hasEnoughCapacity`: the capacity that is left, if it is tracked. `Err` if it is not enough.
fn free_capacity(claim: &DelayedClaim, cx: StorageCx<'_>) -> Result<Option<i64>, ()> {
    let Some(size) = claim.request.filter(|_| claim.tracks_capacity) else { return Ok(None) };
    let size = size.value();
    let storage = cx.cache.class(&claim.class).ok_or(())?;
    let fits = storage.capacities.buckets(cx.labels).filter_map(|bucket| {
        bucket.iter().find(|(_, it)| it.limit >= size && it.is_accessible(cx.labels))
    });
    let first = fits.min_by(|(one, _), (other, _)| one.cmp(other));
    first.map(|(_, capacity)| Some(capacity.capacity)).ok_or(())
}
