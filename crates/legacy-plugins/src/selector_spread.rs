//! SelectorSpread: spreads the pods of a Service, ReplicationController, ReplicaSet or StatefulSet over nodes and zones.
//!
//! | | |
//! | --- | --- |
//! | extension points | PreScore, Score (+ NormalizeScore) |
//! | woken by | no event: it rejects no pod |
//! | upstream | `plugins/selectorspread`, 1.22 |
//! | deviations | none |
//! | cost | O(pods of the node); incremental form: only changed nodes are counted again, then O(classes) per decision |
//!
//! A node's count is that of the pods of the same namespace on it that have the labels of all these objects' selectors, and are not
//! terminating. With `max` over the feasible nodes, a node gets `100 * (max - count) / max`. If it is in a zone, that is a third of the
//! score, and two thirds are the same fraction for the sums of the zones.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::{Labels, Selector, Str};
use loadmaster_framework::incremental::{
    ClassKey, NodeClasses, PluginEvaluator, ResultDependencies, RowDependency,
};
use loadmaster_framework::label_columns::{LabelColumns, LabelKeyId, LabelValueId};
use loadmaster_framework::{
    Cx, CycleStateSlot, EvaluatorCx, ExtensionPoints, Failure, Incremental, MAX_NODE_SCORE,
    NodeInfo, NodeRow, NodeScore, PluginDef, PluginError, PodInfo, PreScore, PreScoreResult,
    PrepareCx, PrepareResult, Score, SerialCx, World,
};
use loadmaster_plugins::pod_topology_spread::default_selector::default_selector;
use serde_json::Value;

pub const NAME: &str = "SelectorSpread";

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

/// The part of the score that comes from the zone (upstream's `zoneWeighting`).
const ZONE_WEIGHTING: f64 = 2.0 / 3.0;

/// The labels of a node's region and of its zone; of each, the first that a node has counts (upstream's `GetZoneKey`).
const REGION_LABELS: [&str; 2] =
    ["failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"];
const ZONE_LABELS: [&str; 2] =
    ["failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"];

struct SelectorSpread {
    matching_pods: CycleStateSlot<MatchingPods>,
}

fn build(points: &mut ExtensionPoints, _args: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(SelectorSpread { matching_pods: points.cycle_state_slot() });
    points.pre_score = Some(plugin.clone());
    points.score = Some(plugin.clone());
    points.incremental = Some(plugin);
    points.register_no_events();
    Ok(())
}

/// The pods from which the pod is spread.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct MatchingPods {
    namespace: Str,
    selector: Selector,
}

impl MatchingPods {
    /// `None` for a pod with topology spread constraints of its own, which is not scored.
    fn of(world: &World, pod: &PodInfo) -> Option<MatchingPods> {
        let template = &*pod.template;
        if !template.spec.topology_spread_constraints.is_empty() {
            return None;
        }
        let selector = default_selector(world.cluster_objects(), template);
        let namespace = match selector.is_empty() {
            // It counts no pods, in any namespace.
            true => Str::default(),
            false => template.namespace.clone(),
        };
        Some(MatchingPods { namespace, selector })
    }

    fn count_on(&self, node: NodeInfo<'_>) -> i64 {
        if self.selector.is_empty() {
            return 0;
        }
        let counts = |pod: &&Arc<PodInfo>| {
            let template = &*pod.template;
            !pod.terminating
                && template.namespace == self.namespace
                && self.selector.matches(&template.labels)
        };
        node.pods().filter(counts).count() as i64
    }
}

impl PreScore for SelectorSpread {
    fn pre_score(
        &self,
        cx: SerialCx<'_>,
        pod: &PodInfo,
        _: &[NodeInfo<'_>],
    ) -> Result<PreScoreResult, Failure> {
        let Some(matching_pods) = MatchingPods::of(cx.world, pod) else {
            return Ok(PreScoreResult::Skip);
        };
        cx.cycle.set(self.matching_pods, matching_pods);
        Ok(PreScoreResult::Ready)
    }
}

impl Score for SelectorSpread {
    fn score(&self, cx: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        let matching_pods = cx.cycle.get(self.matching_pods).ok_or_else(|| {
            Failure::new(format!("reading \"PreScore{NAME}\" from cycleState: not found"))
        })?;
        Ok(matching_pods.count_on(node))
    }

    fn normalize(&self, cx: Cx<'_>, _: &PodInfo, scores: &mut [NodeScore]) -> Result<(), Failure> {
        let mut counts = SpreadCounts::default();
        let zone = |row: NodeRow| cx.world.node(row).and_then(|node| Zone::of(node.labels()));
        for node in scores.iter() {
            counts.add(zone(node.row), node.score, 1);
        }
        let most = counts.most();
        for node in scores.iter_mut() {
            node.score = most.score(node.score, counts.of_zone(zone(node.row)));
        }
        Ok(())
    }
}

/// Region and zone of a node; one of them may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Zone<'a> {
    region: &'a str,
    zone: &'a str,
}

impl<'a> Zone<'a> {
    fn new(region: &'a str, zone: &'a str) -> Option<Zone<'a>> {
        (!region.is_empty() || !zone.is_empty()).then_some(Zone { region, zone })
    }

    fn of(labels: &'a Labels) -> Option<Zone<'a>> {
        let first = |names: [&str; 2]| {
            names.iter().find_map(|name| labels.get(name)).map_or("", Str::as_str)
        };
        Zone::new(first(REGION_LABELS), first(ZONE_LABELS))
    }
}

/// The counts of the feasible nodes.
#[derive(Default)]
struct SpreadCounts<'a> {
    max_by_node: i64,
    by_zone: BTreeMap<Zone<'a>, i64>,
}

impl<'a> SpreadCounts<'a> {
    /// Adds nodes of one zone with equal counts.
    fn add(&mut self, zone: Option<Zone<'a>>, count: i64, n_nodes: i64) {
        self.max_by_node = self.max_by_node.max(count);
        if let Some(zone) = zone {
            *self.by_zone.entry(zone).or_default() += count * n_nodes;
        }
    }

    fn of_zone(&self, zone: Option<Zone<'a>>) -> Option<i64> {
        self.by_zone.get(&zone?).copied()
    }

    fn most(&self) -> HighestCounts {
        let by_zone = self.by_zone.values().copied().max().unwrap_or(0);
        HighestCounts { by_node: self.max_by_node, by_zone }
    }
}

struct HighestCounts {
    by_node: i64,
    by_zone: i64,
}

impl HighestCounts {
    /// The score of a node with this count, in a zone with that one. Upstream's order of evaluation.
    fn score(&self, count: i64, of_zone: Option<i64>) -> i64 {
        let of_node = below(count, self.by_node);
        let score = match of_zone {
            Some(of_zone) => {
                (of_node * (1.0 - ZONE_WEIGHTING)) + (ZONE_WEIGHTING * below(of_zone, self.by_zone))
            }
            None => of_node,
        };
        score as i64
    }
}

/// How far a count is below the highest one, in percent of that.
fn below(count: i64, highest: i64) -> f64 {
    let max_score = MAX_NODE_SCORE as f64;
    if highest > 0 { max_score * ((highest - count) as f64 / highest as f64) } else { max_score }
}

impl Incremental for SelectorSpread {
    /// `None` for pods that are not scored.
    type Key = Option<MatchingPods>;

    fn key(&self, cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<Option<MatchingPods>> {
        Some(MatchingPods::of(cx.world, pod))
    }

    fn prepare(&self, cx: &mut PrepareCx<'_>, key: &Option<MatchingPods>) -> PrepareResult {
        let Some(matching_pods) = key else { return PrepareResult::Skip };
        if matching_pods.selector.is_empty() {
            // No pod is counted, so that all nodes have the highest score.
            return PrepareResult::row_local(RowDependency::Node, |_, _| Some(MAX_NODE_SCORE));
        }
        PrepareResult::Evaluator(Box::new(SpreadEvaluator {
            matching_pods: matching_pods.clone(),
            region: FirstOfLabels::new(cx, REGION_LABELS),
            zone: FirstOfLabels::new(cx, ZONE_LABELS),
        }))
    }
}

/// The class of a node is its region, its zone and its count.
struct SpreadEvaluator {
    matching_pods: MatchingPods,
    region: FirstOfLabels,
    zone: FirstOfLabels,
}

impl SpreadEvaluator {
    /// The zone and the count in a class key.
    fn read_key<'a>(&self, columns: &'a LabelColumns, key: &[i64]) -> (Option<Zone<'a>>, i64) {
        let &[region, zone, count] = key else { return (None, 0) };
        (Zone::new(self.region.text(columns, region), self.zone.text(columns, zone)), count)
    }
}

impl PluginEvaluator for SpreadEvaluator {
    fn dependencies(&self) -> ResultDependencies {
        ResultDependencies { class: Some(RowDependency::Pods), ..ResultDependencies::default() }
    }

    fn class_key_len(&self) -> usize {
        3
    }

    fn class_key(&self, cx: EvaluatorCx<'_>, row: NodeRow, out: &mut ClassKey) {
        let columns = cx.nodes().labels();
        out.push(self.region.key_element(columns, row));
        out.push(self.zone.key_element(columns, row));
        out.push(cx.world.node(row).map_or(0, |node| self.matching_pods.count_on(node)));
    }

    fn has_class_scores(&self) -> bool {
        true
    }

    fn score_classes(&self, cx: EvaluatorCx<'_>, classes: &NodeClasses<'_>, out: &mut [i64]) {
        let columns = cx.nodes().labels();
        let read = |class: usize| self.read_key(columns, classes.key(class));
        let mut counts = SpreadCounts::default();
        for class in classes.feasible() {
            let (zone, count) = read(class);
            counts.add(zone, count, i64::from(classes.rows[class]));
        }
        let most = counts.most();
        for class in classes.feasible() {
            let (zone, count) = read(class);
            out[class] = most.score(count, counts.of_zone(zone));
        }
    }
}

/// The first of two labels that a node has, as an element of a class key: the label and the id of its value.
struct FirstOfLabels([LabelKeyId; 2]);

/// The key element of a node with neither label.
const ABSENT: i64 = -1;

impl FirstOfLabels {
    fn new(cx: &mut PrepareCx<'_>, labels: [&str; 2]) -> FirstOfLabels {
        FirstOfLabels(labels.map(|label| cx.label_column(&Str::new(label))))
    }

    fn key_element(&self, columns: &LabelColumns, row: NodeRow) -> i64 {
        let values = self.0.iter().map(|key| columns.column(*key).value(row));
        let first = values.enumerate().find(|(_, value)| value.is_present());
        first.map_or(ABSENT, |(at, value)| (at as i64) << 32 | i64::from(value.0))
    }

    fn text<'a>(&self, columns: &'a LabelColumns, element: i64) -> &'a str {
        if element == ABSENT {
            return "";
        }
        let column = columns.column(self.0[(element >> 32) as usize]);
        column.value_text(LabelValueId(element as u32)).as_str()
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_api::{ReplicaSet, Service};
    use loadmaster_framework::testkit::incremental_history::check_incremental_history;
    use loadmaster_framework::testkit::{NodeBuilder, PluginTestBench, PodBuilder, node, pod};
    use loadmaster_stdx::Rng;
    use serde_json::json;

    use super::*;

    const ZONE: &str = ZONE_LABELS[1];

    fn add_service(bench: &mut PluginTestBench, selector: Value) {
        let service = json!({"metadata": {"name": "web"}, "spec": {"selector": selector}});
        let service: Service = serde_json::from_value(service).unwrap();
        bench.world.update_cluster_objects(|cluster| {
            cluster.services.insert("default".into(), vec![Arc::new(service)]);
        });
    }

    fn add_replica_set(bench: &mut PluginTestBench) {
        let set = json!({"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}}}});
        let set: ReplicaSet = serde_json::from_value(set).unwrap();
        bench.world.update_cluster_objects(|cluster| {
            cluster.replica_sets.insert("default".into(), vec![Arc::new(set)]);
        });
    }

    fn web(name: &str) -> PodBuilder {
        pod(name).label("app", "web").label("tier", "front")
    }

    /// Nodes named after their zone, such as `a1`; those that begin with `-` have none. The numbers are pods of the service.
    fn bench(nodes: &[(&str, usize)]) -> PluginTestBench {
        let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
        for (name, n_pods) in nodes {
            bench.node(in_zone_of_name(name)).unwrap();
            for at in 0..*n_pods {
                bench.add_assigned_pod(name, web(&format!("{name}-{at}"))).unwrap();
            }
        }
        bench
    }

    fn in_zone_of_name(name: &str) -> NodeBuilder {
        match &name[..1] {
            "-" => node(name),
            zone => node(name).label(ZONE, zone),
        }
    }

    fn scores(bench: &mut PluginTestBench, incoming: impl Into<Value>) -> Vec<i64> {
        bench.score(incoming).unwrap().into_iter().map(|(_, score)| score).collect()
    }

    #[track_caller]
    fn check(nodes: &[(&str, usize)], want: &[i64]) {
        let mut bench = bench(nodes);
        add_service(&mut bench, json!({"app": "web"}));
        assert_eq!(scores(&mut bench, web("new")), want);
    }

    #[test]
    fn nodes_with_fewer_pods_are_preferred() {
        check(&[("-1", 0), ("-2", 0)], &[100, 100]);
        check(&[("-1", 1), ("-2", 0)], &[0, 100]);
        check(&[("-1", 3), ("-2", 2), ("-3", 1), ("-4", 0)], &[0, 33, 66, 100]);
    }

    #[test]
    fn the_zone_is_two_thirds_of_the_score() {
        check(&[("a1", 0), ("b1", 0), ("-1", 0)], &[100, 100, 100]);
        check(&[("a1", 1), ("a2", 0), ("b1", 0)], &[0, 33, 100]);
        check(&[("a1", 2), ("a2", 0), ("b1", 1), ("b2", 0)], &[0, 33, 50, 66]);
        // A node without a zone has the score of the node alone.
        check(&[("a1", 2), ("-1", 1), ("b1", 0)], &[0, 50, 100]);
        // All pods are on nodes without a zone.
        check(&[("a1", 0), ("-1", 1)], &[100, 0]);
    }

    #[test]
    fn deprecated_zone_labels_win_and_regions_count() {
        let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
        add_service(&mut bench, json!({"app": "web"}));
        let beta = |name: &str, zone: &str| node(name).label(ZONE_LABELS[0], zone);
        bench.node(beta("n1", "a").label(ZONE, "b")).unwrap();
        bench.node(node("n2").label(ZONE, "a")).unwrap();
        bench.node(node("n3").label(ZONE, "b")).unwrap();
        bench.node(node("n4").label(ZONE, "a").label(REGION_LABELS[1], "r")).unwrap();
        bench.add_assigned_pod("n1", web("old")).unwrap();
        assert_eq!(scores(&mut bench, web("new")), [0, 33, 100, 100]);
    }

    #[test]
    fn pods_that_do_not_count() {
        let mut bench = bench(&[("-1", 0), ("-2", 0)]);
        add_service(&mut bench, json!({"app": "web"}));
        bench.add_assigned_pod("-1", web("elsewhere").namespace("other")).unwrap();
        bench.add_assigned_pod("-1", pod("other-app").label("app", "db")).unwrap();
        let deleted = web("old").set_field("/metadata/deletionTimestamp", "2026-01-31T12:00:00Z");
        bench.add_assigned_pod("-1", deleted).unwrap();
        assert_eq!(scores(&mut bench, web("new")), [100, 100]);
        bench.add_assigned_pod("-1", web("counts")).unwrap();
        assert_eq!(scores(&mut bench, web("new")), [0, 100]);
        // The service does not select this one, and nothing owns it.
        assert_eq!(scores(&mut bench, pod("new").label("app", "db")), [100, 100]);
    }

    #[test]
    fn the_selectors_of_services_and_of_the_owner_are_joined() {
        let mut bench = bench(&[("-1", 1), ("-2", 0), ("-3", 0)]);
        bench.add_assigned_pod("-2", pod("back").label("app", "web")).unwrap();
        let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": true}]);
        let owned = || web("new").set_field("/metadata/ownerReferences", owner.clone());
        assert_eq!(scores(&mut bench, owned()), [100, 100, 100]);
        add_replica_set(&mut bench);
        assert_eq!(scores(&mut bench, owned()), [0, 0, 100]);
        add_service(&mut bench, json!({"tier": "front"}));
        assert_eq!(scores(&mut bench, owned()), [0, 100, 100]);
        assert_eq!(scores(&mut bench, web("new")), [0, 100, 100]);
    }

    #[test]
    fn pods_with_spread_constraints_are_not_scored() {
        let mut bench = bench(&[("-1", 1), ("-2", 0)]);
        add_service(&mut bench, json!({"app": "web"}));
        let constraint =
            json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]);
        let own = web("new").set_field("/spec/topologySpreadConstraints", constraint);
        assert_eq!(scores(&mut bench, own), [0; 0]);
    }

    #[test]
    fn cached_evaluations_see_pods_nodes_and_services() {
        let mut bench = bench(&[("a1", 1), ("a2", 0), ("b1", 2), ("-1", 1)]);
        let change = |bench: &mut PluginTestBench, rng: &mut Rng| {
            let on = *rng.pick(&["a1", "a2", "b1", "-1"]);
            let name = format!("p{}", rng.below(8));
            Ok(match rng.below(8) {
                0 => {
                    let selectors =
                        [json!({"app": "web"}), json!({"tier": "front"}), json!({"app": "db"})];
                    add_service(bench, rng.pick(&selectors).clone());
                    "service"
                }
                1 => {
                    let zone = *rng.pick(&["a", "b", ""]);
                    let label = *rng.pick(&[ZONE, ZONE_LABELS[0], REGION_LABELS[0]]);
                    bench.node(in_zone_of_name(on).label(label, zone))?;
                    "node"
                }
                2 | 3 => {
                    bench.delete_pod(&format!("default/{name}"));
                    "deleted"
                }
                4 => {
                    let deleted =
                        web(&name).set_field("/metadata/deletionTimestamp", "2026-01-31T12:00:00Z");
                    bench.add_assigned_pod(on, deleted)?;
                    "terminating"
                }
                _ => {
                    bench.add_assigned_pod(on, web(&name))?;
                    "assigned"
                }
            })
        };
        let incoming = |rng: &mut Rng| {
            let app = *rng.pick(&["web", "db"]);
            pod("new").label("app", app).label("tier", "front").into()
        };
        check_incremental_history(&mut bench, &mut Rng::new(6), 1_000, incoming, change).unwrap();
    }

    #[test]
    fn the_key_has_all_that_is_read_of_a_pod() {
        let mut bench = bench(&[("a1", 1), ("b1", 0)]);
        add_service(&mut bench, json!({"app": "web"}));
        assert!(bench.check_key(web("new")).unwrap().keeps("ordinal label"));
        assert!(bench.have_equal_keys(web("new"), web("other").label("tier", "back")).unwrap());
        let incoming = [web("new").into(), pod("bare").into()];
        assert!(bench.check_assigned_pod("a1", web("assigned"), incoming).unwrap() > 20);
    }
}
