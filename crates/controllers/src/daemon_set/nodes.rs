//! Which nodes a DaemonSet's pods run on, and the node affinity of each pod.

use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod,
    PodSpec, Taint, Toleration,
};

use crate::node_matching::contains;
use crate::node_matching::{selects_node, tolerates};

const NAME: &str = "metadata.name";

/// What every pod of a DaemonSet tolerates: key and effect. The last only with the node's network.
const TOLERATED: [(&str, &str); 7] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
    ("node.kubernetes.io/network-unavailable", "NoSchedule"),
];

/// Adds the tolerations of all DaemonSets to a pod's.
pub(super) fn add_daemon_tolerations(spec: &mut PodSpec) {
    let has_network = spec.host_network == Some(true);
    let all = spec.tolerations.get_or_insert_default();
    for (key, effect) in TOLERATED.into_iter().take(if has_network { 7 } else { 6 }) {
        let one = Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        };
        if !all.contains(&one) {
            all.push(one);
        }
    }
}

/// Sets the node affinity of a pod to exactly this node.
pub(super) fn set_node_affinity(spec: &mut PodSpec, node: &str) {
    let term = NodeSelectorTerm {
        match_fields: Some(vec![NodeSelectorRequirement {
            key: NAME.to_owned(),
            operator: "In".to_owned(),
            values: Some(vec![node.to_owned()]),
        }]),
        match_expressions: None,
    };
    let affinity = spec.affinity.get_or_insert_default();
    let affinity = affinity.node_affinity.get_or_insert_default();
    let required = &mut affinity.required_during_scheduling_ignored_during_execution;
    *required = Some(NodeSelector { node_selector_terms: vec![term] });
}

fn required(spec: &PodSpec) -> Option<&NodeSelector> {
    let Affinity { node_affinity, .. } = spec.affinity.as_ref()?;
    let NodeAffinity { required_during_scheduling_ignored_during_execution: required, .. } =
        node_affinity.as_ref()?;
    required.as_ref()
}

/// The node that a pod is on, or that its node affinity names.
pub(super) fn target_node_name(pod: &Pod) -> Option<&str> {
    let spec = pod.spec.as_ref()?;
    if let Some(name) = spec.node_name.as_deref().filter(|name| !name.is_empty()) {
        return Some(name);
    }
    let fields = required(spec)?.node_selector_terms.iter();
    let mut fields = fields.flat_map(|term| term.match_fields.iter().flatten());
    let field = fields.find(|rule| rule.key == NAME && rule.operator == "In")?;
    match field.values.as_deref() {
        Some([name]) => Some(name),
        _ => None,
    }
}

/// Whether pods of a DaemonSet should run on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeEligibility {
    /// A pod should run there.
    Run,
    /// A pod that is there may stay.
    Stay,
    /// No pod may be there.
    Leave,
}

/// Whether pods with this spec, which includes the tolerations of all DaemonSets, should run on a node.
pub(super) fn node_eligibility(spec: &PodSpec, node: &Node) -> NodeEligibility {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let is_named = spec.node_name.as_deref().is_none_or(|one| one.is_empty() || one == name);
    let is_selected = contains(node.metadata.labels.as_ref(), spec.node_selector.as_ref())
        && required(spec).is_none_or(|required| selects_node(required, node));
    if !is_named || !is_selected {
        return NodeEligibility::Leave;
    }
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let is_hard = |taint: &&Taint| {
        !spec.tolerations.iter().flatten().any(|toleration| tolerates(toleration, taint))
    };
    let mut hard = taints.iter().filter(is_hard).map(|taint| taint.effect.as_str());
    hard.try_fold(NodeEligibility::Run, |fit, effect| match effect {
        "NoExecute" => Err(NodeEligibility::Leave),
        "NoSchedule" => Ok(NodeEligibility::Stay),
        _ => Ok(fit),
    })
    .unwrap_or_else(|leave| leave)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    #[track_caller]
    fn check(spec: Value, node: Value, want: NodeEligibility) {
        let mut spec: PodSpec = from_value(spec).unwrap();
        add_daemon_tolerations(&mut spec);
        assert_eq!(node_eligibility(&spec, &from_value(node).unwrap()), want);
    }

    #[test]
    fn nodes_fit_by_name_labels_and_taints() {
        let node = |taints: Value| json!({"metadata": {"name": "n", "labels": {"disk": "ssd"}}, "spec": {"taints": taints}});
        let taint = |key: &str, effect: &str| json!([{"key": key, "effect": effect}]);
        let any = json!({"containers": []});
        let wants = |name: &str, value: Value| json!({"containers": [], name: value});
        check(any.clone(), node(json!([])), NodeEligibility::Run);
        check(wants("nodeName", json!("n")), node(json!([])), NodeEligibility::Run);
        check(wants("nodeName", json!("m")), node(json!([])), NodeEligibility::Leave);
        check(wants("nodeSelector", json!({"disk": "ssd"})), node(json!([])), NodeEligibility::Run);
        check(
            wants("nodeSelector", json!({"disk": "hdd"})),
            node(json!([])),
            NodeEligibility::Leave,
        );
        let affinity = |disk: &str| {
            wants(
                "affinity",
                json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In", "values": [disk]}]}]}}}),
            )
        };
        check(affinity("ssd"), node(json!([])), NodeEligibility::Run);
        check(affinity("hdd"), node(json!([])), NodeEligibility::Leave);
        check(any.clone(), node(taint("a", "NoSchedule")), NodeEligibility::Stay);
        check(any.clone(), node(taint("a", "NoExecute")), NodeEligibility::Leave);
        check(any.clone(), node(taint("a", "PreferNoSchedule")), NodeEligibility::Run);
        check(
            any.clone(),
            node(taint("node.kubernetes.io/unschedulable", "NoSchedule")),
            NodeEligibility::Run,
        );
        check(
            any.clone(),
            node(taint("node.kubernetes.io/not-ready", "NoExecute")),
            NodeEligibility::Run,
        );
        check(
            any.clone(),
            node(taint("node.kubernetes.io/not-ready", "NoSchedule")),
            NodeEligibility::Stay,
        );
        let network = node(taint("node.kubernetes.io/network-unavailable", "NoSchedule"));
        check(any.clone(), network.clone(), NodeEligibility::Stay);
        check(wants("hostNetwork", json!(true)), network, NodeEligibility::Run);
        let both =
            json!([{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoExecute"}]);
        check(any, node(both.clone()), NodeEligibility::Leave);
        check(
            wants("tolerations", json!([{"key": "b", "operator": "Exists"}])),
            node(both),
            NodeEligibility::Stay,
        );
    }

    #[test]
    fn node_affinity_names_one_node() {
        let mut pod: Pod = from_value(json!({"metadata": {}, "spec": {"containers": []}})).unwrap();
        assert_eq!(target_node_name(&pod), None);
        set_node_affinity(pod.spec.as_mut().unwrap(), "n");
        assert_eq!(target_node_name(&pod), Some("n"));
        set_node_affinity(pod.spec.as_mut().unwrap(), "m");
        assert_eq!(target_node_name(&pod), Some("m"));
        pod.spec.as_mut().unwrap().node_name = Some("x".into());
        assert_eq!(target_node_name(&pod), Some("x"));
    }

    #[test]
    fn tolerations_are_added_once() {
        let mut spec = PodSpec::default();
        add_daemon_tolerations(&mut spec);
        add_daemon_tolerations(&mut spec);
        assert_eq!(spec.tolerations.map(|all| all.len()), Some(6));
    }
}
