//! A sample of simulated seeds; `cargo xtask simulate` runs more.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::sync::Arc;

use loadmaster_engine::Profile;
use loadmaster_engine::profile::ProfilePlugin;
use loadmaster_framework::{ActionType, PodInfo, PreFilter, PreFilterResult, Rejection, SerialCx};
use loadmaster_scheduler_plugins::pod_group::GroupKey;
use loadmaster_sim::simulate::{
    InjectedBug, SimulatedSchedulerConfig, SimulationOptions, SimulationReport,
    profiles_with_test_plugins, run_simulation,
};

fn setup() -> SimulatedSchedulerConfig {
    SimulatedSchedulerConfig::with_all_faults(&loadmaster_plugins::in_tree_registry()).unwrap()
}

/// Without panicking plugins, extenders, test plugins and claims.
fn plain() -> SimulatedSchedulerConfig {
    SimulatedSchedulerConfig { volume_runs: 0, ..plain_with_claims() }
}

/// The same with claims.
fn plain_with_claims() -> SimulatedSchedulerConfig {
    SimulatedSchedulerConfig {
        panicking: None,
        with_extenders: Vec::new(),
        with_test_plugins: Vec::new(),
        volume_runs: 1,
        gang_runs: 0,
        quota_runs: 0,
        reload_runs: 0,
        ..setup()
    }
}

/// With gangs in every run, without panicking plugins, extenders, test plugins and claims.
fn with_gangs() -> SimulatedSchedulerConfig {
    SimulatedSchedulerConfig { gang_runs: 1, ..plain() }
}

/// The same with quotas.
fn with_quotas() -> SimulatedSchedulerConfig {
    SimulatedSchedulerConfig { quota_runs: 1, ..plain() }
}

/// With reloads in every run, without panicking plugins, extenders, test plugins and claims.
fn with_reloads() -> SimulatedSchedulerConfig {
    SimulatedSchedulerConfig { reload_runs: 1, ..plain() }
}

/// Changes the profile of runs with gangs, or of runs with quotas.
fn with_changed_profile(
    mut setup: SimulatedSchedulerConfig,
    of_quotas: bool,
    change: impl FnOnce(&mut Profile),
) -> SimulatedSchedulerConfig {
    let profiles = setup.with_scheduler_plugins.as_mut().unwrap();
    let profile = if of_quotas { &mut profiles.quotas } else { &mut profiles.gangs };
    let none = profiles.gangs_and_quotas.clone();
    let mut changed = Arc::into_inner(std::mem::replace(profile, none)).unwrap();
    change(&mut changed);
    *profile = Arc::new(changed);
    setup
}

/// Without panicking plugins, extenders and claims.
fn with_plugins() -> SimulatedSchedulerConfig {
    SimulatedSchedulerConfig { with_test_plugins: setup().with_test_plugins, ..plain() }
}

#[test]
fn no_seed_violates_an_invariant() {
    let of = |volume_runs, gang_runs, quota_runs| SimulatedSchedulerConfig {
        volume_runs,
        gang_runs,
        quota_runs,
        reload_runs: 4,
        ..setup()
    };
    let (without, with_claims_gangs_quotas) = (of(0, 0, 0), of(2, 2, 1));
    let mut all = SimulationReport::default();
    for seed in 0..60 {
        let setup = if seed % 2 == 0 { &without } else { &with_claims_gangs_quotas };
        let report = run_simulation(setup, SimulationOptions::new(seed), None)
            .unwrap_or_else(|it| panic!("{it}"));
        all.add(&report);
        if seed % 6 < 2 {
            let options = SimulationOptions::new(seed).with_other_hash_seed();
            let again = run_simulation(setup, options, None).unwrap();
            assert_eq!(report, again, "seed {seed}: the order of a hash map, or chance, decides");
        }
    }
    // Every kind of fault must have occurred.
    let SimulationReport { binds, evictions, relists, leader_losses, failed_calls, .. } = all;
    let SimulationReport { unschedulable, panics, extender_calls, failed_extender_calls, .. } = all;
    let SimulationReport { reserved, held, waits, claims, volume_writes, .. } = all;
    let SimulationReport { failed_provisions, gangs, gang_waits, failed_gangs, .. } = all;
    let SimulationReport { within_quota, over_quota, reloads, busy_reloads, .. } = all;
    let met = [binds, evictions, relists, leader_losses, failed_calls, unschedulable, panics];
    let met = met.into_iter().chain([extender_calls, failed_extender_calls, reserved, held, waits]);
    let met = met.chain([claims, volume_writes, failed_provisions]);
    let met = met.chain([gangs, gang_waits, failed_gangs, within_quota, over_quota]);
    let met = met.chain([reloads, busy_reloads]);
    assert!(met.into_iter().all(|n| n > 20), "{all:?}");
}

/// Seeds that violated an invariant once.
const REGRESSIONS: [(u64, &str); 4] = [
    (5, "a pod that was bound and deleted before its update arrived stayed assumed forever"),
    (231, "a preemptor whose last victim ended by itself stayed gated forever"),
    (912, "a condition whose patch was rejected was not written again"),
    (101_730, "a preemptor that was activated while it was gated waited forever"),
];

#[test]
fn regression_seeds_pass() {
    let setup = plain();
    for (seed, what) in REGRESSIONS {
        let ended = run_simulation(&setup, SimulationOptions::new(seed), None);
        assert!(ended.is_ok(), "{what}: {}", ended.unwrap_err());
    }
}

/// The same with test plugins.
const REGRESSIONS_WITH_PLUGINS: [(u64, &str); 3] = [
    (1_058, "a preemptor that evicted a pod at Permit and another pod was not nominated"),
    (1_145, "the same"),
    (1_183, "the same"),
];

#[test]
fn regression_seeds_with_plugins_pass() {
    let setup = with_plugins();
    for (seed, what) in REGRESSIONS_WITH_PLUGINS {
        let ended = run_simulation(&setup, SimulationOptions::new(seed), None);
        assert!(ended.is_ok(), "{what}: {}", ended.unwrap_err());
    }
}

/// The same with all faults.
const REGRESSIONS_WITH_ALL_FAULTS: [(u64, &str); 5] = [
    (1_950, "the model forgot a pod whose failed bind the engine had deferred"),
    (5_611, "a bind was checked with a nomination that the engine had deferred"),
    (5_868, "a nominated pod that never preempts and does not fit kept others off its node"),
    (6_831, "nominated pods that never preempt waited for each other"),
    (8_834, "a preemptor was not tried again when its last victim was gone"),
];

#[test]
fn regression_seeds_with_all_faults_pass() {
    let setup = SimulatedSchedulerConfig {
        volume_runs: 0,
        gang_runs: 0,
        quota_runs: 0,
        reload_runs: 0,
        ..setup()
    };
    for (seed, what) in REGRESSIONS_WITH_ALL_FAULTS {
        let ended = run_simulation(&setup, SimulationOptions::new(seed), None);
        assert!(ended.is_ok(), "{what}: {}", ended.unwrap_err());
    }
}

/// The same with claims, gangs or quotas in some runs.
const REGRESSIONS_WITH_ALL_WORKLOADS: [(u64, &str); 4] = [
    (956, "attempts of a gang in the model did not take volumes from each other"),
    (1_186, "a pod that changed while it waited at Permit was scheduled as it was before"),
    (5_732, "a pod of higher priority was not tried when a nominated pod freed quota"),
    (6_961, "the last node was deleted while members of a gang waited"),
];

#[test]
fn regression_seeds_with_all_workloads_pass() {
    let setup = SimulatedSchedulerConfig { reload_runs: 0, ..setup() };
    for (seed, what) in REGRESSIONS_WITH_ALL_WORKLOADS {
        let ended = run_simulation(&setup, SimulationOptions::new(seed), None);
        assert!(ended.is_ok(), "{what}: {}", ended.unwrap_err());
    }
}

/// The same with gangs and quotas in every run.
const REGRESSIONS_WITH_GANGS_AND_QUOTAS: [(u64, &str); 3] = [
    (21_745, "a gang that had failed was not tried when its minResources became free"),
    (22_457, "a nominated pod whose claim was missing kept others off its node"),
    (23_020, "the same as 21,745"),
];

#[test]
fn regression_seeds_with_gangs_and_quotas_pass() {
    let setup = SimulatedSchedulerConfig { gang_runs: 1, quota_runs: 1, reload_runs: 0, ..setup() };
    for (seed, what) in REGRESSIONS_WITH_GANGS_AND_QUOTAS {
        let ended = run_simulation(&setup, SimulationOptions::new(seed), None);
        assert!(ended.is_ok(), "{what}: {}", ended.unwrap_err());
    }
}

/// Checks that within 60 seeds the first violated invariant has this message, with this injected bug or these plugins.
#[track_caller]
fn check_detected(
    setup: &SimulatedSchedulerConfig,
    injected_bug: Option<InjectedBug>,
    expected: &str,
) {
    let mut violations = (0..60).filter_map(|seed| {
        let options = SimulationOptions { injected_bug, ..SimulationOptions::new(seed) };
        run_simulation(setup, options, None).err().map(|violation| violation.message)
    });
    let message = violations.next().unwrap_or_default();
    assert!(message.contains(expected), "{injected_bug:?} was detected as {message:?}");
}

#[test]
fn injected_bugs_are_detected() {
    let setup = plain();
    check_detected(&setup, Some(InjectedBug::LostBindFailure), "times in the queue");
    check_detected(&setup, Some(InjectedBug::LostPodDelete), "the engine has");
    check_detected(&setup, Some(InjectedBug::StalePod), "bound already");
    check_detected(&setup, Some(InjectedBug::LostPodUpdate), "is feasible, but was not bound");
}

#[test]
fn lost_volume_affinities_are_detected() {
    check_detected(
        &plain_with_claims(),
        Some(InjectedBug::LostVolumeAffinity),
        "didn't find available persistent volumes",
    );
}

#[test]
fn lost_volume_updates_are_detected() {
    check_detected(
        &plain_with_claims(),
        Some(InjectedBug::LostVolumeUpdate),
        "claims and volumes are assumed",
    );
}

#[test]
fn lost_claim_updates_are_detected() {
    check_detected(
        &plain_with_claims(),
        Some(InjectedBug::LostClaimUpdate),
        "is feasible, but was not bound",
    );
}

#[test]
fn lost_csi_nodes_are_detected() {
    check_detected(&plain_with_claims(), Some(InjectedBug::LostCsiNode), "exceed max volume count");
}

#[test]
fn wrong_access_modes_are_detected() {
    check_detected(&plain_with_claims(), Some(InjectedBug::WrongAccessMode), "is used by the pods");
}

#[test]
fn early_bindings_are_detected() {
    check_detected(
        &plain_with_claims(),
        Some(InjectedBug::EarlyBinding),
        "is bound, but its claim",
    );
}

#[test]
fn unmarked_volumes_are_detected() {
    check_detected(
        &plain_with_claims(),
        Some(InjectedBug::UnmarkedVolume),
        "is left reserved for claim",
    );
}

#[test]
fn early_permits_are_detected() {
    check_detected(&with_gangs(), Some(InjectedBug::IgnoredHold), "is allowed, but PodGroup");
}

#[test]
fn gangs_without_permit_are_detected() {
    let setup = with_changed_profile(with_gangs(), false, |profile| {
        profile.permit.retain(|plugin| plugin.name != "Coscheduling");
    });
    check_detected(&setup, None, "is allowed, but PodGroup");
}

#[test]
fn gangs_that_keep_their_nodes_are_detected() {
    let setup = with_changed_profile(with_gangs(), false, |profile| {
        profile.post_filter.retain(|plugin| plugin.name != "Coscheduling");
    });
    check_detected(&setup, None, "fits on none");
}

#[test]
fn gangs_of_which_a_part_is_rejected_are_detected() {
    let bug = Some(InjectedBug::PartlyRejectedGang);
    check_detected(&with_gangs(), bug, "although the attempt of PodGroup");
}

#[test]
fn gangs_that_wait_too_long_are_detected() {
    check_detected(&with_gangs(), Some(InjectedBug::WrongGangTimeout), "longer than its timeout");
}

/// A plugin that forgets gangs of which a member has a node.
struct WithoutRetries(Arc<dyn PreFilter>);

impl PreFilter for WithoutRetries {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        let group =
            |pod: &PodInfo| GroupKey::of_labels(&pod.template.namespace, &pod.template.labels);
        let bound = cx.world.node_infos().flat_map(|node| node.pods());
        let mut bound = bound.filter(|pod| cx.world.waiting_pods().get(&pod.uid).is_none());
        if group(pod).is_some() && bound.any(|bound| group(bound) == group(pod)) {
            return Err(Rejection::unresolvable("the gang has been scheduled"));
        }
        self.0.pre_filter(cx, pod)
    }
}

#[test]
fn partly_bound_gangs_are_detected() {
    let setup = with_changed_profile(with_gangs(), false, |profile| {
        for member in profile.pre_filter.iter_mut().filter(|it| it.name == "Coscheduling") {
            member.point = Arc::new(WithoutRetries(member.point.clone()));
        }
        // The incremental form does not know of it.
        for plugin in profile.plugins.iter_mut().filter(|it| it.name == "Coscheduling") {
            plugin.incremental = None;
        }
    });
    // Pods that come when the gang is bound are not scheduled either, so that another invariant may be violated first.
    let mut messages = (0..60).filter_map(|seed| {
        run_simulation(&setup, SimulationOptions::new(seed), None).err().map(|it| it.message)
    });
    assert!(messages.any(|message| message.contains("a gang is partly bound")));
}

#[test]
fn lost_pod_groups_are_detected() {
    check_detected(
        &with_gangs(),
        Some(InjectedBug::LostPodGroup),
        "is feasible, but was not bound",
    );
    check_detected(&with_gangs(), Some(InjectedBug::LostPodGroupDelete), "is gone");
}

#[test]
fn lost_quotas_are_detected() {
    let setup = with_quotas();
    check_detected(&setup, Some(InjectedBug::LostElasticQuota), "with it a quota is exceeded");
}

#[test]
fn a_quota_plugin_with_a_missing_event_registration_is_detected() {
    let setup = with_changed_profile(with_quotas(), true, |profile| {
        let is_it = |plugin: &&mut ProfilePlugin| plugin.name == "CapacityScheduling";
        let plugin = profile.plugins.iter_mut().find(is_it).unwrap();
        plugin.events.as_mut().unwrap().clear();
    });
    check_detected(&setup, None, "is feasible, but was not bound");
}

#[test]
fn a_plugin_with_a_missing_event_registration_is_detected() {
    let mut profile = Arc::into_inner(plain().profile).unwrap();
    let fit = profile.plugins.iter_mut().find(|plugin| plugin.name == "NodeResourcesFit").unwrap();
    let events = fit.events.as_mut().unwrap();
    let n_known = events.len();
    events.retain(|known| !known.event.action.contains(ActionType::DELETE));
    assert!(events.len() < n_known);
    let setup = SimulatedSchedulerConfig { profile: Arc::new(profile), ..plain() };
    check_detected(&setup, None, "is feasible, but was not bound");
}

#[test]
fn bugs_around_plugins_are_detected() {
    let setup = with_plugins();
    check_detected(&setup, Some(InjectedBug::LostNodePool), "the plugin saw the pools");
    check_detected(&setup, Some(InjectedBug::LostPublication), "the plugin saw closed nodes");
    check_detected(&setup, Some(InjectedBug::LostAttachment), "PreBind was not resumed");
    check_detected(&setup, Some(InjectedBug::IgnoredHold), "Permit holds it");
    check_detected(&setup, Some(InjectedBug::LostUnreserve), "times in the queue");
}

#[test]
fn a_wait_without_timeout_is_detected() {
    let [_, holding, _] =
        profiles_with_test_plugins(&loadmaster_plugins::in_tree_registry()).unwrap();
    let setup = SimulatedSchedulerConfig { with_test_plugins: vec![holding], ..plain() };
    check_detected(&setup, Some(InjectedBug::LostTimeouts), "longer than its timeout");
}

/// Checks that within 60 seeds with the injected bug each of these messages belongs to the first violated invariant of some seed.
#[track_caller]
fn check_all_detected(setup: &SimulatedSchedulerConfig, bug: InjectedBug, expected: &[&str]) {
    let mut left = expected.to_vec();
    let mut messages = Vec::new();
    for seed in 0..60 {
        let options = SimulationOptions { injected_bug: Some(bug), ..SimulationOptions::new(seed) };
        if let Err(violation) = run_simulation(setup, options, None) {
            left.retain(|expected| !violation.message.contains(expected));
            messages.push(violation.message);
        }
        if left.is_empty() {
            break;
        }
    }
    assert!(left.is_empty(), "{bug:?} was not detected as {left:?}, but as {messages:#?}");
}

#[test]
fn lost_reloads_are_detected() {
    let expected = ["no profile is responsible", "0 times in the queue", "with the score"];
    check_all_detected(&with_reloads(), InjectedBug::LostReload, &expected);
}

#[test]
fn mixtures_of_configurations_are_detected() {
    check_all_detected(&with_reloads(), InjectedBug::MixedReload, &["with the score"]);
}

#[test]
fn lost_plugin_states_are_detected() {
    check_all_detected(&with_reloads(), InjectedBug::LostPluginState, &["has reserved"]);
}

#[test]
fn a_kept_order_is_detected() {
    check_all_detected(&with_reloads(), InjectedBug::KeptOrder, &["another pod was popped"]);
}
