use futures::StreamExt as _;
use loadmaster::k8s_openapi::api::core::v1::Pod;
use loadmaster::k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use loadmaster::kube::api::*;
use loadmaster::kube::{Client, core::GroupVersionKind};
use serde_json::json;
use std::time::Duration;

use loadmaster::framework::testkit::incremental_history::check_incremental_history;
use loadmaster::testkit::{
    FaultSimulation, PluginTestBench, PluginTestBenchError, ServiceTestBench, TestCluster, node,
    pod,
};

use super::controller::control;
use super::*;

fn podgroups() -> Gvr {
    Gvr::new("example.com", "v1", "podgroups")
}

fn group(name: &str, min_members: usize, members: Option<usize>) -> Value {
    let mut group = json!({
        "apiVersion": "example.com/v1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"minMembers": min_members},
    });
    if let Some(members) = members {
        group["status"] = json!({"members": members});
    }
    group
}

#[test]
fn pods_of_incomplete_groups_are_gated() -> Result<(), PluginTestBenchError> {
    let check = |group: Option<Value>, label: &str, want: &str| {
        let mut bench = PluginTestBench::new(&DEF, json!({}))?;
        if let Some(group) = group {
            bench.object(&podgroups(), group)?;
        }
        assert_eq!(bench.pre_enqueue(pod("web").label(LABEL, label))?, want);
        Ok::<_, PluginTestBenchError>(())
    };
    let rejected = |why: &str| format!("UnschedulableAndUnresolvable {why}");
    check(None, "a", &rejected("PodGroup \"a\" not found"))?;
    check(Some(group("a", 2, None)), "a", &rejected("PodGroup \"a\" has 0 of 2 pods"))?;
    check(Some(group("a", 2, Some(1))), "a", &rejected("PodGroup \"a\" has 1 of 2 pods"))?;
    check(Some(group("a", 2, Some(2))), "a", "Success")?;
    check(Some(group("b", 2, Some(2))), "a", &rejected("PodGroup \"a\" not found"))?;
    let mut bench = PluginTestBench::new(&DEF, json!({}))?;
    assert_eq!(bench.pre_enqueue(pod("without-group"))?, "Success");
    Ok(())
}

#[test]
fn a_group_is_scheduled_when_its_status_says_that_it_is_complete()
-> Result<(), PluginTestBenchError> {
    let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": NAME}]}}});
    for seed in 0..20 {
        let mut cluster = TestCluster::with_seed([DEF], profile.clone(), seed)?;
        cluster.upsert_node(node("a"))?;
        cluster.upsert_object(&podgroups(), group("training", 2, None));
        cluster.run_until_idle()?;
        for name in ["one", "two"] {
            cluster.create_pod(pod(name).label(LABEL, "training"))?;
        }
        cluster.run_until_idle()?;
        assert_eq!(cluster.node_of("one"), None, "seed {seed}");
        let lines = cluster.take_log_lines();
        let want = "PodGroup 3 default/one: Gated: PodGroup \"training\" has 0 of 2 pods";
        assert!(lines.iter().any(|line| line == want), "seed {seed}: {lines:?}");
        cluster.upsert_object(&podgroups(), group("training", 2, Some(2)));
        cluster.run_until_idle()?;
        for name in ["one", "two"] {
            assert_eq!(cluster.node_of(name).as_deref(), Some("a"), "seed {seed}: {name}");
        }
    }
    Ok(())
}

const ZONES: [&str; 3] = ["z1", "z2", "z3"];

/// A group of at most five pods, in a zone or in any.
fn random_group(rng: &mut Rng, name: &str, members: Option<usize>) -> Value {
    let mut group = group(name, rng.range(1, 5) as usize, members);
    if rng.one_in(2) {
        group["spec"]["zone"] = json!(*rng.pick(&ZONES));
    }
    group
}

#[test]
fn members_run_in_the_zone_of_their_group() -> Result<(), PluginTestBenchError> {
    for seed in 0..20 {
        let mut bench = PluginTestBench::new(&DEF, json!({}))?;
        let mut rng = Rng::new(seed);
        let change = |bench: &mut PluginTestBench, rng: &mut Rng| {
            let name = *rng.pick(&["a", "b"]);
            if rng.one_in(2) {
                bench.object(&podgroups(), random_group(rng, name, None))?;
                return Ok("a group");
            }
            let zone = *rng.pick(&ZONES);
            bench.node(node(name).label(ZONE, zone))?;
            Ok("a node")
        };
        let member = |rng: &mut Rng| match *rng.pick(&["", "a", "b"]) {
            "" => pod("web").into(),
            group => pod("web").label(LABEL, group).into(),
        };
        check_incremental_history(&mut bench, &mut rng, 100, member, change)?;
        bench.check_key(pod("web").label(LABEL, "a"))?;
    }
    let mut bench = PluginTestBench::new(&DEF, json!({}))?;
    let mut in_zone = group("a", 1, Some(1));
    in_zone["spec"]["zone"] = json!("z1");
    bench.object(&podgroups(), in_zone)?;
    bench.node(node("one").label(ZONE, "z1"))?;
    bench.node(node("two").label(ZONE, "z2"))?;
    let rejected = "UnschedulableAndUnresolvable node(s) were outside of the PodGroup's zone";
    let want = ["one Success".to_owned(), format!("two {rejected}")];
    assert_eq!(bench.filter(pod("web").label(LABEL, "a"))?, want);
    Ok(())
}

#[test]
fn groups_survive_faults() -> Result<(), PluginTestBenchError> {
    let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": NAME}]}}});
    let simulation = FaultSimulation::new([DEF], profile)
        .pods(|rng, pod| match *rng.pick(&["", "a", "b"]) {
            "" => pod,
            group => pod.label(LABEL, group),
        })
        .objects(podgroups(), |rng, cluster| {
            // What the controller has written.
            let name = *rng.pick(&["a", "b"]);
            let is_member =
                |labels: &loadmaster::api::Labels| labels.get(LABEL).is_some_and(|it| *it == name);
            let n_members = cluster.pods().filter(|pod| is_member(&pod.metadata.labels)).count();
            Some(random_group(rng, name, Some(n_members)))
        });
    let report = simulation.run(0..20)?;
    assert!(report.bound > 100 && report.unschedulable > 50, "{report}");
    Ok(())
}

type TestResult = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Waits until the status of the group has this number of members.
async fn wait_for_members(groups: &Api<DynamicObject>, name: &str, want: usize) -> TestResult {
    let params = WatchParams::default();
    loop {
        let list = groups.list(&ListParams::default()).await?;
        let version = list.metadata.resource_version.clone().unwrap_or_default();
        let found = list.items.iter().find(|group| group.name_any() == name);
        if found.is_some_and(|group| group.data["status"]["members"] == want) {
            return Ok(());
        }
        let mut changes = std::pin::pin!(groups.watch(&params, &version).await?);
        changes.next().await;
    }
}

async fn create_pod(client: &Client, name: &str, group: &str) -> TestResult {
    let object = json!({
        "metadata": {"name": name, "labels": {LABEL: group}},
        "spec": {"containers": [{"name": "main", "image": "registry.example/main"}]},
    });
    let pods = Api::<Pod>::namespaced(client.clone(), "default");
    pods.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

#[tokio::test]
async fn the_controller_counts_pods_while_it_leads() -> TestResult {
    let bench = ServiceTestBench::start().await?;
    let client = bench.client();
    let definition: CustomResourceDefinition = serde_saphyr::from_str(include_str!("../crd.yaml"))?;
    Api::all(client.clone()).create(&PostParams::default(), &definition).await?;
    let kind = GroupVersionKind::gvk("example.com", "v1", "PodGroup");
    let kind = ApiResource::from_gvk_with_plural(&kind, "podgroups");
    let groups = Api::<DynamicObject>::namespaced_with(client.clone(), "default", &kind);
    let training = serde_json::from_value(group("training", 2, None))?;
    groups.create(&PostParams::default(), &training).await?;
    create_pod(&client, "one", "training").await?;
    create_pod(&client, "other", "rendering").await?;

    let mut service = tokio::spawn(control(bench.handle()));
    let early = wait_for_members(&groups, "training", 1);
    let early = tokio::time::timeout(Duration::from_millis(300), early).await;
    assert!(early.is_err(), "written by a replica that does not lead");

    bench.set_leading(true);
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, wait_for_members(&groups, "training", 1)).await??;
    create_pod(&client, "two", "training").await?;
    tokio::time::timeout(limit, wait_for_members(&groups, "training", 2)).await??;
    let pods = Api::<Pod>::namespaced(client.clone(), "default");
    pods.delete("one", &DeleteParams::default().grace_period(0)).await?;
    tokio::time::timeout(limit, wait_for_members(&groups, "training", 1)).await??;

    bench.stop();
    tokio::time::timeout(limit, &mut service).await???;
    Ok(())
}

#[test]
fn the_sample_configuration_needs_what_the_controller_writes() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/scheduler.yaml");
    for command in ["check", "rbac"] {
        let scheduler = SchedulerCommand::new().with_plugin(DEF);
        let code = scheduler.run_from(["pod-group-controller", "config", command, file]);
        assert_eq!(format!("{code:?}"), format!("{:?}", std::process::ExitCode::SUCCESS));
    }
}
