//! PreFilter, Filter and Score; each call also compares the incremental form.

use expect_test::{Expect, expect};

use super::*;

/// The result of PreFilter, then those of the nodes: `ok` or the reasons.
#[track_caller]
fn check(bench: &mut PluginTestBench, pod: impl Into<Value>, want: &Expect) {
    let pod = pod.into();
    let pre_filter = bench.pre_filter(pod.clone()).unwrap();
    let lines = bench.filter(pod).unwrap();
    if pre_filter != "All" {
        return want.assert_eq(&pre_filter);
    }
    let lines = lines
        .iter()
        .map(|line| line.replace("UnschedulableAndUnresolvable ", "").replace("Success", "ok"));
    want.assert_eq(&lines.collect::<Vec<_>>().join("\n"));
}

#[test]
fn pods_without_claims_are_skipped() {
    check(&mut bench(), pod_with(&[]), &expect!["Skip"]);
}

#[test]
fn claims_that_reject_the_pod() {
    let mut bench = bench();
    check(
        &mut bench,
        pod_with(&["data"]),
        &expect![[r#"UnschedulableAndUnresolvable persistentvolumeclaim "data" not found"#]],
    );
    let lost = json!({"status": {"phase": "Lost"}, "spec": {"volumeName": "pv"}});
    claim(&mut bench, "lost", "wait", lost);
    check(
        &mut bench,
        pod_with(&["lost"]),
        &expect![[
            r#"UnschedulableAndUnresolvable persistentvolumeclaim "lost" bound to non-existent persistentvolume "pv""#
        ]],
    );
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    claim(&mut bench, "deleted", "wait", deleted);
    check(
        &mut bench,
        pod_with(&["deleted"]),
        &expect![[
            r#"UnschedulableAndUnresolvable persistentvolumeclaim "deleted" is being deleted"#
        ]],
    );
    for (name, class) in [("now", "immediate"), ("none", ""), ("unknown", "unknown")] {
        claim(&mut bench, name, class, json!({}));
        check(
            &mut bench,
            pod_with(&[name]),
            &expect![
                "UnschedulableAndUnresolvable pod has unbound immediate PersistentVolumeClaims"
            ],
        );
    }
    claim(&mut bench, "prebound", "wait", json!({"spec": {"volumeName": "pv"}}));
    check(
        &mut bench,
        pod_with(&["prebound"]),
        &expect!["UnschedulableAndUnresolvable pod has unbound immediate PersistentVolumeClaims"],
    );
    let no_mode = json!({"metadata": {"name": "no-mode"}, "provisioner": "p"});
    bench.object(&StorageKind::StorageClass.gvr(), no_mode).unwrap();
    claim(&mut bench, "no-mode", "no-mode", json!({}));
    check(
        &mut bench,
        pod_with(&["no-mode"]),
        &expect![[r#"Error VolumeBindingMode not set for StorageClass "no-mode""#]],
    );
}

#[test]
fn ephemeral_volumes() {
    let mut bench = bench();
    let pod = |uid: &str| {
        let volumes = json!([{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}]);
        pod("web-0").set_field("/metadata/uid", uid).set_field("/spec/volumes", volumes)
    };
    check(
        &mut bench,
        pod("u"),
        &expect![[
            r#"UnschedulableAndUnresolvable waiting for ephemeral volume controller to create the persistentvolumeclaim "web-0-scratch""#
        ]],
    );
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "web-0", "uid": "u", "controller": true}]);
    claim(&mut bench, "web-0-scratch", "wait", json!({"metadata": {"ownerReferences": owner}}));
    check(
        &mut bench,
        pod("u"),
        &expect![[r#"
        a1 ok
        a2 ok
        b1 ok"#]],
    );
    check(
        &mut bench,
        pod("other"),
        &expect![
            "UnschedulableAndUnresolvable PVC default/web-0-scratch was not created for pod default/web-0 (pod is not owner)"
        ],
    );
}

#[test]
fn bound_volumes() {
    let mut bench = bench();
    bound_claim(&mut bench, "data", "pv");
    check(
        &mut bench,
        pod_with(&["data"]),
        &expect![[r#"
        a1 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)
        a2 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)
        b1 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"#]],
    );
    volume(&mut bench, "pv", "wait", json!({}));
    check(
        &mut bench,
        pod_with(&["data"]),
        &expect![[r#"
        a1 ok
        a2 ok
        b1 ok"#]],
    );
    volume(&mut bench, "pv", "wait", on(ZONE, &["a"]));
    check(
        &mut bench,
        pod_with(&["data"]),
        &expect![[r#"
        a1 ok
        a2 ok
        b1 node(s) didn't match PersistentVolume's node affinity"#]],
    );
    // Terms are alternatives, and one that cannot be read is ignored.
    let terms = json!([{"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": ["a2"]}]},
        {"matchExpressions": [{"key": ZONE, "operator": "Near", "values": ["a"]}]},
        {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["b"]}]}]);
    let affinity = json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}});
    volume(&mut bench, "pv", "wait", affinity);
    check(
        &mut bench,
        pod_with(&["data"]),
        &expect![[r#"
        a1 node(s) didn't match PersistentVolume's node affinity
        a2 ok
        b1 ok"#]],
    );
    // The first volume that is not accessible says why.
    bound_claim(&mut bench, "other", "missing");
    check(
        &mut bench,
        pod_with(&["data", "other"]),
        &expect![[r#"
        a1 node(s) didn't match PersistentVolume's node affinity
        a2 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)
        b1 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"#]],
    );
}

#[test]
fn in_tree_volumes_are_translated_on_migrated_nodes() {
    let mut bench = bench();
    bound_claim(&mut bench, "data", "pv");
    let mut disk = json!({"spec": {"awsElasticBlockStore": {"volumeID": "vol-1"}}});
    merge(&mut disk, &on(ZONE, &["a"]));
    volume(&mut bench, "pv", "wait", disk.clone());
    let csi_node = json!({"metadata": {"name": "a2", "annotations": {
        "storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs"}}});
    bench.object(&StorageKind::CsiNode.gvr(), csi_node).unwrap();
    check(
        &mut bench,
        pod_with(&["data"]),
        &expect![[r#"
        a1 ok
        a2 node(s) didn't match PersistentVolume's node affinity
        b1 node(s) didn't match PersistentVolume's node affinity"#]],
    );
    disk["spec"]["awsElasticBlockStore"]["volumeID"] = "aws:///x".into();
    volume(&mut bench, "pv", "wait", disk);
    check(
        &mut bench,
        pod_with(&["data"]),
        &expect![[r#"
        a1 ok
        a2 Error could not translate pv: failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws:///x)
        b1 node(s) didn't match PersistentVolume's node affinity"#]],
    );
}

fn no_volume() -> Expect {
    expect![[r#"
        a1 node(s) didn't find available persistent volumes to bind
        a2 node(s) didn't find available persistent volumes to bind
        b1 node(s) didn't find available persistent volumes to bind"#]]
}

/// Whether a volume that differs in this from one that fits the claim is found.
#[track_caller]
fn check_match(claim_more: Value, volume_more: Value, want: bool) {
    let mut bench = bench();
    claim(&mut bench, "data", "static", claim_more);
    volume(&mut bench, "pv", "static", volume_more);
    let ok = expect![[r#"
        a1 ok
        a2 ok
        b1 ok"#]];
    check(&mut bench, pod_with(&["data"]), &if want { ok } else { no_volume() });
}

#[test]
fn what_a_volume_must_have() {
    check_match(json!({}), json!({}), true);
    for (size, fits) in [("1025Mi", true), ("1023Mi", false)] {
        check_match(json!({}), json!({"spec": {"capacity": {"storage": size}}}), fits);
    }
    check_match(json!({}), json!({"spec": {"storageClassName": "wait"}}), false);
    let annotated = json!({"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "static"}}, "spec": {"storageClassName": "x"}});
    check_match(json!({}), annotated, true);
    check_match(json!({}), json!({"spec": {"volumeMode": "Block"}}), false);
    check_match(json!({}), json!({"spec": {"volumeMode": null}}), true);
    let block = json!({"spec": {"volumeMode": "Block"}});
    check_match(block.clone(), block, true);
    let two_modes = json!({"spec": {"accessModes": ["ReadOnlyMany", "ReadWriteOnce"]}});
    check_match(json!({}), two_modes.clone(), true);
    check_match(two_modes, json!({}), false);
    let gold = json!({"spec": {"volumeAttributesClassName": "gold"}});
    check_match(json!({}), gold.clone(), false);
    check_match(gold.clone(), json!({}), false);
    check_match(gold.clone(), gold, true);
    let selector = json!({"spec": {"selector": {"matchLabels": {"disk": "fast"}}}});
    check_match(selector.clone(), json!({}), false);
    check_match(selector, json!({"metadata": {"labels": {"disk": "fast"}}}), true);
    for (phase, fits) in [("Available", true), ("Pending", false), ("Released", false)] {
        check_match(json!({}), json!({"status": {"phase": phase}}), fits);
    }
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    check_match(json!({}), deleted, false);
    let reserved = |name: &str, uid: &str| json!({"spec": {"claimRef": {"namespace": "default", "name": name, "uid": uid}}});
    check_match(json!({}), reserved("data", ""), true);
    check_match(json!({}), reserved("data", "uid-data"), true);
    check_match(json!({}), reserved("data", "older"), false);
    check_match(json!({}), reserved("other", ""), false);
}

#[test]
fn volumes_of_nodes_and_zones() {
    let mut bench = bench();
    claim(&mut bench, "data", "static", json!({}));
    volume(&mut bench, "pv-a1", "static", on(HOSTNAME, &["a1"]));
    check(
        &mut bench,
        pod_with(&["data"]),
        &expect![[r#"
        a1 ok
        a2 node(s) didn't find available persistent volumes to bind
        b1 node(s) didn't find available persistent volumes to bind"#]],
    );
    volume(&mut bench, "pv-b", "static", on(ZONE, &["b", "c"]));
    check(
        &mut bench,
        pod_with(&["data"]),
        &expect![[r#"
        a1 ok
        a2 node(s) didn't find available persistent volumes to bind
        b1 ok"#]],
    );
    // Two claims need two volumes.
    claim(&mut bench, "logs", "static", json!({}));
    let two = || pod_with(&["data", "logs"]);
    check(&mut bench, two(), &no_volume());
    volume(&mut bench, "pv-a", "static", on(ZONE, &["a"]));
    check(
        &mut bench,
        two(),
        &expect![[r#"
        a1 ok
        a2 node(s) didn't find available persistent volumes to bind
        b1 node(s) didn't find available persistent volumes to bind"#]],
    );
    // A volume that is reserved for the claim is taken, or no other one.
    let mut reserved = on(HOSTNAME, &["b1"]);
    merge(&mut reserved, &json!({"spec": {"claimRef": {"namespace": "default", "name": "data"}}}));
    volume(&mut bench, "reserved", "static", reserved);
    check(
        &mut bench,
        pod_with(&["data"]),
        &expect![[r#"
        a1 node(s) didn't find available persistent volumes to bind
        a2 node(s) didn't find available persistent volumes to bind
        b1 ok"#]],
    );
}

#[test]
fn provisioning() {
    let mut bench = bench();
    claim(&mut bench, "data", "wait", json!({}));
    check(
        &mut bench,
        pod_with(&["data"]),
        &expect![[r#"
        a1 ok
        a2 ok
        b1 ok"#]],
    );
    let requirement = |values: &[&str]| json!({"key": ZONE, "values": values});
    let mut allow = |terms: Value, want: &Expect| {
        let mode = "WaitForFirstConsumer";
        class(&mut bench, "wait", mode, "csi.example.com", json!({"allowedTopologies": terms}));
        check(&mut bench, pod_with(&["data"]), want);
    };
    let in_zone_a = expect![[r#"
        a1 ok
        a2 ok
        b1 node(s) didn't find available persistent volumes to bind"#]];
    allow(json!([{"matchLabelExpressions": [requirement(&["a"])]}]), &in_zone_a);
    allow(
        json!([{"matchLabelExpressions": []}, {"matchLabelExpressions": [requirement(&[])]},
            {"matchLabelExpressions": [requirement(&["c", "a"])]}]),
        &in_zone_a,
    );
    allow(json!([{}]), &no_volume());
    class(&mut bench, "wait", "WaitForFirstConsumer", "", json!({}));
    check(&mut bench, pod_with(&["data"]), &no_volume());
}

#[test]
fn a_selected_node_stays_selected() {
    let mut bench = bench();
    let selected =
        json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "a2"}}});
    claim(&mut bench, "data", "wait", selected);
    volume(&mut bench, "pv", "wait", on(HOSTNAME, &["a1"]));
    check(
        &mut bench,
        pod_with(&["data"]),
        &expect![[r#"
        a1 node(s) didn't find available persistent volumes to bind
        a2 ok
        b1 node(s) didn't find available persistent volumes to bind"#]],
    );
    bound_claim(&mut bench, "other", "bound");
    volume(&mut bench, "bound", "wait", on(ZONE, &["a"]));
    check(
        &mut bench,
        pod_with(&["data", "other"]),
        &expect![[r#"
        a1 node(s) didn't find available persistent volumes to bind
        a2 ok
        b1 node(s) didn't match PersistentVolume's node affinity, node(s) didn't find available persistent volumes to bind"#]],
    );
}

fn driver(bench: &mut PluginTestBench, tracks: bool) {
    let driver =
        json!({"metadata": {"name": "csi.example.com"}, "spec": {"storageCapacity": tracks}});
    bench.object(&StorageKind::CsiDriver.gvr(), driver).unwrap();
}

fn capacity(bench: &mut PluginTestBench, name: &str, topology: Value, more: Value) {
    let mut object = json!({"metadata": {"name": name, "namespace": "csi"}, "storageClassName": "wait", "nodeTopology": topology});
    merge(&mut object, &more);
    bench.object(&StorageKind::CsiStorageCapacity.gvr(), object).unwrap();
}

#[test]
fn tracked_capacity() {
    let mut bench = bench();
    claim(&mut bench, "data", "wait", json!({}));
    driver(&mut bench, true);
    let none = expect![[r#"
        a1 node(s) did not have enough free storage
        a2 node(s) did not have enough free storage
        b1 node(s) did not have enough free storage"#]];
    check(&mut bench, pod_with(&["data"]), &none);
    let zone = |zone: &str| json!({"matchLabels": {ZONE: zone}});
    capacity(&mut bench, "b", zone("b"), json!({"capacity": "1Gi"}));
    let in_zone_b = expect![[r#"
        a1 node(s) did not have enough free storage
        a2 node(s) did not have enough free storage
        b1 ok"#]];
    check(&mut bench, pod_with(&["data"]), &in_zone_b);
    // The largest volume counts if it is known.
    capacity(&mut bench, "b", zone("b"), json!({"capacity": "9Gi", "maximumVolumeSize": "1Mi"}));
    check(&mut bench, pod_with(&["data"]), &none);
    capacity(&mut bench, "b", zone("b"), json!({"capacity": "1Mi", "maximumVolumeSize": "1Gi"}));
    check(&mut bench, pod_with(&["data"]), &in_zone_b);
    // Without a topology, or with one that cannot be read, no node has access; with an empty one, all have.
    capacity(&mut bench, "none", Value::Null, json!({"capacity": "9Gi"}));
    let unreadable = json!({"matchExpressions": [{"key": ZONE, "operator": "Near"}]});
    capacity(&mut bench, "unreadable", unreadable, json!({"capacity": "9Gi"}));
    capacity(&mut bench, "unknown", json!({}), json!({}));
    check(&mut bench, pod_with(&["data"]), &in_zone_b);
    let everywhere = expect![[r#"
        a1 ok
        a2 ok
        b1 ok"#]];
    capacity(&mut bench, "all", json!({}), json!({"capacity": "2Gi"}));
    check(&mut bench, pod_with(&["data"]), &everywhere);
    capacity(&mut bench, "all", json!({}), json!({"capacity": "2Gi", "storageClassName": "other"}));
    check(&mut bench, pod_with(&["data"]), &in_zone_b);
    // A claim that requests no size, and a driver that does not track.
    claim(&mut bench, "any", "wait", json!({"spec": {"resources": {"requests": null}}}));
    check(&mut bench, pod_with(&["any"]), &everywhere);
    driver(&mut bench, false);
    check(&mut bench, pod_with(&["data"]), &everywhere);
}

#[track_caller]
fn check_scores(bench: &mut PluginTestBench, claims: &[&str], want: &[(&str, i64)]) {
    let scores = bench.score(pod_with(claims)).unwrap();
    let scores: Vec<(&str, i64)> = scores.iter().map(|(name, score)| (&**name, *score)).collect();
    assert_eq!(scores, want);
}

#[test]
fn scores() {
    let gates = FeatureGates { storage_capacity_scoring: true, ..FeatureGates::default() };
    let mut bench = bench_with(json!({}), gates.clone());
    check_scores(&mut bench, &[], &[("a1", 0), ("a2", 0), ("b1", 0)]);
    // The utilization of capacity that is left: the emptier the better.
    driver(&mut bench, true);
    for (node, size) in [("a1", "10Gi"), ("a2", "4Gi"), ("b1", "1Gi")] {
        let topology = json!({"matchLabels": {HOSTNAME: node}});
        capacity(&mut bench, node, topology, json!({"capacity": size}));
    }
    claim(&mut bench, "data", "wait", json!({}));
    check_scores(&mut bench, &["data"], &[("a1", 90), ("a2", 75), ("b1", 0)]);
    claim(&mut bench, "logs", "wait", json!({}));
    check_scores(&mut bench, &["data", "logs"], &[("a1", 80), ("a2", 50), ("b1", 0)]);
    // The utilization of volumes to bind, whatever the capacity says.
    for (node, size) in [("a1", "2Gi"), ("b1", "1Gi")] {
        let mut more = on(HOSTNAME, &[node]);
        merge(&mut more, &json!({"spec": {"capacity": {"storage": size}}}));
        volume(&mut bench, node, "wait", more);
    }
    check_scores(&mut bench, &["data"], &[("a1", 50), ("a2", 75), ("b1", 0)]);
    // The mean over classes.
    claim(&mut bench, "local", "static", json!({}));
    volume(&mut bench, "local", "static", json!({"spec": {"capacity": {"storage": "4Gi"}}}));
    check_scores(&mut bench, &["data", "local"], &[("a1", 63), ("a2", 75), ("b1", 38)]);
    // Another shape: the fuller the better.
    let shape =
        json!({"shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]});
    let mut bench = bench_with(shape, gates);
    claim(&mut bench, "local", "static", json!({}));
    volume(&mut bench, "local", "static", json!({"spec": {"capacity": {"storage": "4Gi"}}}));
    check_scores(&mut bench, &["local"], &[("a1", 25), ("a2", 25), ("b1", 25)]);
}

#[test]
fn without_the_gate_nothing_is_scored() {
    let mut bench = bench();
    claim(&mut bench, "local", "static", json!({}));
    volume(&mut bench, "local", "static", json!({}));
    check_scores(&mut bench, &["local"], &[]);
}
