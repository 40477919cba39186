//! Additional parts of pods and nodes that plugins can request with `request_field`.

use std::sync::Arc;
use std::time::Duration;

use loadmaster::framework::*;
use loadmaster::testkit::{PluginTestBenchError, TestCluster, node, pod};
use serde_json::{Value, json};

const RACK: &str = "example.com/rack";

/// Accepts nodes of the rack in the pod's annotation. Full objects are visible only if they were requested.
struct Racks;

const ANNOTATED: PluginDef = PluginDef { name: "Racks", build: build_annotated, args: None };
const WHOLE: PluginDef = PluginDef { name: "Racks", build: build_whole, args: None };
const CARELESS: PluginDef = PluginDef { name: "Racks", build, args: None };

fn build(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    points.filter = Some(Arc::new(Racks));
    points.register_event(
        ClusterEvent::new(EventResource::Node, ActionType::UPDATE_NODE_ANNOTATION),
        None,
    );
    points.register_event(
        ClusterEvent::new(EventResource::UnschedulablePod, ActionType::UPDATE),
        None,
    );
    Ok(())
}

fn build_annotated(points: &mut ExtensionPoints, args: &Value) -> Result<(), PluginError> {
    points.request_field(ExtraField::PodAnnotations);
    points.request_field(ExtraField::NodeAnnotations);
    build(points, args)
}

fn build_whole(points: &mut ExtensionPoints, args: &Value) -> Result<(), PluginError> {
    points.request_field(ExtraField::FullPods);
    points.request_field(ExtraField::FullNodes);
    build(points, args)
}

impl Filter for Racks {
    fn filter(&self, _: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let machine = node.object().and_then(|it| it["status"]["nodeInfo"]["machineID"].as_str());
        let image = pod.object().and_then(|it| it["spec"]["containers"][0]["image"].as_str());
        let (wanted, here) = (pod.annotation(RACK), node.annotation(RACK));
        if wanted.is_some() && wanted == here {
            return Ok(());
        }
        Err(Rejection::unresolvable(format!("{wanted:?} {here:?} {image:?} {machine:?}")))
    }
}

/// Schedules a pod for the rack `r1` in a cluster with one node of the given rack.
fn place(
    def: PluginDef,
    rack: &str,
) -> Result<(TestCluster, Option<String>, String), PluginTestBenchError> {
    let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": "Racks"}]}}});
    let mut cluster = TestCluster::new([def], profile)?;
    cluster.upsert_node(rack_node(rack))?;
    cluster.create_pod(
        pod("web").annotation(RACK, "r1").set_field("/spec/containers/0/image", "nginx"),
    )?;
    cluster.run_until_idle()?;
    let (node, why) = (cluster.node_of("web"), cluster.pending_message("web").unwrap_or_default());
    Ok((cluster, node, why))
}

fn rack_node(rack: &str) -> loadmaster::testkit::NodeBuilder {
    node("a").annotation(RACK, rack).set_field("/status/nodeInfo", json!({"machineID": "m7"}))
}

#[test]
fn a_plugin_sees_the_parts_it_needs() -> Result<(), PluginTestBenchError> {
    let check = |def, rack, want: &str| -> Result<(), PluginTestBenchError> {
        let (_, node, why) = place(def, rack)?;
        let got = node.unwrap_or(why);
        assert!(got.contains(want), "{got}, not {want}");
        Ok(())
    };
    check(ANNOTATED, "r1", "a")?;
    check(ANNOTATED, "r2", r#"Some("r1") Some("r2") None None"#)?;
    check(WHOLE, "r1", "a")?;
    check(WHOLE, "r2", r#"Some("r1") Some("r2") Some("nginx") Some("m7")"#)?;
    check(CARELESS, "r1", "None None None None")
}

#[test]
fn changed_annotations_requeue_pods() -> Result<(), PluginTestBenchError> {
    for def in [ANNOTATED, WHOLE] {
        let (mut cluster, node, _) = place(def, "r2")?;
        assert_eq!(node, None);
        cluster.advance_time(Duration::from_secs(60))?;
        cluster.upsert_node(rack_node("r1"))?;
        cluster.advance_time(Duration::from_secs(1))?;
        assert_eq!(cluster.node_of("web"), Some("a".to_owned()));
    }
    Ok(())
}
