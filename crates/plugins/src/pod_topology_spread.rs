//! PodTopologySpread: spreads the pods that match a selector evenly over zones, racks or nodes.
//!
//! | | |
//! | --- | --- |
//! | extension points | PreFilter (+ AddPod, RemovePod), Filter, PreScore, Score (+ NormalizeScore), Sign |
//! | woken by | pod added, deleted, relabeled or with new tolerations; node added, deleted, relabeled or its taints changed |
//! | upstream | `plugins/podtopologyspread`, 1.36 |
//! | deviations | none |
//! | cost | per-node form: O(pods) in PreFilter and PreScore, then O(constraints) per node. Incremental form: a few additions per assigned pod, O(classes) per decision, no allocation up to 1,024 domains |
//!
//! Hard constraints (`DoNotSchedule`) filter, soft ones (`ScheduleAnyway`) score; a pod without any
//! gets the defaults of its profile. [`constraint`] defines what a constraint counts,
//! [`default_selector`] which pods the default constraints count, [`filter`] and [`score`] are the
//! per-node form, [`evaluator`] is the incremental form, and [`hints`] has the queueing hints.

mod args;
mod constraint;
pub mod default_selector;
mod evaluator;
mod explain;
mod filter;
mod hints;
#[cfg(test)]
mod incremental_tests;
mod score;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use loadmaster_api::{Selector, TopologySpreadConstraint};
use loadmaster_framework::cluster_objects::ClusterObjects;
use loadmaster_framework::extension_points::{SignFragment, UnsignablePod};
use loadmaster_framework::{
    ActionType, ClusterEvent, Code, CycleStateSlot, EventResource, ExtensionPoints, Failure,
    PluginDef, PluginError, PodInfo, PodTemplate, Sign,
};
use serde_json::Value;

use self::constraint::{Constraint, ConstraintParser};
use self::filter::PreFilterState;
use self::score::PreScoreState;
use crate::DeclaredReasons;
use crate::tolerations::TolerationMatcher;

pub const NAME: &str = "PodTopologySpread";

const REASON_SKEW: &str = "node(s) didn't match pod topology spread constraints";
const REASON_LABEL: &str =
    "node(s) didn't match pod topology spread constraints (missing required label)";

/// The topology key with one node per domain: scores count pods per node for it.
const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

/// Values of `whenUnsatisfiable`.
const HARD: &str = "DoNotSchedule";
const SOFT: &str = "ScheduleAnyway";

/// The reasons with which this plugin rejects pods and nodes.
pub(crate) const REASONS: DeclaredReasons =
    &[(Code::Unschedulable, REASON_SKEW), (Code::UnschedulableAndUnresolvable, REASON_LABEL)];

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: Some(args::complete) };

struct PodTopologySpread {
    /// The constraints of pods that have none of their own.
    defaults: Vec<TopologySpreadConstraint>,
    /// The defaults are upstream's: nodes do not need all of their topology keys.
    system_defaults: bool,
    match_label_keys: bool,
    toleration_matcher: TolerationMatcher,
    pre_filter_state: CycleStateSlot<PreFilterState>,
    pre_score_state: CycleStateSlot<PreScoreState>,
}

fn build(points: &mut ExtensionPoints, args: &Value) -> Result<(), PluginError> {
    let args = args::read(args).map_err(|error| PluginError::Args { plugin: NAME, error })?;
    let plugin = Arc::new(PodTopologySpread {
        system_defaults: args.is_system(),
        defaults: args.constraints(),
        match_label_keys: points.gates.match_label_keys_in_pod_topology_spread,
        toleration_matcher: TolerationMatcher::new(&points.gates),
        pre_filter_state: points.cycle_state_slot(),
        pre_score_state: points.cycle_state_slot(),
    });
    points.pre_filter = Some(plugin.clone());
    points.filter = Some(plugin.clone());
    points.pre_score = Some(plugin.clone());
    points.score = Some(plugin.clone());
    points.sign = Some(plugin.clone());
    points.explain = Some(plugin.clone());
    points.incremental = Some(plugin.clone());
    let labels_and_tolerations = ActionType::UPDATE_POD_LABEL | ActionType::UPDATE_POD_TOLERATION;
    let pods = ActionType::ADD | labels_and_tolerations | ActionType::DELETE;
    let for_pods = plugin.clone();
    points.register_event(
        ClusterEvent::new(EventResource::Pod, pods),
        Some(Arc::new(move |hint_args| for_pods.after_pod_change(hint_args))),
    );
    let labels_and_taints = ActionType::UPDATE_NODE_LABEL | ActionType::UPDATE_NODE_TAINT;
    points.register_event(
        ClusterEvent::new(
            EventResource::Node,
            ActionType::ADD | ActionType::DELETE | labels_and_taints,
        ),
        Some(Arc::new(move |hint_args| plugin.after_node_change(hint_args))),
    );
    Ok(())
}

impl PodTopologySpread {
    /// The hard constraints of the pod.
    fn hard_constraints(
        &self,
        cluster: &ClusterObjects,
        pod: &PodTemplate,
    ) -> Result<Vec<Constraint>, Failure> {
        let constraints = self.constraints(cluster, pod, HARD, true);
        constraints.map_err(|error| {
            Failure::new(format!("obtaining pod's hard topology spread constraints: {error}"))
        })
    }

    /// The soft constraints of the pod.
    fn soft_constraints(
        &self,
        cluster: &ClusterObjects,
        pod: &PodTemplate,
    ) -> Result<Vec<Constraint>, Failure> {
        let constraints = self.constraints(cluster, pod, SOFT, self.scores_need_all_keys(pod));
        constraints.map_err(|error| {
            Failure::new(format!("obtaining pod's soft topology spread constraints: {error}"))
        })
    }

    /// Whether only nodes with the keys of all soft constraints count and are scored (upstream's
    /// `requireAllTopologies`). With upstream's default constraints, nodes without a zone are scored too.
    fn scores_need_all_keys(&self, pod: &PodTemplate) -> bool {
        !pod.spec.topology_spread_constraints.is_empty() || !self.system_defaults
    }

    fn constraints(
        &self,
        cluster: &ClusterObjects,
        pod: &PodTemplate,
        action: &str,
        all_keys: bool,
    ) -> Result<Vec<Constraint>, Failure> {
        let parser =
            ConstraintParser::new(pod, self.toleration_matcher, self.match_label_keys, all_keys);
        let own = &pod.spec.topology_spread_constraints;
        if !own.is_empty() {
            return parser.own_constraints(own, action);
        }
        if !self.defaults.iter().any(|constraint| constraint.when_unsatisfiable == *action) {
            return Ok(Vec::new());
        }
        let selector: Selector = default_selector::default_selector(cluster, pod);
        if selector.is_empty() {
            return Ok(Vec::new());
        }
        Ok(parser.default_constraints(&self.defaults, action, &selector))
    }
}

impl Sign for PodTopologySpread {
    /// The results depend on where other pods are, so pods with constraints, own or default, have no
    /// signature.
    fn sign(&self, pod: &PodInfo) -> Result<Vec<SignFragment>, UnsignablePod> {
        let none = pod.template.spec.topology_spread_constraints.is_empty();
        if none && self.defaults.is_empty() { Ok(Vec::new()) } else { Err(UnsignablePod) }
    }
}
