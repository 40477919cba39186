//! Random cases of Coscheduling: PodGroups and their pods, and what happens to the pods one after the other.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::case_rng::{CaseRng, Fields};
use super::{CaseQueuedPod, GangCase, GangStep, OracleCase, OracleCaseKind, full_name};

const LABEL: &str = "scheduling.x-k8s.io/pod-group";
/// A backoff that is not over before the end of a case.
const LONG_BACKOFF_SECONDS: u64 = 3600;

/// What a case is about.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    /// Any steps.
    Any,
    /// One group, `podGroupRejectPercentage`, and one member that fits on no node.
    RejectPercentage,
    /// A group is bound, and a bind fails.
    BindFails,
    /// The last step is an attempt right after a failure.
    BacksOff,
    /// `minResources`.
    MinResources,
}

struct Group {
    min_member: usize,
    /// Full names of its pods that have no node.
    pending: Vec<String>,
    n_assigned: usize,
}

impl Group {
    /// Whether the group needs fewer pods than it has.
    fn has_spare(&self) -> bool {
        self.pending.len() + self.n_assigned > self.min_member
    }
}

/// A case about Coscheduling.
pub(super) fn case(draw: &mut CaseRng, id: u64) -> OracleCase {
    let shape = match draw.range(0, 19) {
        0..11 => Shape::Any,
        11..13 => Shape::RejectPercentage,
        13..15 => Shape::BindFails,
        15..17 => Shape::BacksOff,
        _ => Shape::MinResources,
    };
    let args = args(draw, shape);
    let backs_off = args.get("podGroupBackoffSeconds").is_some();
    let mut objects = nodes(draw);
    let groups = add_groups(draw, shape, &mut objects);
    add_others(draw, &mut objects);
    let mut case =
        GangCase { steps: steps(draw, shape, &groups, backs_off), ..GangCase::default() };
    case.late_unreserve = shape == Shape::Any && draw.percent(10);
    let alive = |object: &&Value| {
        object["kind"] == "Pod"
            && object["metadata"]["deletionTimestamp"].is_null()
            && object["spec"]["nodeName"].is_null()
    };
    for (at, pod) in objects.iter().filter(alive).enumerate() {
        // Times of pods and of PodGroups are all different.
        let timestamp = format!("2024-05-01T10:00:{:02}Z", 30 - at % 30);
        let initial_attempt = Some(format!("2024-05-01T10:00:{:02}.5Z", (at * 7) % 40));
        case.queued.push(CaseQueuedPod { pod: full_name(pod), timestamp, initial_attempt });
    }
    let queue_sort = json!({"disabled": [{"name": "*"}], "enabled": [{"name": "Coscheduling"}]});
    let plugins =
        json!({"multiPoint": {"enabled": [{"name": "Coscheduling"}]}, "queueSort": queue_sort});
    let config = super::scheduler_plugins::config(
        plugins,
        vec![json!({"name": "Coscheduling", "args": args})],
    );
    OracleCase {
        id,
        pod: case.queued.first().map(|it| it.pod.clone()).unwrap_or_default(),
        config: Some(config),
        feature_gates: std::collections::BTreeMap::new(),
        objects,
        kind: OracleCaseKind::Gangs(Box::new(case)),
    }
}

fn args(draw: &mut CaseRng, shape: Shape) -> Value {
    let mut args = Fields::default();
    if draw.percent(50) {
        args.put("permitWaitingTimeSeconds", draw.pick(&[0, 10, 300]));
    }
    if draw.percent(30) && shape != Shape::BindFails {
        args.put("podGroupBackoffSeconds", LONG_BACKOFF_SECONDS);
    }
    if shape == Shape::RejectPercentage {
        args.put("podGroupRejectPercentage", draw.pick(&[10, 34, 50, 67, 100]));
    } else if draw.percent(20) {
        args.put("podGroupRejectPercentage", draw.pick(&[0, 10]));
    }
    args.into()
}

fn nodes(draw: &mut CaseRng) -> Vec<Value> {
    let node = |draw: &mut CaseRng, at: usize| {
        let mut allocatable = Fields::default();
        allocatable.put("cpu", draw.pick(&["2", "3500m", "8"]));
        allocatable.put("memory", draw.pick(&["4Gi", "10G"]));
        allocatable.put("pods", draw.pick(&["3", "5", "110"]));
        if draw.percent(50) {
            allocatable.put("example.com/gpu", draw.pick(&["1", "4"]));
        }
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("n{at}")},
            "status": {"allocatable": Value::from(allocatable)}})
    };
    let n = draw.count(1, 3);
    (0..n).map(|at| node(draw, at)).collect()
}

fn pod(draw: &mut CaseRng, name: &str, namespace: &str, group: &str) -> Value {
    let mut requests = Fields::default();
    requests.put("cpu", draw.pick(&["100m", "1", "1500m"]));
    if draw.percent(60) {
        requests.put("memory", draw.pick(&["100Mi", "1G"]));
    }
    if draw.percent(15) {
        requests.put("example.com/gpu", "1");
    }
    let containers =
        json!([{"name": "c", "image": "i", "resources": {"requests": Value::from(requests)}}]);
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace}, "spec": {"containers": containers}});
    if !group.is_empty() {
        pod["metadata"]["labels"] = json!({LABEL: group});
    }
    if draw.percent(15) {
        pod["spec"]["priority"] = draw.pick(&[-1, 0, 7]).into();
    }
    pod
}

/// PodGroups and their pods.
fn add_groups(draw: &mut CaseRng, shape: Shape, objects: &mut Vec<Value>) -> Vec<Group> {
    let has_one = !matches!(shape, Shape::Any | Shape::BacksOff);
    let names = if has_one { vec!["g"] } else { draw.some(&["g", "h", "k"], 1, 3) };
    let times_are_equal = draw.percent(15);
    let mut groups = Vec::new();
    for (at, name) in names.into_iter().enumerate() {
        let second = if times_are_equal { 0 } else { draw.count(at * 10, at * 10 + 9) };
        let min_member = match shape {
            Shape::RejectPercentage => draw.count(1, 12),
            _ => draw.count(1, 4),
        };
        objects.push(pod_group(draw, shape, name, min_member, second));
        let n_more = match shape {
            Shape::Any | Shape::MinResources => draw.range(-1, 2),
            _ => draw.range(0, 2),
        };
        let n_members = (min_member as i64 + n_more).max(1);
        let is_plain = matches!(shape, Shape::RejectPercentage | Shape::BindFails);
        let mut group = Group { min_member, pending: Vec::new(), n_assigned: 0 };
        for nth in 0..n_members {
            let mut pod = pod(draw, &format!("{}{nth}", prefix_of_names(at)), "default", name);
            if !is_plain && shape != Shape::MinResources && draw.percent(8) {
                pod["metadata"]["deletionTimestamp"] = "2026-01-31T12:00:00Z".into();
                pod["metadata"]["finalizers"] = json!(["example.com/wait"]);
            }
            let is_terminating = !pod["metadata"]["deletionTimestamp"].is_null();
            if !is_plain && draw.percent(15) {
                pod["spec"]["nodeName"] = "n0".into();
                group.n_assigned += usize::from(!is_terminating);
            } else if !is_plain && draw.percent(8) {
                pod["spec"]["schedulingGates"] = json!([{"name": "wait"}]);
            } else if !is_terminating {
                group.pending.push(full_name(&pod));
            }
            objects.push(pod);
        }
        groups.push(group);
    }
    groups
}

/// Names of pods in an order that is not that of the groups.
fn prefix_of_names(group: usize) -> &'static str {
    ["m", "c", "x"][group % 3]
}

fn pod_group(
    draw: &mut CaseRng,
    shape: Shape,
    name: &str,
    min_member: usize,
    second: usize,
) -> Value {
    let mut spec = Fields::default();
    spec.put("minMember", min_member);
    if shape == Shape::MinResources {
        let mut amounts = Fields::default();
        for (resource, pool) in [
            ("cpu", ["1", "2500m", "9"]),
            ("memory", ["1Gi", "5G", "20Gi"]),
            ("example.com/gpu", ["1", "2", "5"]),
            ("pods", ["1", "100", "1k"]),
        ] {
            if draw.percent(45) {
                amounts.put(resource, draw.pick(&pool));
            }
        }
        spec.put("minResources", Value::from(amounts));
    }
    if draw.percent(40) {
        spec.put("scheduleTimeoutSeconds", draw.mostly(&[7, 100], &[0, -5]));
    }
    json!({"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default",
            "creationTimestamp": format!("2024-05-01T10:00:{second:02}Z")},
        "spec": Value::from(spec)})
}

/// Pods of no group, of one that does not exist, and of one in another namespace.
fn add_others(draw: &mut CaseRng, objects: &mut Vec<Value>) {
    let alone = pod(draw, "single", "default", "");
    objects.push(alone);
    for (name, namespace, group) in
        [("lost", "default", "gone"), ("far", "other", "g"), ("busy", "other", "")]
    {
        if draw.percent(30) {
            let mut pod = pod(draw, name, namespace, group);
            if name == "busy" {
                pod["spec"]["nodeName"] = "n0".into();
            }
            objects.push(pod);
        }
    }
}

fn schedule(draw: &mut CaseRng, pod: &str, percent: u64) -> GangStep {
    let node = if draw.percent(percent) { "n0" } else { "" };
    GangStep::Schedule { pod: pod.to_owned(), node: node.to_owned(), immediately: false }
}

fn steps(draw: &mut CaseRng, shape: Shape, groups: &[Group], backs_off: bool) -> Vec<GangStep> {
    let mut steps = random_steps(draw, shape, groups, backs_off);
    groups.iter().filter(|group| group.has_spare()).for_each(|group| fail_once(group, &mut steps));
    steps
}

/// Each pod of the group finds no node at most once. Upstream fails the attempt of the group each time, and Loadmaster only the first time if there are
/// enough other pods, so that the rest of the case would differ. The simulation checks when Loadmaster does.
fn fail_once(group: &Group, steps: &mut [GangStep]) {
    let mut failed = BTreeSet::new();
    for step in steps {
        let GangStep::Schedule { pod, node, .. } = step else { continue };
        if node.is_empty() && group.pending.contains(pod) && !failed.insert(pod.clone()) {
            *node = "n0".to_owned();
        }
    }
}

fn random_steps(
    draw: &mut CaseRng,
    shape: Shape,
    groups: &[Group],
    backs_off: bool,
) -> Vec<GangStep> {
    match shape {
        Shape::RejectPercentage => reject_percentage_steps(draw, &groups[0]),
        Shape::BindFails => bind_fails_steps(draw, &groups[0]),
        _ => {
            let mut steps = any_steps(draw, groups, !backs_off && shape != Shape::MinResources);
            steps.push(GangStep::Order);
            if shape == Shape::BacksOff {
                let group = &groups[draw.count(0, groups.len() - 1)];
                if let [first, .., last] = &group.pending[..] {
                    steps.push(schedule(draw, first, 100));
                    match draw.percent(50) {
                        true => steps.push(GangStep::Timeout { pod: first.clone() }),
                        false => steps.push(schedule(draw, last, 0)),
                    }
                    let (pod, node) = (last.clone(), "n0".to_owned());
                    steps.push(GangStep::Schedule { pod, node, immediately: true });
                }
            }
            steps
        }
    }
}

fn any_steps(draw: &mut CaseRng, groups: &[Group], has_timeouts: bool) -> Vec<GangStep> {
    let mut steps = Vec::new();
    for _ in 0..draw.count(1, 5) {
        let group = &groups[draw.count(0, groups.len() - 1)];
        let n = draw.count(0, group.min_member.min(group.pending.len()));
        let mut pods: Vec<&str> = group.pending.iter().map(String::as_str).collect();
        draw.shuffle(&mut pods);
        for pod in pods.iter().take(n) {
            steps.push(schedule(draw, pod, 80));
        }
        match draw.range(0, 9) {
            0 => steps.push(schedule(draw, "default/single", 50)),
            1 => steps.push(GangStep::Order),
            2..5 if has_timeouts && !pods.is_empty() => {
                steps.push(GangStep::Timeout { pod: pods[0].to_owned() });
            }
            _ => {}
        }
    }
    steps
}

fn reject_percentage_steps(draw: &mut CaseRng, group: &Group) -> Vec<GangStep> {
    let n_waiting = draw.count(0, group.min_member - 1);
    let mut steps: Vec<GangStep> =
        group.pending.iter().take(n_waiting).map(|pod| schedule(draw, pod, 100)).collect();
    steps.extend(group.pending.get(n_waiting).map(|pod| schedule(draw, pod, 0)));
    steps.push(GangStep::Order);
    steps
}

fn bind_fails_steps(draw: &mut CaseRng, group: &Group) -> Vec<GangStep> {
    let mut steps: Vec<GangStep> =
        group.pending.iter().map(|pod| schedule(draw, pod, 100)).collect();
    let n_failed = draw.count(1, group.pending.len());
    let failed = &group.pending[..n_failed];
    steps.extend(failed.iter().map(|pod| GangStep::BindFails { pod: pod.clone() }));
    match draw.percent(50) {
        true => steps.push(GangStep::Order),
        false => steps.extend(failed.iter().map(|pod| schedule(draw, pod, 90))),
    }
    steps
}
