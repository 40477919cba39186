use loadmaster::framework::testkit::incremental_history::check_incremental_history;
use loadmaster::testkit::{
    FaultSimulation, PluginTestBench, PluginTestBenchError, TestCluster, node, pod,
};
use serde_json::json;
use tokio::net::TcpListener;

use super::*;

/// Starts a server that sends one response; returns its address.
async fn server(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 1024];
        let n = stream.read(&mut request).await.unwrap();
        assert!(request[..n].starts_with(b"GET /load HTTP/1.0\r\n"));
        stream.write_all(answer.as_bytes()).await.unwrap();
    });
    address
}

#[tokio::test]
async fn reports_are_fetched_over_http() {
    let good = server("HTTP/1.0 200 OK\r\n\r\n{\"a\": 0.25, \"b\": 1}").await;
    let report = fetch(&good).await.unwrap();
    assert_eq!(report, Report::from([("a".to_owned(), 0.25), ("b".to_owned(), 1.0)]));
    for (answer, want) in [
        ("HTTP/1.0 503 Busy\r\n\r\n", "answered 503"),
        ("HTTP/1.0 200 OK\r\n\r\n{\"a\": \"much\"}", "invalid type"),
        ("HTTP/1.0 200 OK\r\n", "header is incomplete"),
    ] {
        let error = fetch(&server(answer).await).await.unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
}

#[test]
fn the_least_loaded_node_is_best_while_the_report_is_fresh() -> Result<(), PluginTestBenchError> {
    // The only Score plugin.
    let profile = json!({"plugins": {"score": {
        "enabled": [{"name": NAME}], "disabled": [{"name": "*"}],
    }}});
    for seed in 0..20 {
        let mut cluster = TestCluster::with_seed([DEF], profile.clone(), seed)?;
        for name in ["a", "b", "c"] {
            cluster.upsert_node(node(name))?;
        }
        cluster.publish_to_plugin(NAME, &json!({"a": 0.9, "b": 0.2, "c": 7}), REPORT_TTL)?;
        cluster.run_until_idle()?;
        cluster.create_pod(pod("first"))?;
        cluster.run_until_idle()?;
        assert_eq!(cluster.node_of("first"), Some("b".to_owned()), "seed {seed}");
        cluster.publish_to_plugin(NAME, &json!({"b": 0.9}), REPORT_TTL)?;
        cluster.run_until_idle()?;
        cluster.create_pod(pod("second"))?;
        cluster.run_until_idle()?;
        assert_ne!(cluster.node_of("second"), Some("b".to_owned()), "seed {seed}");
    }
    Ok(())
}

#[test]
fn a_node_missing_from_the_report_uses_its_annotation() -> Result<(), PluginTestBenchError> {
    let profile = json!({"plugins": {"score": {
        "enabled": [{"name": NAME}], "disabled": [{"name": "*"}],
    }}});
    let cases = [("0.1", "quiet"), ("0.7", "reported"), ("much", "reported"), ("NaN", "reported")];
    for (expected, want) in cases {
        let mut cluster = TestCluster::new([DEF], profile.clone())?;
        cluster.upsert_node(node("reported"))?;
        cluster.upsert_node(node("quiet").annotation(EXPECTED_LOAD_ANNOTATION, expected))?;
        cluster.publish_to_plugin(NAME, &json!({"reported": 0.4}), REPORT_TTL)?;
        cluster.run_until_idle()?;
        cluster.create_pod(pod("web"))?;
        cluster.run_until_idle()?;
        assert_eq!(cluster.node_of("web").as_deref(), Some(want), "{expected}");
    }
    Ok(())
}

#[test]
fn an_expired_report_is_ignored() -> Result<(), PluginTestBenchError> {
    let profile = json!({"plugins": {"score": {
        "enabled": [{"name": NAME}], "disabled": [{"name": "*"}],
    }}});
    let mut chosen = std::collections::BTreeSet::new();
    for seed in 0..30 {
        let mut cluster = TestCluster::with_seed([DEF], profile.clone(), seed)?;
        for name in ["a", "b"] {
            cluster.upsert_node(node(name))?;
        }
        cluster.publish_to_plugin(NAME, &json!({"a": 0.9, "b": 0.2}), REPORT_TTL)?;
        cluster.advance_time(REPORT_TTL)?;
        cluster.create_pod(pod("late"))?;
        cluster.run_until_idle()?;
        chosen.extend(cluster.node_of("late"));
    }
    assert_eq!(chosen.len(), 2, "both nodes have the same score");
    Ok(())
}

#[test]
fn the_sample_configuration_is_valid() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/scheduler.yaml");
    let command = SchedulerCommand::new().with_plugin(DEF);
    let code = command.run_from(["load-aware", "config", "check", file]);
    assert_eq!(format!("{code:?}"), format!("{:?}", std::process::ExitCode::SUCCESS));
}

#[test]
fn a_single_feasible_node_is_not_scored() -> Result<(), PluginTestBenchError> {
    let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": NAME}]}}});
    let mut cluster = TestCluster::new([DEF], profile)?;
    cluster.upsert_node(node("a"))?;
    cluster.publish_to_plugin(NAME, &json!({"a": 0.2}), REPORT_TTL)?;
    cluster.run_until_idle()?;
    cluster.create_pod(pod("web"))?;
    cluster.run_until_idle()?;
    assert_eq!(cluster.node_of("web"), Some("a".to_owned()));
    Ok(())
}

#[test]
fn the_incremental_form_follows_reports_and_annotations() -> Result<(), PluginTestBenchError> {
    for seed in 0..20 {
        let mut bench = PluginTestBench::new(&DEF, json!({}))?;
        let mut rng = Rng::new(seed);
        let change = |bench: &mut PluginTestBench, rng: &mut Rng| {
            let name = *rng.pick(&["a", "b", "c"]);
            let load = rng.range(0, 12) as f64 / 10.0;
            match rng.below(3) {
                0 => bench.publish(&json!({name: load, "other": 0.5}))?,
                1 => drop(bench.node(node(name))?),
                _ => {
                    let load = load.to_string();
                    bench.node(node(name).annotation(EXPECTED_LOAD_ANNOTATION, &load))?;
                }
            }
            Ok("a report or a node")
        };
        check_incremental_history(&mut bench, &mut rng, 100, |_| pod("web").into(), change)?;
        let report = bench.check_key(pod("web").request("cpu", "1"))?;
        assert_eq!(report.kept.len(), report.n_changes, "no field of the pod is read");
    }
    Ok(())
}

#[test]
fn scores_from_reports_survive_faults() -> Result<(), PluginTestBenchError> {
    let profile = json!({"plugins": {"score": {"enabled": [{"name": NAME, "weight": 5}]}}});
    let simulation = FaultSimulation::new([DEF], profile).published_values(NAME, |rng, cluster| {
        let mut load = |name: &str| (name.to_owned(), json!(rng.range(0, 10) as f64 / 10.0));
        cluster.nodes().map(|node| load(node.name())).collect()
    });
    let report = simulation.run(0..20)?;
    assert!(report.bound > 500, "{report}");
    Ok(())
}
