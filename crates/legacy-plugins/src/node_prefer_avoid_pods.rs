//! NodePreferAvoidPods: avoids nodes whose annotation names the ReplicationController or ReplicaSet of the pod.
//!
//! | | |
//! | --- | --- |
//! | extension points | Score |
//! | woken by | no event: it rejects no pod |
//! | upstream | `plugins/nodepreferavoidpods`, 1.22 |
//! | deviations | an annotation with an invalid value in a field that does not matter here counts; upstream ignores the whole annotation |
//! | cost | per node with the annotation, decoding it; only changes of the node object make a score be computed again |
//!
//! Configurations give it a weight of 10000, so that no other score outweighs it.

use std::sync::Arc;

use loadmaster_api::meta::nullable;
use loadmaster_api::{OwnerReference, Str};
use loadmaster_framework::incremental::RowDependency;
use loadmaster_framework::registry::ExtraField;
use loadmaster_framework::{
    Cx, EvaluatorCx, ExtensionPoints, Failure, Incremental, MAX_NODE_SCORE, NodeInfo, PluginDef,
    PluginError, PodInfo, PrepareCx, PrepareResult, Score,
};
use serde::Deserialize;
use serde_json::Value;

pub const NAME: &str = "NodePreferAvoidPods";

/// The annotation of a node with the controllers whose pods should avoid it (upstream's `PreferAvoidPodsAnnotationKey`).
pub const ANNOTATION: &str = "scheduler.alpha.kubernetes.io/preferAvoidPods";

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

struct NodePreferAvoidPods;

fn build(points: &mut ExtensionPoints, _args: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(NodePreferAvoidPods);
    points.request_field(ExtraField::NodeAnnotations);
    points.score = Some(plugin.clone());
    points.incremental = Some(plugin);
    points.register_no_events();
    Ok(())
}

impl Score for NodePreferAvoidPods {
    fn score(&self, _: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        Ok(Controller::of(pod).map_or(MAX_NODE_SCORE, |controller| controller.score(node)))
    }
}

/// The controller of a pod, as annotations identify it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Controller {
    kind: Str,
    uid: Str,
}

impl Controller {
    /// The controller of the pod if it is of a kind that annotations can name.
    fn of(pod: &PodInfo) -> Option<Controller> {
        let owner = pod.template.controller.as_ref()?;
        let is_known = matches!(&*owner.kind, "ReplicationController" | "ReplicaSet");
        is_known.then(|| Controller { kind: owner.kind.clone(), uid: owner.uid.clone() })
    }

    fn score(&self, node: NodeInfo<'_>) -> i64 {
        let avoids = node.annotation(ANNOTATION).is_some_and(|written| self.is_in(written));
        if avoids { 0 } else { MAX_NODE_SCORE }
    }

    /// Whether the value of an annotation names the controller. One that does not decode names none.
    fn is_in(&self, written: &str) -> bool {
        let avoid = serde_json::from_str::<AvoidPods>(written).unwrap_or_default();
        let mut signatures = avoid.prefer_avoid_pods.iter().map(|entry| &entry.pod_signature);
        signatures.any(|signature| {
            let named = signature.pod_controller.as_ref();
            named.is_some_and(|named| named.kind == self.kind && named.uid == self.uid)
        })
    }
}

/// The value of the annotation (upstream's `v1.AvoidPods`).
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AvoidPods {
    #[serde(deserialize_with = "nullable")]
    prefer_avoid_pods: Vec<PreferAvoidPodsEntry>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PreferAvoidPodsEntry {
    #[serde(deserialize_with = "nullable")]
    pod_signature: PodSignature,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSignature {
    pod_controller: Option<OwnerReference>,
}

impl Incremental for NodePreferAvoidPods {
    /// `None` for pods that no annotation can name.
    type Key = Option<Controller>;

    fn key(&self, _: EvaluatorCx<'_>, pod: &PodInfo) -> Option<Option<Controller>> {
        Some(Controller::of(pod))
    }

    fn prepare(&self, _: &mut PrepareCx<'_>, key: &Option<Controller>) -> PrepareResult {
        let controller = key.clone();
        PrepareResult::row_local(RowDependency::Node, move |cx, row| match &controller {
            Some(controller) => Some(controller.score(cx.world.node(row)?)),
            None => Some(MAX_NODE_SCORE),
        })
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_framework::testkit::incremental_history::check_incremental_history;
    use loadmaster_framework::testkit::{PluginTestBench, node, pod};
    use loadmaster_stdx::Rng;
    use serde_json::json;

    use super::*;

    fn owned_by(kind: &str, uid: &str) -> Value {
        let owner = json!([{"apiVersion": "apps/v1", "kind": kind, "name": "web", "uid": uid, "controller": true}]);
        pod("web-1").set_field("/metadata/ownerReferences", owner).into()
    }

    fn avoiding(controllers: &[(&str, &str)]) -> String {
        let entry = |(kind, uid): &(&str, &str)| {
            let controller = json!({"apiVersion": "apps/v1", "kind": kind, "name": "web", "uid": uid, "controller": true});
            json!({"podSignature": {"podController": controller},
                "evictionTime": "2026-01-31T12:00:00Z", "reason": "some reason", "message": "some message"})
        };
        let entries: Vec<Value> = controllers.iter().map(entry).collect();
        json!({"preferAvoidPods": entries}).to_string()
    }

    /// The score of a node with this annotation; another one without is beside it.
    #[track_caller]
    fn check(annotation: &str, incoming: Value, want: i64) {
        let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
        bench.node(node("other")).unwrap();
        bench.node(node("a").annotation(ANNOTATION, annotation)).unwrap();
        let scores = bench.score(incoming).unwrap();
        assert_eq!(scores, [("other".to_owned(), 100), ("a".to_owned(), want)]);
    }

    #[test]
    fn nodes_avoid_pods_of_the_controllers_that_they_name() {
        let avoiding_web = avoiding(&[("ReplicationController", "u1"), ("ReplicaSet", "u2")]);
        check(&avoiding_web, owned_by("ReplicaSet", "u2"), 0);
        check(&avoiding_web, owned_by("ReplicationController", "u1"), 0);
        check(&avoiding_web, owned_by("ReplicaSet", "u1"), 100);
        check(&avoiding_web, owned_by("ReplicaSet", "u3"), 100);
        check(&avoiding_web, pod("bare").into(), 100);
        // Only these two kinds count, although the annotation could name others.
        check(&avoiding(&[("StatefulSet", "u1")]), owned_by("StatefulSet", "u1"), 100);
    }

    #[test]
    fn annotations_that_name_nothing() {
        let incoming = || owned_by("ReplicaSet", "u1");
        check("", incoming(), 100);
        check("not JSON", incoming(), 100);
        check(r#"{"preferAvoidPods": "u1"}"#, incoming(), 100);
        check(r#"{"preferAvoidPods": null}"#, incoming(), 100);
        check(
            r#"{"preferAvoidPods": [{"podSignature": null}, {"podSignature": {}}]}"#,
            incoming(),
            100,
        );
    }

    #[test]
    fn a_reference_that_is_not_the_controller_does_not_count() {
        let mut incoming = owned_by("ReplicaSet", "u1");
        incoming["metadata"]["ownerReferences"][0]["controller"] = json!(false);
        check(&avoiding(&[("ReplicaSet", "u1")]), incoming, 100);
    }

    #[test]
    fn cached_evaluations_see_changed_annotations() {
        let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
        let change = |bench: &mut PluginTestBench, rng: &mut Rng| {
            let name = *rng.pick(&["a", "b", "c"]);
            let uid = *rng.pick(&["u1", "u2"]);
            Ok(match rng.below(4) {
                0 => {
                    bench.delete_node(name);
                    "deleted"
                }
                1 => {
                    bench.node(node(name))?;
                    "without annotation"
                }
                _ => {
                    let annotation = avoiding(&[("ReplicaSet", uid)]);
                    bench.node(node(name).annotation(ANNOTATION, &annotation))?;
                    "annotated"
                }
            })
        };
        let incoming = |rng: &mut Rng| {
            let uid = *rng.pick(&["u1", "u2", "u3"]);
            owned_by("ReplicaSet", uid)
        };
        check_incremental_history(&mut bench, &mut Rng::new(4), 1_000, incoming, change).unwrap();
    }

    #[test]
    fn pods_of_one_controller_share_their_key() {
        let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
        bench.node(node("a").annotation(ANNOTATION, &avoiding(&[("ReplicaSet", "u1")]))).unwrap();
        assert!(bench.check_key(owned_by("ReplicaSet", "u1")).unwrap().keeps("ordinal label"));
        assert!(!bench.have_equal_keys(owned_by("ReplicaSet", "u1"), pod("bare")).unwrap());
        assert!(bench.have_equal_keys(owned_by("StatefulSet", "u1"), pod("bare")).unwrap());
    }
}
