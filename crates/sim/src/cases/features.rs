//! The features that a case uses.

use loadmaster_stdx::Rng;

/// A feature of a cluster, a pod or a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CaseFeature {
    /// `spec.unschedulable` of nodes.
    Unschedulable,
    Taints,
    /// `spec.nodeName` of the pod.
    NodeName,
    NodeSelector,
    NodeAffinity,
    /// `matchFields` in node affinity.
    MatchFields,
    PreferredNodes,
    Ports,
    Resources,
    /// Extended resources, huge pages, local storage.
    Scalars,
    /// Init containers, sidecars, overhead, requests of the pod as a whole.
    PodShapes,
    /// Statuses of an in-place resize.
    Resize,
    Images,
    Spread,
    SoftSpread,
    /// Services and controllers, for default spread constraints.
    Owners,
    Affinity,
    AntiAffinity,
    PreferredPods,
    /// Several namespaces, and selectors for them.
    Namespaces,
    Gates,
    Nominated,
    Terminating,
    ResourceClaims,
    /// Volumes, and all objects that they need.
    Volumes,
    /// `status.declaredFeatures` of nodes, and pods that need such features.
    DeclaredFeatures,
    /// A configuration other than the default one.
    Config,
}

use CaseFeature as F;

const ALL: [CaseFeature; 27] = [
    F::Unschedulable,
    F::Taints,
    F::NodeName,
    F::NodeSelector,
    F::NodeAffinity,
    F::MatchFields,
    F::PreferredNodes,
    F::Ports,
    F::Resources,
    F::Scalars,
    F::PodShapes,
    F::Resize,
    F::Images,
    F::Spread,
    F::SoftSpread,
    F::Owners,
    F::Affinity,
    F::AntiAffinity,
    F::PreferredPods,
    F::Namespaces,
    F::Gates,
    F::Nominated,
    F::Terminating,
    F::ResourceClaims,
    F::Volumes,
    F::DeclaredFeatures,
    F::Config,
];

/// Features that matter mostly in combination with another one.
const SECONDARY: [CaseFeature; 6] =
    [F::Config, F::Namespaces, F::Terminating, F::Nominated, F::Taints, F::NodeSelector];

/// A set of features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaseFeatureSet(u32);

impl CaseFeatureSet {
    /// Mostly one to three features, sometimes about half of all.
    pub fn random(rng: &mut Rng) -> CaseFeatureSet {
        let mut focus = CaseFeatureSet::default();
        if rng.one_in(6) {
            ALL.iter().filter(|_| rng.one_in(2)).for_each(|feature| focus.add(*feature));
        } else {
            for _ in 0..rng.range(1, 3) {
                focus.add(*rng.pick(&ALL));
            }
            if rng.one_in(3) {
                focus.add(*rng.pick(&SECONDARY));
            }
        }
        // Loadmaster does not support ResourceClaims yet, so a few such cases are enough.
        if !rng.one_in(5) {
            focus.0 &= !bit(F::ResourceClaims);
        }
        focus
    }

    /// Adds a feature.
    pub fn add(&mut self, feature: CaseFeature) {
        self.0 |= bit(feature);
    }

    /// Whether the case uses this feature.
    pub fn has(self, feature: CaseFeature) -> bool {
        self.0 & bit(feature) != 0
    }
}

fn bit(feature: CaseFeature) -> u32 {
    1 << feature as u32
}
