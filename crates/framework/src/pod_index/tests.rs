//! An index over random histories equals a scan of the same pods.

use std::collections::BTreeMap;

use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use super::*;
use crate::registry::{ExtensionPoints, PluginDef};
use crate::testkit::{PluginTestBench, node, pod};

const LABEL: &str = "example.com/gang";
const NAMESPACES: [&str; 2] = ["one", "two"];
const VALUES: [&str; 2] = ["x", "y"];

const DEF: PluginDef = PluginDef {
    name: "Index",
    build: |points: &mut ExtensionPoints, _| {
        points.pod_index(PodIndexKey::Label(LABEL.into()));
        points.pod_index(PodIndexKey::Controller);
        points.pod_index(PodIndexKey::Label(LABEL.into()));
        Ok(())
    },
    args: None,
};

fn by_label() -> PodIndex {
    PodIndex::new(PodIndexKey::Label(LABEL.into()))
}

fn random_pod(rng: &mut Rng, uid: usize) -> Value {
    let mut object = json!({"metadata": {
        "name": format!("p{uid}"), "uid": format!("p{uid}"), "namespace": NAMESPACES[uid % 2],
        "ownerReferences": [{"uid": VALUES[uid % 3 % 2], "controller": !rng.one_in(4)}],
    }});
    if !rng.one_in(4) {
        object["metadata"]["labels"] = json!({LABEL: *rng.pick(&VALUES)});
    }
    object
}

/// The model: each pod as it is pending and as it is assigned; with both it is assumed.
type Model = BTreeMap<String, [Option<Arc<PodInfo>>; 2]>;

fn names<'a>(pods: impl Iterator<Item = &'a Arc<PodInfo>>) -> Vec<String> {
    pods.map(|pod| pod.uid.to_string()).collect()
}

fn check(bench: &PluginTestBench, model: &Model, key: &PodIndexKey) {
    for (namespace, value) in NAMESPACES.iter().flat_map(|ns| VALUES.map(|value| (*ns, value))) {
        let matches = |pod: &Arc<PodInfo>| {
            pod.template.namespace == namespace
                && key.value_of(pod).is_some_and(|known| *known == value)
        };
        let pending = model.values().filter(|[_, assigned]| assigned.is_none());
        let pending = pending.filter_map(|[pending, _]| pending.as_ref());
        let want_pending = names(pending.filter(|pod| matches(pod)));
        let assigned = model.values().filter_map(|[_, assigned]| assigned.as_ref());
        let want_assigned = names(assigned.filter(|pod| matches(pod)));
        let found = bench.world.pods_by_index(&PodIndex::new(key.clone()), namespace, value);
        assert_eq!(names(found.pending()), want_pending, "{key:?} {namespace} {value}");
        assert_eq!(names(found.assigned()), want_assigned, "{key:?} {namespace} {value}");
        assert_eq!(
            (found.n_pending(), found.n_assigned()),
            (want_pending.len(), want_assigned.len())
        );
    }
}

#[test]
fn indexes_agree_with_a_scan_over_random_histories() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
        for name in ["a", "b"] {
            bench.node(node(name)).unwrap();
        }
        let mut model = Model::new();
        for _ in 0..200 {
            let uid = rng.below(8) as usize;
            let object = random_pod(&mut rng, uid);
            let pod = Arc::new(bench.parse_pod(object).unwrap());
            let [pending, assigned] = model.entry(pod.uid.to_string()).or_default();
            let row = bench.world.nodes().row(rng.pick::<&str>(&["a", "b"])).unwrap();
            match rng.below(6) {
                0 => {
                    bench.world.upsert_pending_pod(&pod);
                    *pending = Some(pod);
                }
                1 => {
                    bench.world.delete_pending_pod(&pod.uid);
                    *pending = None;
                }
                2 => {
                    bench.world.add_pod(row, pod.clone());
                    *assigned = Some(pod);
                }
                3 => {
                    bench.world.remove_pod(&pod.uid);
                    *assigned = None;
                }
                4 => {
                    if bench.world.refresh_pod(&pod) {
                        *assigned = Some(pod);
                    }
                }
                _ => {
                    let name = bench.world.node(row).unwrap().name().to_owned();
                    for pod in bench.world.remove_node(&name) {
                        model.entry(pod.uid.to_string()).or_default()[1] = None;
                    }
                    bench.node(node(&name)).unwrap();
                }
            }
            check(&bench, &model, &PodIndexKey::Label(LABEL.into()));
            check(&bench, &model, &PodIndexKey::Controller);
        }
    }
}

#[test]
fn siblings_are_in_the_same_namespace_and_have_the_same_value() {
    let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
    bench.node(node("a")).unwrap();
    bench.add_assigned_pod("a", pod("placed").label(LABEL, "x")).unwrap();
    let labelled = |name: &str, value: &str| pod(name).label(LABEL, value);
    for pod in [labelled("p1", "x"), labelled("p2", "y"), labelled("p3", "x").namespace("two")] {
        bench.add_pending_pod(pod).unwrap();
    }
    let pod = bench.add_pending_pod(labelled("p0", "x")).unwrap();
    let siblings = bench.world.sibling_pods(&by_label(), &pod);
    assert_eq!(names(siblings.pending()), ["default/p0", "default/p1"]);
    assert_eq!(names(siblings.assigned()), ["default/placed"]);
    assert_eq!(siblings.waiting().count(), 0);
    let alone = bench.add_pending_pod(pod_without_label()).unwrap();
    assert_eq!(bench.world.sibling_pods(&by_label(), &alone).n_pending(), 0);
}

fn pod_without_label() -> crate::testkit::PodBuilder {
    pod("alone")
}
