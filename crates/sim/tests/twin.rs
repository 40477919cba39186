//! A sample of the twin histories; `cargo xtask twin` runs many more.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::sync::Arc;

use loadmaster_sim::load::default_profile;
use loadmaster_sim::twin::{self, Options};

#[test]
fn fast_answers_equal_asking_one_by_one() {
    let profile = Arc::new(default_profile(&loadmaster_plugins::in_tree()).unwrap());
    for seed in 0..25 {
        let options = Options::swarm(seed, 100);
        let report =
            twin::run(&profile, options).unwrap_or_else(|difference| panic!("{difference}"));
        let again =
            twin::run(&profile, options).unwrap_or_else(|difference| panic!("{difference}"));
        assert_eq!(report, again, "seed {seed} is not a whole run");
    }
}
