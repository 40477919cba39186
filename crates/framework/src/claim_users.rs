//! Which nodes use which PersistentVolumeClaims, by the pods assigned to them (part of upstream's `StorageInfos`).

use loadmaster_api::disk_source::DiskSource;
use loadmaster_api::{Str, Volume};
use loadmaster_stdx::Map;
use smallvec::SmallVec;

use crate::node_row::NodeRow;
use crate::pod_info::{ClaimName, PodInfo};

/// One use of a claim by a volume of an assigned pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimUser {
    /// The pod's node.
    pub row: NodeRow,
    /// Whether the claim was made for the pod, and is named after it.
    pub is_ephemeral: bool,
}

/// The claims that assigned pods use, by namespace and name, each with the nodes of these pods.
#[derive(Default)]
pub(crate) struct ClaimUsers {
    by_namespace: Map<Str, Map<Str, SmallVec<[ClaimUser; 1]>>>,
    n_outside_claims: usize,
}

/// What a change of the users of claims may change in the keys of pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClaimUsersChange {
    /// A claim began or ended to be used.
    pub of_namespace: bool,
    /// Whether there are volumes outside claims began or ended to be true.
    pub of_all: bool,
}

impl ClaimUsers {
    /// The users of a claim.
    pub fn get(&self, namespace: &str, claim: &str) -> &[ClaimUser] {
        let claims = self.by_namespace.get(namespace);
        claims.and_then(|claims| claims.get(claim)).map_or(&[], SmallVec::as_slice)
    }

    /// Number of volumes that [`is_outside_claims`], of all assigned pods.
    pub fn n_outside_claims(&self) -> usize {
        self.n_outside_claims
    }

    /// Counts the volumes of a pod that was added to a node or removed from it.
    pub fn count(&mut self, row: NodeRow, pod: &PodInfo, is_added: bool) -> ClaimUsersChange {
        match pod.template.spec.volumes.is_empty() {
            true => ClaimUsersChange::default(),
            false => self.count_volumes(row, pod, is_added),
        }
    }

    #[inline(never)]
    fn count_volumes(&mut self, row: NodeRow, pod: &PodInfo, is_added: bool) -> ClaimUsersChange {
        let mut change = ClaimUsersChange::default();
        for volume in &pod.template.spec.volumes {
            if is_outside_claims(volume) {
                self.n_outside_claims =
                    if is_added { self.n_outside_claims + 1 } else { self.n_outside_claims - 1 };
                // It was 0 before, or is 0 now.
                change.of_all |= self.n_outside_claims == usize::from(is_added);
            }
            let Some(ClaimName { name, is_ephemeral }) = pod.claim_name(volume) else { continue };
            let user = ClaimUser { row, is_ephemeral };
            change.of_namespace |= match is_added {
                true => self.add(&pod.template.namespace, name, user),
                false => self.remove(&pod.template.namespace, &name, user),
            };
        }
        change
    }

    fn add(&mut self, namespace: &Str, name: Str, user: ClaimUser) -> bool {
        let claims = self.by_namespace.entry(namespace.clone()).or_default();
        let users = claims.entry(name).or_default();
        users.push(user);
        users.len() == 1
    }

    fn remove(&mut self, namespace: &Str, name: &Str, user: ClaimUser) -> bool {
        let Some(claims) = self.by_namespace.get_mut(namespace) else { return false };
        let Some(users) = claims.get_mut(name) else { return false };
        if let Some(at) = users.iter().position(|known| *known == user) {
            users.swap_remove(at);
        }
        let is_unused = users.is_empty();
        if is_unused {
            claims.remove(name);
        }
        if claims.is_empty() {
            self.by_namespace.remove(namespace);
        }
        is_unused
    }
}

/// Whether the volume can be attached to a node, but not by a claim that the pod names: a disk that the pod names itself, or an
/// ephemeral volume, whose claim may turn out to be another pod's. So can a claim without a name.
fn is_outside_claims(volume: &Volume) -> bool {
    let claim = volume.persistent_volume_claim.as_ref();
    let is_claim = claim.is_some_and(|claim| !claim.claim_name.is_empty());
    let is_disk = volume.disk.as_deref().is_some_and(|disk| !matches!(disk, DiskSource::Csi(_)));
    !is_claim && (is_disk || volume.ephemeral.is_some() || claim.is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::World;

    fn pod(name: &str, volumes: Value) -> PodInfo {
        let pod = json!({"metadata": {"name": name, "namespace": "a", "uid": name}, "spec": {"volumes": volumes}});
        World::default().parse_pod(&serde_json::from_value(pod).unwrap()).unwrap()
    }

    #[test]
    fn users_of_claims_are_counted() {
        let mut users = ClaimUsers::default();
        let change = |of_namespace, of_all| ClaimUsersChange { of_namespace, of_all };
        let claim = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
        let (one, two) = (pod("one", claim.clone()), pod("two", claim));
        assert_eq!(users.count(NodeRow(1), &one, true), change(true, false));
        assert_eq!(users.count(NodeRow(2), &two, true), change(false, false));
        let user = |row| ClaimUser { row: NodeRow(row), is_ephemeral: false };
        assert_eq!(users.get("a", "data"), [user(1), user(2)]);
        assert_eq!(users.get("b", "data"), []);
        assert_eq!(users.count(NodeRow(1), &one, false), change(false, false));
        assert_eq!(users.get("a", "data"), [user(2)]);
        assert_eq!(users.count(NodeRow(2), &two, false), change(true, false));
        assert_eq!(users.get("a", "data"), []);
    }

    #[test]
    fn volumes_outside_claims_are_counted() {
        let mut users = ClaimUsers::default();
        let change = |of_namespace, of_all| ClaimUsersChange { of_namespace, of_all };
        let own = pod("web", json!([{"name": "own", "ephemeral": {"volumeClaimTemplate": {}}}]));
        let disk = pod("db", json!([{"name": "d", "cinder": {"volumeID": "c"}}]));
        let csi = pod("csi", json!([{"name": "d", "csi": {"driver": "x"}}]));
        assert_eq!(users.count(NodeRow(0), &csi, true), change(false, false));
        assert_eq!(users.count(NodeRow(0), &own, true), change(true, true));
        assert_eq!(users.get("a", "web-own"), [ClaimUser { row: NodeRow(0), is_ephemeral: true }]);
        assert_eq!(users.count(NodeRow(0), &disk, true), change(false, false));
        assert_eq!(users.n_outside_claims(), 2);
        assert_eq!(users.count(NodeRow(0), &own, false), change(true, false));
        assert_eq!(users.count(NodeRow(0), &disk, false), change(false, true));
    }
}
