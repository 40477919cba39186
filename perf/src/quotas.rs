//! Namespaces with ElasticQuotas: CapacityScheduling checks each pod against the quota of its namespace, and against what all
//! namespaces use together.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use loadmaster_api::{Pod, Str};
use loadmaster_engine::{Decision, Scheduler};
use loadmaster_framework::api_calls::ObjectRef;
use loadmaster_framework::{PodInfo, World};
use loadmaster_scheduler_plugins::elastic_quota::elastic_quotas;
use loadmaster_stdx::Rng;
use serde_json::json;

use crate::workload::{self, Kind};

const N_NODES: u32 = 5_000;
/// Pods that run before the measurement, and pods whose decisions are measured.
const N_RUNNING: u32 = 100_000;
const N_MEASURED: u32 = 20_000;
/// The project's target in decisions per second.
const TARGET: u64 = 20_000;

/// Runs all workloads and prints a table.
pub fn measure() -> Result<()> {
    println!("| workload | target/s | decisions/s | us per decision |");
    println!("| --- | --- | --- | --- |");
    for (n_namespaces, has_quotas) in [(1, true), (100, true), (1_000, true), (1_000, false)] {
        let mut bench = Bench::new(n_namespaces, has_quotas)?;
        for nth in 0..N_RUNNING {
            bench.schedule(nth).with_context(|| format!("pod {nth}"))?;
        }
        let mut seconds = 0.0;
        for nth in N_RUNNING..N_RUNNING + N_MEASURED {
            seconds += bench.schedule(nth).with_context(|| format!("pod {nth}"))?;
        }
        let what = if has_quotas { "quotas" } else { "namespaces without the plugin" };
        println!(
            "| {n_namespaces} {what}, {N_RUNNING} pods running, {N_NODES} nodes | {TARGET} | {:.0} | {:.1} |",
            f64::from(N_MEASURED) / seconds,
            seconds * 1e6 / f64::from(N_MEASURED)
        );
    }
    Ok(())
}

struct Bench {
    world: World,
    scheduler: Scheduler,
    /// The first pod of a StatefulSet, as the API server makes it.
    stateful: Pod,
    namespaces: Vec<Str>,
}

impl Bench {
    /// Without quotas the default profile is measured, for comparison.
    fn new(n_namespaces: u32, has_quotas: bool) -> Result<Bench> {
        let registry = loadmaster_plugins::in_tree_registry();
        let registry = loadmaster_scheduler_plugins::with_scheduler_plugins(registry);
        let with_quotas = json!({"plugins": {
            "multiPoint": {"enabled": [{"name": "CapacityScheduling"}]},
            "postFilter": {"disabled": [{"name": "DefaultPreemption"}]},
        }});
        let profile = if has_quotas { with_quotas } else { json!({}) };
        let profile = crate::profile_of(&registry, profile, json!([]))?;
        let mut world = workload::world(N_NODES, Kind::Basic)?;
        profile.watches.iter().for_each(|watch| world.watch_objects(watch));
        profile.pod_sums.iter().for_each(|sums| world.sum_pods(sums));
        let namespaces: Vec<Str> =
            (0..n_namespaces).map(|nth| Str::new(&format!("tenant-{nth}"))).collect();
        // Each tenant gets a little more than its part of all pods.
        let n_pods = (N_RUNNING + N_MEASURED) / n_namespaces + 10;
        let kind = elastic_quotas();
        for namespace in &namespaces {
            let object = ObjectRef {
                group: kind.group.clone(),
                resource: kind.resource.clone(),
                namespace: namespace.clone(),
                name: Str::new("quota"),
            };
            let amounts = json!({"cpu": format!("{}m", n_pods * 50), "memory": format!("{}Mi", n_pods * 100)});
            let quota = json!({"metadata": {"name": "quota", "namespace": namespace},
                "spec": {"min": amounts, "max": amounts}});
            let update = world.update_watched_object(&object, Some(&quota));
            ensure!(update.decode_error.is_none(), "{:?}", update.decode_error);
        }
        let scheduler = Scheduler::new(profile, Rng::new(1));
        Ok(Bench { world, scheduler, stateful: stateful_pod()?, namespaces })
    }

    /// Schedules the next pod of a tenant; returns the seconds from parsing it until it is assumed.
    fn schedule(&mut self, nth: u32) -> Result<f64> {
        let at = nth as usize % self.namespaces.len();
        let ordinal = nth as usize / self.namespaces.len();
        let mut pod = nth_stateful_pod(&self.stateful, ordinal as u64);
        pod.metadata.namespace = self.namespaces[at].clone();
        pod.metadata.name = format!("db-{ordinal}").into();
        pod.metadata.uid = format!("uid-{at}-{ordinal}").into();
        let start = Instant::now();
        let pod: PodInfo = self.world.parse_pod(&pod)?;
        let decision = self.scheduler.schedule_pod(&mut self.world, &pod);
        let Decision::Selected { row, .. } = decision else {
            anyhow::bail!("no node was selected")
        };
        self.world.add_pod(row, Arc::new(pod));
        Ok(start.elapsed().as_secs_f64())
    }
}

/// A pod of the StatefulSet `db`, without what is different in each.
fn stateful_pod() -> anyhow::Result<Pod> {
    let mut manifest =
        workload::pod(json!({"app": "db", "controller-revision-hash": "db-5d9c8"}), 50, json!({}));
    manifest["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "db-uid", "controller": true,
    }]);
    manifest["spec"]["volumes"] = json!([{"name": "kube-api-access", "projected": {}}]);
    manifest["spec"]["tolerations"] = ["not-ready", "unreachable"]
        .map(|condition| {
            json!({"key": format!("node.kubernetes.io/{condition}"), "operator": "Exists",
                "effect": "NoExecute", "tolerationSeconds": 300})
        })
        .into();
    Ok(serde_json::from_value(manifest)?)
}

/// The pod with this ordinal of the StatefulSet.
fn nth_stateful_pod(first: &Pod, ordinal: u64) -> Pod {
    let mut pod = first.clone();
    let ordinal = ordinal.to_string();
    let labels = std::mem::take(&mut pod.metadata.labels);
    pod.metadata.labels = labels
        .with("apps.kubernetes.io/pod-index", Str::new(&ordinal))
        .with("statefulset.kubernetes.io/pod-name", Str::new(&format!("db-{ordinal}")));
    pod
}
