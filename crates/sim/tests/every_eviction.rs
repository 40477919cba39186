//! A sample of small cases in which every set of victims is tried; `cargo xtask twin --preemption` tries many more.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

use loadmaster_sim::cases::Generator;
use loadmaster_sim::cases::answer::Answerer;
use loadmaster_sim::every_eviction::{self, Seen};

#[test]
fn the_search_finds_what_trying_everything_finds() {
    let ours = Answerer::new(loadmaster_plugins::in_tree()).unwrap();
    let mut all = Seen::default();
    for case in Generator::preemption(11).take(150) {
        // Some cases have a configuration that is refused.
        let Ok(checked) = ours.with_loaded(&case, every_eviction::check) else { continue };
        match checked {
            Ok(seen) => all.add(seen.unwrap_or_default()),
            Err(difference) => panic!("{difference}\n{}", case.question()),
        }
    }
    assert!(all.n_candidates > 20 && all.n_nodes > all.n_candidates, "{all:?}");
}
