//! Random histories: after every change the incremental form equals the per-node methods.

use std::sync::Arc;

use loadmaster_api::{Service, Str};
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
    let mut bench = PluginTestBench::new(&DEF, args(&mut rng))?;
    let mut uids = 0;
    set_service(&mut bench, &mut rng)?;
    for _ in 0..rng.range(1, 6) {
        set_node(&mut bench, &mut rng)?;
    }
    for _ in 0..rng.below(8) {
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
        _ => set_service(bench, rng).map(|()| "service"),
    }
}

fn set_service(bench: &mut PluginTestBench, rng: &mut Rng) -> Result<(), PluginTestBenchError> {
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": labels(rng)},
    }))
    .map_err(|error| PluginTestBenchError(error.to_string()))?;
    bench.world.update_cluster_objects(|cluster| {
        cluster.services.insert(Str::new("default"), vec![Arc::new(service)]);
    });
    Ok(())
}

fn args(rng: &mut Rng) -> Value {
    if rng.one_in(2) {
        return json!({});
    }
    let constraints: Vec<Value> = ["kubernetes.io/hostname", "zone"]
        .iter()
        .map(|key| {
            json!({"maxSkew": rng.range(1, 3), "topologyKey": key, "whenUnsatisfiable": action(rng)})
        })
        .collect();
    json!({"defaultingType": "List", "defaultConstraints": constraints})
}

fn action(rng: &mut Rng) -> &'static str {
    if rng.one_in(2) { "DoNotSchedule" } else { "ScheduleAnyway" }
}

fn node_name(rng: &mut Rng) -> String {
    format!("node-{}", rng.below(8))
}

fn set_node(bench: &mut PluginTestBench, rng: &mut Rng) -> Result<(), PluginTestBenchError> {
    let name = node_name(rng);
    let mut labels = Map::new();
    if !rng.one_in(6) {
        // Sometimes two nodes have the same host name.
        let hostname = if rng.one_in(25) { "shared" } else { &name };
        labels.insert("kubernetes.io/hostname".into(), hostname.into());
    }
    for key in ["zone", "topology.kubernetes.io/zone", "rack"] {
        if !rng.one_in(5) {
            labels.insert(key.into(), format!("{key}-{}", rng.below(3)).replace('/', "-").into());
        }
        if rng.one_in(60) {
            labels.insert(key.into(), "".into());
        }
    }
    labels.insert("disk".into(), (*rng.pick(&["ssd", "hdd"])).into());
    let taints = match rng.below(4) {
        0 => json!([{"key": "own", "value": "x", "effect": "NoSchedule"}]),
        1 => json!([{"key": "own", "effect": "PreferNoSchedule"}]),
        _ => json!([]),
    };
    let node = json!({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}});
    bench.node(node)?;
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
    // The name of an existing pod moves it, or marks it as terminating.
    let uid = if rng.one_in(4) { rng.below(*uids + 1) } else { *uids };
    *uids = (*uids).max(uid + 1);
    let mut pod = pod(rng, &format!("pod-{uid}"));
    if rng.one_in(4) {
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    bench.add_assigned_pod(&name, pod)?;
    Ok(())
}

fn labels(rng: &mut Rng) -> Value {
    match rng.below(4) {
        0 => json!({}),
        1 => json!({"app": "b"}),
        2 => json!({"app": "a", "version": format!("{}", rng.below(2))}),
        _ => json!({"app": "a"}),
    }
}

fn pod(rng: &mut Rng, name: &str) -> Value {
    let namespace = if rng.one_in(5) { "other" } else { "default" };
    let n_constraints = rng.below(5).saturating_sub(1);
    let constraints: Vec<Value> = (0..n_constraints).map(|_| constraint(rng)).collect();
    let node_selector = if rng.one_in(4) { json!({"disk": "ssd"}) } else { json!({}) };
    let tolerations = if rng.one_in(2) { json!([{"operator": "Exists"}]) } else { json!([]) };
    json!({
        "metadata": {"name": name, "uid": name, "namespace": namespace, "labels": labels(rng)},
        "spec": {
            "topologySpreadConstraints": constraints,
            "nodeSelector": node_selector,
            "tolerations": tolerations,
        },
    })
}

fn constraint(rng: &mut Rng) -> Value {
    let key = *rng.pick(&["kubernetes.io/hostname", "zone", "rack"]);
    let selector = match rng.below(6) {
        0 => json!(null),
        1 => json!({}),
        2 => json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["b"]}]}),
        _ => json!({"matchLabels": {"app": "a"}}),
    };
    let mut constraint = json!({
        "maxSkew": rng.range(1, 2),
        "topologyKey": key,
        "whenUnsatisfiable": action(rng),
        "labelSelector": selector,
    });
    if rng.one_in(3) {
        constraint["nodeAffinityPolicy"] = (*rng.pick(&["Honor", "Ignore"])).into();
        constraint["nodeTaintsPolicy"] = (*rng.pick(&["Honor", "Ignore"])).into();
    }
    if rng.one_in(4) {
        constraint["minDomains"] = rng.range(1, 4).into();
    }
    if rng.one_in(4) {
        constraint["matchLabelKeys"] = json!(["version", "absent"]);
    }
    constraint
}
