//! Measures scheduling decisions per second, in process and on one thread: taking in the pod, the scheduling decision and assuming the pod;
//! the queue, API calls and effects are not part of it.
//!
//! `loadmaster-perf [SUBSTRING]` runs the workloads whose name or shape contains the text. `loadmaster-perf nodes` measures what a decision
//! costs in clusters of 100 to 1,000,000 nodes; `loadmaster-perf volumes` pods with claims; `loadmaster-perf volume-memory` the memory of
//! volumes and claims; `loadmaster-perf preemption` pods that evict others; `loadmaster-perf quotas` pods in namespaces with quotas;
//! `loadmaster-perf gangs` PodGroups with Coscheduling; `loadmaster-perf extender` the overhead of calling an extender.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use loadmaster_perf::{
    data_items, decisions, extender, gangs, node_cost, node_cost_plot, preemption, quotas, volumes,
};

/// Benchmarks of the scheduler, in process.
#[derive(Parser)]
#[command(name = "cargo xtask perf")]
struct Args {
    /// The workloads whose name or shape contains this text (decisions per second); or nodes, volumes, volume-memory, preemption, quotas,
    /// gangs, extender.
    #[arg(default_value = "", hide_default_value = true)]
    wanted: String,
    /// Write the figures to this file, as JSON in the form of Kubernetes' scheduler_perf (decisions per second, nodes).
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write the plot to this file (nodes).
    #[arg(long)]
    svg: Option<PathBuf>,
    /// The largest cluster (nodes).
    #[arg(long)]
    nodes_max: Option<u32>,
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

fn write(args: &Args, items: &[data_items::DataItem]) -> Result<()> {
    args.json.as_deref().map_or(Ok(()), |file| data_items::write(file, items))
}
