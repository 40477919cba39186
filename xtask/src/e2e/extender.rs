//! `cargo xtask e2e extender`: compares kube-scheduler and Loadmaster with one scripted extender, case by case.
//!
//! A case is a pod and the responses of its extenders. Cases run sequentially, in rounds that share a run of each scheduler. The pod's
//! node, condition and Event, the remaining pods, and all requests with their bodies are compared.

mod cases;
mod cluster;
mod scripted_extender;

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use serde_json::{Value, json};

use self::cases::{Case, Round};
use self::scripted_extender::ScriptedExtender;
use super::api_client::ApiClient;
use super::control_plane::{ControlPlane, ControlPlaneOptions};
use super::credentials::UserIdentity;
use super::load_objects;
use super::scheduler::{SchedulerArgs, SchedulerKind, SchedulerSetup};

/// Compare kube-scheduler and Loadmaster with a scripted extender that injects faults.
#[derive(Parser)]
pub struct Args {
    #[command(flatten)]
    chosen: SchedulerArgs,
    /// Only cases whose name contains this.
    #[arg(default_value = "")]
    name: String,
    /// Print the outcome of each case.
    #[arg(long)]
    show: bool,
}

/// Outcomes by the case's name.
type Outcomes = BTreeMap<&'static str, Vec<String>>;

/// Returns whether all outcomes are as expected.
pub async fn run(args: &Args) -> Result<bool> {
    let kinds = args.chosen.kinds()?;
    let plane = ControlPlane::start(&ControlPlaneOptions::default()).await?;
    let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
    cluster::create_cluster(&api).await?;
    let script = ScriptedExtender::start(&api).await?;
    for kind in &kinds {
        load_objects::namespace(&api, kind.name()).await?;
    }
    let (mut n_cases, mut n_wrong) = (0, 0);
    for mut round in cases::rounds() {
        round.cases.retain(|case| case.name.contains(&args.name));
        let mut outcomes = Vec::new();
        for &kind in &kinds {
            let played = run_round(args, kind, &plane, &api, &script, &round).await;
            outcomes.push(played.with_context(|| format!("{}: {}", kind.name(), round.name))?);
        }
        for case in &round.cases {
            n_cases += 1;
            if args.show {
                println!("{}", case.name);
                let both = kinds.iter().zip(&outcomes);
                both.for_each(|(kind, it)| {
                    println!("  {}\n    {}", kind.name(), it[case.name].join("\n    "))
                });
            }
            if let [upstream, ours] = outcomes.as_slice() {
                n_wrong +=
                    usize::from(!is_as_expected(case, &upstream[case.name], &ours[case.name]));
            }
        }
    }
    ensure!(n_cases > 0, "there is no case {:?}", args.name);
    println!("{n_cases} cases, {n_wrong} with unexpected differences");
    plane.finish();
    Ok(n_wrong == 0)
}

async fn run_round(
    args: &Args,
    kind: SchedulerKind,
    plane: &ControlPlane,
    api: &ApiClient,
    script: &ScriptedExtender,
    round: &Round,
) -> Result<Outcomes> {
    let kubeconfig = plane.kubeconfig(&UserIdentity::new("system:kube-scheduler", &[]));
    let mut setup = SchedulerSetup::new(kind.name(), plane.folder(), &kubeconfig);
    let extenders = configurations(&script.url, round);
    setup.extenders = &extenders;
    // No retries during a case.
    setup.extra_config.insert("podInitialBackoffSeconds".to_owned(), 60.into());
    setup.extra_config.insert("podMaxBackoffSeconds".to_owned(), 60.into());
    // It adds its own message to an unschedulable pod, and is not implemented in Loadmaster.
    let profile = json!({"schedulerName": setup.scheduler_name,
        "plugins": {"multiPoint": {"disabled": [{"name": "DynamicResources"}]}}});
    setup.extra_config.insert("profiles".to_owned(), json!([profile]));
    let mut scheduler = args.chosen.start(kind, &setup)?;
    scheduler.wait_until_ready().await?;
    let mut outcomes = Outcomes::new();
    for case in &round.cases {
        let played = cluster::run_case(api, kind.name(), script, case).await;
        outcomes.insert(case.name, played.with_context(|| case.name)?);
        scheduler.process.check_running()?;
    }
    Ok(outcomes)
}

/// `extenders` of a configuration for all cases of a round.
fn configurations(url: &str, round: &Round) -> Vec<Value> {
    let of_round = round.extenders.iter().map(|(name, config)| ((*name).to_owned(), config));
    let of_cases = round.cases.iter().flat_map(|case| {
        let extenders = case.extenders.iter().enumerate();
        extenders.map(|(at, config)| (case.extender_name(at), config))
    });
    let all = of_round.chain(of_cases).map(|(name, config)| {
        let mut config = config.clone();
        if config["urlPrefix"].is_null() {
            config["urlPrefix"] = json!(format!("{url}/{name}"));
        }
        config
    });
    all.collect()
}

/// Whether two outcomes differ exactly in the expected lines; prints unexpected differences.
fn is_as_expected(case: &Case, upstream: &[String], ours: &[String]) -> bool {
    let only = |these: &[String], those: &[String]| -> Vec<String> {
        these.iter().filter(|line| !those.contains(line)).cloned().collect()
    };
    let (only_upstream, only_ours) = (only(upstream, ours), only(ours, upstream));
    let same_order = only(upstream, &only_upstream) == only(ours, &only_ours);
    let fits = |lines: &[String], starts: &[&str]| {
        let each = lines.iter().zip(starts).all(|(line, start)| line.starts_with(start));
        lines.len() == starts.len() && each
    };
    let is_expected = fits(&only_upstream, case.expected_differences.0)
        && fits(&only_ours, case.expected_differences.1);
    if is_expected && same_order {
        return true;
    }
    println!("{}: only kube-scheduler has\n  {}", case.name, only_upstream.join("\n  "));
    println!("only Loadmaster has\n  {}", only_ours.join("\n  "));
    if !same_order {
        println!("the common lines are in another order");
    }
    false
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_every_behavior_has_its_extender() {
        for round in cases::rounds() {
            let names: BTreeSet<&str> = round.cases.iter().map(|case| case.name).collect();
            assert_eq!(names.len(), round.cases.len(), "{}", round.name);
            for case in &round.cases {
                let own = (0..case.extenders.len()).map(|at| case.extender_name(at));
                let all = own.chain(round.extenders.iter().map(|(name, _)| (*name).to_owned()));
                let all: BTreeSet<String> = all.collect();
                assert!(case.behaviors.keys().all(|(name, _)| all.contains(name)), "{}", case.name);
            }
        }
    }

    #[test]
    fn only_expected_differences_are_accepted() {
        let check = |upstream: &[&str], ours: &[&str], differs, want: bool| {
            let owned =
                |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
            let mut case = cases::rounds().remove(0).cases.remove(0);
            case.expected_differences = differs;
            assert_eq!(
                is_as_expected(&case, &owned(upstream), &owned(ours)),
                want,
                "{upstream:?} {ours:?}"
            );
        };
        check(&["a", "b"], &["a", "b"], (&[], &[]), true);
        check(&["a", "b"], &["b", "a"], (&[], &[]), false);
        check(&["a", "b"], &["a", "c"], (&[], &[]), false);
        check(&["a", "b 1"], &["a", "c 1"], (&["b"], &["c"]), true);
        // An expected difference that no longer exists is also reported.
        check(&["a", "b"], &["a", "b"], (&["b"], &["c"]), false);
        check(&["a", "b"], &["a"], (&["b"], &[]), true);
    }
}
