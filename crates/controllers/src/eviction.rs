//! Pods that must leave their node: it has a taint that they do not tolerate (for so long), or it is gone.
//!
//! | | |
//! | --- | --- |
//! | writes | deletes pods, their DisruptionTarget condition, Events |
//! | upstream | `pkg/controller/tainteviction`, `pkg/controller/podgc`, 1.36 |
//! | deviations | pods that have ended are kept however many there are; the taint `out-of-service` means nothing |

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use serde_json::json;

use crate::cache::Cache;
use crate::controller::{Change, Controller, Outcome};
use crate::kind::{Key, Kind};
use crate::meta::is_terminating;
use crate::placement::tolerates;
use crate::request::{DeleteOptions, Patch, Request};
use crate::workload::{condition, is_terminal, node_of, stamp};
use crate::writes::Writes;

/// How long a node must be gone before its pods go: it may only be made anew.
const QUARANTINE: SignedDuration = SignedDuration::from_secs(40);
const TARGET: &str = "DisruptionTarget";

/// The controller that evicts pods.
#[derive(Debug, Default)]
pub(crate) struct Evictions {
    /// Since when a pod has been where it may not stay for ever.
    since: BTreeMap<Key, Timestamp>,
}

/// What a pod's node means for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stay {
    /// It may stay.
    Forever,
    /// It may stay so long.
    For(SignedDuration),
    /// Its node is gone.
    Orphan,
}

impl Controller for Evictions {
    fn name(&self) -> &'static str {
        "taint-eviction-controller"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::Pod, Kind::Node]
    }

    fn concerns(&self, change: &Change<'_>, cache: &Cache) -> Vec<Key> {
        if let Some(pod) = change.of::<Pod>() {
            let key = Key::of(pod);
            let is_gone = change.new.is_none() && self.since.contains_key(&key);
            let is_hit =
                is_gone || is_terminating(&pod.metadata) || stay(pod, cache) != Stay::Forever;
            return if is_hit || self.since.contains_key(&key) { vec![key] } else { Vec::new() };
        }
        let taints = |node: Option<&Node>| node.map(hard_taints).unwrap_or_default();
        let (old, new) = (change.old::<Node>(), change.new::<Node>());
        if old.is_some() == new.is_some() && taints(old) == taints(new) {
            return Vec::new();
        }
        let name = new.or(old).and_then(|node| node.metadata.name.as_deref());
        name.into_iter()
            .flat_map(|name| cache.of::<Pod>().at(name))
            .map(|pod| Key::of(&**pod))
            .collect()
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> Outcome {
        let Some(pod) = cache.get::<Pod>(&key.namespace, &key.name) else {
            self.since.remove(key);
            return Outcome::none();
        };
        let mut writes = Writes::new(self.name(), now);
        if is_terminating(&pod.metadata) && node_of(pod).is_empty() {
            // No kubelet will ever finish it.
            remove(pod, Some(0), &mut writes);
            return writes.done();
        }
        let stay = stay(pod, cache);
        let allowed = match stay {
            Stay::Forever => {
                if self.since.remove(key).is_some() && !is_terminating(&pod.metadata) {
                    let text = format!("Cancelling deletion of Pod {}/{}", key.namespace, key.name);
                    writes.event(&**pod, "TaintManagerEviction", text);
                }
                return writes.done();
            }
            Stay::For(_) if is_terminating(&pod.metadata) => return writes.done(),
            Stay::For(allowed) => allowed,
            Stay::Orphan => QUARANTINE,
        };
        let since = *self.since.entry(key.clone()).or_insert(now);
        let left = allowed.saturating_sub(now.duration_since(since));
        if left.is_positive() {
            writes.again_in(left.unsigned_abs());
        } else {
            evict(pod, stay, now, &mut writes);
        }
        writes.done()
    }
}

/// The taints of a node that drive pods away.
fn hard_taints(node: &Node) -> Vec<Taint> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints.iter().filter(|taint| taint.effect == "NoExecute").cloned().collect()
}

fn stay(pod: &Pod, cache: &Cache) -> Stay {
    let name = node_of(pod);
    match cache.get::<Node>("", name) {
        _ if name.is_empty() => Stay::Forever,
        None => Stay::Orphan,
        Some(node) => tolerated(pod, &hard_taints(node)),
    }
}

/// How long a pod bears these taints: as long as the most impatient of the tolerations that it needs.
fn tolerated(pod: &Pod, taints: &[Taint]) -> Stay {
    let all = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    let mut least = Stay::Forever;
    for taint in taints {
        let Some(one) = all.iter().find(|one| tolerates(one, taint)) else {
            return Stay::For(SignedDuration::ZERO);
        };
        let Some(seconds) = one.toleration_seconds else { continue };
        let span = SignedDuration::from_secs(seconds.max(0));
        least = match least {
            Stay::For(before) if before < span => least,
            _ => Stay::For(span),
        };
    }
    least
}

/// Says why a pod goes, and then makes it go.
fn evict(pod: &Pod, stay: Stay, now: Timestamp, writes: &mut Writes) {
    let is_orphan = stay == Stay::Orphan;
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
        writes.push(Request::patch_status(Key::of(pod), Patch::Strategic(patch)));
        if !is_orphan {
            let meta = &pod.metadata;
            let name = |text: &Option<String>| text.clone().unwrap_or_default();
            let text =
                format!("Marking for deletion Pod {}/{}", name(&meta.namespace), name(&meta.name));
            writes.event(pod, "TaintManagerEviction", text);
        }
        // The next look sees the mark.
        writes.again_in(std::time::Duration::ZERO);
    } else {
        remove(pod, is_orphan.then_some(0), writes);
    }
}

fn remove(pod: &Pod, grace_period_seconds: Option<i64>, writes: &mut Writes) {
    let uid = pod.metadata.uid.clone();
    let options = DeleteOptions { uid, grace_period_seconds, ..DeleteOptions::default() };
    writes.push(Request::Delete { key: Key::of(pod), options });
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value};

    use super::*;
    use crate::player::bench;
    use crate::testkit::Bench;

    #[test]
    fn the_most_impatient_toleration_counts() {
        let check = |tolerations: Value, taints: &[&str], want: Stay| {
            let pod =
                json!({"metadata": {}, "spec": {"containers": [], "tolerations": tolerations}});
            let taint =
                |key: &&str| from_value(json!({"key": key, "effect": "NoExecute"})).unwrap();
            let taints: Vec<Taint> = taints.iter().map(taint).collect();
            assert_eq!(tolerated(&from_value(pod).unwrap(), &taints), want);
        };
        let span = |seconds| Stay::For(SignedDuration::from_secs(seconds));
        let bears = |key: &str, seconds: Value| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        check(json!([]), &[], Stay::Forever);
        check(json!([]), &["a"], span(0));
        check(json!([bears("a", json!(30))]), &["a"], span(30));
        check(json!([bears("a", json!(-5))]), &["a"], span(0));
        check(json!([bears("a", Value::Null)]), &["a"], Stay::Forever);
        check(json!([bears("a", json!(30)), bears("b", json!(10))]), &["a", "b"], span(10));
        check(json!([bears("a", json!(30)), bears("b", Value::Null)]), &["b", "a"], span(30));
        check(json!([bears("a", json!(30))]), &["a", "b"], span(0));
    }

    fn start() -> Bench {
        let mut bench = bench(vec![Box::<Evictions>::default()]);
        bench.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}));
        let bears = json!([{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 20}]);
        for (name, tolerations) in [("soft", json!([])), ("patient", bears)] {
            bench.create(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default",
                "finalizers": ["example.com/wait"]}, "spec": {"nodeName": "n", "tolerations": tolerations,
                "containers": [{"name": "c", "image": "i"}]}}));
        }
        bench.settle();
        bench
    }

    fn taint(bench: &mut Bench, taints: Value) {
        let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
        bench.apply(&Request::patch(Key::new(Kind::Node, "", "n"), patch));
        bench.settle();
    }

    /// The pods that must go, with the reason.
    fn going(bench: &Bench) -> Vec<String> {
        let pods = bench.list::<Pod>();
        let going = pods.iter().filter(|pod| is_terminating(&pod.metadata));
        let line = |pod: &Pod| {
            let why = condition(pod, TARGET).and_then(|one| one.reason.clone()).unwrap_or_default();
            format!("{} {why}", pod.metadata.name.as_deref().unwrap())
        };
        going.map(line).collect()
    }

    #[test]
    fn taints_drive_pods_away() {
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
    fn a_taint_that_goes_in_time_is_forgiven() {
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
    fn pods_go_after_their_node() {
        let mut bench = start();
        bench.apply(&Request::Delete {
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
