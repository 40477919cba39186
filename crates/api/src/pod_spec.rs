//! The spec of a pod. Pods of one controller are equal in all of it that is read, except for the name of their node, and share that part.

mod without_resources;

use std::cell::RefCell;
use std::fmt;
use std::hash::{BuildHasher as _, Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use hashbrown::HashTable;
use loadmaster_stdx::hash::{HashSeed, SeededHashBuilder};
use serde::{Deserialize, Deserializer};

use crate::ResourceList;
use crate::go_json::{nullable, objects, optional_object};
use crate::interned_str::Str;
use crate::meta::Labels;
use crate::pod::{
    Affinity, Container, ContainerResources, NamedItem, Toleration, TopologySpreadConstraint,
    Volume,
};

pub use self::without_resources::SpecWithoutResources;

/// The spec of a pod: the name of its node, and what it shares with equal pods, whose fields it has by [`Deref`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSpec {
    /// Empty until the pod is assigned to a node.
    pub node_name: Str,
    /// All other fields.
    pub shared: InternedPodSpec,
}

/// The part of a spec that equal pods share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SharedPodSpec {
    /// Only until the spec is decoded: then it is [`PodSpec::node_name`].
    #[serde(deserialize_with = "nullable")]
    pub(crate) node_name: Str,
    #[serde(deserialize_with = "nullable")]
    pub scheduler_name: Str,
    pub priority: Option<i32>,
    #[serde(deserialize_with = "nullable")]
    pub priority_class_name: Str,
    /// `PreemptLowerPriority` when absent.
    pub preemption_policy: Option<Str>,
    #[serde(deserialize_with = "nullable")]
    pub node_selector: Labels,
    #[serde(deserialize_with = "optional_object")]
    pub affinity: Option<Box<Affinity>>,
    #[serde(deserialize_with = "objects")]
    pub tolerations: Vec<Toleration>,
    #[serde(deserialize_with = "objects")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    #[serde(deserialize_with = "objects")]
    pub init_containers: Vec<Container>,
    #[serde(deserialize_with = "objects")]
    pub containers: Vec<Container>,
    #[serde(deserialize_with = "nullable")]
    pub overhead: ResourceList,
    /// Requests of the pod as a whole.
    #[serde(deserialize_with = "optional_object")]
    pub resources: Option<ContainerResources>,
    #[serde(deserialize_with = "objects")]
    pub scheduling_gates: Vec<NamedItem>,
    /// Only those that decide where a pod can go: claims, images and disks. The API server gives each pod a volume of random name for its
    /// service account token.
    #[serde(deserialize_with = "objects")]
    pub volumes: Vec<Volume>,
    #[serde(deserialize_with = "objects")]
    pub resource_claims: Vec<NamedItem>,
    #[serde(deserialize_with = "nullable")]
    pub host_network: bool,
    /// `false` gives the pod a user namespace of its own.
    pub host_users: Option<bool>,
}

/// A [`SharedPodSpec`] with its hash. Equal ones made on one thread share one allocation, so that comparing them is mostly comparing two
/// pointers.
#[derive(Clone)]
pub struct InternedPodSpec(Arc<HashedPodSpec>);

struct HashedPodSpec {
    hash: u64,
    spec: SharedPodSpec,
}

/// How many specs a thread remembers before it starts over; forgetting only costs sharing.
const POOL_LEN_MAX: usize = 1 << 13;

thread_local! {
    static POOL: RefCell<HashTable<InternedPodSpec>> = const { RefCell::new(HashTable::new()) };
}

/// Of the hashes of specs, which must be equal on all threads.
static HASHER: LazyLock<SeededHashBuilder> = LazyLock::new(|| HashSeed::random().into());

impl InternedPodSpec {
    /// The shared spec that equals this one, without volumes that no plugin reads.
    pub fn new(mut spec: SharedPodSpec) -> InternedPodSpec {
        spec.volumes.retain(Volume::is_read);
        let hash = HASHER.hash_one(&spec);
        POOL.with_borrow_mut(|pool| {
            if let Some(known) = pool.find(hash, |known| known.0.spec == spec) {
                return known.clone();
            }
            if pool.len() >= POOL_LEN_MAX {
                pool.clear();
            }
            let fresh = InternedPodSpec(Arc::new(HashedPodSpec { hash, spec }));
            pool.insert_unique(hash, fresh.clone(), |known| known.0.hash);
            fresh
        })
    }
}

impl Deref for InternedPodSpec {
    type Target = SharedPodSpec;

    fn deref(&self) -> &SharedPodSpec {
        &self.0.spec
    }
}

impl Default for InternedPodSpec {
    fn default() -> Self {
        static EMPTY: LazyLock<InternedPodSpec> =
            LazyLock::new(|| InternedPodSpec::new(SharedPodSpec::default()));
        EMPTY.clone()
    }
}

impl PartialEq for InternedPodSpec {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.hash == other.0.hash && self.0.spec == other.0.spec
    }
}

impl Eq for InternedPodSpec {}

impl Hash for InternedPodSpec {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

impl fmt::Debug for InternedPodSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.spec.fmt(f)
    }
}

impl PodSpec {
    /// Changes the shared part, for this pod alone.
    pub fn change(&mut self, change: impl FnOnce(&mut SharedPodSpec)) {
        let mut spec = SharedPodSpec::clone(&self.shared);
        change(&mut spec);
        self.shared = InternedPodSpec::new(spec);
    }
}

impl Deref for PodSpec {
    type Target = SharedPodSpec;

    fn deref(&self) -> &SharedPodSpec {
        &self.shared
    }
}

/// The spec of a pod without a node, if it was not decoded with one.
impl From<SharedPodSpec> for PodSpec {
    fn from(mut spec: SharedPodSpec) -> Self {
        PodSpec {
            node_name: std::mem::take(&mut spec.node_name),
            shared: InternedPodSpec::new(spec),
        }
    }
}

impl<'de> Deserialize<'de> for PodSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PodSpec, D::Error> {
        SharedPodSpec::deserialize(deserializer).map(PodSpec::from)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(json: &Value) -> PodSpec {
        serde_json::from_str(&json.to_string()).unwrap()
    }

    #[test]
    fn equal_specs_share_all_but_their_nodes() {
        let of = |node: &str, token: &str| {
            spec(
                &json!({"nodeName": node, "priority": 3, "volumes": [{"name": token, "projected": {}}, {"name": "v", "ephemeral": {}}]}),
            )
        };
        let (mut first, second) = (of("", "kube-api-access-1"), of("a", "kube-api-access-2"));
        assert_eq!((&*first.node_name, &*second.node_name), ("", "a"));
        assert_eq!(first.volumes.len(), 1);
        assert!(std::ptr::eq(&*first.shared, &*second.shared));
        let before = first.clone();
        first.change(|spec| spec.priority = Some(4));
        assert_eq!((first.priority, second.priority), (Some(4), Some(3)));
        assert_ne!(first, before);
        first.change(|spec| spec.priority = Some(3));
        assert!(std::ptr::eq(&*first.shared, &*second.shared));
        assert_eq!(spec(&json!({})), PodSpec::default());
    }

    #[test]
    fn specs_of_different_threads_are_equal_and_have_equal_hashes() {
        let of = || spec(&json!({"priority": 5})).shared;
        let there = std::thread::scope(|scope| scope.spawn(of).join().unwrap());
        let here = of();
        assert!(!std::ptr::eq(&*here, &*there));
        assert_eq!(here, there);
        let hasher = SeededHashBuilder::default();
        assert_eq!(hasher.hash_one(&here), hasher.hash_one(&there));
    }

    #[test]
    fn more_specs_than_are_remembered() {
        for priority in 0..=POOL_LEN_MAX as i32 {
            let spec = SharedPodSpec { priority: Some(priority), ..Default::default() };
            assert_eq!(InternedPodSpec::new(spec).priority, Some(priority));
        }
        POOL.with_borrow(|pool| assert!(pool.len() < POOL_LEN_MAX));
    }
}
