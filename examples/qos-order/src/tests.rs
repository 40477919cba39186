use std::time::Duration;

use loadmaster::serde_json::json;
use loadmaster::testkit::{
    PluginTestBench, PluginTestBenchError, PodBuilder, TestCluster, node, pod,
};

use super::*;

fn guaranteed(name: &str) -> PodBuilder {
    let amounts = json!({"cpu": "1", "memory": "1Gi"});
    pod(name)
        .set_field("/spec/containers/0/resources", json!({"requests": amounts, "limits": amounts}))
}

#[test]
fn qos_classes() -> Result<(), PluginTestBenchError> {
    let mut bench = PluginTestBench::new(&DEF, json!({}))?;
    let limits = |it: PodBuilder| it.set_field("/spec/containers/0/resources/limits/cpu", "2");
    for (pod, want) in [
        (guaranteed("a"), 0),
        (limits(guaranteed("limit above request")), 1),
        (pod("request").request("memory", "1Gi"), 1),
        (limits(pod("limit")), 1),
        (pod("nothing"), 2),
        (guaranteed("the whole pod's go first").set_field("/spec/resources/requests/cpu", "1"), 1),
        (pod("an amount of nothing").request("cpu", "0").request("memory", "0"), 2),
        (pod("other resources do not count").request("example.com/gpu", "1"), 2),
    ] {
        assert_eq!(qos_class(&bench.parse_pod(pod)?), want);
    }
    Ok(())
}

#[test]
fn pods_are_scheduled_in_qos_order() -> Result<(), PluginTestBenchError> {
    let profile = json!({"plugins": {"queueSort": {
        "enabled": [{"name": "QosOrder"}], "disabled": [{"name": "*"}],
    }}});
    let mut cluster = TestCluster::new([DEF], profile)?;
    cluster.upsert_node(node("a").allocatable("pods", "0"))?;
    for pod in [pod("best-effort"), pod("burstable").request("cpu", "1"), pod("urgent").priority(1)]
    {
        cluster.create_pod(pod)?;
    }
    cluster.run_until_idle()?;
    cluster.advance_time(Duration::from_secs(1))?;
    cluster.create_pod(guaranteed("guaranteed"))?;
    cluster.run_until_idle()?;
    cluster.take_events();
    // No pod fits until the node allows pods. When all backoffs have expired, the pods are bound in queue order.
    cluster.advance_time(Duration::from_secs(15))?;
    cluster.upsert_node(node("a"))?;
    cluster.advance_time(Duration::from_secs(20))?;
    let events = cluster.take_events();
    let bound: Vec<&str> = events.iter().filter_map(|it| it.strip_prefix("Scheduled ")).collect();
    let order: Vec<&str> = bound.iter().filter_map(|it| it.split(':').next()).collect();
    assert_eq!(order, ["urgent", "guaranteed", "burstable", "best-effort"]);
    Ok(())
}

#[test]
fn the_sample_configuration_is_valid() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/scheduler.yaml");
    let command = SchedulerCommand::new().with_plugin(DEF);
    let code = command.run_from(["qos-order", "config", "check", file]);
    assert_eq!(format!("{code:?}"), format!("{:?}", std::process::ExitCode::SUCCESS));
}
