//! A sample of small cases in which every set of victims is tried; `cargo xtask twin --preemption` runs many more.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

use loadmaster_sim::brute_force_preemption::{self, BruteForceStats};
use loadmaster_sim::cases::local_oracle::LocalOracle;
use loadmaster_sim::cases::{CaseGenerator, CaseSubject};

#[test]
fn preemption_dry_run_equals_brute_force() {
    let ours = LocalOracle::new(loadmaster_plugins::in_tree_registry()).unwrap();
    let mut all = BruteForceStats::default();
    for case in CaseGenerator::new(11, [""; 0]).about(CaseSubject::Preemption).take(150) {
        // Some cases have an invalid configuration.
        let Ok(checked) = ours
            .with_scheduling_input(&case, brute_force_preemption::check_preemption_by_brute_force)
        else {
            continue;
        };
        match checked {
            Ok(seen) => all.add(seen.unwrap_or_default()),
            Err(difference) => panic!("{difference}\n{}", case.question()),
        }
    }
    assert!(all.n_candidates > 20 && all.n_nodes > all.n_candidates, "{all:?}");
}
