//! Random cases of the plugins of scheduler-plugins, each with a configuration that enables some of them.

use serde_json::{Value, json};

use super::case_rng::{CaseRng, Fields, NAMESPACES};
use super::features::CaseFeature;
use super::pod::{self, Role};
use super::{
    CaseQueuedPod, OracleCase, OracleCaseKind, cluster, full_name, gangs, preemption,
    watched_objects,
};

/// Gates that are off, or that do not exist yet, in the older kube-scheduler that scheduler-plugins needs: NodeDeclaredFeatures, which
/// adds a plugin, and those that depend on it.
const GATES_OF_NEWER_VERSIONS: [&str; 5] = [
    "NodeDeclaredFeatures",
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

/// A case about one of the extension points that these plugins have.
pub(super) fn case(draw: &mut CaseRng, id: u64) -> OracleCase {
    let mut case = match draw.range(0, 24) {
        0..6 => score_case(draw, id),
        6..12 => toleration_case(draw, id),
        12..17 => quota_case(draw, id),
        17..20 => order_case(draw, id),
        _ => gangs::case(draw, id),
    };
    for gate in GATES_OF_NEWER_VERSIONS {
        case.feature_gates.insert(gate.to_owned(), false);
    }
    case
}

/// A configuration with one profile.
pub(super) fn config(plugins: Value, plugin_config: Vec<Value>) -> Value {
    let mut profile = Fields::default();
    profile.put("plugins", plugins);
    profile.put_some("pluginConfig", plugin_config);
    json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [Value::from(profile)],
    })
}

/// Only these plugins at an extension point.
fn only(plugins: Vec<Value>) -> Value {
    json!({"disabled": [{"name": "*"}], "enabled": plugins})
}

/// NodeResourcesAllocatable and PodState.
fn score_case(draw: &mut CaseRng, id: u64) -> OracleCase {
    draw.clear_features();
    draw.add(CaseFeature::Terminating);
    for feature in draw.some(
        &[
            CaseFeature::Resources,
            CaseFeature::Scalars,
            CaseFeature::Nominated,
            CaseFeature::Taints,
        ],
        1,
        3,
    ) {
        draw.add(feature);
    }
    let mut case = cluster::case(draw, id);
    for node in case.objects.iter_mut().filter(|object| object["kind"] == "Node") {
        for (_, amount) in node["status"]["allocatable"].as_object_mut().into_iter().flatten() {
            // Upstream's sums overflow.
            let text = amount.as_str().unwrap_or_default();
            if ["Pi", "E", "Ei", "e18"].iter().any(|suffix| text.ends_with(suffix)) {
                *amount = "7Ti".into();
            }
        }
    }
    let names = draw.some(&["NodeResourcesAllocatable", "PodState"], 1, 2);
    // Upstream does not check the arguments of a plugin that is not enabled.
    let has_args = names.contains(&"NodeResourcesAllocatable") && draw.percent(90);
    let scorers = names.into_iter().map(|name| json!({"name": name, "weight": draw.range(1, 5)}));
    // The in-tree plugins with PreScore score, too.
    let plugins = json!({"preScore": only(vec![]), "score": only(scorers.collect())});
    let mut args = Vec::new();
    if has_args {
        let given = allocatable_args(draw);
        args.push(json!({"name": "NodeResourcesAllocatable", "args": given}));
    }
    case.config = Some(config(plugins, args));
    case
}

const RESOURCES: [&str; 7] =
    ["cpu", "memory", "ephemeral-storage", "example.com/gpu", "hugepages-2Mi", "pods", "unknown"];

fn allocatable_args(draw: &mut CaseRng) -> Value {
    let mut args = Fields::default();
    if draw.percent(80) {
        args.put("mode", draw.mostly(&["Most", "Least"], &["", "most"]));
    }
    if draw.percent(70) {
        let names = draw.some(&RESOURCES, 0, 3);
        let weighted = names.into_iter().map(|name| {
            let weight = draw.mostly(&[1, 2, 3, 1 << 20], &[0, -1]);
            json!({"name": name, "weight": weight})
        });
        args.put("resources", weighted.collect::<Vec<_>>());
    }
    args.into()
}

const CLASSES: [&str; 3] = ["tolerant", "patient", "plain"];
const MINIMUM_PREEMPTABLE_PRIORITY: &str =
    "preemption-toleration.scheduling.x-k8s.io/minimum-preemptable-priority";
const TOLERATION_SECONDS: &str = "preemption-toleration.scheduling.x-k8s.io/toleration-seconds";

/// PreemptionToleration: a preemption case in which pods have PriorityClasses. All times are far from the time of the cycle.
fn toleration_case(draw: &mut CaseRng, id: u64) -> OracleCase {
    let mut case = preemption::case(draw, id);
    remove_volumes(&mut case);
    let mut plugins = json!({"postFilter": only(vec![json!({"name": "PreemptionToleration"})])});
    if draw.percent(10) {
        // As a multi-point plugin, which has only this extension point.
        plugins = json!({"multiPoint": {"disabled": [{"name": "DefaultPreemption"}],
            "enabled": [{"name": "PreemptionToleration"}]}});
    }
    let args = match draw.percent(20) {
        // With fewer candidates than nodes, upstream nominates the best one of some nodes.
        true => json!({"minCandidateNodesAbsolute": draw.mostly(&[100], &[-1]),
            "minCandidateNodesPercentage": draw.mostly(&[0, 100], &[101])}),
        false => json!({}),
    };
    case.config =
        Some(config(plugins, vec![json!({"name": "PreemptionToleration", "args": args})]));
    let target = case.pod.clone();
    for object in case.objects.iter_mut() {
        let is_assigned = object["spec"].get("nodeName").is_some();
        if object["kind"] == "Pod" && is_assigned && full_name(object) != target {
            add_class_and_condition(draw, object);
        }
    }
    for name in CLASSES {
        if draw.percent(97) {
            let class = priority_class(draw, name);
            case.objects.push(class);
        }
    }
    case
}

/// The volume plugins of the older kube-scheduler that scheduler-plugins needs are not the ones that Loadmaster equals.
fn remove_volumes(case: &mut OracleCase) {
    case.feature_gates.clear();
    case.objects.retain(|object| !watched_objects::is_storage_object(object));
    for object in case.objects.iter_mut().filter(|object| object["kind"] == "Pod") {
        drop(object["spec"].as_object_mut().map(|spec| spec.remove("volumes")));
    }
}

fn add_class_and_condition(draw: &mut CaseRng, pod: &mut Value) {
    if draw.percent(75) {
        pod["spec"]["priorityClassName"] = draw.pick(&CLASSES).into();
    }
    if draw.percent(15) {
        return;
    }
    let mut condition = Fields::default();
    condition.put("type", "PodScheduled");
    condition.put("status", draw.mostly(&["True"], &["False", "Unknown"]));
    if draw.percent(90) {
        let time = draw.pick(&["2020-01-01T00:00:00Z", "2024-06-30T23:59:59Z"]);
        condition.put("lastTransitionTime", time);
    }
    let mut conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.push(condition.into());
    pod["status"]["conditions"] = conditions.into();
}

fn priority_class(draw: &mut CaseRng, name: &str) -> Value {
    let mut annotations = Fields::default();
    if draw.percent(70) {
        let minimum =
            draw.mostly(&["0", "10", "1000", "+11", "2000000001"], &["2147483648", "high", ""]);
        annotations.put(MINIMUM_PREEMPTABLE_PRIORITY, minimum);
    }
    if draw.percent(70) {
        let seconds = draw.mostly(&["-1", "0", "10", "9000000000"], &["1h", "", "+7"]);
        annotations.put(TOLERATION_SECONDS, seconds);
    }
    let mut metadata = Fields::default();
    metadata.put("name", name);
    metadata.put_some("annotations", Value::from(annotations));
    let value = draw.mostly(&[-10, 0, 5, 1000], &[i32::MAX]);
    json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": Value::from(metadata), "value": value})
}

/// CapacityScheduling: a preemption case in which most namespaces have a quota, without what upstream decides by chance or miscounts.
fn quota_case(draw: &mut CaseRng, id: u64) -> OracleCase {
    let mut case = preemption::case(draw, id);
    remove_volumes(&mut case);
    // Upstream does not count violations of budgets in some cases, and fails in some with nominated pods.
    let has_nominated = draw.percent(15);
    case.objects.retain(|object| {
        let is_nominated = object["status"].get("nominatedNodeName").is_some();
        object["kind"] != "PodDisruptionBudget" && (has_nominated || !is_nominated)
    });
    if !case.objects.iter().any(|object| full_name(object) == case.pod) {
        return score_case(draw, id);
    }
    let mut target = String::new();
    for (at, pod) in case.objects.iter_mut().filter(|it| it["kind"] == "Pod").enumerate() {
        let is_target = full_name(pod) == case.pod;
        pod["metadata"]["namespace"] = draw.pick(&NAMESPACES).into();
        if is_target {
            target = full_name(pod);
        }
        for (part, field) in
            [("metadata", "deletionTimestamp"), ("spec", "initContainers"), ("spec", "resources")]
        {
            drop(pod[part].as_object_mut().map(|fields| fields.remove(field)));
        }
        // Upstream does not count resources of a resize.
        for field in
            ["containerStatuses", "initContainerStatuses", "resources", "allocatedResources"]
        {
            drop(pod["status"].as_object_mut().map(|fields| fields.remove(field)));
        }
        // Upstream sorts equally important pods in any order.
        if pod["status"].get("startTime").is_some() {
            pod["status"]["startTime"] = json!(format!("2024-05-01T10:00:{at:02}Z"));
        }
    }
    case.pod = target;
    for namespace in NAMESPACES {
        if draw.percent(80) {
            let quota = elastic_quota(draw, namespace);
            case.objects.push(quota);
        }
    }
    let one = vec![json!({"name": "CapacityScheduling"})];
    // Scores of the older kube-scheduler differ.
    let plugins = json!({"preFilter": {"enabled": one}, "reserve": {"enabled": one},
        "postFilter": only(one), "preScore": only(vec![]), "score": only(vec![])});
    case.config = Some(config(plugins, vec![]));
    if has_nominated || draw.percent(25) {
        case.kind = OracleCaseKind::Explain;
    }
    case
}

fn elastic_quota(draw: &mut CaseRng, namespace: &str) -> Value {
    let list = |draw: &mut CaseRng, cpus: &[&'static str]| {
        let mut list = Fields::default();
        if draw.percent(95) {
            list.put("cpu", draw.pick(cpus));
        }
        // What a list lacks is 0.
        for name in ["memory", "ephemeral-storage"] {
            if draw.percent(95) {
                list.put(name, "1Ti");
            }
        }
        for name in ["example.com/gpu", "example.org/fpga", "pods"] {
            if draw.percent(40) {
                list.put(name, draw.pick(&["1", "2", "10"]));
            }
        }
        Value::from(list)
    };
    let mut spec = Fields::default();
    if draw.percent(90) {
        spec.put("min", list(draw, &["1", "2", "3500m", "5", "8"]));
    }
    if draw.percent(80) {
        spec.put("max", list(draw, &["2", "4", "6", "20"]));
    }
    json!({"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "ElasticQuota",
        "metadata": {"name": "quota", "namespace": namespace}, "spec": Value::from(spec)})
}

/// QOSSort: pods of all classes, queued at few different times.
fn order_case(draw: &mut CaseRng, id: u64) -> OracleCase {
    draw.clear_features();
    let mut objects = Vec::new();
    let mut queued = Vec::new();
    for at in 0..draw.count(2, 6) {
        let mut pod = pod::pod(draw, &format!("p{at}"), Role::Pending, &[]);
        if draw.percent(40) {
            pod["spec"]["priority"] = json!(draw.pick(&[0, 1, -1]));
        }
        set_qos(draw, &mut pod["spec"]);
        let timestamp = draw.pick(&["2024-05-01T10:00:00Z", "2024-05-01T10:00:01Z"]).to_owned();
        queued.push(CaseQueuedPod { pod: full_name(&pod), timestamp, initial_attempt: None });
        objects.push(pod);
    }
    let sort = draw.mostly(&["QOSSort"], &["PrioritySort"]);
    OracleCase {
        id,
        pod: queued.first().map(|it| it.pod.clone()).unwrap_or_default(),
        config: Some(config(json!({"queueSort": only(vec![json!({"name": sort})])}), vec![])),
        feature_gates: std::collections::BTreeMap::new(),
        objects,
        kind: OracleCaseKind::Order(queued),
    }
}

fn set_qos(draw: &mut CaseRng, spec: &mut Value) {
    let containers = |draw: &mut CaseRng, low: usize| -> Value {
        let containers = (0..draw.count(low, 2))
            .map(|at| json!({"name": format!("c{at}"), "image": "i", "resources": amounts(draw)}));
        containers.collect()
    };
    spec["containers"] = containers(draw, 1);
    if draw.percent(25) {
        spec["initContainers"] = containers(draw, 0);
    }
    if draw.percent(15) {
        spec["resources"] = amounts(draw);
    }
}

/// Requests and limits that are often equal.
fn amounts(draw: &mut CaseRng) -> Value {
    let list = |draw: &mut CaseRng| {
        let mut list = Fields::default();
        if draw.percent(85) {
            list.put("cpu", draw.mostly(&["1", "1000m"], &["0", "2"]));
        }
        if draw.percent(85) {
            list.put("memory", draw.mostly(&["1Gi", "1024Mi"], &["0", "2Gi"]));
        }
        if draw.percent(10) {
            list.put("example.com/gpu", "1");
        }
        Value::from(list)
    };
    let limits = list(draw);
    match draw.range(0, 9) {
        0 | 1 => json!({}),
        2 => json!({"requests": limits}),
        3 => json!({"requests": list(draw), "limits": limits}),
        _ => json!({"requests": limits, "limits": limits}),
    }
}
