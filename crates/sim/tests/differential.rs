//! A sample of the random histories; `cargo xtask twin` runs many more.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use loadmaster_sim::differential::{
    self, HistoryOptions, HistoryReport, PodPool, ReferenceBug, TwinProfiles,
};

fn profiles() -> TwinProfiles {
    TwinProfiles::new(&loadmaster_plugins::in_tree_registry()).unwrap()
}

/// Runs these seeds; returns the sum of the reports.
#[track_caller]
fn check(pods: PodPool, seeds: std::ops::Range<u64>) -> HistoryReport {
    let profiles = profiles();
    let mut all = HistoryReport::default();
    for seed in seeds {
        let options = HistoryOptions::random(seed, 100, pods);
        let report = differential::run_history(&profiles, options)
            .unwrap_or_else(|difference| panic!("{difference}"));
        if seed % 8 == 0 {
            let again = differential::run_history(&profiles, options).unwrap();
            assert_eq!(report, again, "seed {seed} is not deterministic");
        }
        all.add(&report);
    }
    all
}

#[test]
fn decisions_about_bare_pods_equal_the_reference() {
    let all = check(PodPool::Bare, 0..20);
    let HistoryReport { of_nominated_pods, with_nominated_pods, sampled, .. } = all;
    let HistoryReport { unschedulable, resizes, object_changes, log_overflows, .. } = all;
    // Every kind of change must have occurred.
    let met =
        [of_nominated_pods, with_nominated_pods, sampled, unschedulable, resizes, object_changes];
    assert!(met.iter().all(|n| *n > 10) && log_overflows > 1, "{all:?}");
}

#[test]
fn decisions_about_cluster_made_pods_equal_the_reference() {
    let all = check(PodPool::ClusterMade, 100..120);
    let HistoryReport { of_nominated_pods, with_nominated_pods, sampled, .. } = all;
    let HistoryReport { unschedulable, resizes, object_changes, rollouts, .. } = all;
    let met =
        [of_nominated_pods, with_nominated_pods, sampled, unschedulable, resizes, object_changes];
    assert!(met.iter().all(|n| *n > 10) && rollouts > 10, "{all:?}");
}

/// Checks that a reference with this bug differs from the scheduler within a hundred seeds.
#[track_caller]
fn check_detected(bug: ReferenceBug) {
    let profiles = profiles();
    let is_detected = (0..100).any(|seed| {
        let options = HistoryOptions {
            reference_bug: Some(bug),
            samples_nodes: bug == ReferenceBug::RestartsSearch,
            n_nodes: if bug == ReferenceBug::RestartsSearch { 130 } else { 12 },
            overflows_change_log: bug == ReferenceBug::MissesLogOverflow,
            ..HistoryOptions::random(seed, 80, PodPool::Bare)
        };
        differential::run_history(&profiles, options).is_err()
    });
    assert!(is_detected, "{bug:?}");
}

#[test]
fn a_wrong_reference_is_detected() {
    check_detected(ReferenceBug::IgnoresNominations);
    check_detected(ReferenceBug::IgnoresPriority);
    check_detected(ReferenceBug::IgnoresClusterObjects);
    check_detected(ReferenceBug::IgnoresResizes);
    check_detected(ReferenceBug::RestartsSearch);
    check_detected(ReferenceBug::MissesLogOverflow);
}
