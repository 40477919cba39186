//! A sample of simulated runs; `loadmaster simulate` runs more.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::sync::Arc;

use loadmaster_config::Gates;
use loadmaster_framework::Action;
use loadmaster_sim::load::default_profile;
use loadmaster_sim::simulate::{Options, Report, Sabotage, Setup, extenders, nervous, run};

fn setup() -> Setup {
    let profile = Arc::new(default_profile(&loadmaster_plugins::in_tree()).unwrap());
    let nervous = nervous::profile(&loadmaster_plugins::in_tree()).unwrap();
    let extended = extenders::profiles_with(&loadmaster_plugins::in_tree()).unwrap();
    Setup {
        profile,
        nervous: Some(Arc::new(nervous)),
        extended: extended.map(Arc::new).into(),
        gates: Gates::default().framework(),
    }
}

#[test]
fn no_seed_breaks_an_invariant() {
    let setup = setup();
    let mut all = Report::default();
    for seed in 0..60 {
        let report = run(&setup, Options::new(seed), None).unwrap_or_else(|it| panic!("{it}"));
        all.binds += report.binds;
        all.evictions += report.evictions;
        all.relists += report.relists;
        all.leader_losses += report.leader_losses;
        all.refused += report.refused;
        all.left += report.left;
        all.panics += report.panics;
        all.asked += report.asked;
        all.unanswered += report.unanswered;
        if seed % 10 == 0 {
            let again = run(&setup, Options::new(seed), None).unwrap();
            assert_eq!(report, again, "seed {seed} is not a whole run");
        }
    }
    // What is not met is not tried.
    let Report { binds, evictions, relists, leader_losses, refused, left, .. } = all;
    let Report { panics, asked, unanswered, .. } = all;
    let met = [binds, evictions, relists, leader_losses, refused, left, panics, asked, unanswered];
    assert!(met.iter().all(|n| *n > 20), "{all:?}");
}

/// Seeds that broke something once.
const REGRESSIONS: [(u64, &str); 4] = [
    (5, "a pod that was bound and gone before the news of its node stayed assumed for ever"),
    (231, "a preemptor whose last victim went by itself was held back for ever"),
    (912, "a condition whose patch was refused was not written again"),
    (101_730, "a preemptor that was woken while it was held back waited for ever"),
];

#[test]
fn what_was_mended_stays_mended() {
    let setup = Setup { nervous: None, extended: Vec::new(), ..setup() };
    for (seed, what) in REGRESSIONS {
        let ended = run(&setup, Options::new(seed), None);
        assert!(ended.is_ok(), "{what}: {}", ended.unwrap_err());
    }
}

/// What the checks say first when the engine is deceived in this way, or asks these plugins, and after how many seeds at the
/// latest.
#[track_caller]
fn check_caught(setup: &Setup, sabotage: Option<Sabotage>, said: &str) {
    let found =
        (0..30).find_map(|seed| run(setup, Options { sabotage, ..Options::new(seed) }, None).err());
    let what = found.map(|broken| broken.what).unwrap_or_default();
    assert!(what.contains(said), "{sabotage:?} was answered with {what:?}");
}

#[test]
fn bugs_are_caught() {
    let setup = Setup { nervous: None, extended: Vec::new(), ..setup() };
    check_caught(&setup, Some(Sabotage::ForgottenForget), "times in the queue");
    check_caught(&setup, Some(Sabotage::LostDeletion), "the engine has");
    check_caught(&setup, Some(Sabotage::StalePod), "bound already");
    check_caught(&setup, Some(Sabotage::LostUpdate), "fits, but was not bound");
}

#[test]
fn a_plugin_that_misses_the_event_it_waits_for_is_caught() {
    let mut profile = default_profile(&loadmaster_plugins::in_tree()).unwrap();
    let fit = profile.plugins.iter_mut().find(|plugin| plugin.name == "NodeResourcesFit").unwrap();
    let events = fit.events.as_mut().unwrap();
    let n_known = events.len();
    events.retain(|known| !known.event.action.contains(Action::DELETE));
    assert!(events.len() < n_known);
    let setup =
        Setup { profile: Arc::new(profile), nervous: None, extended: Vec::new(), ..setup() };
    check_caught(&setup, None, "fits, but was not bound");
}
