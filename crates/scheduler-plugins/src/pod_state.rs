//! PodState: prefers nodes with many terminating pods, which will soon be gone, and few pods that are nominated to them.
//!
//! | | |
//! | --- | --- |
//! | extension points | Score |
//! | woken by | no event: it rejects no pod |
//! | upstream | `pkg/podstate` of scheduler-plugins 0.35 |
//! | deviations | none |
//! | cost | O(pods of the node); nodes with equal differences are one class, so that few results are computed again |

use loadmaster_framework::incremental::RowDependency;
use loadmaster_framework::{ExtensionPoints, NodeInfo, PluginDef, PluginError, World};
use serde_json::Value;

use crate::normalized_node_score::{self, RawNodeScore};

pub const NAME: &str = "PodState";

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

struct PodState;

fn build(points: &mut ExtensionPoints, _args: &Value) -> Result<(), PluginError> {
    normalized_node_score::register(points, PodState);
    Ok(())
}

impl RawNodeScore for PodState {
    const DEPENDENCY: RowDependency = RowDependency::Pods;

    /// Terminating pods minus nominated pods; the pod that is being scheduled counts if it is nominated to the node.
    fn raw_score(&self, world: &World, node: NodeInfo<'_>) -> i64 {
        let n_terminating = node.pods().filter(|pod| pod.terminating).count();
        n_terminating as i64 - world.nominated_pods_for_node(node.name()).len() as i64
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use loadmaster_api::Str;
    use loadmaster_framework::testkit::incremental_history::check_incremental_history;
    use loadmaster_framework::testkit::{PluginTestBench, node, pod};
    use loadmaster_stdx::Rng;
    use serde_json::json;

    use super::*;

    /// By node, the number of running, terminating and nominated pods.
    #[track_caller]
    fn check(nodes: &[[usize; 3]], want: &[i64]) {
        let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
        for (at, [n_running, n_terminating, n_nominated]) in nodes.iter().enumerate() {
            let name = format!("n{at}");
            bench.node(node(&name)).unwrap();
            for i in 0..*n_running {
                bench.add_assigned_pod(&name, pod(&format!("r{at}-{i}"))).unwrap();
            }
            for i in 0..*n_terminating {
                bench.add_assigned_pod(&name, terminating(&format!("t{at}-{i}"))).unwrap();
            }
            for i in 0..*n_nominated {
                let nominated = bench.parse_pod(pod(&format!("w{at}-{i}"))).unwrap();
                bench.world.add_nominated_pod(Str::new(&name), Arc::new(nominated));
            }
        }
        let scores = bench.score(pod("new")).unwrap();
        assert_eq!(scores.into_iter().map(|(_, score)| score).collect::<Vec<_>>(), want);
        let incoming = bench.parse_pod(pod("new")).unwrap();
        bench.check_incremental(&incoming).unwrap();
    }

    fn terminating(name: &str) -> Value {
        let time = "2026-01-31T12:00:00Z";
        pod(name).set_field("/metadata/deletionTimestamp", time).into()
    }

    #[test]
    fn terminating_pods_attract_and_nominated_pods_repel() {
        check(&[[0, 0, 0], [5, 0, 0]], &[0, 0]);
        check(&[[0, 1, 0], [5, 0, 0]], &[100, 0]);
        check(&[[0, 0, 1], [0, 0, 0]], &[0, 100]);
        check(&[[0, 2, 2], [0, 1, 1], [3, 0, 0]], &[0, 0, 0]);
        check(&[[0, 2, 0], [0, 1, 0], [0, 0, 0], [0, 0, 1]], &[100, 66, 33, 0]);
    }

    #[test]
    fn cached_evaluations_see_pods_and_nominations() {
        let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
        for name in ["a", "b", "c", "d"] {
            bench.node(node(name)).unwrap();
        }
        let mut n_changes = 0;
        let change = |bench: &mut PluginTestBench, rng: &mut Rng| {
            n_changes += 1;
            let on = *rng.pick(&["a", "b", "c", "d", "e"]);
            let name = format!("p{}", rng.below(8));
            Ok(match rng.below(6) {
                0 if on != "e" => {
                    bench.add_assigned_pod(on, pod(&name))?;
                    "assigned"
                }
                1 if on != "e" => {
                    bench.add_assigned_pod(on, terminating(&name))?;
                    "terminating"
                }
                2 | 3 => {
                    let nominated = Arc::new(bench.parse_pod(pod(&format!("w{name}")))?);
                    bench.world.add_nominated_pod(Str::new(on), nominated);
                    "nominated"
                }
                4 => {
                    bench.world.delete_nominated_pod(&format!("default/w{name}"));
                    "nomination deleted"
                }
                _ if on == "e" && n_changes % 2 == 0 => {
                    bench.node(node("e"))?;
                    "node added"
                }
                _ => {
                    bench.delete_pod(&format!("default/{name}"));
                    "deleted"
                }
            })
        };
        let incoming = |_: &mut Rng| pod("new").into();
        check_incremental_history(&mut bench, &mut Rng::new(3), 2_000, incoming, change).unwrap();
    }

    #[test]
    fn the_key_is_the_same_for_all_pods() {
        let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
        bench.node(node("a")).unwrap();
        assert!(bench.check_key(pod("web")).unwrap().keeps("ordinal label"));
    }
}
