//! Random histories: after every change the incremental form equals the per-node methods.

use loadmaster_framework::testkit::{
    PluginTestBench, PluginTestBenchError, incremental_history::check_incremental_history,
};
use loadmaster_stdx::Rng;
use serde_json::{Map, Value, json};

use super::DEF;

const SEEDS: u64 = 300;
const STEPS: u64 = 25;

#[test]
fn the_incremental_form_equals_the_per_node_methods() {
    for seed in 0..SEEDS {
        if let Err(error) = run_history(seed) {
            panic!("seed {seed}: {error}");
        }
    }
}

fn run_history(seed: u64) -> Result<(), PluginTestBenchError> {
    let mut rng = Rng::new(seed);
    let args = json!({
        "hardPodAffinityWeight": rng.below(3) * 7,
        "ignorePreferredTermsOfExistingPods": rng.one_in(5),
    });
    let mut bench = PluginTestBench::new(&DEF, args)?;
    let mut uids = 0;
    for _ in 0..rng.range(1, 6) {
        set_node(&mut bench, &mut rng)?;
    }
    // Some histories begin without any term in the world, or without a term for host names.
    for _ in 0..rng.below(6) {
        assign_pod(&mut bench, &mut rng, &mut uids)?;
    }
    let incoming = |rng: &mut Rng| pod(rng, "incoming");
    check_incremental_history(&mut bench, &mut rng, STEPS, incoming, |bench, rng| {
        change(bench, rng, &mut uids)
    })
}

fn change(
    bench: &mut PluginTestBench,
    rng: &mut Rng,
    uids: &mut u64,
) -> Result<&'static str, PluginTestBenchError> {
    match rng.below(12) {
        0..=4 => assign_pod(bench, rng, uids).map(|()| "placed"),
        5..=7 => {
            bench.world.remove_pod(&format!("pod-{}", rng.below(*uids + 1)));
            Ok("removed")
        }
        8..=9 => set_node(bench, rng).map(|()| "node"),
        10 => {
            bench.world.remove_node(&node_name(rng));
            Ok("node removed")
        }
        _ => {
            let team = if rng.one_in(2) { json!({"team": "x"}) } else { json!({}) };
            bench.namespace(json!({"metadata": {"name": namespace(rng), "labels": team}}))?;
            Ok("namespace")
        }
    }
}

fn node_name(rng: &mut Rng) -> String {
    format!("node-{}", rng.below(8))
}

fn namespace(rng: &mut Rng) -> &'static str {
    ["default", "default", "other", "third"][rng.below(4) as usize]
}

fn set_node(bench: &mut PluginTestBench, rng: &mut Rng) -> Result<(), PluginTestBenchError> {
    let name = node_name(rng);
    let mut labels = Map::new();
    if !rng.one_in(6) {
        labels.insert("host".into(), name.as_str().into());
    }
    for key in ["zone", "rack"] {
        if !rng.one_in(5) {
            labels.insert(key.into(), format!("{key}-{}", rng.below(3)).into());
        }
    }
    bench.node(json!({"metadata": {"name": name, "labels": labels}}))?;
    Ok(())
}

fn assign_pod(
    bench: &mut PluginTestBench,
    rng: &mut Rng,
    uids: &mut u64,
) -> Result<(), PluginTestBenchError> {
    let name = node_name(rng);
    if bench.world.nodes().row(&name).is_none() {
        return Ok(());
    }
    let uid = if rng.one_in(4) { rng.below(*uids + 1) } else { *uids };
    *uids = (*uids).max(uid + 1);
    let pod = pod(rng, &format!("pod-{uid}"));
    bench.add_assigned_pod(&name, pod)?;
    Ok(())
}

fn pod(rng: &mut Rng, name: &str) -> Value {
    let app = *rng.pick(&["a", "b"]);
    let mut affinity = Map::new();
    for kind in ["podAffinity", "podAntiAffinity"] {
        let n_required = rng.below(6).saturating_sub(3);
        let n_preferred = rng.below(5).saturating_sub(2);
        let required: Vec<Value> = (0..n_required).map(|_| term(rng)).collect();
        let preferred: Vec<Value> = (0..n_preferred)
            .map(|_| json!({"weight": rng.range(1, 100), "podAffinityTerm": term(rng)}))
            .collect();
        affinity.insert(
            kind.into(),
            json!({
                "requiredDuringSchedulingIgnoredDuringExecution": required,
                "preferredDuringSchedulingIgnoredDuringExecution": preferred,
            }),
        );
    }
    let affinity = if rng.one_in(3) { Map::new() } else { affinity };
    json!({
        "metadata": {"name": name, "uid": name, "namespace": namespace(rng), "labels": {"app": app}},
        "spec": {"affinity": affinity},
    })
}

fn term(rng: &mut Rng) -> Value {
    let selector = match rng.below(6) {
        0 => json!(null),
        1 => json!({}),
        2 => json!({"matchLabels": {"app": "b"}}),
        _ => json!({"matchLabels": {"app": "a"}}),
    };
    let namespaces = match rng.below(4) {
        0 => json!(["other"]),
        _ => json!([]),
    };
    let namespace_selector = match rng.below(8) {
        0 => json!({}),
        1 => json!({"matchLabels": {"team": "x"}}),
        2 => json!({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}),
        _ => json!(null),
    };
    json!({
        "topologyKey": *rng.pick(&["host", "zone", "rack"]),
        "labelSelector": selector,
        "namespaces": namespaces,
        "namespaceSelector": namespace_selector,
    })
}
