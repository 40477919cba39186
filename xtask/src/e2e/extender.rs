//! `cargo xtask e2e extender`: kube-scheduler and Loadmaster ask one scripted extender, case by case.
//!
//! A case is a pod and what its extenders answer. Cases run one after the other, so that nothing else happens meanwhile, in rounds
//! that share a run of each scheduler. Compared are the pod's node, condition and Event, the pods that are left, and all questions with
//! their bodies.

mod cases;
mod script;
mod world;

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use serde_json::{Value, json};

use self::cases::{Case, Round};
use self::script::Script;
use super::api::Api;
use super::control_plane::{ControlPlane, Options};
use super::credentials::Identity;
use super::load;
use super::scheduler::{Chosen, Kind, Setup};

/// kube-scheduler and Loadmaster before one extender that misbehaves.
#[derive(Parser)]
pub struct Args {
    #[command(flatten)]
    chosen: Chosen,
    /// Only cases whose name contains this.
    #[arg(default_value = "")]
    name: String,
    /// Print what became of each case.
    #[arg(long)]
    show: bool,
}

/// Outcomes by the case's name.
type Outcomes = BTreeMap<&'static str, Vec<String>>;

/// Answers whether all outcomes are as they should be.
pub async fn run(args: &Args) -> Result<bool> {
    let kinds = args.chosen.kinds()?;
    let plane = ControlPlane::start(&Options::default()).await?;
    let api = Api::new(&plane.admin_kubeconfig()).await?;
    world::build(&api).await?;
    let script = Script::start(&api).await?;
    for kind in &kinds {
        load::namespace(&api, kind.name()).await?;
    }
    let (mut n_cases, mut n_wrong) = (0, 0);
    for mut round in cases::rounds() {
        round.cases.retain(|case| case.name.contains(&args.name));
        let mut outcomes = Vec::new();
        for &kind in &kinds {
            let played = play_round(args, kind, &plane, &api, &script, &round).await;
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
    println!("{n_cases} cases, {n_wrong} with an outcome that differs otherwise than expected");
    plane.finish();
    Ok(n_wrong == 0)
}

async fn play_round(
    args: &Args,
    kind: Kind,
    plane: &ControlPlane,
    api: &Api,
    script: &Script,
    round: &Round,
) -> Result<Outcomes> {
    let kubeconfig = plane.kubeconfig(&Identity::new("system:kube-scheduler", &[]));
    let mut setup = Setup::new(kind.name(), plane.folder(), &kubeconfig);
    let extenders = configurations(&script.url, round);
    setup.extenders = &extenders;
    // Nobody is tried again while one looks.
    setup.more.insert("podInitialBackoffSeconds".to_owned(), 60.into());
    setup.more.insert("podMaxBackoffSeconds".to_owned(), 60.into());
    // It has words of its own for a pod that fits nowhere, and is not built yet here.
    let profile = json!({"schedulerName": setup.scheduler_name,
        "plugins": {"multiPoint": {"disabled": [{"name": "DynamicResources"}]}}});
    setup.more.insert("profiles".to_owned(), json!([profile]));
    let mut scheduler = args.chosen.start(kind, &setup)?;
    scheduler.wait_until_ready().await?;
    let mut outcomes = Outcomes::new();
    for case in &round.cases {
        let played = world::play(api, kind.name(), script, case).await;
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

/// Whether two outcomes differ in the lines in which they should, and in no others; if not, what differs is printed.
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
    let is_expected = fits(&only_upstream, case.differs.0) && fits(&only_ours, case.differs.1);
    if is_expected && same_order {
        return true;
    }
    println!("{}: kube-scheduler alone has\n  {}", case.name, only_upstream.join("\n  "));
    println!("Loadmaster alone has\n  {}", only_ours.join("\n  "));
    if !same_order {
        println!("and what both have is in another order");
    }
    false
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_every_act_has_its_extender() {
        for round in cases::rounds() {
            let names: BTreeSet<&str> = round.cases.iter().map(|case| case.name).collect();
            assert_eq!(names.len(), round.cases.len(), "{}", round.name);
            for case in &round.cases {
                let own = (0..case.extenders.len()).map(|at| case.extender_name(at));
                let all = own.chain(round.extenders.iter().map(|(name, _)| (*name).to_owned()));
                let all: BTreeSet<String> = all.collect();
                assert!(case.acts.keys().all(|(name, _)| all.contains(name)), "{}", case.name);
            }
        }
    }

    #[test]
    fn outcomes_differ_where_they_should() {
        let check = |upstream: &[&str], ours: &[&str], differs, want: bool| {
            let owned =
                |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
            let mut case = cases::rounds().remove(0).cases.remove(0);
            case.differs = differs;
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
        // A deviation that is none any more is found, too.
        check(&["a", "b"], &["a", "b"], (&["b"], &["c"]), false);
        check(&["a", "b"], &["a"], (&["b"], &[]), true);
    }
}
