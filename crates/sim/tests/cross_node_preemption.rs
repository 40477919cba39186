//! CrossNodePreemption in small random cases in which every set of victims is tried; `cargo xtask twin --cross-node-preemption 5000` runs more.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

use loadmaster_scheduler_plugins::with_scheduler_plugins;
use loadmaster_sim::brute_force_preemption::cross_node::{
    CrossNodeStats, check_by_brute_force, random_case,
};
use loadmaster_sim::cases::local_oracle::LocalOracle;

const N_CASES: u64 = 700;

#[test]
fn cross_node_preemption_equals_brute_force() {
    let registry = with_scheduler_plugins(loadmaster_plugins::in_tree_registry());
    let ours = LocalOracle::new(registry).unwrap();
    let mut all = CrossNodeStats::default();
    for id in 0..N_CASES {
        let case = random_case(1, id);
        match ours.with_scheduling_input(&case, check_by_brute_force).unwrap() {
            Ok(seen) => all.add(seen.unwrap_or_default()),
            Err(difference) => panic!("case {id}: {difference}\n{}", case.question()),
        }
    }
    assert!(all.n_on_several_nodes > 50 && all.n_elsewhere > 50, "{all:?}");
    assert!(all.n_violating > 20 && all.n_not_monotone > 20, "{all:?}");
    assert!(all.n_cases > 200 && all.n_nodes > all.n_candidates, "{all:?}");
}
