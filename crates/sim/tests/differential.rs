//! A sample of the random histories; `cargo xtask twin` runs many more.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::sync::Arc;

use loadmaster_sim::differential::{self, HistoryOptions};
use loadmaster_sim::world_loader::default_profile;

#[test]
fn fast_decisions_equal_per_node_evaluation() {
    let profile = Arc::new(default_profile(&loadmaster_plugins::in_tree_registry()).unwrap());
    for seed in 0..25 {
        let options = HistoryOptions::random(seed, 100);
        let report = differential::run_history(&profile, options)
            .unwrap_or_else(|difference| panic!("{difference}"));
        let again = differential::run_history(&profile, options)
            .unwrap_or_else(|difference| panic!("{difference}"));
        assert_eq!(report, again, "seed {seed} is not deterministic");
    }
}
