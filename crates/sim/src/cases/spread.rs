//! Random topology spread constraints.

use serde_json::{Value, json};

use super::affinity;
use super::case_rng::{CaseRng, Fields};
use super::features::CaseFeature;

/// `spec.topologySpreadConstraints` of a pod.
pub(super) fn constraints(draw: &mut CaseRng) -> Vec<Value> {
    let mut all = Vec::new();
    if draw.when(CaseFeature::Spread, 85) {
        let n = draw.mostly(&[1, 1, 2], &[3]);
        all.extend((0..n).map(|_| constraint(draw, "DoNotSchedule")));
    }
    if draw.when(CaseFeature::SoftSpread, 85) {
        let n = draw.mostly(&[1, 1, 2], &[3]);
        all.extend((0..n).map(|_| constraint(draw, "ScheduleAnyway")));
    }
    all
}

fn constraint(draw: &mut CaseRng, when: &str) -> Value {
    let mut constraint = Fields::default();
    constraint.put("maxSkew", draw.mostly(&[1, 1, 2], &[3, 5]));
    constraint.put("topologyKey", affinity::topology_key(draw));
    constraint.put("whenUnsatisfiable", when);
    let wide = draw.percent(60);
    let selector = if wide { affinity::wide_selector(draw) } else { affinity::selector(draw) };
    if !selector.is_null() {
        constraint.put("labelSelector", selector);
    }
    if when == "DoNotSchedule" && draw.percent(25) {
        constraint.put("minDomains", draw.range(1, 4));
    }
    if draw.percent(20) {
        constraint.put("matchLabelKeys", draw.some(&["hash", "tier", "none"], 1, 2));
    }
    if draw.percent(30) {
        constraint.put("nodeAffinityPolicy", draw.pick(&["Honor", "Ignore"]));
    }
    if draw.percent(30) {
        constraint.put("nodeTaintsPolicy", draw.pick(&["Honor", "Ignore"]));
    }
    constraint.into()
}

/// Default constraints of a profile. They have no selector.
pub(super) fn defaults(draw: &mut CaseRng) -> Vec<Value> {
    // Two constraints with the same key and action are invalid.
    let keys = draw.some(&affinity::TOPOLOGIES, 0, 2);
    let all = keys.into_iter().map(|key| {
        let when = if draw.percent(60) { "ScheduleAnyway" } else { "DoNotSchedule" };
        json!({"maxSkew": draw.range(1, 3), "topologyKey": key, "whenUnsatisfiable": when})
    });
    all.collect()
}
