//! PodTopologySpread: spreads pods that a selector picks evenly over zones, racks or nodes.
//!
//! | | |
//! | --- | --- |
//! | extension points | PreFilter (+ AddPod, RemovePod), Filter, PreScore, Score (+ NormalizeScore), Sign |
//! | woken by | pod added, deleted, relabeled or with new tolerations; node added, deleted, relabeled or its taints changed |
//! | upstream | `plugins/podtopologyspread`, 1.36 |
//! | deviations | none |
//! | cost | node by node: O(pods) in PreFilter and PreScore, then O(constraints) a node. Incremental: a few additions a placed pod, O(classes) a decision, no allocation up to 1,024 domains |
//!
//! Hard constraints (`DoNotSchedule`) filter, soft ones (`ScheduleAnyway`) score; a pod without any
//! gets the defaults of its profile. [`constraint`] says what a constraint counts, [`defaults`]
//! which pods belong together when nobody says so, [`filter`] and [`score`] answer node by node,
//! [`run`] answers in parts, [`hints`] wakes pods.

mod args;
mod constraint;
mod defaults;
mod filter;
mod hints;
mod run;
mod score;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod twin;

use std::sync::Arc;

use loadmaster_api::{Selector, TopologySpreadConstraint};
use loadmaster_framework::cluster::Cluster;
use loadmaster_framework::points::{Fragment, Unsignable};
use loadmaster_framework::{
    Action, ClusterEvent, Code, EventResource, Failure, PluginDef, PluginError, PodInfo,
    PodTemplate, Points, Sign, Slot,
};
use serde_json::Value;

use self::constraint::{Constraint, Reader};
use self::filter::HardState;
use self::score::SoftState;
use crate::DeclaredReasons;
use crate::taint_toleration::Tolerance;

pub const NAME: &str = "PodTopologySpread";

const REASON_SKEW: &str = "node(s) didn't match pod topology spread constraints";
const REASON_LABEL: &str =
    "node(s) didn't match pod topology spread constraints (missing required label)";

/// The key of constraints that spread over single nodes: their scores count each node by itself.
const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

/// Values of `whenUnsatisfiable`.
const HARD: &str = "DoNotSchedule";
const SOFT: &str = "ScheduleAnyway";

/// What it turns pods and nodes down with.
pub(crate) const REASONS: DeclaredReasons =
    &[(Code::Unschedulable, REASON_SKEW), (Code::UnschedulableAndUnresolvable, REASON_LABEL)];

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: Some(args::complete) };

struct PodTopologySpread {
    /// For pods that have no constraint of their own.
    defaults: Vec<TopologySpreadConstraint>,
    /// The defaults are upstream's: nodes need not carry all their labels.
    system_defaults: bool,
    match_label_keys: bool,
    tolerance: Tolerance,
    hard: Slot<HardState>,
    soft: Slot<SoftState>,
}

fn build(points: &mut Points, args: &Value) -> Result<(), PluginError> {
    let args = args::read(args).map_err(|error| PluginError::Args { plugin: NAME, error })?;
    let plugin = Arc::new(PodTopologySpread {
        system_defaults: args.is_system(),
        defaults: args.constraints(),
        match_label_keys: points.gates.match_label_keys_in_pod_topology_spread,
        tolerance: Tolerance::new(&points.gates),
        hard: points.slot(),
        soft: points.slot(),
    });
    points.pre_filter = Some(plugin.clone());
    points.filter = Some(plugin.clone());
    points.pre_score = Some(plugin.clone());
    points.score = Some(plugin.clone());
    points.sign = Some(plugin.clone());
    points.prepare = Some(plugin.clone());
    let labels_and_tolerations = Action::UPDATE_POD_LABEL | Action::UPDATE_POD_TOLERATION;
    let pods = Action::ADD | labels_and_tolerations | Action::DELETE;
    let for_pods = plugin.clone();
    points.wake_on(
        ClusterEvent::new(EventResource::Pod, pods),
        Some(Arc::new(move |question| for_pods.after_pod_change(question))),
    );
    let labels_and_taints = Action::UPDATE_NODE_LABEL | Action::UPDATE_NODE_TAINT;
    points.wake_on(
        ClusterEvent::new(EventResource::Node, Action::ADD | Action::DELETE | labels_and_taints),
        Some(Arc::new(move |question| plugin.after_node_change(question))),
    );
    Ok(())
}

impl PodTopologySpread {
    /// The constraints that filter.
    fn hard(&self, cluster: &Cluster, pod: &PodTemplate) -> Result<Vec<Constraint>, Failure> {
        let constraints = self.constraints(cluster, pod, HARD, true);
        constraints.map_err(|error| {
            Failure::new(format!("obtaining pod's hard topology spread constraints: {error}"))
        })
    }

    /// The constraints that score.
    fn soft(&self, cluster: &Cluster, pod: &PodTemplate) -> Result<Vec<Constraint>, Failure> {
        let constraints = self.constraints(cluster, pod, SOFT, self.scores_need_all_keys(pod));
        constraints.map_err(|error| {
            Failure::new(format!("obtaining pod's soft topology spread constraints: {error}"))
        })
    }

    /// Whether only nodes with the keys of all soft constraints count and are scored. With
    /// upstream's defaults nodes without a zone still spread by host name.
    fn scores_need_all_keys(&self, pod: &PodTemplate) -> bool {
        !pod.spec.topology_spread_constraints.is_empty() || !self.system_defaults
    }

    fn constraints(
        &self,
        cluster: &Cluster,
        pod: &PodTemplate,
        action: &str,
        all_keys: bool,
    ) -> Result<Vec<Constraint>, Failure> {
        let reader = Reader::new(pod, self.tolerance, self.match_label_keys, all_keys);
        let own = &pod.spec.topology_spread_constraints;
        if !own.is_empty() {
            return reader.own(own, action);
        }
        if !self.defaults.iter().any(|constraint| constraint.when_unsatisfiable == *action) {
            return Ok(Vec::new());
        }
        let selector: Selector = defaults::selector(cluster, pod);
        if selector.is_empty() {
            return Ok(Vec::new());
        }
        Ok(reader.defaults(&self.defaults, action, &selector))
    }
}

impl Sign for PodTopologySpread {
    /// Answers hang on where other pods are, so pods with constraints, own or default, share
    /// nothing.
    fn sign(&self, pod: &PodInfo) -> Result<Vec<Fragment>, Unsignable> {
        let none = pod.template.spec.topology_spread_constraints.is_empty();
        if none && self.defaults.is_empty() { Ok(Vec::new()) } else { Err(Unsignable) }
    }
}
