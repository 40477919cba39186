//! A sample of the twin histories; `cargo xtask twin` runs many more.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

use std::sync::Arc;

use loadmaster_engine::Profile;
use loadmaster_sim::twin::{self, Options};

fn default_profile() -> Arc<Profile> {
    let registry = loadmaster_plugins::in_tree();
    let gates = loadmaster_config::Gates::default();
    let checked =
        loadmaster_config::check_default(&registry, &gates).expect("the default configuration");
    Arc::new(Profile::new(&checked.profiles[0], &registry, &gates.framework()).expect("a profile"))
}

#[test]
fn fast_answers_equal_asking_one_by_one() {
    let profile = default_profile();
    for seed in 0..25 {
        let options = Options::swarm(seed, 100);
        let report =
            twin::run(&profile, options).unwrap_or_else(|difference| panic!("{difference}"));
        let again =
            twin::run(&profile, options).unwrap_or_else(|difference| panic!("{difference}"));
        assert_eq!(report, again, "seed {seed} is not a whole run");
    }
}
