//! A sample of small cases in which every change and every pair of changes is made; `cargo xtask twin --counterfactual` runs many more.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

use loadmaster_sim::brute_force_counterfactual::{
    CounterfactualStats, check_by_brute_force, random_case,
};
use loadmaster_sim::cases::local_oracle::LocalOracle;

#[test]
fn proposed_changes_equal_brute_force() {
    let ours = LocalOracle::new(loadmaster_plugins::in_tree_registry()).unwrap();
    let mut all = CounterfactualStats::default();
    for id in 0..60 {
        let case = random_case(3, id);
        match check_by_brute_force(&ours, &case) {
            Ok(seen) => all.add(seen.unwrap_or_default()),
            Err(difference) => panic!("case {id}: {difference}\n{}", case.question()),
        }
    }
    assert!(all.n_single > 5 && all.n_pairs > 1, "{all:?}");
    assert_eq!(all.n_cut, 0, "small cases are searched to the end");
}
