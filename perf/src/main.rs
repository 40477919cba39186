//! Measures scheduling decisions per second, in process and on one thread: taking in the pod, the scheduling decision and assuming the pod;
//! the queue, API calls and effects are not part of it.
//!
//! `loadmaster-perf [SUBSTRING]` runs the workloads whose name or shape contains the text. `loadmaster-perf nodes` measures what a decision
//! costs in clusters of 100 to 1,000,000 nodes; `loadmaster-perf volumes` pods with claims; `loadmaster-perf volume-memory` the memory of
//! volumes and claims; `loadmaster-perf preemption` pods that evict others; `loadmaster-perf quotas` pods in namespaces with quotas;
//! `loadmaster-perf gangs` PodGroups with Coscheduling; `loadmaster-perf extender` the overhead of calling an extender;
//! `loadmaster-perf engine` the whole engine; `loadmaster-perf scheduler-perf` Kubernetes' own test cases.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use loadmaster_perf::{
    data_items, decisions, extender, gangs, node_cost, node_cost_plot, preemption, quotas,
    scheduler_perf, volumes, whole_engine,
};
use serde_json::Value;

/// As in the `loadmaster` program.
#[cfg(not(target_env = "musl"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Benchmarks of the scheduler, in process.
#[derive(Parser)]
#[command(name = "cargo xtask perf")]
struct Args {
    /// The workloads whose name or shape contains this text (decisions per second); or nodes, volumes, volume-memory, preemption, quotas,
    /// gangs, extender, engine (with queue, effects and answers), scheduler-perf (Kubernetes' own test cases).
    #[arg(default_value = "", hide_default_value = true)]
    wanted: String,
    /// Write the figures to this file, as JSON in the form of Kubernetes' scheduler_perf (decisions per second, nodes, engine, scheduler-perf).
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write the plot to this file (nodes).
    #[arg(long)]
    svg: Option<PathBuf>,
    /// The largest cluster (nodes).
    #[arg(long)]
    nodes_max: Option<u32>,
    /// The folder of Kubernetes' test cases, `test/integration/scheduler_perf` (scheduler-perf).
    #[arg(long)]
    folder: Option<PathBuf>,
    /// The label of the workloads that are run; integration-test: small ones (scheduler-perf).
    #[arg(long, default_value = "performance")]
    label: String,
    /// Run the workloads whose name contains this text (scheduler-perf).
    #[arg(long, default_value = "", hide_default_value = true)]
    case: String,
}

fn main() -> Result<()> {
    // Another process of this program.
    if std::env::args().nth(1).as_deref() == Some(extender::SERVE) {
        return extender::serve();
    }
    let args = Args::parse();
    let is_nodes = args.wanted == "nodes";
    ensure!(is_nodes || args.svg.is_none(), "--svg is for nodes");
    ensure!(is_nodes || args.nodes_max.is_none(), "--nodes-max is for nodes");
    let items = match args.wanted.as_str() {
        "nodes" => {
            let (lines, items) = node_cost::measure(args.nodes_max.unwrap_or(u32::MAX))?;
            if let Some(file) = &args.svg {
                let svg = node_cost_plot::svg("Time of a decision and number of nodes", &lines);
                std::fs::write(file, svg).with_context(|| format!("writing {}", file.display()))?;
            }
            items
        }
        "scheduler-perf" => {
            let folder = args.folder.clone().map_or_else(scheduler_perf_folder, Ok)?;
            scheduler_perf::measure(&folder, &args.label, &args.case)?
        }
        "engine" => whole_engine::measure()?,
        other => {
            let measure = match other {
                "extender" => extender::measure,
                "gangs" => gangs::measure,
                "preemption" => preemption::measure,
                "quotas" => quotas::measure,
                "volumes" => volumes::measure,
                "volume-memory" => volumes::measure_memory,
                _ => return write(&args, &decisions::measure(other)?),
            };
            ensure!(args.json.is_none(), "--json is not for {other}");
            return measure();
        }
    };
    write(&args, &items)
}

/// The folder in the Go module that the programs in `conformance/` are built from, which is downloaded if it is not there.
fn scheduler_perf_folder() -> Result<PathBuf> {
    let conformance = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance");
    let list = ["list", "-m", "-f", "{{.Path}}@{{.Version}}", "k8s.io/kubernetes"];
    let module = go(conformance, &list)?;
    let module: Value =
        serde_json::from_str(&go(conformance, &["mod", "download", "-json", module.trim()])?)?;
    let folder = module["Dir"].as_str().context("go names no folder of the module")?;
    Ok(PathBuf::from(folder).join("test/integration/scheduler_perf"))
}

fn go(folder: &str, args: &[&str]) -> Result<String> {
    let output = Command::new("go").args(args).current_dir(folder).output();
    let output = output
        .context("running go, which finds the files of scheduler_perf; --folder names them, too")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "go {}: {}", args.join(" "), errors.trim());
    Ok(String::from_utf8(output.stdout)?)
}

fn write(args: &Args, items: &[data_items::DataItem]) -> Result<()> {
    args.json.as_deref().map_or(Ok(()), |file| data_items::write(file, items))
}
