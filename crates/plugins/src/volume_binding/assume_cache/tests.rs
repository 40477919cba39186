use serde_json::{Value, json};

use super::*;

fn volume(name: &str, version: &str, spec: Value) -> PersistentVolume {
    serde_json::from_value(json!({"metadata": {"name": name, "resourceVersion": version},
        "spec": spec, "status": {"phase": "Available"}}))
    .unwrap()
}

fn claim(version: &str) -> PersistentVolumeClaim {
    let meta = json!({"namespace": "ns", "name": "data", "resourceVersion": version});
    serde_json::from_value(json!({"metadata": meta})).unwrap()
}

fn affinity(terms: &[Value]) -> Value {
    let terms: Vec<Value> =
        terms.iter().map(|requirements| json!({"matchExpressions": requirements})).collect();
    json!({"storageClassName": "c", "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}})
}

fn is_in(key: &str, values: &[&str]) -> Value {
    json!({"key": key, "operator": "In", "values": values})
}

/// The nodes that a new free volume concerns.
#[track_caller]
fn check_concerned(spec: Value, want: Option<Concerned>) {
    let mut cache = AssumeCache::default();
    assert_eq!(cache.change_volume(None, Some(&volume("a", "1", spec))), [None, want]);
}

#[test]
fn changes_are_announced_for_the_nodes_that_they_concern() {
    let nodes = |label: &str, values: &[&str]| {
        let values = values.iter().map(|value| Str::new(value)).collect();
        Some(Concerned::Nodes("c".into(), (label.into(), values)))
    };
    let all = || Some(Concerned::All("c".into()));
    check_concerned(json!({"storageClassName": "c"}), all());
    let hostname = "kubernetes.io/hostname";
    check_concerned(affinity(&[json!([is_in("zone", &["b", "a"])])]), nodes("zone", &["a", "b"]));
    let both = json!([is_in("zone", &["a"]), is_in(hostname, &["n"])]);
    check_concerned(affinity(&[both]), nodes(hostname, &["n"]));
    let exists = json!([{"key": "zone", "operator": "Exists"}]);
    check_concerned(affinity(&[exists]), all());
    let one = || json!([is_in("zone", &["a"])]);
    check_concerned(affinity(&[one(), one()]), all());
    check_concerned(json!({"storageClassName": "c", "claimRef": {"name": "x"}}), None);
}

/// The names of the free volumes of class `c` that a node with the label `zone=a` may have access to.
fn free(cache: &AssumeCache) -> Vec<String> {
    let labels: Labels = [(Str::new("zone"), Str::new("a"))].into_iter().collect();
    let Some(storage) = cache.class("c") else { return Vec::new() };
    let all = storage.volumes.buckets(&labels).flat_map(|bucket| bucket.values());
    all.map(|volume| volume.name.to_string()).collect()
}

#[test]
fn an_assumed_volume_is_reserved_until_it_changes() {
    let mut cache = AssumeCache::default();
    let known = volume("a", "1", affinity(&[json!([is_in("zone", &["a"])])]));
    cache.change_volume(None, Some(&known));
    assert_eq!(free(&cache), ["a"]);
    let reference = ClaimReference { namespace: "ns".into(), name: "data".into(), uid: "u".into() };
    let id: ClaimId = ("ns".into(), "data".into());
    assert!(cache.assume_volume(&known, reference.clone()).is_some());
    assert!(free(&cache).is_empty());
    assert_eq!(cache.reserved_for(&id), ["a"]);
    assert_eq!(cache.claim_of(&known), Some(&reference));
    // Reported again in the same version, and taken back.
    assert_eq!(cache.change_volume(Some(&known), Some(&known)), [None, None]);
    assert_eq!(cache.reserved_for(&id), ["a"]);
    assert!(cache.restore_volume(&known).is_some());
    assert!(cache.restore_volume(&known).is_none(), "nothing is assumed");
    assert_eq!((free(&cache).len(), cache.reserved_for(&id).len()), (1, 0));
    // A newer version wins, and what was assumed of the older one is forgotten.
    cache.assume_volume(&known, reference);
    let newer = volume("a", "2", affinity(&[json!([is_in("zone", &["b"])])]));
    cache.change_volume(Some(&known), Some(&newer));
    assert!(free(&cache).is_empty() && cache.reserved_for(&id).is_empty());
    assert!(cache.restore_volume(&known).is_none());
    cache.change_volume(Some(&newer), None);
    assert!(cache.volumes.is_empty() && cache.reserved.is_empty());
    assert!(cache.class("c").is_some_and(|storage| storage.node_labels().next().is_none()));
}

#[test]
fn a_selected_node_is_assumed_for_one_version_of_the_claim() {
    let mut cache = AssumeCache::default();
    let id: ClaimId = ("ns".into(), "data".into());
    cache.assume_claim(&claim("1"), "a".into());
    assert_eq!(cache.selected_node(&claim("1")), Some(&"a".into()));
    assert_eq!(cache.selected_node(&claim("2")), None);
    assert!(!cache.restore_claim(&id, "2"));
    assert!(cache.restore_claim(&id, "1"));
    cache.assume_claim(&claim("1"), "a".into());
    cache.change_claim(Some(&claim("1")), Some(&claim("1")));
    assert!(cache.selected_node(&claim("1")).is_some());
    cache.change_claim(Some(&claim("1")), Some(&claim("2")));
    assert!(cache.selected_node(&claim("1")).is_none());
    cache.assume_claim(&claim("2"), "a".into());
    cache.change_claim(Some(&claim("2")), None);
    assert!(cache.claims.is_empty());
}
