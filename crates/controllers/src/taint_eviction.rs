//! Evicts pods with NoExecute taints, and deletes the pods of deleted nodes (pod garbage collection).
//!
//! | | |
//! | --- | --- |
//! | writes | deletes pods, their DisruptionTarget condition, Events |
//! | upstream | `pkg/controller/tainteviction`, `pkg/controller/podgc`, 1.36 |
//! | deviations | terminated pods are never garbage collected; the taint `out-of-service` is ignored |

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use serde_json::json;

use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::kind::{Key, Kind};
use crate::meta::is_terminating;
use crate::node_matching::tolerates;
use crate::request::{ControllerRequest, DeleteOptions, Patch};
use crate::result_builder::ReconcileResultBuilder;
use crate::workload::{condition, is_terminal, node_of, stamp};

/// How long a node must be absent before its pods are deleted: it may be created again.
const QUARANTINE: SignedDuration = SignedDuration::from_secs(40);
const TARGET: &str = "DisruptionTarget";

/// The controller that evicts pods.
#[derive(Debug, Default)]
pub(crate) struct TaintEvictionController {
    /// Since when a pod has been on a node whose taints it does not tolerate for ever.
    since: BTreeMap<Key, Timestamp>,
}

/// Whether and until when a pod may stay on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EvictionDecision {
    /// It may stay.
    Forever,
    /// It may stay for this duration.
    For(SignedDuration),
    /// Its node does not exist.
    Orphan,
}

impl Controller for TaintEvictionController {
    fn name(&self) -> &'static str {
        "taint-eviction-controller"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::Pod, Kind::Node]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, cache: &Cache) -> Vec<Key> {
        if let Some(pod) = change.new_or_old_typed::<Pod>() {
            let key = Key::from_object(pod);
            let is_gone = change.new.is_none() && self.since.contains_key(&key);
            let is_hit = is_gone
                || is_terminating(&pod.metadata)
                || eviction_decision(pod, cache) != EvictionDecision::Forever;
            return if is_hit || self.since.contains_key(&key) { vec![key] } else { Vec::new() };
        }
        let taints = |node: Option<&Node>| node.map(no_execute_taints).unwrap_or_default();
        let (old, new) = (change.old::<Node>(), change.new::<Node>());
        if old.is_some() == new.is_some() && taints(old) == taints(new) {
            return Vec::new();
        }
        let name = new.or(old).and_then(|node| node.metadata.name.as_deref());
        name.into_iter()
            .flat_map(|name| cache.store::<Pod>().by_index_key(name))
            .map(|pod| Key::from_object(&**pod))
            .collect()
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        let Some(pod) = cache.get::<Pod>(&key.namespace, &key.name) else {
            self.since.remove(key);
            return ReconcileResult::none();
        };
        let mut writes = ReconcileResultBuilder::new(self.name(), now);
        if is_terminating(&pod.metadata) && node_of(pod).is_empty() {
            // No kubelet will ever finish it.
            remove(pod, Some(0), &mut writes);
            return writes.build();
        }
        let stay = eviction_decision(pod, cache);
        let allowed = match stay {
            EvictionDecision::Forever => {
                if self.since.remove(key).is_some() && !is_terminating(&pod.metadata) {
                    let text = format!("Cancelling deletion of Pod {}/{}", key.namespace, key.name);
                    writes.event(&**pod, "TaintManagerEviction", text);
                }
                return writes.build();
            }
            EvictionDecision::For(_) if is_terminating(&pod.metadata) => return writes.build(),
            EvictionDecision::For(allowed) => allowed,
            EvictionDecision::Orphan => QUARANTINE,
        };
        let since = *self.since.entry(key.clone()).or_insert(now);
        let left = allowed.saturating_sub(now.duration_since(since));
        if left.is_positive() {
            writes.requeue_after(left.unsigned_abs());
        } else {
            evict(pod, stay, now, &mut writes);
        }
        writes.build()
    }
}

/// The NoExecute taints of a node.
fn no_execute_taints(node: &Node) -> Vec<Taint> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints.iter().filter(|taint| taint.effect == "NoExecute").cloned().collect()
}

fn eviction_decision(pod: &Pod, cache: &Cache) -> EvictionDecision {
    let name = node_of(pod);
    match cache.get::<Node>("", name) {
        _ if name.is_empty() => EvictionDecision::Forever,
        None => EvictionDecision::Orphan,
        Some(node) => tolerated(pod, &no_execute_taints(node)),
    }
}

/// How long a pod tolerates these taints: the minimum `tolerationSeconds` of the tolerations that it uses.
fn tolerated(pod: &Pod, taints: &[Taint]) -> EvictionDecision {
    let all = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    let mut least = EvictionDecision::Forever;
    for taint in taints {
        let Some(one) = all.iter().find(|one| tolerates(one, taint)) else {
            return EvictionDecision::For(SignedDuration::ZERO);
        };
        let Some(seconds) = one.toleration_seconds else { continue };
        let span = SignedDuration::from_secs(seconds.max(0));
        least = match least {
            EvictionDecision::For(before) if before < span => least,
            _ => EvictionDecision::For(span),
        };
    }
    least
}

/// Sets the DisruptionTarget condition of a pod, then deletes it.
fn evict(pod: &Pod, stay: EvictionDecision, now: Timestamp, writes: &mut ReconcileResultBuilder) {
    let is_orphan = stay == EvictionDecision::Orphan;
    let (reason, message) = if is_orphan {
        ("DeletionByPodGC", "PodGC: node no longer exists")
    } else {
        ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
    };
    let is_marked = condition(pod, TARGET).is_some_and(|one| one.status == "True");
    let must_fail = is_orphan && !is_terminal(pod);
    if !is_marked && !is_terminating(&pod.metadata) || must_fail {
        let target = json!({"type": TARGET, "status": "True", "reason": reason, "message": message,
            "lastTransitionTime": stamp(now)});
        let mut status = json!({"conditions": [target]});
        if must_fail {
            status["phase"] = json!("Failed");
        }
        let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": status});
        writes
            .push(ControllerRequest::patch_status(Key::from_object(pod), Patch::Strategic(patch)));
        if !is_orphan {
            let meta = &pod.metadata;
            let name = |text: &Option<String>| text.clone().unwrap_or_default();
            let text =
                format!("Marking for deletion Pod {}/{}", name(&meta.namespace), name(&meta.name));
            writes.event(pod, "TaintManagerEviction", text);
        }
        // The next look sees the mark.
        writes.requeue_after(std::time::Duration::ZERO);
    } else {
        remove(pod, is_orphan.then_some(0), writes);
    }
}

fn remove(pod: &Pod, grace_period_seconds: Option<i64>, writes: &mut ReconcileResultBuilder) {
    let uid = pod.metadata.uid.clone();
    let options = DeleteOptions { uid, grace_period_seconds, ..DeleteOptions::default() };
    writes.push(ControllerRequest::Delete { key: Key::from_object(pod), options });
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value};

    use super::*;
    use crate::test_kubelet::bench;
    use crate::testkit::ControllerBench;

    #[test]
    fn the_shortest_toleration_seconds_counts() {
        let check = |tolerations: Value, taints: &[&str], want: EvictionDecision| {
            let pod =
                json!({"metadata": {}, "spec": {"containers": [], "tolerations": tolerations}});
            let taint =
                |key: &&str| from_value(json!({"key": key, "effect": "NoExecute"})).unwrap();
            let taints: Vec<Taint> = taints.iter().map(taint).collect();
            assert_eq!(tolerated(&from_value(pod).unwrap(), &taints), want);
        };
        let span = |seconds| EvictionDecision::For(SignedDuration::from_secs(seconds));
        let bears = |key: &str, seconds: Value| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        check(json!([]), &[], EvictionDecision::Forever);
        check(json!([]), &["a"], span(0));
        check(json!([bears("a", json!(30))]), &["a"], span(30));
        check(json!([bears("a", json!(-5))]), &["a"], span(0));
        check(json!([bears("a", Value::Null)]), &["a"], EvictionDecision::Forever);
        check(json!([bears("a", json!(30)), bears("b", json!(10))]), &["a", "b"], span(10));
        check(json!([bears("a", json!(30)), bears("b", Value::Null)]), &["b", "a"], span(30));
        check(json!([bears("a", json!(30))]), &["a", "b"], span(0));
    }

    fn start() -> ControllerBench {
        let mut bench = bench(vec![Box::<TaintEvictionController>::default()]);
        bench.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}));
        let bears = json!([{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 20}]);
        for (name, tolerations) in [("soft", json!([])), ("patient", bears)] {
            bench.create(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default",
                "finalizers": ["example.com/wait"]}, "spec": {"nodeName": "n", "tolerations": tolerations,
                "containers": [{"name": "c", "image": "i"}]}}));
        }
        bench.run_until_idle();
        bench
    }

    fn taint(bench: &mut ControllerBench, taints: Value) {
        let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
        bench.send_as_client(&ControllerRequest::patch(Key::new(Kind::Node, "", "n"), patch));
        bench.run_until_idle();
    }

    /// The pods that must go, with the reason.
    fn going(bench: &ControllerBench) -> Vec<String> {
        let pods = bench.list::<Pod>();
        let going = pods.iter().filter(|pod| is_terminating(&pod.metadata));
        let line = |pod: &Pod| {
            let why = condition(pod, TARGET).and_then(|one| one.reason.clone()).unwrap_or_default();
            format!("{} {why}", pod.metadata.name.as_deref().unwrap())
        };
        going.map(line).collect()
    }

    #[test]
    fn no_execute_taints_evict_pods() {
        let mut bench = start();
        taint(&mut bench, json!([{"key": "k", "effect": "NoSchedule"}]));
        assert_eq!(going(&bench), [] as [&str; 0]);
        taint(&mut bench, json!([{"key": "k", "effect": "NoExecute"}]));
        assert_eq!(going(&bench), ["soft DeletionByTaintManager"]);
        bench.wait(19);
        assert_eq!(going(&bench).len(), 1);
        bench.wait(1);
        assert_eq!(
            going(&bench),
            ["patient DeletionByTaintManager", "soft DeletionByTaintManager"]
        );
        assert!(
            bench.events().contains(
                &"TaintManagerEviction: Marking for deletion Pod default/soft".to_owned()
            )
        );
    }

    #[test]
    fn removing_a_taint_in_time_cancels_the_eviction() {
        let mut bench = start();
        taint(&mut bench, json!([{"key": "k", "effect": "NoExecute"}]));
        bench.wait(15);
        taint(&mut bench, json!([]));
        bench.wait(15);
        taint(&mut bench, json!([{"key": "k", "effect": "NoExecute"}]));
        bench.wait(15);
        assert_eq!(going(&bench).len(), 1);
    }

    #[test]
    fn pods_of_a_deleted_node_are_deleted() {
        let mut bench = start();
        bench.send_as_client(&ControllerRequest::Delete {
            key: Key::new(Kind::Node, "", "n"),
            options: Default::default(),
        });
        bench.wait(39);
        assert_eq!(going(&bench), [] as [&str; 0]);
        bench.wait(2);
        assert_eq!(going(&bench), ["patient DeletionByPodGC", "soft DeletionByPodGC"]);
        let pod: Pod = bench.get("default", "soft").unwrap();
        assert_eq!(crate::workload::phase(&pod), "Failed");
    }
}
