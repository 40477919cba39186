//! `cargo xtask e2e shadow`: Loadmaster as a shadow of the real kube-scheduler.
//!
//! kube-scheduler binds mixed pods; Loadmaster compares each decision with its own, and its report must leave fewer than one in a thousand
//! unexplained. Nodes have the same images with different sizes, and different capacities. In other runs kube-scheduler has another weight of
//! one plugin: the report must say that the schedulers differ, and name that plugin. Each run is recorded, and its replay must give the same
//! comparisons.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use serde_json::{Map, Value, json};

use super::api_client::ApiClient;
use super::bound_pods::BoundPods;
use super::control_plane::{ControlPlane, ControlPlaneOptions};
use super::credentials::UserIdentity;
use super::programs::{self, Program};
use super::scheduler::{Scheduler, SchedulerArgs, SchedulerKind, SchedulerSetup};
use super::workload::{self, Workload};
use super::{load_objects, special_pods};

const NAMESPACE: &str = "e2e";
const MIB: u64 = 1 << 20;
/// The sizes that nodes report for the same image; every fourth node does not have it.
const IMAGE_SIZES: [Option<u64>; 4] = [Some(60 * MIB), Some(150 * MIB), None, Some(300 * MIB)];
/// How long the last bindings may take to be compared.
const COMPARED_TIMEOUT: Duration = Duration::from_secs(60);

/// Run Loadmaster as a shadow of kube-scheduler, and check its report.
#[derive(Parser)]
pub struct Args {
    /// Number of nodes.
    #[arg(long, default_value_t = 2_000)]
    nodes: u32,
    /// Number of pods. Another weight is named only after many decisions in which it counts.
    #[arg(long, default_value_t = 10_000)]
    pods: u32,
    /// percentageOfNodesToScore of both schedulers, one run each; 0 for kube-scheduler's default.
    #[arg(long, value_delimiter = ',', default_value = "0,100")]
    percentage: Vec<u32>,
    /// Other weights of kube-scheduler, as PLUGIN=WEIGHT, one more run each; `none` for no such run.
    #[arg(long, value_delimiter = ',', default_value = "NodeResourcesFit=5")]
    weight: Vec<String>,
    /// The loadmaster binary; by default that of the release profile.
    #[arg(long, value_name = "FILE")]
    loadmaster: Option<std::path::PathBuf>,
}

/// Returns whether every report is as it must be.
pub async fn run(args: &Args) -> Result<bool> {
    Workload::Mixed.check_size(args.nodes, args.pods)?;
    programs::build(&[Program::KubeScheduler])?;
    let loadmaster = programs::loadmaster(args.loadmaster.as_deref())?;
    let mut good = true;
    for &percentage in &args.percentage {
        let run = ShadowRun { args, loadmaster: &loadmaster, percentage, weight: None };
        good &= run.run().await.with_context(|| format!("the run with {percentage} %"))?;
    }
    for weight in args.weight.iter().filter(|weight| *weight != "none") {
        let (plugin, weight) = weight.split_once('=').context("--weight is PLUGIN=WEIGHT")?;
        let weight = (plugin, weight.parse().context("a weight")?);
        for &percentage in &args.percentage {
            let run = ShadowRun { args, loadmaster: &loadmaster, percentage, weight: Some(weight) };
            good &= run.run().await.with_context(|| format!("the run with {weight:?}"))?;
        }
    }
    Ok(good)
}

struct ShadowRun<'a> {
    args: &'a Args,
    loadmaster: &'a Path,
    percentage: u32,
    /// The plugin of kube-scheduler with another weight.
    weight: Option<(&'a str, u32)>,
}

impl ShadowRun<'_> {
    async fn run(&self) -> Result<bool> {
        let (n_nodes, n_pods) = (self.args.nodes, self.args.pods);
        let plane = ControlPlane::start(&ControlPlaneOptions::default()).await?;
        let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
        load_objects::namespace(&api, NAMESPACE).await?;
        load_objects::create_all(&api, "/api/v1/nodes", 0..n_nodes, node).await?;
        let kubeconfig = plane.kubeconfig(&UserIdentity::new("system:kube-scheduler", &[]));
        let setup = |kind: SchedulerKind, weight| SchedulerSetup {
            extra_config: self.configuration(weight),
            ..SchedulerSetup::new(kind.name(), plane.folder(), &kubeconfig)
        };
        let chosen = SchedulerArgs::only(self.loadmaster.to_owned());
        let theirs = setup(SchedulerKind::KubeScheduler, self.weight);
        let mut theirs = chosen.start(SchedulerKind::KubeScheduler, &theirs)?;
        let (report, recording) =
            (plane.folder().join("shadow.json"), plane.folder().join("recording"));
        let flags = [
            "--shadow".to_owned(),
            format!("--shadow-report={}", report.display()),
            format!("--record={}", recording.display()),
        ];
        let ours = setup(SchedulerKind::Loadmaster, None);
        let mut ours = chosen.start_with(SchedulerKind::Loadmaster, &ours, &flags)?;
        theirs.wait_until_ready().await?;
        ours.wait_until_ready().await?;
        let mut bound = BoundPods::watch(&api, NAMESPACE).await?;
        load_objects::pods(&api, NAMESPACE, Workload::Mixed, 0..n_pods).await?;
        let all = bound.wait_for(n_pods as usize, special_pods::STEP_TIMEOUT).await?;
        ensure!(all, "only {} of {n_pods} pods were bound", bound.bound_at().len());
        let token = plane.admin_token()?;
        wait_for_comparisons(&mut ours, &token, n_pods).await?;
        ours.process.terminate()?;
        ours.process.wait(special_pods::STEP_TIMEOUT).await?;
        let usage = theirs.process.usage()?.cpu_seconds;
        let text = fs::read(&report).context("reading the report")?;
        let report: Value = serde_json::from_slice(&text).context("parsing the report")?;
        let title =
            format!("{n_nodes} nodes, {n_pods} pods, {} %, {:?}", self.percentage, self.weight);
        println!("{title} (kube-scheduler: {usage:.1} s of CPU time): {}", summary(&report));
        let faults = self.faults(&report);
        faults.iter().for_each(|fault| println!("{title}: {fault}"));
        replay(self.loadmaster, &recording)?;
        if faults.is_empty() {
            plane.finish();
        }
        Ok(faults.is_empty())
    }

    fn configuration(&self, weight: Option<(&str, u32)>) -> Map<String, Value> {
        let enabled = weight.map(|(plugin, weight)| json!({"name": plugin, "weight": weight}));
        let enabled: Vec<Value> = enabled.into_iter().collect();
        let profile = json!({
            "schedulerName": "default-scheduler",
            "percentageOfNodesToScore": self.percentage,
            "plugins": {"multiPoint": {"enabled": enabled}}});
        [("profiles".to_owned(), json!([profile]))].into_iter().collect()
    }

    /// What is wrong with a report.
    fn faults(&self, report: &Value) -> Vec<String> {
        let mut faults = Vec::new();
        let mut check = |is_good: bool, fault: String| {
            if !is_good {
                faults.push(fault);
            }
        };
        let compared = report["comparedPods"].as_u64();
        check(compared == Some(self.args.pods.into()), format!("{compared:?} pods were compared"));
        let (n_unexplained, n_not_examined) =
            (n_pods(report, "unexplained"), n_pods(report, "not_examined"));
        let traces = report["unexplained"].as_array().map_or(0, Vec::len) as u64;
        check(traces == n_unexplained.min(1000), format!("{traces} traces"));
        let untraced = report["unexplained"].as_array().into_iter().flatten();
        let untraced = untraced.filter(|trace| !trace["recordingEntry"].is_u64()).count();
        check(untraced == 0, format!("{untraced} traces without an entry of the recording"));
        match self.weight {
            None => {
                check(
                    report["verdict"] == "agrees",
                    format!("the verdict is {}: {}", report["verdict"], report["unexplained"]),
                );
                check(n_not_examined == 0, format!("{n_not_examined} pods were not examined"));
            }
            Some((plugin, _)) => {
                let named = &report["differingPlugins"];
                let is_named = named.as_array().is_some_and(|all| all.contains(&plugin.into()));
                check(
                    report["verdict"] == "differs" && is_named,
                    format!("the verdict is {}, and {named} was named", report["verdict"]),
                );
            }
        }
        faults
    }
}

fn n_pods(report: &Value, result: &str) -> u64 {
    report["results"][result]["pods"].as_u64().unwrap_or(0)
}

fn summary(report: &Value) -> String {
    let results = report["results"].as_object().into_iter().flatten();
    let results = results
        .map(|(name, count)| format!("{name} {} ({} points)", count["pods"], count["pointsLost"]));
    let results: Vec<String> = results.collect();
    format!(
        "{}; {}; order {}; plugins {}; weights {}",
        report["verdict"],
        results.join(", "),
        report["explainedByOrderOf"],
        report["differingPlugins"],
        report["likelyWeights"]
    )
}

/// A node of the workload, with fewer CPUs on some nodes, and other sizes of the first image.
fn node(i: u32) -> Value {
    let mut node = workload::node(i);
    let cpu = ["32", "24", "16"][i as usize / 3 % 3];
    for field in ["capacity", "allocatable"] {
        node["status"][field]["cpu"] = cpu.into();
    }
    let images = node["status"]["images"].as_array_mut();
    match (images, IMAGE_SIZES[i as usize % 4]) {
        (Some(images), Some(size)) => images[0]["sizeBytes"] = size.into(),
        (Some(images), None) => drop(images.remove(0)),
        (None, _) => {}
    }
    node
}

/// Waits until the metrics count all comparisons.
async fn wait_for_comparisons(ours: &mut Scheduler, token: &str, n_pods: u32) -> Result<()> {
    let api = ApiClient::insecure(&ours.url(), Some(token))?;
    special_pods::wait_until("all comparisons", COMPARED_TIMEOUT, async || {
        ours.process.check_running()?;
        let text = api.get("/metrics").await?;
        let text = String::from_utf8_lossy(&text);
        let lines =
            text.lines().filter(|line| line.starts_with("loadmaster_shadow_decisions_total{"));
        let n: f64 = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum();
        Ok(n as u32 >= n_pods)
    })
    .await
}

/// A recording gives the same comparisons again.
fn replay(loadmaster: &Path, recording: &Path) -> Result<()> {
    let mut command = Command::new(loadmaster);
    let output = command.arg("replay").arg(recording).output().context("starting replay")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "replay: {}: {text}{errors}", output.status);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_checked() {
        let args = Args::parse_from(["shadow", "--pods", "2000"]);
        let check = |weight,
                     verdict: &str,
                     plugin: Option<&str>,
                     n_unexplained: u32,
                     want: usize| {
            let run = ShadowRun { args: &args, loadmaster: Path::new(""), percentage: 0, weight };
            let trace = json!({"recordingEntry": 7});
            let report = json!({
                "verdict": verdict, "differingPlugins": plugin.into_iter().collect::<Vec<_>>(), "comparedPods": 2000,
                "results": {"unexplained": {"pods": n_unexplained}},
                "unexplained": vec![trace; n_unexplained as usize]});
            assert_eq!(run.faults(&report).len(), want, "{report}");
        };
        let fit = Some(("NodeResourcesFit", 10));
        check(None, "agrees", None, 1, 0);
        check(None, "differs", Some("NodeResourcesFit"), 20, 1);
        check(fit, "differs", Some("NodeResourcesFit"), 20, 0);
        check(fit, "differs", Some("ImageLocality"), 20, 1);
        check(fit, "agrees", None, 1, 1);
    }

    #[test]
    fn a_report_with_too_few_pods_or_traces_is_faulty() {
        let args = Args::parse_from(["shadow", "--pods", "2000"]);
        let run = ShadowRun { args: &args, loadmaster: Path::new(""), percentage: 0, weight: None };
        let report = json!({
            "verdict": "agrees", "comparedPods": 1999,
            "results": {"unexplained": {"pods": 1}, "not_examined": {"pods": 1}}, "unexplained": []});
        assert_eq!(run.faults(&report).len(), 3);
    }
}
