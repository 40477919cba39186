//! The hints, and the events that are registered.

use loadmaster_framework::{ActionType, ClusterEvent, EventObject, EventResource};

use super::*;

/// The hint for an update of an object, or for a new one.
#[track_caller]
fn check(kind: StorageKind, old: Option<Value>, new: Value, want: &str) {
    let mut bench = bench();
    let gvr = kind.gvr();
    let info = |bench: &mut PluginTestBench, object: Value| {
        let (namespace, name) =
            (object["metadata"]["namespace"].clone(), object["metadata"]["name"].clone());
        bench.object(&gvr, object).unwrap();
        let mut all = bench.world.watched_objects().iter();
        let is_it = |it: &(&loadmaster_framework::Gvr, &Arc<loadmaster_framework::ObjectInfo>)| {
            *it.0 == gvr
                && it.1.name == *name.as_str().unwrap()
                && it.1.namespace == *namespace.as_str().unwrap_or_default()
        };
        all.find(is_it).unwrap().1.clone()
    };
    let action = if old.is_some() { ActionType::UPDATE } else { ActionType::ADD };
    let old = old.map(|old| info(&mut bench, old));
    let new = info(&mut bench, new);
    let csi = json!({"name": "inline", "csi": {"driver": "inline.example.com"}});
    let scratch = json!({"name": "scratch", "ephemeral": {}});
    let data = json!({"name": "data", "persistentVolumeClaim": {"claimName": "data"}});
    let pod = pod("web-0").set_field("/spec/volumes", json!([csi, scratch, data]));
    let event = ClusterEvent::new(gvr.event_resource(), action);
    let old = old.as_deref().map(EventObject::Other);
    let hint = bench.queueing_hint(event, pod.into(), old, Some(EventObject::Other(&new)));
    assert_eq!(hint.unwrap(), want);
}

fn named(name: &str, more: &Value) -> Value {
    let mut object = json!({"metadata": {"name": name}});
    merge(&mut object, more);
    object
}

#[test]
fn claims_of_the_pod() {
    let claim =
        |namespace: &str, name: &str| named(name, &json!({"metadata": {"namespace": namespace}}));
    let kind = StorageKind::PersistentVolumeClaim;
    check(kind, None, claim("default", "data"), "Queue");
    check(kind, Some(claim("default", "data")), claim("default", "data"), "Queue");
    check(kind, None, claim("default", "web-0-scratch"), "Queue");
    check(kind, None, claim("default", "other"), "Skip");
    check(kind, None, claim("other", "data"), "Skip");
}

#[test]
fn classes_with_other_topologies() {
    let class = |zone: &str| {
        let expressions = json!([{"key": ZONE, "values": [zone]}]);
        named("wait", &json!({"allowedTopologies": [{"matchLabelExpressions": expressions}]}))
    };
    check(StorageKind::StorageClass, None, class("a"), "Queue");
    check(StorageKind::StorageClass, Some(class("a")), class("b"), "Queue");
    check(StorageKind::StorageClass, Some(class("a")), class("a"), "Skip");
}

#[test]
fn volumes() {
    let volume = || named("pv", &json!({}));
    check(StorageKind::PersistentVolume, None, volume(), "Queue");
    check(StorageKind::PersistentVolume, Some(volume()), volume(), "Queue");
}

#[test]
fn migrated_plugins_of_nodes() {
    let node = |migrated: &str| {
        let annotations = json!({"storage.alpha.kubernetes.io/migrated-plugins": migrated});
        named("a1", &json!({"metadata": {"annotations": annotations}}))
    };
    check(StorageKind::CsiNode, None, node(""), "Queue");
    check(StorageKind::CsiNode, Some(node("x")), node("x,y"), "Queue");
    check(StorageKind::CsiNode, Some(node("x")), node("x"), "Skip");
    check(StorageKind::CsiNode, Some(named("a1", &json!({}))), node(""), "Skip");
}

#[test]
fn drivers_that_stop_tracking_capacity() {
    let driver =
        |name: &str, tracks: bool| named(name, &json!({"spec": {"storageCapacity": tracks}}));
    let kind = StorageKind::CsiDriver;
    let own = "inline.example.com";
    check(kind, Some(driver(own, true)), driver(own, false), "Queue");
    check(kind, Some(driver(own, false)), driver(own, true), "Skip");
    check(kind, Some(driver("other", true)), driver("other", false), "Skip");
    check(kind, None, driver(own, false), "Unregistered");
}

#[test]
fn capacities_that_grow() {
    let capacity = |more: Value| {
        named("c", &{
            let mut object = json!({"metadata": {"namespace": "csi"}});
            merge(&mut object, &more);
            object
        })
    };
    let of = |size: &str| capacity(json!({"capacity": size}));
    let kind = StorageKind::CsiStorageCapacity;
    check(kind, None, of("1Gi"), "Queue");
    check(kind, Some(of("1Gi")), of("2Gi"), "Queue");
    check(kind, Some(of("2Gi")), of("1Gi"), "Skip");
    check(kind, Some(capacity(json!({}))), of("1Gi"), "Queue");
    check(kind, Some(of("1Gi")), capacity(json!({})), "Skip");
    let limited = json!({"capacity": "9Gi", "maximumVolumeSize": "1Gi"});
    check(kind, Some(of("1Gi")), capacity(limited), "Skip");
}

#[test]
fn registered_events() {
    let bench = bench();
    let events = bench.extension_points().events.as_ref().unwrap();
    let has = |resource: EventResource, action: ActionType| {
        let event = ClusterEvent::new(resource, action);
        events.iter().any(|registered| registered.event.matches(&event))
    };
    assert!(has(EventResource::Node, ActionType::ADD));
    assert!(has(EventResource::Node, ActionType::UPDATE_NODE_LABEL));
    assert!(!has(EventResource::Node, ActionType::UPDATE_NODE_TAINT));
    assert!(!has(EventResource::PersistentVolume, ActionType::DELETE));
    assert!(!has(EventResource::Pod, ActionType::DELETE));
}
