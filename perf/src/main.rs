//! Measures scheduling decisions per second, in process and on one thread. Creating the pod, the scheduling decision and assuming
//! the pod are measured; the queue, API calls and effects are not.
//!
//! `loadmaster-perf [SUBSTRING]` runs the workloads whose name contains the text. Each is measured twice in a new world: cold (the
//! first fifth of the pods, with the first pod of every template) and preheated (the other pods). The column `keys` is the number of
//! different answers that plugins prepared for pods. `loadmaster-perf volumes` measures pods with claims; `loadmaster-perf volume-memory` the
//! memory of volumes and claims; `loadmaster-perf preemption` pods that evict others; `loadmaster-perf quotas` pods in namespaces with quotas;
//! `loadmaster-perf gangs` PodGroups with Coscheduling; `loadmaster-perf extender` the overhead of calling an extender.

#![expect(clippy::disallowed_types, reason = "measuring is reading a clock")]

mod extender;
mod gangs;
mod preemption;
mod quotas;
mod timed_engine;
mod volumes;
mod workload;

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use loadmaster_config::{AllFeatureGates, check_configuration_value};
use loadmaster_engine::{Decision, Profile, Scheduler};
use loadmaster_framework::{PodInfo, Registry, World};
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use crate::workload::{Kind, Source, Workload};

fn main() -> Result<()> {
    let mut wanted = String::new();
    for arg in std::env::args().skip(1) {
        wanted = arg;
    }
    match wanted.as_str() {
        extender::SERVE => return extender::serve(),
        "extender" => return extender::measure(),
        "gangs" => return gangs::measure(),
        "preemption" => return preemption::measure(),
        "quotas" => return quotas::measure(),
        "volumes" => return volumes::measure(),
        "volume-memory" => return volumes::measure_memory(),
        _ => {}
    }
    println!(
        "| workload | target/s | cold/s | preheated/s | ns per decision | placed | keys | peak RSS MiB |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for workload in workload::ALL.iter().filter(|workload| workload.name.contains(&wanted)) {
        measure(workload)?;
    }
    Ok(())
}

/// The profile of a configuration with these extenders.
fn profile_of(registry: &Registry, profile: Value, extenders: Value) -> Result<Arc<Profile>> {
    let gates = AllFeatureGates::default();
    let config = json!({"apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration", "profiles": [profile], "extenders": extenders});
    let checked = check_configuration_value(config, registry, &gates);
    let checked = checked.map_err(|errors| anyhow!("the configuration: {errors:?}"))?;
    let profile = checked.profiles.first().context("a configuration without a profile")?;
    Ok(Arc::new(Profile::new(profile, &gates.framework_gates())))
}

struct Run {
    decisions: u32,
    placed: u32,
    seconds: f64,
}

fn measure(workload: &Workload) -> Result<()> {
    let registry = loadmaster_plugins::in_tree_registry().with(sample_plugin::DEF);
    let profile = match workload.kind {
        Kind::SamplePlugin => workload::sample_plugin(),
        _ => json!({}),
    };
    let profile = profile_of(&registry, profile, json!([]))?;
    let mut world = workload::world(workload.n_nodes, workload.kind)?;
    let mut source = Source::new(workload.kind, &mut world, 1)?;
    let mut scheduler = Scheduler::new(profile, Rng::new(1));
    let mut assigned = Vec::new();
    let first = workload.n_pods / 5;
    let cold = drive(workload, first, &mut world, &mut source, &mut scheduler, &mut assigned)?;
    let rest = workload.n_pods - first;
    let warm = drive(workload, rest, &mut world, &mut source, &mut scheduler, &mut assigned)?;
    let rate = |run: &Run| f64::from(run.decisions) / run.seconds;
    println!(
        "| {} | {} | {:.0} | {:.0} | {:.0} | {} of {} | {} | {} |",
        workload.name,
        workload.target,
        rate(&cold),
        rate(&warm),
        warm.seconds * 1e9 / f64::from(warm.decisions),
        cold.placed + warm.placed,
        workload.n_pods,
        scheduler.cache_size().keys,
        peak_rss_mib().context("reading the peak resident set size")?,
    );
    Ok(())
}

fn drive(
    workload: &Workload,
    n: u32,
    world: &mut World,
    source: &mut Source,
    scheduler: &mut Scheduler,
    assigned: &mut Vec<Box<str>>,
) -> Result<Run> {
    let mut rng = Rng::new(7);
    let mut placed = 0;
    let start = Instant::now();
    for _ in 0..n {
        let pod = source.next(world)?;
        let Decision::Selected { row, .. } = scheduler.schedule_pod(world, &pod) else { continue };
        placed += 1;
        if workload.kind == Kind::BasicWithDeletes {
            assigned.push(pod.uid.clone());
            if assigned.len() > 1_000 {
                let at = rng.below(assigned.len() as u64) as usize;
                world.remove_pod(&assigned.swap_remove(at));
            }
        }
        let pod: PodInfo = pod;
        world.add_pod(row, Arc::new(pod));
    }
    Ok(Run { decisions: n, placed, seconds: start.elapsed().as_secs_f64() })
}

/// The peak resident set size from `/proc`; 0 where there is no `/proc`.
fn peak_rss_mib() -> Option<u64> {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return Some(0) };
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib / 1024)
}
